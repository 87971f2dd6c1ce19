"""The types that clients of duties take and return: pallets, duties, shards, and their parts. All times are in UTC;
weights and capacities are in a unit of your choice.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from minka.duties.delegate import Duty
from minka.engine.messages import Word

Consistency = Literal["leader", "quorum", "voters", "all"]
"""The nodes that have a change durably when a call returns. "leader": only the active controller's node; "quorum": a
majority of the coordinator's voters; "voters": every voter; "all": every voter and every learner.
"""


class BalancerKind(Word):
    """The way in which a pallet's duties are spread over the shards that take it (docs/balancers.md)."""

    ROUND_ROBIN = "round_robin"  # the same number of duties on each shard
    SPILL_OVER = "spill_over"  # fills one shard after the other
    CAPACITY_WORKLOAD = "capacity_workload"  # each shard's weight is in proportion to its capacity
    FAIR_WORKLOAD = "fair_workload"  # the same weight on each shard
    UNKNOWN = "unknown"


class FillBy(Word):
    """The limit up to which SPILL_OVER fills a shard."""

    CAPACITY = "capacity"  # the capacity that the shard has stated
    WEIGHT = "weight"  # `fill_limit` is the largest sum of weights
    COUNT = "count"  # `fill_limit` is the largest number of duties
    UNKNOWN = "unknown"


class PreSort(Word):
    """The order in which FAIR_WORKLOAD places duties."""

    WEIGHT = "weight"  # the heaviest first
    DATE = "date"  # the oldest first
    UNKNOWN = "unknown"


class OnFailure(Word):
    """The action for a stationary duty whose shard has failed."""

    REATTACH = "reattach"  # another shard gets it
    LEAVE = "leave"  # no shard gets it before a person pins or releases it
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Balancer:
    """The kind of a pallet's balancer, and its settings."""

    kind: BalancerKind = BalancerKind.CAPACITY_WORKLOAD
    max_difference: int = 0  # ROUND_ROBIN: how many more duties one shard may have than another; 0 means 1
    fill_by: FillBy = FillBy.CAPACITY  # only for SPILL_OVER
    fill_limit: int = 0  # only for SPILL_OVER by weight or by count
    shard_order: tuple[str, ...] = ()  # SPILL_OVER: fills these shards first, in this order, then the others by name
    pre_sort: PreSort = PreSort.WEIGHT  # only for FAIR_WORKLOAD


@dataclass(frozen=True, slots=True)
class Canary:
    """The share of a pallet's duties that should be on shards of one version of your application."""

    version: str  # 1 to 256 printable characters
    percent: int  # 1 to 100; for no canary, leave the pallet's `canary` None


@dataclass(frozen=True, slots=True)
class Pallet:
    """A set of duties of one type, and the settings for placing them. Make a `Pallet` to create or update a pallet; the
    cluster sets `version`, `created` and `changed`.
    """

    id: str  # 1 to 256 printable characters, and no slash
    balancer: Balancer = field(default_factory=Balancer)
    manual: bool = False  # none of its duties is moved automatically, except from shards that leave
    on_failure: OnFailure = OnFailure.REATTACH  # what happens to stationary duties
    warm: bool = False  # before a duty moves, the new shard prepares for it
    moves_per_shard: int = 0  # the most moves to or from one shard at the same time; 0 means 50
    canary: Canary | None = None
    version: int = 0  # it begins at 1, and each change adds 1
    created: datetime | None = None
    changed: datetime | None = None


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """The duties of a pallet on one shard."""

    shard: str
    pallet: str
    duties: int  # `duties` and `weight` don't count synthetic duties
    weight: int
    capacity: int | None  # None: the shard states no capacity


@dataclass(frozen=True, slots=True)
class UnplacedDuty:
    """A duty that no shard has, and the reason."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class HandOverTimes:
    """How long duties were on no shard during the latest planned moves. The time that delegates took isn't included."""

    count: int
    p50_ms: int
    p99_ms: int
    max_ms: int


@dataclass(frozen=True, slots=True)
class PalletSummary:
    """A pallet, and the sums of its duties."""

    pallet: Pallet
    duties: int  # `duties`, `attached` and `weight` count synthetic duties, too
    attached: int  # the number of duties that at least one shard has attached
    weight: int
    unplaced: tuple[UnplacedDuty, ...]  # only the first of `unplaced_count`; neither counts synthetic duties
    unplaced_count: int
    loads: tuple[ShardLoad, ...]
    held_back: str  # why the cluster doesn't balance the pallet automatically now; "": nothing prevents it
    hand_overs: HandOverTimes
    quarantined: int  # the number of duties that are kept from some shards, or from all


class AssignmentState(Word):
    """The state of a duty on a shard."""

    ASSIGNED = "assigned"  # the cluster has given the duty to the shard
    ATTACHED = "attached"  # the shard has reported that it has the duty
    RELEASING = "releasing"  # the shard is releasing the duty
    KEPT = "kept"  # the shard's process is gone; the duty is kept for the next process of the same name
    PREPARING = "preparing"  # the shard gets the duty next, and prepares for it; another shard still has it
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A shard that has a duty, or is about to get it."""

    shard: str
    epoch: int  # the fencing token
    state: AssignmentState
    since: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A shard that doesn't get a duty again, since attaching the duty failed there."""

    shard: str | None  # None: all shards of this version, since attaching failed on several of them
    shard_version: str
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Failures of shards while they were attaching a duty. From two failures on, only one shard at a time tries the
    duty, and it attaches nothing else meanwhile.
    """

    failures: int  # their number since the duty was last attached
    shard: str  # the shard that failed last
    since: datetime  # when that shard failed
    retry: datetime | None  # no shard gets the duty before this time; None: no such time


@dataclass(frozen=True, slots=True)
class DutyRow:
    """A duty, and the cluster's records about it."""

    duty: Duty
    reported_weight: int | None  # the last weight that the shard reported; small changes aren't reported
    payload_bytes: int
    pinned_to: str | None  # the shard to which the duty is pinned, even while another shard has it; None: none
    quarantines: tuple[Quarantine, ...]
    suspicion: Suspicion | None
    deleting: bool  # a client has deleted the duty, which disappears once its shards have released it
    created: datetime
    changed: datetime


@dataclass(frozen=True, slots=True)
class DutyStatus(DutyRow):
    """A duty, the cluster's records about it, and the shards that have it."""

    assignments: tuple[Assignment, ...]
    unplaced: str  # why no shard has the duty; "": a shard has it, or it is synthetic


class ShardState(Word):
    """The state of a process that hosts duties, as the cluster sees it."""

    LIVE = "live"
    QUARANTINED = "quarantined"  # until its score is good again, it gets only duties that no other shard takes
    LEAVING = "leaving"  # it is about to stop, and releases its duties
    AWAY = "away"  # its process is gone, and its duties are kept for it until `away_until`
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """A process that hosts duties, and the numbers of its duties. `assigned`, `attached` and `releasing` count
    synthetic duties, too; `loads` doesn't.
    """

    name: str
    node: str | None  # the node on whose machine it runs; None: not known
    version: str  # of your application
    state: ShardState
    state_reason: str
    state_since: datetime
    score: int  # 0 to 100; with a low score the shard gets only duties that no other shard takes
    heartbeat_age_ms: int
    assigned: int
    attached: int
    releasing: int
    loads: tuple[ShardLoad, ...]
    grace_ms: int  # how long the cluster keeps its duties when its process is gone
    away_until: datetime | None
    registered: datetime  # when this process registered


@dataclass(frozen=True, slots=True)
class DutyMove:
    """A move of a duty from one shard to another."""

    time: datetime
    pallet: str
    id: str
    source: str | None  # None: no shard had it
    target: str | None  # None: no shard has it now
    reason: str


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of a cluster, and the latest moves of duties."""

    shards: tuple[ShardStatus, ...]
    moves: tuple[DutyMove, ...]  # the newest first, at most 100


@dataclass(frozen=True, slots=True)
class ShardVerdict:
    """Why a shard has a duty, or doesn't have it."""

    shard: str
    verdict: str
    possible: bool


@dataclass(frozen=True, slots=True)
class DutyExplanation:
    """Why some shards have a duty and others don't."""

    status: DutyStatus
    summary: str  # one or two sentences
    shards: tuple[ShardVerdict, ...]
    moves: tuple[DutyMove, ...]  # of this duty, the newest first, at most 100


@dataclass(frozen=True, slots=True)
class BalancerComparison:
    """How one kind of balancer would spread a pallet's duties now."""

    kind: BalancerKind
    is_present: bool  # True for the pallet's own balancer
    moves: int
    minimum_moves: int
    weight_skew: float  # the heaviest shard's weight divided by the mean
    count_skew: float
    load_skew: float  # the same for weight divided by capacity; 0 if no shard states a capacity
    unplaced: int
    loads: tuple[ShardLoad, ...]  # after the balancer's moves
