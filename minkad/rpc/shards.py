"""Messages of shards to this node, and of nodes to the active controller about shards."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from minka.v1.shards_pb2 import ShardHeartbeatsRequest, ShardHeartbeatsResponse, ShardMessage
from minka.v1.shards_pb2_grpc import ShardCoordinatorServicer, ShardsServicer
from minkad.duties.control.shard_requests import ShardRequests
from minkad.duties.node.shard_sessions import ShardSessions
from minkad.process.memory import Memory
from minkad.rpc.control import answered_by

_Context = grpc.aio.ServicerContext[Any, Any]


class ShardService(ShardsServicer):
    """Sessions of shards."""

    def __init__(self, sessions: ShardSessions, memory: Memory) -> None:
        """`memory` is for messages on their way to shards."""
        self._sessions = sessions
        self._memory = memory

    async def Session(self, request_iterator: AsyncIterator[ShardMessage], context: _Context) -> None:  # type: ignore[override]  # it writes the answers
        """Serve a session until the shard ends it, or this node does, with a reason."""
        await self._sessions.serve(aiter(request_iterator), context.write, self._memory)


class ShardCoordinatorService(ShardCoordinatorServicer):
    """Requests of nodes to the active controller."""

    def __init__(self, requests: ShardRequests) -> None:
        self._requests = requests

    RegisterShard = answered_by(ShardRequests.register_shard)
    ReportShards = answered_by(ShardRequests.report_shards)
    LeaveShard = answered_by(ShardRequests.run)

    async def ShardHeartbeats(self, request: ShardHeartbeatsRequest, context: _Context) -> ShardHeartbeatsResponse:
        """See ShardRequests."""
        return self._requests.shard_heartbeats(request)
