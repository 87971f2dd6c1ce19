"""Carries out the instructions of this node's replicas, and tells `Node` the results."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError, newer_rows
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import FinishMergeRequest, FinishSplitRequest, HandOverRequest
from minkad.core.controller_methods import FINISH_MERGE, FINISH_SPLIT, HAND_OVER
from minkad.core.replication import instructions as i
from minkad.core.replication.instructions import Instruction
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.process import tasks
from minkad.process.failpoints import failpoint
from minkad.replication.applying.committer import Committer
from minkad.replication.applying.compacting import Compacting
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.applying.opening import Opening
from minkad.replication.changing.isr_changes import IsrChanges
from minkad.replication.changing.load_files import LoadFiles
from minkad.replication.reading.changed_figures import ChangedFigures
from minkad.replication.sending.checkpoint_sender import CheckpointSenders
from minkad.replication.sending.replication_receiver import IncomingStream, ReplicationReceiver
from minkad.replication.sending.replication_sender import ReplicationSenders
from minkad.replication.serving.partition_waits import PartitionWaits
from minkad.replication.surroundings import Surroundings
from minkad.replication.timers import Timers

R = TypeVar("R")

log: Final = logging.getLogger(__name__)


class Executor:
    """For the loop's thread. No handler waits: longer work is a task, which reports its result to `node`."""

    def __init__(
        self,
        around: Surroundings,
        node: Node[HostedReplica],
        senders: ReplicationSenders,
        checkpoints: CheckpointSenders,
        isr_changes: IsrChanges,
        receiver: ReplicationReceiver,
        committer: Committer,
        opening: Opening,
        compacting: Compacting,
        figures: ChangedFigures,
        waits: PartitionWaits,
    ) -> None:
        self._node = node
        self._log_db = around.log_db
        self._controller = around.controller
        self._observer = around.observer
        self._clock = around.clock
        self._receiver = receiver
        self._committer = committer
        self._compacting = compacting
        self._figures = figures
        self._waits = waits
        self._load_files = LoadFiles(around, node)
        self._timers = Timers(node.tick, around.clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._handlers: Final[Mapping[type[Instruction], Callable[[Any], None]]] = {
            i.StartSending: senders.start,
            i.StopSending: senders.stop,
            i.Send: senders.send,
            i.SendWatermark: senders.send_watermark,
            i.SendCheckpoint: checkpoints.send,
            i.CancelCheckpoint: checkpoints.cancel,
            i.BringLoadFiles: self._load_files.bring,
            i.IsrProposal: isr_changes.propose,
            i.OpenData: opening.instructed,
            i.AskHandOver: self._ask_hand_over,
            i.AskFinishSplit: self._ask_finish_split,
            i.AskFinishMerge: self._ask_finish_merge,
            i.MakeRoom: self._make_room,
            i.RowAdopted: self._row_adopted,
            i.SyncEpoch: self._sync_epoch,
            i.Sync: self._sync,
            i.Apply: self._apply,
            i.MarkPassed: self._mark_passed,
            i.GiveUp: self._give_up,
            i.Changed: self._changed,
            i.GateOpened: self._gate_opened,
            i.WakeAt: self._timers.wake_at,
            i.Answer: _answer,
            i.Reached: lambda reached: self.reached(reached.place),
            i.Report: _report,
        }

    def carry_out(self, instruction: Instruction) -> None:
        """Carry the instruction out, or begin a task that does."""
        self._handlers[type(instruction)](instruction)

    async def close(self) -> None:
        """Stop asking the controller and waking replicas."""
        self._closed = True
        self._timers.close()
        await self._load_files.close()
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

    def _replica(self, partition_id: int) -> HostedReplica | None:
        return self._node.replicas.get(partition_id)

    # Rows

    def _row_adopted(self, adopted: i.RowAdopted) -> None:
        replica, was = self._node.replicas[adopted.partition_id], adopted.was
        row = replica.state.row
        if row.leader == self._node.id and row.isr != was.isr:
            self._observer.isr_changed(was.isr, row.isr)
        if replica.state.role is not Role.REMOVED:
            replica.stage_meta(self._log_db)
        self._figures.note(replica.id)
        self._receiver.row_changed(replica)
        self._compacting.compact_soon(replica)

    def _changed(self, changed: i.Changed) -> None:
        self._waits.notify(changed.partition_id)
        if (replica := self._node.replicas.get(changed.partition_id)) is not None:
            self._committer.look_for_loads(replica)

    # The log

    def _sync(self, sync: i.Sync) -> None:
        if (replica := self._replica(sync.partition_id)) is not None:
            self._committer.sync(replica, on_disk=sync.on_disk)

    def _sync_epoch(self, sync: i.SyncEpoch) -> None:
        def synced(stored: asyncio.Future[None]) -> None:
            if stored.exception() is None:
                self._node.epoch_stored(sync.partition_id, sync.leader_epoch)

        self._log_db.sync().add_done_callback(synced)

    def _apply(self, apply: i.Apply) -> None:
        if (replica := self._replica(apply.partition_id)) is not None:
            self._committer.apply(replica)

    def _mark_passed(self, passed: i.MarkPassed) -> None:
        if (replica := self._replica(passed.partition_id)) is not None:
            self._committer.wake_after_apply(replica)

    def _give_up(self, give_up: i.GiveUp) -> None:
        if (replica := self._replica(give_up.partition_id)) is not None:
            self._committer.give_up(replica, Code.OUTCOME_UNKNOWN, give_up.reason)

    def _gate_opened(self, opened: i.GateOpened) -> None:
        self._observer.writes_waited(opened.seconds)
        names = {"partition": opened.partition_id, "target": opened.successor, "ms": round(opened.seconds * 1e3, 1)}
        log.info("writes waited", extra=names)

    # The controller

    def _ask_hand_over(self, ask: i.AskHandOver) -> None:
        self._spawn(self._hand_over(ask.request), f"hand-over of {ask.request.partition_id}")

    async def _hand_over(self, request: HandOverRequest) -> None:
        error = await self._answer_to(self.call_hand_over, request, self._learn_handed_over)
        self._node.hand_over_answered(request, error, self._clock())

    @failpoint("migration.hand_over")
    async def call_hand_over(self, request: HandOverRequest) -> list[Partition]:
        return [(await self._controller.call(HAND_OVER, request)).partition]

    @failpoint("migration.row_received")
    def _learn_handed_over(self, rows: Iterable[Partition]) -> None:
        self._learn(rows)

    def _ask_finish_split(self, ask: i.AskFinishSplit) -> None:
        self._spawn(self._finish_split(ask.request), f"end of the split that made {ask.request.partition_id}")

    async def _finish_split(self, request: FinishSplitRequest) -> None:
        error = await self._answer_to(self.call_finish_split, request, self._learn)
        self._node.split_answered(request, error, self._clock())

    @failpoint("split.finish")
    async def call_finish_split(self, request: FinishSplitRequest) -> list[Partition]:
        return list((await self._controller.call(FINISH_SPLIT, request)).partitions)

    def _ask_finish_merge(self, ask: i.AskFinishMerge) -> None:
        self._spawn(self._finish_merge(ask.request), f"end of the merge into {ask.request.partition_id}")

    async def _finish_merge(self, request: FinishMergeRequest) -> None:
        error = await self._answer_to(self.call_finish_merge, request, self._learn_merged)
        self._node.merge_answered(request, error, self._clock())

    @failpoint("merge.finish")
    async def call_finish_merge(self, request: FinishMergeRequest) -> list[Partition]:
        return list((await self._controller.call(FINISH_MERGE, request)).partitions)

    @failpoint("merge.learn")
    def _learn_merged(self, rows: Iterable[Partition]) -> None:
        """Take over both rows in one step, since from then on one partition serves the keys of both."""
        self._learn(rows)

    def _learn(self, rows: Iterable[Partition]) -> None:
        for row in rows:
            self._node.adopt(row, self._clock())

    @staticmethod
    async def _answer_to(
        call: Callable[[R], Awaitable[list[Partition]]], request: R, learn: Callable[[Iterable[Partition]], None]
    ) -> MinkaError | None:
        """Call the controller, and take over the rows that it sends. Returns its error, if any."""
        try:
            learn(await call(request))
        except MinkaError as error:
            learn(newer_rows(error))
            return error
        return None

    # Tests

    @staticmethod
    def reached(place: str) -> None:
        """Run the failpoint of this named step."""
        _PLACES[place]()

    # Room for a merge

    def _make_room(self, wanted: i.MakeRoom) -> None:
        self._spawn(self._clear(wanted.left_id, wanted.right_id, wanted.range), f"clearing of {wanted.right_id}")

    async def _clear(self, left_id: int, right_id: int, wanted: KeyRange) -> None:
        failure = None
        try:
            if (right := self._node.replicas.get(right_id)) is not None:
                await right.clear(wanted)
        except MinkaError as error:
            failure = error
        self._node.room_made(left_id, failure, self._clock())


def _answer(answer: i.Answer) -> None:
    assert isinstance(answer.stream, IncomingStream), answer
    answer.stream.answer(answer.ack)


def _report(report: i.Report) -> None:
    log.log(report.level, report.text, extra=report.names)


def _reach() -> None:
    """Nothing happens here but what a test wants."""


_PLACES: Final[Mapping[str, Callable[[], None]]] = {
    name: failpoint(name)(_reach)
    for name in ("replica.lead", "migration.close_gate", "split.mark", "merge.copy", "merge.freeze")
}
