"""The controller while this node is the Raft leader: it decides, proposes, and fails silent nodes.

It decides on the state that follows when all of its proposals are committed, as Kafka's QuorumController does.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final, TypeVar

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Node, Operation
from minka.v1.coordinator_pb2 import (
    AlterIsrRequest,
    AlterIsrResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    IsrResult,
)
from minka.v1.duties_pb2 import Duty, Pallet, Shard
from minka.v1.records_pb2 import Record, RecordBatch
from minkad.coordinator.acknowledgements import Acknowledgements, pieces_of
from minkad.coordinator.controller_settings import ControllerSettings
from minkad.coordinator.node_reports import NodeReports
from minkad.coordinator.outboxes import Outboxes, UpdateReplicas
from minkad.coordinator.upkeep import Upkeep
from minkad.core.clearance import CLOCK_RATIO
from minkad.core.controller import (
    AlterIsr,
    ChangeDuties,
    ChangePallets,
    Command,
    CommitLoad,
    ControllerFailover,
    CreateKeyspace,
    DataPortJudge,
    FailNodes,
    FailureDetector,
    Register,
    RegisterShard,
    ReportReplicas,
    Scheduler,
    check_caller,
    facts,
    isr_refusal,
)
from minkad.core.controller.at_once import AtOnce
from minkad.core.controller.keyspaces import Creation
from minkad.core.controller.loads import Commit
from minkad.core.controller.rows import ROWS_A_RECORD, rows_in, together
from minkad.core.state import DutyState, State, is_up, slices
from minkad.duties.control.shard_control import ShardControl
from minkad.process import tasks
from minkad.process.clock import unix_ms
from minkad.process.failpoints import failpoint
from minkad.process.turns import InThread, turn

log: Final = logging.getLogger(__name__)

_Row = TypeVar("_Row", Pallet, Duty)

SCHEDULE_REST: Final = 2  # a look that finds no next step is followed by a pause twice as long
TICK: Final = 0.05  # seconds between looks at the failure detector
LOOK_INTERVAL_S: Final = 2 * TICK  # between looks for stalled, waiting and unbalanced things
CLOCKS_INTERVAL_S: Final = 0.5  # between looks at the clocks of all nodes
CONFIRM_INTERVAL_S: Final = 2 * TICK  # between confirmations of the leadership, unless a verdict may be near
FORMER_LEADER_CHANCE: Final = 0.15  # seconds in which the former leader, heard no longer, may find the new one


class ActiveController:
    """The active controller for one term; discarded when the leadership is lost."""

    def __init__(
        self,
        committed: State,
        term: int,
        settings: ControllerSettings,
        *,
        raft_id: int,
        former_leader: int,
        unconfirmed_since: float,
        propose: Callable[..., asyncio.Future[None]],
        confirm_leadership: Callable[[float, Callable[[float], None]], None],
        update_replicas: UpdateReplicas,
        logged: Callable[[], Awaitable[None]],
        before_tick: Callable[[], None],
        hand_over: Callable[[str], None],
        now: Callable[[], float],
        jitter: random.Random,
        in_thread: InThread,
    ) -> None:
        """`raft_id` is this node's. Since `unconfirmed_since`, in seconds of `now`, no quorum has confirmed a former
        leader, and no voter that elected this one has heard from `former_leader` (a raft id; 0: unknown).
        """
        self.decided = committed.copy()
        self.failed = False
        self.term = term
        self.settings = settings
        self.reports = NodeReports(committed, self.decided)
        self._clocks_looked_at = float("-inf")
        self._clocks_ms: int | None = None  # see NodeReports.clocks_of_most
        self._acknowledgements = Acknowledgements(self._record_answers)
        self.outboxes = Outboxes(committed, term, update_replicas, self._acknowledgements.add, jitter, self.fail)
        self.confirmed_at = float("-inf")
        self._committed = committed
        self._raft_id = raft_id
        self._propose = propose
        self._confirm_leadership = confirm_leadership
        self._logged = logged
        self._before_tick = before_tick
        self._hand_over = hand_over  # called with the reason, repeatedly, while this node serves nothing
        self._now = now
        self._last_proposal: asyncio.Future[None] | None = None
        self._registrations: dict[str, asyncio.Future[None]] = {}  # by node: its last registration
        self._turn = asyncio.Lock()  # held by the caller that changes the table
        self._is_closed = False
        self._scheduler = Scheduler()
        self._schedule_due = self._schedule_missed = False  # missed: another caller had the turn
        self._schedule_from = float("-inf")  # no look for next steps before this time
        self._upkeep = Upkeep(self.decided, self.reports, self._act, now, settings)
        self._judging: asyncio.Task[None] | None = None
        self.detector = self._new_detector(former_leader, unconfirmed_since)
        self.data_ports = DataPortJudge(settings.failure_timeout)
        self.shards = ShardControl(
            self, settings.shards, unconfirmed_since=unconfirmed_since, tick=TICK, now=now, in_thread=in_thread
        )
        self._tasks = [
            self._begin_task(self.outboxes.ask_all(), "asking all nodes"),
            self._begin_task(self._keep_leading(), "leadership"),
            self._begin_task(self._tick(), "active controller"),
            self._begin_task(self._acknowledgements.run(), "nodes' answers"),
        ]

    def _new_detector(self, former_leader: int, unconfirmed_since: float) -> FailureDetector:
        """A detector for which all nodes were just heard; the former leader fails after FORMER_LEADER_CHANCE."""
        settings, now = self.settings, self._now()
        granted_until = unconfirmed_since + settings.clearance * CLOCK_RATIO
        detector = FailureDetector(settings.failure_timeout, now, granted_until, TICK)
        for node in self._committed.nodes.values():
            if node.raft_id == former_leader != self._raft_id:
                chance = now + FORMER_LEADER_CHANCE - settings.failure_timeout
                detector.heard(node.id, max(unconfirmed_since, chance))
        return detector

    def close(self) -> None:
        """This node is no longer the leader."""
        self._is_closed = True
        self.shards.close()
        for task in self._tasks:
            task.cancel()
        self.outboxes.close()

    def _begin_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return tasks.start(work, name, self.fail)

    def fail(self, _error: BaseException) -> None:
        """After a bug this controller ends, and the next one begins with the committed state."""
        self.failed = True

    # Deciding

    async def submit(self, command: Command) -> None:
        """Decide, and wait until the records are committed and applied here. Raises MinkaError."""
        if isinstance(command, CreateKeyspace):
            await self._create(command)
        elif isinstance(command, CommitLoad):
            await self._committed_by(lambda: self._record_commit(Commit(command)))
        else:
            await self._committed_by(lambda: self._perform(command))

    async def submit_when_due(self, command: Callable[[], Command | None]) -> None:
        """The same for a command that is made in its turn, from what is known then; None: no command."""

        async def perform() -> asyncio.Future[None] | None:
            made = command()
            return None if made is None else await self._perform(made)

        await self._committed_by(perform)

    async def begin(self, command: Command) -> Operation | None:
        """The same for a command that begins an operation. Returns the operation, or None if there was nothing
        to do.
        """
        begun: list[int] = []

        async def perform() -> asyncio.Future[None] | None:
            next_id = self.decided.next_operation_id
            proposal = await self._perform(command)
            begun.extend(range(next_id, self.decided.next_operation_id))
            return proposal

        await self._committed_by(perform)
        return self._committed.operations[begun[0]] if begun else None

    async def register(self, node: Node, log_unchecked: bool = False) -> None:
        """Register a process. Raises MinkaError, NODE_ID_TAKEN while another may hold the node's clearance, NOT_SERVING
        while the process for which the node has just failed can't be reached.
        """
        self.data_ports.refuse_unserving(node)

        async def perform() -> asyncio.Future[None] | None:
            proposal = await self._perform(Register(node, self.detector.is_alive(node.id, self._now()), log_unchecked))
            self.detector.heard(node.id, self._now())
            self.data_ports.began(node.id, self._now())
            if proposal is not None:
                self._registrations[node.id] = proposal
                proposal.add_done_callback(lambda _: self.detector.heard(node.id, self._now()))
            return proposal

        await self._committed_by(perform)

    async def change(
        self,
        command: ChangePallets | ChangeDuties,
        rows_of: Callable[[DutyState], Sequence[_Row | None]],
        *,
        logged: bool,
    ) -> list[_Row]:
        """Decide changes of pallets or duties, and wait until they are committed and applied here; if `logged`, only
        until they are in this node's own log. Returns the rows that `rows_of` finds, as decided, and the last row of
        each deletion: another command may have changed them since. Raises MinkaError.
        """
        rows: list[_Row] = []

        async def perform() -> asyncio.Future[None] | None:
            before = rows_of(self.decided.duties)
            proposal = await self._perform(command)
            for new, old in zip(rows_of(self.decided.duties), before, strict=True):
                row = new if new is not None else old
                assert row is not None, "a change that was made is of a row"
                rows.append(row)
            return self._once_logged() if logged else proposal

        await self._committed_by(perform)
        return rows

    def _once_logged(self) -> asyncio.Future[None]:
        async def in_log() -> None:
            await self._logged()

        logged = tasks.awaited(in_log(), "own log")
        logged.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # its caller may have gone
        return logged

    async def register_shard(self, shard: Shard) -> None:
        """Register a shard's process. Raises SHARD_NAME_TAKEN while another may hold the shard's clearance."""

        async def perform() -> asyncio.Future[None] | None:
            proposal = await self._perform(RegisterShard(shard, self.shards.is_alive(shard.name)))
            self.shards.heard(shard.name)
            return proposal

        self.shards.registering(shard.name, 1)
        try:
            await self._committed_by(perform)
            self.shards.heard(shard.name)
        finally:
            self.shards.registering(shard.name, -1)

    async def alter_isr(self, request: AlterIsrRequest) -> AlterIsrResponse:
        """Record or refuse each change on its own. The response has the new rows. Raises NOT_REGISTERED."""
        refusals: list[Code | None] = []

        async def perform() -> asyncio.Future[None] | None:
            proposal = None
            for number, changes in enumerate(slices(request.changes, ROWS_A_RECORD)):
                if number:
                    await turn()
                check_caller(self.decided, request.node_id)
                refusals.extend(isr_refusal(self.decided, request.node_id, change) for change in changes)
                proposal = await self._perform(AlterIsr(request.node_id, changes))
            return proposal

        await self._committed_by(perform)
        return AlterIsrResponse(
            results=[
                IsrResult(
                    partition_id=change.partition_id,
                    partition=self._committed.partitions.get(change.partition_id),
                    error=refusal.name if refusal else "",
                )
                for change, refusal in zip(request.changes, refusals, strict=True)
            ]
        )

    async def _create(self, command: CreateKeyspace) -> None:
        """Create a keyspace. Most of the work is done before the turn is taken, so other commands don't wait for it."""
        limit, low_disks = self.settings.max_replicas_per_node, self.reports.low_disks()
        creation = Creation(self.decided, replace(command, max_replicas_per_node=limit, low_disks=low_disks))
        for _ in creation.prepare():
            await turn()
        await self._committed_by(lambda: self._record_creation(creation))

    async def _committed_by(self, perform: Callable[[], Coroutine[Any, Any, asyncio.Future[None] | None]]) -> None:
        """Perform a command in its turn, and wait until its records are committed. A command whose caller is cancelled
        while it waits for its turn isn't performed; a command that has begun is finished. A command that changes
        nothing still waits for the records because of which nothing changes. A refusal waits for the rows that it is
        based on and carries: a leader that acted on a row that is never recorded would acknowledge writes that the next
        leader lacks.
        """
        try:
            async with self._turn:
                under_way = tasks.awaited(perform(), "command")
                try:
                    proposal = await asyncio.shield(under_way)
                finally:
                    if not under_way.done():
                        await asyncio.wait([under_way])
                        under_way.exception()  # nobody else retrieves it
            self._schedule_if_missed()
        except MinkaError:
            await self.all_recorded()
            raise
        if proposal is not None:
            await asyncio.shield(proposal)

    async def all_recorded(self) -> None:
        """Wait until everything decided so far is committed. Raises the error of the last proposal."""
        if self._last_proposal is not None:
            await asyncio.shield(self._last_proposal)

    async def _perform(self, command: Command) -> asyncio.Future[None] | None:
        """Record the effects of the command, in pieces if they are large, and return the last proposal, if there is
        any. The caller has to hold the turn.
        """
        self._check_active()
        found = self._decide(command)
        if isinstance(found, list):
            if found:
                self._record(found)
            return self._last_proposal
        if isinstance(found, AtOnce):
            return await self._record_at_once(found.pieces)
        piece: list[Record] = []
        rows = 0
        for record in found:
            self.decided.apply(record)
            piece.append(record)
            rows += rows_in(record)
            if rows >= ROWS_A_RECORD:
                self._propose_together([_encoded(piece)])
                piece, rows = [], 0
                await turn()
                self._check_active()
        if piece:
            self._propose_together([_encoded(piece)])
        return self._last_proposal

    async def _record_creation(self, creation: Creation) -> asyncio.Future[None] | None:
        self._check_active()
        return await self._record_at_once([record] for record in creation.records(self.decided, unix_ms()))

    async def _record_commit(self, commit: Commit) -> asyncio.Future[None] | None:
        self._check_active()
        for _ in commit.check(self.decided):
            await turn()
        return await self._record_at_once([record] for record in commit.records(self.decided, unix_ms()))

    async def _record_at_once(self, pieces: Iterable[Sequence[Record]]) -> asyncio.Future[None] | None:
        """Propose all pieces in one Raft entry, so that either all are committed or none; they are applied one
        by one.
        """
        batches: list[bytes] = []
        for piece in pieces:
            for record in piece:
                self.decided.apply(record)
            if piece:
                batches.append(_encoded(piece))
            await turn()
        self._check_active()
        return self._propose_together(batches) if batches else self._last_proposal

    def _check_active(self) -> None:
        """Raises NOT_CONTROLLER if this controller is no longer active; the caller then asks the next one."""
        if self._is_closed or self.failed:
            raise MinkaError(Code.NOT_CONTROLLER, "this node is no longer the active controller")

    @failpoint("controller.decide")
    def _decide(self, command: Command) -> Iterable[Record]:
        return facts(self.decided, command, unix_ms())

    def _act(self, command: Command) -> bool:
        """Decide and record at once. True if the command has any effect. Raises MinkaError."""
        records = list(self._decide(command))
        self._record(records)
        return bool(records)

    def _record(self, records: list[Record]) -> None:
        if not records:
            return
        for record in records:
            self.decided.apply(record)
        self._propose_together([_encoded(records)])

    def _propose_together(self, batches: Sequence[bytes]) -> asyncio.Future[None]:
        """Propose encoded batches of records; they are applied one after the other."""
        self._last_proposal = self._propose(*batches)
        self._last_proposal.add_done_callback(self._proposed)
        self._schedule_soon()
        return self._last_proposal

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
            if not self._record_next_steps():
                self._schedule_from = self._now() + SCHEDULE_REST * (self._now() - began)

    @failpoint("controller.schedule")
    def _record_next_steps(self) -> bool:
        """Record the next steps of running operations. True if there were any."""
        if moves := self._scheduler.next_steps(self.decided, self.settings.caps, unix_ms(), self.reports.low_disks()):
            self._record(moves)
        if facts := self.shards.distributor.next_facts(self.decided, unix_ms()):
            self._record(facts)
        return bool(moves or facts)

    # Reports of nodes

    @failpoint("controller.report")
    async def _record_answers(self, reports: Sequence[ReportReplicas]) -> None:
        async def perform() -> asyncio.Future[None] | None:
            self._check_active()
            records: list[Record] = []
            decided: set[int] = set()  # the partitions of these
            for piece in chain.from_iterable(map(pieces_of, reports)):
                concerned = {*piece.deleted, *(id_ for id_, _ in piece.hosted)}
                if decided & concerned or len(decided) >= ROWS_A_RECORD:
                    self._record(together(records))
                    records, decided = [], set()
                    await turn()
                    self._check_active()
                records += self._decide(piece)
                decided |= concerned
            self._record(together(records))
            return self._last_proposal

        try:
            await self._committed_by(perform)
        except MinkaError as error:
            log.info("nodes' answers were not recorded", extra={"reason": str(error)})

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Renew the clearance of the present process of a node that is up; NOT_REGISTERED for any other.

        A clearance ends at most `settings.clearance` after a quorum last confirmed that this node leads, so it can't
        outlast this term by more, and the next controller waits that long.
        """
        node = self.decided.nodes.get(request.node_id)
        if node is None or not is_up(node) or node.incarnation != request.incarnation:
            raise MinkaError(Code.NOT_REGISTERED, f"node {request.node_id} has to register", node=request.node_id)
        now = self._now()
        is_known = self.reports.note(node, request, now)
        self._upkeep.stalls.note(node.id, request.migrations, now)
        if now - self._clocks_looked_at >= CLOCKS_INTERVAL_S:
            self._clocks_looked_at, self._clocks_ms = now, self.reports.clocks_of_most()
        self.data_ports.note(node.id, {one.node_id: one.reason for one in request.unanswered})
        # An active controller never fails its own node, but hands over.
        withheld = "" if node.raft_id == self._raft_id else self.data_ports.withheld(node.id)
        if withheld:
            remaining = 0.0
            self.data_ports.withheld_from(request)
            self._judge_soon()
        else:
            remaining = self.confirmed_at + self.settings.clearance - now
            self.data_ports.granted_to(request)
            self.detector.heard(node.id, now)
        return HeartbeatResponse(
            sequence=request.sequence,
            clearance_ms=int(max(0.0, remaining) * 1000),
            controller_term=self.term,
            low_disks=self.reports.low_disks(),
            from_start_wanted=not is_known,
            clock_ms=int(now * 1000),
            clocks_ahead_ms=self._clocks_ms,
            withheld=withheld,
        )

    def _judge_data_ports(self, now: float) -> None:
        nodes = self.decided.nodes
        for node in self.data_ports.turn(nodes, now):
            if nodes[node].raft_id == self._raft_id and (reason := self.data_ports.withheld(node)):
                self._hand_over(reason)

    # Periodic work

    async def _keep_leading(self) -> None:
        """Confirm the leadership repeatedly. This never waits for the turn, so clearances are renewed in time."""
        asked_at = float("-inf")
        while True:
            now = self._now()
            self.detector.turn(now)
            self._judge_data_ports(now)
            self.shards.turn()
            is_due = now - asked_at >= CONFIRM_INTERVAL_S - TICK / 2
            if is_due or self.detector.hears_nothing_of_some(self._others(), now):
                asked_at = now
                self._confirm_leadership(now, self._confirmed)
            await asyncio.sleep(TICK)

    async def _tick(self) -> None:
        async with self._turn:
            await self._perform(ControllerFailover())
        while not self.failed:
            async with self._turn:
                self._before_tick()
                self._upkeep.look()
                self.reports.forget_gone()
            self._schedule_soon()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _confirmed(self, asked_at: float) -> None:
        """A quorum has confirmed that this node led at `asked_at`, so nodes could be heard until then: fail the nodes
        that were silent until then.
        """
        self.confirmed_at = max(self.confirmed_at, asked_at)
        self._judge_soon()
        self.shards.judge()

    def _judge_soon(self) -> None:
        if self._silent_nodes() and (self._judging is None or self._judging.done()):
            self._judging = self._begin_task(self._fail_silent_nodes(), "failing nodes")

    def suspects_itself(self) -> bool:
        """True if the number of silent nodes suggests that the fault is here."""
        return self.detector.suspects_itself(self._others(), self._now())

    def _silent_nodes(self) -> list[str]:
        """The nodes to fail. Never this one, which hears itself as long as it can do anything, and none whose
        registration isn't recorded yet: it can't send a heartbeat before that.
        """
        others = self._others()
        silent = dict.fromkeys(self.detector.silent(others, self.confirmed_at))
        if self.confirmed_at >= self.detector.clearances_end:
            silent |= dict.fromkeys(filter(self.data_ports.has_given_up, others))
        return [node for node in silent if not self._is_registering(node)]

    def _others(self) -> list[str]:
        return [node.id for node in self.decided.nodes.values() if is_up(node) and node.raft_id != self._raft_id]

    def _is_registering(self, node: str) -> bool:
        registration = self._registrations.get(node)
        return registration is not None and not registration.done()

    async def _fail_silent_nodes(self) -> None:
        async with self._turn:
            if self._is_closed or self.failed or not (silent := self._silent_nodes()):
                return
            now = self._now()
            reasons: dict[str, str] = {}
            for node in silent:
                silence = f"no heartbeat for {self.detector.silence(node, now):.1f} s"
                reasons[node] = self.data_ports.failed(self.decided.nodes[node]) or silence
                log.warning("node failed", extra={"node_id": node, "reason": reasons[node]})
            await self._perform(FailNodes(reasons))

    def data_port_problem(self, node: str) -> tuple[str, float]:
        """The report of those who watch the node's data port, and its age in seconds; "" while the port answers."""
        found = self.data_ports.unanswered(node)
        return ("", 0.0) if found is None else (found.reason, self._now() - found.since)

    def behind(self, node: str) -> float:
        """The seconds since the node's copy of the table stood still although there is more to apply."""
        return self.reports.behind(node, self._now())

    def silence(self, node: str) -> float:
        """Seconds since the node's last heartbeat."""
        return self.detector.silence(node, self._now())


def _encoded(records: Iterable[Record]) -> bytes:
    return RecordBatch(records=records, time_ms=unix_ms()).SerializeToString()
