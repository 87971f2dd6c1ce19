"""The interface of movers, which bring a placed thing to where an operation wants it. `movers.py` lists them."""

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
    """Carries out the migrations of one kind of thing. The next step is read from the rows alone, so a new active
    controller goes on where the last one stopped.
    """

    def name(self, state: State, id_: int) -> str:
        """A thing's name, for people: flights/7."""

    def impossible(self, state: State, migration: Migration) -> str | None:
        """Why the migration can never begin; None if it can."""

    def obstacle(self, state: State, migration: Migration) -> str | None:
        """Why the migration can't begin yet; None if it can."""

    def most(self, state: State, migration: Migration, caps: MigrationCaps) -> Most:
        """How many migrations like this one may be under way at once."""

    def hosts(self, state: State, migration: Migration, live: Live) -> list[str]:
        """The hosts that have work with the migration now, or will have; none if there is nothing to do, or if one of
        them is gone.
        """

    def busy_besides(self, state: State) -> Mapping[str, int]:
        """By host: how many things keep it busy besides the migrations that are under way."""

    def begin(self, state: State, migrations: Sequence[Migration], now_ms: int) -> list[Record]:
        """The first steps of these migrations, which are PENDING."""

    def go_on(self, state: State, migrations: Sequence[Migration], live: Live, now_ms: int) -> list[Record]:
        """The next steps of these migrations, which have begun; none while they have to wait."""

    def waits_for(self, state: State, migration: Migration, now_ms: int | None) -> tuple[str, str]:
        """What holds up a migration that has begun, for how long if `now_ms` is known, and what a person can do about
        it; "" for nothing.
        """

    def refusal_to_go_back(self, state: State, migration: Migration, live: Live) -> str | None:
        """Why a migration that is COPYING or PREPARING can't be undone without loss; None if it can."""

    def go_back(self, state: State, migration: Migration, live: Live, now_ms: int, reason: str) -> list[Record]:
        """Undo a migration that is COPYING or PREPARING, and that `refusal_to_go_back` does not refuse."""
