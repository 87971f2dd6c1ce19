"""How this node reaches the others: one channel an address, every call with this node's identity."""

import grpc

from minka._grpc import channel_options

CONNECT_TIMEOUT = 2.0  # seconds
# A peer that vanished without a word (power, network) is noticed by pings, not by TCP's minutes of patience.
KEEPALIVE = [
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.max_pings_without_data", 0),
]
CLUSTER_METADATA = "minka-cluster"
NODE_METADATA = "minka-node"


class Channels:
    """Channels by address, kept until closed. `cluster_id` is "" as long as the node has not joined one."""

    def __init__(self, cluster_id: str, node_id: str) -> None:
        cluster = ((CLUSTER_METADATA, cluster_id),) if cluster_id else ()
        self.identity = (*cluster, (NODE_METADATA, node_id))
        self._channels: dict[str, grpc.aio.Channel] = {}

    def to(self, address: str) -> grpc.aio.Channel:
        """The channel to a node's gRPC address. Pass `identity` as the metadata of each call on it."""
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(
                address, options=[*channel_options(CONNECT_TIMEOUT), *KEEPALIVE]
            )
        return self._channels[address]

    async def close(self) -> None:
        """Close all; calls under way fail."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()
