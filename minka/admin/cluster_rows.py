"""Nodes and partitions as the cluster has them: what `Admin` returns. All times are in UTC, sizes in bytes."""

from dataclasses import dataclass
from datetime import datetime

from minka.admin.operation_rows import Blocker
from minka.engine.messages import Word


class NodeState(Word):
    """What the active controller thinks of a node."""

    JOINING = "joining"
    LIVE = "live"
    FAILED = "failed"
    DRAINING = "draining"  # it is up, and hands over what it leads
    LEFT = "left"  # it was stopped gracefully
    UNKNOWN = "unknown"


class PartitionState(Word):
    """A partition's state (Kafka's controller has the same)."""

    NEW = "new"  # it has replicas, and never had a leader
    ASSIGNED = "assigned"  # its leader has yet to confirm
    ONLINE = "online"
    OFFLINE = "offline"  # its leader is gone, and no replica can take its place
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
class Partition:
    """A partition: which nodes have it, and how far they are."""

    id: int  # unique in the cluster, in all keyspaces
    keyspace: str
    name: str  # "flights/7": by hash 7 is its slot, by ranges only a number; it isn't the id
    start_key: bytes  # by ranges: its keys begin here; b"": unbounded, as in a keyspace by hash
    end_key: bytes  # by ranges: its keys end before
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
    """A shard on a node's machine that has duties."""

    shard: str
    duties: int


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """What would happen if a node stopped now."""

    state: NodeState
    leaders: int  # partitions that it leads
    replicas: int  # copies that it has, or has yet to delete
    safe_to_stop: bool
    blockers: tuple[Blocker, ...]  # the first few
    blocker_count: int
    shards: tuple[ShardOnNode, ...]
