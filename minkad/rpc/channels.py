"""Connections to other nodes: one channel for each address. Each call has this node's identity."""

import asyncio
import ssl

import grpc

from minka.engine.grpc_calls import aio_channel, channel_options
from minkad.process import tasks
from minkad.rpc.credentials import Credentials

CONNECT_TIMEOUT = 2.0  # seconds, at least
UNTIL_UNUSED = 10.0 * 365 * 86_400  # seconds: no limit, in effect, for the calls on an old channel
CLUSTER_METADATA = "minka-cluster"
NODE_METADATA = "minka-node"

Metadata = tuple[tuple[str, str | bytes], ...]


class Channels:
    """Channels by address, kept until closed. `cluster_id` is "" until the node has joined a cluster.

    Without `credentials`, channels are plain. `heartbeat_interval` is in seconds.
    """

    def __init__(
        self,
        cluster_id: str,
        node_id: str,
        credentials: Credentials | None = None,
        heartbeat_interval: float = 0.2,
    ) -> None:
        cluster = ((CLUSTER_METADATA, cluster_id),) if cluster_id else ()
        self.identity = (*cluster, (NODE_METADATA, node_id))
        self._credentials = credentials
        # Calls have their own deadlines, so connections may be more patient: on a busy machine, new connections only
        # make more work. Pings, and not TCP, notice a peer that vanished without a word (power, network).
        patience = max(CONNECT_TIMEOUT, 10 * heartbeat_interval)
        self._options = [
            *channel_options(patience),
            ("grpc.keepalive_time_ms", int(patience * 500)),
            ("grpc.keepalive_timeout_ms", int(patience * 1000)),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        self._channels: dict[str, grpc.aio.Channel] = {}  # by address, with the present credentials
        self._old: dict[grpc.aio.Channel, asyncio.Task[None]] = {}  # each closes after its last call

    def to(self, address: str) -> grpc.aio.Channel:
        """The channel to a node's gRPC address. Pass `identity` as the metadata of each call on it."""
        if address not in self._channels:
            credentials = self._credentials.channel if self._credentials is not None else None
            self._channels[address] = aio_channel(address, credentials, self._options)
        return self._channels[address]

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context for a connection to another node's data port; None without TLS."""
        return self._credentials.to_data_ports if self._credentials is not None else None

    def renew(self) -> None:
        """Use the present credentials for all calls that begin from now on.

        A call under way keeps its connection until it ends. The call can't be moved, and to its caller a closed channel
        would look like a cancelled call.
        """
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            self._old[channel] = tasks.start(self._close_unused(channel), "old channel", tasks.told)

    async def _close_unused(self, channel: grpc.aio.Channel) -> None:
        await channel.close(UNTIL_UNUSED)
        del self._old[channel]

    async def close(self) -> None:
        """Close all channels; calls under way fail."""
        channels, self._channels = [*self._old, *self._channels.values()], {}
        for task in self._old.values():
            task.cancel()
        for channel in channels:
            await channel.close()
