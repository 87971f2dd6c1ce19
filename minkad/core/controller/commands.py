"""What the controller can be asked to decide."""

from collections.abc import Sequence
from dataclasses import dataclass

from minka.v1.admin_pb2 import Plan
from minka.v1.cluster_pb2 import Cluster, HashFunction, Node
from minka.v1.coordinator_pb2 import ReplicaResult


@dataclass(frozen=True, slots=True)
class CreateCluster:
    """The first active controller of a new cluster writes down what its configuration says."""

    cluster: Cluster
    voters: Sequence[Node]


@dataclass(frozen=True, slots=True)
class Register:
    """A process makes itself known. `holder_alive`: heartbeats of this node id's present process are fresh."""

    node: Node
    holder_alive: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """A process stops in order."""

    node_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class FailNode:
    """The failure detector has not heard from a node for too long."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """A person wants a node forgotten."""

    node_id: str


@dataclass(frozen=True, slots=True)
class CreateKeyspace:
    """A person wants a new keyspace."""

    name: str
    partition_count: int
    hash: HashFunction.ValueType
    replicas: int


@dataclass(frozen=True, slots=True)
class ReportReplicas:
    """A node's answer to the rows it was sent."""

    node_id: str
    results: Sequence[ReplicaResult]


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """A person wants exactly this plan carried out."""

    plan: Plan
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """The source of a migration has fenced its writes, and the target has them all."""

    node_id: str
    partition_id: int
    partition_epoch: int
    target: str


@dataclass(frozen=True, slots=True)
class CancelMigration:
    """A migration can't go on; before the hand-over the partition stays where it was."""

    operation_id: int
    partition_id: int
    reason: str


Command = (
    CreateCluster
    | Register
    | Leave
    | FailNode
    | RemoveNode
    | CreateKeyspace
    | ReportReplicas
    | ApplyPlan
    | HandOver
    | CancelMigration
)
