"""How a placed thing gets from where it is to where an operation wants it. `movers.py` lists the kinds of things."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from minka.v1.cluster_pb2 import Migration
from minka.v1.records_pb2 import Record
from minkad.core.controller.selectors import Live
from minkad.core.state import State


@dataclass(frozen=True, slots=True)
class MigrationCaps:
    """How many partitions may be copied at once: in or out of one node, and in the cluster."""

    per_node: int
    cluster: int


class Most(NamedTuple):
    """How many things of a kind may be under way at once: to and from one host, and in the cluster."""

    per_host: int
    cluster: int


class Mover(Protocol):
    """One migration after the other. What comes next is read from the rows alone, so whoever is the active controller
    goes on from wherever the last one stopped.
    """

    def name(self, state: State, id_: int) -> str:
        """A thing's name, for people: flights/7."""

    def impossible(self, state: State, migration: Migration) -> str | None:
        """Why it can't begin, ever."""

    def obstacle(self, state: State, migration: Migration) -> str | None:
        """Why it can't begin yet."""

    def most(self, state: State, migration: Migration, caps: MigrationCaps) -> Most:
        """How many like this one may be under way at once."""

    def hosts(self, state: State, migration: Migration, live: Live) -> list[str]:
        """Those that have work with it now, or will have; none where nothing is to be done, or where one of them is
        gone.
        """

    def busy_besides(self, state: State) -> Mapping[str, int]:
        """By host: how many things it has to do with for which nothing is under way now, or ever was."""

    def begin(self, state: State, migrations: Sequence[Migration], now_ms: int) -> list[Record]:
        """The first steps of these, which are PENDING."""

    def go_on(self, state: State, migrations: Sequence[Migration], live: Live, now_ms: int) -> list[Record]:
        """The next steps of these, which have begun; none while there is something to wait for."""

    def waits_for(self, state: State, migration: Migration) -> tuple[str, str]:
        """What a migration that has begun waits for and doesn't come by itself, and what helps; "" for nothing."""

    def refusal_to_go_back(self, state: State, migration: Migration, live: Live) -> str | None:
        """Why one that is COPYING or PREPARING can't be undone without losing something."""

    def go_back(self, state: State, migration: Migration, live: Live, now_ms: int, reason: str) -> list[Record]:
        """Undo one that is COPYING or PREPARING, where nothing is in the way of it."""
