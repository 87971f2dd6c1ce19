"""Operations as the cluster has them, and what holds them up: what `Admin` returns."""

from dataclasses import dataclass
from datetime import datetime

from minka.engine.messages import Word, read
from minka.v1 import cluster_pb2


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
    plan_digest: str  # of the plan that it carries out; "": none
    node: str  # the node that a drain is of; "": of another kind
    decommission: bool  # the drain leaves nothing on the node
    pallet: str  # the pallet whose duties are moved; "": of another kind
    keyspace_id: int  # the keyspace that a split or a merge is of; 0: of another kind
    keys: tuple[bytes, ...]  # those at which it is yet to split or merge
    partitions: tuple[int, ...]  # ids: those that the split has made, or whose preferred leaders are elected
    merged: int  # partitions that the merge has made go away


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

    operation_id: int  # 0: it isn't in an operation's way
    partition_id: int | None
    duty: int | None  # the duty's number
    partition: str  # "flights/7", or a duty as "feeds/bbc"; "": the whole operation
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Election:
    """An election of preferred leaders that was asked for."""

    operation: Operation | None  # None: all of them lead already, or can't
    skipped: tuple[Blocker, ...]  # partitions whose preferred leader can't lead now


def operation_of(row: cluster_pb2.Operation) -> Operation:
    """The operation in the message."""
    kind = row.WhichOneof("kind")
    own = getattr(row, kind) if kind is not None else None
    return read(
        Operation,
        row,
        kind=OperationKind(kind or "unknown"),
        plan_digest=getattr(own, "plan_digest", ""),
        node=getattr(own, "node", ""),
        decommission=getattr(own, "decommission", False),
        pallet=getattr(own, "pallet", ""),
        keyspace_id=getattr(own, "keyspace_id", 0),
        keys=tuple(getattr(own, "keys", ())),
        partitions=tuple(getattr(own, "partitions", ())),
        merged=getattr(own, "merged", 0),
    )
