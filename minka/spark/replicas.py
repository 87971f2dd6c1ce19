"""Reads every replica of a partition at the same offset, and finds the keys in which the replicas differ."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from minka.bulk.row_digest import Digest
from minka.bulk.snapshot_reads import SnapshotClient
from minka.cluster.key_ranges import ALL_KEYS, KeyRange, readable
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.snapshots_pb2 import PartitionSnapshot, SnapshotDigest

BUCKETS: Final = 1024


@dataclass(slots=True)
class Replicas:
    """The results of reading every replica of a snapshot's partition, by node. `digests` has the digests of the
    replicas that could be read; the leader's digest comes first, if it is among them. `damaged` and `unread` have the
    reasons why other replicas could not be read.
    """

    snapshot: PartitionSnapshot
    digests: dict[str, Digest] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def first(self) -> Digest:
        """The digest with which the digests of the other replicas are compared."""
        return next(iter(self.digests.values()))

    @property
    def different(self) -> list[str]:
        """The nodes whose replicas have another digest than the first."""
        return [node for node, digest in self.digests.items() if digest != self.first]


def read_replicas(
    client: SnapshotClient, rows: Iterable[Partition], snapshot: PartitionSnapshot, wanted: KeyRange
) -> Replicas:
    """Let the nodes compute the digests of all replicas of the snapshot's partition. `rows` has the partition's row,
    which names the replicas. New replicas that a move is still copying are left out. Raises the error of the leader's
    node if no replica can be read.
    """
    found, failed = Replicas(snapshot), list[MinkaError]()
    for node in snapshot.nodes:
        try:
            found.digests[node] = digest_of(client.digest(snapshot, node, wanted))
        except MinkaError as error:
            failed.append(error)
            reasons = found.damaged if error.code is Code.CORRUPT_DATA else found.unread
            reasons[node] = str(error)
    if not found.digests:
        raise failed[0]
    row = next((row for row in rows if row.id == snapshot.partition_id), Partition())
    for node in row.replicas:
        if node not in snapshot.nodes and node not in row.adding_replicas:
            found.unread[node] = "the replica isn't in sync with its leader"
    # The nodes whose replicas could be read come first, since a reader of the snapshot asks the first node first.
    snapshot.nodes[:] = [*found.digests, *(node for node in snapshot.nodes if node not in found.digests)]
    return found


def digest_of(answer: SnapshotDigest) -> Digest:
    """The digest of all rows, out of the digests of the buckets that a node has returned."""
    return sum((Digest(one.rows, one.bytes, one.xor, one.sum) for one in answer.buckets), Digest())


def keys_between(client: SnapshotClient, snapshot: PartitionSnapshot, node: str) -> list[str]:
    """Find the keys that differ between the first node's replica and another node's. Raises the errors of the nodes."""
    both = [
        {one.bucket: one for one in client.digest(snapshot, each, ALL_KEYS, BUCKETS).buckets}
        for each in (snapshot.nodes[0], node)
    ]
    buckets = [bucket for bucket in range(BUCKETS) if both[0].get(bucket) != both[1].get(bucket)]
    pairs = [dict(hashes_of(client, _only(snapshot, each), ALL_KEYS, buckets)) for each in (snapshot.nodes[0], node)]
    return [readable(key) for key in sorted({key for key, _ in pairs[0].items() ^ pairs[1].items()})]


def hashes_of(
    client: SnapshotClient, snapshot: PartitionSnapshot, wanted: KeyRange, buckets: Sequence[int]
) -> Iterator[tuple[bytes, int]]:
    """Read the keys in these buckets, sorted, each with the hash of its key and value."""
    if not buckets:
        return
    within = KeyRange(snapshot.start_key, snapshot.end_key).clip(wanted)
    for batch in client.read(snapshot, within, buckets=buckets, of_buckets=BUCKETS):
        buffers = [None, pa.py_buffer(batch.key_offsets), pa.py_buffer(batch.keys)]
        keys = pa.Array.from_buffers(pa.binary(), batch.rows, buffers).to_pylist()
        for row, key in enumerate(keys):
            yield key, int.from_bytes(batch.values[8 * row : 8 * row + 8], "big")


def _only(snapshot: PartitionSnapshot, node: str) -> PartitionSnapshot:
    """A copy of the snapshot that names only this node, so that a client reads it there."""
    one = PartitionSnapshot()
    one.CopyFrom(snapshot)
    one.nodes[:] = [node]
    return one
