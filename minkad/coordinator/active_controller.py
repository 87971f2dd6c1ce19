"""The controller while this node is the Raft leader: it decides, proposes, and fails silent nodes."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Node
from minka.v1.coordinator_pb2 import HeartbeatRequest, HeartbeatResponse, RegisterResponse
from minkad.coordinator.acknowledgements import Acknowledgements
from minkad.coordinator.controller_settings import ControllerSettings
from minkad.coordinator.deciding import Deciding, Log
from minkad.coordinator.node_reports import NodeReports
from minkad.coordinator.outboxes import Outboxes, UpdateReplicas
from minkad.coordinator.upkeep import Upkeep
from minkad.core.clearance import CLOCK_RATIO
from minkad.core.controller.data_ports import DataPortJudge
from minkad.core.controller.failure_detector import FailureDetector
from minkad.core.controller.membership import FailNodes, Register
from minkad.core.controller.node_events import ControllerFailover
from minkad.core.controller.row_answers import ReplicaReport, ReportReplicas
from minkad.core.controller.schedule import Scheduler
from minkad.core.state import State, is_up
from minkad.duties.control.shard_control import ShardControl
from minkad.process import tasks
from minkad.process.clock import unix_ms
from minkad.process.failpoints import failpoint
from minkad.process.turns import InThread

log: Final = logging.getLogger(__name__)

TICK: Final = 0.05  # seconds between looks at the failure detector
LOOK_INTERVAL_S: Final = 2 * TICK  # between looks for stalled, waiting and unbalanced things
CLOCKS_INTERVAL_S: Final = 0.5  # between looks at the clocks of all nodes
CONFIRM_INTERVAL_S: Final = 2 * TICK  # between confirmations of the leadership, unless a verdict may be near
FORMER_LEADER_CHANCE: Final = 0.15  # seconds; a former leader that isn't heard for this long counts as silent


class ActiveController(Deciding):
    """The active controller for one term; discarded when the leadership is lost."""

    def __init__(
        self,
        committed: State,
        term: int,
        settings: ControllerSettings,
        *,
        raft_log: Log,
        raft_id: int,
        former_leader: int,
        unconfirmed_since: float,
        update_replicas: UpdateReplicas,
        before_tick: Callable[[], None],
        hand_over: Callable[[str], None],
        now: Callable[[], float],
        jitter: random.Random,
        in_thread: InThread,
    ) -> None:
        """`raft_id` is this node's. Since `unconfirmed_since`, in seconds of `now`, no quorum has confirmed a former
        leader, and no voter that elected this one has heard from `former_leader` (a raft id; 0: unknown).
        """
        super().__init__(committed, raft_log, raft_id, now)
        self.term = term
        self.settings = settings
        self.reports = NodeReports(committed, self.decided)
        self._clocks_looked_at = float("-inf")
        self._clocks_ms: int | None = None  # see NodeReports.clocks_of_most
        self._acknowledgements = Acknowledgements(self._record_answers)
        self.outboxes = Outboxes(committed, term, update_replicas, self._acknowledgements.add, jitter, self.fail)
        self._committed = committed
        self._before_tick = before_tick
        self._hand_over = hand_over  # called with the reason, repeatedly, while this node serves nothing
        self._registrations: dict[str, asyncio.Future[None]] = {}  # by node: its last registration
        self._scheduler = Scheduler()
        self._upkeep = Upkeep(self.decided, self.reports, self._perform, now)
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
        """A detector that gives each node twice the failure timeout to find this controller, but the former leader only
        FORMER_LEADER_CHANCE.
        """
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
        super().close()
        self.shards.close()
        for task in (*self._tasks, self._judging):
            if task is not None:
                task.cancel()
        self.outboxes.close()

    def _begin_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return tasks.start(work, name, self.fail)

    def fail(self, _error: BaseException) -> None:
        """After a bug this controller ends, and the next one begins with the committed state."""
        self.failed = True

    # Automatic work

    @failpoint("controller.schedule")
    def _record_next_steps(self) -> bool:
        """Record the next steps of running operations. True if there were any."""
        if moves := self._scheduler.next_steps(self.decided, self.settings.caps, unix_ms(), self.reports.low_disks()):
            self._record(moves)
        if facts := self.shards.distributor.next_facts(self.decided, unix_ms()):
            self._record(facts)
        return bool(moves or facts)

    # Reports of nodes

    async def register(self, node: Node, log_unchecked: bool = False) -> RegisterResponse:
        """Register a process. Raises NODE_ID_TAKEN while another process may hold the node's clearance, and NOT_SERVING
        if this process has just failed because its data port didn't answer, and the port still doesn't answer.
        """
        self.data_ports.refuse_unserving(node)

        def command() -> Register:
            return Register(node, self.detector.is_alive(node.id, self._now()), log_unchecked)

        def decided(proposal: asyncio.Future[None] | None) -> None:
            self.detector.heard(node.id, self._now())
            self.data_ports.began(node.id, self._now())
            if proposal is not None:
                self._registrations[node.id] = proposal
                proposal.add_done_callback(lambda _: self.detector.heard(node.id, self._now()))

        response: RegisterResponse = await self.run_when_due(command, decided)
        return response

    @failpoint("controller.report")
    async def _record_answers(self, reports: Sequence[ReplicaReport]) -> None:
        try:
            await self.run(ReportReplicas(reports))
        except MinkaError as error:
            log.info("nodes' answers were not recorded", extra={"reason": str(error)})

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Renew the clearance of the present process of a node that is up; NOT_REGISTERED for any other.

        A clearance ends at most `settings.clearance` seconds after a quorum last confirmed that this node leads. So the
        next controller knows how long to wait until all clearances of this one have ended.
        """
        node = self.decided.nodes.get(request.node_id)
        if node is None or not is_up(node) or node.incarnation != request.incarnation:
            raise MinkaError(Code.NOT_REGISTERED, f"node {request.node_id} has to register", node=request.node_id)
        now = self._now()
        is_known = self.reports.note(node, request, now)
        self._upkeep.stalls.note(node.id, request.migrations, now)
        if now - self._clocks_looked_at >= CLOCKS_INTERVAL_S:
            self._clocks_looked_at, self._clocks_ms = now, self.reports.clocks_of_most()
        self.data_ports.note(request, now)
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
                self._log.confirm_leadership(now, self._confirmed)
            await asyncio.sleep(TICK)

    async def _tick(self) -> None:
        async with self._turn:
            with suppress(MinkaError):  # this controller ends
                await self._perform(ControllerFailover())
        while not self.failed:
            async with self._turn:
                self._before_tick()
                with suppress(MinkaError):  # this controller ends
                    await self._upkeep.look(self.settings)
                self.reports.forget_gone()
            self._schedule_soon()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _confirmed(self, asked_at: float) -> None:
        """A quorum has confirmed that this node led at `asked_at`, so heartbeats could reach it until then. Fail the
        nodes that were silent until then.
        """
        self.confirmed_at = max(self.confirmed_at, asked_at)
        self._end_waits(asked_at)
        if self._unconfirmed and self._asked_at < asked_at:  # their question was lost
            self._ask_for_waiting()
        self._judge_soon()
        self.shards.judge()

    def _judge_soon(self) -> None:
        if self._silent_nodes() and (self._judging is None or self._judging.done()):
            self._judging = self._begin_task(self._fail_silent_nodes(), "failing nodes")

    def suspects_itself(self) -> bool:
        """True if the number of silent nodes suggests that the fault is here."""
        return self.detector.suspects_itself(self._others(), self._now())

    def _silent_nodes(self) -> list[str]:
        """The nodes to fail. This node is never among them: it hears itself as long as it can do anything. Nor is a
        node whose registration isn't recorded yet, since a node sends heartbeats only after that.
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
            with suppress(MinkaError):  # this controller ends
                await self._perform(FailNodes(reasons))

    def data_port_problem(self, node: str) -> tuple[str, float]:
        """The report of the nodes that watch this node's data port, and the report's age in seconds; "" while the port
        answers.
        """
        found = self.data_ports.unanswered(node)
        return ("", 0.0) if found is None else (found.reason, self._now() - found.since)

    def behind(self, node: str) -> float:
        """The seconds for which the node has applied nothing to its copy of the table although there is more."""
        return self.reports.behind(node, self._now())

    def silence(self, node: str) -> float:
        """Seconds since the node's last heartbeat."""
        return self.detector.silence(node, self._now())
