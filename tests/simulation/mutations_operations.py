"""Bugs in operations on keys: what they are decided on, and what expires."""

from collections.abc import Sequence

from minka.stored import has_expired
from minka.wire import Group, StoredWrite, WriteBody
from minkad.core.operations.decide import _Deciding
from minkad.replication.replica import Replica
from minkad.replication.requests import Requests
from minkad.replication.ticket import Ticket
from minkad.replication.unapplied import Unapplied, Waiting
from minkad.storage.versions import Versions
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


def hide_the_expired() -> Sequence[Patch]:
    """A read leaves out what is over by its leader's clock, and nobody removes it."""
    original = Requests._answer_read

    def answer_read(
        self: Requests,
        replica: Replica,
        keys: list[bytes],
        rows: list[bytes | None],
        group: Group,
        ticket: Ticket,
        index: int,
        deadline: float,
    ) -> None:
        now_ms = self._unix_ms()
        left = [None if row is None or has_expired(row, now_ms) else row for row in rows]
        original(self, replica, keys, left, group, ticket, index, deadline)

    return [(Requests, "_answer_read", answer_read)]


def forget_what_a_merge_brings() -> Sequence[Patch]:
    """Versions go on as if there had been no merge."""
    original = Versions.rows_of

    def rows_of(
        self: Versions, writes: Sequence[WriteBody], last_offset: int
    ) -> tuple[dict[bytes, bytes | None], Versions]:
        plain = [StoredWrite(one.keys, one.values) if isinstance(one, StoredWrite) else one for one in writes]
        return original(self, plain, last_offset)

    return [(Versions, "rows_of", rows_of)]


def show_the_expired() -> Sequence[Patch]:
    """A read shows what has expired as long as nobody has removed it."""
    return [(Requests, "_expired", lambda self, keys, rows: [])]


def keep_no_expiry() -> Sequence[Patch]:
    """A key that is put for a time stays, as after a plain write."""

    def until(self: _Deciding, lifetime: object, ms: int, row: bytes | None) -> int:
        return 0

    return [(_Deciding, "_until", until)]
