"""minkactl data load."""

from typing import TYPE_CHECKING, Final, TypedDict, Unpack

import click

from minka.admin.requester import requester
from minkactl import jobs, options
from minkactl.completion import complete_keyspace, complete_load
from minkactl.keys import parse_key
from minkactl.pages import Column, Kind
from minkactl.session import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from minka.spark.filling import LoadReport, Mode
    from minka.spark.load_task import OnConflict
    from minka.spark.progress import OnProgress

COLUMNS: Final = (
    Column("LOAD", "load_id"),
    Column("KEYSPACE", "keyspace"),
    Column("ROWS", "rows", Kind.NUMBER),
    Column("WRITTEN", "bytes", Kind.BYTES),
    Column("PARTITIONS", "partitions", Kind.NUMBER),
    Column("REPEATED", "repeated", Kind.NUMBER),
    Column("KEPT", "kept", Kind.NUMBER),
    Column("BAD", "bad", Kind.NUMBER),
    Column("TOOK", "took_ms", Kind.MILLISECONDS),
)


class _Rules(TypedDict):
    """The options that are the same in `minka.spark.LoadOptions`."""

    mode: "Mode"
    on_conflict: "OnConflict"
    last_by: str
    max_bad: int
    bad_rows: str
    rate_limit: int


@options.command()
@click.argument("source", metavar="SRC", required=False)
@click.argument("keyspace", required=False, shell_complete=complete_keyspace)
@click.option(
    "--resume", "resumed", metavar="ID", shell_complete=complete_load, help="Go on with a load that broke off."
)
@click.option(
    "--id",
    "load_id",
    default="",
    metavar="ID",
    help="The load's id; a second run of the same rows loads nothing again.",
)
@click.option(
    "--mode", type=click.Choice(("ingest", "put")), default="ingest", show_default=True, help="Files, or puts."
)
@click.option(
    "--on-conflict",
    type=click.Choice(("error", "replace", "keep")),
    default="error",
    show_default=True,
    help="What to do with a key that the keyspace already has.",
)
@click.option(
    "--last-by",
    default="",
    metavar="COLUMN",
    help="If several rows have one key, the one with the greatest COLUMN counts.",
)
@click.option("--max-bad", type=click.IntRange(0), default=0, show_default=True, help="The most rows to leave out.")
@click.option("--bad-rows", default="", metavar="DIR", help="A folder for rows that are left out, with the reason.")
@click.option(
    "--limit",
    "rate_limit",
    type=options.Size(),
    default=0,
    metavar="SIZE",
    help="Bytes a second to each node. Default: no limit.",
)
@click.option(
    "--presplit",
    type=click.IntRange(2, 5000),
    metavar="N",
    help="Make KEYSPACE first, with N ranges of equal bytes of SRC.",
)
@jobs.optional_source_options
@jobs.spark_options
@options.common(watch=False)
@options.pass_session
def load(
    session: Session,
    spark: jobs.SparkOptions,
    source: str | None,
    keyspace: str | None,
    files: jobs.SourceOptions,
    resumed: str | None,
    load_id: str,
    presplit: int | None,
    **rules: Unpack["_Rules"],
) -> None:
    """Load files into a keyspace.

    With --mode ingest the rows of each partition become one file, which is uploaded to all its replicas; nothing is
    visible until all of them are there; then all of it becomes visible, even if this process has died. A load that
    broke off before goes on with --resume, and uploaded files aren't made again. minkactl loads lists them.

    Examples:
      minkactl data load flights.parquet flights --key year,month,day,carrier,flight,origin
      minkactl data load events/ events --format json --key id --value payload --on-conflict replace --limit 50MiB
      minkactl data load fares.csv fares --key day,carrier --presplit 64
      minkactl data load --resume load-0c6f3a1b2d4e
    """
    if resumed:
        if source or files.key:
            raise click.UsageError("--resume takes everything from the load's record", click.get_current_context())
        jobs.run(session, spark, lambda context, told: _resume(session, context, resumed, told), COLUMNS)
        return
    if not source or not keyspace or not files.key:
        raise click.UsageError("give SRC, KEYSPACE and --key, or --resume ID", click.get_current_context())
    into = keyspace

    def job(context: "SparkSession", on_progress: "OnProgress | None") -> "LoadReport":
        from minka.spark.filling import FileLoad, LoadOptions, load_files

        how = LoadOptions(columns=files.columns(), **rules)
        what = FileLoad(source=source, file_format=files.format, schema=files.schema, options=how)
        endpoints = session.endpoints()
        if presplit is not None:
            _create(session, context, into, source, files, presplit, on_progress)
        return load_files(
            *(context, into, what),
            endpoints=endpoints.addresses,
            load_id=load_id,
            requested_by=requester(),
            tls=endpoints.tls,
            on_progress=on_progress,
        )

    jobs.run(session, spark, job, COLUMNS)


def _create(
    session: Session,
    context: "SparkSession",
    keyspace: str,
    source: str,
    files: jobs.SourceOptions,
    ranges: int,
    on_progress: "OnProgress | None",
) -> None:
    """Create the keyspace by ranges that will have equal bytes of the source. Raises KEYSPACE_EXISTS."""
    from minka.errors import Code, MinkaError
    from minka.spark.split_planning import splits

    with session.admin() as admin:
        if any(one.name == keyspace for one in admin.keyspaces()):
            raise MinkaError(
                Code.KEYSPACE_EXISTS, f"the keyspace {keyspace} exists; it can only be split, or loaded as it is"
            )
        found = splits(context, files.frame(context, source), files.columns(), ranges, on_progress=on_progress)
        points = [parse_key(point) for point in found.points]
        admin.create_keyspace(keyspace, split_points=points)


def _resume(session: Session, context: "SparkSession", load_id: str, on_progress: "OnProgress | None") -> "LoadReport":
    from minka.spark.filling import resume

    endpoints = session.endpoints()
    return resume(context, load_id, endpoints=endpoints.addresses, tls=endpoints.tls, on_progress=on_progress)
