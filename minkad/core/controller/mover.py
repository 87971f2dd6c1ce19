"""How a placed thing gets from where it is to where an operation wants it. `movers.py` lists the kinds of things."""

from typing import Protocol

from minka.v1.cluster_pb2 import Migration
from minka.v1.records_pb2 import Record
from minkad.core.controller.selectors import Live
from minkad.core.state import State


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

    def hosts(self, state: State, migration: Migration, live: Live) -> list[str]:
        """The nodes that take part in the copy which it makes, or is to make; none where nothing is copied, or where
        one of them is gone.
        """

    def begin(self, state: State, migration: Migration, now_ms: int) -> list[Record]:
        """PENDING → COPYING."""

    def go_on(self, state: State, migration: Migration, live: Live, now_ms: int) -> list[Record]:
        """The next step of one that has begun; none while there is something to wait for."""

    def waits_for(self, state: State, migration: Migration) -> tuple[str, str]:
        """What a migration that has begun waits for and doesn't come by itself, and what helps; "" for nothing."""

    def refusal_to_go_back(self, state: State, migration: Migration, live: Live) -> str | None:
        """Why one that is COPYING can't be undone without losing something."""

    def go_back(self, state: State, migration: Migration, live: Live, now_ms: int, reason: str) -> list[Record]:
        """Undo one that is COPYING, where nothing is in the way of it."""
