"""The interface of movers, which move placed things as operations want. `movers.py` lists them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from minka.v1.cluster_pb2 import Migration
from minka.v1.records_pb2 import Record
from minkad.core.controller.selectors import Live
from minkad.core.state import State


@dataclass(frozen=True, slots=True)
class MigrationCaps:
    """The numbers of partitions that may be copied at once: in or out of one node, and in the cluster."""

    per_node: int
    cluster: int


class Most(NamedTuple):
    """The numbers of things of a kind that may be under way at once: to and from one host, and in the cluster."""

    per_host: int
    cluster: int


class Mover(Protocol):
    """Carries out the migrations of one kind of thing. The next step is read from the rows alone, so a new active
    controller goes on where the last one stopped.
    """

    def name(self, state: State, id_: int) -> str:
        """A thing's name, for people: flights/7."""

    def impossible(self, state: State, migration: Migration) -> str | None:
        """The reason why the migration can never begin; None if it can."""

    def obstacle(self, state: State, migration: Migration) -> str | None:
        """The reason why the migration can't begin yet; None if it can."""

    def most(self, state: State, migration: Migration, caps: MigrationCaps) -> Most:
        """The numbers of migrations like this one that may be under way at once."""

    def hosts(self, state: State, migration: Migration, live: Live) -> list[str]:
        """The hosts that have work with the migration, now or later; none if there is nothing to do, or one of them is
        gone.
        """

    def busy_besides(self, state: State) -> Mapping[str, int]:
        """By host: the number of things that keep it busy besides the migrations under way."""

    def begin(self, state: State, migrations: Sequence[Migration], now_ms: int) -> list[Record]:
        """The first steps of these migrations, which are PENDING."""

    def go_on(self, state: State, migrations: Sequence[Migration], live: Live, now_ms: int) -> list[Record]:
        """The next steps of these migrations, which have begun; none while they have to wait."""

    def waits_for(self, state: State, migration: Migration, now_ms: int | None) -> tuple[str, str]:
        """The reason why a migration that has begun waits (with `now_ms`, for how long), and the remedy; "" for
        none.
        """

    def refusal_to_go_back(self, state: State, migration: Migration, live: Live) -> str | None:
        """The reason why a COPYING or PREPARING migration can't be undone without loss; None if it can."""

    def go_back(self, state: State, migration: Migration, live: Live, now_ms: int, reason: str) -> list[Record]:
        """Undo a COPYING or PREPARING migration that `refusal_to_go_back` doesn't refuse."""
