"""The effect of a group of operations on the present rows, one operation after the other."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, NamedTuple

from minka.errors import Code, MinkaError
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
from minka.wire.kv_frames import MAX_ANSWER_BYTES, MAX_BODY_BYTES, MAX_VALUE_BYTES
from minka.wire.stored_values import expiry_of, has_expired, has_value, head, value_of, version_of
from minkad.core.operations import numbers

_MAX_MOVED_BYTES: Final = 128 * 1024 * 1024  # about what can be copied within 50 ms


class Decision(NamedTuple):
    """The rows that change, in their stored form (None: deleted), and the outcome of each operation."""

    rows: dict[bytes, bytes | None]
    outcomes: list[Outcome]


def keys_of(operations: Sequence[Operation]) -> list[bytes]:
    """The keys that the operations concern."""
    return [key for one in operations for key in (one.keys if isinstance(one, SetAllIfAbsent) else (one.key,))]


def decide(
    operations: Sequence[Operation],
    row_of: Callable[[bytes], bytes | None],
    now_ms: int,
    version: int,
    loaded_version: int,
    expiring: Sequence[bytes] = (),
    max_answer_bytes: int = MAX_ANSWER_BYTES,
) -> Decision:
    """`row_of` gives a key's row in its stored form, at `now_ms` by the leader's clock. The rows that the n-th
    operation changes (from 0 on) get the version `version` + n; loaded rows have `loaded_version`. A key that has
    expired counts as absent, and is deleted; so are the keys of `expiring` that have expired. Raises TOO_LARGE if
    several operations together return, write or move more bytes than one group may: they have to come one by one.
    """
    deciding = _Deciding(row_of, now_ms, version, loaded_version)
    deciding.remove_expired(expiring)
    outcomes = []
    for number, operation in enumerate(operations):
        deciding.version = version + number
        outcomes.append(deciding.outcome(operation))
        deciding.check(outcomes[-1], max_answer_bytes, is_only=len(operations) == 1)
    return Decision(deciding.changed, outcomes)


class _Deciding:
    def __init__(self, row_of: Callable[[bytes], bytes | None], now_ms: int, version: int, loaded_version: int) -> None:
        self.changed: dict[bytes, bytes | None] = {}
        self._row_of = row_of
        self._now_ms = now_ms
        self.version = version
        self._loaded_version = loaded_version
        self._answered = 0  # bytes of values in outcomes
        self._kept = 0  # of rows that change
        self._moved = 0  # of values that were read or written

    def check(self, outcome: Outcome, max_answer_bytes: int, *, is_only: bool) -> None:
        """Raises TOO_LARGE."""
        self._answered += len(outcome.value or b"")
        is_too_large = self._kept > MAX_BODY_BYTES or self._moved > _MAX_MOVED_BYTES
        if self._answered > max_answer_bytes or (is_too_large and not is_only):
            raise MinkaError(Code.TOO_LARGE, "the operations return or write too much at once; nothing was done")

    def outcome(self, operation: Operation) -> Outcome:
        match operation:
            case Set():
                return self._set(operation)
            case Add():
                return self._add(operation)
            case AddFloat():
                return self._add_float(operation)
            case Append():
                old = self._value(operation.key)
                return self._lengthen(operation.key, old + operation.value)
            case SetRange():
                return self._set_range(operation)
            case Expire():
                return self._expire(operation)
            case SetAllIfAbsent():
                return self._set_all_if_absent(operation)

    def remove_expired(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._row(key)

    # Rows

    def _row(self, key: bytes) -> bytes | None:
        if key in self.changed:
            return self.changed[key]
        row = self._row_of(key)
        self._moved += len(row or b"")
        if row is not None and has_expired(row, self._now_ms):
            self.changed[key] = row = None
        return row

    def _value(self, key: bytes) -> bytes:
        row = self._row(key)
        return b"" if row is None else value_of(row)

    def _version_of(self, row: bytes | None) -> int:
        return 0 if row is None else version_of(row) or self._loaded_version

    def _put(self, key: bytes, value: bytes | None, expires_ms: int) -> int:
        """Write the row, and return its version. A time that has passed deletes it."""
        is_over = 0 < expires_ms <= self._now_ms
        if value is None or is_over:
            if self._row(key) is not None:
                self.changed[key] = None
            return 0
        self._kept += len(value) - len(self.changed.get(key) or b"")
        self._moved += len(value)
        self.changed[key] = head(self.version, expires_ms) + value
        return self.version

    def _put_kept(self, key: bytes, value: bytes) -> int:
        """Write the row with the expiry that it has."""
        row = self._row(key)
        return self._put(key, value, 0 if row is None else expiry_of(row))

    def _until(self, lifetime: Lifetime, ms: int, row: bytes | None) -> int:
        """The time when the row is to expire, in Unix milliseconds; 0: never."""
        match lifetime:
            case Lifetime.UNLIMITED:
                return 0
            case Lifetime.KEPT:
                return 0 if row is None else expiry_of(row)
            case Lifetime.FOR:
                return min(self._now_ms + ms, MAX_EXPIRY_MS)
            case Lifetime.UNTIL:
                return max(1, ms)

    # Operations

    def _set(self, operation: Set) -> Outcome:
        key, row = operation.key, self._row(operation.key)
        former = value_of(row) if operation.wants_value and row is not None else None
        if not self._holds(operation, row):
            return Outcome(False, self._version_of(row), value=former)
        version = self._put(key, operation.value, self._until(operation.lifetime, operation.ms, row))
        return Outcome(True, version, value=former)

    def _holds(self, operation: Set, row: bytes | None) -> bool:
        match operation.condition:
            case If.ALWAYS:
                return True
            case If.ABSENT:
                return row is None
            case If.PRESENT:
                return row is not None
            case If.VALUE:
                return row is not None and has_value(row, operation.expected)
            case If.VERSION:
                return self._version_of(row) == operation.version

    def _refused(self, key: bytes, refusal: Refusal) -> Outcome:
        return Outcome(False, self._version_of(self._row(key)), refusal=refusal)

    def _add(self, operation: Add) -> Outcome:
        key = operation.key
        number = numbers.integer(b"0" if self._row(key) is None else self._value(key))
        if number is None:
            return self._refused(key, Refusal.NOT_AN_INTEGER)
        number += operation.by
        if not (numbers.fits(operation.by) and numbers.fits(number)):
            return self._refused(key, Refusal.OVERFLOW)
        return Outcome(True, self._put_kept(key, b"%d" % number), number)

    def _add_float(self, operation: AddFloat) -> Outcome:
        key = operation.key
        number = numbers.decimal(b"0" if self._row(key) is None else self._value(key))
        by = numbers.decimal(operation.by)
        if number is None or by is None:
            return self._refused(key, Refusal.NOT_A_FLOAT)
        found = numbers.total(number, by)
        if found is None:
            return self._refused(key, Refusal.OVERFLOW)
        return Outcome(True, self._put_kept(key, found), value=found)

    def _set_range(self, operation: SetRange) -> Outcome:
        key, part, offset = operation.key, operation.value, operation.offset
        old = self._value(key)
        if not part:
            return Outcome(True, self._version_of(self._row(key)), len(old))
        if offset + len(part) > MAX_VALUE_BYTES:
            return self._refused(key, Refusal.TOO_LARGE)
        return self._lengthen(key, old[:offset].ljust(offset, b"\0") + part + old[offset + len(part) :])

    def _lengthen(self, key: bytes, value: bytes) -> Outcome:
        if len(value) > MAX_VALUE_BYTES:
            return self._refused(key, Refusal.TOO_LARGE)
        return Outcome(True, self._put_kept(key, value), len(value))

    def _expire(self, operation: Expire) -> Outcome:
        key, row = operation.key, self._row(operation.key)
        if row is None:
            return Outcome(False)
        value = value_of(row)
        present, until = expiry_of(row), self._until(operation.lifetime, operation.ms, row)
        found = value if operation.wants_value else None
        if not (present or until) or not _may_change(operation.condition, present, until):
            return Outcome(False, self._version_of(row), value=found)
        return Outcome(True, self._put(key, value, until), value=found)

    def _set_all_if_absent(self, operation: SetAllIfAbsent) -> Outcome:
        if any(self._row(key) is not None for key in operation.keys):
            return Outcome(False)
        for key, value in zip(operation.keys, operation.values, strict=True):
            self._put(key, value, 0)
        return Outcome(True, self.version)


def _may_change(condition: OnlyIf, present_ms: int, until_ms: int) -> bool:
    present, until = present_ms or inf, until_ms or inf
    match condition:
        case OnlyIf.ALWAYS:
            return True
        case OnlyIf.UNLIMITED:
            return not present_ms
        case OnlyIf.LIMITED:
            return bool(present_ms)
        case OnlyIf.LATER:
            return until > present
        case OnlyIf.EARLIER:
            return until < present
        case OnlyIf.LIMITED_EARLIER:
            return bool(present_ms) and until < present
