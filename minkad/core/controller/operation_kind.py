"""What a kind of operation is. `operation_kinds.py` lists all of them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from minka.v1.admin_pb2 import Blocker
from minka.v1.cluster_pb2 import Operation, Partition
from minka.v1.records_pb2 import Record
from minkad.core.controller.selectors import Live
from minkad.core.state import State


@dataclass(frozen=True, slots=True)
class End:
    """How an operation has ended, besides its migrations."""

    outcome: str = ""
    failed: bool = False


class OperationKind:
    """What operations of a kind do, besides their migrations. As it is here: nothing."""

    def next_steps(self, state: State, operation: Operation) -> list[Record]:
        """The next facts of one that runs; none when there is something to wait for. No row is changed twice."""
        return []

    def leaderships(self, state: State, operation: Operation, live: Live) -> Iterable[tuple[Partition, str]]:
        """Which partitions are to be led by others, and by whom."""
        return []

    def blockers(self, state: State, operation: Operation) -> list[Blocker]:
        """What one that runs waits for."""
        return []

    def cancelled(self, state: State, operation: Operation, but: Collection[int], now_ms: int) -> list[Record]:
        """What follows when it is cancelled. `but`: the partitions whose rows change anyway."""
        return []

    def end(self, state: State, operation: Operation, live: Live) -> End | None:
        """How one whose migrations have ended has ended itself; None while it hasn't."""
        return End()
