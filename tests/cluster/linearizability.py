"""Checks histories of single keys: could a store that does one request after the other have given these answers? Pure.

Each key is a register of its own. Linearizability is local (Herlihy, Wing: "Linearizability", 1990): a history is
linearizable if the history of each single key is. The search is that of Wing and Gong ("Testing and verifying
concurrent objects", 1993). As Lowe proposes ("Testing for linearizability", 2017), the search remembers states, and
never tries the same state twice.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import Final, NamedTuple

DEFAULT_STEPS: Final = 500_000
_SHOWN: Final = 12  # about the number of operations that a report of a violation prints


class Kind(Enum):
    """The kind of a request. A delete is a write of None. The answer to a stale read says how old the value may be."""

    READ = "read"
    STALE_READ = "stale read"
    WRITE = "write"


class Outcome(Enum):
    """What the client knows of an operation. OK: the operation was done. REFUSED: it surely wasn't done, and won't be.
    UNKNOWN: it was done, or will be, or never will be.
    """

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Verdict(Enum):
    """The judgement on a history. UNDECIDED: the search has used up its steps. This counts as a failure."""

    LINEARIZABLE = "linearizable"
    VIOLATION = "violation"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Event:
    """One operation as its client saw it. `value` is the value that was written or read. All times are seconds of the
    same monotonic clock.

    `note` is for people: which client asked, and how the request was refused. `age` is the greatest age of the value,
    in seconds, by the answer to a stale read.
    """

    key: bytes
    kind: Kind
    value: bytes | None
    called: float
    returned: float
    outcome: Outcome = Outcome.OK
    note: str = ""
    age: float = 0.0

    def __post_init__(self) -> None:
        assert self.called <= self.returned, f"{self} returned before it was called"


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict on a history. If the verdict isn't LINEARIZABLE, `key` is the key with the contradiction, and
    `reason` describes the contradiction for people.
    """

    verdict: Verdict
    key: bytes = b""
    reason: str = ""


def check(history: Iterable[Event], initial: bytes | None = None, steps: int = DEFAULT_STEPS) -> Result:
    """Judge the history of each key, with at most `steps` steps for each. Returns the verdict on the first key whose
    history isn't linearizable.

    Before its first operation each key has the value `initial`. Raises ValueError if two writes of a key have the same
    value, since a read's value must show which write it is from. Any number of deletes is allowed.

    The order that explains the other answers has no stale reads. A stale read is right if the key had the value at some
    moment from `age` seconds before the call until the answer.
    """
    by_key: defaultdict[bytes, list[Event]] = defaultdict(list)
    for event in history:
        by_key[event.key].append(event)
    for key, events in by_key.items():
        result = _check_key(key, events, initial, steps)
        if result.verdict is not Verdict.LINEARIZABLE:
            return result
    return Result(Verdict.LINEARIZABLE)


def _check_key(key: bytes, events: Sequence[Event], initial: bytes | None, steps: int) -> Result:
    _refuse_repeated_values(events, initial)
    reads = [e for e in events if e.kind is Kind.READ and e.outcome is Outcome.OK]
    stale = [e for e in events if e.kind is Kind.STALE_READ and e.outcome is Outcome.OK]
    if reason := _from_nowhere(events, [*reads, *stale], initial):
        return Result(Verdict.VIOLATION, key, reason)
    closed = _closed(events, [*reads, *stale])
    if reason := _older_than_it_says(events, closed, stale, initial):
        return Result(Verdict.VIOLATION, key, reason)
    return _Search(closed, _open_deletes(events), initial).run(key, steps)


def _refuse_repeated_values(events: Iterable[Event], initial: bytes | None) -> None:
    seen = {initial}
    for event in events:
        if event.kind is Kind.WRITE and event.value is not None:
            if event.value in seen:
                raise ValueError(f"key {event.key!r}: {event.value!r} is written twice")
            seen.add(event.value)


def _from_nowhere(events: Iterable[Event], reads: Iterable[Event], initial: bytes | None) -> str:
    """Say why some read can't be right in any order: nobody wrote its value, the write was refused, or the write began
    after the read had ended. Returns "" if there is no such read.
    """
    writes = {e.value: e for e in events if e.kind is Kind.WRITE and e.value is not None}
    for read in reads:
        if read.value is None or read.value == initial:
            continue
        write = writes.get(read.value)
        if write is None:
            return f"a value that nobody wrote: {_shown(read)}"
        if write.outcome is Outcome.REFUSED:
            return f"a write that was refused took effect: {_shown(write)}; {_shown(read)}"
        if write.called > read.returned:
            return f"a value from the future: {_shown(write)}; {_shown(read)}"
    return ""


def _older_than_it_says(
    events: Sequence[Event], closed: Sequence[Event], stale: Sequence[Event], initial: bytes | None
) -> str:
    """Say why some stale read can't be right: its value was surely overwritten more than `age` seconds before the call.
    Returns "" if there is no such read.
    """
    done = [e for e in closed if e.kind is Kind.WRITE]
    # For each value: the earliest and the latest time at which each write of the value can have taken effect.
    spans: defaultdict[bytes | None, list[tuple[float, float]]] = defaultdict(list, {initial: [(-inf, -inf)]})
    for event in done:
        spans[event.value].append((event.called, event.returned))
    spans[None] += [(called, inf) for called in _open_deletes(events)]
    for read in stale:
        since = read.called - read.age
        overwritten = [e.called for e in done if e.returned < since]
        last = max(overwritten, default=-inf)
        if not any(called <= read.returned and last <= latest for called, latest in spans[read.value]):
            return f"a value older than {read.age:.3f} s: {_shown(read)}"
    return ""


def _closed(events: Iterable[Event], reads: Iterable[Event]) -> list[Event]:
    """Return the operations that surely took effect, in the order of their calls.

    If somebody read the value of a write with an unknown outcome, the write took effect, at the latest when the first
    of these reads returned. If nobody read the value, the write is left out: in an order with the write, no read comes
    between this write and the next one, so the same order without the write is right, too.
    """
    first_seen: dict[bytes | None, float] = {}
    for read in reads:
        first_seen[read.value] = min(read.returned, first_seen.get(read.value, inf))
    closed = []
    for event in events:
        perhaps = event.outcome is Outcome.UNKNOWN and event.kind is Kind.WRITE and event.value is not None
        if event.outcome is Outcome.OK and event.kind is not Kind.STALE_READ:
            closed.append(event)
        elif perhaps and event.value in first_seen:
            closed.append(replace(event, returned=max(event.called, first_seen[event.value])))
    return sorted(closed, key=lambda event: event.called)


def _open_deletes(events: Iterable[Event]) -> list[float]:
    """Return the call times of deletes with an unknown outcome. Each may take effect at any later time, or never."""
    return sorted(e.called for e in events if e.kind is Kind.WRITE and e.value is None and e.outcome is Outcome.UNKNOWN)


class _State(NamedTuple):
    """The beginning of an order. It contains all operations with indexes below `low`, and each operation `low + n` for
    which bit n of `above` is set. `value` is the key's value after these operations.
    """

    low: int
    above: int
    value: bytes | None


class _Search:
    """Searches the orders of one key's operations, depth first, for one that explains all answers.

    Most steps have no alternative. If a read that finds the present value may come next, it comes next, since it
    changes nothing. If no such read may come, a write or an open delete comes next. If one of the possible writes has
    a value that nobody reads, this write comes next, since it could come just before any other write or delete. If
    there is no such write, the search tries each write, and an open delete.

    An open delete is a delete with an unknown outcome. Open deletes differ only in the times of their calls, so the
    search uses the earliest one first. It uses an open delete only just before a read that finds nothing: anywhere
    else, the order without the delete is right, too. If two ways lead to the same state, the way that used fewer open
    deletes can continue like the way that used more, so the search drops the latter.
    """

    def __init__(self, events: Sequence[Event], open_deletes: Sequence[float], initial: bytes | None) -> None:
        self._events = events
        self._open_deletes = open_deletes
        self._start = _State(0, 0, initial)
        self._read = {e.value for e in events if e.kind is Kind.READ}

    def run(self, key: bytes, steps: int) -> Result:
        """Look for one order that explains all operations."""
        fewest = {self._start: 0}  # by state: the fewest open deletes with which the search reached it
        stack = [(self._start, 0)]
        furthest = self._start
        while stack:
            state, deletes = stack.pop()
            if state.low == len(self._events):
                return Result(Verdict.LINEARIZABLE)
            if _placed(state) > _placed(furthest):
                furthest = state
            steps -= 1
            if steps < 0:
                return Result(Verdict.UNDECIDED, key, f"no answer in time; {self._story(furthest)}")
            for following, used in self._after(state, deletes):
                if used < fewest.get(following, inf):
                    fewest[following] = used
                    stack.append((following, used))
        return Result(Verdict.VIOLATION, key, self._story(furthest))

    def _after(self, state: _State, deletes: int) -> list[tuple[_State, int]]:
        """Return the states to which one more operation leads, each with the number of open deletes used until then.
        The search tries the last of these states first.
        """
        candidates = self._candidates(state)
        for index in candidates:
            event = self._events[index]
            if event.kind is Kind.READ and event.value == state.value:
                return [(self._with(state, index), deletes)]
        for index in candidates:
            event = self._events[index]
            if event.kind is Kind.WRITE and event.value not in self._read:
                return [(self._with(state, index), deletes)]
        by = min(self._events[i].returned for i in candidates)
        can_delete = deletes < len(self._open_deletes) and self._open_deletes[deletes] <= by
        found = []
        for index in sorted(candidates, key=lambda i: (-self._events[i].returned, -i)):
            event = self._events[index]
            if event.kind is Kind.WRITE:
                found.append((self._with(state, index), deletes))
            elif event.value is None and can_delete:
                found.append((self._with(state, index), deletes + 1))
        return found

    def _candidates(self, state: _State) -> list[int]:
        """Return the operations that may come next: those that were called before any remaining operation returned."""
        candidates, first_return = [], inf
        for index in range(state.low, len(self._events)):
            event = self._events[index]
            if event.called > first_return:
                break
            if not state.above >> (index - state.low) & 1:
                candidates.append(index)
                first_return = min(first_return, event.returned)
        return [i for i in candidates if self._events[i].called <= first_return]

    def _with(self, state: _State, index: int) -> _State:
        event = self._events[index]
        low, above = state.low, state.above | 1 << (index - state.low)
        while above & 1:
            low, above = low + 1, above >> 1
        return _State(low, above, event.value)

    def _story(self, state: _State) -> str:
        """Describe the longest order that was found: the value at its end, and the operations around its end. A "+"
        marks each operation that is in the order.
        """
        first = max(0, state.low - _SHOWN // 2)
        around = range(first, min(len(self._events), state.low + _SHOWN))
        lines = []
        for i in around:
            placed = i < state.low or state.above >> (i - state.low) & 1
            lines.append(f"  {'+' if placed else '-'} {_shown(self._events[i])}")
        head = f"{_placed(state)} of {len(self._events)} operations have a place, then the value is {state.value!r}:"
        return "\n".join([head, *lines])


def _placed(state: _State) -> int:
    return state.low + state.above.bit_count()


def _shown(event: Event) -> str:
    note = f" ({event.note})" if event.note else ""
    return f"{event.called:.4f}–{event.returned:.4f} {event.kind.value} {event.value!r} {event.outcome.value}{note}"
