"""minkactl data digest."""

from typing import TYPE_CHECKING

import click

from minkactl import jobs, options
from minkactl.pages import Column, Kind
from minkactl.session import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from minka.spark.progress import OnProgress
    from minka.spark.report import Report

COLUMNS = (
    Column("ROWS", "rows", Kind.NUMBER),
    Column("DATA", "bytes", Kind.BYTES),
    Column("XOR", "xor"),
    Column("SUM", "sum"),
    Column("TOOK", "took_ms", Kind.MILLISECONDS),
)


@options.command()
@click.argument("source", metavar="SRC")
@jobs.source_options
@jobs.spark_options
@options.common(watch=False)
@options.pass_session
def digest(session: Session, spark: jobs.SparkOptions, source: str, files: jobs.SourceOptions) -> None:
    """Print the digest of the keys and values that a load of SRC would write.

    Two sources whose digests are equal have the same pairs, in any order, files and format. It is the number of rows,
    their bytes, and the XOR and the sum (modulo 2^64) of xxhash64(key, value), which has the seed 42.

    Examples:
      minkactl data digest flights.parquet --key year,month,day,carrier,flight,origin
      minkactl data digest events/ --format json --key id --value payload -o json
    """

    def job(context: "SparkSession", on_progress: "OnProgress | None") -> "Report":
        from minka.spark.digesting import digest as digest_of
        from minka.spark.pairs import pairs_of

        return digest_of(context, pairs_of(files.frame(context, source), files.columns()), on_progress=on_progress)

    jobs.run(session, spark, job, COLUMNS)
