"""The node's table for the data plane."""

from collections.abc import Callable, Collection

from minka.v1.cluster_pb2 import Keyspace, Operation, Partition
from minkad.coordinator.member import Member
from minkad.core.state import OwnTable, Placed
from minkad.storage.disk_space import DiskWatch


class NodeTable:
    """This node's present copy of the table; `minkad.replication.surroundings.ClusterTable`."""

    def __init__(self, table: OwnTable, member: Callable[[], Member], disk: DiskWatch) -> None:
        self._table = table
        self._member = member
        self._disk = disk

    def has_clearance(self) -> bool:
        """True if this node may serve now."""
        return self._member().has_clearance()

    def last_clearance(self, now: float) -> float:
        """The last moment up to `now` at which this node had clearance; -inf if there is none."""
        return self._member().clearance.last_held(now)

    def row(self, partition_id: int) -> Partition | None:
        """The partition's row."""
        return self._table.state.row(partition_id)

    def is_gone(self, partition_id: int) -> bool:
        """True if the partition was merged into another one."""
        return self._table.state.is_gone(partition_id)

    def keyspace(self, keyspace_id: int) -> Keyspace | None:
        """The keyspace; None until it is known here."""
        return self._table.state.keyspaces.get(keyspace_id)

    def is_absent(self, node_id: str) -> bool:
        """True if a node has failed, or left."""
        return self._table.state.is_absent(node_id)

    def operation_moving(self, partition_id: int) -> Operation | None:
        """The operation that moves the partition."""
        return self._table.state.operation_moving(Placed.partition(partition_id))

    def low_disks(self) -> Collection[str]:
        """The nodes that are short of disk space: others as the active controller reports, this one as it measures."""
        member = self._member()
        if not self._disk.is_low and member.node.id not in member.low_disks:
            return member.low_disks
        own = {member.node.id}
        return member.low_disks | own if self._disk.is_low else member.low_disks - own
