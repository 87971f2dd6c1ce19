"""Computes the digest of a data frame (see minka.bulk.row_digest) on Spark."""

from dataclasses import dataclass
from typing import ClassVar, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

from minka.bulk.row_digest import Digest
from minka.errors import Code, MinkaError
from minka.spark.pairs import UNREADABLE
from minka.spark.progress import OnProgress, running
from minka.spark.report import Report, timestamp

_MASK: Final = (1 << 64) - 1
_SHIFTS: Final = (0, 22, 44)
_PART_MASK: Final = (1 << 22) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestReport(Report):
    """The result of `digest`. Two data frames with the same rows, in any order, have the same digest."""

    job: ClassVar[str] = "digest"

    xor: str  # `xor` and `sum` have 16 hexadecimal digits
    sum: str


def digest(spark: SparkSession, pairs: DataFrame, *, on_progress: OnProgress | None = None) -> DigestReport:
    """Compute the digest of a data frame whose columns are the key and the value, or only the key. Text is
    digested as its bytes in UTF-8.

    Raises MinkaError: INVALID_ARGUMENT for other columns, a key that is null, or a line that couldn't be read (see
    `read_files`); SPARK_FAILED.
    """
    with running("digest", spark, ["read"], on_progress) as job, job.stage("read") as stage:
        columns = _bytes_of(pairs)
        no_key = F.count_if(columns[0].isNull()).alias("no_key")
        is_unreadable = F.col(UNREADABLE).isNotNull() if UNREADABLE in pairs.columns else F.lit(False)
        unreadable = F.count_if(is_unreadable).alias("unreadable")
        row = pairs.agg(no_key, unreadable, *digest_columns(*columns)).collect()[0]
        if row.unreadable:
            raise MinkaError(Code.INVALID_ARGUMENT, f"{row.unreadable} of {row['count']} lines can't be read")
        if row.no_key:
            raise MinkaError(Code.INVALID_ARGUMENT, f"the key is null in {row.no_key} of {row['count']} rows")
        found = digest_of_row(row)
        stage.rows, stage.bytes = found.rows, found.bytes
    return DigestReport(
        started=timestamp(job.started),
        seconds=round(job.seconds, 3),
        rows=found.rows,
        bytes=found.bytes,
        stages=job.reports,
        xor=f"{found.xor:016x}",
        sum=f"{found.sum:016x}",
    )


def _bytes_of(pairs: DataFrame) -> list[Column]:
    fields = [field for field in pairs.schema.fields if field.name != UNREADABLE]
    if len(fields) not in (1, 2):
        raise MinkaError(Code.INVALID_ARGUMENT, f"a digest is of a key and a value, not of {len(fields)} columns")
    for field in fields:
        if not isinstance(field.dataType, (BinaryType, StringType)):
            text = f"column {field.name!r} is {field.dataType.simpleString()}; a digest is of bytes or text"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
    return [pairs[field.name].cast("binary") for field in fields]


def digest_columns(key: Column, value: Column | None = None) -> list[Column]:
    """The aggregates that `DataFrame.agg` needs for a digest of binary columns, for all rows or for each group.
    `digest_of_row` makes a Digest of the result.

    Without a value column each value counts as null. The caller must make sure that no key is null.
    """
    columns = [key] if value is None else [key, value]
    sizes = [F.sum(F.octet_length(column).cast("long")) for column in columns]
    hashed = F.xxhash64(*columns)
    # Spark refuses a sum that overflows, and a sum of whole hashes would overflow. So each hash is divided into parts
    # of 22 bits, whose sums overflow only at 2^41 rows.
    parts = [F.sum(F.shiftrightunsigned(hashed, shift).bitwiseAND(_PART_MASK)) for shift in _SHIFTS]
    return [
        F.count(F.lit(1)).alias("count"),
        *(size.alias(f"bytes_{number}") for number, size in enumerate(sizes)),
        F.bit_xor(hashed).alias("xor"),
        *(part.alias(f"sum_{shift}") for shift, part in zip(_SHIFTS, parts, strict=True)),
    ]


def digest_of_row(row: Row) -> Digest:
    """The digest in a row of the result of `DataFrame.agg(*digest_columns(…))`."""
    found = row.asDict()
    total = sum((found[f"sum_{shift}"] or 0) << shift for shift in _SHIFTS)
    size = sum(found[name] or 0 for name in found if name.startswith("bytes_"))
    return Digest(found["count"], size, (found["xor"] or 0) & _MASK, total & _MASK)
