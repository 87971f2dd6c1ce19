"""The replicas of each node before and after the plan that is being made."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from minka.v1.cluster_pb2 import Node, Partition
from minka.v1.coordinator_pb2 import DiskSpace
from minkad.core.placement.moving import destinations
from minkad.core.state import State, holders

NO_DISKS: Final[Mapping[str, DiskSpace]] = {}


class Layout:
    """The replicas of each node as they will be after the unended operations and the plan's steps so far. `disks`: by
    node; a node whose disk isn't known counts as one with room. `moves_again`: the plan may also move partitions that
    unended operations move.
    """

    def __init__(
        self,
        state: State,
        sizes: Mapping[int, int],
        disks: Mapping[str, DiskSpace] = NO_DISKS,
        *,
        moves_again: bool = False,
    ) -> None:
        self.nodes: Mapping[str, Node] = state.nodes
        self.zones = {node.id: node.zone for node in state.nodes.values()}
        self.sizes = sizes
        going = destinations(state)
        # By partition, the operation that moves it; the plan leaves these partitions alone.
        self.moving = {} if moves_again else {id_: to.operation_id for id_, to in going.items()}
        # By partition: its replicas after the unended operations; and, in `replicas`, also after the plan's steps.
        self.before = {p.id: going[p.id].replicas if p.id in going else holders(p) for p in state.partitions.values()}
        self.replicas = {id_: list(nodes) for id_, nodes in self.before.items()}
        # By node, its replicas, and their bytes.
        self.totals = Counter(node for nodes in self.replicas.values() for node in nodes)
        self.disks = disks
        self.bytes = Counter[str]()
        for partition_id, nodes in self.replicas.items():
            if size := sizes.get(partition_id, 0):
                for node in nodes:
                    self.bytes[node] += size
        self.totals_before, self.bytes_before = Counter(self.totals), Counter(self.bytes)
        # By node, the bytes that come. Bytes that leave don't count: they are deleted only later.
        self.taken = Counter[str]()
        for partition_id, to in going.items():
            come = set(to.replicas).difference(holders(state.partitions[partition_id]))
            self.taken.update(dict.fromkeys(come, sizes.get(partition_id, 0)))

    def move(self, partition_id: int, source: str, target: str) -> None:
        """Move a replica: the target takes the source's place in the order."""
        replicas, size = self.replicas[partition_id], self.sizes.get(partition_id, 0)
        replicas[replicas.index(source)] = target
        self.totals[source] -= 1
        self.totals[target] += 1
        self.bytes[source] -= size
        self.bytes[target] += size
        if target not in self.before[partition_id]:
            self.taken[target] += size
        if source not in self.before[partition_id]:
            self.taken[source] -= size  # an earlier step had counted this replica as coming

    def fits(self, partition: Partition, source: str, target: str, *, any_zone: bool = False) -> bool:
        """True if the replica may go from the source to the target."""
        node, size = self.nodes[target], self.sizes.get(partition.id, 0)
        if target in self.replicas[partition.id] or target in partition.removing_replicas:
            return False
        if node.capacity_bytes and self.bytes[target] + size > node.capacity_bytes:
            return False
        if not self.has_room(target, size):
            return False
        return any_zone or node.zone not in self.closed_zones(partition.id, source)

    def has_room(self, node: str, size: int) -> bool:
        """True if the node's disk has room for `size` bytes more, and isn't low afterwards."""
        disk = self.disks.get(node)
        if disk is None or not disk.total_bytes:
            return True
        return not disk.is_low and disk.free_bytes - self.taken[node] - size >= disk.low_mark_bytes

    def closed_zones(self, partition_id: int, source: str) -> Collection[str]:
        """The zones to which the replica on the source must not go: the partition would then be in fewer zones."""
        others = {self.zones[n] for n in self.replicas[partition_id] if n != source and n in self.zones}
        return () if self.zones.get(source) in (None, *others) else others
