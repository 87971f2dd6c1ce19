"""What operations on keys may tell clients. Each key is of one kind, and only operations of that kind write it."""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from minka.operations import Outcome, Versioned
from tests.simulation.trace import Violation

OPERATED: Final = b"~"  # is in all of these keys, and in no others
Key = tuple[Hashable, bytes]  # the keyspace, or the partition of one by hash; the key


@dataclass(slots=True)
class _Counter:
    """Clients add 1 to it."""

    begun: int = 0  # without those that were refused
    sums: set[int] = field(default_factory=set)  # that clients were told


@dataclass(slots=True)
class _Register:
    """Clients replace the value if its version is the one that they have read."""

    values: dict[int, bytes | None] = field(default_factory=lambda: {0: None})  # by version
    replaced: set[int] = field(default_factory=set)  # the versions whose value was replaced


@dataclass(slots=True)
class _Expiring:
    """It is put once, for a while."""

    until_ms: int = 0  # not before that, once it was put
    was_put: bool = False
    was_gone: bool = False


class OperationOracle:
    """Raises Violation. A key whose writes may be lost, by an unclean election or because its keyspace is `async`, is
    none of its business.
    """

    def __init__(self, most_skew_ms: int) -> None:
        """`most_skew_ms`: so much may the wall clocks of two machines differ."""
        self._most_skew_ms = most_skew_ms
        self._counters: dict[Key, _Counter] = defaultdict(_Counter)
        self._registers: dict[Key, _Register] = defaultdict(_Register)
        self._expiring: dict[Key, _Expiring] = defaultdict(_Expiring)
        self.done = 0  # operations that clients know of

    # Counters

    def adds(self, key: Key) -> int:
        """A client asks for a sum. Returns what it is more than."""
        counter = self._counters[key]
        counter.begun += 1
        return len(counter.sums)

    def added(self, key: Key, floor: int, number: int) -> None:
        """It was told the sum. `floor`: see `adds`."""
        counter = self._counters[key]
        if number in counter.sums or not floor < number <= counter.begun:
            text = f"{number} is the sum of {key}, after {len(counter.sums)} of {counter.begun} increments"
            raise Violation("increments all count, and each once", text)
        counter.sums.add(number)
        self.done += 1

    def not_added(self, key: Key) -> None:
        """It was refused."""
        self._counters[key].begun -= 1

    # Registers

    def reads(self, key: Key, found: Versioned | None) -> None:
        """A client has read it."""
        value, version = (None, 0) if found is None else (found.value, found.version)
        self._is(key, version, value)

    def _is(self, key: Key, version: int, value: bytes | None) -> None:
        known = self._registers[key].values.setdefault(version, value)
        if known != value:
            raise Violation("a version stands for one value", f"{key} has {value!r} at {version}, and had {known!r}")

    def replaces(self, key: Key, version: int, value: bytes, outcome: Outcome) -> None:
        """A client has asked for this value in place of the one with this version."""
        if not outcome.done:
            if outcome.version == version:
                raise Violation("a condition holds or not", f"{key} has {version}, which was asked for")
            return
        register = self._registers[key]
        if version in register.replaced:
            raise Violation("who replaces a version is the only one", f"{key} at {version} by {value!r}")
        register.replaced.add(version)
        self._is(key, outcome.version, value)
        self.done += 1

    # Expiry

    def puts(self, key: Key, now_ms: int, ttl_ms: int) -> None:
        """A client asks that it is put for so long."""
        self._expiring[key].until_ms = now_ms + ttl_ms - self._most_skew_ms

    def was_put(self, key: Key) -> None:
        """It was done."""
        self._expiring[key].was_put = True

    def begins_to_read(self, key: Key) -> tuple[bool, bool]:
        """Whether it was put, and whether it was gone, when a client asks for it."""
        return self._expiring[key].was_put, self._expiring[key].was_gone

    def has_read(self, key: Key, before: tuple[bool, bool], now_ms: int, *, is_there: bool) -> None:
        """It has the answer. `before`: see `begins_to_read`."""
        was_put, was_gone = before
        expiring = self._expiring[key]
        if is_there and was_gone:
            raise Violation("what has expired doesn't come back", f"{key} is there again")
        if not is_there and was_put:
            if now_ms < expiring.until_ms:
                raise Violation("what expires stays until then", f"{key} is gone {expiring.until_ms - now_ms} ms early")
            expiring.was_gone = True
            self.done += 1
