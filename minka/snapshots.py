"""Reads whole partitions, each as it was at one version, from the nodes that host them. Synchronous.

A snapshot is taken by the partition's leader, and every replica keeps the same one: when the node dies from which it is
read, the reader goes on at another after the last key that it has.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from random import Random
from types import TracebackType
from typing import Final, Self

import grpc

from minka._grpc import channel_credentials, channel_options, error_from_call
from minka._retry import delay_s
from minka.control import Control
from minka.errors import Code, MinkaError
from minka.ranges import KeyRange
from minka.tls import Tls
from minka.v1.cluster_pb2 import Keyspace, Partition, Partitioning, PartitionTable
from minka.v1.snapshots_pb2 import (
    DigestSnapshotRequest,
    OpenSnapshotRequest,
    PartitionSnapshot,
    ReadSnapshotRequest,
    ReleaseSnapshotRequest,
    RowBatch,
    SnapshotDigest,
)
from minka.v1.snapshots_pb2_grpc import SnapshotsStub

_CONNECT_SECONDS: Final = 2.0
_OPEN_SECONDS: Final = 40.0
_RELEASE_SECONDS: Final = 5.0
_TRIES_A_NODE: Final = 5
_RNG: Final = Random()


class SnapshotClient:
    """For one thread. `timeout` in seconds: for how long a partition may be without a leader that answers."""

    def __init__(self, endpoints: Sequence[str], *, tls: Tls | None = None, timeout: float = 60.0) -> None:
        self._control: Final = Control(endpoints, tls=tls)
        self._credentials: Final = channel_credentials(tls)
        self._timeout: Final = timeout
        self._channels: Final[dict[str, grpc.Channel]] = {}
        self._table = PartitionTable()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._control.close()
        while self._channels:
            self._channels.popitem()[1].close()

    def keyspace(self, name: str) -> Keyspace:
        """By the newest table. Raises UNKNOWN_KEYSPACE, and what Control does."""
        self._table = self._control.table()
        for keyspace in self._table.keyspaces:
            if keyspace.name == name:
                return keyspace
        raise MinkaError(Code.UNKNOWN_KEYSPACE, f"no keyspace is named {name!r}")

    def partitions(self, keyspace: Keyspace) -> list[Partition]:
        """Its rows, in the order of slots or ranges, by the table that was fetched last."""
        rows = [row for row in self._table.partitions if row.keyspace_id == keyspace.id and row.replicas]
        return sorted(rows, key=lambda row: (row.start_key, row.slot))

    def open(
        self, keyspace: Keyspace, partition_id: int, wanted: KeyRange, part_bytes: int = 0
    ) -> Iterator[PartitionSnapshot]:
        """Snapshots that together have these keys of what is, or was, this partition: one, unless it was split since.

        `part_bytes`: where parts of about so many bytes begin is told, too. Raises what a leader refuses, and
        UNREACHABLE and the like when none answered in time.
        """
        start = wanted.start
        while True:
            snapshot = self._open_at(keyspace, partition_id, start, part_bytes)
            yield snapshot
            end = snapshot.end_key
            if keyspace.partitioning != Partitioning.PARTITIONING_RANGES or not end or b"" != wanted.end <= end:
                return
            start = end

    def read(
        self,
        snapshot: PartitionSnapshot,
        wanted: KeyRange,
        *,
        keys_only: bool = False,
        buckets: Sequence[int] = (),
        of_buckets: int = 0,
    ) -> Iterator[RowBatch]:
        """The rows in the range, in the order of their keys. With `buckets`, of those that `digest` counted, hashes of
        pairs in the place of values. Raises SNAPSHOT_GONE and what a node refuses when no node has it any more.
        """
        start, tries, nodes = wanted.start, 0, list(snapshot.nodes)
        while snapshot.snapshot_id:
            request = ReadSnapshotRequest(
                snapshot_id=snapshot.snapshot_id,
                start_key=start,
                end_key=wanted.end,
                keys_only=keys_only,
                wanted_buckets=buckets,
                buckets=of_buckets,
            )
            node = nodes[tries % len(nodes)]
            try:
                for batch in self._stub(node).Read(request):
                    yield batch
                    start = _last_key(batch) + b"\x00"
                    tries = 0
                return
            except (grpc.RpcError, MinkaError) as caught:
                error = self._error(caught, node)
                tries += 1
                if not _may_work_elsewhere(error) or tries >= _TRIES_A_NODE * len(nodes):
                    raise error from caught
                nodes = nodes[1:] + nodes[:1] if tries == 1 else nodes
                self._pause(tries)

    def digest(self, snapshot: PartitionSnapshot, node: str, wanted: KeyRange, buckets: int = 1) -> SnapshotDigest:
        """Of the replica on this node. Raises SNAPSHOT_GONE, and what the node refuses."""
        if not snapshot.snapshot_id:
            return SnapshotDigest()
        request = DigestSnapshotRequest(
            snapshot_id=snapshot.snapshot_id, start_key=wanted.start, end_key=wanted.end, buckets=buckets
        )
        for tries in range(1, _TRIES_A_NODE + 1):
            try:
                return self._stub(node).Digest(request)
            except (grpc.RpcError, MinkaError) as caught:
                error = self._error(caught, node)
                if not _may_work_elsewhere(error) or tries == _TRIES_A_NODE:
                    raise error from caught
                self._pause(tries)
        raise AssertionError("the last try returns or raises")

    def release(self, snapshot: PartitionSnapshot) -> None:
        """Nobody reads it any more. A node that isn't reached gives it up by itself later."""
        for node in snapshot.nodes if snapshot.snapshot_id else ():
            try:
                request = ReleaseSnapshotRequest(snapshot_id=snapshot.snapshot_id)
                self._stub(node).Release(request, timeout=_RELEASE_SECONDS)
            except (grpc.RpcError, MinkaError):
                continue

    def _open_at(self, keyspace: Keyspace, partition_id: int, start: bytes, part_bytes: int) -> PartitionSnapshot:
        until, tries = time.monotonic() + self._timeout, 0
        while True:
            row = self._row(keyspace, partition_id, start)
            request = OpenSnapshotRequest(partition_id=row.id, generation=row.generation, part_bytes=part_bytes)
            try:
                if not row.leader:
                    raise MinkaError(Code.PARTITION_OFFLINE, f"partition {row.id} has no leader")
                return self._stub(row.leader).Open(request, timeout=_OPEN_SECONDS)
            except (grpc.RpcError, MinkaError) as caught:
                error = self._error(caught, row.leader)
                tries += 1
                is_late = time.monotonic() >= until
                if is_late or not (error.code.info.retriable or error.code is Code.DEADLINE_EXCEEDED):
                    raise error from caught
            self._pause(tries)
            self._refresh()

    def _row(self, keyspace: Keyspace, partition_id: int, start: bytes) -> Partition:
        rows = self.partitions(keyspace)
        if keyspace.partitioning == Partitioning.PARTITIONING_RANGES:
            return rows[bisect_right([row.start_key for row in rows], start) - 1]
        for row in rows:
            if row.id == partition_id:
                return row
        raise MinkaError(Code.UNKNOWN_PARTITION, f"keyspace {keyspace.name} has no partition {partition_id}")

    def _refresh(self) -> None:
        try:
            self._table = self._control.table()
        except MinkaError as error:
            if not error.code.info.retriable and error.code is not Code.DEADLINE_EXCEEDED:
                raise

    def _stub(self, node: str) -> SnapshotsStub:
        address = next((one.address for one in self._table.nodes if one.id == node), "")
        if not address:
            raise MinkaError(Code.UNREACHABLE, f"the table has no address of {node or 'a leader'}")
        channel = self._channels.get(address)
        if channel is None:
            options = channel_options(_CONNECT_SECONDS)
            if self._credentials is None:
                channel = grpc.insecure_channel(address, options=options)
            else:
                channel = grpc.secure_channel(address, self._credentials, options=options)
            self._channels[address] = channel
        return SnapshotsStub(channel)

    @staticmethod
    def _error(caught: grpc.RpcError | MinkaError, node: str) -> MinkaError:
        return caught if isinstance(caught, MinkaError) else error_from_call(caught, node, repeatable=True)

    @staticmethod
    def _pause(tries: int) -> None:
        time.sleep(delay_s(tries, _RNG))


def _may_work_elsewhere(error: MinkaError) -> bool:
    return error.code.info.retriable or error.code in (Code.SNAPSHOT_GONE, Code.CORRUPT_DATA, Code.STORAGE_FAILED)


def _last_key(batch: RowBatch) -> bytes:
    begin = int.from_bytes(batch.key_offsets[-8:-4], "little")
    return batch.keys[begin:]
