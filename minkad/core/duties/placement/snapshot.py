"""The input and the output of a balancer. A pallet's weights and capacities are in one unit, the user's own."""

from dataclasses import dataclass
from enum import Enum


class FillBy(Enum):
    """The measure by which a shard is full under spill over."""

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
    is_fixed: bool = False  # stationary, pinned, kept or under way: it counts where it is, and is never moved
    not_on: frozenset[str] = frozenset()  # the shards where it is quarantined
    only_on: str = ""  # the shard it is pinned to


@dataclass(frozen=True, slots=True)
class ShardRoom:
    """One shard as one pallet sees it."""

    name: str
    capacity: int | None  # for this pallet; None: not stated, so unlimited; 0: it takes none
    accepts: bool = True  # False: nothing new goes there, and what can move goes away
    rank: int = 0  # among equals the lower rank is preferred
    count: int = 0  # the number of its duties; for `place`, which doesn't see them
    weight: int = 0  # the weight of its duties; for `place`
    why: str = ""  # why it doesn't accept, as the end of a sentence: "is draining"

    @property
    def is_open(self) -> bool:
        """True if the shard takes duties at all."""
        return self.accepts and self.capacity != 0


@dataclass(frozen=True, slots=True)
class BalancerSettings:
    """A pallet's settings; each balancer has its own part."""

    max_difference: int = 1  # round robin: between the numbers of duties of any two shards; 1 or more
    fill_by: FillBy = FillBy.CAPACITY  # spill over
    fill_limit: int = 0  # spill over by WEIGHT or COUNT
    shard_order: tuple[str, ...] = ()  # spill over: these are filled first, in this order, then the others by name
    pre_sort: PreSort = PreSort.WEIGHT  # fair workload


@dataclass(frozen=True, slots=True)
class DutyMove:
    """One duty goes to the target. `source` is "" if it is nowhere yet."""

    number: int
    source: str
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A duty for which there is no place. It stays on `shard`, if it runs on one: no balancer stops it."""

    number: int
    reason: str
    shard: str = ""


@dataclass(frozen=True, slots=True)
class ShardBalance:
    """One shard before and after a plan. `ideal`: number or weight, whichever the balancer evens out."""

    name: str
    capacity: int | None
    is_open: bool
    weight_before: int
    count: int
    weight: int
    ideal: float


@dataclass(frozen=True, slots=True)
class DutyPlan:
    """Moves in the order of the duties' numbers, each duty once. `shards` are in the order of their names.

    A plan that places as many duties, and brings the shards as near to their ideals, has at least `minimum_moves`.
    """

    moves: tuple[DutyMove, ...]
    unplaced: tuple[Unplaced, ...]
    minimum_moves: int
    shards: tuple[ShardBalance, ...]
