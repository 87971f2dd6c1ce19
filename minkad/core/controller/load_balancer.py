"""Moves that spread load: the controller makes them automatically, as operations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from minka.v1.cluster_pb2 import Migration, MigrationState, Operation, OperationState, ReassignOperation
from minkad.core.controller.balancer import View
from minkad.core.controller.operation_kind import Begins
from minkad.core.controller.operation_kinds import kind_of
from minkad.core.placement.spread import MAX_SKEW, NodeLoads, best_shift
from minkad.core.state import State

INTERVAL_S: Final = 1.0
SUSTAINED_S: Final = 5.0
SETTLE_S: Final = 2.0  # pause after a move, until most of the reported load is newer than it
AFTER_FAILURE_S: Final = 60.0  # the same if a person or a problem has ended the move


@dataclass(frozen=True, slots=True)
class SpreadLoad(Begins):
    """The nodes' load is uneven, so a partition is to have `target_replicas`, of which the first leads. At most one
    replica is new: it is copied to `target` instead of `source`. If both are empty, only the leadership moves.
    """

    partition_id: int
    target_replicas: Sequence[str]
    source: str
    target: str
    reason: str

    def operation(self, state: State) -> Operation | None:
        """The operation; None while another partition is being moved."""
        if any(thing.kind == "partition_id" for thing in state.moving):
            return None
        return Operation(automatic=True, reason=self.reason, reassign=ReassignOperation())

    def migrations(self) -> list[Migration]:
        """The one move as a migration."""
        return [
            Migration(
                partition_id=self.partition_id,
                source=self.source,
                target=self.target,
                target_replicas=self.target_replicas,
                state=MigrationState.MIGRATION_STATE_PENDING,
                reason=self.reason,
            )
        ]


class LoadBalancer:
    """Makes one move at a time, if the nodes' load has been uneven for a while. Times are seconds of the active
    controller's monotonic clock.
    """

    def __init__(self) -> None:
        self._looked_at = float("-inf")
        self._since: float | None = None  # since when the load is uneven, or since the last try
        self._rest_until = float("-inf")  # no move begins before
        self._move = 0  # the id of the last move's operation, until it has ended; 0: none

    def due(self, view: View) -> SpreadLoad | None:
        """The move that is due; None if there is none."""
        state, now = view.state, view.now
        if now - self._looked_at < INTERVAL_S:
            return None
        self._looked_at = now
        if not any(keyspace.max_ops for keyspace in state.keyspaces.values()) or not self._may_move(state, now):
            self._since = None
            return None
        reported = view.stats()
        ops = {one.partition_id: one.ops for one in reported}
        if NodeLoads(state, ops).skew <= MAX_SKEW:
            self._since = None
            return None
        self._since = now if self._since is None else self._since
        if now - self._since < SUSTAINED_S:
            return None
        self._since = now  # if no move helps, the next try comes after the same time
        shift = best_shift(state, ops, {one.partition_id: one.bytes for one in reported}, view.disks)
        if shift is None:
            return None
        self._move = state.next_operation_id
        return SpreadLoad(shift.partition_id, shift.target_replicas, shift.source, shift.target, shift.reason)

    def _may_move(self, state: State, now: float) -> bool:
        if any(kind_of(operation).shifts_load for operation in state.running_operations()):
            return False
        if self._move:
            ended = state.operations.get(self._move)
            went_well = ended is not None and ended.state == OperationState.OPERATION_STATE_SUCCEEDED
            self._rest_until = now + (SETTLE_S if went_well else AFTER_FAILURE_S)
            self._move = 0
        return now >= self._rest_until
