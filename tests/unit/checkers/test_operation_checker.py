"""The checker of operations finds every violation and nothing else."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from math import inf

import pytest

from minka.wire.key_operations import If
from tests.cluster.linearizability import Event, Outcome, Verdict
from tests.cluster.linearizability import Kind as Plain
from tests.cluster.linearizability import check as check_plain
from tests.cluster.operation_checker import Kind, Operated, check
from tests.unit.checkers.registers import recorded as recorded_plain
from tests.unit.checkers.registers import scrambled as scrambled_plain

KEY = b"k"
A, B, C = b"a", b"b", b"c"
OK, UNKNOWN, REFUSED = Outcome.OK, Outcome.UNKNOWN, Outcome.REFUSED
SLACK = 0.05


def put(value: bytes | None, called: float, returned: float, outcome: Outcome = OK) -> Operated:
    return Operated(KEY, Kind.PUT, called, returned, outcome, value)


def put_for(
    ttl: float, value: bytes, called: float, returned: float, outcome: Outcome = OK, version: int | None = None
) -> Operated:
    return Operated(KEY, Kind.PUT, called, returned, outcome, value, ttl=ttl, version=version)


def delete(called: float, returned: float, outcome: Outcome = OK) -> Operated:
    return put(None, called, returned, outcome)


def get(found: bytes | None, called: float, returned: float) -> Operated:
    return Operated(KEY, Kind.GET, called, returned, found=found)


def seen(found: bytes | None, version: int, called: float, returned: float, expires: float | None = None) -> Operated:
    return Operated(KEY, Kind.GET_VERSIONED, called, returned, found=found, version=version, expires=expires)


def put_if(
    condition: If,
    value: bytes | None,
    called: float,
    returned: float,
    *,
    done: bool = True,
    version: int = 0,
    of: bytes | int = 0,
    outcome: Outcome = OK,
) -> Operated:
    """A put on the condition that the key has the value or the version `of`. `version` is the key's version after the
    put.
    """
    expected, expected_version = (of, 0) if isinstance(of, bytes) else (b"", of)
    return Operated(
        KEY, Kind.PUT, called, returned, outcome, value, condition, expected, expected_version, done=done,
        version=version if outcome is OK else None,
    )  # fmt: skip


def add(by: int, number: int, called: float, returned: float, outcome: Outcome = OK) -> Operated:
    return Operated(KEY, Kind.ADD, called, returned, outcome, by=by, number=number)


def expire(ttl: float, called: float, returned: float, outcome: Outcome = OK, *, done: bool = True) -> Operated:
    return Operated(KEY, Kind.EXPIRE, called, returned, outcome, ttl=ttl, done=done)


def persist(called: float, returned: float, outcome: Outcome = OK, *, done: bool = True) -> Operated:
    return Operated(KEY, Kind.PERSIST, called, returned, outcome, done=done)


POSSIBLE = {
    "nothing": [],
    "one after the other": [put(A, 0, 1), get(A, 2, 3), delete(4, 5), get(None, 6, 7)],
    "unknown, between later writes": [put(A, 0, 1, UNKNOWN), put(B, 2, 3), get(B, 4, 5), get(A, 6, 7), put(C, 8, 9)],
    "two unknown deletes, both seen": [
        delete(0, 1, UNKNOWN), delete(0, 1, UNKNOWN), put(A, 2, 3), get(None, 4, 5), put(B, 6, 7), get(None, 8, 9),
    ],
    "versions of puts that did not tell them": [put(A, 0, 1), seen(A, 5, 2, 3), put(B, 4, 5), seen(B, 7, 6, 7)],
    "conditions that hold": [
        put_if(If.ABSENT, A, 0, 1, version=1), put_if(If.VERSION, B, 2, 3, version=2, of=1),
        put_if(If.VALUE, C, 4, 5, version=3, of=B), seen(C, 3, 6, 7), put_if(If.VERSION, None, 8, 9, of=3),
        get(None, 10, 11), put_if(If.VERSION, b"d", 12, 13, version=9, of=0),
    ],
    "conditions that do not hold": [
        put_if(If.VALUE, C, 0, 1, done=False, of=A), put(A, 2, 3), put_if(If.ABSENT, B, 4, 5, done=False, version=4),
        put_if(If.VERSION, b"d", 6, 7, done=False, version=4, of=3),
        put_if(If.VALUE, b"e", 8, 9, done=False, version=4, of=C), seen(A, 4, 10, 11),
    ],
    "one of two wins": [
        put_if(If.ABSENT, A, 0, 5, version=1), put_if(If.ABSENT, B, 0, 5, done=False, version=1), seen(A, 1, 6, 7),
    ],
    "a condition on what an unknown put wrote": [
        put(A, 0, 1, UNKNOWN), put_if(If.VALUE, B, 2, 3, version=2, of=A), get(B, 4, 5),
    ],
    "an unknown put whose condition held": [
        put_if(If.ABSENT, A, 0, 1, version=1), put_if(If.VERSION, B, 2, 3, of=1, outcome=UNKNOWN), seen(B, 2, 4, 5),
    ],
    "an unknown put whose condition did not hold, ever": [
        put_if(If.ABSENT, A, 0, 1, version=1), put_if(If.VERSION, B, 2, 3, of=9, outcome=UNKNOWN), seen(A, 1, 4, 5),
    ],
    "an unknown put, of which only the version was seen": [
        put(A, 0, 1, UNKNOWN), put_if(If.ABSENT, B, 2, 3, done=False, version=8), delete(4, 5),
    ],
    "unknown puts in a chain": [
        put(A, 0, 1, UNKNOWN), put_if(If.VALUE, B, 0, 1, of=A, outcome=UNKNOWN), get(B, 2, 3),
    ],
    "increments": [add(1, 1, 0, 1), add(5, 6, 2, 3), get(b"6", 4, 5)],
    "increments at once": [add(1, 6, 0, 9), add(5, 5, 0, 9), get(b"5", 1, 8), get(b"6", 10, 11)],
    "an unknown increment, never": [add(1, 1, 0, 1), add(5, 0, 2, 3, UNKNOWN), add(1, 2, 4, 5), get(b"2", 6, 7)],
    "an unknown increment, late": [add(1, 1, 0, 1), add(5, 0, 2, 3, UNKNOWN), add(1, 2, 4, 5), add(1, 8, 6, 7)],
    "two of three unknown increments": [
        *(add(by, 0, 0, 1, UNKNOWN) for by in (3, 5, 9)), get(None, 2, 3), get(b"12", 4, 5), add(1, 13, 6, 7),
    ],
    "increments of a number that was put": [put(b"40", 0, 1), add(2, 42, 2, 3), delete(4, 5), add(2, 2, 6, 7)],
    "it expires": [put_for(2, A, 0, 1), get(A, 1, 2), get(None, 4, 5)],
    "it expires at once or late": [put_for(2, A, 0, 1), get(None, 1.9, 2.5), get(None, 4, 5)],
    "it has a whole lifetime after the answer": [put_for(2, A, 0, 1), get(A, 2.9, 4)],
    "it says when it expires": [put_for(2, A, 0, 1, version=3), seen(A, 3, 1, 2, 2.5), get(None, 2.6, 3)],
    "overwritten before it expires": [put_for(2, A, 0, 1), put(B, 1, 2), get(B, 9, 10)],
    "expired, and put if absent": [put_for(2, A, 0, 1), put_if(If.ABSENT, B, 4, 5, version=2), get(B, 6, 7)],
    "expiry is put off": [put_for(2, A, 0, 1), expire(5, 1, 2), get(A, 5, 6), get(None, 8, 9)],
    "expiry is brought forward": [put(A, 0, 1), expire(1, 1, 2), get(None, 4, 5)],
    "persisted": [put_for(2, A, 0, 1), persist(1, 2), get(A, 9, 10), persist(11, 12, done=False)],
    "expiry of what has expired": [put_for(2, A, 0, 1), expire(5, 4, 5, done=False), persist(6, 7, done=False)],
    "an unknown expiry": [put(A, 0, 1), expire(1, 2, 3, UNKNOWN), get(A, 4, 5), get(None, 5, 6)],
    "an unknown put that expires": [put_for(1, A, 0, 1, UNKNOWN), get(None, 2, 3), get(A, 4, 5), get(None, 6, 7)],
    "an unknown put that ended an older value": [
        put(A, 0, 1), put_for(1, B, 2, 3, UNKNOWN), get(A, 4, 5), get(None, 7, 8),
    ],
    "an unknown persist": [put_for(2, A, 0, 1), persist(1, 1.5, UNKNOWN), get(A, 9, 10)],
    "a counter expires": [add(5, 5, 0, 1), expire(1, 1, 2), add(1, 6, 2, 3), get(None, 4, 5), add(1, 1, 6, 7)],
    "within the slack of clocks": [put_for(2, A, 0, 1), get(A, 3.04, 4), get(None, 4, 5)],
    "a refused put, not seen": [put(A, 0, 1), put_if(If.VALUE, B, 2, 3, of=A, outcome=REFUSED), get(A, 4, 5)],
}  # fmt: skip

IMPOSSIBLE = {
    "a version that falls": [put(A, 0, 1), seen(A, 7, 2, 3), put(B, 4, 5), seen(B, 5, 6, 7)],
    "two writes of one version, which only refused puts name": [
        put(A, 0, 1), put_if(If.VERSION, b"c", 2, 3, done=False, version=7),
        put(B, 4, 5), put_if(If.VERSION, b"d", 6, 7, done=False, version=7),
    ],
    "a version that an unknown put has replaced": [
        put(A, 0, 1), put_if(If.VERSION, B, 2, 3, of=7, outcome=UNKNOWN), get(B, 4, 5),
        put(b"c", 6, 7), put_if(If.VERSION, b"d", 8, 9, done=False, version=7, of=3),
    ],
    "a version that an unknown delete has removed": [
        put(A, 0, 1), put_if(If.VERSION, None, 2, 3, of=7, outcome=UNKNOWN), get(None, 4, 5),
        put(b"c", 6, 7), put_if(If.VERSION, b"d", 8, 9, done=False, version=7, of=3),
    ],
    "a stale read": [put(A, 0, 1), put(B, 2, 3), get(A, 4, 5)],
    "an unknown write, done twice": [put(A, 0, 1, UNKNOWN), get(A, 2, 3), put(B, 4, 5), get(B, 6, 7), get(A, 8, 9)],
    "a refused put that took effect": [put(A, 0, 1), put_if(If.VALUE, B, 2, 3, of=A, outcome=REFUSED), get(B, 4, 5)],
    "two win": [put_if(If.ABSENT, A, 0, 5, version=1), put_if(If.ABSENT, B, 0, 5, version=2)],
    "put if absent, and it was there": [put(A, 0, 1), put_if(If.ABSENT, B, 2, 3, version=2)],
    "not put, though it was absent": [put_if(If.ABSENT, A, 0, 1, done=False, version=0)],
    "not put, though the value was right": [put(A, 0, 1), put_if(If.VALUE, B, 2, 3, done=False, version=1, of=A)],
    "not put, though the version was right": [
        put_if(If.ABSENT, A, 0, 1, version=1), put_if(If.VERSION, B, 2, 3, done=False, version=1, of=1),
    ],
    "put by an old version": [
        put_if(If.ABSENT, A, 0, 1, version=1), put(B, 2, 3), put_if(If.VERSION, C, 4, 5, version=3, of=1),
    ],
    "put by an old value": [put(A, 0, 1), put(B, 2, 3), put_if(If.VALUE, C, 4, 5, version=3, of=A)],
    "one version of two values": [
        put_if(If.ABSENT, A, 0, 9, version=1), put_if(If.VALUE, B, 0, 9, version=1, of=A), seen(B, 1, 10, 11),
    ],
    "a version that changes without a write": [put(A, 0, 1), seen(A, 1, 2, 3), seen(A, 2, 4, 5)],
    "another version than was told": [put_if(If.ABSENT, A, 0, 1, version=1), seen(A, 2, 2, 3)],
    "a condition that does not hold tells an old version": [
        put_if(If.ABSENT, A, 0, 1, version=1), put(B, 2, 3), put_if(If.ABSENT, C, 4, 5, done=False, version=1),
    ],
    "a value with version 0": [put(A, 0, 1), seen(A, 0, 2, 3)],
    "a put that makes version 0": [put_if(If.ABSENT, A, 0, 1, version=0)],
    "an unknown put whose condition can't have held": [
        put(A, 0, 1), put_if(If.ABSENT, B, 2, 3, outcome=UNKNOWN), get(B, 4, 5),
    ],
    "a lost increment": [add(1, 1, 0, 9), add(1, 1, 0, 9)],
    "a lost increment, by a read": [add(1, 1, 0, 1), add(1, 2, 2, 3), get(b"1", 4, 5)],
    "an increment that counts twice": [add(5, 5, 0, 1), get(b"10", 2, 3)],
    "an unknown increment that counts twice": [add(5, 0, 0, 1, UNKNOWN), get(b"5", 2, 3), get(b"10", 4, 5)],
    "an unknown increment that is taken back": [add(5, 0, 0, 1, UNKNOWN), get(b"5", 2, 3), get(None, 4, 5)],
    "a refused increment that counts": [add(5, 0, 0, 1, REFUSED), get(b"5", 2, 3)],
    "an increment before it was called": [get(b"5", 0, 1), add(5, 0, 2, 3, UNKNOWN)],
    "it expires too early": [put_for(2, A, 0, 1), get(None, 1.1, 1.9)],
    "it never expires": [put_for(2, A, 0, 1), get(A, 3.1, 4)],
    "it comes back": [put_for(2, A, 0, 1), get(None, 2, 2.2), get(A, 2.3, 2.4)],
    "it expires though it has no end": [put(A, 0, 1), get(None, 9, 10)],
    "expired, and not put if absent": [
        put_for(2, A, 0, 1, version=1), put_if(If.ABSENT, B, 4, 5, done=False, version=1),
    ],
    "put if absent, too early": [put_for(2, A, 0, 1), put_if(If.ABSENT, B, 1.1, 1.9, version=2)],
    "it says a wrong time": [put_for(2, A, 0, 1), seen(A, 1, 1, 2, 4)],
    "it says no time": [put_for(2, A, 0, 1), seen(A, 1, 1, 2)],
    "it says a time, and has none": [put(A, 0, 1), seen(A, 1, 1, 2, 9)],
    "it says two times": [put_for(2, A, 0, 1), seen(A, 1, 1, 1.5, 2.1), seen(A, 1, 1, 1.6, 2.9)],
    "it is there after the time that it says": [put_for(2, A, 0, 1, version=1), seen(A, 1, 1, 2, 2.1), get(A, 2.2, 3)],
    "it is gone before the time that it says": [
        put_for(2, A, 0, 1, version=1), seen(A, 1, 1, 2, 2.9), get(None, 2.2, 2.8),
    ],
    "an expiry that is not put off": [put_for(2, A, 0, 1), expire(5, 1, 2), get(None, 4, 5)],
    "not persisted": [put_for(2, A, 0, 1), persist(1, 1.5), get(None, 4, 5)],
    "persisted what has no end": [put(A, 0, 1), persist(1, 2)],
    "an expiry of nothing": [expire(5, 1, 2)],
    "an overwrite keeps the old end": [put_for(2, A, 0, 1), put(B, 1.1, 1.5), get(None, 4, 5)],
    "an increment forgets the end": [put_for(2, b"5", 0, 1), add(1, 6, 1, 1.5), get(b"6", 4, 5)],
    "an unknown expiry, too early": [put(A, 0, 1), expire(5, 2, 3, UNKNOWN), get(None, 5, 6)],
    "an unknown put, which comes back": [
        put_for(9, A, 0, 1, UNKNOWN), get(A, 2, 3), delete(4, 5), get(A, 6, 7),
    ],
}  # fmt: skip


@pytest.mark.parametrize("history", POSSIBLE.values(), ids=POSSIBLE)
def test_possible(history: list[Operated]) -> None:
    result = check(history, slack=SLACK)
    assert result.verdict is Verdict.LINEARIZABLE, result.reason


@pytest.mark.parametrize("history", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible(history: list[Operated]) -> None:
    result = check(history, slack=SLACK)
    assert (result.verdict, result.key) == (Verdict.VIOLATION, KEY)
    assert result.reason


def test_each_key_is_judged_alone() -> None:
    other = [replace(event, key=b"other") for event in IMPOSSIBLE["a lost increment"]]
    assert check(POSSIBLE["increments"] + other).key == b"other"


def test_histories_that_say_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="put twice"):
        check([put(A, 0, 1), put(A, 2, 3)])
    with pytest.raises(ValueError, match="negative"):
        check([add(-1, -1, 0, 1)])


def test_what_is_answered_together_is_tried_in_the_order_of_the_calls() -> None:
    """A leader that was elected late answers all waiting requests at the same time. The checker first tries the order
    in which they were called, so it needs few steps.
    """
    unknown = [expire(ttl, 0, 1, UNKNOWN) for ttl in (1, 2, 3, 4)] + [persist(0, 1, UNKNOWN) for _ in range(4)]
    together = [put(b"%d" % number, 1 + number / 100, 3) for number in range(12)]
    changed = [put_if(If.VALUE, b"last %d" % i, 2 + i / 100, 3, of=b"%d" % i, done=False, version=-2) for i in range(8)]
    history = [*unknown, *together, *[replace(one, version=None) for one in changed], get(b"11", 4, 5)]
    assert check(history, steps=1000).verdict is Verdict.LINEARIZABLE


@pytest.mark.timeout(20)
def test_many_increments_without_an_answer_are_not_a_riddle() -> None:
    """The increments are nearly equal, so nearly every sum looks possible. The checker has to notice early if a sum
    isn't possible.
    """
    amounts = [2**32 + number for number in random.Random(1).sample(range(1000), 24)]
    unknown = [add(by, 0, 0, 1, UNKNOWN) for by in amounts]
    assert check([*unknown, get(b"%d" % sum(amounts[:12]), 2, 3)]).verdict is Verdict.LINEARIZABLE
    assert check([*unknown, get(b"%d" % (12 * 2**32), 2, 3)]).verdict is Verdict.VIOLATION


def test_too_many_steps_are_not_an_answer() -> None:
    writes = [put(b"%d" % i, 0, 100) for i in range(12)]
    reads = [get(b"%d" % i, 101 + 2 * i, 102 + 2 * i) for i in range(12)]
    assert check([*writes, *reads], steps=100).verdict is Verdict.UNDECIDED


@pytest.mark.seeds(3)
def test_it_agrees_with_the_checker_of_registers(seed: int) -> None:
    rng = random.Random(seed)
    verdicts = []
    for _ in range(60):
        history = scrambled_plain(rng, recorded_plain(rng, operations=8, clients=3, span=4.0))
        expected = check_plain(history).verdict
        verdicts.append(expected)
        assert check(map(as_operated, history)).verdict is expected, history
    assert {Verdict.LINEARIZABLE, Verdict.VIOLATION} <= set(verdicts)


def as_operated(event: Event) -> Operated:
    if event.kind is Plain.READ:
        return Operated(KEY, Kind.GET, event.called, event.returned, event.outcome, found=event.value)
    return put(event.value, event.called, event.returned, event.outcome)


@pytest.mark.seeds(3)
def test_it_agrees_with_trying_every_order(seed: int) -> None:
    """The keys have no lifetimes, since an order of the operations doesn't show when a key expires."""
    rng = random.Random(seed)
    verdicts: list[bool] = []
    for number in range(1000):
        store = Store(rng, rng.choice(["", "decides late", "a version comes again"]))
        history = recorded(rng, store, 6, 3, 4.0, counts=number % 2 == 0, lifetimes=False, weights=(8, 1, 2))
        expected = some_order_explains(history)
        verdicts.append(expected)
        assert (check(history).verdict is Verdict.LINEARIZABLE) == expected, history
        if len(verdicts) >= 60 and len(set(verdicts)) == 2:
            break
    assert {True, False} <= set(verdicts)


@pytest.mark.parametrize("counts", [False, True], ids=["registers", "counters"])
@pytest.mark.seeds(3)
def test_a_store_without_faults_is_accepted(seed: int, counts: bool) -> None:
    """A thousand operations, many of them without an answer."""
    rng = random.Random(seed)
    history = recorded(rng, Store(rng, ""), 1000, 4, 0.3, counts=counts, lifetimes=True)
    assert sum(event.outcome is UNKNOWN for event in history) > 30
    result = check(history, slack=0.001)
    assert result.verdict is Verdict.LINEARIZABLE, result.reason


FAULTS = {
    "decides late": False,
    "ignores conditions": False,
    "a version comes again": False,
    "does it twice": False,
    "does what it refuses": False,
    "loses it": False,
    "expires early": False,
    "never expires": False,
    "it comes back": False,
    "keeps the old end": False,
    "decides late, counters": True,
    "does it twice, counters": True,
    "does what it refuses, counters": True,
    "loses it, counters": True,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_with_a_fault_is_found_out(fault: str) -> None:
    verdicts = []
    for seed in range(8):
        rng = random.Random(seed)
        store = Store(rng, fault.partition(",")[0])
        history = recorded(rng, store, 250, 4, 0.3, counts=FAULTS[fault], lifetimes=True)
        verdicts.append(check(history, slack=0.001).verdict)
    assert Verdict.UNDECIDED not in verdicts
    assert verdicts.count(Verdict.VIOLATION) >= 2, "in the other histories, the fault may have had no visible effect"


@dataclass
class Cell:
    value: bytes | None = None
    version: int = 0
    expires: float | None = None


class Store:
    """A store of one key, which does one operation at a time. Now and then the given fault happens."""

    def __init__(self, rng: random.Random, fault: str) -> None:
        self._rng = rng
        self._fault = fault
        self._version = 0
        self._cell = Cell()
        self._before = Cell()
        self._expired = Cell()

    def _now_and_then(self, fault: str, share: float = 0.2) -> bool:
        return self._fault == fault and self._rng.random() < share

    def refuses(self) -> bool:
        """Called for an operation whose answer is a refusal. True if the store really refuses the operation. False if
        the fault happens: the store does the operation, although the answer is a refusal.
        """
        return not self._now_and_then("does what it refuses", 0.5)

    def times(self) -> int:
        """Return how many times the store does one operation: once, unless the fault happens."""
        return 2 if self._now_and_then("does it twice", 0.5) else 0 if self._now_and_then("loses it") else 1

    def see(self, now: float) -> Cell:
        """Let the key expire if its time has come, and return the present cell."""
        expires = self._cell.expires
        if expires is not None and expires <= now and not self._now_and_then("never expires", 1):
            self._expired, self._cell = self._cell, Cell()
        if self._cell.value is None and self._now_and_then("it comes back"):
            return self._expired
        return self._cell

    def do(self, event: Operated, now: float) -> Operated:
        """Do the operation, and fill in the answer."""
        cell = self.see(now)
        if event.kind is Kind.GET:
            return replace(event, found=cell.value)
        if event.kind is Kind.GET_VERSIONED:
            return replace(event, found=cell.value, version=cell.version, expires=cell.expires)
        there = self._before if self._now_and_then("decides late") else cell
        if event.kind is Kind.ADD:
            number = int(there.value or 0) + event.by
            self._write(b"%d" % number, cell.expires)
            return replace(event, number=number)
        if event.kind is Kind.PUT:
            if not holds(event, there.value, there.version) and not self._now_and_then("ignores conditions"):
                return replace(event, done=False, version=there.version)
            kept = cell.expires if self._now_and_then("keeps the old end") else None
            self._write(event.value, self._until(event, now) if event.ttl is not None else kept)
            tells = event.condition is not If.ALWAYS or event.ttl is not None
            return replace(event, version=self._cell.version if tells else None)
        done = there.value is not None if event.kind is Kind.EXPIRE else there.expires is not None
        if done and cell.value is not None:
            self._write(cell.value, self._until(event, now))
        return replace(event, done=done)

    def _until(self, event: Operated, now: float) -> float | None:
        if event.ttl is None:
            return None
        return now + event.ttl * (0.5 if self._now_and_then("expires early") else 1)

    def _write(self, value: bytes | None, expires: float | None) -> None:
        self._version += not self._now_and_then("a version comes again")
        self._before = self._cell
        self._cell = Cell(value, self._version, expires) if value is not None else Cell()


def holds(event: Operated, value: bytes | None, version: int) -> bool:
    return {
        If.ALWAYS: True,
        If.ABSENT: value is None,
        If.PRESENT: value is not None,
        If.VALUE: value == event.expected,
        If.VERSION: version == event.expected_version,
    }[event.condition]


def recorded(
    rng: random.Random,
    store: Store,
    operations: int,
    clients: int,
    span: float,
    *,
    counts: bool,
    lifetimes: bool,
    weights: tuple[float, float, float] = (16, 1, 1),
) -> list[Operated]:
    """The events that clients see of a store. Each operation with an answer takes effect between its call and the
    answer.
    """
    free = [0.0] * clients
    planned = []
    for number in range(operations):
        client = rng.randrange(clients)
        called = free[client] + rng.random() * span / 2
        free[client] = called + rng.random() * span
        at = called + rng.random() * (free[client] - called)
        outcome = rng.choices([OK, REFUSED, UNKNOWN], weights=weights)[0]
        if outcome is UNKNOWN:
            at += rng.choice([0.0, 3 * span, 1e9])
        planned.append((at, number, called, free[client], outcome))
    history: list[Operated] = []
    known: list[tuple[bytes, int]] = [(b"nothing", 0)]  # values with versions that a client has seen
    for at, number, called, returned, outcome in sorted(planned):
        event = asked(rng, number, called, returned, rng.choice(known[-3:]), counts=counts, lifetimes=lifetimes)
        event = replace(event, outcome=outcome)
        if outcome is REFUSED and store.refuses():
            history.append(event)
            continue
        answered = store.do(event, at) if (times := store.times()) or event.is_read else event
        if times == 0 and not event.is_read:
            shadow = store.see(at)
            answered = replace(event, number=int(shadow.value or 0) + event.by) if counts else event
            answered = replace(answered, version=shadow.version + 1) if event.condition is not If.ALWAYS else answered
        if times == 2:
            store.do(event, at)
        if outcome is OK and event.kind is Kind.GET_VERSIONED and answered.found is not None:
            known.append((answered.found, answered.version or 0))
        history.append(answered if outcome is OK else event)
    return history


def asked(
    rng: random.Random,
    number: int,
    called: float,
    returned: float,
    known: tuple[bytes, int],
    *,
    counts: bool,
    lifetimes: bool,
) -> Operated:
    """A request that a client may make. Each value that is put to a register is unique."""
    if counts:
        kind = rng.choice([Kind.GET, Kind.GET_VERSIONED, Kind.ADD, Kind.ADD])
        return Operated(KEY, kind, called, returned, by=rng.randrange(1, 10**6) if kind is Kind.ADD else 0)
    kinds = [Kind.GET, Kind.GET_VERSIONED, Kind.GET_VERSIONED, Kind.PUT, Kind.PUT, Kind.PUT]
    kind = rng.choice([*kinds, Kind.EXPIRE, Kind.PERSIST] if lifetimes else kinds)
    ttl = rng.random() if kind is Kind.EXPIRE or (kind is Kind.PUT and lifetimes and rng.random() < 0.3) else None
    if kind is not Kind.PUT:
        return Operated(KEY, kind, called, returned, ttl=ttl)
    condition = rng.choice([If.ALWAYS, If.ABSENT, If.VALUE, If.VERSION])
    value = None if rng.random() < 0.2 and ttl is None and condition is not If.ABSENT else b"%d" % number
    expected = known[0] if condition is If.VALUE else b""
    version = known[1] if condition is If.VERSION else 0
    return Operated(KEY, kind, called, returned, OK, value, condition, expected, version, ttl=ttl)


def some_order_explains(history: Sequence[Operated]) -> bool:
    """True if an order of operations fits all times and answers. The order has all operations that were done, and some
    of those that may have been done.
    """
    done = [event for event in history if event.outcome is OK]
    perhaps = [event for event in history if event.outcome is UNKNOWN and not event.is_read]
    return any(
        any(explains(order) for order in orders(done, chosen))
        for count in range(len(perhaps) + 1)
        for chosen in combinations(perhaps, count)
    )


def orders(done: Sequence[Operated], chosen: Sequence[Operated]) -> Iterator[Sequence[Operated]]:
    for order in permutations([*done, *chosen]):
        latest = inf
        for event in reversed(order):
            latest = min(latest, event.returned if event.outcome is OK else inf)
            if event.called > latest:
                break
        else:
            yield order


def explains(order: Iterable[Operated]) -> bool:
    """True if a store that did these operations in this order would give these answers. Each write makes a new version,
    whose number is unknown until an answer names it. No two writes have the same number.
    """
    value: bytes | None = None
    made, told = 0, {0: 0}  # `told`: the version of each write, by the write's number
    writes = 0
    for event in order:
        if event.outcome is not OK:
            version = told.get(made, -1)
            if event.kind is Kind.PUT and event.condition is If.VERSION and version == -1:
                if event.expected_version in told.values():
                    continue
                told[made] = version = event.expected_version
            if event.kind is Kind.PUT and not holds(event, value, version):
                continue
        if event.outcome is OK and not answer_fits(event, value, made, told):
            return False
        if event.is_read or not event.done:
            continue
        writes += 1
        value = b"%d" % (int(value or 0) + event.by) if event.kind is Kind.ADD else event.value
        made = 0 if value is None else writes
        if event.outcome is OK and event.version is not None and made and not tell(told, made, event.version):
            return False
    return True


def answer_fits(event: Operated, value: bytes | None, made: int, told: dict[int, int]) -> bool:
    if event.kind is Kind.GET:
        return event.found == value
    if event.kind is Kind.GET_VERSIONED:
        return event.found == value and event.version is not None and tell(told, made, event.version)
    if event.kind is Kind.ADD:
        return event.number == int(value or 0) + event.by
    if not event.done:
        is_told = event.version is not None and tell(told, made, event.version)
        return is_told and not holds(event, value, told[made])
    if event.condition is If.VERSION and not tell(told, made, event.expected_version):
        return False
    return holds(event, value, told.get(made, -1))


def tell(told: dict[int, int], made: int, version: int) -> bool:
    """Record in `told` that this version was made by the write with the number `made`. Returns False if `told` has
    another version for this write, or has this version for another write.
    """
    if made in told:
        return told[made] == version
    if version in told.values():
        return False
    told[made] = version
    return True
