"""One node of a cluster: the only place that wires everything, and owns the loop and the signals."""

import asyncio
import logging
import os
import random
import signal
import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import minka
from minka.errors import MinkaError
from minka.v1.cluster_pb2 import Cluster, Node, NodeState
from minka.v1.duties_pb2 import Duty
from minka.v1.raft_pb2 import ConfState
from minkad import config as configuration
from minkad.config import Config
from minkad.config.addresses import is_loopback
from minkad.coordinator.active_controller import ControllerSettings
from minkad.coordinator.coordinator import Bootstrap, Coordinator
from minkad.coordinator.member import Member, MemberSettings
from minkad.coordinator.raft_driver import RaftDriver
from minkad.coordinator.shard_control import ShardSettings
from minkad.core.controller import MigrationCaps, VoterSettings
from minkad.core.raft import Config as RaftConfig
from minkad.core.raft import RawNode
from minkad.core.state import Placed, State, is_up
from minkad.duties.gateway import DutyGateway
from minkad.duties.payloads import PayloadStore
from minkad.duties.relay import Relay
from minkad.duties.sessions import SessionSettings, ShardSessions
from minkad.history.recorder import HistoryRecorder
from minkad.history.store import HistoryStore
from minkad.http import server as http
from minkad.http.metrics import create_registry
from minkad.http.rest import Rest
from minkad.node.health import Health
from minkad.node.joining import new_identity, refuse_older_copy
from minkad.process import garbage, logs, systemd
from minkad.process.clock import boottime, unix_ms
from minkad.process.exits import end_at_once
from minkad.process.loop_lag import LoopLag
from minkad.process.telemetry import Telemetry
from minkad.replication.context import ControllerCalls, ReplicationSettings
from minkad.replication.ingesting import LoadSources
from minkad.replication.manager import ReplicaManager, StorageSettings
from minkad.rpc.channels import Channels
from minkad.rpc.credentials import Credentials
from minkad.rpc.peers import Peers
from minkad.rpc.raft import RaftTransport
from minkad.rpc.replication import GrpcLinks
from minkad.rpc.server import Server
from minkad.rpc.spool import SpoolLinks, SpoolService, spool_handler
from minkad.rpc.validation import check
from minkad.spool.collecting import Collecting
from minkad.spool.fetching import Fetching
from minkad.spool.spool import Spool
from minkad.spool.throttle import Throttle
from minkad.spool.uploading import Uploading
from minkad.storage import identity
from minkad.storage.disk_guard import DiskGuard
from minkad.storage.disk_space import DiskWatch
from minkad.storage.identity import Identity
from minkad.storage.log_database import LogDatabase
from minkad.storage.raft_log import RaftLog
from minkad.storage.replica_store import ReplicaStore

log: Final = logging.getLogger(__name__)
raft_log_lines: Final = logging.getLogger("minkad.core.raft")

DRAIN_SECONDS: Final = 2.0
GOODBYE_SECONDS: Final = 0.5  # of a node whose disk has failed
_ASKED_NODES: Final = 5
FOUNDERS_POLL: Final = 0.2  # seconds
SHUTDOWN_SECONDS: Final = 5.0  # for others to take over the partitions that this node leads
MIB: Final = 1024 * 1024


class Daemon:
    """Built by `run` in the order of the layers, and taken down in the reverse one."""

    member: Member

    def __init__(self, config: Config, path: Path) -> None:
        self.config = config
        self.path = path
        self.telemetry = Telemetry()
        self.credentials = Credentials(config.certificates) if config.certificates is not None else None
        self.channels = Channels("", config.node.id, self.credentials)  # until it has joined
        self._built = False
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises MinkaError when the node can't start or can't go on."""
        lock = identity.lock(self.config.data_dir)
        try:
            self.disk = DiskWatch(self.config.data_dir, self.config.storage.disk_low_mib * MIB)
            self.disk.give_up_reserve()
            self._watch_signals()
            incarnation = uuid.uuid4().hex
            identify = asyncio.create_task(self._identify(incarnation))
            stopped = asyncio.create_task(self._stop.wait())
            await asyncio.wait({identify, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not identify.done():  # it was waiting for a cluster to join
                identify.cancel()
                return
            self.identity = await identify
            await self._build(incarnation)
            await self._refuse_older_copy()
            await self._serve(stopped)
        finally:
            os.close(lock)

    # Start

    async def _identify(self, incarnation: str) -> Identity:
        """The identity of the data directory; a new one is made by founding the cluster, or by joining it."""
        config = self.config
        known = identity.load(config.data_dir, config.node.id, config.cluster.name)
        if known is not None:
            return known
        node = self._node(uuid.uuid4().hex, incarnation)
        try:
            new = await new_identity(config, node, self.channels, self._holder_patience(), boottime)
        finally:
            await self.channels.close()
        identity.save(config.data_dir, new)
        return new

    def _holder_patience(self) -> float:
        return 2 * self.config.membership.failure_timeout_ms / 1000 + 1

    def _node(self, data_id: str, incarnation: str, starts: int = 0) -> Node:
        config = self.config
        return Node(
            id=config.node.id,
            data_id=data_id,
            incarnation=incarnation,
            starts=starts,
            address=config.grpc_address,
            http_address=config.http_address,
            zone=config.node.zone,
            capacity_bytes=config.node.capacity_bytes,
            weight=config.node.weight,
            version=minka.__version__,
        )

    async def _build(self, incarnation: str) -> None:
        config, own = self.config, self.identity
        jitter = random.Random()
        self.log_db = LogDatabase.open(config.data_dir / "log", must_exist=own.started)
        if not own.started:
            self.identity = own = replace(own, started=True)
            identity.save(config.data_dir, own)
        self.log_db.on_sync = self.telemetry.log_sync.observe
        self.guard = DiskGuard(self.log_db, config.storage.max_sync_s)
        self.guard.start()
        raft_log = RaftLog(self.log_db)
        bootstrap = self._bootstrap()
        if raft_log.last_index() == 0 and (own.node_id, own.raft_id) in {(n.id, n.raft_id) for n in bootstrap.voters}:
            raft_log.bootstrap(ConfState(voters=[node.raft_id for node in bootstrap.voters]))
            await self.log_db.sync()
        snapshot = raft_log.snapshot()
        heartbeat_interval = config.membership.heartbeat_interval_ms / 1000
        self.channels = Channels(own.cluster_id, own.node_id, self.credentials, heartbeat_interval)
        self.coordinator = Coordinator(
            State.from_snapshot(snapshot.data),
            bootstrap,
            self._controller_settings(config),
            VoterSettings(config.coordinator.voters, config.coordinator.replace_voter_after_s * 1000),
            update_replicas=lambda node, request: self.peers.update_replicas(node, request),
            now=boottime,
            jitter=jitter,
        )
        self.peers = Peers(self.channels, self.coordinator.address_of)
        self.transport = RaftTransport(
            self.channels,
            config.grpc_address,
            self._raft_address,
            lambda raft_id: self.driver.report_unreachable(raft_id),
            lambda raft_id: self.driver.report_gone(raft_id),
            lambda raft_id, ok: self.driver.report_snapshot(raft_id, ok),
            config.coordinator.snapshot_mib_per_s * MIB,
        )
        hard_state, conf_state = raft_log.initial_state()
        self.driver = RaftDriver(
            RawNode(self._raft_config(raft_log, snapshot.metadata.index, jitter)),
            raft_log,
            self.log_db,
            self.transport,
            self.coordinator,
            tick_seconds=config.coordinator.tick_ms / 1000,
            snapshot_entries=config.coordinator.snapshot_entries,
            conf_state=conf_state,
            on_progress=self.coordinator.on_progress,
        )
        self.coordinator.driver = self.driver
        self.replay_to = hard_state.commit
        self._build_spool()
        self.manager = ReplicaManager(
            own.node_id,
            ReplicaStore(config.data_dir, config.storage.block_cache_mib * MIB),
            self.log_db,
            GrpcLinks(
                lambda node: self.channels.to(self.coordinator.address_of(node)), self.channels.identity, self.telemetry
            ),
            has_clearance=lambda: self.member.has_clearance(),
            controller=ControllerCalls(
                hand_over=lambda request: self.member.hand_over(request),
                alter_isr=lambda request: self.member.alter_isr(request),
                propose_split=lambda request: self.member.propose_split(request),
                finish_split=lambda request: self.member.finish_split(request),
                finish_merge=lambda request: self.member.finish_merge(request),
            ),
            clock=boottime,
            disk=self.disk,
            settings=ReplicationSettings(lag_timeout=config.replication.lag_timeout_ms / 1000),
            storage=StorageSettings(
                flush=config.storage.log_retention_mib * MIB,
                change_retention=config.storage.change_retention_mib * MIB,
            ),
            known_row=lambda partition_id: self.coordinator.state.row(partition_id),
            is_gone=lambda partition_id: self.coordinator.state.is_gone(partition_id),
            known_keyspace=lambda keyspace_id: self.coordinator.state.keyspaces.get(keyspace_id),
            is_absent=lambda node_id: self.coordinator.state.is_absent(node_id),
            operation_moving=lambda id_: self.coordinator.state.operation_moving(Placed.partition(id_)),
            on_fence=self.telemetry.migration_write_pause.observe,
            on_isr_change=self.telemetry.isr_changed,
            low_disks=self._low_disks,
            unix_ms=unix_ms,
            loads=self._load_sources(),
            on_damage=self.telemetry.damage_found,
        )
        self.history = HistoryRecorder(
            HistoryStore(
                config.data_dir / "history", config.history.retention_h * 3_600_000, config.history.max_mib * MIB
            ),
            self.manager.intervals.take,
            lambda: self.disk.space,
            config.node.capacity_bytes,
            config.history.interval_s,
            boottime,
            unix_ms,
        )
        self.member = Member(
            self._node(own.data_id, incarnation, self.log_db.starts),
            self._member_settings(),
            self.peers,
            controller_address=self._controller_address,
            other_addresses=self._other_addresses,
            data_plane=self.manager,
            applied_index=lambda: self.driver.applied_index,
            now=boottime,
            disk=lambda: self.disk.space,
            disk_stalled=lambda: self.log_db.stalled,
        )
        self.health = Health(
            self.coordinator,
            self.member,
            self.manager,
            self.telemetry,
            self.replay_to,
            self.disk,
            self.log_db,
            self.transport.last_heard,
        )
        self.payloads = PayloadStore(config.grpc_address, config.certificates)
        self.gateway = DutyGateway(
            self.channels.to,
            self.channels.identity,
            self._controller_address,
            lambda: self.coordinator.state,
            self.payloads,
        )
        self.relay = Relay(self.member.ask, self.peers, self._member_settings().hurry)
        self.sessions = ShardSessions(
            self.relay,
            self.payloads,
            SessionSettings(config.shards.heartbeat_interval_ms / 1000, config.shards.failure_timeout_ms / 1000),
            node_id=own.node_id,
            state=lambda: self.coordinator.state,
            settled_index=lambda: self.driver.settled_index,
            has_clearance=self.member.has_clearance,
        )
        self.coordinator.on_shards_changed = self.sessions.changed
        self.coordinator.on_restored = self.sessions.restored
        self.coordinator.on_leader_change = self.member.leader_changed
        self.coordinator.on_nodes_changed = self.manager.nodes_changed
        self.coordinator.on_loads_changed = self.manager.loads_changed
        self._built = True

    def _build_spool(self) -> None:
        def state() -> State:
            return self.coordinator.state

        self.spool = Spool(self.config.data_dir / "spool", self.disk.check_room)
        self.spool_links = SpoolLinks(
            lambda node: self.channels.to(self.coordinator.address_of(node)), self.channels.identity
        )
        self.fetching = Fetching(
            self.identity.node_id,
            self.spool,
            self.spool_links.fetch,
            lambda: [node.id for node in state().nodes.values() if is_up(node)],
        )
        self.uploading = Uploading(
            self.spool,
            lambda: state().loads,
            Throttle(boottime, self.telemetry.client_seconds),
        )

    def _load_sources(self) -> LoadSources:
        return LoadSources(
            self.spool,
            self.fetching,
            lambda: self.coordinator.state.loads,
            self.spool_links.pull,
            lambda request: self.member.finish_load_parts(request),
        )

    def _low_disks(self) -> Collection[str]:
        """The nodes that are short of disk space: others by the active controller's word, this one by its own."""
        others = self.member.low_disks
        return others | {self.identity.node_id} if self.disk.is_low else others - {self.identity.node_id}

    async def _refuse_older_copy(self) -> None:
        """Before it votes: what the nodes that answer know of its starts. Registering asks the controller, later."""
        addresses = self._other_addresses()[:_ASKED_NODES]
        await refuse_older_copy(self.channels, addresses, self.identity, self.log_db.starts)

    def _bootstrap(self) -> Bootstrap:
        config = self.config
        voters = [
            Node(id=peer.id, raft_id=i, address=peer.address, state=NodeState.NODE_STATE_JOINING)
            for i, peer in enumerate(config.cluster.bootstrap, 1)
        ]
        cluster = Cluster(
            id=self.identity.cluster_id,
            name=config.cluster.name,
            min_nodes=config.cluster.min_nodes,
            created_ms=unix_ms(),
        )
        return Bootstrap(cluster, voters)

    def _raft_config(self, raft_log: RaftLog, applied: int, jitter: random.Random) -> RaftConfig:
        return RaftConfig(
            id=self.identity.raft_id,
            storage=raft_log,
            random=jitter.randrange,
            election_tick=self.config.coordinator.election_ticks,
            heartbeat_tick=self.config.coordinator.heartbeat_ticks,
            applied=applied,
            commit_by_vote=True,
            disable_proposal_forwarding=True,
            logger=lambda level, text: raft_log_lines.debug(text, extra={"raft_level": level}),
        )

    @staticmethod
    def _controller_settings(config: Config) -> ControllerSettings:
        membership, migrations = config.membership, config.migrations
        return ControllerSettings(
            clearance=membership.clearance_ms / 1000,
            failure_timeout=membership.failure_timeout_ms / 1000,
            stall_timeout=migrations.stall_timeout_s,
            caps=MigrationCaps(per_node=migrations.per_node, cluster=migrations.cluster),
            max_replicas_per_node=config.limits.replicas_per_node,
            merge_after=config.ranges.merge_after_s,
            abandon_loads_after=config.loads.abandoned_after_s,
            shards=ShardSettings(config.shards.clearance_ms / 1000, config.shards.failure_timeout_ms / 1000),
        )

    def _member_settings(self) -> MemberSettings:
        interval = self.config.membership.heartbeat_interval_ms / 1000
        clearance = self.config.membership.clearance_ms / 1000
        return MemberSettings(interval, max(2 * interval, clearance), self._holder_patience())

    def _raft_address(self, raft_id: int) -> str | None:
        node = self.coordinator.node_with(raft_id)
        return node.address if node else None

    def _controller_address(self) -> str | None:
        if self.driver.is_leader:
            return self.config.grpc_address  # the table may have an older one, which only registering puts right
        leader = self.coordinator.leader()
        return leader.address if leader else None

    def _other_addresses(self) -> list[str]:
        """Where the other nodes are, as far as this one knows, by its table and its configuration."""
        cluster = self.config.cluster
        known = [node.address for node in self.coordinator.state.nodes.values()]
        known += [*cluster.join, *(peer.address for peer in cluster.bootstrap)]
        return [address for address in dict.fromkeys(known) if address and address != self.config.grpc_address]

    # Serve

    async def _serve(self, stopped: asyncio.Task[Any]) -> None:
        await self.spool.start()
        await self.manager.start()
        server = Server(
            self.config.listen.grpc,
            self.identity,
            self.coordinator,
            self.manager,
            self.member,
            self.telemetry,
            self.transport,
            self.credentials,
            self.config.clients.memory_mib * MIB,
            self.health.describe,
            self.gateway,
            self.sessions,
            SpoolService(self.spool, self.uploading, self.fetching, self.disk.room),
            spool_handler(self.spool, self.uploading),
            self.history,
        )
        await server.start()
        registry = create_registry(self.health, self.credentials.expiry if self.credentials is not None else None)
        is_local = is_loopback(self.config.listen.http)
        rest = Rest(self.gateway, check, is_local=is_local).app() if self.config.serves_rest else None
        runner = await http.start(http.create_app(self.health, registry, rest), self.config.listen.http)
        # Any of these ending before the stop is a failure.
        tasks = [
            asyncio.create_task(self.driver.run(), name="raft"),
            asyncio.create_task(self.member.run(), name="member"),
            asyncio.create_task(self._announce(), name="announce"),
            asyncio.create_task(systemd.watchdog(self.health.is_live), name="watchdog"),
            asyncio.create_task(self._log_failure(), name="log failure"),
            asyncio.create_task(LoopLag(self.telemetry).run(), name="loop lag"),
            asyncio.create_task(garbage.collect(), name="garbage"),
            asyncio.create_task(self.disk.watch(), name="disk space"),
            asyncio.create_task(self._collect_spool(), name="spool"),
            asyncio.create_task(self.history.run(), name="history"),
            asyncio.create_task(self.relay.run(), name="shards' heartbeats"),
            asyncio.create_task(self.sessions.run(), name="shards' sessions"),
            asyncio.create_task(self.payloads.run(self._duties, self._is_controller), name="payloads"),
        ]
        try:
            await self._wait_for_end(tasks, stopped)
            await server.announce_stop()
            await self._drain(tasks)
        except MinkaError:
            if self.log_db.error is not None:
                await self._end_by_failure(tasks[1], self.log_db.error)
            raise
        finally:
            stopped.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.stop(0.2)
            await runner.cleanup()
            await self.payloads.close()
            if self.log_db.error is None:
                await self.history.record()
            await self.manager.close()
            await self.uploading.close()
            await self.fetching.close()
            await self.spool.close()
            if self.log_db.error is not None:
                end_at_once(self.log_db.error)
            self.guard.stop()
            self.transport.close()
            await self.channels.close()
            self.log_db.close()

    async def _collect_spool(self) -> None:
        assert self.manager.ingesting is not None
        await Collecting(self.spool, lambda: self.coordinator.state.loads, self.manager.ingesting.is_in_log).run()

    def _duties(self) -> Mapping[int, Duty]:
        return self.coordinator.state.duties.duties

    def _is_controller(self) -> bool:
        """Confirmed: this node's rows are the newest."""
        return self.coordinator.active is not None and self.member.has_clearance()

    async def _log_failure(self) -> None:
        """Raises the MinkaError for which the log database takes no more writes: the node must stop."""
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.log_db.on_failure = failed.set_exception  # called once
        if self.log_db.error is not None:
            raise self.log_db.error
        await failed

    async def _end_by_failure(self, membership: asyncio.Task[None], error: MinkaError) -> NoReturn:
        """The disk has failed: serve nothing from now on, let others lead what this node led, and end. Nothing is
        closed, since each of the databases would try to write first, and wait.
        """
        log.error("the node can't go on, and ends", extra={"reason": str(error)})
        membership.cancel()
        await asyncio.gather(membership, return_exceptions=True)
        self.member.clearance.revoke()
        if not self.driver.is_leader:  # its own goodbye would have to be stored here
            await self.member.leave(GOODBYE_SECONDS)
        end_at_once(error)

    @staticmethod
    async def _wait_for_end(tasks: list[asyncio.Task[None]], stopped: asyncio.Task[Any]) -> None:
        running = {*tasks, stopped}
        while not stopped.done():
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task  # raises what ended it

    async def _announce(self) -> None:
        """READY once the log is replayed: everything that was known to be committed at the last stop is applied."""
        while not self.health.is_replayed():
            await asyncio.sleep(0.01)
        log.info("ready", extra={"address": self.config.grpc_address, "http": self.config.http_address})
        systemd.ready(f"Serving {self.config.grpc_address}")
        if not self.health.is_founded():
            await self._await_founders()

    async def _await_founders(self) -> None:
        """Say who is missing, whenever that changes."""
        told: list[str] = []
        while not self.health.is_founded():
            missing = self.health.silent_voters()
            if missing and missing != told:
                told = missing
                log.info("waiting for %s to found the cluster", ", ".join(missing))
                systemd.status(f"Waiting for {', '.join(missing)} to found the cluster")
            await asyncio.sleep(FOUNDERS_POLL)
        systemd.status(f"Serving {self.config.grpc_address}")

    async def _drain(self, tasks: list[asyncio.Task[None]]) -> None:
        """Hand over what this node leads, answer what was begun; then serve nothing any more, hand over the leadership
        of the coordinator, and say goodbye.
        """
        log.info("stopping")
        systemd.stopping("Handing over")
        own = self.identity.node_id
        if any(p.leader == own and len(p.isr) > 1 for p in self.coordinator.state.partitions.values()):
            await self.member.shut_down(SHUTDOWN_SECONDS)
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self.manager.drain()
        except TimeoutError:
            log.warning("not everything that was begun could be answered", extra={"seconds": DRAIN_SECONDS})
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        self.member.clearance.revoke()
        self.sessions.end_all("this node stops")
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._step_down()
        except TimeoutError:
            log.warning("no other voter took over the leadership in time", extra={"seconds": DRAIN_SECONDS})
        await self.member.leave(DRAIN_SECONDS)

    async def _step_down(self) -> None:
        """Ask a LIVE voter to lead, if this node does and there is one."""
        own = self.identity.raft_id
        live = {n.raft_id for n in self.coordinator.state.nodes.values() if n.state == NodeState.NODE_STATE_LIVE}
        others = [voter for voter in self.driver.conf_state.voters if voter != own and voter in live]
        if not self.driver.is_leader or not others:
            return
        match = self.driver.match()
        self.driver.transfer_leadership(max(others, key=lambda raft_id: match.get(raft_id, 0)))
        while self.coordinator.leader() in (None, self.coordinator.node_with(own)):
            await asyncio.sleep(0.01)

    # Signals

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _reload(self) -> None:
        """SIGHUP: take what can be changed while running, and say what changed and what needs a restart."""
        if self._built:  # else it waits for a cluster to join, and is not READY
            systemd.reloading()
        try:
            new = configuration.load(self.path, os.environ)
            renewed = self.credentials is not None and self.credentials.renew()
        except MinkaError as error:
            log.error("configuration not reloaded", extra={"reason": error.message})
        else:
            changed, needs_restart = configuration.diff(self.config, new)
            self.config = configuration.apply_reload(self.config, new)
            logs.setup(self.config.log.level, self.config.log.format, self.config.node.id)
            if renewed:
                changed.append("tls: other certificates in the files")
                self.channels.renew()
                if self._built:
                    self.payloads.renew()
            if self._built:
                self.coordinator.reconfigure(self._controller_settings(self.config))
            log.info("configuration reloaded", extra={"changed": changed, "needs_restart": needs_restart})
        if self._built:
            systemd.ready(f"Serving {self.config.grpc_address}")
