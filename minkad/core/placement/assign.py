"""The placement of the replicas of new partitions (Fixed Partitions: "Assigning partitions to cluster members")."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence

from minka.cluster.hashing import murmur3
from minka.v1.cluster_pb2 import Node


class Placement:
    """Places replicas slot by slot, the preferred leader first. There must be at least `replicas` nodes.

    Leaders are placed round robin. Each other replica goes to the node with the fewest replicas, so all nodes get about
    equally many. The replicas of one partition go to different nodes, and to different zones while there are enough.

    Each zone has a heap of its nodes, the node with the fewest replicas first. An entry of a heap is outdated once the
    node's count differs from the count in the entry.
    """

    def __init__(self, nodes: Sequence[Node], partition_count: int, replicas: int) -> None:
        self._nodes = nodes
        self._replicas = replicas
        self._placed: list[list[str]] = []
        self._zone = {node.id: node.zone for node in nodes}
        # All leaders count from the start: of 10 slots, 4 nodes lead 3, 3, 2 and 2; the last two get more followers.
        self._count = Counter({node.id: 0 for node in nodes})
        self._count.update(nodes[slot % len(nodes)].id for slot in range(partition_count))
        self._heaps: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for node in nodes:
            self._push(node.id, 0)

    def place(self, slot: int) -> None:
        """Place the next slot, from 0 on."""
        chosen = [self._nodes[slot % len(self._nodes)].id]
        while len(chosen) < self._replicas:
            chosen.append(self._next(chosen))
            self._count[chosen[-1]] += 1
            self._push(chosen[-1], slot)
        self._placed.append(chosen)

    def even_out(self) -> list[list[str]]:
        """The replicas of each slot. For the last slots there may have been too few nodes to choose from, so replicas
        first move from the node with the most to the node with the fewest, as far as the zones allow.
        """
        placed = self._placed
        while True:
            most, least = max(self._count, key=self._count.__getitem__), min(self._count, key=self._count.__getitem__)
            chosen = next((nodes for nodes in placed if self._may_replace(nodes, most, least)), None)
            if self._count[most] - self._count[least] <= 1 or chosen is None:
                return placed
            chosen[chosen.index(most)] = least
            self._count.update({most: -1, least: 1})

    def _may_replace(self, nodes: Sequence[str], old: str, new: str) -> bool:
        if old not in nodes[1:] or new in nodes:
            return False
        before, after = ({self._zone[n] for n in side} for side in (nodes, [new if n == old else n for n in nodes]))
        return len(after) >= len(before)

    def _push(self, node: str, slot: int) -> None:
        # Among nodes with equal counts, the hash puts another node first for each slot. So the partitions that one node
        # leads have different followers.
        heapq.heappush(
            self._heaps[self._zone[node]], (self._count[node], murmur3(b"%d/%s" % (slot, node.encode())), node)
        )

    def _next(self, chosen: Sequence[str]) -> str:
        used = Counter(self._zone[node] for node in chosen)
        heads = {zone: self._head(zone, chosen) for zone in self._heaps}
        free = [(used[zone], *head) for zone, head in heads.items() if head is not None]
        return min(free)[-1]

    def _head(self, zone: str, chosen: Sequence[str]) -> tuple[int, int, str] | None:
        heap, aside = self._heaps[zone], []
        while heap and (heap[0][2] in chosen or heap[0][0] != self._count[heap[0][2]]):
            entry = heapq.heappop(heap)
            if entry[0] == self._count[entry[2]]:
                aside.append(entry)
        head = heap[0] if heap else None
        for entry in aside:
            heapq.heappush(heap, entry)
        return head
