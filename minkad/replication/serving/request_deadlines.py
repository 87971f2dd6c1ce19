"""The deadlines of requests that wait. One timer serves all requests, since most are answered long before."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from minka.wire.kv_frames import Group
from minkad.replication.serving.ticket import Ticket

_STEP_S: Final = 0.02  # deadlines are rounded up to multiples of this


class _Waiting(NamedTuple):
    """The groups that a ticket waits for."""

    step: int  # the deadline, in multiples of `_STEP_S`
    groups: Sequence[Group]
    timeout_ms: int


class Deadlines:
    """For the loop's thread."""

    def __init__(self, on_late: Callable[[Ticket, Sequence[Group], int], None]) -> None:
        """`on_late` is called for each ticket that still waits at its deadline."""
        self._on_late = on_late
        self._tickets: dict[Ticket, _Waiting] = {}  # all tickets that wait
        self._steps: dict[int, set[Ticket]] = {}  # the tickets by step; no set is empty
        self._is_armed = False  # the timer runs; it does whenever a ticket waits
        self._emptied: asyncio.Future[None] | None = None  # see `emptied`

    def add(self, ticket: Ticket, groups: Sequence[Group], timeout_ms: int, deadline: float) -> None:
        """The ticket waits for the results of these groups; `deadline` is a time of the loop's clock."""
        step = int(deadline / _STEP_S) + 1
        self._tickets[ticket] = _Waiting(step, groups, timeout_ms)
        tickets = self._steps.get(step)
        if tickets is None:
            self._steps[step] = {ticket}
            self._arm()
        else:
            tickets.add(ticket)

    def remove(self, ticket: Ticket) -> None:
        """The ticket no longer waits. The call has no effect if the ticket never waited."""
        waiting = self._tickets.pop(ticket, None)
        if waiting is None:
            return
        tickets = self._steps[waiting.step]
        tickets.discard(ticket)
        if not tickets:
            del self._steps[waiting.step]
        if self._emptied is not None and not self._tickets and not self._emptied.done():
            self._emptied.set_result(None)

    async def emptied(self) -> None:
        """Return once no ticket waits. For one caller at a time."""
        if self._tickets:
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            asyncio.get_running_loop().call_later(_STEP_S, self._look)

    def _look(self) -> None:
        self._is_armed = False
        now = int(asyncio.get_running_loop().time() / _STEP_S)
        for step in [step for step in self._steps if step <= now]:
            for ticket in list(self._steps.get(step, ())):
                waiting = self._tickets[ticket]
                self._on_late(ticket, waiting.groups, waiting.timeout_ms)
        if self._steps:
            self._arm()
