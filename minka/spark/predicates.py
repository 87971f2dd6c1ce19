"""Derives from a query's filters the keys that the query may want: a range, or single keys. This module does no I/O."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import DecimalType, DoubleType, FloatType, StructField

from minka.cluster.key_ranges import ALL_KEYS, KeyRange
from minka.errors import MinkaError
from minka.rows import KeyPart, prefix_range, scaled
from minka.spark.source_options import KeyFormat

_BEFORE_ALL: Final = b"\x00"  # no key is smaller


@dataclass(frozen=True, slots=True)
class WantedKeys:
    """The keys that a query wants: all keys of the range, or only `keys`, which are in the range."""

    range: KeyRange = ALL_KEYS
    keys: tuple[bytes, ...] | None = None

    @property
    def is_nothing(self) -> bool:
        """True if no row can pass the filters."""
        return self.keys == () or (b"" != self.range.end <= max(self.range.start, _BEFORE_ALL))


def wanted_keys(filters: Sequence[Filter], key_fields: Sequence[StructField], key_format: KeyFormat) -> WantedKeys:
    """The keys of rows that can pass all the filters. Filters that aren't about keys are ignored."""
    columns = [_Column(field, filters) for field in key_fields]
    if key_format == "columns":
        try:
            return _of_columns(columns)
        except MinkaError:  # no key can have the filter's value: Spark applies the filter to all rows
            return WantedKeys()
    encode = _text if key_format == "text" else bytes
    wanted = _of_one(columns[0].filters, lambda value: KeyRange(key := encode(value), key + b"\x00"))
    return _with_prefixes(wanted, columns[0].filters) if key_format == "text" else wanted


class _Column:
    """A column of the key, and the filters on this column."""

    def __init__(self, field: StructField, filters: Iterable[Filter]) -> None:
        self._kind = field.dataType
        # Filters on floats are ignored: for Spark -0.0 equals 0.0, but in keys their bytes differ.
        is_exact = not isinstance(self._kind, FloatType | DoubleType)
        self.filters = [one for one in filters if is_exact and getattr(one, "attribute", None) == (field.name,)]

    @property
    def equal(self) -> list[KeyPart]:
        """The values that the column must be equal to."""
        return [self.part(one.value) for one in self.filters if isinstance(one, EqualTo)]

    def part(self, value: Any) -> KeyPart:
        """The value as `minka.rows.encode_key` takes it."""
        part: KeyPart = scaled(value, self._kind.scale) if isinstance(self._kind, DecimalType) else value
        return part


def _text(value: Any) -> bytes:
    return str(value).encode()


def _of_columns(columns: Sequence[_Column]) -> WantedKeys:
    """The keys that pass the filters on several columns. Each of the first columns must equal a single value; the
    column after these may have bounds or several values. Filters on all later columns are ignored.
    """
    prefix: list[KeyPart] = []
    for column in columns:
        if not column.equal:
            break
        prefix.append(column.equal[0])
    within = prefix_range(prefix) if prefix else ALL_KEYS
    if len(prefix) == len(columns):
        return WantedKeys(within, (within.start,))
    after = columns[len(prefix)]
    wanted = _of_one(after.filters, lambda value: prefix_range([*prefix, after.part(value)]))
    range_ = within.clip(wanted.range) if within.overlaps(wanted.range) else KeyRange(_BEFORE_ALL, _BEFORE_ALL)
    if wanted.keys and len(prefix) + 1 < len(columns):  # each of `keys` is only the beginning of many keys
        return WantedKeys(range_.clip(KeyRange(wanted.keys[0], wanted.keys[-1] + b"\xff")))
    return WantedKeys(range_, wanted.keys)


def _of_one(filters: Iterable[Filter], range_of: Callable[[Any], KeyRange]) -> WantedKeys:
    """The keys that pass the filters of one column. `range_of(value)` is the range of the keys with this value in the
    column.
    """
    starts, ends = [b""], []
    keys: set[bytes] | None = None
    for one in filters:
        match one:
            case EqualTo(value=value):
                keys = _both(keys, {range_of(value).start})
            case In(value=values):
                keys = _both(keys, {range_of(value).start for value in values if value is not None})
            case GreaterThanOrEqual(value=value):
                starts.append(range_of(value).start)
            case GreaterThan(value=value):
                starts.append(range_of(value).end)
            case LessThan(value=value):
                ends.append(range_of(value).start or _BEFORE_ALL)
            case LessThanOrEqual(value=value):
                ends.append(range_of(value).end)
            case _:
                pass
    range_ = KeyRange(max(starts), min(ends, default=b""))
    return WantedKeys(
        range_, None if keys is None else tuple(sorted(key for key in keys if key and range_.contains(key)))
    )


def _both(keys: set[bytes] | None, others: set[bytes]) -> set[bytes]:
    return others if keys is None else keys & others


def _with_prefixes(wanted: WantedKeys, filters: Iterable[Filter]) -> WantedKeys:
    for one in filters:
        if isinstance(one, StringStartsWith) and one.value:
            prefix = _text(one.value)
            # The range ends after all keys that begin with the prefix, since text in UTF-8 has no byte 0xff.
            range_ = KeyRange(prefix, prefix + b"\xff")
            if wanted.is_nothing or not wanted.range.overlaps(range_):
                return WantedKeys(keys=())
            keys = None if wanted.keys is None else tuple(key for key in wanted.keys if key.startswith(prefix))
            wanted = WantedKeys(wanted.range.clip(range_), keys)
    return wanted
