"""What a user writes to host duties: a delegate, which takes duties and releases them."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from minka.v1.shards_pb2 import HeldDuty


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much of a pallet a shard can carry, in the unit of its duties' weights. With 0 it takes none of them."""

    weight: int


@dataclass(frozen=True, slots=True)
class Duty:
    """A duty that a shard has, as the delegate is given it. After an update the delegate gets another object, which is
    equal to this one: duties are equal if they have the same number and epoch.
    """

    number: int  # unique in the cluster, never reused
    epoch: int  # the fencing token: greater with each assignment of the duty, to whichever shard
    pallet: str = field(compare=False)
    id: str = field(compare=False)
    payload: bytes = field(compare=False, repr=False)
    weight: int = field(compare=False)
    version: int = field(compare=False)  # greater with each change that a client makes
    synthetic: bool = field(compare=False)  # it lives on every shard that takes its pallet
    idempotent: bool = field(compare=False)  # it may be moved to balance the shards
    lazy: bool = field(compare=False)  # it ends when the delegate no longer reports it
    _holds: Callable[[int, int], bool] = field(compare=False, repr=False)

    def is_held(self) -> bool:
        """Whether this process may act for the duty now: it has the duty, and by its own clock it has clearance. The
        question sends nothing, so ask it before each step that nobody else may do at the same time. A process that was
        paused for too long sees False as soon as it goes on; what it had begun before is fenced by `epoch`.
        """
        return self._holds(self.number, self.epoch)


Duties = Sequence[Duty]
Reported = Mapping[Duty, int | None] | Iterable[Duty]


class Delegate:
    """Takes duties and releases them. Its methods may be coroutines, which run on the user's event loop, or plain
    functions, which run on threads. For each pallet one call is made at a time. All methods but `attach` and `detach`
    are optional.

    If `attach` raises, the shard has none of the duties that it was given, so `attach` must end what it has begun of
    them before it raises. Each of them is then tried alone, with growing pauses; after five tries the duty goes to
    another shard.
    """

    def attach(self, duties: Duties) -> Awaitable[None] | None:
        """Take the duties: from now on this process does what they stand for. They are up to 1,000 of one pallet."""
        raise NotImplementedError

    def detach(self, duties: Duties) -> Awaitable[None] | None:
        """Release the duties: when this returns, this process does nothing more for them, and another one may. It is
        called again until it doesn't raise.
        """
        raise NotImplementedError

    def update(self, duties: Duties) -> Awaitable[None] | None:
        """Take the duties as they are now: a client has changed their payloads or weights. Without this method they are
        detached, and attached again.
        """
        raise NotImplementedError

    def prepare(self, duties: Duties) -> Awaitable[None] | None:
        """Load what these duties need, and do nothing for them yet: they are still on other shards, and come next.

        Some may never come, and nobody says so, so load it into something that forgets automatically, such as a cache.
        A coroutine is cancelled when a duty has to be attached meanwhile; a plain function holds up that attach.
        """
        raise NotImplementedError

    def report(self) -> Reported | Awaitable[Reported]:
        """The duties that this process really has, or a mapping from each to the weight that it turned out to have
        (None: as it was).

        A lazy duty that is left out has ended. This is called about once a second, on the event loop if `attach` is a
        coroutine.
        """
        raise NotImplementedError


def duty_of(held: HeldDuty, holds: Callable[[int, int], bool]) -> Duty:
    """The duty as the delegate is given it. `holds` says whether the shard may act for a number and an epoch."""
    return Duty(
        number=held.duty,
        epoch=held.epoch,
        pallet=held.pallet,
        id=held.id,
        payload=held.payload,
        weight=held.weight,
        version=held.version,
        synthetic=held.synthetic,
        idempotent=not held.stationary,
        lazy=held.lazy,
        _holds=holds,
    )
