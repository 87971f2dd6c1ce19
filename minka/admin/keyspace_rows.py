"""Keyspaces, as `Admin` returns them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from minka.cluster.key_ranges import is_by_ranges
from minka.engine.messages import Word, read, word
from minka.v1 import admin_pb2, cluster_pb2


class Partitioning(Word):
    """The rule by which a keyspace divides its keys into partitions."""

    HASH = "hash"
    RANGES = "ranges"
    UNKNOWN = "unknown"


class HashFunction(Word):
    """The hash function of a keyspace by hash. With MURMUR3 and MD5, a key's slot is its hash modulo the number of
    partitions.
    """

    MURMUR3 = "murmur3"  # MurmurHash3 x86 32-bit, seed 0, unsigned
    MD5 = "md5"  # the hash is Java's new BigInteger(digest).abs()
    CRC16 = "crc16"  # Redis Cluster's: each partition has a contiguous part of the 16,384 hash slots
    UNKNOWN = "unknown"


class Durability(Word):
    """The moment from which a replica in sync counts as having a write."""

    SYNC = "sync"  # as soon as its disk has the write
    ASYNC = "async"  # as soon as its memory has the write: a power cut at all replicas can lose the write
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Keyspace:
    """A keyspace and its settings."""

    id: int
    name: str
    internal: bool  # the cluster keeps payloads of duties in it; clients can't use it
    partitioning: Partitioning
    hash_function: HashFunction | None  # None: by ranges
    partitions: int  # their number; in a keyspace by ranges it changes
    replicas: int
    min_insync: int  # with fewer replicas in sync, writes are refused
    durability: Durability
    unclean_election: bool  # a replica that isn't in sync may lead if no other can: writes that it lacks are lost
    max_bytes: int | None  # by ranges: a partition with more bytes is split; None: no limit
    max_ops: int | None  # by ranges: a partition with more keys read and written a second is split; None: no limit
    created: datetime


@dataclass(frozen=True, slots=True)
class KeyspaceSummary(Keyspace):
    """A keyspace, its settings, and the sums over its partitions."""

    online: int
    assigned: int
    offline: int
    keys: int  # as the leaders last reported
    bytes: int


def keyspaces_of(status: admin_pb2.GetStatusResponse) -> list[KeyspaceSummary]:
    """The keyspaces in a summary, in the order in which they were created."""
    counts = {one.keyspace_id: one for one in status.summary.keyspaces}
    return [_summary_of(row, counts[row.id]) for row in status.table.keyspaces]


def keyspace_of(row: cluster_pb2.Keyspace, partitions: int) -> Keyspace:
    """The `Keyspace` for this row; the caller gives the number of partitions."""
    return read(Keyspace, row, partitions=partitions, **_own(row))


def _summary_of(row: cluster_pb2.Keyspace, counts: admin_pb2.KeyspaceCounts) -> KeyspaceSummary:
    return read(
        KeyspaceSummary,
        row,
        partitions=counts.partitions,
        online=counts.online,
        assigned=counts.assigned,
        offline=counts.offline,
        keys=counts.keys,
        bytes=counts.bytes,
        **_own(row),
    )


def _own(row: cluster_pb2.Keyspace) -> dict[str, Any]:
    """The fields of a `Keyspace` whose values can't be copied from the row as they are."""
    by_ranges = is_by_ranges(row)
    durability = row.durability or cluster_pb2.Durability.DURABILITY_SYNC
    return {
        "internal": row.name.startswith("_"),
        "partitioning": Partitioning.RANGES if by_ranges else Partitioning.HASH,
        "hash_function": None if by_ranges else HashFunction(word(cluster_pb2.HashFunction.DESCRIPTOR, row.hash)),
        "durability": Durability(word(cluster_pb2.Durability.DESCRIPTOR, durability)),
    }
