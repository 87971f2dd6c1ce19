"""The interface of the kinds of operations. `operation_kinds.py` lists them."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, NamedTuple

from minka.v1.admin_pb2 import Blocker, Plan
from minka.v1.cluster_pb2 import Migration, Operation, Partition
from minka.v1.coordinator_pb2 import DiskSpace
from minka.v1.records_pb2 import Record
from minkad.core.controller.decision import OwnCommand, Steps
from minkad.core.controller.selectors import Live
from minkad.core.state import Placed, State


class Touch(Enum):
    """The ways in which an operation touches a thing. At most one operation at a time touches a thing in one way."""

    MOVES = "move"
    LEADS = "elect the leader of"
    CUTS = "change the ranges of"
    DRAINS = "drain"


Due = tuple[Partition, str]  # a partition that is to get another leader, and that leader
Touched = tuple[Touch, Placed | int | str]  # to a thing, or to a partition, keyspace or node by its id


class Beginning(NamedTuple):
    """The records when an operation begins: its migrations, and immediate changes."""

    migrations: Sequence[Migration] = ()
    records: Sequence[Record] = ()


class Usage(NamedTuple):
    """The reports of nodes: bytes by partition id, and disks by node. `plan`: a plan made from these reports, if there
    is one.
    """

    sizes: Mapping[int, int]
    disks: Mapping[str, DiskSpace]
    plan: Plan | None = None


NOTHING_KNOWN: Final = Usage({}, {})


class Begins(OwnCommand, ABC):
    """A command that begins an operation."""

    @property
    def queue(self) -> bool:
        """True if the operation is queued, instead of refused, while others touch the same things."""
        return False

    @property
    def usage(self) -> Usage:
        """The reports of the nodes when the command was given."""
        return NOTHING_KNOWN

    def check(self, state: State) -> Iterator[None]:
        """Do long checks in steps, before `operation` is asked for. Raises MinkaError."""
        yield from ()

    @abstractmethod
    def operation(self, state: State) -> Operation | None:
        """The operation's row, without the fields that `begin` fills in; None if there is nothing to do. Raises
        MinkaError.
        """

    def migrations(self) -> Iterable[Migration]:
        """The migrations that come with the command; the operation's kind may add more when it begins."""
        return ()


@dataclass(frozen=True, slots=True)
class End:
    """The outcome of an operation, besides the outcomes of its migrations."""

    outcome: str = ""
    failed: bool = False


class OperationKind:
    """The work of operations of one kind besides their migrations. By default there is none."""

    shifts_load: ClassVar[bool] = True  # the nodes' load is different once one of them has ended

    def told(self, state: State, operation: Operation) -> str:
        """The operation as the command that began it: drain cyrene --decommission."""
        return (operation.WhichOneof("kind") or "").replace("_", "-")

    def begin(self, state: State, operation: Operation, usage: Usage, now_ms: int) -> Steps[Beginning]:
        """The changes when the operation begins, after steps without records; this may set fields of `operation`.
        Raises MinkaError if it can't begin.
        """
        yield from ()
        return Beginning()

    def touches(self, state: State, operation: Operation) -> Iterable[Touched]:
        """Things that no other operation may touch while this one runs, besides those that it still has to move."""
        return ()

    def next_steps(self, state: State, operation: Operation) -> list[Record]:
        """The next records of a running operation; none while it has to wait. Each row is changed at most once."""
        return []

    def leaderships(self, state: State, operation: Operation, live: Live) -> Iterable[Due | None]:
        """For each partition that may need another leader: the partition and its next leader, or None if it needs none
        or no node can lead it now. The results are computed one by one, when the caller asks for them.
        """
        return []

    def blockers(self, state: State, operation: Operation) -> Iterable[Blocker]:
        """The reasons why a running operation waits; only the first of them are asked for."""
        return []

    def cancelled(self, state: State, operation: Operation, but: Collection[Placed], now_ms: int) -> list[Record]:
        """The changes when the operation is cancelled. `but`: the things whose rows change anyway."""
        return []

    def end(self, state: State, operation: Operation, live: Live) -> End | None:
        """The end of an operation whose migrations have ended; None while it has not ended itself."""
        return End()
