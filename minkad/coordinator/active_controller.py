"""The controller while this node is the Raft leader: decide, propose, and carry out what committed records oblige to.

It decides on the state as it will be once all that it has proposed is committed, as Kafka's QuorumController does.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Migration, MigrationState, Node, Partition
from minka.v1.coordinator_pb2 import (
    AlterIsrRequest,
    AlterIsrResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    IsrResult,
    MigrationProgress,
    ReplicaResult,
    ReplicaStats,
    UpdateReplicasRequest,
    UpdateReplicasResponse,
)
from minka.v1.records_pb2 import Record, RecordBatch
from minkad.clock import unix_ms
from minkad.coordinator.outbox import NodeOutbox
from minkad.core.clearance import CLOCK_RATIO
from minkad.core.controller import (
    AlterIsr,
    CancelMigration,
    ColdNeighbours,
    Command,
    FailNodes,
    FailureDetector,
    MigrationCaps,
    Register,
    ReportReplicas,
    ResumeAll,
    Spreading,
    check_caller,
    decide,
    isr_refusal,
    schedule,
    unfinished,
    what_blocks,
)
from minkad.core.state import NotifyNode, State, is_up
from minkad.failpoints import failpoint

log: Final = logging.getLogger(__name__)

_FEW_STATS: Final = 1000
TICK: Final = 0.05  # seconds between looks at the failure detector and the migrations
FORMER_LEADER_CHANCE: Final = 0.15  # seconds for a leader that was not heard any more to find the new one


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Seconds, and how many migrations may run."""

    clearance: float
    failure_timeout: float
    stall_timeout: float
    caps: MigrationCaps
    merge_after: float = 0.0  # for which neighbours are small and cold before they are merged; 0: never


class ActiveController:
    """One term of activity; thrown away when the leadership is lost."""

    def __init__(
        self,
        committed: State,
        term: int,
        settings: ControllerSettings,
        *,
        raft_id: int,
        former_leader: int,
        unconfirmed_since: float,
        propose: Callable[[bytes], asyncio.Future[None]],
        confirm_leadership: Callable[[float, Callable[[float], None]], None],
        update_replicas: Callable[[str, UpdateReplicasRequest], Awaitable[UpdateReplicasResponse]],
        before_tick: Callable[[], None],
        now: Callable[[], float],
        jitter: random.Random,
    ) -> None:
        """`raft_id` is this node's. Since `unconfirmed_since` nobody has confirmed a former leader's leadership, and
        `former_leader` (a raft id, 0: unknown), was heard by none of those who elected this one.
        """
        self.decided = committed.copy()
        self.failed = False
        self.term = term
        self.settings = settings
        self._raft_id = raft_id
        self.detector = FailureDetector(
            settings.failure_timeout, now(), unconfirmed_since + settings.clearance * CLOCK_RATIO, TICK
        )
        for node in committed.nodes.values():
            if node.raft_id == former_leader != raft_id:
                chance = now() + FORMER_LEADER_CHANCE - settings.failure_timeout
                self.detector.heard(node.id, max(unconfirmed_since, chance))
        self.replicas: dict[tuple[str, int], ReplicaStats] = {}
        self.applied: dict[str, int] = {}
        self._progress: dict[str, list[MigrationProgress]] = {}
        self._advanced: dict[int, tuple[tuple[object, ...], float]] = {}  # what a migration last showed, and since when
        self._committed = committed
        self._propose = propose
        self._confirm_leadership = confirm_leadership
        self._confirmed_at = float("-inf")
        self._update_replicas = update_replicas
        self._before_tick = before_tick
        self._now = now
        self._jitter = jitter
        self._outboxes: dict[str, NodeOutbox] = {}
        self._last_proposal: asyncio.Future[None] | None = None
        self._schedule_due = False
        self._cold = ColdNeighbours()
        self._spreading = Spreading()
        rows = [*committed.partitions.values(), *committed.merged.values()]
        everything = [NotifyNode(n, p.id) for p in rows for n in _members(p)]
        self.carry_out(everything)
        self._ticker = asyncio.create_task(self._tick(), name="active controller")

    def close(self) -> None:
        """This node is not the leader any more."""
        self._ticker.cancel()
        for outbox in self._outboxes.values():
            outbox.close()

    # Deciding

    async def submit(self, command: Command) -> None:
        """Decide and wait until the records are committed and applied here. Raises MinkaError."""
        await self._committed_by(await self._answer(command))

    async def register(self, node: Node) -> None:
        """Register a process. Raises MinkaError, NODE_ID_TAKEN while another may hold the node's clearance."""
        records = await self._answer(Register(node, self.detector.is_alive(node.id, self._now())))
        self.detector.heard(node.id, self._now())
        await self._committed_by(records)

    async def alter_isr(self, request: AlterIsrRequest) -> AlterIsrResponse:
        """Each change by itself; answers with the rows as they are afterwards. Raises NOT_REGISTERED."""
        check_caller(self.decided, request.node_id)
        refusals = [isr_refusal(self.decided, request.node_id, change) for change in request.changes]
        await self.submit(AlterIsr(request.node_id, request.changes))
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

    async def _answer(self, command: Command) -> list[Record]:
        """What follows from the command. A refusal waits until the rows that it stands on, and carries, are committed:
        a leader that acted on a row that is never recorded would acknowledge writes that the next leader lacks.
        """
        try:
            return self._decide(command)
        except MinkaError:
            await self._committed_by([])
            raise

    async def _committed_by(self, records: list[Record]) -> None:
        # A command that changes nothing still has to wait for the records that made it so.
        proposal = self._record(records) if records else self._last_proposal
        if proposal is not None:
            await asyncio.shield(proposal)

    @failpoint("controller.decide")
    def _decide(self, command: Command) -> list[Record]:
        return decide(self.decided, command, unix_ms())

    def _record(self, records: Iterable[Record]) -> asyncio.Future[None]:
        batch = RecordBatch(records=records, time_ms=unix_ms())
        self.decided.apply_batch(batch)
        self._last_proposal = self._propose(batch.SerializeToString())
        self._last_proposal.add_done_callback(self._proposed)
        self._schedule_soon()
        return self._last_proposal

    def _proposed(self, proposal: asyncio.Future[None]) -> None:
        """A record that was decided on but not committed makes `decided` a fiction: this controller is done."""
        if not proposal.cancelled() and (error := proposal.exception()) is not None:
            log.info("a proposal failed", extra={"reason": str(error)})
            self.failed = True

    def _schedule_soon(self) -> None:
        if not self._schedule_due:
            self._schedule_due = True
            asyncio.get_running_loop().call_soon(self._schedule)

    @failpoint("controller.schedule")
    def _schedule(self) -> None:
        self._schedule_due = False
        if records := schedule(self.decided, self.settings.caps, unix_ms()):
            self._record(records)

    # Carrying out

    def carry_out(self, effects: Collection[NotifyNode]) -> None:
        """Tell nodes that are up about their rows; the others hear when they register."""
        by_node: dict[str, list[int]] = {}
        for effect in effects:
            by_node.setdefault(effect.node, []).append(effect.partition_id)
        for node, partition_ids in by_node.items():
            if is_up(self._committed.nodes.get(node)):
                self._outbox(node).add(partition_ids)
        for node in [n for n in self._outboxes if not is_up(self._committed.nodes.get(n))]:
            self._outboxes.pop(node).close()

    def _outbox(self, node: str) -> NodeOutbox:
        if node not in self._outboxes:
            self._outboxes[node] = NodeOutbox(
                node,
                self.term,
                self._committed.row,
                lambda request: self._send_rows(node, request),
                self._report,
                self._jitter,
            )
        return self._outboxes[node]

    async def _send_rows(self, node: str, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        """The rows are of the present state, in which this process of the node is registered. One that isn't yet has
        no part in them: when it registers, others lead what the node led.
        """
        request.incarnation = self._committed.nodes[node].incarnation
        return await self._update_replicas(node, request)

    @failpoint("controller.report")
    async def _report(self, node: str, results: Collection[ReplicaResult]) -> None:
        try:
            await self.submit(ReportReplicas(node, list(results)))
        except MinkaError as error:
            log.info("a node's answer was not recorded", extra={"node_id": node, "reason": str(error)})

    # Heartbeats

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Renew the clearance of the present process of a node that is up; NOT_REGISTERED for any other.

        A clearance ends at the latest `settings.clearance` after a quorum last confirmed that this node leads, so
        it can't outlast this term by more, and the next controller waits that long.
        """
        node = self.decided.nodes.get(request.node_id)
        if node is None or not is_up(node) or node.incarnation != request.incarnation:
            raise MinkaError(Code.NOT_REGISTERED, f"node {request.node_id} has to register", node=request.node_id)
        now = self._now()
        self.detector.heard(node.id, now)
        self.applied[node.id] = request.applied_index
        for stats in request.replicas:
            self.replicas[(node.id, stats.partition_id)] = stats
        self._note_progress(node.id, request.migrations, now)
        remaining = self._confirmed_at + self.settings.clearance - now
        operation = self.decided.running_operation()
        return HeartbeatResponse(
            sequence=request.sequence,
            clearance_ms=int(max(0.0, remaining) * 1000),
            controller_term=self.term,
            shipping_limit=operation.rate_limit if operation else 0,
        )

    # Of its own accord

    async def _tick(self) -> None:
        if records := self._decide(ResumeAll()):
            self._record(records)
        while True:
            self.detector.turn(self._now())
            self._confirm_leadership(self._now(), self._confirmed)
            self._before_tick()
            self._cancel_stalled()
            self._merge_cold()
            self._spread_load()
            self._forget_gone()
            self._schedule_soon()
            await asyncio.sleep(TICK)

    def _confirmed(self, asked_at: float) -> None:
        """Only now it is known that this node could be heard as the leader then, so only now it may judge: by the
        silence until then.
        """
        self._confirmed_at = max(self._confirmed_at, asked_at)
        if self._silent_nodes():
            asyncio.get_running_loop().call_soon(self._fail_silent_nodes)

    def _silent_nodes(self) -> list[str]:
        """Never this one, which hears itself as long as it can do anything."""
        others = [node.id for node in self.decided.nodes.values() if is_up(node) and node.raft_id != self._raft_id]
        return self.detector.silent(others, self._confirmed_at)

    def _fail_silent_nodes(self) -> None:
        if self._ticker.done() or self.failed or not (silent := self._silent_nodes()):
            return
        now = self._now()
        reasons = {node: f"no heartbeat for {self.detector.silence(node, now):.1f} s" for node in silent}
        for node, reason in reasons.items():
            log.warning("node failed", extra={"node_id": node, "reason": reason})
        self._record(self._decide(FailNodes(reasons)))

    def _forget_gone(self) -> None:
        """What was said of partitions that were merged into others, and by former leaders, before it is much."""
        if len(self.replicas) > 4 * len(self.decided.partitions) + _FEW_STATS:
            leaders = {(row.leader, row.id) for row in self.decided.partitions.values()}
            self.replicas = {key: stats for key, stats in self.replicas.items() if key in leaders}

    def _merge_cold(self) -> None:
        command = self._cold.look(self.decided, self.leader_stats, self._now(), self.settings.merge_after)
        if command is None:
            return
        try:
            self._record(self._decide(command))
        except MinkaError as error:
            log.info("small neighbours are not merged", extra={"keyspace": command.keyspace, "reason": str(error)})

    def _spread_load(self) -> None:
        command = self._spreading.look(self.decided, self.leader_stats, self._now())
        if command is not None and (records := self._decide(command)):
            log.info("moving a partition by load", extra={"partition": command.partition_id, "reason": command.reason})
            self._record(records)

    def _note_progress(self, source: str, migrations: Iterable[MigrationProgress], now: float) -> None:
        self._progress[source] = list(migrations)
        by_partition: dict[int, list[object]] = {}
        for migration in migrations:
            shown = (source, migration.target, migration.bytes_done, migration.lag, migration.phase)
            by_partition.setdefault(migration.partition_id, []).append(shown)
        for partition_id, all_shown in by_partition.items():
            if self._advanced.get(partition_id, (None, 0.0))[0] != tuple(all_shown):
                self._advanced[partition_id] = (tuple(all_shown), now)

    def _cancel_stalled(self) -> None:
        """No migration may keep its operation from ending, unless a person has paused it."""
        operation = self.decided.running_operation()
        if operation is None:
            self._advanced.clear()
            return
        now = self._now()
        for migration in unfinished(list(self.decided.migrations[operation.id].values())):
            if not self._can_stall(migration, operation.paused):
                self._advanced.pop(migration.partition_id, None)
                continue
            shown, since = self._advanced.setdefault(migration.partition_id, ((), now))
            if now - since > self.settings.stall_timeout:
                self._advanced[migration.partition_id] = (shown, now)
                reason = f"no progress for {self.settings.stall_timeout:.0f} s: {self._blocked_by(migration)}"
                if records := self._decide(CancelMigration(operation.id, migration.partition_id, reason)):
                    self._record(records)

    def _can_stall(self, migration: Migration, paused: bool) -> bool:
        if migration.state == MigrationState.MIGRATION_STATE_PENDING:
            return not paused and what_blocks(self.decided, migration) is not None
        return migration.state == MigrationState.MIGRATION_STATE_COPYING

    def _blocked_by(self, migration: Migration) -> str:
        reported = next((p.blocked_by for p in self.progress() if p.partition_id == migration.partition_id), "")
        known = what_blocks(self.decided, migration)
        return reported or (known.reason if known else "no reason reported")

    # Facts for people

    def progress(self) -> list[MigrationProgress]:
        """What the sources of running migrations last reported."""
        return [p for reported in self._progress.values() for p in reported]

    def silence(self, node: str) -> float:
        """Seconds since the node's last heartbeat."""
        return self.detector.silence(node, self._now())

    def sizes(self) -> dict[int, int]:
        """Bytes by partition id, as the leaders last reported."""
        return {s.partition_id: s.bytes for s in self.leader_stats()}

    def leader_stats(self) -> list[ReplicaStats]:
        """What the leader of each partition last reported of it."""
        found = (self.replicas.get((p.leader, p.id)) for p in self._committed.partitions.values())
        return [stats for stats in found if stats is not None]


def _members(partition: Partition) -> list[str]:
    return [*partition.replicas, *partition.removing_replicas]
