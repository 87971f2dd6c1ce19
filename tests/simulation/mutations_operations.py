"""Bugs in operations on keys: in the rows that decide the outcome, and in expiry."""

from collections.abc import Sequence

from minka.wire.kv_frames import Group
from minka.wire.stored_values import has_expired
from minkad.core.operations.effect import _Deciding
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.serving.client_requests import Requests
from minkad.replication.serving.ticket import Ticket
from minkad.replication.serving.unapplied import Unapplied, Waiting
from tests.simulation.mutations_full import Patch


def decide_by_applied_rows() -> Sequence[Patch]:
    """The leader looks only at the applied rows, not at the entries that it has appended but not yet applied."""
    return [(Unapplied, "find", lambda _, key: None)]


def report_before_commit() -> Sequence[Patch]:
    """The leader reports an outcome although the entry that decides it may still be lost."""
    original = Unapplied.wait

    def wait(self: Unapplied, offset: int, waiting: Waiting) -> None:
        ticket, index, result = waiting
        if result.body is not None:
            ticket.fill(index, result)
        else:  # a read waits here until an expired row is removed
            original(self, offset, waiting)

    return [(Unapplied, "wait", wait)]


def hide_expired_rows() -> Sequence[Patch]:
    """A read leaves out keys that have expired by the leader's clock, and nobody removes these keys."""
    original = Requests._answer_read

    def answer_read(
        self: Requests,
        replica: HostedReplica,
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


def show_expired_rows() -> Sequence[Patch]:
    """A read shows an expired key until somebody removes it."""
    return [(Requests, "_expired", lambda self, keys, rows: [])]


def forget_expiry() -> Sequence[Patch]:
    """A key that is put with a lifetime never expires."""

    def until(self: _Deciding, lifetime: object, ms: int, row: bytes | None) -> int:
        return 0

    return [(_Deciding, "_until", until)]
