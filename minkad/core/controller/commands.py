"""What the controller can be asked to decide."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from minka.v1.cluster_pb2 import Cluster, Durability, HashFunction, Node
from minka.v1.coordinator_pb2 import DiskSpace, IsrChange, ReplicaResult
from minka.v1.load_api_pb2 import FinishedPart
from minka.v1.loads_pb2 import LoadFile
from minkad.core.controller.duties.commands import (
    ChangeDuties,
    ChangePallets,
    FailShards,
    LeaveShard,
    NoteFlap,
    RegisterShard,
    ReportShards,
)
from minkad.core.controller.operation_kind import Begins
from minkad.core.state import Placed


@dataclass(frozen=True, slots=True)
class CreateCluster:
    """The first active controller of a new cluster writes down what its configuration says."""

    cluster: Cluster
    voters: Sequence[Node]


@dataclass(frozen=True, slots=True)
class Register:
    """A process makes itself known. `holder_alive`: heartbeats of this node id's present process are fresh.
    `log_unchecked`: it is a member of the Raft group, and its log may yet turn out to be an older copy.
    """

    node: Node
    holder_alive: bool
    log_unchecked: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """A process stops gracefully."""

    node_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class FailNodes:
    """The failure detector has not heard from these nodes for too long. `reasons`: by node."""

    reasons: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """A person wants a node forgotten."""

    node_id: str


@dataclass(frozen=True, slots=True)
class CreateKeyspace:
    """A person wants a new keyspace. 0 replicas and 0 in sync: what the size of the cluster suggests.

    `split_points`: it is partitioned by ranges that begin there, and `partition_count` and `hash` are not used.
    """

    name: str
    partition_count: int
    hash: HashFunction.ValueType
    replicas: int = 0
    min_insync: int = 0
    durability: Durability.ValueType = Durability.DURABILITY_SYNC
    unclean_election: bool = False
    split_points: Sequence[bytes] | None = None
    max_bytes: int = 0  # of a partition by ranges; 0: no limit
    max_ops: int = 0  # a second; the same
    max_replicas_per_node: int = 0  # of all keyspaces; 0: no limit
    low_disks: Collection[str] = ()  # nodes that are to have no replica


@dataclass(frozen=True, slots=True)
class ReportReplicas:
    """A node's answer to the rows it was sent."""

    node_id: str
    results: Sequence[ReplicaResult]


@dataclass(frozen=True, slots=True)
class ControllerFailover:
    """A new active controller takes up what its predecessor left."""


@dataclass(frozen=True, slots=True)
class AlterIsr:
    """The leader of partitions changes their in-sync sets."""

    node_id: str
    changes: Sequence[IsrChange]


@dataclass(frozen=True, slots=True)
class BeginQueued:
    """An operation may have ended for which others wait."""

    sizes: Mapping[int, int]
    disks: Mapping[str, DiskSpace]


@dataclass(frozen=True, slots=True)
class UndrainNode:
    """A person wants a node to stay after all."""

    node_id: str


@dataclass(frozen=True, slots=True)
class ControlledShutdown:
    """A process is about to stop."""

    node_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class PauseOperation:
    """A person wants no further migration of an operation to start, or (`paused` false) wants it to go on."""

    operation_id: int
    paused: bool


@dataclass(frozen=True, slots=True)
class LimitOperation:
    """A person wants an operation to ship no more than this many bytes a second from any node; 0: no limit."""

    operation_id: int
    rate_limit: int


@dataclass(frozen=True, slots=True)
class CancelOperation:
    """A person wants an operation undone as far as it isn't done."""

    operation_id: int
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """The leader has fenced its writes, and the target has them all."""

    node_id: str
    partition_id: int
    partition_epoch: int
    target: str


@dataclass(frozen=True, slots=True)
class CancelMigration:
    """The thing's migration can't go on; unless it is nearly done, the thing stays where it was."""

    operation_id: int
    thing: Placed
    reason: str


@dataclass(frozen=True, slots=True)
class ProposeSplit:
    """The leader of a partition finds it too large, or too busy."""

    node_id: str
    partition_id: int
    generation: int
    key: bytes


@dataclass(frozen=True, slots=True)
class FinishMerge:
    """The leader of two partitions: the first has all that the second has, to which nothing more is written."""

    node_id: str
    partition_id: int
    partition_epoch: int
    merged_id: int
    merged_epoch: int


@dataclass(frozen=True, slots=True)
class FinishSplit:
    """The leader of a new partition: all of its in-sync replicas have what the split gave them."""

    node_id: str
    partition_id: int
    leader_epoch: int
    partition_epoch: int  # of the row that says who is in sync


@dataclass(frozen=True, slots=True)
class BeginLoad:
    """A job wants a new load, or goes on with that of this id."""

    load_id: str
    keyspace: str
    requested_by: str
    job: str = ""
    rate_limit: int = 0


@dataclass(frozen=True, slots=True)
class TouchLoad:
    """A job goes on with its load."""

    load_id: str


@dataclass(frozen=True, slots=True)
class CommitLoad:
    """A job wants just these files to be taken in."""

    load_id: str
    files: Sequence[LoadFile]


@dataclass(frozen=True, slots=True)
class AbortLoad:
    """Somebody wants nothing of a load to be taken in."""

    load_id: str
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class AbortAbandoned:
    """Nobody goes on with loads that were last touched so long ago."""

    after_ms: int


@dataclass(frozen=True, slots=True)
class FinishLoadParts:
    """The leader of partitions has taken in parts of loads."""

    node_id: str
    parts: Sequence[FinishedPart]


Command = (
    CreateCluster
    | Register
    | Leave
    | FailNodes
    | RemoveNode
    | CreateKeyspace
    | ReportReplicas
    | HandOver
    | CancelMigration
    | ControllerFailover
    | AlterIsr
    | UndrainNode
    | ControlledShutdown
    | PauseOperation
    | LimitOperation
    | CancelOperation
    | ProposeSplit
    | FinishSplit
    | FinishMerge
    | BeginQueued
    | BeginLoad
    | TouchLoad
    | CommitLoad
    | AbortLoad
    | AbortAbandoned
    | FinishLoadParts
    | ChangePallets
    | ChangeDuties
    | RegisterShard
    | FailShards
    | NoteFlap
    | LeaveShard
    | ReportShards
    | Begins
)
