"""Decisions about operations on keys, given the keys' present rows."""

import tracemalloc
from collections.abc import Sequence

import pytest

from minka.errors import MinkaError
from minka.wire.key_operations import (
    MAX_EXPIRY_MS,
    Add,
    AddFloat,
    Append,
    Expire,
    If,
    Lifetime,
    OnlyIf,
    Operation,
    Outcome,
    Refusal,
    Set,
    SetAllIfAbsent,
    SetRange,
)
from minka.wire.kv_frames import MAX_ANSWER_BYTES, MAX_VALUE_BYTES
from minka.wire.stored_values import LOADED, head
from minkad.core.operations import Decision, decide, keys_of

NOW = 1_000_000
NEW = 90  # the version of the first row that is written
OLD = 7
LOADED_VERSION = 5000
SOON = NOW + 5
THERE = {
    b"k": head(OLD) + b"v",
    b"n": head(OLD) + b"41",
    b"soon": head(OLD, SOON) + b"10",
    b"over": head(OLD, NOW) + b"x",
    b"loaded": LOADED + b"v",
}


def decided(*operations: Operation, expiring: Sequence[bytes] = ()) -> Decision:
    return decide(operations, THERE.get, NOW, NEW, LOADED_VERSION, expiring)


def put(value: bytes, expires_ms: int = 0) -> bytes:
    return head(NEW, expires_ms) + value


@pytest.mark.parametrize(
    ("operation", "row", "outcome"),
    [
        (Set(b"k", b"w"), put(b"w"), Outcome(True, NEW)),
        (Set(b"k", b"w", wants_value=True), put(b"w"), Outcome(True, NEW, value=b"v")),
        (Set(b"x", b"w", wants_value=True), put(b"w"), Outcome(True, NEW)),
        (Set(b"x", b"w", If.ABSENT), put(b"w"), Outcome(True, NEW)),
        (Set(b"over", b"w", If.ABSENT), put(b"w"), Outcome(True, NEW)),
        (Set(b"k", b"w", If.PRESENT), put(b"w"), Outcome(True, NEW)),
        (Set(b"k", b"w", If.VALUE, b"v"), put(b"w"), Outcome(True, NEW)),
        (Set(b"k", b"w", If.VERSION, version=OLD), put(b"w"), Outcome(True, NEW)),
        (Set(b"loaded", b"w", If.VERSION, version=LOADED_VERSION), put(b"w"), Outcome(True, NEW)),
        (Set(b"x", b"w", If.VERSION, version=0), put(b"w"), Outcome(True, NEW)),
        (Set(b"k", None, If.PRESENT), None, Outcome(True, 0)),
        (Set(b"k", None, If.VERSION, version=OLD, wants_value=True), None, Outcome(True, 0, value=b"v")),
        (Set(b"soon", b"w"), put(b"w"), Outcome(True, NEW)),
        (Set(b"soon", b"w", lifetime=Lifetime.KEPT), put(b"w", SOON), Outcome(True, NEW)),
        (Set(b"x", b"w", lifetime=Lifetime.KEPT), put(b"w"), Outcome(True, NEW)),
        (Set(b"k", b"w", lifetime=Lifetime.FOR, ms=9), put(b"w", NOW + 9), Outcome(True, NEW)),
        (Set(b"k", b"w", lifetime=Lifetime.UNTIL, ms=NOW + 1), put(b"w", NOW + 1), Outcome(True, NEW)),
        (Set(b"k", b"w", lifetime=Lifetime.UNTIL, ms=NOW), None, Outcome(True, 0)),
        (Set(b"k", b"w", lifetime=Lifetime.UNTIL, ms=0), None, Outcome(True, 0)),
        (Add(b"n", 1), put(b"42"), Outcome(True, NEW, 42)),
        (Add(b"x", -3), put(b"-3"), Outcome(True, NEW, -3)),
        (Add(b"soon", 1), put(b"11", SOON), Outcome(True, NEW, 11)),
        (Add(b"over", 1), put(b"1"), Outcome(True, NEW, 1)),
        (AddFloat(b"n", b"0.5"), put(b"41.5"), Outcome(True, NEW, value=b"41.5")),
        (Append(b"k", b"w"), put(b"vw"), Outcome(True, NEW, 2)),
        (Append(b"x", b""), put(b""), Outcome(True, NEW, 0)),
        (Append(b"soon", b"0"), put(b"100", SOON), Outcome(True, NEW, 3)),
        (SetRange(b"n", 1, b"234"), put(b"4234"), Outcome(True, NEW, 4)),
        (SetRange(b"x", 2, b"y"), put(b"\0\0y"), Outcome(True, NEW, 3)),
        (Expire(b"k", Lifetime.FOR, 9), put(b"v", NOW + 9), Outcome(True, NEW)),
        (Expire(b"soon", Lifetime.UNLIMITED, wants_value=True), put(b"10"), Outcome(True, NEW, value=b"10")),
        (Expire(b"k", Lifetime.UNTIL, NOW), None, Outcome(True, 0)),
        (Expire(b"soon", Lifetime.UNTIL, SOON), put(b"10", SOON), Outcome(True, NEW)),
        (Expire(b"k", Lifetime.FOR, 9, OnlyIf.UNLIMITED), put(b"v", NOW + 9), Outcome(True, NEW)),
        (Expire(b"soon", Lifetime.FOR, 9, OnlyIf.LIMITED), put(b"10", NOW + 9), Outcome(True, NEW)),
        (Expire(b"soon", Lifetime.FOR, 6, OnlyIf.LATER), put(b"10", NOW + 6), Outcome(True, NEW)),
        (Expire(b"soon", Lifetime.FOR, 4, OnlyIf.EARLIER), put(b"10", NOW + 4), Outcome(True, NEW)),
        (Expire(b"k", Lifetime.FOR, 4, OnlyIf.EARLIER), put(b"v", NOW + 4), Outcome(True, NEW)),
        (Expire(b"soon", Lifetime.FOR, 4, OnlyIf.LIMITED_EARLIER), put(b"10", NOW + 4), Outcome(True, NEW)),
        (Expire(b"soon", Lifetime.UNTIL, 0, OnlyIf.LIMITED_EARLIER), None, Outcome(True, 0)),
        (Expire(b"k", Lifetime.UNTIL, MAX_EXPIRY_MS), put(b"v", MAX_EXPIRY_MS), Outcome(True, NEW)),
        (Expire(b"k", Lifetime.FOR, MAX_EXPIRY_MS), put(b"v", MAX_EXPIRY_MS), Outcome(True, NEW)),
    ],
)
def test_operations_that_write(operation: Operation, row: bytes | None, outcome: Outcome) -> None:
    assert decided(operation) == Decision({keys_of([operation])[0]: row}, [outcome])


@pytest.mark.parametrize(
    ("operation", "outcome"),
    [
        (Set(b"k", b"w", If.ABSENT, wants_value=True), Outcome(False, OLD, value=b"v")),
        (Set(b"x", b"w", If.PRESENT), Outcome(False, 0)),
        (Set(b"k", b"w", If.VALUE, b"w"), Outcome(False, OLD)),
        (Set(b"x", b"w", If.VALUE, b""), Outcome(False, 0)),
        (Set(b"k", b"w", If.VERSION, version=OLD + 1), Outcome(False, OLD)),
        (Set(b"k", b"w", If.VERSION, version=0), Outcome(False, OLD)),
        (Set(b"loaded", b"w", If.ABSENT), Outcome(False, LOADED_VERSION)),
        (Set(b"x", None), Outcome(True, 0)),
        (Set(b"x", None, If.PRESENT), Outcome(False, 0)),
        (Add(b"k", 1), Outcome(False, OLD, refusal=Refusal.NOT_AN_INTEGER)),
        (Add(b"n", 2**63 - 41), Outcome(False, OLD, refusal=Refusal.OVERFLOW)),
        (Add(b"x", 2**63), Outcome(False, 0, refusal=Refusal.OVERFLOW)),
        (AddFloat(b"k", b"1"), Outcome(False, OLD, refusal=Refusal.NOT_A_FLOAT)),
        (AddFloat(b"n", b"one"), Outcome(False, OLD, refusal=Refusal.NOT_A_FLOAT)),
        (Append(b"k", b"w" * MAX_VALUE_BYTES), Outcome(False, OLD, refusal=Refusal.TOO_LARGE)),
        (SetRange(b"k", MAX_VALUE_BYTES, b"w"), Outcome(False, OLD, refusal=Refusal.TOO_LARGE)),
        (SetRange(b"k", MAX_VALUE_BYTES, b""), Outcome(True, OLD, 1)),
        (Expire(b"x", Lifetime.FOR, 1), Outcome(False)),
        (Expire(b"k", Lifetime.UNLIMITED, wants_value=True), Outcome(False, OLD, value=b"v")),
        (Expire(b"soon", Lifetime.FOR, 9, OnlyIf.UNLIMITED), Outcome(False, OLD)),
        (Expire(b"k", Lifetime.FOR, 9, OnlyIf.LIMITED), Outcome(False, OLD)),
        (Expire(b"soon", Lifetime.FOR, 5, OnlyIf.LATER), Outcome(False, OLD)),
        (Expire(b"k", Lifetime.FOR, 5, OnlyIf.LATER), Outcome(False, OLD)),
        (Expire(b"soon", Lifetime.FOR, 5, OnlyIf.EARLIER), Outcome(False, OLD)),
        (Expire(b"soon", Lifetime.FOR, 5, OnlyIf.LIMITED_EARLIER), Outcome(False, OLD)),
        (Expire(b"k", Lifetime.FOR, 4, OnlyIf.LIMITED_EARLIER), Outcome(False, OLD)),
        (Expire(b"soon", Lifetime.KEPT, 0, OnlyIf.LATER, wants_value=True), Outcome(False, OLD, value=b"10")),
        (Expire(b"k", Lifetime.KEPT, 0, OnlyIf.LATER, wants_value=True), Outcome(False, OLD, value=b"v")),
        (SetAllIfAbsent([b"x", b"k"], [b"1", b"2"]), Outcome(False)),
    ],
)
def test_operations_that_change_nothing(operation: Operation, outcome: Outcome) -> None:
    assert decided(operation) == Decision({}, [outcome])


@pytest.mark.parametrize(
    "operation", [Set(b"over", b"w", If.PRESENT), Set(b"over", None), Expire(b"over", Lifetime.FOR, 9)]
)
def test_an_expired_row_that_decides_an_operation_is_deleted(operation: Operation) -> None:
    assert decided(operation).rows == {b"over": None}


def test_keys_to_be_removed_are_removed_only_if_they_have_expired() -> None:
    assert decided(expiring=[b"over", b"soon", b"k", b"x"]) == Decision({b"over": None}, [])


def test_each_operation_sees_the_effects_of_those_before_it() -> None:
    operations: list[Operation] = [
        Add(b"x", 2),
        Add(b"x", 3),
        Set(b"x", None, If.PRESENT),
        Set(b"x", b"9", If.ABSENT),
        Append(b"x", b"0"),
    ]
    found = decided(*operations)
    assert found.rows == {b"x": head(NEW + 4) + b"90"}
    assert [one.number for one in found.outcomes] == [2, 5, 0, 0, 2]
    assert [one.version for one in found.outcomes] == [NEW, NEW + 1, 0, NEW + 3, NEW + 4], "no version has two values"
    assert all(one.done for one in found.outcomes)


def test_all_pairs_are_put_if_no_key_exists() -> None:
    assert decided(SetAllIfAbsent([b"x", b"over"], [b"1", b"2"])) == Decision(
        {b"x": put(b"1"), b"over": put(b"2")}, [Outcome(True, NEW)]
    )
    assert keys_of([SetAllIfAbsent([b"x", b"y"], [b"1", b"2"]), Add(b"z", 1)]) == [b"x", b"y", b"z"]


def test_a_group_that_reads_or_writes_too_much_is_refused() -> None:
    value = bytes(MAX_VALUE_BYTES - 10)
    rows = {b"k%d" % number: head(5) + value for number in range(3)}
    for several, most in (
        ([Expire(key, Lifetime.KEPT, 0, OnlyIf.LATER, wants_value=True) for key in rows], MAX_VALUE_BYTES),
        ([Append(key, b"x") for key in rows], MAX_ANSWER_BYTES),
        ([Append(b"k0", b"x")] * 9, MAX_ANSWER_BYTES),
    ):
        with pytest.raises(MinkaError, match="TOO_LARGE"):
            decide(several, rows.get, 0, 7, 0, max_answer_bytes=most)
        assert decide(several[:1], rows.get, 0, 7, 0, max_answer_bytes=most).outcomes


@pytest.mark.parametrize("expires_ms", [0, SOON])
def test_a_compared_value_is_the_whole_value(expires_ms: int) -> None:
    row = head(OLD, expires_ms) + b"value"
    for expected in (b"", b"e", b"alue", b"valu", b"valuf", b"\0value", row, row[1:], row[8:], b"value"):
        set_if = Set(b"k", b"w", If.VALUE, expected)
        decision = decide([set_if], lambda _: row, NOW, NEW, LOADED_VERSION)
        assert decision.outcomes[0].done is (expected == b"value"), expected


def test_a_comparison_copies_no_value() -> None:
    size = 4_000_000
    row, expected = head(OLD) + bytes(size), bytes(size - 1) + b"x"
    set_if = Set(b"k", b"w", If.VALUE, expected)
    tracemalloc.start()
    try:
        decide([set_if], lambda _: row, NOW, NEW, LOADED_VERSION)
        assert tracemalloc.get_traced_memory()[1] < size / 2
    finally:
        tracemalloc.stop()
