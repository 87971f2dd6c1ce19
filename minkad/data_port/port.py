"""The data port of one node, with all its services."""

import ssl
from collections.abc import Callable, Collection

from minka.wire.data_port import Connection, Purpose
from minkad.data_port.clients import Clients
from minkad.data_port.incoming import Incoming, Serve
from minkad.data_port.listener import Listener
from minkad.data_port.port_watch import Pings
from minkad.data_port.raft import RaftService
from minkad.data_port.replication import ReplicationServices
from minkad.data_port.resp.redis_port import RespPort
from minkad.process.memory import Memory
from minkad.process.telemetry import Telemetry
from minkad.replication.manager import ReplicaManager


class DataPort:
    """The port is bound when this object is created, and serves from `start` to `close`."""

    def __init__(
        self,
        address: str,
        cluster_id: str,
        node_id: str,
        manager: ReplicaManager,
        telemetry: Telemetry,
        memory: Memory,
        tls: Callable[[], ssl.SSLContext] | None,
        resp: RespPort | None = None,
        raft: RaftService | None = None,
    ) -> None:
        """`memory` is the memory for clients. `tls` gives the context for later connections. `resp` serves Redis
        clients, `raft` the coordinators of other nodes; None: this node refuses them. Raises ADDRESS_IN_USE,
        ADDRESS_UNAVAILABLE.
        """
        self._replication = replication = ReplicationServices(manager, telemetry)
        clients = Clients(manager.requests, telemetry, memory)
        services: dict[Purpose, Serve] = {
            Purpose.KV: clients.serve,
            Purpose.APPEND: replication.append,
            Purpose.SHIP: replication.ship,
            Purpose.PING: Pings().serve,
        }
        if raft is not None:
            services[Purpose.RAFT] = raft.serve
        self._incoming = Incoming(cluster_id, node_id, services)
        self._resp = resp
        redis = resp.protocol if resp is not None else None
        self._listener = Listener(address, self._incoming.protocol, redis, tls)

    async def start(self) -> None:
        """Take connections."""
        await self._listener.start()

    @property
    def connections(self) -> Collection[Connection]:
        """The open connections in Minka's own protocol."""
        return self._incoming.open

    def renew(self) -> None:
        """Use the present certificates for all connections from now on."""
        self._listener.renew()

    def close(self) -> None:
        """Take no more connections, and end the existing ones."""
        self._listener.stop()
        if self._resp is not None:
            self._resp.close()
        self._incoming.close()

    async def wait_closed(self) -> None:
        """After `close`: wait until nothing from other nodes is changing this node's data."""
        await self._replication.wait_closed()
