"""Checks histories of keys with conditions, versions, counters and lifetimes: could a store that does one request after
the other have given these answers? Pure.

The search is that of `linearizability.py`, for a richer state: a value, its version, and its expiry. A key expires
without a request, at some moment between the earliest and the latest end of its lifetime, unless another write comes
first.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple

from minka.wire.key_operations import If
from tests.cluster.linearizability import Outcome, Result, Verdict

DEFAULT_STEPS: Final = 1_000_000
SLACK_S: Final = 0.05  # the greatest difference between the clocks of leaders and clients
NOT_TOLD: Final = -1  # stands for a version that no answer in the order so far has named
_SHOWN: Final = 12


class Kind(Enum):
    """The kind of a request. A delete is a put of None."""

    GET = "get"
    GET_VERSIONED = "get_versioned"
    PUT = "put"
    ADD = "increment"
    EXPIRE = "expire"
    PERSIST = "persist"


@dataclass(frozen=True, slots=True)
class Operated:
    """One operation as its client saw it. All times are seconds of the same clock.

    Fields of the request: `value` of a put, `condition` with `expected` or `expected_version`, `by` of an increment,
    and `ttl`. Fields of the answer, if the outcome is OK: the value that a read has `found`; `done`; `version` (None if
    the answer doesn't tell it); `number`, the result of an increment; and `expires`, the time of expiry that
    GET_VERSIONED tells (None: the key doesn't expire). `note` is for people.
    """

    key: bytes
    kind: Kind
    called: float
    returned: float
    outcome: Outcome = Outcome.OK
    value: bytes | None = None
    condition: If = If.ALWAYS
    expected: bytes = b""
    expected_version: int = 0
    by: int = 0
    ttl: float | None = None
    found: bytes | None = None
    done: bool = True
    version: int | None = None
    number: int = 0
    expires: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        assert self.called <= self.returned, f"{self} returned before it was called"

    @property
    def is_read(self) -> bool:
        """True if the operation changes nothing in any state."""
        return self.kind in (Kind.GET, Kind.GET_VERSIONED)

    @property
    def changed_nothing(self) -> bool:
        """True if the operation changed nothing, no matter where it comes in the order."""
        return self.is_read or not self.done

    @property
    def is_blind(self) -> bool:
        """True if the operation has the same effect and the same answer in any state."""
        return self.kind is Kind.PUT and self.condition is If.ALWAYS


class State(NamedTuple):
    """The state of a key. `version` is 0 if the key has no value. `lives` has the earliest and the latest time at which
    the key may expire, or is None if the key doesn't expire. `newest` is the newest version that an answer so far has
    named: later writes have greater versions.
    """

    value: bytes | None = None
    version: int = 0
    lives: tuple[float, float] | None = None
    newest: int = 0


ABSENT: Final = State()


def check(history: Iterable[Operated], steps: int = DEFAULT_STEPS, slack: float = SLACK_S) -> Result:
    """Judge the history of each key, with at most `steps` steps for each. Returns the verdict on the first key whose
    history isn't linearizable. `slack`: the greatest difference between clocks, in seconds.

    At the beginning no key has a value. Raises ValueError if two puts of a key have the same value, or if an increment
    is negative.
    """
    by_key: defaultdict[bytes, list[Operated]] = defaultdict(list)
    for event in history:
        by_key[event.key].append(event)
    for key, events in by_key.items():
        _refuse_repeated_values(events)
        answered = [e for e in events if e.outcome is Outcome.OK]
        if reason := _versions_with_two_values(answered):
            return Result(Verdict.VIOLATION, key, reason)
        surely, perhaps = _unanswered(events, answered)
        result = _Search(Model(events, slack), [*answered, *surely], perhaps).run(key, steps)
        if result.verdict is not Verdict.LINEARIZABLE:
            return result
    return Result(Verdict.LINEARIZABLE)


def _refuse_repeated_values(events: Iterable[Operated]) -> None:
    written: set[bytes] = set()
    for event in events:
        if event.by < 0:
            raise ValueError(f"key {event.key!r}: a negative increment")
        if event.kind is Kind.PUT and event.value is not None:
            if event.value in written:
                raise ValueError(f"key {event.key!r}: {event.value!r} is put twice")
            written.add(event.value)


def _versions_with_two_values(events: Iterable[Operated]) -> str:
    """Say why the versions can't be right in any order: one version has two values, or two times of expiry. Returns ""
    if there is no such version.
    """
    values: dict[int, Operated] = {}
    lives: dict[int, Operated] = {}
    for event in events:
        if (value := _value_of_version(event)) is None or event.version is None:
            continue
        other = values.setdefault(event.version, event)
        if _value_of_version(other) != value:
            return f"version {event.version} has two values: {_shown(other)}; {_shown(event)}"
        if event.kind is Kind.GET_VERSIONED:
            other = lives.setdefault(event.version, event)
            if other.expires != event.expires:
                return f"version {event.version} expires at two times: {_shown(other)}; {_shown(event)}"
    return ""


def _unanswered(events: Iterable[Operated], answered: Iterable[Operated]) -> tuple[list[Operated], list[Operated]]:
    """Return two lists of operations without an answer. The operations in the first list surely took effect, at the
    latest when somebody first saw their value: `returned` is set to this moment. The operations in the second list may
    not have taken effect.
    """
    first_seen: dict[bytes, float] = {}
    for event in answered:
        value = event.expected if event.condition is If.VALUE and event.done else event.found
        if value is not None:
            first_seen[value] = min(event.returned, first_seen.get(value, inf))
    surely, perhaps = [], []
    for event in events:
        if event.outcome is not Outcome.UNKNOWN or event.is_read:
            continue
        if event.value is not None and event.value in first_seen:
            surely.append(replace(event, returned=max(event.called, first_seen[event.value])))
        else:
            perhaps.append(event)
    return surely, perhaps


def _value_of_version(event: Operated) -> bytes | None:
    """Return the value that belongs to the version in the event's answer; None if the event doesn't show the value."""
    if event.kind is Kind.GET_VERSIONED:
        return event.found
    return event.value if event.kind is Kind.PUT and event.done else None


def _named_version(event: Operated) -> float:
    """The version that the key has just before or after the operation, as far as its answer tells; else infinity."""
    if event.outcome is not Outcome.OK:
        return inf
    if event.condition is If.VERSION and event.done and event.kind is Kind.PUT:
        return event.expected_version or inf
    return event.version or inf


class Model:
    """Computes the effects of operations on a key, one after the other."""

    def __init__(self, events: Sequence[Operated], slack: float) -> None:
        """`events`: all operations on the key. Their answers show the values and expiries of some versions."""
        self._slack = slack
        pairs = ((event.version, _value_of_version(event)) for event in events)
        self._values = {version: value for version, value in pairs if version and value is not None}
        reads = (event for event in events if event.kind is Kind.GET_VERSIONED)
        self._expires = {event.version: event.expires for event in reads if event.expires is not None}

    def after(self, state: State, event: Operated) -> State | None:
        """Return the state after the operation; None if the operation can't have its answer in this state."""
        if state.lives is not None and event.called > state.lives[1]:
            return None  # the key expired before the call
        if event.outcome is Outcome.UNKNOWN:
            return self.effect(state, event, event.returned) if self._may_hold(state, event) else None
        match event.kind:
            case Kind.GET:
                return state if event.found == state.value else None
            case Kind.GET_VERSIONED:
                return self._seen(state, event)
            case Kind.PUT:
                return self._put(state, event)
            case Kind.ADD:
                number = _sum(state, event)
                is_right = number == event.number
                return self.written(state, b"%d" % event.number, state.lives) if is_right else None
            case Kind.EXPIRE:
                if event.done != (state.value is not None):
                    return None
                lives = self._lives(event, event.returned)
                return self.written(state, state.value, lives) if event.done else state
            case Kind.PERSIST:
                if event.done != (state.lives is not None):
                    return None
                return self.written(state, state.value) if event.done else state

    def effect(self, state: State, event: Operated, by: float = inf) -> State:
        """Return the state after an operation without an answer, which takes effect at some time between its call and
        the time `by`. Returns `state` if the operation changes nothing.
        """
        match event.kind:
            case Kind.PUT:
                if event.condition is If.VERSION and state.version == NOT_TOLD:
                    state = self._told(state, event.expected_version) or state
                if not self._holds(state, event):
                    return state
                return self.written(state, event.value, self._lives(event, by))
            case Kind.ADD:
                number = _sum(state, event)
                return state if number is None else self.written(state, b"%d" % number, state.lives)
            case Kind.EXPIRE if state.value is not None:
                return self.written(state, state.value, self._lives(event, by))
            case Kind.PERSIST if state.lives is not None:
                return self.written(state, state.value)
        return state

    def written(self, state: State, value: bytes | None, lives: tuple[float, float] | None = None) -> State:
        """Return the state after a write; None deletes the key. No answer has named the version of the write yet."""
        return State(newest=state.newest) if value is None else State(value, NOT_TOLD, lives, state.newest)

    def _lives(self, event: Operated, by: float) -> tuple[float, float] | None:
        if event.ttl is None:
            return None
        return event.called + event.ttl - self._slack, by + event.ttl + self._slack

    def _seen(self, state: State, event: Operated) -> State | None:
        if event.found != state.value:
            return None
        if state.value is None:
            return state
        assert event.version is not None, "such a read tells the version"
        told = self._told(state, event.version)
        if told is None or (event.expires is None) != (state.lives is None):
            return None
        narrowed = self._narrowed(told)
        is_over = narrowed is not None and narrowed.lives is not None and event.called > narrowed.lives[1]
        return None if is_over else narrowed

    def _narrowed(self, state: State) -> State | None:
        """If a read returned a time of expiry for the state's version, narrow the state's times of expiry to this time.
        Returns None if this time is impossible.
        """
        expires = self._expires.get(state.version)
        if expires is None:
            return state
        if state.lives is None or not state.lives[0] <= expires <= state.lives[1]:
            return None
        earliest, latest = state.lives
        return state._replace(lives=(max(earliest, expires - self._slack), min(latest, expires + self._slack)))

    def _told(self, state: State, version: int) -> State | None:
        """Set the state's version to `version`, which an answer contains. Returns the new state, or None if the key
        can't have this version in this state.
        """
        if state.version != NOT_TOLD:
            return state if state.version == version else None
        is_possible = version > state.newest and self._values.get(version, state.value) == state.value
        return state._replace(version=version, newest=version) if is_possible else None

    def _put(self, state: State, event: Operated) -> State | None:
        if not event.done and event.version is None:
            return None if self._holds(state, event) else state
        if not event.done:
            assert event.version is not None
            told = self._told(state, event.version) if state.value is not None else state
            if told is None or told.version != event.version or self._holds(told, event):
                return None
            return told
        if event.condition is If.VERSION and state.version == NOT_TOLD:
            told = self._told(state, event.expected_version)
            if told is None:
                return None
            state = told
        if not self._holds(state, event):
            return None
        new = self.written(state, event.value, self._lives(event, event.returned))
        if event.value is None or event.version is None:
            return new
        told = self._told(new, event.version)
        return None if told is None else self._narrowed(told)

    @staticmethod
    def _holds(state: State, event: Operated) -> bool:
        match event.condition:
            case If.ABSENT:
                return state.value is None
            case If.PRESENT:
                return state.value is not None
            case If.VALUE:
                return state.value == event.expected
            case If.VERSION:
                return state.version == event.expected_version
        return True

    def _may_hold(self, state: State, event: Operated) -> bool:
        if event.condition is If.VERSION and state.version == NOT_TOLD:
            return self._told(state, event.expected_version) is not None
        return self._holds(state, event)


def _sum(state: State, event: Operated) -> int | None:
    text = state.value or b"0"
    return int(text) + event.by if text.isdigit() else None


class _Place(NamedTuple):
    """The beginning of an order. It contains all answered operations with indexes below `low`, and each answered
    operation `low + n` for which bit n of `above` is set.

    If the order ends with operations without an answer, `since` is the state before these. The next answered operation
    must depend on their effect; otherwise the order could do without them.
    """

    low: int
    above: int
    state: State
    since: State | None = None


@dataclass(slots=True)
class _Look:
    """The operations that may come next: those that were called before any remaining operation returned."""

    candidates: list[int] = field(default_factory=list)
    by: float = inf  # the earliest time at which one of them returned


class _Search:
    """Searches the orders of one key's operations, depth first, for one that explains all answers.

    If an operation that has changed nothing may come next, it comes next. Of operations that returned at the same time,
    the search tries the one that was called first, since nodes mostly do operations in the order of their calls. As
    versions grow, a way is wrong if an operation that it leaves names an older version than one before.

    An operation without an answer is used only if the next answered operation depends on it; anywhere else, the order
    is right without it, too. Of equal operations without an answer, the search uses the one that was called first. Two
    ways may lead to the same place: if way A has used all operations without an answer that way B has used, and more,
    then B can continue like A, so the search drops A.
    """

    def __init__(self, model: Model, events: Sequence[Operated], perhaps: Sequence[Operated]) -> None:
        """`events` are operations that surely took effect; those in `perhaps` may have taken effect or not."""
        self._events = sorted(events, key=lambda event: event.called)
        self._perhaps = sorted(perhaps, key=lambda event: event.called)
        self._model = model
        self._alike = self._alikes()
        changing = [event for event in (*events, *perhaps) if not event.is_read]
        self._only_adds = all(event.kind is Kind.ADD for event in changing)
        self._may_live_longer = any(event.kind in (Kind.EXPIRE, Kind.PERSIST) for event in perhaps)
        self._named = [_named_version(event) for event in self._events]
        self._conditional = [i for i, e in enumerate(self._perhaps) if e.kind is Kind.PUT and not e.is_blind]

    def _alikes(self) -> list[int]:
        """For each operation without an answer, return the equal operations that were called before it, as bits. An
        operation with a lifetime counts as equal to none.
        """
        found: list[int] = []
        seen: defaultdict[tuple[object, ...], int] = defaultdict(int)
        for index, e in enumerate(self._perhaps):
            if e.ttl is not None:
                found.append(0)
                continue
            signature = (e.kind, e.value, e.condition, e.expected, e.expected_version, e.by)
            found.append(seen[signature])
            seen[signature] |= 1 << index
        return found

    def run(self, key: bytes, steps: int) -> Result:
        """Look for one order that explains all operations."""
        start = furthest = _Place(0, 0, ABSENT)
        # By place: the sets of operations without an answer that the ways to this place have used, as bits. A set that
        # contains another set of the same place is left out.
        fewest: defaultdict[_Place, list[int]] = defaultdict(list, {start: [0]})
        stack = [(start, 0)]
        while stack:
            place, used = stack.pop()
            if place.low == len(self._events):
                return Result(Verdict.LINEARIZABLE)
            if _placed(place) > _placed(furthest):
                furthest = place
            steps -= 1
            if steps < 0:
                return Result(Verdict.UNDECIDED, key, f"no answer in time; {self._story(furthest)}")
            for following, with_used in self._after(place, used):
                known = fewest[following]
                if not any(one & with_used == one for one in known):
                    known[:] = [one for one in known if one & with_used != with_used]
                    known.append(with_used)
                    stack.append((following, with_used))
        return Result(Verdict.VIOLATION, key, self._story(furthest))

    def _after(self, place: _Place, used: int) -> list[tuple[_Place, int]]:
        """Return the places to which one more operation leads. The search tries the last of them first."""
        look, state = self._look(place), place.state
        if self._is_dead_end(place):
            return []
        if self._only_adds:
            return self._after_adding(place, used, look)
        found: list[tuple[_Place, int]] = [(one, used) for one in self._expired(place, look)]
        for index, changed in self._unanswered(place, used, look):
            since = place.since or state
            if self._is_seen(since, changed, used, look):
                found.append((place._replace(state=changed, since=since), used | 1 << index))
        for index in sorted(look.candidates, key=lambda i: (-self._events[i].returned, -i)):
            event = self._events[index]
            following = self._model.after(state, event)
            if place.since is not None and self._model.after(place.since, event) == following:
                continue
            if following == state and event.changed_nothing:
                return [(self._with(place, index, state), used)]
            if following is not None:
                found.append((self._with(place, index, following), used))
        return found

    def _is_dead_end(self, place: _Place) -> bool:
        left = range(place.low, len(self._events))
        return any(self._named[i] < place.state.newest and not place.above >> (i - place.low) & 1 for i in left)

    def _after_adding(self, place: _Place, used: int, look: _Look) -> list[tuple[_Place, int]]:
        """Return the places to which one more operation leads, for a counter: the number in each answer is the sum of
        all increments until then, so it shows how much the increments without an answer have added.
        """
        number, found = int(place.state.value or 0), []
        free = [i for i, e in enumerate(self._perhaps) if e.called <= look.by and not used >> i & 1 and e.by]
        for index in look.candidates:
            event = self._events[index]
            lacks = (int(event.found or 0) if event.is_read else event.number - event.by) - number
            for added in self._adding(lacks, free):
                state = self._model.written(place.state, b"%d" % (number + lacks)) if added else place.state
                following = self._model.after(state, event)
                if following is not None and self._is_in_order(used | added):
                    found.append((self._with(place, index, following), used | added))
                    if following == place.state and event.changed_nothing:
                        return found[-1:]
        return found

    def _adding(self, number: int, free: Sequence[int]) -> list[int]:
        """Return all sets of increments in `free` that add up to this number. Each set is an int with a bit for each
        increment.
        """
        found: dict[tuple[int, int], list[int]] = {}
        free = sorted(free, key=lambda i: self._perhaps[i].by)
        sums = [0, *accumulate(self._perhaps[i].by for i in free)]

        def adding(number: int, at: int) -> list[int]:
            """Return the sets of increments from `free[at]` on that add up to this number."""
            if number == 0:
                return [0]
            if number < 0 or at == len(free):
                return []
            if (number, at) not in found:
                by = self._perhaps[free[at]].by
                # The greatest and the smallest number of increments that may add up to `number`.
                most, least = number // by, -(-number // self._perhaps[free[-1]].by)
                if least > min(most, len(free) - at) or (least == most and not between(number, at, most)):
                    return []
                with_it = [one | 1 << free[at] for one in adding(number - by, at + 1)]
                found[number, at] = with_it + adding(number, at + 1)
            return found[number, at]

        def between(number: int, at: int, count: int) -> bool:
            """True if the number lies between the sums of the `count` smallest and of the `count` largest increments
            from `free[at]` on.
            """
            return sums[at + count] - sums[at] <= number <= sums[-1] - sums[len(sums) - 1 - count]

        return adding(number, 0)

    def _is_in_order(self, used: int) -> bool:
        """True if, for each used operation, all equal operations that were called before it are used, too."""
        return all(self._alike[i] & ~used == 0 for i in range(used.bit_length()) if used >> i & 1)

    def _look(self, place: _Place) -> _Look:
        look = _Look()
        for index in range(place.low, len(self._events)):
            event = self._events[index]
            if event.called > look.by:
                break
            if not place.above >> (index - place.low) & 1:
                look.candidates.append(index)
                look.by = min(look.by, event.returned)
        look.candidates = [i for i in look.candidates if self._events[i].called <= look.by]
        return look

    def _expired(self, place: _Place, look: _Look) -> Iterator[_Place]:
        if place.state.lives is not None and place.state.lives[0] <= look.by:
            yield place._replace(state=self._model.written(place.state, None))

    def _unanswered(self, place: _Place, used: int, look: _Look) -> Iterator[tuple[int, State]]:
        """Yield each operation without an answer that may come next and changes something, with the state after it."""
        lives = place.state.lives
        for index, event in enumerate(self._perhaps):
            if event.called > look.by or (lives is not None and event.called > lives[1]):
                break
            is_turn = not used >> index & 1 and self._alike[index] & ~used == 0
            if is_turn and not (place.since and event.is_blind):
                changed = self._model.effect(place.state, event)
                if changed != place.state:
                    yield index, changed

    def _is_seen(self, since: State, state: State, used: int, look: _Look) -> bool:
        """True if an operation that may come next can see the change from `since` to `state`, or if a conditional
        operation without an answer has an effect in `state`.
        """
        events = [self._events[i] for i in look.candidates]
        seeing = [(event, self._model.after(since, event)) for event in events if not event.is_blind]

        def is_seen(state: State) -> bool:
            return any(self._model.after(state, event) not in (None, without) for event, without in seeing)

        if is_seen(state):
            return True
        others: list[State] = []  # states to which `state` may lead if the key expires, or its lifetime changes
        if state.value is not None and self._may_live_longer:
            written = self._model.written
            others = [written(state, None), written(state, state.value), written(state, state.value, (-inf, inf))]
        elif state.lives is not None and state.lives[0] <= look.by:
            others = [self._model.written(state, None)]
        if any(is_seen(other) for other in others):
            return True
        unused = [self._perhaps[i] for i in self._conditional if not used >> i & 1]
        return any(self._model.effect(other, event) != other for other in (state, *others) for event in unused)

    def _with(self, place: _Place, index: int, state: State) -> _Place:
        low, above = place.low, place.above | 1 << (index - place.low)
        while above & 1:
            low, above = low + 1, above >> 1
        return _Place(low, above, state)

    def _story(self, place: _Place) -> str:
        """Describe the longest order that was found: the state at its end, and the operations around its end. A "+"
        marks each operation that is in the order.
        """
        first = max(0, place.low - _SHOWN // 2)
        lines = []
        for i in range(first, min(len(self._events), place.low + _SHOWN)):
            placed = i < place.low or place.above >> (i - place.low) & 1
            lines.append(f"  {'+' if placed else '-'} {_shown(self._events[i])}")
        head = f"{_placed(place)} of {len(self._events)} operations have a place, then there is {place.state}:"
        return "\n".join([head, *lines])


def _placed(place: _Place) -> int:
    return place.low + place.above.bit_count()


def _shown(event: Operated) -> str:
    """Describe an operation for people."""
    asked = [event.kind.value]
    if event.kind is Kind.PUT:
        asked.append(f"{event.value!r} if {event.condition.name}")
        asked += [f"{event.expected!r}"] * (event.condition is If.VALUE)
        asked += [f"{event.expected_version}"] * (event.condition is If.VERSION)
    if event.kind is Kind.ADD:
        asked.append(f"{event.by}")
    if event.ttl is not None:
        asked.append(f"for {event.ttl:g} s")
    if event.outcome is not Outcome.OK:
        answer = event.outcome.value
    elif event.is_read:
        answer = f"{event.found!r}"
    else:
        answer = f"{event.number}" if event.kind is Kind.ADD else "done" if event.done else "not done"
    if event.version is not None:
        answer += f", version {event.version}"
    if event.expires is not None:
        answer += f", until {event.expires:.3f}"
    note = f" ({event.note})" if event.note else ""
    return f"{event.called:.4f}–{event.returned:.4f} {' '.join(asked)} → {answer}{note}"
