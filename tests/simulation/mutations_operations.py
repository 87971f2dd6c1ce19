"""Bugs in operations on keys, versions and expiry."""

from collections.abc import Sequence

from minka.stored import has_expired
from minka.wire import Group, StoredWrite, WriteBody
from minkad.replication.replica import Replica
from minkad.replication.requests import Requests
from minkad.replication.ticket import Ticket
from minkad.replication.unapplied import Unapplied, Waiting
from minkad.storage.versions import Versions
from tests.simulation.mutations_full import Patch


def decide_by_what_is_applied() -> Sequence[Patch]:
    """What is under way doesn't count."""
    return [(Unapplied, "find", lambda self, key: None)]


def tell_what_is_not_committed() -> Sequence[Patch]:
    """An outcome that writes nothing is told at once."""
    original = Unapplied.wait

    def wait(self: Unapplied, offset: int, waiting: Waiting) -> None:
        ticket, index, result = waiting
        if result.body is not None:
            ticket.fill(index, result)
        else:  # a removal, after which a read goes on
            original(self, offset, waiting)

    return [(Unapplied, "wait", wait)]


def forget_what_a_merge_brings() -> Sequence[Patch]:
    """Versions go on as if there had been no merge."""
    original = Versions.rows_of

    def rows_of(
        self: Versions, writes: Sequence[WriteBody], last_offset: int
    ) -> tuple[dict[bytes, bytes | None], Versions]:
        plain = [StoredWrite(one.keys, one.values) if isinstance(one, StoredWrite) else one for one in writes]
        return original(self, plain, last_offset)

    return [(Versions, "rows_of", rows_of)]


def hide_what_has_expired() -> Sequence[Patch]:
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
