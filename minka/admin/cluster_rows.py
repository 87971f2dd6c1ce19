"""Nodes, keyspaces, partitions and operations as the cluster has them: what `Admin` returns. All times are in UTC,
sizes in bytes.
"""

from dataclasses import dataclass
from datetime import datetime

from minka.engine.messages import Word


class NodeState(Word):
    """What the active controller thinks of a node."""

    JOINING = "joining"
    LIVE = "live"
    QUARANTINED = "quarantined"  # it is up, and gets nothing new before it has been well for a while
    FAILED = "failed"
    DRAINING = "draining"  # it is up, and hands over what it leads
    LEFT = "left"  # it was stopped gracefully
    UNKNOWN = "unknown"


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


class PartitionState(Word):
    """A partition's state (Kafka's controller has the same)."""

    NEW = "new"  # it has replicas, and never had a leader
    ASSIGNED = "assigned"  # its leader has yet to confirm
    ONLINE = "online"
    OFFLINE = "offline"  # its leader is gone, and no replica can take its place
    UNKNOWN = "unknown"


class OperationState(Word):
    """How far an operation is."""

    QUEUED = "queued"  # it begins after earlier operations that touch the same
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def has_ended(self) -> bool:
        """True if nothing changes any more."""
        return self in (OperationState.SUCCEEDED, OperationState.FAILED, OperationState.CANCELLED)


class OperationKind(Word):
    """The change that an operation makes."""

    REASSIGN = "reassign"  # replicas move as a plan says
    ELECT_LEADERS = "elect_leaders"  # preferred leaders lead
    DRAIN = "drain"  # a node leads nothing, and has nothing if it is decommissioned
    SPLIT = "split"
    MERGE = "merge"
    REBALANCE = "rebalance"  # duties of a pallet move between shards
    UNKNOWN = "unknown"


class MigrationState(Word):
    """How far one move of an operation is."""

    PENDING = "pending"
    COPYING = "copying"  # the source sends its data, and the target follows its log
    HANDED_OVER = "handed_over"  # the target leads; the source has yet to delete its copy
    COMPLETED = "completed"
    CANCELLED = "cancelled"  # the partition stayed where it was
    CANCELLING = "cancelling"  # a new replica leads already, and hands over to an old one
    PREPARING = "preparing"  # the target is told to prepare for the duty
    RELEASING = "releasing"  # the source is told to release the duty
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Node:
    """A node, and what it has."""

    id: str
    address: str  # host:port of its gRPC port
    data_address: str
    http_address: str
    zone: str
    weight: int  # its share of replicas beside other nodes'
    capacity_bytes: int | None
    version: str  # of Minka
    state: NodeState
    state_since: datetime
    state_reason: str
    is_voter: bool  # in the coordinator's Raft group
    is_controller: bool
    replicas: int
    leads: int
    bytes: int
    heartbeat_age_ms: int | None  # None: not heard by this active controller, or there is none


@dataclass(frozen=True, slots=True)
class Keyspace:
    """A keyspace, and what its partitions add up to."""

    id: int
    name: str
    partitioning: Partitioning
    hash_function: HashFunction | None  # None: by ranges
    replicas: int
    min_insync: int  # with fewer replicas in sync, writes are refused
    durability: Durability
    unclean_election: bool  # a replica that isn't in sync may lead if no other is alive: that loses writes
    max_bytes: int | None  # by ranges: a partition with more is split; None: no limit
    max_ops: int | None  # by ranges: a partition with more keys read and written a second is split; None: no limit
    created: datetime
    partitions: int
    online: int
    offline: int
    keys: int  # as the leaders last reported
    bytes: int


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: which nodes have it, and how far they are."""

    id: int  # unique in the cluster, in all keyspaces
    keyspace: str
    name: str  # "flights/7": by hash 7 is its slot, by ranges only a number; it isn't the id
    start_key: bytes  # by ranges: its keys begin here; b"": unbounded, as in a keyspace by hash
    end_key: bytes  # by ranges: its keys end before
    state: PartitionState
    leader: str  # "": none
    replicas: tuple[str, ...]  # the first is the preferred leader
    isr: tuple[str, ...]  # the replicas in sync
    adding_replicas: tuple[str, ...]
    removing_replicas: tuple[str, ...]
    leader_epoch: int
    partition_epoch: int
    generation: int
    keys: int | None  # as its leader last reported; None: not known
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Operation:
    """A change that takes time, and goes on without the client that asked for it."""

    id: int
    kind: OperationKind
    state: OperationState
    requested_by: str
    automatic: bool  # the active controller has begun it automatically
    reason: str
    created: datetime
    finished: datetime | None
    outcome: str
    migration_count: int
    paused: bool
    cancelled: bool  # it is to end; migrations that can't go back are completed
    rate_limit: int  # bytes a second that a node may send for it; 0: no limit
    node: str  # the node that a drain is of; "": of another kind
    decommission: bool  # the drain leaves nothing on the node


@dataclass(frozen=True, slots=True)
class Migration:
    """One move of an operation: a replica from node to node, or a duty from shard to shard."""

    operation_id: int
    index: int  # its place among the partition's migrations in the operation, from 0
    partition_id: int | None  # None: a duty moves
    duty: int | None  # the duty's number
    source: str
    target: str
    state: MigrationState
    reason: str
    outcome: str
    started: datetime | None
    finished: datetime | None


@dataclass(frozen=True, slots=True)
class Blocker:
    """A thing in the way, and the remedy, a command if there is one."""

    partition: str  # "flights/7"; "": the whole operation
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """What would happen if a node stopped now."""

    state: NodeState
    leaders: int  # partitions that it leads
    replicas: int  # copies that it has, or has yet to delete
    safe_to_stop: bool
    blockers: tuple[Blocker, ...]  # the first few
    blocker_count: int


@dataclass(frozen=True, slots=True)
class Election:
    """An election of preferred leaders that was asked for."""

    operation: Operation | None  # None: all of them lead already, or can't
    skipped: tuple[Blocker, ...]  # partitions whose preferred leader can't lead now
