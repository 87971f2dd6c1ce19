"""minkactl data load-report."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from minkactl import jobs, options
from minkactl.commands.reassign import write_plan
from minkactl.output import note
from minkactl.pages import Column, Kind, Listing
from minkactl.session import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from minka.spark.load_analysis import ClusterLoadReport
    from minka.spark.progress import OnProgress

COLUMNS: Final = (
    Column("FROM", "from_ms", Kind.TIME),
    Column("TO", "to_ms", Kind.TIME),
    Column("NODES", "nodes"),
    Column("ROWS", "rows", Kind.NUMBER),
    Column("TOOK", "took_ms", Kind.MILLISECONDS),
)
HOT_COLUMNS: Final = (
    Column("HOT PARTITION", "partition"),
    Column("OPS/S", "ops", Kind.NUMBER),
    Column("PEAK OPS/S", "peak_ops", Kind.NUMBER),
    Column("AT", "peak_ms", Kind.TIME),
    Column("OF ITS NODE", "peak_of_node"),
    Column("DATA", "bytes", Kind.BYTES),
)
FULL_COLUMNS: Final = (Column("NODE", "node"), Column("ROOM", "room", Kind.BYTES), Column("FULL", "said"))
MISSING_COLUMNS: Final = (Column("MISSING", "missing"),)
PROPOSAL_COLUMNS: Final = (Column("PARTITION", "partition"), Column("PROPOSED", "what"), Column("WHY", "reason"))


@options.command()
@click.option(
    "--since",
    type=options.Duration(),
    default="24h",
    show_default=True,
    metavar="TIME",
    help="How far back: 90m, 24h, 7d.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True),
    default="",
    metavar="FILE",
    help="Write a page with plots.",
)
@click.option("--parquet", default="", metavar="DIR", help="Write the rows of the history, into a new folder.")
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Write the splits and moves that would help, for minkactl apply.",
)
@jobs.spark_options
@options.common(watch=False)
@options.pass_session
def load_report(
    session: Session, spark: jobs.SparkOptions, since: timedelta, html: str, parquet: str, plan_file: str | None
) -> None:
    """Say which partitions are hot, how even the nodes are, when each is full, and what would help.

    It reads the history of their load that the nodes keep, usually of a week. Nothing is changed.

    Example:
      minkactl data load-report --since 7d --html load.html --plan plan.json
      minkactl apply plan.json
    """

    def job(context: "SparkSession", on_progress: "OnProgress | None") -> "ClusterLoadReport":
        from minka.spark.load_analysis import load_report as report_on

        endpoints = session.endpoints()
        return report_on(
            context,
            endpoints=endpoints.addresses,
            since=since,
            html=html,
            parquet=parquet,
            plan_file=plan_file or "",
            tls=endpoints.tls,
            on_progress=on_progress,
        )

    report = jobs.run(session, spark, job, COLUMNS, _listings)
    for text in report.proposals.notes:
        note(f"{text}.")
    if plan_file is not None and report.plan is None:
        note(f"Nothing to split or move is known: {plan_file} is not written.")
    elif plan_file is not None and report.plan is not None:
        write_plan(report.plan, Path(plan_file))
        note(f"The plan is in {plan_file}. Apply it with: minkactl apply {plan_file}")


def _listings(report: "ClusterLoadReport") -> list[Listing]:
    hot: list[dict[str, Any]] = [
        {
            "partition": one.partition,
            "ops": round(one.ops),
            "peak_ops": round(one.peak_ops),
            "peak_ms": one.peak_ms,
            "peak_of_node": f"{one.peak_of_node:.0%} of {one.peak_node}",
            "bytes": one.bytes,
        }
        for one in report.hot
        if one.peak_node
    ]
    full = [{"node": one.node, "room": one.room, "said": one.said} for one in report.forecasts]
    proposed = [
        {"partition": one.partition, "what": f"split into {one.parts}", "reason": one.reason}
        for one in report.proposals.splits
    ]
    proposed += [
        {"partition": one.partition, "what": f"to {', '.join(one.target_replicas)}", "reason": one.reason}
        for one in report.proposals.moves
    ]
    missing = [{"missing": text} for text in report.missing]
    listings = (
        Listing(MISSING_COLUMNS, missing),
        Listing(HOT_COLUMNS, hot),
        Listing(FULL_COLUMNS, full),
        Listing(PROPOSAL_COLUMNS, proposed),
    )
    return [listing for listing in listings if listing.rows]
