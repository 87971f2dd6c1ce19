"""Carries out the instructions of this node's replicas, and tells them the results."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from minka.cluster.key_ranges import KeyRange
from minka.errors import MinkaError, newer_rows
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import FinishMergeRequest, FinishSplitRequest, HandOverRequest
from minkad.core.controller_methods import FINISH_MERGE, FINISH_SPLIT, HAND_OVER
from minkad.core.replication import instructions as i
from minkad.core.replication.instructions import Instruction, Outbox
from minkad.core.replication.replicas import Replicas
from minkad.process import tasks
from minkad.process.failpoints import failpoint
from minkad.replication.applying.hosted_replica import Replica
from minkad.replication.serving.client_requests import clear
from minkad.replication.surroundings import Controller

R = TypeVar("R")
Handler = Callable[[Any], None]

log: Final = logging.getLogger(__name__)
_clear: Final = clear
_TIMER_S: Final = 0.001  # uvloop counts in milliseconds


class Executor:
    """For the loop's thread. `carry_out` runs in the turn of the loop in which an instruction was put into the
    outbox.
    """

    def __init__(
        self,
        outbox: Outbox,
        replicas: Replicas,
        hosted: Mapping[int, Replica],
        controller: Controller,
        clock: Callable[[], float],
        learn: Callable[[Partition], None],
    ) -> None:
        """`learn` is called with each row that came with an answer."""
        self._outbox = outbox
        self._replicas = replicas
        self._hosted = hosted
        self._controller = controller
        self._clock = clock
        self._learn_row = learn
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._handlers: dict[type[Instruction], Handler] = {
            i.AskHandOver: self._ask_hand_over,
            i.AskFinishSplit: self._ask_finish_split,
            i.AskFinishMerge: self._ask_finish_merge,
            i.MakeRoom: self._make_room,
            i.Reached: lambda reached: self.reached(reached.place),
            i.Report: _report,
            i.WakeAt: self._wake_at,
        }

    def handle(self, handlers: Mapping[type[Instruction], Handler]) -> None:
        """Add the handlers of the other kinds of instructions."""
        self._handlers.update(handlers)

    def carry_out(self) -> None:
        """Carry out all instructions that are in the outbox."""
        while instructions := self._outbox.take():
            for instruction in instructions:
                self._handlers[type(instruction)](instruction)

    async def close(self) -> None:
        """Stop asking the controller and waking replicas."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Any, name: str) -> None:
        if self._closed:
            work.close()
            return
        task: asyncio.Task[None] = tasks.start(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def reached(self, place: str) -> None:
        """Run the failpoint of this named step."""
        _PLACES[place]()

    # Time

    def _wake_at(self, wake: i.WakeAt) -> None:
        delay = max(0.0, wake.at - self._clock())
        asyncio.get_running_loop().call_later(delay, self._tick, wake)

    def _tick(self, wake: i.WakeAt) -> None:
        if self._closed:
            return
        if (now := self._clock()) < wake.at:  # half of the timers are up to a millisecond early
            asyncio.get_running_loop().call_later(_TIMER_S, self._tick, wake)
        else:
            self._replicas.tick(wake.partition_id, now)

    # The controller

    def _ask_hand_over(self, ask: i.AskHandOver) -> None:
        self._spawn(self._hand_over(ask.request), f"hand-over of {ask.request.partition_id}")

    async def _hand_over(self, request: HandOverRequest) -> None:
        error = await self._answer_to(self.call_hand_over, request, self._learn_handed_over)
        replica = self._hosted.get(request.partition_id)
        if replica is not None and replica.leader is not None:
            replica.leader.hand_over_answered(request, error, self._clock())

    @failpoint("migration.hand_over")
    async def call_hand_over(self, request: HandOverRequest) -> list[Partition]:
        return [(await self._controller.call(HAND_OVER, request)).partition]

    def _learn_handed_over(self, rows: Iterable[Partition]) -> None:
        for row in rows:
            self._row_received(row)

    @failpoint("migration.row_received")
    def _row_received(self, row: Partition) -> None:
        self._learn_row(row)

    def _ask_finish_split(self, ask: i.AskFinishSplit) -> None:
        self._spawn(self._finish_split(ask.request), f"end of the split that made {ask.request.partition_id}")

    async def _finish_split(self, request: FinishSplitRequest) -> None:
        error = await self._answer_to(self.call_finish_split, request, self._learn_all)
        replica = self._hosted.get(request.partition_id)
        if replica is not None and replica.split_end is not None:
            replica.split_end.answered(request, error, self._clock())

    @failpoint("split.finish")
    async def call_finish_split(self, request: FinishSplitRequest) -> list[Partition]:
        return list((await self._controller.call(FINISH_SPLIT, request)).partitions)

    def _ask_finish_merge(self, ask: i.AskFinishMerge) -> None:
        self._spawn(self._finish_merge(ask.request), f"end of the merge into {ask.request.partition_id}")

    async def _finish_merge(self, request: FinishMergeRequest) -> None:
        error = await self._answer_to(self.call_finish_merge, request, self._learn_merged)
        self._replicas.merge_answered(request, error, self._clock())

    @failpoint("merge.finish")
    async def call_finish_merge(self, request: FinishMergeRequest) -> list[Partition]:
        return list((await self._controller.call(FINISH_MERGE, request)).partitions)

    @failpoint("merge.learn")
    def _learn_merged(self, rows: Iterable[Partition]) -> None:
        """Take over both rows in one step: from here on one partition serves the keys of both."""
        self._learn_all(rows)

    def _learn_all(self, rows: Iterable[Partition]) -> None:
        for row in rows:
            self._learn_row(row)

    @staticmethod
    async def _answer_to(
        call: Callable[[R], Awaitable[list[Partition]]], request: R, learn: Callable[[Iterable[Partition]], None]
    ) -> MinkaError | None:
        """Returns the controller's error, if any; adopts the rows that it sent."""
        try:
            learn(await call(request))
        except MinkaError as error:
            learn(newer_rows(error))
            return error
        return None

    # Room for a merge

    def _make_room(self, wanted: i.MakeRoom) -> None:
        self._spawn(self._clear(wanted.left_id, wanted.right_id, wanted.range), f"clearing of {wanted.right_id}")

    async def _clear(self, left_id: int, right_id: int, wanted: KeyRange) -> None:
        failure = None
        try:
            if (right := self._hosted.get(right_id)) is not None:
                await _clear(right, wanted, False)
        except MinkaError as error:
            failure = error
        self._replicas.cleared(left_id, failure, self._clock())


def _report(report: i.Report) -> None:
    log.log(report.level, report.text, extra=report.names)


@failpoint("replica.lead")
def _lead() -> None: ...


@failpoint("migration.close_gate")
def _close_gate() -> None: ...


@failpoint("split.mark")
def _mark_split() -> None: ...


@failpoint("merge.copy")
def _begin_merge() -> None: ...


@failpoint("merge.freeze")
def _freeze() -> None: ...


_PLACES: Final[Mapping[str, Callable[[], None]]] = {
    "replica.lead": _lead,
    "migration.close_gate": _close_gate,
    "split.mark": _mark_split,
    "merge.copy": _begin_merge,
    "merge.freeze": _freeze,
}
