"""Operations and the obstacles that hold them up, as `Admin` returns them."""

from dataclasses import dataclass
from datetime import datetime

from minka.engine.messages import Word, read
from minka.v1 import cluster_pb2


class OperationState(Word):
    """The state of an operation."""

    QUEUED = "queued"  # it waits for earlier operations that touch the same partitions or duties
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def has_ended(self) -> bool:
        """True if the operation has ended, so that it no longer changes."""
        return self in (OperationState.SUCCEEDED, OperationState.FAILED, OperationState.CANCELLED)


class OperationKind(Word):
    """The kind of change that an operation makes."""

    REASSIGN = "reassign"  # replicas move as a plan says
    ELECT_LEADERS = "elect_leaders"  # the preferred leaders become the leaders
    DRAIN = "drain"  # a node hands over all that it leads, and with `decommission` also all its data
    SPLIT = "split"
    MERGE = "merge"
    REBALANCE = "rebalance"  # duties of a pallet move between shards
    UNKNOWN = "unknown"


class MigrationState(Word):
    """The state of one move of an operation."""

    PENDING = "pending"
    COPYING = "copying"  # the source sends its data, and the target follows its log
    HANDED_OVER = "handed_over"  # the target leads; the source still has to delete its copy
    COMPLETED = "completed"
    CANCELLED = "cancelled"  # the partition stayed where it was
    CANCELLING = "cancelling"  # a new replica leads already, and hands over to an old one
    PREPARING = "preparing"  # the target is preparing for the duty
    RELEASING = "releasing"  # the source is releasing the duty
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ReassignOperation:
    """The details of an operation that moves replicas as a plan says."""

    plan_digest: str | None  # None: the operation has no plan


@dataclass(frozen=True, slots=True)
class ElectLeadersOperation:
    """The details of an operation that lets preferred leaders lead their partitions."""

    partitions: tuple[int, ...]  # ids of the partitions whose preferred leaders are elected


@dataclass(frozen=True, slots=True)
class DrainOperation:
    """The details of a drain: a node hands over all that it leads and, if it is decommissioned, also all its data."""

    node: str
    decommission: bool
    plan_digest: str | None  # the digest of the plan that moves the node's replicas; None: there is nothing to move


@dataclass(frozen=True, slots=True)
class SplitOperation:
    """The details of an operation that splits partitions of a keyspace by ranges."""

    keyspace_id: int
    keys: tuple[bytes, ...]  # keys at which the operation still has to make new partitions
    partitions: tuple[int, ...]  # ids of the partitions that it has made


@dataclass(frozen=True, slots=True)
class MergeOperation:
    """The details of an operation that merges neighbouring partitions of a keyspace by ranges."""

    keyspace_id: int
    keys: tuple[bytes, ...]  # start keys of partitions that still have to be merged into the partition before
    merged: int  # partitions that are gone already


@dataclass(frozen=True, slots=True)
class RebalanceOperation:
    """The details of an operation that moves duties of a pallet between shards."""

    pallet: str
    plan_digest: str | None  # None: no plan; the active controller balances automatically


@dataclass(frozen=True, slots=True)
class Operation:
    """A change that takes time, and goes on without the client that asked for it. The field that is named like the kind
    has the details: if `operation.kind` is "drain", `operation.drain.node` is the drained node.
    """

    id: int
    kind: OperationKind
    state: OperationState
    requested_by: str
    automatic: bool  # the active controller began it, not a person
    reason: str
    created: datetime
    finished: datetime | None
    outcome: str
    migration_count: int
    paused: bool
    cancelled: bool  # somebody has cancelled it; migrations that can't go back are still completed
    rate_limit: int  # bytes a second that a node may send for it; 0: no limit
    reassign: ReassignOperation | None  # this field and those below: None if the operation is of another kind
    elect_leaders: ElectLeadersOperation | None
    drain: DrainOperation | None
    split: SplitOperation | None
    merge: MergeOperation | None
    rebalance: RebalanceOperation | None


@dataclass(frozen=True, slots=True)
class Migration:
    """One move of an operation: a partition's replicas change, or a duty goes from shard to shard."""

    operation_id: int
    index: int  # its number, from 0, among the partition's migrations in this operation
    partition_id: int | None  # None: a duty moves
    duty: int | None  # the duty's number
    source: str | None  # None: it isn't the move of one replica (see `original_replicas`), or no shard had the duty
    target: str | None  # None: it isn't the move of one replica (see `target_replicas`)
    original_replicas: tuple[str, ...]  # the replicas before the migration; empty until it starts
    target_replicas: tuple[str, ...]  # the replicas after it; empty: the target takes the source's place
    left_behind: tuple[str, ...]  # nodes that are down, and delete their copies once they are back
    state: MigrationState
    reason: str
    outcome: str  # why it was cancelled, or which copies it left behind
    started: datetime | None
    handed_over: datetime | None  # from then on the new replicas have the partition; None for a duty
    finished: datetime | None


@dataclass(frozen=True, slots=True)
class Blocker:
    """An obstacle to an operation or to another change, and its remedy: a command, if one helps."""

    operation_id: int | None  # None: it blocks another change, not an operation
    partition_id: int | None
    duty: int | None  # the duty's number
    partition: str | None  # "flights/7", or a duty as "feeds/bbc"; None: it isn't about a single partition or duty
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Election:
    """The result of `Admin.elect_leaders`."""

    operation: Operation | None  # None: each preferred leader leads already, or can't lead now
    skipped: tuple[Blocker, ...]  # partitions whose preferred leader can't lead now


def operation_of(row: cluster_pb2.Operation) -> Operation:
    """The operation in the message."""
    return read(Operation, row, kind=OperationKind(row.WhichOneof("kind") or "unknown"))
