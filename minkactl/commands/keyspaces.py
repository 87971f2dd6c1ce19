"""minkactl keyspaces, minkactl keyspace."""

from typing import TYPE_CHECKING

import click

from minkactl import options
from minkactl.completion import complete_keyspace
from minkactl.exits import Exit
from minkactl.keys import parse_keys
from minkactl.output import emit, note
from minkactl.pages import Listing, Page
from minkactl.ranges import of_keyspace
from minkactl.session import Session
from minkactl.watch import show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from minka.admin.control import Control
    from minka.v1.admin_pb2 import GetStatusResponse


def _page(control: "Control", name: str | None = None) -> Page:
    from minkactl.survey import unconfirmed
    from minkactl.views import KEYSPACE_COLUMNS, keyspace_rows

    status = control.summary()
    rows = [row for row in keyspace_rows(status) if name is None or row["name"] == name]
    listing = Listing(KEYSPACE_COLUMNS, rows, "No keyspace yet: minkactl keyspace create --help.")
    return Page(rows, [listing], [row["name"] for row in rows], unconfirmed=unconfirmed(status))


@options.command()
@options.common()
@options.pass_session
def keyspaces(session: Session) -> Exit:
    """List the keyspaces: partitions by state, keys, data.

    One whose name begins with an underscore is the cluster's own: _duties has the payloads of duties.
    """
    return show(session, _page).exit


@options.group()
def keyspace() -> None:
    """Create a keyspace; show its keys as a map."""


@keyspace.command()
@click.argument("name")
@click.option(
    "--partitions",
    "partition_count",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of partitions, by the hash of the key; fixed for life.",
)
@click.option(
    "--hash",
    "hash_name",
    type=click.Choice(["murmur3", "md5", "crc16"]),
    default="murmur3",
    show_default=True,
    help="From a key to its slot: hash(key) modulo the number of partitions. crc16: by the slots of Redis Cluster.",
)
@click.option("--ranges", is_flag=True, help="Partitions by ranges of keys instead: they can be scanned and split.")
@click.option(
    "--split-at",
    type=str,
    metavar="KEYS",
    help="With --ranges: the keys at which ranges begin, ascending, separated by commas; 0x… is hex, @FILE has one a "
    "line. Default: one range over all keys.",
)
@click.option(
    "--max-bytes",
    type=options.Size(),
    metavar="SIZE",
    help="With --ranges: a partition with more is split automatically: 64MiB, 1GiB. Default: none is.",
)
@click.option(
    "--max-ops",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --ranges: a partition with more keys read and written a second is split automatically, and a half may "
    "move to a node that is less busy. Default: none is.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    metavar="N",
    help="Copies of each partition, on as many nodes. Default: 3 in a cluster of three nodes or more, else 1.",
)
@click.option(
    "--min-insync",
    type=click.IntRange(min=1),
    metavar="N",
    help="With fewer replicas in sync, writes are refused. Default: a majority of three replicas and more, else 1.",
)
@click.option(
    "--durability",
    type=click.Choice(["sync", "async"]),
    default="sync",
    show_default=True,
    help="A write is acknowledged once every replica in sync has it on disk (sync), or in memory at least (async: "
    "lost if the power of all of them fails at once).",
)
@click.option(
    "--unclean-election",
    is_flag=True,
    help="Let a replica that is not in sync lead when no other is alive. Loses writes.",
)
@options.common(watch=False)
@options.pass_session
def create(
    session: Session,
    name: str,
    partition_count: int | None,
    hash_name: str,
    ranges: bool,
    split_at: str | None,
    max_bytes: int | None,
    max_ops: int | None,
    replicas: int | None,
    min_insync: int | None,
    durability: str,
    unclean_election: bool,
) -> None:
    """Create a keyspace and assign its partitions to the LIVE nodes, in turn.

    Examples:
      minkactl keyspace create flights --partitions 1024
      minkactl keyspace create fares --partitions 64 --replicas 5 --min-insync 3
      minkactl keyspace create cache --partitions 64 --replicas 1
      minkactl keyspace create legacy --partitions 9 --hash md5
      minkactl keyspace create default --partitions 64 --hash crc16     (for clients of Redis Cluster)
      minkactl keyspace create authors --ranges --split-at b,d
      minkactl keyspace create events --ranges --max-bytes 1GiB --max-ops 5000
    """
    if (partition_count is None) != ranges:
        raise click.UsageError("give --partitions or --ranges, one of them", click.get_current_context())
    if not ranges and any(option is not None for option in (split_at, max_bytes, max_ops)):
        raise click.UsageError("--split-at, --max-bytes and --max-ops go with --ranges", click.get_current_context())
    points = None if not ranges else parse_keys(split_at) if split_at is not None else []
    with session.admin() as admin:
        from minka.admin import Durability, HashFunction
        from minkactl.views import CREATED_COLUMNS, keyspace_document

        created = admin.create_keyspace(
            name,
            partitions=partition_count,
            hash_function=HashFunction(hash_name),
            split_points=points,
            replicas=replicas,
            min_insync=min_insync,
            durability=Durability(durability),
            unclean_election=unclean_election,
            max_bytes=max_bytes,
            max_ops=max_ops,
        )
    document = keyspace_document(created)
    emit(Page(document, [Listing(CREATED_COLUMNS, [document])], [name]), session.output)
    note("its partitions come online as their nodes take them: minkactl keyspaces")


@keyspace.command("map")
@click.argument("keyspace", shell_complete=complete_keyspace)
@options.common()
@options.pass_session
def map_(session: Session, keyspace: str) -> Exit:
    """Show a keyspace by ranges as a strip, as wide as the terminal, from its first key to its last.

    Each range is as wide as its data, and has the colour and the letter of its node; a second strip shows its load.
    Hot ranges are marked: those above --max-ops, or above twice the mean of the keyspace. Beneath are keys at which
    ranges begin, as many as there is room for.

    Examples:
      minkactl keyspace map authors
      minkactl keyspace map authors --watch
      minkactl keyspace map authors -o json | jq -r '.[] | select(.hot != "").name'
    """
    return show(session, lambda control: _map(control.partitions(of_keyspace(keyspace)).whole(), keyspace)).exit


def _map(status: "GetStatusResponse", name: str) -> Page:
    """The page of the map. Raises UNKNOWN_KEYSPACE, NOT_BY_RANGES."""
    from minka.cluster.key_ranges import is_by_ranges
    from minka.errors import Code, MinkaError
    from minkactl.range_views import DRAWN, keyspace_named, range_columns, range_rows
    from minkactl.survey import unconfirmed

    known = keyspace_named(status, name)
    if not is_by_ranges(known):
        raise MinkaError(Code.NOT_BY_RANGES, f"keyspace {name} is not partitioned by ranges: its keys have no map")
    rows = range_rows(status, known)
    documents = [{key: value for key, value in row.items() if key not in DRAWN} for row in rows]

    def draw(_: bool) -> "RenderableType":
        from minkactl.render import key_strip

        return key_strip.strip(known, [node.id for node in status.table.nodes], rows)

    listing = Listing(range_columns(known), rows)
    return Page(documents, [listing], [row["name"] for row in rows], draw, unconfirmed(status))
