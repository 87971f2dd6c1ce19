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
        """True if the operation won't change any more."""
        return self in (OperationState.SUCCEEDED, OperationState.FAILED, OperationState.CANCELLED)


class OperationKind(Word):
    """The change that an operation makes."""

    REASSIGN = "reassign"  # replicas move as a plan says
    ELECT_LEADERS = "elect_leaders"  # the preferred leaders become the leaders
    DRAIN = "drain"  # a node hands over all that it leads, and when decommissioned all its data
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
class Operation:
    """A change that takes some time. It goes on without the client that asked for it."""

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
    plan_digest: str  # of the plan that it carries out; "": it has no plan
    node: str  # a drain's node; "": it isn't a drain
    decommission: bool  # it is a drain that also moves all data away
    pallet: str  # a rebalance's pallet; "": it isn't a rebalance
    keyspace_id: int  # a split's or a merge's keyspace; 0: it is neither
    keys: tuple[bytes, ...]  # the keys at which it still has to split or merge
    partitions: tuple[int, ...]  # ids: a split's new partitions; an election's partitions
    merged: int  # the number of partitions that a merge has removed


@dataclass(frozen=True, slots=True)
class Migration:
    """One move of an operation: a replica from node to node, or a duty from shard to shard."""

    operation_id: int
    index: int  # it is number `index` (from 0) of the partition's migrations in this operation
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
    """An obstacle to an operation or to another change, and its remedy: a command, if one helps."""

    operation_id: int  # 0: it holds up no operation
    partition_id: int | None
    duty: int | None  # the duty's number
    partition: str  # "flights/7", or a duty as "feeds/bbc"; "": it is about the whole operation
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Election:
    """The result of `Admin.elect_leaders`."""

    operation: Operation | None  # None: each preferred leader leads already, or can't lead now
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
