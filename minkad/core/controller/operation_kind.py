"""What a kind of operation is. `operation_kinds.py` lists all of them."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, NamedTuple

from minka.v1.admin_pb2 import Blocker
from minka.v1.cluster_pb2 import Migration, Operation, Partition
from minka.v1.coordinator_pb2 import DiskSpace
from minka.v1.records_pb2 import Record
from minkad.core.controller.selectors import Live
from minkad.core.state import Placed, State


class Touch(Enum):
    """What an operation does to a thing, so that no other one may do it at the same time."""

    MOVES = "move"
    LEADS = "elect the leader of"
    CUTS = "change the ranges of"
    DRAINS = "drain"


Touched = tuple[Touch, Placed | int | str]  # and the thing, or the id of the partition, keyspace or node


class Beginning(NamedTuple):
    """What is recorded when an operation begins: its migrations, and what changes at once."""

    migrations: Sequence[Migration] = ()
    records: Sequence[Record] = ()


class Usage(NamedTuple):
    """What nodes have reported: bytes by partition id, and their disks."""

    sizes: Mapping[int, int]
    disks: Mapping[str, DiskSpace]


NOTHING_KNOWN: Final = Usage({}, {})


class Begins(ABC):
    """A command with which an operation begins."""

    @property
    def queue(self) -> bool:
        """Whether it is queued, instead of refused, while others touch the same things."""
        return False

    @property
    def usage(self) -> Usage:
        """What the nodes had reported when it was given."""
        return NOTHING_KNOWN

    @abstractmethod
    def operation(self, state: State) -> Operation | None:
        """Its row, without what all have alike; None: there is nothing to do. Raises MinkaError."""

    def migrations(self) -> Sequence[Migration]:
        """Those that come with it; its kind may have more when it begins."""
        return ()


@dataclass(frozen=True, slots=True)
class End:
    """How an operation has ended, besides its migrations."""

    outcome: str = ""
    failed: bool = False


class OperationKind:
    """What operations of a kind do, besides their migrations. As it is here: nothing."""

    shifts_load: ClassVar[bool] = True  # while one runs, what the nodes have to do is not what it will be

    def told(self, state: State, operation: Operation) -> str:
        """What it does, as the command that began it is called: drain cyrene --decommission."""
        return (operation.WhichOneof("kind") or "").replace("_", "-")

    def begin(self, state: State, operation: Operation, usage: Usage, now_ms: int) -> Beginning:
        """What follows when it begins; it may note in `operation` what it finds out. Raises MinkaError: it can't."""
        return Beginning()

    def touches(self, state: State, operation: Operation) -> Iterable[Touched]:
        """What one that begins or runs has to itself, besides what it still has to move."""
        return ()

    def next_steps(self, state: State, operation: Operation) -> list[Record]:
        """The next facts of one that runs; none when there is something to wait for. No row is changed twice."""
        return []

    def leaderships(self, state: State, operation: Operation, live: Live) -> Iterable[tuple[Partition, str]]:
        """Which partitions are to be led by others, and by whom."""
        return []

    def blockers(self, state: State, operation: Operation) -> list[Blocker]:
        """What one that runs waits for."""
        return []

    def cancelled(self, state: State, operation: Operation, but: Collection[Placed], now_ms: int) -> list[Record]:
        """What follows when it is cancelled. `but`: the things whose rows change anyway."""
        return []

    def end(self, state: State, operation: Operation, live: Live) -> End | None:
        """How one whose migrations have ended has ended itself; None while it hasn't."""
        return End()
