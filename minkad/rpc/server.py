"""The gRPC server of a node: all services, health and reflection."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from minka.engine.grpc_calls import channel_options
from minka.errors import MinkaError
from minka.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    changes_pb2,
    changes_pb2_grpc,
    coordinator_pb2,
    coordinator_pb2_grpc,
    duty_api_pb2,
    duty_api_pb2_grpc,
    history_pb2,
    load_api_pb2,
    load_api_pb2_grpc,
    shards_pb2,
    shards_pb2_grpc,
    snapshots_pb2,
    snapshots_pb2_grpc,
)
from minka.v1.admin_pb2 import DescribeNodeResponse
from minkad.coordinator.client_tables import ClientTables
from minkad.coordinator.coordinator import Coordinator
from minkad.coordinator.load_requests import LoadRequests
from minkad.coordinator.member import Member
from minkad.coordinator.table_counting import TableCounting
from minkad.duties.node.gateway import DutyGateway
from minkad.duties.node.shard_sessions import ShardSessions
from minkad.history.recorder import HistoryRecorder
from minkad.process import tasks
from minkad.process.clients_memory import ClientsMemory
from minkad.process.listening import bind_error, cannot_listen
from minkad.replication.manager import ReplicaManager
from minkad.rpc.change_feed import ChangeService
from minkad.rpc.channels import CONNECT_TIMEOUT
from minkad.rpc.control import (
    AdminService,
    InventoryService,
    LoadService,
    MetadataService,
)
from minkad.rpc.controller_service import ControllerService
from minkad.rpc.credentials import Credentials
from minkad.rpc.duties import DutyService
from minkad.rpc.field_rules import MAX_MESSAGE_BYTES
from minkad.rpc.history import history_handler
from minkad.rpc.interceptor import Interceptor
from minkad.rpc.raft import RaftReceiver
from minkad.rpc.replica_control import ReplicaControl
from minkad.rpc.shards import ShardService
from minkad.rpc.snapshots import SnapshotService
from minkad.rpc.spool import SpoolService
from minkad.storage.identity import Identity

log: Final = logging.getLogger(__name__)

_NAMES: Final = [
    service.full_name
    for file in (
        admin_pb2.DESCRIPTOR,
        changes_pb2.DESCRIPTOR,
        coordinator_pb2.DESCRIPTOR,
        duty_api_pb2.DESCRIPTOR,
        load_api_pb2.DESCRIPTOR,
        history_pb2.DESCRIPTOR,
        shards_pb2.DESCRIPTOR,
        snapshots_pb2.DESCRIPTOR,
    )
    for service in file.services_by_name.values()
]
_OPTIONS: Final = [
    ("grpc.so_reuseport", 0),
    ("grpc.http2.max_ping_strikes", 0),
    *(option for option in channel_options(CONNECT_TIMEOUT) if option[0] != "grpc.max_receive_message_length"),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.bdp_probe", 0),  # an unread stream may send at most 64 KiB ahead
    ("grpc.max_concurrent_streams", 256),  # of one connection; further streams wait at the client
    # To free soon the memory of a client that vanished without a word (power, network).
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]
_LOOK_S: Final = 0.2
_BIND_S: Final = 5.0


class Server:
    """The services, bound to an address."""

    def __init__(
        self,
        address: str,
        identity: Identity,
        coordinator: Coordinator,
        tables: ClientTables,
        controller: ControllerService,
        replica_control: ReplicaControl,
        manager: ReplicaManager,
        member: Member,
        raft: RaftReceiver,
        credentials: Credentials | None,
        memory: ClientsMemory,
        describe: Callable[[Iterable[int], bool], DescribeNodeResponse],
        counting: TableCounting,
        gateway: DutyGateway,
        sessions: ShardSessions,
        spool: SpoolService,
        spool_files: grpc.GenericRpcHandler,
        history: HistoryRecorder,
    ) -> None:
        """Without `credentials`, connections are plain. Raises ADDRESS_IN_USE, or ADDRESS_UNAVAILABLE if it can't
        listen on the address for another reason.
        """
        self._address = address
        self._credentials = credentials
        self._interceptor = Interceptor(identity.cluster_id, memory.calls, memory.feeds)
        self._health = health.aio.HealthServicer()
        self._metadata = MetadataService(tables)
        self._admin = AdminService(coordinator, identity.node_id, member.has_clearance, describe, counting)
        self._inventory = InventoryService(manager.inventory.count_keys, manager.inventory.split_keys)
        self._duties = DutyService(gateway)
        self._shards = ShardService(sessions, memory.streams)
        self._replica_control = replica_control
        self._raft = raft
        self._spool = spool
        self._loads = LoadService(LoadRequests(coordinator))
        self._snapshots = SnapshotService(manager.snapshots)
        self._changes = ChangeService(manager.changes)
        self._handlers = (
            *controller.grpc_handlers(),
            self._snapshots.read_handler(),
            spool_files,
            history_handler(history),
        )
        self._server = self._made()
        self._watcher: asyncio.Task[None] | None = None

    def _made(self) -> grpc.aio.Server:
        server = grpc.aio.server(interceptors=[self._interceptor], options=_OPTIONS)
        server.add_generic_rpc_handlers(self._handlers)
        services: Any = _GenericHandlers(server)
        admin_pb2_grpc.add_MetadataServicer_to_server(self._metadata, services)
        admin_pb2_grpc.add_AdminServicer_to_server(self._admin, services)
        admin_pb2_grpc.add_InventoryServicer_to_server(self._inventory, services)
        coordinator_pb2_grpc.add_ReplicaControlServicer_to_server(self._replica_control, services)
        coordinator_pb2_grpc.add_RaftServicer_to_server(self._raft, services)
        duty_api_pb2_grpc.add_DutiesServicer_to_server(self._duties, services)
        shards_pb2_grpc.add_ShardsServicer_to_server(self._shards, services)
        changes_pb2_grpc.add_ChangesServicer_to_server(self._changes, services)
        load_api_pb2_grpc.add_LoadsServicer_to_server(self._loads, services)
        load_api_pb2_grpc.add_SpoolServicer_to_server(self._spool, services)
        snapshots_pb2_grpc.add_SnapshotsServicer_to_server(self._snapshots, services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, services)
        names = reflection.aio.ReflectionServicer((*_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME))
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(names, services)  # type: ignore[no-untyped-call]
        try:
            if self._credentials is None:
                server.add_insecure_port(self._address)
            else:
                server.add_secure_port(self._address, self._credentials.server())
        except RuntimeError as error:
            raise cannot_listen("listen.grpc", self._address, bind_error(self._address)) from error
        return server

    async def start(self) -> None:
        """Serve, and let the health service report it."""
        for name in _NAMES:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()
        self._watcher = tasks.start(self._watch(), "gRPC server")

    async def _watch(self) -> None:
        """Listen again after gRPC has ended its server, as it does when a caller's method name isn't UTF-8."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if _is_running(self._server):
                continue
            log.warning("the gRPC server was ended by a call that it can't read; it begins again")
            old, until = self._server, time.monotonic() + _BIND_S
            ending = tasks.start(old.stop(0), "end of the gRPC server", tasks.told)
            while True:
                try:
                    self._server = self._made()
                    break
                except MinkaError:  # the old server hasn't released the address yet
                    if time.monotonic() > until:
                        raise
                    await asyncio.sleep(_LOOK_S)
            await self._server.start()
            await asyncio.wait([ending])

    async def announce_stop(self) -> None:
        """Tell the health service that this node is about to stop."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace: float) -> None:
        """End the calls under way after `grace` seconds."""
        if self._watcher is not None:
            self._watcher.cancel()
        await self._server.stop(grace)


class _GenericHandlers:
    """Takes a service's handlers for the server, without registering methods.

    For each registered method grpcio (1.85) asks gRPC's core for the next call. When the server ends because of an
    error, grpcio frees the memory for all these calls, and the core writes to it afterwards: the process dies of
    SIGSEGV, or worse.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Do nothing: the generic handler has all methods."""


def _is_running(server: Any) -> bool:
    # Only this flag shows it: `wait_for_termination` also waits for the calls under way, which may never end.
    return bool(server._server.is_running())
