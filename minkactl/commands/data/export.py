"""minkactl data export."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from minka.errors import Code, MinkaError
from minkactl import jobs, options
from minkactl.completion import complete_keyspace
from minkactl.pages import Column, Kind
from minkactl.session import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from minka.spark.exporting import ExportReport
    from minka.spark.inputs import FileFormat
    from minka.spark.progress import OnProgress

COLUMNS: Final = (
    Column("KEYSPACE", "keyspace"),
    Column("ROWS", "rows", Kind.NUMBER),
    Column("DATA", "bytes", Kind.BYTES),
    Column("DESTINATION", "destination"),
    Column("TOOK", "took_ms", Kind.MILLISECONDS),
)


@options.command()
@click.argument("keyspace", shell_complete=complete_keyspace)
@click.argument("destination", metavar="DST")
@click.option(
    "--format", "file_format", type=click.Choice(("parquet", "csv", "json")), default="parquet", show_default=True
)
@click.option(
    "--schema", default="", metavar="DDL", help='Columns of the rows: "day DATE, delay DOUBLE". Default: key and value.'
)
@click.option(
    "--key", type=options.Names(), metavar="COLUMNS", callback=jobs.names,
    help="The columns of the schema that are the key.",
)  # fmt: skip
@click.option("--since", metavar="REPORT", help="Only the changes since the export of this report (-o json).")
@click.option("--overwrite", is_flag=True, help="Replace the content of DST.")
@jobs.spark_options
@options.common(watch=False)
@options.pass_session
def export(
    session: Session,
    spark: jobs.SparkOptions,
    keyspace: str,
    destination: str,
    file_format: "FileFormat",
    schema: str,
    key: tuple[str, ...],
    since: str | None,
    overwrite: bool,
) -> None:
    """Write a keyspace into files, each partition as it is at one version.

    Examples:
      minkactl data export flights /backup/flights -o json > report.json
      minkactl data export flights /backup/flights-2 --since report.json
      minkactl data export fares fares.csv --format csv --schema "day DATE, fare DOUBLE" --key day
    """
    versions = _versions(since, keyspace) if since is not None else None

    def job(context: "SparkSession", on_progress: "OnProgress | None") -> "ExportReport":
        from minka.spark.exporting import export as export_to

        endpoints = session.endpoints()
        return export_to(
            *(context, keyspace, destination),
            endpoints=endpoints.addresses,
            file_format=file_format,
            schema=schema,
            key_columns=key,
            since=versions,
            overwrite=overwrite,
            tls=endpoints.tls,
            on_progress=on_progress,
        )

    jobs.run(session, spark, job, COLUMNS)


def _versions(path: str, keyspace: str) -> dict[str, int]:
    from minka.spark.exporting import ExportReport

    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint="--since") from error
    report = ExportReport.from_json(text)
    if report.keyspace != keyspace:
        text = f"{path} is the report of an export of {report.keyspace}, not of {keyspace}"
        raise MinkaError(Code.INVALID_ARGUMENT, text)
    return dict(report.versions)
