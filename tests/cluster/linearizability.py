"""Could a store that does one thing after the other have shown clients these histories of single keys? Pure.

Each key is a register of its own: linearizability is local (Herlihy, Wing: "Linearizability", 1990), so a history is
linearizable when each key's is. The search is that of Wing and Gong ("Testing and verifying concurrent objects", 1993)
with the memory of Lowe ("Testing for linearizability", 2017): a state that was tried in vain isn't tried again.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import Final, NamedTuple

DEFAULT_STEPS: Final = 500_000
_SHOWN: Final = 12  # operations of a violation that are printed


class Kind(Enum):
    """The request. A delete is a write of None. A stale read's answer says how old its value may be."""

    READ = "read"
    STALE_READ = "stale read"
    WRITE = "write"


class Outcome(Enum):
    """The client's knowledge. OK: the operation was done. REFUSED: it surely wasn't done. UNKNOWN: it was done, or will
    be, or never will be.
    """

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Verdict(Enum):
    """The judgement. UNDECIDED: the budget of steps was used up, which counts as a failure."""

    LINEARIZABLE = "linearizable"
    VIOLATION = "violation"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Event:
    """One operation as its client saw it. Times are seconds of one monotonic clock; `value` was written or read.

    `note` is for people: which client asked, and how the request was refused. `age`: a stale read's answer says that
    its value is at most this number of seconds old.
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
    """The verdict on a history. If it isn't LINEARIZABLE: the key, and the contradiction, for people."""

    verdict: Verdict
    key: bytes = b""
    reason: str = ""


def check(history: Iterable[Event], initial: bytes | None = None, steps: int = DEFAULT_STEPS) -> Result:
    """Judge a history, each key alone, each with a budget of `steps`; the first bad key counts.

    Before the first operation each key has the value `initial`. A read's value has to name its write, so two writes of
    a key with the same value raise ValueError; deletes may repeat.

    Stale reads have no place in the order. A stale read is right if the key had its value at some moment between `age`
    seconds before the call and the answer.
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
    """Why a read can't be right in any order: its value was never written, or its write was refused or came later."""
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
    """Why a stale read can't be right: its value was surely overwritten before the time that it states."""
    done = [e for e in closed if e.kind is Kind.WRITE]
    # By value: the earliest time at which it was there, and the latest if nothing was written after it.
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
    """The operations that surely took effect, in the order of the calls.

    An unknown write whose value was read took effect, at the latest when the first such read returned, stale or not. An
    unknown write whose value was never read can be left out: in any order, no read comes between this write and the
    next, so the order fits without it, too.
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
    """The times at which deletes of unknown outcome were called: each may take effect at any time after, or never."""
    return sorted(e.called for e in events if e.kind is Kind.WRITE and e.value is None and e.outcome is Outcome.UNKNOWN)


class _State(NamedTuple):
    """The progress of an order: it has all operations before `low`, and those in `above`, a set of bits from `low`
    on.
    """

    low: int
    above: int
    value: bytes | None


class _Search:
    """The search through the orders of one key's operations, depth first.

    Most steps have no alternative. A read that finds the present value can come at once, since it changes nothing. When
    no read can come, a write or an open delete is next; any write that nobody reads can come just before it.

    Open deletes differ only in the times of their calls, so the one that was called first is used first. Each is used
    just before a read that finds nothing: anywhere else, the order fits without the delete, too. If two ways lead to a
    state, the way that used fewer open deletes can do everything that the other can.
    """

    def __init__(self, events: Sequence[Event], open_deletes: Sequence[float], initial: bytes | None) -> None:
        self._events = events
        self._open_deletes = open_deletes
        self._start = _State(0, 0, initial)
        self._read = {e.value for e in events if e.kind is Kind.READ}

    def run(self, key: bytes, steps: int) -> Result:
        """Look for one order that explains all operations."""
        fewest = {self._start: 0}  # by state: the number of open deletes used
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
        """The states to which one more operation leads, with the open deletes used by then. The last is tried first."""
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
        """The operations that may come next: those called before any other remaining one returned."""
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
        """The end of the best order: the value there, and the operations around it; a + marks operations that have a
        place in the order.
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
