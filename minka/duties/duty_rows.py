"""Pallets, duties and shards as the cluster has them: the types that the clients of duties take and return. All times
are in UTC, weights and capacities in the unit of your choice.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from minka.duties.delegate import Duty
from minka.engine.messages import Word

Consistency = Literal["leader", "quorum", "voters", "all"]
"""The nodes that have a change durably when a call returns: the node of the active controller alone; a majority of the
coordinator's voters; every voter; every voter and every learner.
"""


class BalancerKind(Word):
    """The way in which a pallet's duties are spread over the shards that take it (docs/balancers.md)."""

    ROUND_ROBIN = "round_robin"  # as many duties on each shard
    SPILL_OVER = "spill_over"  # one shard is filled before the next
    CAPACITY_WORKLOAD = "capacity_workload"  # each shard's weight is its share of the capacity
    FAIR_WORKLOAD = "fair_workload"  # the same weight on each shard
    UNKNOWN = "unknown"


class FillBy(Word):
    """The limit up to which SPILL_OVER fills a shard."""

    CAPACITY = "capacity"  # the weight that the shard has stated
    WEIGHT = "weight"  # `fill_limit` is the largest sum of weights
    COUNT = "count"  # `fill_limit` is the largest number of duties
    UNKNOWN = "unknown"


class PreSort(Word):
    """The order in which FAIR_WORKLOAD places duties."""

    WEIGHT = "weight"  # the heaviest first
    DATE = "date"  # the oldest first
    UNKNOWN = "unknown"


class OnFailure(Word):
    """The fate of a stationary duty whose shard has failed."""

    REATTACH = "reattach"  # another shard gets it
    LEAVE = "leave"  # no shard gets it before a person pins or releases it
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Balancer:
    """The way in which a pallet's duties are spread, with the settings for that."""

    kind: BalancerKind = BalancerKind.CAPACITY_WORKLOAD
    max_difference: int = 0  # ROUND_ROBIN: between the numbers of duties of any two shards; 0: 1
    fill_by: FillBy = FillBy.CAPACITY  # SPILL_OVER
    fill_limit: int = 0  # SPILL_OVER by weight or by count
    shard_order: tuple[str, ...] = ()  # SPILL_OVER: filled in this order, then the others by name
    pre_sort: PreSort = PreSort.WEIGHT  # FAIR_WORKLOAD


@dataclass(frozen=True, slots=True)
class Canary:
    """A share of the duties is on shards of one version of your application."""

    version: str
    percent: int  # 1 to 100


@dataclass(frozen=True, slots=True)
class Pallet:
    """A set of duties of one type, and how they are placed. Make one with its settings to create or update a pallet;
    the cluster sets `version`, `created` and `changed`.
    """

    id: str  # 1 to 256 printable characters, and no slash
    balancer: Balancer = field(default_factory=Balancer)
    manual: bool = False  # none of its duties is moved automatically, except from shards that leave
    on_failure: OnFailure = OnFailure.REATTACH  # of stationary duties
    warm: bool = False  # before a duty is moved, the new shard is told to prepare for it
    moves_per_shard: int = 0  # the most that are under way at once, to or from one shard; 0: 50
    canary: Canary | None = None
    version: int = 0  # 1 when it is created, and one more with each change
    created: datetime | None = None
    changed: datetime | None = None


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """A shard's part of a pallet."""

    shard: str
    pallet: str
    duties: int  # without synthetic ones, as `weight`
    weight: int
    capacity: int | None  # None: it states none


@dataclass(frozen=True, slots=True)
class UnplacedDuty:
    """A duty that no shard has, and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class HandOverTimes:
    """The time that the latest moves took, in milliseconds."""

    count: int
    p50_ms: int
    p99_ms: int
    max_ms: int


@dataclass(frozen=True, slots=True)
class PalletSummary:
    """A pallet, and the sums of its duties."""

    pallet: Pallet
    duties: int  # synthetic ones included, as in `attached` and `weight`
    attached: int  # to at least one shard
    weight: int
    unplaced: tuple[UnplacedDuty, ...]  # the first few, without synthetic ones
    unplaced_count: int
    loads: tuple[ShardLoad, ...]
    held_back: str  # why it isn't balanced automatically now; "" if nothing is in the way
    hand_overs: HandOverTimes
    quarantined: int  # duties that are kept from some shards, or from all


class AssignmentState(Word):
    """The state of a duty on a shard."""

    ASSIGNED = "assigned"  # the shard may have it from now on
    ATTACHED = "attached"  # it has reported that it has it
    RELEASING = "releasing"  # it is told to release it
    KEPT = "kept"  # its process is gone, and the duty is kept for the next process of its name
    PREPARING = "preparing"  # it gets the duty next, and is told to prepare; another shard has it
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A shard that has a duty, or is about to."""

    shard: str
    epoch: int  # the fencing token
    state: AssignmentState
    since: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A shard that a duty is kept from, since attaching it failed there."""

    shard: str | None  # None: all: after failures on several shards of this version, no more of them try
    shard_version: str
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Shards have failed while they were attaching a duty."""

    failures: int  # the number since the duty was attached last
    shard: str  # the last of them
    since: datetime  # when that one failed
    retry: datetime  # no shard is given the duty before


@dataclass(frozen=True, slots=True)
class DutyRow:
    """A duty, and the cluster's records about it."""

    duty: Duty
    reported_weight: int | None  # the delegate's last report; a small change is ignored
    payload_bytes: int
    pinned_to: str | None  # the shard on which a person has placed it, until it is released
    quarantines: tuple[Quarantine, ...]
    suspicion: Suspicion | None
    deleting: bool  # it is removed as soon as its shards have released it
    created: datetime
    changed: datetime


@dataclass(frozen=True, slots=True)
class DutyStatus(DutyRow):
    """A duty, the cluster's records about it, and its place."""

    assignments: tuple[Assignment, ...]
    unplaced: str  # why no shard has it; "" if one has it, and always for a synthetic duty


class ShardState(Word):
    """The state of a process that hosts duties, as the cluster sees it."""

    LIVE = "live"
    QUARANTINED = "quarantined"  # it is up, and gets no duties before its score is good again
    LEAVING = "leaving"  # it is about to stop, and releases its duties
    AWAY = "away"  # its process is gone, and its duties are kept for it until `away_until`
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """A process that hosts duties, and its duties. `assigned`, `attached` and `releasing` count synthetic duties, too;
    `loads` doesn't.
    """

    name: str
    node: str | None  # on whose machine it runs; None: not known
    version: str  # of your application
    state: ShardState
    state_reason: str
    state_since: datetime
    score: int  # 0 to 100; with a low one it gets nothing
    heartbeat_age_ms: int
    assigned: int
    attached: int
    releasing: int
    loads: tuple[ShardLoad, ...]
    grace_ms: int  # for how long its duties are kept when its process is gone
    away_until: datetime | None
    registered: datetime  # when this process registered


@dataclass(frozen=True, slots=True)
class DutyMove:
    """A duty went from one shard to another."""

    time: datetime
    pallet: str
    id: str
    source: str | None  # None: it was nowhere
    target: str | None  # None: it is nowhere
    reason: str


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of a cluster, and which duties moved lately."""

    shards: tuple[ShardStatus, ...]
    moves: tuple[DutyMove, ...]  # the newest first, at most 100


@dataclass(frozen=True, slots=True)
class ShardVerdict:
    """The reason why a shard has a duty, or couldn't or needn't have it."""

    shard: str
    verdict: str
    possible: bool


@dataclass(frozen=True, slots=True)
class DutyExplanation:
    """The reasons why a duty is where it is."""

    status: DutyStatus
    summary: str  # one or two sentences
    shards: tuple[ShardVerdict, ...]
    moves: tuple[DutyMove, ...]  # of this duty, the newest first, at most 100


@dataclass(frozen=True, slots=True)
class BalancerComparison:
    """The result of one kind of balancer for a pallet as it is now."""

    kind: BalancerKind
    is_present: bool  # the pallet's own
    moves: int
    minimum_moves: int
    weight_skew: float  # the heaviest shard's weight divided by the mean one
    count_skew: float
    load_skew: float  # the skew of weight / capacity; 0 if no capacity is stated
    unplaced: int
    loads: tuple[ShardLoad, ...]  # as they would be
