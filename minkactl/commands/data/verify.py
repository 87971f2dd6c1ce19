"""minkactl data verify."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from minkactl import jobs, options
from minkactl.completion import complete_keyspace
from minkactl.exits import Exit
from minkactl.pages import Column, Kind, Listing
from minkactl.session import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from minka.spark.progress import OnProgress
    from minka.spark.verifying import VerifyReport

COLUMNS: Final = (
    Column("KEYSPACE", "keyspace"),
    Column("SAME", "is_same"),
    Column("ROWS IN SOURCE", "rows", Kind.NUMBER),
    Column("IN KEYSPACE", "keyspace_rows", Kind.NUMBER),
    Column("MISSING", "missing", Kind.NUMBER),
    Column("DIFFERENT", "different", Kind.NUMBER),
    Column("EXTRA", "extra", Kind.NUMBER),
    Column("REPAIRED", "repaired", Kind.NUMBER),
    Column("REPLICAS", "replicas", Kind.NUMBER),
    Column("TOOK", "took_ms", Kind.MILLISECONDS),
)
KEY_COLUMNS: Final = (
    Column("KEY", "key", Kind.KEY),
    Column("IS", "kind"),
    Column("PARTITION", "partition", Kind.NUMBER),
)
REPLICA_COLUMNS: Final = (
    Column("PARTITION", "partition", Kind.NUMBER),
    Column("REPLICA ON", "node"),
    Column("DIFFERS FROM ITS LEADER IN", "keys"),
)
UNREAD_COLUMNS: Final = (
    Column("PARTITION", "partition", Kind.NUMBER),
    Column("REPLICA ON", "node"),
    Column("WASN'T READ BECAUSE", "error"),
)
_SHOWN: Final = 20


@options.command()
@click.argument("source", metavar="SRC")
@click.argument("keyspace", shell_complete=complete_keyspace)
@click.option("--last-by", default="", metavar="COLUMN", help="As for the load.")
@click.option("--repair", is_flag=True, help="Write the rows that are missing or different; nothing is deleted.")
@jobs.source_options
@jobs.spark_options
@options.common(watch=False)
@options.pass_session
def verify(
    session: Session,
    spark: jobs.SparkOptions,
    source: str,
    keyspace: str,
    last_by: str,
    repair: bool,
    files: jobs.SourceOptions,
) -> None:
    """Compare a keyspace with the files that it was loaded from, on every replica. Exit status 1 if they differ, or if
    a replica can't be read.

    Each partition's digest is computed by Spark over the files, and by the nodes over each replica; if they differ, the
    keys are found and listed.

    Example:
      minkactl data verify flights.parquet flights --key year,month,day,carrier,flight,origin
    """

    def job(context: "SparkSession", on_progress: "OnProgress | None") -> "VerifyReport":
        from minka.spark.verifying import verify as verify_all

        endpoints = session.endpoints()
        return verify_all(
            *(context, files.frame(context, source), keyspace, files.columns()),
            endpoints=endpoints.addresses,
            last_by=last_by,
            repair=repair,
            tls=endpoints.tls,
            on_progress=on_progress,
        )

    report = jobs.run(session, spark, job, COLUMNS, _listings)
    if not report.is_same:
        sys.exit(Exit.FAILED)


def _listings(report: "VerifyReport") -> list[Listing]:
    keys = [{"key": one.key, "kind": one.kind, "partition": one.partition} for one in report.differences[:_SHOWN]]
    replicas = [
        {"partition": one.partition, "node": one.node, "keys": one.error or ", ".join(one.keys[:5])}
        for one in report.replicas_different
    ]
    found = []
    if keys:
        found.append(Listing(KEY_COLUMNS, keys))
    if replicas:
        found.append(Listing(REPLICA_COLUMNS, replicas))
    if report.replicas_unread:
        found.append(Listing(UNREAD_COLUMNS, [asdict(one) for one in report.replicas_unread]))
    return found
