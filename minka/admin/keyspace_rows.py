"""Keyspaces as the cluster has them: what `Admin` returns."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from minka.cluster.key_ranges import is_by_ranges
from minka.engine.messages import Word, read, word
from minka.v1 import admin_pb2, cluster_pb2


class Partitioning(Word):
    """How a key finds its partition."""

    HASH = "hash"
    RANGES = "ranges"
    UNKNOWN = "unknown"


class HashFunction(Word):
    """The hash of a keyspace by hash. A key's slot is its hash modulo the number of partitions, except for CRC16."""

    MURMUR3 = "murmur3"  # MurmurHash3 x86 32-bit, seed 0, unsigned
    MD5 = "md5"  # Java's new BigInteger(digest).abs()
    CRC16 = "crc16"  # the hash slot of Redis Cluster; of its 16,384 slots each partition has neighbouring ones
    UNKNOWN = "unknown"


class Durability(Word):
    """When a replica in sync counts as having a write."""

    SYNC = "sync"  # once its disk has it
    ASYNC = "async"  # once its memory has it: a power cut of all replicas can lose it
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Keyspace:
    """A keyspace and its settings."""

    id: int
    name: str
    internal: bool  # the cluster keeps payloads of duties in it; clients can't use it
    partitioning: Partitioning
    hash_function: HashFunction | None  # None: by ranges
    partitions: int  # by ranges their number changes
    replicas: int
    min_insync: int  # with fewer replicas in sync, writes are refused
    durability: Durability
    unclean_election: bool  # a replica that isn't in sync may lead if no other is alive: that loses writes
    max_bytes: int | None  # by ranges: a partition with more is split; None: no limit
    max_ops: int | None  # by ranges: a partition with more keys read and written a second is split; None: no limit
    created: datetime


@dataclass(frozen=True, slots=True)
class KeyspaceSummary(Keyspace):
    """A keyspace, its settings, and what its partitions add up to."""

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
    """The keyspace in the message, which has this number of partitions."""
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
    """The fields that the message has otherwise."""
    by_ranges = is_by_ranges(row)
    durability = row.durability or cluster_pb2.Durability.DURABILITY_SYNC
    return {
        "internal": row.name.startswith("_"),
        "partitioning": Partitioning.RANGES if by_ranges else Partitioning.HASH,
        "hash_function": None if by_ranges else HashFunction(word(cluster_pb2.HashFunction.DESCRIPTOR, row.hash)),
        "durability": Durability(word(cluster_pb2.Durability.DESCRIPTOR, durability)),
    }
