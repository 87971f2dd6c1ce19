"""Finds the keys at which to divide a keyspace by ranges, before it is filled, so that all ranges get equal bytes.

A row's chance to be in the sample is in proportion to its bytes: a row of 1 MB counts a thousand times as much as a row
of 1 kB. A few large rows can fill a range, and with equal chances for all rows the sample would miss them.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import ClassVar, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from minka.cluster.key_ranges import readable
from minka.errors import Code, MinkaError
from minka.spark.pairs import PairColumns, pairs_of, problem_of
from minka.spark.progress import OnProgress, running
from minka.spark.report import Report, timestamp

_SAMPLES_A_RANGE: Final = 2048
_LEAST_SAMPLES: Final = 65_536
_MOST_SAMPLES: Final = 1_000_000
_ROW_BYTES: Final = 16  # about the bytes that a node needs for a row, besides the key and the value
MAX_RANGES: Final = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRange:
    """A range: its start, for `minkactl keyspace create --split-at` ("" for the first range), and the expected bytes of
    its rows.
    """

    start: str
    bytes: int
    share: float  # its bytes, divided by the bytes of an equal share: 1 is ideal


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsReport(Report):
    """The result of `splits`."""

    job: ClassVar[str] = "splits"

    points: tuple[str, ...]  # keys as text, or as 0x and hex
    ranges: tuple[ExpectedRange, ...]

    count: int  # the number of ranges
    largest: float  # the share of the largest range; 1 is ideal


def splits(
    spark: SparkSession,
    source: DataFrame,
    columns: PairColumns,
    ranges: int,
    *,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> SplitsReport:
    """Find the points that divide the source's keys into `ranges` ranges of about the same bytes, or into fewer ranges
    if single keys weigh more than a range. Rows that can't be in a keyspace are left out. Nothing is written. The same
    source and seed give the same points.

    Raises MinkaError: INVALID_ARGUMENT for a number of ranges that isn't from 2 to 5,000 and for a source without rows,
    SPARK_FAILED.
    """
    if not 2 <= ranges <= MAX_RANGES:
        raise MinkaError(Code.INVALID_ARGUMENT, f"ranges={ranges} isn't from 2 to {MAX_RANGES}")
    with running("splits", spark, ["weigh", "sample"], on_progress) as job:
        found = pairs_of(source, columns)
        pairs = found.where(problem_of(found).isNull())
        weight = F.octet_length("key") + F.octet_length("value") + _ROW_BYTES
        # The chance is computed from the row's content, not from its place, so the same rows give the same sample.
        chance = F.shiftrightunsigned(F.xxhash64("key", "value", F.lit(seed)), 11) / float(1 << 53)
        weighed = pairs.select("key", weight.cast("double").alias("weight"), chance.alias("chance"))
        with job.stage("weigh") as stage:
            rows, total = weighed.agg(F.count(F.lit(1)), F.sum("weight")).collect()[0]
            if not rows:
                raise MinkaError(Code.INVALID_ARGUMENT, "the source has no rows with a key")
            stage.rows, stage.bytes = rows, int(total) - rows * _ROW_BYTES
        with job.stage("sample", rows_total=rows):
            sample = _sample(weighed, total, min(_MOST_SAMPLES, max(_LEAST_SAMPLES, ranges * _SAMPLES_A_RANGE)))
    points = _points(sample, ranges)
    size = int(total) - rows * _ROW_BYTES
    expected = _expected(sample, points, size)
    return SplitsReport(
        started=timestamp(job.started),
        seconds=round(job.seconds, 3),
        rows=rows,
        bytes=size,
        stages=job.reports,
        points=tuple(readable(point) for point in points),
        ranges=expected,
        count=len(expected),
        largest=max(one.share for one in expected),
    )


_Sample = list[tuple[bytes, float]]


def _sample(weighed: DataFrame, total: float, samples: int) -> _Sample:
    """A sample of the keys, in order, each with the number of samples for which it stands. `samples` is divided among
    all rows in proportion to their bytes. If a row's share is less than 1, the row is in the sample with this
    probability, and stands for one sample; otherwise the row is always in the sample, and stands for its whole share.
    """
    share = F.col("weight") * (samples / total)
    found = weighed.where(F.col("chance") < share).select("key", F.greatest(share, F.lit(1.0)))
    by_key: dict[bytes, float] = defaultdict(float)
    for key, stands_for in found.collect():
        by_key[bytes(key)] += stands_for
    return sorted(by_key.items())


def _points(sample: _Sample, ranges: int) -> list[bytes]:
    """The keys at which ranges begin, each as short as possible. A key that weighs more than a range gets a range of
    its own; the keys between such keys are divided by weight.
    """
    runs = _runs(sample, ranges)
    weights = [sum(stands_for for _, stands_for in run) for run in runs]
    points: list[bytes] = []
    before = b""
    for run, parts in zip(runs, _apportioned(runs, weights, ranges), strict=True):
        begins = [0, *_equal(run, parts)]
        points += [_shortest(run[place][0], run[place - 1][0] if place else before) for place in begins]
        before = run[-1][0]
    return points[1:]  # the first range has no start


def _runs(sample: _Sample, ranges: int) -> list[_Sample]:
    """Divide the sample into runs: a key that weighs more than a range is a run of its own, and all keys between two
    such keys together are one run.
    """
    weights = sorted((stands_for for _, stands_for in sample), reverse=True)
    left, alone = sum(weights), 0
    while alone < min(len(weights), ranges - 1) and weights[alone] * (ranges - alone) > left:
        left -= weights[alone]
        alone += 1
    bound = weights[alone - 1] if alone else float("inf")
    runs = [list(group) for _, group in groupby(sample, key=lambda one: one if one[1] >= bound else None)]
    return runs if len(runs) <= ranges else [sample]


def _apportioned(runs: Sequence[_Sample], weights: Sequence[float], ranges: int) -> list[int]:
    """The number of ranges into which each run is divided. Each run gets one range; each further range goes to the run
    whose ranges weigh most.
    """
    parts = [1] * len(runs)
    for _ in range(ranges - len(runs)):
        each = [
            weight / some if some < len(run) else 0.0 for run, weight, some in zip(runs, weights, parts, strict=True)
        ]
        parts[each.index(max(each))] += 1
    return [min(some, len(run)) for some, run in zip(parts, runs, strict=True)]


def _equal(run: _Sample, parts: int) -> list[int]:
    """Divide the run into parts of about equal weight. Returns the places at which the parts after the first begin."""
    ends = list(accumulate(stands_for for _, stands_for in run))
    places = [bisect_left(ends, ends[-1] * part / parts) + 1 for part in range(1, parts)]
    return sorted({place for place in places if place < len(run)})


def _shortest(key: bytes, before: bytes) -> bytes:
    """The shortest prefix of `key` that is greater than `before`: of "apricot" it is "apr" if `before` is "apple"."""
    both = enumerate(zip(key, before, strict=False))
    same = next((place for place, (mine, other) in both if mine != other), len(before))
    return key[: same + 1]


def _expected(sample: Sequence[tuple[bytes, float]], points: Sequence[bytes], size: int) -> tuple[ExpectedRange, ...]:
    keys = [key for key, _ in sample]
    all_of_it = sum(stands_for for _, stands_for in sample)
    places = [0, *(bisect_left(keys, point) for point in points), len(keys)]
    shares = [sum(stands_for for _, stands_for in sample[start:end]) / all_of_it for start, end in pairwise(places)]
    starts = ["", *map(readable, points)]
    return tuple(
        ExpectedRange(start=start, bytes=int(size * share), share=round(share * len(shares), 3))
        for start, share in zip(starts, shares, strict=True)
    )
