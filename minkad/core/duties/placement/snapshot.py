"""The input and the output of a balancer. A pallet's weights and capacities have one unit, which the user chooses."""

from dataclasses import dataclass
from enum import Enum


class FillBy(Enum):
    """Spill over: when a shard counts as full."""

    CAPACITY = "capacity"  # the weight of its duties reaches its stated capacity
    WEIGHT = "weight"  # the weight of its duties reaches `fill_limit`
    COUNT = "count"  # the number of its duties reaches `fill_limit`


class PreSort(Enum):
    """The order in which fair workload places duties."""

    WEIGHT = "weight"  # the heaviest first
    DATE = "date"  # the oldest first


@dataclass(frozen=True, slots=True)
class PlacedDuty:
    """One duty that is not synthetic."""

    number: int  # unique among duties
    name: str  # for people
    weight: int  # 0 and up
    created_ms: int
    shard: str = ""  # where it is now; "": nowhere
    is_fixed: bool = False  # never moved: it is stationary, pinned, kept, a suspect or in a migration
    not_on: frozenset[str] = frozenset()  # the shards where it is quarantined
    only_on: str = ""  # the shard to which it is pinned; "": any


@dataclass(frozen=True, slots=True)
class ShardRoom:
    """One shard as one pallet sees it."""

    name: str
    capacity: int | None  # for this pallet; None: not stated, so unlimited; 0: the shard takes no duties
    accepts: bool = True  # False: no duty goes there, and duties that can move go away
    rank: int = 0  # of shards with equal amounts, the one with the lowest rank gets the duty
    count: int = 0  # the number of its duties; for `place`, which doesn't get the duties
    weight: int = 0  # the weight of its duties; for `place`
    why: str = ""  # why it doesn't accept, as the end of a sentence: "is draining"

    @property
    def is_open(self) -> bool:
        """True if the shard takes duties at all."""
        return self.accepts and self.capacity != 0


@dataclass(frozen=True, slots=True)
class BalancerSettings:
    """A pallet's settings. Each balancer uses its own part of them."""

    max_difference: int = 1  # round robin: of the numbers of duties on any two shards; 1 or more
    fill_by: FillBy = FillBy.CAPACITY  # spill over
    fill_limit: int = 0  # spill over by WEIGHT or COUNT
    shard_order: tuple[str, ...] = ()  # spill over: these are filled first, in this order; then other shards, by name
    pre_sort: PreSort = PreSort.WEIGHT  # fair workload


@dataclass(frozen=True, slots=True)
class DutyMove:
    """One duty goes from `source` to `target`. `source` is "" if the duty is nowhere yet."""

    number: int
    source: str
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A duty for which there is no place. If it runs on `shard`, it stays there: no balancer stops a duty."""

    number: int
    reason: str
    shard: str = ""


@dataclass(frozen=True, slots=True)
class ShardBalance:
    """One shard before and after a plan. `ideal`: a number or a weight, by the balancer's measure."""

    name: str
    capacity: int | None
    is_open: bool
    weight_before: int
    count: int
    weight: int
    ideal: float


@dataclass(frozen=True, slots=True)
class DutyPlan:
    """Moves in the order of the duties' numbers, each duty once; `shards` in the order of their names.

    Every plan that places as many duties, and brings the shards as near to their ideals, has `minimum_moves` or more.
    """

    moves: tuple[DutyMove, ...]
    unplaced: tuple[Unplaced, ...]
    minimum_moves: int
    shards: tuple[ShardBalance, ...]
