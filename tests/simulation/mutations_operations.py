"""Bugs in operations on keys: what they are decided on, and what expires."""

from collections.abc import Sequence

from minkad.core.operations.decide import _Deciding
from minkad.replication.requests import Requests
from minkad.replication.unapplied import Unapplied, Waiting
from tests.simulation.mutations_full import Patch


def decide_on_what_is_applied() -> Sequence[Patch]:
    """The leader looks at the data alone, not at what it has appended since."""
    return [(Unapplied, "find", lambda _, key: None)]


def tell_before_it_is_committed() -> Sequence[Patch]:
    """An outcome is told though the entry on which it rests may yet be lost."""

    def wait(_: Unapplied, offset: int, waiting: Waiting) -> None:
        ticket, index, result = waiting
        ticket.fill(index, result)

    return [(Unapplied, "wait", wait)]


def show_the_expired() -> Sequence[Patch]:
    """A read shows what has expired as long as nobody has removed it."""
    return [(Requests, "_expired", lambda self, keys, rows: [])]


def keep_no_expiry() -> Sequence[Patch]:
    """A key that is put for a time stays, as after a plain write."""

    def until(self: _Deciding, lifetime: object, ms: int, row: bytes | None) -> int:
        return 0

    return [(_Deciding, "_until", until)]
