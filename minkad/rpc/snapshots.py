"""Snapshots of partitions over gRPC."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import grpc

from minka.v1.snapshots_pb2 import (
    DigestSnapshotRequest,
    OpenSnapshotRequest,
    PartitionSnapshot,
    ReadSnapshotRequest,
    ReleaseSnapshotRequest,
    ReleaseSnapshotResponse,
    SnapshotDigest,
)
from minka.v1.snapshots_pb2_grpc import SnapshotsServicer
from minkad.replication.reading.snapshots import Snapshots
from minkad.storage.scan_process import ScanRequest

_BATCH_BYTES: Final = 512 * 1024
_Context = grpc.aio.ServicerContext[Any, Any]


class SnapshotService(SnapshotsServicer):
    """See the proto file."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    async def Open(self, request: OpenSnapshotRequest, context: _Context) -> PartitionSnapshot:
        """Open a snapshot, at the leader."""
        return await self._snapshots.open(request.partition_id, request.generation, request.part_bytes)

    def Read(self, request: ReadSnapshotRequest, context: _Context) -> AsyncIterator[bytes]:  # type: ignore[override]  # see read_handler
        """The answers of the scan process, unchanged: serialized RowBatches."""
        asked = ScanRequest(
            path="",
            start=request.start_key,
            end=request.end_key,
            kind="hashes" if request.wanted_buckets else "keys" if request.keys_only else "rows",
            batch_bytes=_BATCH_BYTES,
            buckets=request.buckets or 1,
            wanted=list(request.wanted_buckets),
        )
        return self._snapshots.read(request.snapshot_id, asked)

    async def Digest(self, request: DigestSnapshotRequest, context: _Context) -> SnapshotDigest:
        """Compute the digest by reading all rows."""
        asked = ScanRequest("", request.start_key, request.end_key, "digest", buckets=request.buckets or 1)
        found = SnapshotDigest()
        async with aclosing(self._snapshots.read(request.snapshot_id, asked)) as answers:
            async for answer in answers:
                found.MergeFromString(answer)
        return found

    async def Release(self, request: ReleaseSnapshotRequest, context: _Context) -> ReleaseSnapshotResponse:
        """Release the snapshot, if it is here."""
        await self._snapshots.release(request.snapshot_id)
        return ReleaseSnapshotResponse()

    def read_handler(self) -> grpc.GenericRpcHandler:
        """`Read` without a serializer: its answers are RowBatches that a scan process has serialized."""
        handlers: dict[str, Any] = {
            "Read": grpc.unary_stream_rpc_method_handler(self.Read, request_deserializer=ReadSnapshotRequest.FromString)
        }
        return grpc.method_handlers_generic_handler("minka.v1.Snapshots", handlers)
