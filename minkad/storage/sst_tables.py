"""RocksDB's reports about its tables (files), at a cost that doesn't grow with their content."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from rocksdict import Rdict

from minka.cluster.key_ranges import KeyRange
from minka.wire.stored_values import HEAD_BYTES
from minkad.storage.size_estimate import Size

FIRST_KEY: Final = b"\x00"  # the least key of a user; only the key of the database's own record is less


class Table(NamedTuple):
    """An SST file: its level, its size in bytes, its first and last key."""

    level: int
    size: int
    first: bytes
    last: bytes


def tables_of(db: Rdict) -> list[Table]:
    """The database's SST files, without files that have only the database's own record. Raises rocksdict's errors."""
    files = db.live_files()
    tables = [Table(file["level"], file["size"], file["start_key"], file["end_key"]) for file in files]
    return [table._replace(first=max(table.first, FIRST_KEY)) for table in tables if table.last]


def deepest_of(tables: Sequence[Table]) -> list[Table]:
    """The tables of the deepest level, which don't overlap, in order of their keys; none if all are at level 0."""
    level = max((table.level for table in tables), default=0)
    return sorted((table for table in tables if table.level == level > 0), key=lambda table: table.first)


def share_in(tables: Sequence[Table], part: KeyRange) -> float:
    """About the share of the data that is in the range; 0.5 if there is no table. Half of a table across a bound counts
    as inside, so the share is inaccurate if there are few tables.
    """
    total = inside = 0.0
    for table in tables:
        total += table.size
        if part.contains(table.first) and part.contains(table.last):
            inside += table.size
        elif part.overlaps(KeyRange(table.first, table.last + b"\x00")):
            inside += table.size / 2
    return inside / total if total else 0.5


def puts(db: Rdict, record_bytes: int, level: str = "") -> Size:
    """The size of keys and values in the tables, without the values' heads. A key with three versions counts three
    times. `record_bytes`: the size of the database's own record. `level`: "-at-levelN" for the tables of one level, ""
    for all tables.
    """
    text = db.property_value(f"rocksdb.aggregated-table-properties{level}") or ""
    table = dict(part.strip().rsplit("=", 1) for part in text.split(";") if "=" in part)
    entries, deletions = int(table.get("# entries", 0)), int(table.get("# deletions", 0))
    raw_keys, raw_values = int(table.get("raw key size", 0)), int(table.get("raw value size", 0))
    if not entries:
        return Size()
    # In RocksDB's figures each key has 8 bytes more, a deletion counts as a key, and one entry or more is the record.
    key_bytes = (raw_keys - 8 * entries) * (entries - deletions) // entries
    keys = max(0, entries - deletions - 1)
    return Size(max(0, key_bytes + raw_values - record_bytes - HEAD_BYTES * keys), keys)
