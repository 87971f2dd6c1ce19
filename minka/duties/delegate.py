"""The class that a user writes to host duties: a delegate, which takes duties and releases them."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from minka.engine.requests import checked_whole


@dataclass(frozen=True, slots=True)
class Capacity:
    """The greatest total weight of a pallet's duties that a shard can carry.

    With 0 the shard gets no duties, and each duty that it has moves away as soon as another shard has room. Synthetic
    duties come in any case: they are on every shard that takes the pallet. Raises MinkaError(INVALID_ARGUMENT) for
    anything but a whole number from 0 to 2**63 - 1.
    """

    weight: int

    def __post_init__(self) -> None:
        # An int also if a numpy integer was given.
        object.__setattr__(self, "weight", checked_whole(self.weight, "the weight of a Capacity", range(1 << 63)))


def _never(number: int, epoch: int) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Duty:
    """A named piece of your own work, as delegates get it and clients return it.

    A delegate's duties are equal if they have the same number and epoch: after an update the delegate gets a new
    object, which is equal to the old one. A duty that a client returns has the epoch 0: `is_held()` is False for it,
    and two such duties are equal only if all their fields are. To test a delegate, see `minka.testing.held`.
    """

    number: int  # unique in the cluster, never reused
    pallet: str
    id: str  # unique in its pallet
    payload: bytes = field(default=b"", repr=False)  # up to 1 MiB; clients fetch it only on request
    weight: int = 1  # 0 to 1,000,000,000,000, in the unit of the shards' capacities
    version: int = 1  # it begins at 1; only `update` adds 1
    epoch: int = 0  # the fencing token: it grows with each assignment of the duty to any shard
    synthetic: bool = False  # it is on every shard that takes its pallet
    stationary: bool = False  # once placed, it is never moved to balance the shards
    lazy: bool = False  # it ends when the delegate no longer reports it
    _holds: Callable[[int, int], bool] = field(default=_never, repr=False)  # `is_held` calls it (number, epoch)

    def is_held(self) -> bool:
        """True if this process may act for the duty now: the process has the duty, and by its own clock it has
        clearance. The call sends nothing, so call it before each step that nobody else may do at the same time. A
        process that was paused for too long sees False as soon as it goes on. A step that it began before the pause may
        still go on; give `epoch` to stores that can refuse such a step.
        """
        return self._holds(self.number, self.epoch)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Duty):
            return NotImplemented
        if (self.number, self.epoch) != (other.number, other.epoch):
            return False
        return bool(self.epoch) or _from_client(self) == _from_client(other)

    def __hash__(self) -> int:
        return hash((self.number, self.epoch))


_from_client = attrgetter("pallet", "id", "payload", "weight", "version", "synthetic", "stationary", "lazy")


Duties = Sequence[Duty]
Reported = Mapping[Duty, int | None] | Iterable[Duty]


class Delegate:
    """Takes duties and releases them. Its methods may be coroutines, which run on the user's event loop, or plain
    functions, which run on threads. For each pallet, only one method is called at a time. All methods but `attach` and
    `detach` are optional.

    If `attach` raises, the shard has none of the duties of that call, so `attach` must end all work for them before it
    raises. If the call had several duties, each of them is then attached alone, at once. If a call with a single duty
    fails, the duty is attached again after 0.1, 0.2, 0.4 and 0.8 s. After the fifth failed call the duty goes to
    another shard, and is quarantined on this one: `DutyRow.quarantines` has the reason.
    """

    def attach(self, duties: Duties) -> Awaitable[None] | None:
        """Take the duties, at most 1,000 of one pallet, in any order: from now on this process does their work."""
        raise NotImplementedError

    def detach(self, duties: Duties) -> Awaitable[None] | None:
        """Release the duties. When this returns, this process does nothing more for them, and another process may take
        them. If this raises, it is called again until it succeeds.
        """
        raise NotImplementedError

    def update(self, duties: Duties) -> Awaitable[None] | None:
        """Take the duties as they are now: a client has changed their payloads or weights. If the delegate has no such
        method, the duties are detached, and attached again.
        """
        raise NotImplementedError

    def prepare(self, duties: Duties) -> Awaitable[None] | None:
        """Load the data that these duties need, and do nothing for them yet: they are still on other shards, and come
        here next. Some of the duties may never come, and no call tells you that: load the data into something that
        forgets automatically, such as a cache. If one of the duties has to be attached before `prepare` returns,
        `prepare` is cancelled if it is a coroutine; if it is a plain function, the attach waits until it returns.
        """
        raise NotImplementedError

    def report(self) -> Reported | Awaitable[Reported]:
        """Return the duties that this process really has, or a mapping from each duty to its measured weight (None: the
        weight hasn't changed). A lazy duty that the report leaves out has ended: the cluster deletes it, and `detach`
        isn't called for it. Without this method lazy duties stay. `report` is called about once a second, on the event
        loop if `attach` is a coroutine.
        """
        raise NotImplementedError
