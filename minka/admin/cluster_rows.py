"""Nodes and partitions, as `Admin` returns them. All times are in UTC, sizes in bytes."""

from dataclasses import dataclass
from datetime import datetime

from minka.admin.operation_rows import Blocker
from minka.engine.messages import Word


class NodeState(Word):
    """A node's state, as the active controller last saw it."""

    JOINING = "joining"
    LIVE = "live"
    FAILED = "failed"
    DRAINING = "draining"  # it is up, and hands over what it leads
    LEFT = "left"  # it was stopped gracefully
    UNKNOWN = "unknown"


class PartitionState(Word):
    """A partition's state in the partition table. Kafka's controller has the same states."""

    NEW = "new"  # it has replicas, but has never had a leader
    ASSIGNED = "assigned"  # its leader hasn't confirmed yet that it leads
    ONLINE = "online"  # its leader has confirmed that it leads
    OFFLINE = "offline"  # its leader is gone, and no replica can take its place
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Node:
    """A node: its addresses, its settings, its state, and the numbers of its replicas and leaderships."""

    id: str
    address: str  # host:port of its gRPC port
    data_address: str
    http_address: str
    zone: str
    weight: int  # its share of replicas, in relation to the other nodes' weights
    capacity_bytes: int | None
    version: str  # the version of Minka that the node runs
    state: NodeState
    state_since: datetime
    state_reason: str
    is_voter: bool  # in the coordinator's Raft group
    is_controller: bool
    replicas: int
    leads: int
    bytes: int
    heartbeat_age_ms: int | None  # None: no controller is active, or the active one hasn't heard the node yet


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: its keys, its replicas, its epochs and its size."""

    id: int  # unique among the partitions of all keyspaces
    keyspace: str
    name: str  # "flights/7": by hash, 7 is the slot, not the `id`; by ranges, 7 is the `id`
    start_key: bytes  # by ranges: its keys begin here; b"": unbounded, as in a keyspace by hash
    end_key: bytes  # by ranges: its keys are smaller than this; b"": unbounded
    state: PartitionState
    leader: str | None
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
class ShardOnNode:
    """A shard that runs on a node's machine and has duties."""

    shard: str
    duties: int


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """The effects of stopping a node now."""

    state: NodeState
    leaders: int  # partitions that it leads
    replicas: int  # its copies of partitions, including copies that it still has to delete
    safe_to_stop: bool
    blockers: tuple[Blocker, ...]  # the first of `blocker_count`
    blocker_count: int
    shards: tuple[ShardOnNode, ...]
