"""Measures the error of a partition's estimated size, and the processor time that the estimate adds to a write. There
are neither daemons nor a peer: the benchmark writes to the database of one partition, as a node does when it applies
log entries.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

from rocksdict import Cache

from benchmarks.measure import MINKA, Goal, Report, Sample, main
from minka.wire.kv_frames import WriteBody
from minkad.replication.changing.sizing import MAX_ERROR
from minkad.storage.applied import Applied
from minkad.storage.data_database import DataDatabase
from minkad.storage.size_estimate import Size

_CACHE_BYTES: Final = 256 * 1024 * 1024  # the same as a node's
_FLUSH_BYTES: Final = 16 * 1024 * 1024
_BATCH: Final = 500
_VALUE: Final = bytes(100)
_COST_KEYS: Final = 200_000

Pairs = Iterable[tuple[bytes, bytes | None]]
Case = Callable[[list[bytes], Random], list[Pairs]]


def run(report: Report) -> None:
    """Measure all cases, and add them to the report."""
    counts = [10_000, 100_000] if report.options.quick else [10_000, 100_000, 1_000_000]
    for name, case in CASES.items():
        for count in counts:
            for seed in range(1 if count == counts[-1] else report.options.rounds):
                asyncio.run(_error(report, name, case, count, seed))
    for batch in (1, 16, 1000):
        for _ in range(report.options.rounds):
            asyncio.run(_cost(report, batch))


# The writes of each case, in parts


def _once(keys: list[bytes], _: Random) -> list[Pairs]:
    return [[(key, _VALUE) for key in keys]]


def _three_times(keys: list[bytes], rng: Random) -> list[Pairs]:
    return [[(key, _VALUE) for key in rng.sample(keys, len(keys))] for _ in range(3)]


def _zipf(keys: list[bytes], rng: Random) -> list[Pairs]:
    weights = [1 / (rank + 1) ** 0.99 for rank in range(len(keys))]
    return [[(key, _VALUE) for key in rng.choices(keys, weights, k=len(keys))] for _ in range(3)]


def _half_deleted(keys: list[bytes], rng: Random) -> list[Pairs]:
    return [*_once(keys, rng), [(key, None) for key in rng.sample(keys, len(keys) // 2)]]


def _half_in_vain(keys: list[bytes], rng: Random) -> list[Pairs]:
    return [*_once(keys, rng), [(key if rng.random() < 0.5 else key + b"?", None) for key in keys]]


def _mixed(keys: list[bytes], rng: Random) -> list[Pairs]:
    def value() -> bytes:
        return bytes(min(20_000, int(rng.lognormvariate(4.6, 1.2))))

    return [
        [(key, value()) for key in keys],
        *([(key, value()) for key in rng.choices(keys, k=len(keys))] for _ in range(2)),
    ]


CASES: Final[dict[str, Case]] = {
    "new keys": _once,
    "each key 3 times": _three_times,
    "3 writes a key by Zipf's law": _zipf,
    "half deleted": _half_deleted,
    "deletions, half of them of no key": _half_in_vain,
    "values of 0 to 20,000 bytes, 3 writes a key": _mixed,
}


# The error of the estimated size


async def _error(report: Report, name: str, case: Case, count: int, seed: int) -> None:
    rng = Random(seed)
    keys = [b"%016x" % rng.getrandbits(64) for _ in range(count)]
    worst = estimated = 0.0
    measured = 0
    async with _database() as data:
        sizes: dict[bytes, int] = {}
        for part in case(keys, rng):
            await _write(data, list(part), sizes)
            estimated = max(estimated, _off(data.size(), sizes))
            if data.size_error() > MAX_ERROR:  # then the daemon would measure it
                measured += 1
                await data.compact()
            worst = max(worst, _off(data.size(), sizes))
        most = data.size_at_most().bytes / sum(sizes.values())
    case_ = report.case(f"{name}, {count:,} keys", "%", goal=Goal(at_most=10))
    details = {
        "before it was measured": round(100 * estimated, 2),
        "measured": measured,
        "tables say x": round(most, 2),
    }
    report.add(case_, MINKA, Sample(100 * worst, details=details))


async def _write(data: DataDatabase, pairs: Sequence[tuple[bytes, bytes | None]], sizes: dict[bytes, int]) -> None:
    unflushed = 0
    for start in range(0, len(pairs), _BATCH):
        keys, values = map(list, zip(*pairs[start : start + _BATCH], strict=True))
        data.write([WriteBody(keys, values)], Applied(data.applied.offset + 1, 1))
        for key, value in zip(keys, values, strict=True):
            unflushed += len(key) + len(value or b"")
            if value is None:
                sizes.pop(key, None)
            else:
                sizes[key] = len(key) + len(value)
        if unflushed >= _FLUSH_BYTES:
            unflushed = 0
            await data.flush()


def _off(size: Size, sizes: dict[bytes, int]) -> float:
    return max(abs(size.bytes / sum(sizes.values()) - 1), abs(size.keys / len(sizes) - 1))


@asynccontextmanager
async def _database() -> AsyncIterator[DataDatabase]:
    with tempfile.TemporaryDirectory() as folder:
        data = DataDatabase(Path(folder), Cache(_CACHE_BYTES))
        await data.open()
        try:
            yield data
        finally:
            await data.close()


# The processor time of the estimate


async def _cost(report: Report, batch: int) -> None:
    """Measure the processor time per key for applying new keys, and for applying the same keys again."""
    rng = Random(1)
    count = _COST_KEYS if batch > 1 else _COST_KEYS // 5
    keys = [rng.randbytes(16) for _ in range(count)]
    async with _database() as data:
        for name in ("new keys", "the same keys again"):
            began = time.thread_time()
            for start in range(0, count, batch):
                part = keys[start : start + batch]
                data.write([WriteBody(part, [_VALUE] * len(part))], Applied(start + 1, 1))
            took = (time.thread_time() - began) / count
            report.add(report.case(f"apply, {batch} keys at once, {name}", "us/key"), MINKA, Sample(took * 1e6))


if __name__ == "__main__":
    main("sizes", "Measure the error of a partition's estimated size, and the cost of the estimate.", run)
