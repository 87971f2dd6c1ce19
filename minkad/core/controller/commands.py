"""The commands that the controller decides."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from minka.v1.cluster_pb2 import Cluster, Durability, HashFunction, Node
from minka.v1.coordinator_pb2 import DiskSpace, IsrChange
from minka.v1.load_api_pb2 import FinishedPart
from minka.v1.loads_pb2 import LoadFile
from minkad.core.controller.operation_kind import Begins
from minkad.core.duties.control.duty_commands import (
    ChangeDuties,
    ChangePallets,
    FailShards,
    LeaveShard,
    NoteFlap,
    RegisterShard,
    ReportShards,
)
from minkad.core.state import Placed


@dataclass(frozen=True, slots=True)
class CreateCluster:
    """The first active controller of a new cluster records the cluster of its configuration."""

    cluster: Cluster
    voters: Sequence[Node]


@dataclass(frozen=True, slots=True)
class Register:
    """A process registers. `holder_alive`: the process registered with this node id may hold a clearance.
    `log_unchecked`: the node is a member of the Raft group, and its log may still turn out to be an older copy.
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
    """A person wants a node removed from the cluster."""

    node_id: str


@dataclass(frozen=True, slots=True)
class CreateKeyspace:
    """A person wants a new keyspace. `replicas` and `min_insync` 0: a default by the size of the cluster.

    `split_points`: its ranges begin there, and `partition_count` and `hash` are not used.
    """

    name: str
    partition_count: int
    hash: HashFunction.ValueType
    replicas: int = 0
    min_insync: int = 0
    durability: Durability.ValueType = Durability.DURABILITY_SYNC
    unclean_election: bool = False
    split_points: Sequence[bytes] | None = None
    max_bytes: int = 0  # a partition with more is split, in a keyspace by ranges; 0: no limit
    max_ops: int = 0  # the same for operations a second
    max_replicas_per_node: int = 0  # counted over all keyspaces; 0: no limit
    low_disks: Collection[str] = ()  # nodes that get no replica


@dataclass(frozen=True, slots=True)
class ReportReplicas:
    """A node's answers to the rows that it was sent: the partitions that it hosts by their rows at these
    partition_epochs, and the partitions of which it has nothing left.
    """

    node_id: str
    hosted: Collection[tuple[int, int]]
    deleted: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class ControllerFailover:
    """A new active controller goes on with the work of its predecessor."""


@dataclass(frozen=True, slots=True)
class AlterIsr:
    """The leader of partitions changes their in-sync sets."""

    node_id: str
    changes: Sequence[IsrChange]


@dataclass(frozen=True, slots=True)
class ElectUnclean:
    """A person accepts the loss if this node leads a partition that nobody else can lead. `partition_epoch`: of the row
    that the person saw. `damaged`: the nodes that have reported their copies of it as damaged.
    """

    partition_id: int
    partition_epoch: int
    node_id: str
    damaged: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class BeginQueued:
    """An operation for which others wait may have ended."""

    sizes: Mapping[int, int]
    disks: Mapping[str, DiskSpace]


@dataclass(frozen=True, slots=True)
class UndrainNode:
    """A person wants a node to stay after all."""

    node_id: str
    requested_by: str = ""


@dataclass(frozen=True, slots=True)
class ControlledShutdown:
    """A process is about to stop."""

    node_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class PauseOperation:
    """A person wants an operation to begin no further migrations, or (`paused` false) to go on."""

    operation_id: int
    paused: bool


@dataclass(frozen=True, slots=True)
class LimitOperation:
    """A person wants an operation to send at most this many bytes a second from each node; 0: no limit."""

    operation_id: int
    rate_limit: int


@dataclass(frozen=True, slots=True)
class CancelOperation:
    """A person wants an operation to stop, and its unfinished migrations to be undone."""

    operation_id: int
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """The leader's write gate is closed, and the target has all writes."""

    node_id: str
    partition_id: int
    partition_epoch: int
    target: str


@dataclass(frozen=True, slots=True)
class CancelMigration:
    """The migration of a thing can't go on; the thing stays where it was, unless the migration is nearly done."""

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
    """The leader of two partitions says that the first has all data of the second, and writes to the second wait."""

    node_id: str
    partition_id: int
    partition_epoch: int
    merged_id: int
    merged_epoch: int


@dataclass(frozen=True, slots=True)
class FinishSplit:
    """The leader of a split's child says that all of its in-sync replicas have made the child."""

    node_id: str
    partition_id: int
    leader_epoch: int
    partition_epoch: int  # of the row with this in-sync set


@dataclass(frozen=True, slots=True)
class BeginLoad:
    """A job wants a new load, or goes on with the load of this id."""

    load_id: str
    keyspace: str
    requested_by: str
    job: str = ""
    rate_limit: int = 0


@dataclass(frozen=True, slots=True)
class TouchLoad:
    """A job still works on its load."""

    load_id: str


@dataclass(frozen=True, slots=True)
class CommitLoad:
    """A job wants exactly these files to be taken in."""

    load_id: str
    files: Sequence[LoadFile]


@dataclass(frozen=True, slots=True)
class AbortLoad:
    """A job or a person wants a load not to be taken in."""

    load_id: str
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class AbortAbandoned:
    """Loads that nobody has touched for `after_ms` milliseconds are to be aborted."""

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
    | ElectUnclean
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
