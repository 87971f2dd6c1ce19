"""Spark's digest of a data set equals the one that Python computes, whatever the keys and values."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from minka.bulk.row_digest import Digest
from minka.errors import Code, MinkaError
from minka.spark import Progress
from minka.spark.digesting import digest

_ALL_OF_UNICODE = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000)

AWKWARD: list[tuple[bytes, bytes | None]] = [
    (b"\x00", b""),
    (b"\x00\x00", None),
    (b"a\x00b", b"\x00"),
    (b"k" * 4096, b"v" * 100_000),
    (b"\xff" * 4096, b"\xff"),
    *((_ALL_OF_UNICODE[at : at + 1000].encode(), b"%d" % at) for at in range(0, len(_ALL_OF_UNICODE), 1000)),
    *((bytes(range(length)), bytes(range(length))) for length in range(1, 130)),  # XXH64 takes 4, 8 or 32 bytes a step
]


def some(count: int, seed: int) -> list[tuple[bytes, bytes | None]]:
    source = random.Random(seed)
    return [(b"key-%d" % number, source.randbytes(source.randrange(200))) for number in range(count)]


def frame(spark: SparkSession, pairs: list[tuple[bytes, bytes | None]], folder: Path) -> DataFrame:
    columns = {"key": [key for key, _ in pairs], "value": [value for _, value in pairs]}
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    pq.write_table(pa.table(columns, schema), folder / "pairs.parquet", row_group_size=500)
    return spark.read.parquet(str(folder))


def spark_s(frame: DataFrame) -> Digest:
    report = digest(frame.sparkSession, frame)
    return Digest(report.rows, report.bytes, int(report.xor, 16), int(report.sum, 16))


@pytest.mark.parametrize("pairs", [[], AWKWARD[:1], AWKWARD, some(20_000, 1)], ids=["none", "one", "awkward", "many"])
def test_spark_and_python_compute_the_same_digest(
    spark: SparkSession, tmp_path: Path, pairs: list[tuple[bytes, bytes | None]]
) -> None:
    assert spark_s(frame(spark, pairs, tmp_path)) == Digest.of(pairs)


def test_the_digest_of_text_is_that_of_its_utf8(spark: SparkSession) -> None:
    texts = [_ALL_OF_UNICODE[at : at + 5000] for at in range(0, len(_ALL_OF_UNICODE), 5000)]
    rows = spark.createDataFrame([(text, text[::-1]) for text in texts], "k string, v string")
    assert spark_s(rows) == Digest.of((text.encode(), text[::-1].encode()) for text in texts)
    assert spark_s(rows.select("k")) == Digest.of((text.encode(), None) for text in texts)


def test_sets_with_small_differences_have_different_digests(spark: SparkSession, tmp_path: Path) -> None:
    pairs = some(1000, 2)
    whole = Digest.of(pairs)
    assert whole == Digest.of(reversed(pairs))
    assert whole == Digest.of(pairs[:300]) + Digest.of(pairs[300:])
    tripled = spark_s(frame(spark, [*pairs, pairs[7], pairs[7]], tmp_path))
    assert tripled.xor == whole.xor, "the xor can't tell one copy of a row from three; the sum can"
    assert tripled.sum != whole.sum
    assert Digest.of([(b"k", b"")]) != Digest.of([(b"k", None)])
    assert Digest.of([(b"a", b"1"), (b"b", b"2")]) != Digest.of([(b"a", b"2"), (b"b", b"1")])


def test_a_null_key_is_refused(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(b"k", b"v"), (None, b"v"), (None, b"w")], "k binary, v binary")
    with pytest.raises(MinkaError) as refused:
        digest(spark, rows)
    assert refused.value.code is Code.INVALID_ARGUMENT
    assert refused.value.message == "the key is null in 2 of 3 rows"


@pytest.mark.parametrize(
    ("columns", "why"),
    [("id", "column 'id' is bigint"), ("cast(id as string), 'x', 'y'", "not of 3 columns")],
)
def test_columns_that_are_not_a_key_and_a_value_are_refused(spark: SparkSession, columns: str, why: str) -> None:
    with pytest.raises(MinkaError, match=why):
        digest(spark, spark.range(3).selectExpr(*columns.split(", ")))


def test_the_report_and_the_progress_count_the_rows(spark: SparkSession) -> None:
    told: list[Progress] = []
    report = digest(spark, spark.range(1000).selectExpr("cast(id as string)"), on_progress=told.append)
    assert (report.job, report.rows, report.bytes) == ("digest", 1000, 10 + 180 + 2700)
    assert [(stage.name, stage.rows) for stage in report.stages] == [("read", 1000)]
    assert not told[0].is_over
    assert (told[-1].is_over, told[-1].rows, told[-1].bytes) == (True, 1000, report.bytes)
