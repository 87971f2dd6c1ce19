"""minkactl data splits."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from minkactl import jobs, options
from minkactl.output import note
from minkactl.pages import Column, Kind, Listing
from minkactl.session import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from minka.spark.progress import OnProgress
    from minka.spark.split_planning import SplitsReport

COLUMNS: Final = (
    Column("ROWS", "rows", Kind.NUMBER),
    Column("DATA", "bytes", Kind.BYTES),
    Column("RANGES", "count", Kind.NUMBER),
    Column("LARGEST", "largest"),
    Column("TOOK", "took_ms", Kind.MILLISECONDS),
)
RANGE_COLUMNS: Final = (
    Column("FROM KEY", "start", Kind.KEY),
    Column("EXPECTED", "bytes", Kind.BYTES),
    Column("OF AN EQUAL SHARE", "share"),
)


@options.command()
@click.argument("source", metavar="SRC")
@click.option("--ranges", type=click.IntRange(2, 5000), required=True, help="How many.")
@click.option(
    "--write", "file", metavar="FILE", help="Write the points, as keyspace create --split-at @FILE takes them."
)
@jobs.source_options
@jobs.spark_options
@options.common(watch=False)
@options.pass_session
def splits(
    session: Session, spark: jobs.SparkOptions, source: str, ranges: int, file: str | None, files: jobs.SourceOptions
) -> None:
    """Find keys that divide SRC into ranges of about the same bytes.

    Example:
      minkactl data splits flights.parquet --key carrier,flight --ranges 64 --write points
      minkactl keyspace create flights --ranges --split-at @points
    """
    if file is not None:
        _check_writable(file)

    def job(context: "SparkSession", on_progress: "OnProgress | None") -> "SplitsReport":
        from minka.spark.split_planning import splits as splits_of

        return splits_of(context, files.frame(context, source), files.columns(), ranges, on_progress=on_progress)

    def listings(report: "SplitsReport") -> list[Listing]:
        return [
            Listing(
                RANGE_COLUMNS, [{"start": r.start, "bytes": r.bytes, "share": f"{r.share:.2f}"} for r in report.ranges]
            )
        ]

    report = jobs.run(session, spark, job, COLUMNS, listings)
    if file is not None:
        Path(file).write_text(
            "".join(f"{point}\n" for point in report.points), encoding="utf-8", errors="surrogateescape"
        )
        note(f"{len(report.points)} points are in {file}")


def _check_writable(file: str) -> None:
    """Find out before the job whether the file can be written, without changing it."""
    path = Path(file)
    try:
        is_new = not path.exists()
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}", param_hint="--write") from error
