"""A synchronous client that reads whole partitions, each as it was at one offset of its log.

When a partition's leader takes a snapshot, its other replicas take one at the same offset. If the node that is being
read dies, the reader goes on at another node, after the last key that it has read.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

import grpc

from minka.bulk.node_addresses import Nodes, error_of, may_work_later, pause
from minka.cluster.key_ranges import KeyRange, is_by_ranges
from minka.errors import Code, MinkaError
from minka.tls import Tls
from minka.v1.cluster_pb2 import Keyspace, Partition
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

_OPEN_SECONDS: Final = 40.0
_SHORT_SECONDS: Final = 5.0
_REPLICA_SECONDS: Final = 10.0  # a replica that lags may take its snapshot this much later than the leader
_TRIES_A_NODE: Final = 5


class SnapshotClient(Nodes):
    """Opens, reads and compares snapshots of partitions, for one thread. `endpoints` are addresses host:port of some of
    the nodes. `timeout` is the most seconds that a partition may be without a leader that answers. All errors are
    `MinkaError`. `tls` is for a cluster with TLS; a mistake in its files raises INVALID_CONFIG.
    """

    def __init__(self, endpoints: Sequence[str], *, tls: Tls | None = None, timeout: float = 60.0) -> None:
        super().__init__(endpoints, tls)
        self._timeout: Final = timeout

    def open(
        self, keyspace: Keyspace, partition_id: int, wanted: KeyRange, part_bytes: int = 0
    ) -> Iterator[PartitionSnapshot]:
        """Open snapshots that together have these keys of this partition: one snapshot, or several if the partition was
        split since the table was fetched.

        With `part_bytes`, a snapshot also has the keys at which parts of about `part_bytes` bytes begin. Raises
        UNKNOWN_PARTITION, the refusals of a leader, and PARTITION_OFFLINE or UNREACHABLE if no leader answers in time.
        """
        start = wanted.start
        while True:
            snapshot = self._open_at(keyspace, partition_id, start, part_bytes)
            yield snapshot
            end = snapshot.end_key
            if not is_by_ranges(keyspace) or not end or b"" != wanted.end <= end:
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
        """The rows in the range, in batches, in the order of their keys; with `keys_only` without their values. Each
        row is in one of `of_buckets` buckets, by the hash of its key, as for `digest`. With `buckets`, only the rows of
        these buckets come, each with the hash of its key and value in place of the value. Raises SNAPSHOT_GONE, or the
        refusals of the nodes, if no node still has the snapshot.
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
                error = error_of(caught, node)
                tries += 1
                if not _may_work_elsewhere(error) or tries >= _TRIES_A_NODE * len(nodes):
                    raise error from caught
                nodes = nodes[1:] + nodes[:1] if tries == 1 else nodes
                pause(tries)

    def digest(self, snapshot: PartitionSnapshot, node: str, wanted: KeyRange, buckets: int = 1) -> SnapshotDigest:
        """The digests of the rows in the range, as the replica on this node has them: one for each of `buckets`
        buckets, into which rows are divided by the hashes of their keys. Raises SNAPSHOT_GONE (also if the replica
        hasn't taken the snapshot within ten seconds) and the node's refusals.
        """
        if not snapshot.snapshot_id:
            return SnapshotDigest()
        request = DigestSnapshotRequest(
            snapshot_id=snapshot.snapshot_id, start_key=wanted.start, end_key=wanted.end, buckets=buckets
        )
        until, tries = time.monotonic() + min(self._timeout, _REPLICA_SECONDS), 0
        while True:
            try:
                return self._stub(node).Digest(request)
            except (grpc.RpcError, MinkaError) as caught:
                error = error_of(caught, node)
                may_work = error.code.info.retriable or error.code is Code.SNAPSHOT_GONE
                if not may_work or time.monotonic() >= until:
                    raise error from caught
                tries += 1
                pause(tries)

    def renew(self, snapshot: PartitionSnapshot) -> None:
        """Tell the nodes that the snapshot is still needed, so that they don't drop it as unused. A node that doesn't
        answer may drop it.
        """
        for node in snapshot.nodes if snapshot.snapshot_id else ():
            try:
                self._stub(node).Digest(renewal_of(snapshot), timeout=_SHORT_SECONDS)
            except (grpc.RpcError, MinkaError):
                continue

    def release(self, snapshot: PartitionSnapshot) -> None:
        """Tell the nodes that nobody reads the snapshot any longer. A node that can't be reached drops it later
        automatically.
        """
        for node in (*snapshot.nodes, *snapshot.late_nodes) if snapshot.snapshot_id else ():
            try:
                request = ReleaseSnapshotRequest(snapshot_id=snapshot.snapshot_id)
                self._stub(node).Release(request, timeout=_SHORT_SECONDS)
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
                error = error_of(caught, row.leader)
                tries += 1
                is_late = time.monotonic() >= until
                if is_late or not may_work_later(error):
                    raise error from caught
            pause(tries)
            self.refresh()

    def _row(self, keyspace: Keyspace, partition_id: int, start: bytes) -> Partition:
        rows = self.partitions(keyspace)
        if is_by_ranges(keyspace):
            return rows[bisect_right([row.start_key for row in rows], start) - 1]
        for row in rows:
            if row.id == partition_id:
                return row
        raise MinkaError(Code.UNKNOWN_PARTITION, f"keyspace {keyspace.name} has no partition {partition_id}")

    def _stub(self, node: str) -> SnapshotsStub:
        return SnapshotsStub(self.channel(node))


def renewal_of(snapshot: PartitionSnapshot) -> DigestSnapshotRequest:
    """The request that `renew` sends. It reads a range without keys, which counts as a use of the snapshot."""
    return DigestSnapshotRequest(snapshot_id=snapshot.snapshot_id, start_key=b"\x00", end_key=b"\x00")


def _may_work_elsewhere(error: MinkaError) -> bool:
    return error.code.info.retriable or error.code in (Code.SNAPSHOT_GONE, Code.CORRUPT_DATA, Code.STORAGE_FAILED)


def _last_key(batch: RowBatch) -> bytes:
    begin = int.from_bytes(batch.key_offsets[-8:-4], "little")
    return batch.keys[begin:]
