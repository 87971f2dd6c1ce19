"""Plans: moves that can be read before they are applied."""

from dataclasses import dataclass, field, fields
from datetime import datetime

from minka.engine.arguments import invalid
from minka.engine.messages import read
from minka.errors import Code, MinkaError
from minka.v1 import admin_pb2


@dataclass(frozen=True, slots=True)
class Move:
    """A partition's replicas change, or a duty goes from shard to shard."""

    partition: str  # "flights/7", or a duty as "feeds/bbc"
    source: str
    target: str
    bytes: int
    weight: int  # the duty's
    reason: str
    replicas: tuple[str, ...]  # before
    target_replicas: tuple[str, ...]  # after


@dataclass(frozen=True, slots=True)
class NodeBalance:
    """What a node has before a plan and after it."""

    node: str
    partitions_before: int
    partitions_after: int
    bytes_before: int
    bytes_after: int
    leaders_before: int  # preferred leaders
    leaders_after: int


@dataclass(frozen=True, slots=True)
class ShardBalance:
    """What a shard has before a plan and after it."""

    shard: str
    duties_before: int
    duties_after: int
    weight_before: int
    weight_after: int
    capacity: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The moves that a change would make. Nothing is changed before `Admin.apply`, which refuses a plan that was
    edited, or whose partitions have changed since it was made.
    """

    digest: str  # SHA-256
    created: datetime
    moves: tuple[Move, ...]
    minimum_moves: int  # no plan with fewer moves leaves the nodes as even
    nodes: tuple[NodeBalance, ...]
    shards: tuple[ShardBalance, ...]  # of a plan for duties
    pallet: str  # the pallet whose duties are moved; "": replicas are
    notes: tuple[str, ...]  # what could not be evened out, and why
    reason: str
    rate_limit: int  # bytes a second that each node may ship; 0: no limit
    queued: bool  # it begins after operations that touch the same
    message: admin_pb2.Plan = field(repr=False, compare=False)  # as it is sent


def plan_of(message: admin_pb2.Plan) -> Plan:
    """The plan in the message."""
    return read(Plan, message, message=message)


def message_of(plan: Plan) -> admin_pb2.Plan:
    """The message that is sent for the plan. Raises DAMAGED_PLAN if it says otherwise than the plan's fields, and
    INVALID_ARGUMENT for anything but a Plan.
    """
    if not isinstance(plan, Plan):
        raise invalid(f"the plan is {type(plan).__name__}, not a minka.admin.Plan")
    made = plan_of(plan.message)
    edited = [one.name for one in fields(Plan) if one.compare and getattr(plan, one.name) != getattr(made, one.name)]
    if edited:
        text = f"the plan was edited since it was made: {', '.join(edited)} (apply takes reason and rate_limit)"
        raise MinkaError(Code.DAMAGED_PLAN, text)
    return plan.message
