"""The gRPC server of a node: every service, health and reflection."""

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from minka._grpc import channel_options
from minka.v1 import admin_pb2, admin_pb2_grpc, coordinator_pb2, coordinator_pb2_grpc
from minkad.coordinator.coordinator import Coordinator
from minkad.coordinator.member import Member
from minkad.identity import Identity
from minkad.listening import bind_error, cannot_listen
from minkad.rpc.channels import CONNECT_TIMEOUT
from minkad.rpc.control import (
    AdminService,
    CoordinatorService,
    InventoryService,
    MetadataService,
    ReplicaControlService,
)
from minkad.rpc.credentials import Credentials
from minkad.rpc.interceptor import Interceptor
from minkad.rpc.kv import kv_handler
from minkad.rpc.raft import RaftReceiver, RaftTransport
from minkad.rpc.replication import replication_handler
from minkad.shard.manager import ReplicaManager
from minkad.telemetry import Telemetry

_NAMES = [
    service.full_name
    for file in (admin_pb2.DESCRIPTOR, coordinator_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
]


class Server:
    """The services, bound to an address."""

    def __init__(
        self,
        address: str,
        identity: Identity,
        coordinator: Coordinator,
        manager: ReplicaManager,
        member: Member,
        telemetry: Telemetry,
        transport: RaftTransport,
        credentials: Credentials | None,
    ) -> None:
        """Plain without `credentials`. Raises MinkaError, ADDRESS_IN_USE or INVALID_CONFIG, without the address."""
        options = [("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0), *channel_options(CONNECT_TIMEOUT)]
        self._server = grpc.aio.server(interceptors=[Interceptor(identity.cluster_id)], options=options)
        self._health = health.aio.HealthServicer()
        admin = AdminService(coordinator, identity.node_id, member.has_clearance)
        admin_pb2_grpc.add_MetadataServicer_to_server(MetadataService(coordinator), self._server)
        admin_pb2_grpc.add_AdminServicer_to_server(admin, self._server)
        inventory = InventoryService(manager.inventory.count_keys, manager.inventory.split_keys)
        admin_pb2_grpc.add_InventoryServicer_to_server(inventory, self._server)
        coordinator_pb2_grpc.add_CoordinatorServicer_to_server(CoordinatorService(coordinator), self._server)
        control = ReplicaControlService(lambda: member.node.incarnation, manager.update_replicas)
        coordinator_pb2_grpc.add_ReplicaControlServicer_to_server(control, self._server)
        raft = RaftReceiver(coordinator.driver.receive, transport.heard_from)
        coordinator_pb2_grpc.add_RaftServicer_to_server(raft, self._server)
        self._server.add_generic_rpc_handlers((kv_handler(manager, telemetry), replication_handler(manager, telemetry)))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((*_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        try:
            if credentials is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, credentials.server())
        except RuntimeError as error:
            raise cannot_listen("listen.grpc", address, bind_error(address)) from error

    async def start(self) -> None:
        """Listen."""
        for name in _NAMES:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def announce_stop(self) -> None:
        """Tell who asks for the health that this node is about to stop."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace: float) -> None:
        """End the calls under way after `grace` seconds."""
        await self._server.stop(grace)
