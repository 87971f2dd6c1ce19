"""The keys at which a partition's data is divided."""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from minka.cluster.key_ranges import KeyRange
from minkad.core.replication.replica_storage import DeletedAheadError
from minkad.storage.data_database import DataDatabase
from minkad.storage.rocks import MIB
from minkad.storage.rocks_data import MAX_PASSED
from minkad.storage.sst_tables import FIRST_KEY, Table, deepest_of

_DEEPEST_SHARE: Final = 0.75
_SLICE_KEYS: Final = 1000  # read before the loop gets its turn
_SLICE_BYTES: Final = 1 * MIB


async def split_keys(data: DataDatabase, parts: int) -> list[bytes]:
    """Keys that divide the data into `parts` parts of about equal bytes; fewer if there are too few keys.

    The tables of the deepest level have nearly all data, and don't overlap. RocksDB knows the first key and the size of
    each table, so these tell in which table a part ends, and only this table is read. If overlapping tables (the last
    few flushes) have much of the data, they are compacted first; they have at most some 100 MiB. So the cost doesn't
    grow with the data. Raises the errors of DataDatabase.
    """
    if not (data.is_open or data.exists()):
        return []
    with data.in_use():
        await data.open()
        return await _split_keys(data, parts)


async def _split_keys(data: DataDatabase, parts: int) -> list[bytes]:
    await data.flush()
    tables = data.tables()
    if sum(table.size for table in deepest_of(tables)) < _DEEPEST_SHARE * sum(table.size for table in tables):
        await data.compact()
    deepest = deepest_of(data.tables())
    total = sum(table.size for table in deepest)
    found: list[bytes] = []
    passed, wanted = 0, 1
    for table in deepest:
        shares = []
        while wanted < parts and passed + table.size > total * wanted / parts:
            shares.append((total * wanted / parts - passed) / table.size)
            wanted += 1
        found += await _keys_within(data, table, shares)
        passed += table.size
    first, _, _ = await _page(data, FIRST_KEY, b"", 1, 1)
    if not first:
        return []  # all rows were deleted meanwhile
    return [key for key in dict.fromkeys(found) if key > first[0]]


async def _keys_within(data: DataDatabase, table: Table, shares: Sequence[float]) -> list[bytes]:
    """The keys at these shares of a table's bytes."""
    if not shares:
        return []
    begins: list[tuple[int, bytes]] = []  # (the bytes before the key, the key)
    size, start, is_all = 0, table.first, False
    while not is_all:
        keys, values, is_all = await _page(data, start, table.last + b"\x00", _SLICE_KEYS, _SLICE_BYTES)
        for key, value in zip(keys, values, strict=True):
            begins.append((size, key))
            size += len(key) + len(value)
        start = keys[-1] + b"\x00" if keys else start
        await asyncio.sleep(0)
    places = (bisect_left(begins, (int(size * share), b"")) for share in shares if begins)
    return [_shortest(begins, min(place, len(begins) - 1)) for place in places]


async def _page(
    data: DataDatabase, start: bytes, end: bytes, max_rows: int, max_bytes: int
) -> tuple[list[bytes], list[bytes], bool]:
    """See `DataDatabase.page`. Clears away deleted keys that hold up the read."""
    while True:
        try:
            return data.page(start, end, False, max_rows, max_bytes, MAX_PASSED)
        except DeletedAheadError:
            await data.clear(KeyRange(start, end), False)


def _shortest(begins: Sequence[tuple[int, bytes]], place: int) -> bytes:
    """The shortest prefix of the key at this place that is above the key before it. It becomes a bound in the table."""
    key, before = begins[place][1], begins[place - 1][1] if place else b""
    differs = (index for index, (mine, other) in enumerate(zip(key, before, strict=False)) if mine != other)
    return key[: next(differs, len(before)) + 1] if place else key
