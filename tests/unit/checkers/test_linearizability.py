"""The checker finds every violation and nothing else: it agrees with a slow check that tries every order."""

import random
from collections.abc import Sequence
from itertools import combinations, permutations

import pytest

from tests.cluster.linearizability import Event, Kind, Outcome, Verdict, check
from tests.unit.checkers.registers import KEY, REFUSED, UNKNOWN, get, put, recorded, scrambled

A, B, C = b"a", b"b", b"c"


def stale(value: bytes | None, called: float, returned: float, age: float) -> Event:
    return Event(KEY, Kind.STALE_READ, value, called, returned, age=age)


def delete(called: float, returned: float, outcome: Outcome = Outcome.OK) -> Event:
    return put(None, called, returned, outcome)


POSSIBLE = {
    "nothing": [],
    "one after the other": [put(A, 0, 1), get(A, 2, 3), delete(4, 5), get(None, 6, 7)],
    "what overlaps has either order": [put(A, 0, 10), get(None, 1, 2), get(A, 3, 4), get(A, 5, 6)],
    "two writes at once, the first of them last": [put(A, 0, 10), put(B, 1, 9), get(B, 2, 3), get(A, 4, 12)],
    "unknown, never": [put(A, 0, 1), put(B, 2, 3, UNKNOWN), get(A, 4, 5), get(A, 100, 101)],
    "unknown, at once": [put(A, 0, 1), put(B, 2, 3, UNKNOWN), get(B, 4, 5)],
    "unknown, late": [put(A, 0, 1), put(B, 2, 3, UNKNOWN), get(A, 4, 5), get(B, 6, 7)],
    "unknown, between later writes": [put(A, 0, 1, UNKNOWN), put(B, 2, 3), get(B, 4, 5), get(A, 6, 7), put(C, 8, 9)],
    "an unknown delete, late": [put(A, 0, 1), delete(2, 3, UNKNOWN), get(A, 4, 5), get(None, 6, 7)],
    "an unknown delete, never": [put(A, 0, 1), delete(2, 3, UNKNOWN), get(A, 4, 5), get(A, 6, 7)],
    "two unknown deletes, both seen": [
        delete(0, 1, UNKNOWN), delete(0, 1, UNKNOWN), put(A, 2, 3), get(None, 4, 5), put(B, 6, 7), get(None, 8, 9),
    ],
    "a refused write, not seen": [put(A, 0, 1), put(B, 2, 3, REFUSED), get(A, 4, 5)],
    "a refused read says nothing": [put(A, 0, 1), get(None, 2, 3, REFUSED), get(None, 2, 3, UNKNOWN)],
    "touching is overlapping": [put(A, 0, 1), get(None, 1, 2)],
    "stale, and old enough": [put(A, 0, 1), put(B, 2, 3), stale(A, 10, 11, age=8)],
    "stale, though it is new": [put(A, 0, 1), put(B, 2, 3), stale(B, 10, 11, age=0)],
    "stale, backwards": [put(A, 0, 1), put(B, 2, 3), stale(B, 4, 5, age=9), stale(A, 6, 7, age=9), get(B, 8, 9)],
    "stale, from before everything": [put(A, 2, 3), stale(None, 4, 5, age=3)],
    "stale, of an unknown write": [put(A, 0, 1), put(B, 2, 3, UNKNOWN), put(C, 4, 5), stale(B, 6, 7, age=0)],
    "stale, of an unknown delete": [put(A, 0, 1), delete(2, 3, UNKNOWN), put(C, 4, 5), stale(None, 6, 7, age=0)],
    "a refused stale read says nothing": [put(A, 0, 1), Event(KEY, Kind.STALE_READ, None, 2, 3, REFUSED)],
}  # fmt: skip

IMPOSSIBLE = {
    "a stale read": [put(A, 0, 1), put(B, 2, 3), get(A, 4, 5)],
    "a stale read beside a write": [put(A, 0, 1), put(B, 2, 10), get(B, 3, 4), get(A, 5, 6)],
    "a lost write": [put(A, 0, 1), get(None, 2, 3)],
    "a lost write, seen before": [put(A, 0, 10), get(A, 1, 2), get(None, 3, 4)],
    "a lost delete": [put(A, 0, 1), delete(2, 3), get(A, 4, 5)],
    "a value from nowhere": [put(A, 0, 1), get(B, 2, 3)],
    "a value from the future": [get(A, 0, 1), put(A, 2, 3)],
    "a refused write that took effect": [put(A, 0, 1), put(B, 2, 3, REFUSED), get(B, 4, 5)],
    "an unknown write, seen and gone": [put(A, 0, 1), put(B, 2, 3, UNKNOWN), get(B, 4, 5), get(A, 6, 7)],
    "an unknown write, done twice": [put(A, 0, 1, UNKNOWN), get(A, 2, 3), put(B, 4, 5), get(B, 6, 7), get(A, 8, 9)],
    "an unknown delete, done twice": [
        put(A, 0, 1), delete(2, 3, UNKNOWN), get(None, 4, 5), put(B, 6, 7), get(None, 8, 9),
    ],
    "an unknown delete, before it was called": [put(A, 0, 1), get(None, 2, 3), delete(4, 5, UNKNOWN)],
    "stale, and older than it says": [put(A, 0, 1), put(B, 2, 3), stale(A, 10, 11, age=6)],
    "stale, and nothing is older than it says": [put(A, 2, 3), stale(None, 10, 11, age=6)],
    "stale, of an unknown write that vanished": [
        put(A, 0, 1), put(B, 2, 3, UNKNOWN), stale(B, 4, 5, age=0), get(A, 6, 7),
    ],
    "stale, from nowhere": [put(A, 2, 3), stale(B, 10, 11, age=60)],
    "stale, from the future": [stale(A, 0, 1, age=60), put(A, 2, 3)],
    "stale, of a refused write": [put(A, 0, 1, REFUSED), stale(A, 2, 3, age=60)],
    "stale, of an unknown write that was seen and overwritten": [
        put(A, 0, 1, UNKNOWN), get(A, 2, 3), put(B, 4, 5), stale(A, 10, 11, age=4),
    ],
    "two readers see two orders": [
        put(A, 0, 10), put(B, 0, 10), get(A, 11, 12), get(B, 13, 14), get(A, 15, 16),
    ],
}  # fmt: skip


@pytest.mark.parametrize("history", POSSIBLE.values(), ids=POSSIBLE)
def test_possible(history: list[Event]) -> None:
    result = check(history)
    assert result.verdict is Verdict.LINEARIZABLE, result.reason


@pytest.mark.parametrize("history", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible(history: list[Event]) -> None:
    result = check(history)
    assert (result.verdict, result.key) == (Verdict.VIOLATION, KEY)
    assert result.reason


def test_each_key_is_judged_alone() -> None:
    """The checker doesn't compare keys with each other: two keys may have the same values in their histories."""
    other = [Event(b"other", e.kind, e.value, e.called, e.returned) for e in IMPOSSIBLE["a lost write"]]
    assert check(POSSIBLE["one after the other"] + other).key == b"other"
    twice = [Event(b"other", e.kind, e.value, e.called, e.returned) for e in POSSIBLE["one after the other"]]
    assert check(POSSIBLE["one after the other"] + twice).verdict is Verdict.LINEARIZABLE


def test_what_was_there_before() -> None:
    assert check([get(A, 0, 1)], initial=A).verdict is Verdict.LINEARIZABLE
    assert check([get(None, 0, 1)], initial=A).verdict is Verdict.VIOLATION


def test_a_value_written_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="written twice"):
        check([put(A, 0, 1), put(A, 2, 3)])


def test_too_many_steps_are_not_an_answer() -> None:
    writes = [put(b"%d" % i, 0, 100) for i in range(12)]
    reads = [get(b"%d" % i, 101 + 2 * i, 102 + 2 * i) for i in range(12)]
    assert check([*writes, *reads]).verdict is Verdict.VIOLATION
    result = check([*writes, *reads], steps=100)
    assert result.verdict is Verdict.UNDECIDED
    assert "no answer in time" in result.reason


def test_thousands_of_operations_with_many_unknown_outcomes() -> None:
    history = recorded(random.Random(1), operations=3000, clients=8, span=3.0)
    assert sum(e.outcome is UNKNOWN for e in history) > 300
    assert check(history).verdict is Verdict.LINEARIZABLE
    assert check(with_a_stale_read(history)).verdict is Verdict.VIOLATION


@pytest.mark.seeds(4)
def test_it_agrees_with_trying_every_order(seed: int) -> None:
    rng = random.Random(seed)
    verdicts = []
    for _ in range(60):
        history = scrambled(rng, recorded(rng, operations=6, clients=3, span=4.0))
        expected = some_order_explains(history)
        verdicts.append(expected)
        assert (check(history).verdict is Verdict.LINEARIZABLE) == expected, history
    assert True in verdicts
    assert False in verdicts


def with_a_stale_read(history: Sequence[Event]) -> list[Event]:
    """Add a deletion and a stale read to the end: the read begins after the deletion, and finds the deleted value."""
    end = max(e.returned for e in history)
    old = next(e.value for e in history if e.kind is Kind.READ and e.outcome is Outcome.OK and e.value is not None)
    return [*history, delete(end + 1, end + 2), get(old, end + 3, end + 4)]


def some_order_explains(history: Sequence[Event]) -> bool:
    """True if an order of operations fits all times and values. The order has all operations that were done, and some
    of those that may have been done.
    """
    done = [e for e in history if e.outcome is Outcome.OK]
    perhaps = [e for e in history if e.outcome is UNKNOWN and e.kind is Kind.WRITE]
    return any(
        explains(order)
        for count in range(len(perhaps) + 1)
        for chosen in combinations(perhaps, count)
        for order in permutations([*done, *chosen])
    )


def explains(order: Sequence[Event]) -> bool:
    value: bytes | None = None
    for i, event in enumerate(order):
        if any(later.outcome is Outcome.OK and later.returned < event.called for later in order[i + 1 :]):
            return False
        if event.kind is Kind.WRITE:
            value = event.value
        elif event.value != value:
            return False
    return True
