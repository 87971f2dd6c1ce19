"""Counts the recorded rows, and finds the partitions that are not settled yet. It watches the table of a follower, so
that it doesn't add to the leader's turns.
"""

from collections.abc import Callable

from minka.v1.cluster_pb2 import Node, NodeState, Partition, PartitionState
from minka.v1.records_pb2 import RecordBatch
from minkad.core.state import OPERATIONS_UNENDED, State, is_up

_ROWS_OF = {
    "partitions_changed": lambda record: record.partitions_changed.partitions,
    "partitions_created": lambda record: record.partitions_created.partitions,
    "keyspace_created": lambda record: record.keyspace_created.partitions,
}
_OPERATIONS = ("operation_started", "operation_changed", "operation_finished")


class Observer:
    """Counts records and rows, and finds the unsettled partitions. It calls `changed` with each node that has
    changed.
    """

    def __init__(self, state: Callable[[], State], changed: Callable[[Node], None]) -> None:
        self.records = 0
        self.rows = 0  # the number of partitions' rows in these records
        self.migrations = 0  # the number of migrations' rows in these records
        self.changed_at = 0.0  # the time at which the table last changed
        self.unsettled: dict[int, None] = {}  # partitions that are not settled
        self.operations: dict[int, None] = {}  # operations that have not ended
        self._state = state
        self._changed = changed

    def applied(self, data: bytes, now: float) -> None:
        """Look at a command that the follower has applied."""
        batch = RecordBatch.FromString(data)
        self.records += len(batch.records)
        self.changed_at = now
        for record in batch.records:
            fact = record.WhichOneof("fact")
            if (rows_of := _ROWS_OF.get(fact or "")) is not None:
                rows = rows_of(record)
                self.rows += len(rows)
                for row in rows:
                    self._look_at(row)
            elif fact == "node_changed":
                self._look_at_node(record.node_changed)
            elif fact in ("migration_changed",):
                self.migrations += 1
            elif fact in _OPERATIONS:
                self._look_at_operations()

    def _look_at_operations(self) -> None:
        state = self._state()
        self.operations = {one.id: None for one in state.operations.values() if one.state in OPERATIONS_UNENDED}

    def _look_at_node(self, node: Node) -> None:
        self._changed(node)
        for row in self._state().partitions_on(node.id):
            self._look_at(row)

    def _look_at(self, row: Partition) -> None:
        if self._is_settled(self._state().partitions.get(row.id, row)):
            self.unsettled.pop(row.id, None)
        else:
            self.unsettled[row.id] = None

    def _is_settled(self, row: Partition) -> bool:
        """True if the partition has a leader, nothing moves, and all replicas on nodes that are up are in sync."""
        nodes = self._state().nodes
        if row.state != PartitionState.PARTITION_STATE_ONLINE or row.successor or row.target_replicas:
            return False
        if any(is_up(nodes.get(node)) for node in row.removing_replicas):
            return False
        return {node for node in row.replicas if is_up(nodes.get(node))} == set(row.isr)

    def live(self) -> int:
        """The number of LIVE nodes."""
        return sum(node.state == NodeState.NODE_STATE_LIVE for node in self._state().nodes.values())
