"""The parts of a node, and their connections."""

import random
from collections.abc import Mapping

from minka.async_client import OwnKeyspace
from minka.v1.admin_pb2 import GetTableRequest, GetTableResponse
from minka.v1.coordinator_pb2 import UpdateReplicasRequest, UpdateReplicasResponse
from minka.v1.duties_pb2 import Duty
from minkad.config import Config
from minkad.coordinator.client_tables import ClientTables
from minkad.coordinator.controller_calls import ControllerCalls
from minkad.coordinator.controller_handlers import ControllerHandlers
from minkad.coordinator.coordinator import Coordinator
from minkad.coordinator.member import Member
from minkad.coordinator.raft_driver import RaftDriver
from minkad.coordinator.table_counting import TableCounting
from minkad.core.raft import RawNode
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.core.state.display_names import PAYLOADS_KEYSPACE
from minkad.data_port.clients import Clients
from minkad.data_port.own_connection import ThisNode
from minkad.data_port.port_watch import Watch
from minkad.data_port.raft import RaftPorts, RaftTransport
from minkad.data_port.replication import DataLinks
from minkad.duties.node.gateway import DutyGateway
from minkad.duties.node.payloads import PayloadStore
from minkad.duties.node.relay import Relay
from minkad.duties.node.shard_sessions import ShardSessions
from minkad.history.recorder import HistoryRecorder
from minkad.history.store import HistoryStore
from minkad.loads.fetching import Fetching
from minkad.loads.spool import Spool
from minkad.loads.throttle import Throttle
from minkad.loads.uploading import Uploading
from minkad.node import settings
from minkad.node.health import Health
from minkad.node.settings import MIB
from minkad.node.surroundings import NodeTable
from minkad.process.clients_memory import ClientsMemory
from minkad.process.clock import boottime, cluster_clock, unix_ms
from minkad.process.rate_limits import RateLimits
from minkad.process.telemetry import Telemetry
from minkad.replication.manager import ReplicaManager
from minkad.replication.surroundings import LoadSources, Surroundings
from minkad.rpc.channels import Channels
from minkad.rpc.control import GET_TABLE
from minkad.rpc.controller_service import ControllerService
from minkad.rpc.own_requests import answer_here
from minkad.rpc.peers import Peers
from minkad.rpc.raft import RaftCalls, RaftReceiver
from minkad.rpc.replica_control import ReplicaControl
from minkad.rpc.spool import SpoolLinks
from minkad.storage.disk_space import DiskWatch
from minkad.storage.identity import Identity
from minkad.storage.log_database import LogDatabase
from minkad.storage.raft_storage import RaftStorage
from minkad.storage.replica_store import ReplicaStore
from minkad.storage.row_cache import RowCache


class Parts:
    """Built in the order of the layers. Parts that need one of a later layer find it here at run time."""

    def __init__(
        self,
        config: Config,
        own: Identity,
        incarnation: str,
        log_db: LogDatabase,
        raft_storage: RaftStorage,
        disk: DiskWatch,
        channels: Channels,
        telemetry: Telemetry,
    ) -> None:
        self.config = config
        self.identity = own
        self.log_db = log_db
        self.disk = disk
        self.channels = channels
        self.telemetry = telemetry
        self._build_coordinator(raft_storage)
        self._build_spool()
        self._build_replication()
        self._build_history()
        self._build_membership(incarnation)
        self._build_duties()
        self._subscribe()

    def _build_coordinator(self, raft_storage: RaftStorage) -> None:
        config, own, jitter = self.config, self.identity, random.Random()
        snapshot = raft_storage.snapshot()
        hard_state, conf_state = raft_storage.initial_state()
        self.replay_to = hard_state.commit
        self.coordinator = Coordinator(
            Coordinator.decode(snapshot.data),
            settings.bootstrap(config, own.cluster_id),
            settings.controller_settings(config),
            settings.voter_settings(config),
            update_replicas=self._update_replicas,
            now=boottime,
            jitter=jitter,
        )
        self.peers = Peers(self.channels, self.coordinator.address_of)
        calls = RaftCalls(self.channels, config.coordinator.snapshot_mib_per_s * MIB)
        self.transport = RaftTransport(
            RaftPorts(calls.locate, own.cluster_id, own.node_id, self.channels.tls_context).connect,
            calls.send_snapshot,
            config.grpc_address,
            self._raft_address,
            self._configured_addresses,
        )
        self.driver = RaftDriver(
            RawNode(settings.raft_config(config, own.raft_id, raft_storage, snapshot.metadata.index, jitter)),
            raft_storage,
            self.log_db,
            self.transport,
            self.coordinator,
            tick_seconds=config.coordinator.tick_ms / 1000,
            snapshot_entries=config.coordinator.snapshot_entries,
            conf_state=conf_state,
            on_progress=self.coordinator.on_progress,
        )
        self.coordinator.driver = self.transport.driver = self.driver
        self.raft_receiver = RaftReceiver(
            self.driver.receive, self.transport.heard_from, self._is_stranger, config.data_address, own.raft_id
        )
        self.counting = TableCounting(self.coordinator)
        self.controller_service = ControllerService(ControllerHandlers(self.coordinator), own.node_id)
        self.controller = ControllerCalls(
            config.grpc_address,
            self._controller_address,
            self.controller_service.answer_here,
            self.peers,
            settings.member_settings(config).call_timeout,
        )

    def _build_spool(self) -> None:
        self.spool = Spool(self.config.data_dir / "spool", self.disk.check_room)
        self.spool_links = SpoolLinks(self.channels, self.coordinator.address_of)
        self.fetching = Fetching(self.identity.node_id, self.spool, self.spool_links.fetch, self.coordinator)
        throttle = Throttle(boottime, self.telemetry.client_seconds)
        self.uploading = Uploading(self.spool, self.coordinator, RateLimits(boottime), throttle)

    def _build_replication(self) -> None:
        config = self.config
        around = Surroundings(
            self.identity.node_id,
            ReplicaStore(
                config.data_dir,
                config.storage.block_cache_mib * MIB,
                RowCache(config.storage.row_cache_mib * MIB, self.telemetry.row_cache),
            ),
            self.log_db,
            self.disk,
            DataLinks(
                self.coordinator.data_address_of,
                self.identity.cluster_id,
                self.identity.node_id,
                self.telemetry,
                self.channels.tls_context,
            ),
            NodeTable(self.coordinator, lambda: self.member, self.disk),
            self.controller,
            self.telemetry,
            boottime,
            unix_ms,
            cluster_clock.is_checked,
            LoadSources(self.spool, self.fetching, self.coordinator, self.spool_links.pull),
        )
        replication = ReplicationSettings(lag_timeout=config.replication.lag_timeout_ms / 1000)
        self.manager = ReplicaManager(around, replication, settings.storage_settings(config))

    def _build_history(self) -> None:
        config, kept = self.config, self.config.history
        self.history = HistoryRecorder(
            HistoryStore(config.data_dir / "history", kept.retention_h * 3_600_000, kept.max_mib * MIB),
            self.manager.intervals.take,
            self.disk,
            config.node.capacity_bytes,
            kept.interval_s,
            boottime,
            unix_ms,
        )

    def _build_membership(self, incarnation: str) -> None:
        own, membership = self.identity, self.config.membership
        self.watch = Watch(
            own.node_id,
            own.cluster_id,
            self.coordinator,
            self.channels.tls_context,
            membership.heartbeat_interval_ms / 1000,
            membership.failure_timeout_ms / 1000,
            boottime,
        )
        self.member = Member(
            settings.node_row(self.config, self.identity.data_id, incarnation, self.log_db.starts),
            settings.member_settings(self.config),
            self.controller,
            other_addresses=self.other_addresses,
            data_plane=self.manager,
            raft=self.driver,
            now=boottime,
            clock=cluster_clock,
            disk=self.disk,
            log_db=self.log_db,
            unanswered=self.watch.unanswered,
        )
        self.replica_control = ReplicaControl(self.member, self.manager.update_replicas)
        self.health = Health(
            self.coordinator,
            self.member,
            self.manager,
            self.telemetry,
            self.replay_to,
            self.disk,
            self.log_db,
            self.transport,
            self.counting,
            self.watch,
        )

    def _build_duties(self) -> None:
        config = self.config
        self.tables = ClientTables(self.coordinator, self.health.is_replayed)
        self.memory = ClientsMemory(config.clients.memory_mib * MIB, self.telemetry)
        clients = Clients(self.manager.requests, self.telemetry, self.memory.streams)
        own = ThisNode(config.grpc_address, config.data_address, self._table_for_own_client, clients.serve)
        self.payloads = PayloadStore(
            lambda: OwnKeyspace(PAYLOADS_KEYSPACE, [config.grpc_address], config.certificates, own)
        )
        self.gateway = DutyGateway(self.controller, self.coordinator, self.payloads)
        self.relay = Relay(self.controller, settings.member_settings(config).hurry)
        self.sessions = ShardSessions(
            self.relay,
            self.payloads,
            settings.session_settings(config),
            node_id=self.identity.node_id,
            table=self.coordinator,
            raft=self.driver,
            member=self.member,
        )

    def _subscribe(self) -> None:
        """Connect the listeners to changes of the table."""
        self.coordinator.on_shards_changed = self.sessions.changed
        self.coordinator.on_restored = self.sessions.restored
        self.coordinator.on_leader_change = self.member.leader_changed
        self.coordinator.on_nodes_changed = self._nodes_changed
        self.coordinator.on_loads_changed = self.manager.loads_changed

    def _nodes_changed(self) -> None:
        self.manager.nodes_changed()
        self.watch.nodes_changed()
        self.member.nodes_changed(self.coordinator.state.nodes.get(self.member.node.id))

    # Questions between parts

    async def _table_for_own_client(self, request: GetTableRequest) -> GetTableResponse:
        return await answer_here(GET_TABLE, request, self.identity.node_id, self.tables.answer)

    async def _update_replicas(self, node_id: str, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        """Send a node the controller's rows."""
        if node_id == self.identity.node_id:
            return await self.replica_control.update_here(request)
        return await self.peers.update_replicas(node_id, request)

    def duties(self) -> Mapping[int, Duty]:
        """The rows of all duties, by number."""
        return self.coordinator.state.duties.duties

    def is_controller(self) -> bool:
        """True if confirmed: this node's rows are then the newest."""
        return self.coordinator.active is not None and self.member.has_clearance()

    def _is_stranger(self, raft_id: int) -> bool:
        """True if no node is known by this raft id while all is well. A node that hears no leader may not know the next
        one yet.
        """
        leader, members = self.driver.raw.basic_status().leader_id, self.driver.conf_state
        if leader in (0, raft_id) or self.coordinator.node_with(raft_id) is not None:
            return False
        return not any(raft_id in ids for ids in (members.voters, members.learners, members.voters_outgoing))

    def _raft_address(self, raft_id: int) -> str | None:
        node = self.coordinator.node_with(raft_id)
        return node.address if node else None

    def _configured_addresses(self, raft_id: int) -> list[str]:
        """The addresses of the configuration that may be the node's: they may be newer than the table's."""
        cluster, node = self.config.cluster, self.coordinator.node_with(raft_id)
        own = [peer.address for peer in cluster.bootstrap if node is not None and peer.id == node.id]
        return [address for address in (*own, *cluster.join) if address != self.config.grpc_address]

    def _controller_address(self) -> str | None:
        if self.driver.is_leader:
            return self.config.grpc_address  # the table may have an older one, which only registering corrects
        leader = self.coordinator.leader()
        return leader.address if leader else None

    def other_addresses(self) -> list[str]:
        """The addresses of the other nodes, as far as known from this node's table and configuration."""
        cluster = self.config.cluster
        known = [node.address for node in self.coordinator.state.nodes.values()]
        known += [*cluster.join, *(peer.address for peer in cluster.bootstrap)]
        return [address for address in dict.fromkeys(known) if address and address != self.config.grpc_address]
