"""Messages of shards to this node."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from minka.v1.shards_pb2 import ShardMessage
from minka.v1.shards_pb2_grpc import ShardsServicer
from minkad.duties.node.shard_sessions import ShardSessions
from minkad.process.memory import Memory

_Context = grpc.aio.ServicerContext[Any, Any]


class ShardService(ShardsServicer):
    """Sessions of shards."""

    def __init__(self, sessions: ShardSessions, memory: Memory) -> None:
        """`memory` is for messages on their way to shards."""
        self._sessions = sessions
        self._memory = memory

    async def Session(self, request_iterator: AsyncIterator[ShardMessage], context: _Context) -> None:  # type: ignore[override]  # it writes the answers
        """Serve a session until the shard ends it, or until this node ends it with a reason."""
        await self._sessions.serve(aiter(request_iterator), context.write, self._memory)
