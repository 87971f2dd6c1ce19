"""Changes of partitions over gRPC."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from minka.v1.changes_pb2 import ChangeBatch, PositionsRequest, PositionsResponse, ReadChangesRequest
from minka.v1.changes_pb2_grpc import ChangesServicer
from minkad.replication.reading.change_feed import Changes

_Context = grpc.aio.ServicerContext[Any, Any]


class ChangeService(ChangesServicer):
    """See the proto file."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def Positions(self, request: PositionsRequest, context: _Context) -> PositionsResponse:
        """The positions of this node's replicas."""
        return PositionsResponse(positions=self._changes.positions(request.partition_ids))

    def Read(self, request: ReadChangesRequest, context: _Context) -> AsyncIterator[ChangeBatch]:
        """The changes in their original order."""
        id_, after = request.partition_id, request.after_offset
        if request.find_child:
            return self._child_at(id_, after, request.find_child)
        return self._changes.read(id_, after, request.until_offset)

    async def _child_at(self, partition_id: int, after: int, child_id: int) -> AsyncIterator[ChangeBatch]:
        yield ChangeBatch(child_at=await self._changes.child_at(partition_id, after, child_id))
