"""Plans: lists of moves that a person can read before applying them."""

import json
from dataclasses import dataclass, field, fields
from datetime import datetime

from minka.cluster.plan_digest import plan_digest, without_splits
from minka.engine.arguments import invalid
from minka.engine.documents import from_document, to_document
from minka.engine.messages import read
from minka.errors import Code, MinkaError
from minka.v1 import admin_pb2


@dataclass(frozen=True, slots=True)
class Move:
    """A change of a partition's replicas, or a move of a duty from shard to shard."""

    partition: str  # "flights/7", or a duty as "feeds/bbc"
    partition_id: int | None  # None: a duty moves
    duty: int | None  # the duty's number
    source: str | None  # None: it isn't the move of one replica (see `replicas`), or no shard had the duty
    target: str | None  # None: it isn't the move of one replica (see `target_replicas`)
    bytes: int
    weight: int  # of the duty
    reason: str
    replicas: tuple[str, ...]  # before the move
    target_replicas: tuple[str, ...]  # after the move


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """A split of a partition by ranges."""

    partition: str  # "authors/7"
    keyspace: str
    keys: tuple[bytes, ...]  # the keys at which new partitions begin
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeBalance:
    """The partitions, bytes and preferred leaders of a node, before a plan and after it."""

    node: str
    partitions_before: int
    partitions_after: int
    bytes_before: int
    bytes_after: int
    leaders_before: int  # partitions whose preferred leader is this node
    leaders_after: int


@dataclass(frozen=True, slots=True)
class ShardBalance:
    """The duties of a shard and their weight, before a plan and after it."""

    shard: str
    duties_before: int
    duties_after: int
    weight_before: int
    weight_after: int
    capacity: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The moves that a change would make. Only `Admin.apply` makes them. `Admin.apply` refuses a plan that was edited,
    and a plan whose partitions have changed since the plan was made.

    A plan from a load report (`minkactl data load-report`) may also have splits. Make these first, with `Admin.split`,
    then apply the plan that `without_splits` returns.
    """

    digest: str  # SHA-256
    created: datetime
    moves: tuple[Move, ...]
    splits: tuple[PlannedSplit, ...]
    minimum_moves: int  # the fewest moves that make the nodes as even as this plan does
    nodes: tuple[NodeBalance, ...]
    shards: tuple[ShardBalance, ...]  # the shards, in a plan that moves duties; else empty
    pallet: str | None  # the pallet whose duties the plan moves; None: the plan moves replicas
    notes: tuple[str, ...]  # for people: what stays uneven or is left alone, and why; partitions with too few replicas
    reason: str
    rate_limit: int  # bytes a second that each node may ship; 0: no limit
    queued: bool  # its operation waits for operations that touch the same partitions or duties
    message: admin_pb2.Plan = field(repr=False, compare=False)  # the message that `Admin.apply` sends

    def without_splits(self) -> "Plan":
        """This plan without its splits. Raises DAMAGED_PLAN if a field was changed."""
        return plan_of(without_splits(message_of(self)))

    def to_json(self) -> str:
        """The plan as JSON text, to keep it for `from_json` or for `minkactl apply`. Raises DAMAGED_PLAN if a field was
        changed.
        """
        return json.dumps(to_document(message_of(self)), indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Plan":
        """The plan in JSON text from `to_json`, or from `minkactl reassign` with `--out` or `-o json`. Raises
        INVALID_ARGUMENT if it isn't a plan, and DAMAGED_PLAN if it was edited since it was made.
        """
        if not isinstance(text, str | bytes):
            raise invalid(f"not a plan: {type(text).__name__}, not JSON in str or bytes")
        try:
            message = from_document(json.loads(text), admin_pb2.Plan())
        except (ValueError, RecursionError) as error:  # MinkaError(INVALID_ARGUMENT) is a ValueError
            raise invalid(f"not a plan: {error.message if isinstance(error, MinkaError) else error}") from error
        if not message.digest or not message.cluster_id:
            raise invalid("not a plan: it has no digest, or names no cluster")
        if message.digest != (found := plan_digest(message)):
            why = f"the plan was edited: it names the digest {message.digest[:12]}, but its content has {found[:12]}"
            raise MinkaError(Code.DAMAGED_PLAN, why)
        return plan_of(message)


def plan_of(message: admin_pb2.Plan) -> Plan:
    """The plan in the message."""
    return read(Plan, message, message=message)


def message_of(plan: Plan) -> admin_pb2.Plan:
    """The message that is sent for the plan. Raises DAMAGED_PLAN if a field of the plan was changed, and
    INVALID_ARGUMENT for anything but a Plan.
    """
    if not isinstance(plan, Plan):
        raise invalid(f"the plan is {type(plan).__name__}, not a minka.admin.Plan")
    made = plan_of(plan.message)
    edited = [one.name for one in fields(Plan) if one.compare and getattr(plan, one.name) != getattr(made, one.name)]
    if edited:
        hint = "Admin.apply has arguments for another reason and rate_limit"
        text = f"these fields of the plan were edited: {', '.join(edited)} ({hint})"
        raise MinkaError(Code.DAMAGED_PLAN, text)
    return plan.message
