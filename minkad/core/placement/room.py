"""The nodes that are to get more replicas. The best of them is found without a look at all the others."""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator

from minka.v1.cluster_pb2 import Partition
from minkad.core.placement.layout import Layout

_Entry = tuple[int, int, str]  # a node's bytes and replicas, and its id


class Room:
    """Each zone has a heap of its nodes, the emptiest first."""

    def __init__(self, layout: Layout, nodes: Iterable[str]) -> None:
        self._layout = layout
        self._entries: dict[str, _Entry] = {}  # by node: its valid entry; other entries in the heaps are outdated
        self._heaps: defaultdict[str, list[_Entry]] = defaultdict(list)  # by zone
        for node in nodes:
            self.put(node)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __contains__(self, node: str) -> bool:
        return node in self._entries

    def put(self, node: str) -> None:
        """Let the node get more replicas. Call this again when the node's replicas have changed."""
        entry = self._layout.bytes[node], self._layout.totals[node], node
        if self._entries.get(node) != entry and self._layout.has_room(node, 0):
            self._entries[node] = entry
            heapq.heappush(self._heaps[self._layout.zones[node]], entry)

    def remove(self, node: str) -> None:
        """Let the node get no further replicas."""
        self._entries.pop(node, None)

    def best(self, partition: Partition, source: str, *, but: str = "", any_zone: bool = False) -> str | None:
        """The emptiest node, except `but`, to which the replica may go from the source; None if there is none."""
        layout, found = self._layout, None
        closed = () if any_zone else layout.closed_zones(partition.id, source)
        aside: list[_Entry] = []
        while found is None and (entry := min(self._heads(closed), default=None)) is not None:
            if entry[-1] not in (source, but) and layout.fits(partition, source, entry[-1], any_zone=True):
                found = entry[-1]
            else:
                aside.append(heapq.heappop(self._heaps[layout.zones[entry[-1]]]))
        for entry in aside:
            heapq.heappush(self._heaps[layout.zones[entry[-1]]], entry)
        return found

    def _heads(self, closed: Iterable[str]) -> Iterator[_Entry]:
        for zone, heap in self._heaps.items():
            if zone in closed:
                continue
            while heap and self._entries.get(heap[0][-1]) != heap[0]:
                heapq.heappop(heap)
            if heap:
                yield heap[0]
