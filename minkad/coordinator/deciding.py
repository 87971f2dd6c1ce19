"""The active controller decides commands one after the other, and proposes their records.

A decision doesn't wait for the commit of earlier proposals: it is based on the state that will follow from them, as in
Kafka's QuorumController.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from minka.errors import Code, MinkaError
from minka.v1.records_pb2 import Record, RecordBatch
from minkad.core.controller.decide import decide
from minkad.core.controller.decision import Command, Decision
from minkad.core.controller.rows import ROWS_A_RECORD, rows_in
from minkad.core.state import State
from minkad.process import tasks
from minkad.process.clock import unix_ms
from minkad.process.failpoints import failpoint
from minkad.process.turns import turn

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

SCHEDULE_REST: Final = 2  # a look that finds no next step is followed by a pause twice as long


class Log(Protocol):
    """The Raft log, for the node that leads: the part of `RaftDriver` that an active controller uses."""

    def propose(self, *commands: bytes) -> asyncio.Future[None]:
        """Propose commands, of which all are committed, or none. Done when they are applied here."""

    async def logged_by(self, raft_ids: Collection[int]) -> None:
        """Wait until these members have synced all that was proposed. Raises OUTCOME_UNKNOWN."""

    def confirm_leadership(self, now: float, confirmed: Callable[[float], None]) -> None:
        """Call `confirmed(now)` when a quorum has acknowledged, after `now`, that this node leads."""


class Deciding(ABC):
    """The part of the active controller that decides and proposes. It decides nothing more once it has `failed`."""

    def __init__(
        self,
        committed: State,
        raft_log: Log,
        raft_id: int,
        now: Callable[[], float],
    ) -> None:
        """`raft_id` is this node's."""
        self.decided = committed.copy()  # the state after all proposals, of which the last ones may not be committed
        self.failed = False  # True once a proposal or a task has failed; the coordinator then ends this controller
        self._is_closed = False
        self._log = raft_log
        self._raft_id = raft_id
        self._now = now
        self._turn = asyncio.Lock()  # held by the caller that changes the table
        self._last_proposal: asyncio.Future[None] | None = None  # when it is done, all earlier ones are, too
        self.confirmed_at = float("-inf")  # the last time at which a quorum is known to have followed this leader
        self._unconfirmed: deque[tuple[float, asyncio.Future[None]]] = deque()  # who waits, and since when
        self._asked_at = float("-inf")  # when the quorum was asked last for them
        # due: a timer is set for a look for next steps; missed: no look happened, since another caller had the turn
        self._schedule_due = self._schedule_missed = False
        self._schedule_from = float("-inf")  # no look for next steps before this time

    @abstractmethod
    def _record_next_steps(self) -> bool:
        """Record the next steps of running operations. True if there were any."""

    async def run(self, command: Command, *, logged: bool = False) -> Any:
        """Decide, and wait until the records are committed and applied here; if `logged`, only until they are in this
        node's own log. Returns the command's answer, as decided. Raises MinkaError.
        """
        return await self.run_when_due(lambda: command, logged=logged)

    async def run_when_due(
        self,
        command: Callable[[], Command | None],
        decided: Callable[[asyncio.Future[None] | None], None] = lambda _: None,
        *,
        logged: bool = False,
    ) -> Any:
        """Like `run`, but make the command only in its turn, when `command` is called; it may return None for no
        command. `decided` is called in the same turn, with the last proposal.

        If the caller is cancelled, a command that waits for its turn isn't performed; a command that has begun is
        finished. A refusal, and an answer without records, wait for `up_to_date`: the rows that led to them may never
        be recorded, or another leader may have replaced them already. For example, a leader that acted on a row in a
        refusal, which is never recorded, would acknowledge writes that the next leader lacks.
        """
        try:
            async with self._turn:
                before, due, answer = self._last_proposal, command(), None
                if due is not None:
                    answer = await _finished(self._perform(due, decided))
                proposal = self._last_proposal
            self._schedule_if_missed()
        except MinkaError:
            await self.up_to_date()
            raise
        if proposal is None or proposal is before:
            if due is not None:
                await self.up_to_date()
        elif logged:
            await self._log.logged_by([self._raft_id])
        else:
            await asyncio.shield(proposal)
        return answer

    async def up_to_date(self) -> None:
        """Wait until the committed state has all that was committed before the call, by any leader, and all that was
        decided here. Raises NOT_CONTROLLER.
        """
        self._check_active()
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unconfirmed.append((self._now(), confirmed))
        if len(self._unconfirmed) == 1:
            self._ask_for_waiting()
        if self._last_proposal is not None:
            await asyncio.wait([self._last_proposal])
            self._check_active()  # the proposal may have failed
        await confirmed
        self._check_active()

    def _ask_for_waiting(self) -> None:
        """Ask the quorum once for all that wait. Those that come later wait for the next question."""
        self._asked_at = self._now()
        self._log.confirm_leadership(self._asked_at, self._confirmed_to_waiting)

    def _confirmed_to_waiting(self, asked_at: float) -> None:
        self.confirmed_at = max(self.confirmed_at, asked_at)
        self._end_waits(asked_at)
        if self._unconfirmed and asked_at == self._asked_at:
            self._ask_for_waiting()

    def _end_waits(self, confirmed_at: float) -> None:
        while self._unconfirmed and self._unconfirmed[0][0] <= confirmed_at:
            _, confirmed = self._unconfirmed.popleft()
            if not confirmed.done():
                confirmed.set_result(None)

    def close(self) -> None:
        """This node is no longer the leader."""
        self._is_closed = True
        self._end_waits(float("inf"))

    async def _perform(
        self, command: Command, decided: Callable[[asyncio.Future[None] | None], None] = lambda _: None
    ) -> Any:
        """Propose the records that follow from the command. Returns its answer. The caller has to hold the turn."""
        self._check_active()
        try:
            decision = self._decide(command)
            if decision.is_atomic:
                await self._record_at_once(decision)
            else:
                await self._record_in_pieces(decision)
        except MinkaError:
            raise
        except Exception:  # a bug: `decided` may have records that are never proposed
            self.failed = True
            raise
        decided(self._last_proposal)
        return decision.answer

    async def _record_at_once(self, pieces: Iterable[Sequence[Record]]) -> None:
        """Propose all pieces in one Raft entry, which applies them one by one: all are committed, or none."""
        batches: list[bytes] = []
        for number, piece in enumerate(pieces):
            if number:
                await self._turn_of_others()
            for record in piece:
                self.decided.apply(record)
            if piece:
                batches.append(_encoded(piece))
        if batches:
            self._propose_together(batches)

    async def _record_in_pieces(self, pieces: Iterable[Sequence[Record]]) -> None:
        """Propose the pieces one after the other; small pieces share a proposal of at least ROWS_A_RECORD rows."""
        batch: list[Record] = []
        rows, is_long = 0, False
        for piece in pieces:
            if is_long:
                await self._turn_of_others()
            for record in piece:
                self.decided.apply(record)
                rows += rows_in(record)
            batch += piece
            is_long = rows >= ROWS_A_RECORD or not piece
            if rows >= ROWS_A_RECORD:
                self._propose_together([_encoded(batch)])
                batch, rows = [], 0
        if batch:
            self._propose_together([_encoded(batch)])

    async def _turn_of_others(self) -> None:
        """Let other tasks run. Other commands wait, since this one keeps its turn. Raises NOT_CONTROLLER."""
        await turn()
        self._check_active()

    def _check_active(self) -> None:
        """Raises NOT_CONTROLLER if this controller is no longer active; the caller then asks the next one."""
        if self._is_closed or self.failed:
            raise MinkaError(Code.NOT_CONTROLLER, "this node is no longer the active controller")

    @failpoint("controller.decide")
    def _decide(self, command: Command) -> Decision[Any]:
        return decide(self.decided, command, unix_ms())

    def _record(self, records: list[Record]) -> None:
        if not records:
            return
        for record in records:
            self.decided.apply(record)
        self._propose_together([_encoded(records)])

    def _propose_together(self, batches: Sequence[bytes]) -> None:
        """Propose encoded batches of records; they are applied one after the other."""
        self._last_proposal = self._log.propose(*batches)
        self._last_proposal.add_done_callback(self._proposed)
        self._schedule_soon()

    def _proposed(self, proposal: asyncio.Future[None]) -> None:
        """If the proposal failed, `decided` has uncommitted records: this controller has to end."""
        if not proposal.cancelled() and (error := proposal.exception()) is not None:
            log.info("a proposal failed", extra={"reason": str(error)})
            self.failed = True

    def _schedule_soon(self) -> None:
        if not self._schedule_due:
            self._schedule_due = True
            asyncio.get_running_loop().call_later(max(0.0, self._schedule_from - self._now()), self._schedule)

    def _schedule_if_missed(self) -> None:
        if self._schedule_missed:
            self._schedule_missed = False
            self._schedule_soon()

    def _schedule(self) -> None:
        self._schedule_due = False
        if self._turn.locked():
            self._schedule_missed = True
        elif not self._is_closed and not self.failed:
            began = self._now()
            try:
                found = self._record_next_steps()
            except Exception:  # a bug: `decided` may have records that are never proposed
                self.failed = True
                raise
            if not found:
                self._schedule_from = self._now() + SCHEDULE_REST * (self._now() - began)


async def _finished(work: Coroutine[Any, Any, T]) -> T:
    """Wait for `work` and return its result. If the caller is cancelled, `work` still runs to its end first."""
    under_way = tasks.awaited(work, "command")
    try:
        return await asyncio.shield(under_way)
    finally:
        while not under_way.done():
            with suppress(asyncio.CancelledError):  # `shield` has raised the first one already
                await asyncio.wait([under_way])
        if not under_way.cancelled():
            under_way.exception()  # nobody else may retrieve it


def _encoded(records: Iterable[Record]) -> bytes:
    return RecordBatch(records=records, time_ms=unix_ms()).SerializeToString()
