"""minkactl partitions."""

import os
from typing import TYPE_CHECKING, Any

import click

from minkactl import options
from minkactl.completion import complete_keyspace, complete_node, complete_partition
from minkactl.keys import parse_key
from minkactl.output import emit
from minkactl.pages import Column, Kind, Listing, Page
from minkactl.session import Session
from minkactl.watch import show

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from minka.control import Control
    from minka.v1.admin_pb2 import GetSplitBlockersResponse, GetStatusResponse
    from minka.v1.cluster_pb2 import Partition, PartitionTable
    from minkactl.pages import Row

LOCATE_COLUMNS = (
    Column("KEY", "key"),
    Column("HASH", "hash"),
    Column("SLOT", "slot"),
    Column("PARTITION", "name"),
    Column("ID", "id"),
    Column("STATE", "state", Kind.STATE),
    Column("NODE", "node"),
    Column("ADDRESS", "address"),
)


@options.group(invoke_without_command=True)
@click.option("--node", shell_complete=complete_node, help="Only those that have a replica on this node.")
@click.option("--keyspace", shell_complete=complete_keyspace, help="Only those of this keyspace.")
@click.option("--state", type=click.Choice(["new", "assigned", "online", "offline"]), help="Only those in this state.")
@click.option("--under-replicated", is_flag=True, help="Only those with replicas that are not in sync.")
@click.option(
    "--under-min-insync", is_flag=True, help="Only those with fewer replicas in sync than min-insync: no writes."
)
@options.common()
@click.pass_context
def partitions(
    ctx: click.Context,
    node: str | None,
    keyspace: str | None,
    state: str | None,
    under_replicated: bool,
    under_min_insync: bool,
) -> None:
    """List the partitions: state, leader, replicas, size, keys read and written a second.

    With --keyspace, one by ranges of keys is drawn: its bounds in order, and how much of --max-bytes each partition
    has.

    Examples:
      minkactl partitions --keyspace authors
      minkactl partitions --state offline
      minkactl partitions --under-replicated -o wide
      minkactl partitions --node athens -o name
      minkactl partitions locate flights 2013-01-01/UA/1545/EWR/0
      minkactl partitions explain flights/6
    """
    if ctx.invoked_subcommand is not None:
        return

    def wanted(row: "Row") -> bool:
        return bool(
            (node is None or node in row["replicas"])
            and keyspace in (None, row["keyspace"])
            and state in (None, row.get("remembered_state", row["state"]))
            and (row["under_replicated"] or not under_replicated)
            and (row["under_min_insync"] or not under_min_insync)
        )

    def fetch(control: "Control") -> Page:
        status = control.status()
        _check_names(status.table, node, keyspace)
        return _page(status, keyspace, wanted)

    show(ctx.ensure_object(Session), fetch)


def _page(status: "GetStatusResponse", keyspace: str | None, wanted: "Callable[[Row], bool]") -> Page:
    """The partitions; those of one keyspace by ranges with their bounds and bars."""
    from minka.ranges import is_by_ranges
    from minkactl.range_views import keyspace_named, range_columns, range_rows
    from minkactl.views import PARTITION_COLUMNS, partition_rows

    rows = [row for row in partition_rows(status) if wanted(row)]
    names = [row["name"] for row in rows]
    known = keyspace_named(status, keyspace) if keyspace is not None else None
    if known is None or not is_by_ranges(known):
        return Page(rows, [Listing(PARTITION_COLUMNS, rows, "No such partition.")], names)
    shown = [row for row in range_rows(status, known) if wanted(row)]
    listing = Listing(range_columns(known), shown, "No such partition.")

    def draw(wide: bool) -> "RenderableType":
        from minkactl.render import tables

        return tables.ranges(listing, wide)

    return Page(rows, [listing], names, draw)


def _check_names(table: "PartitionTable", node: str | None, keyspace: str | None) -> None:
    """Raises UNKNOWN_NODE or UNKNOWN_KEYSPACE, since a mistyped name must not look as if there were no partitions."""
    from minka.errors import Code, MinkaError
    from minkactl.suggest import did_you_mean

    nodes, keyspaces = [one.id for one in table.nodes], [one.name for one in table.keyspaces]
    if node is not None and node not in nodes:
        raise MinkaError(Code.UNKNOWN_NODE, f"no node {node!r}{did_you_mean(node, nodes)}")
    if keyspace is not None and keyspace not in keyspaces:
        raise MinkaError(Code.UNKNOWN_KEYSPACE, f"no keyspace {keyspace!r}{did_you_mean(keyspace, keyspaces)}")


@partitions.command()
@click.argument("keyspace", shell_complete=complete_keyspace)
@click.argument("key")
@options.common(watch=False)
@options.pass_session
def locate(session: Session, keyspace: str, key: str) -> None:
    """Show where a key lies: its hash, slot, partition and node. The key need not exist."""
    with session.control() as control:
        table = control.table()
    document = located(table, keyspace, key)
    emit(Page(document, [Listing(LOCATE_COLUMNS, [document])], [document["name"]]), session.output)


@partitions.command()
@click.argument("partition", metavar="[NAME]", required=False, shell_complete=complete_partition)
@click.option("--id", "partition_id", type=click.IntRange(min=1), metavar="ID", help="By its id, instead of its name.")
@options.common()
@options.pass_session
def explain(session: Session, partition: str | None, partition_id: int | None) -> None:
    """Say what a partition is, how large and how busy, what is under way, why it is or isn't split, and what to do.

    NAME is what the column PARTITION of minkactl partitions shows, and ID what the column ID does. A number alone is
    refused if it is the id of one partition and the slot of another.

    Examples:
      minkactl partitions explain flights/6
      minkactl partitions explain --id 7
      minkactl partitions explain authors/7 -o json | jq -r .verdict
    """
    if (partition is None) == (partition_id is None):
        raise click.UsageError("give a partition's name, or --id", click.get_current_context())
    show(session, lambda control: _explained(control, partition, partition_id or 0))


def _explained(control: "Control", name: str | None, partition_id: int) -> Page:
    """The page about a partition. Raises UNKNOWN_PARTITION, and INVALID_ARGUMENT for a number that can mean several."""
    from minka.v1.admin_pb2 import GetOperationsResponse
    from minkactl.explain import COLUMNS, explanation, subject
    from minkactl.partition_names import find_partition, partition_with_id

    status = control.status()
    row = partition_with_id(status.table, partition_id) if name is None else find_partition(status.table, name)
    running = [one.id for one in status.running]
    operations = control.operations(running, with_migrations=True) if running else GetOperationsResponse()
    document = explanation(subject(status, operations, _split_blockers(control, status, row), row))
    rows = [*document["sentences"], *({"about": "next", "sentence": text} for text in document["next"])]

    def draw(_: bool) -> "RenderableType":
        from minkactl.render import tables

        return tables.sentences(rows)

    return Page(document, [Listing(COLUMNS, rows)], [document["partition"]["name"]], draw)


def _split_blockers(
    control: "Control", status: "GetStatusResponse", row: "Partition"
) -> "GetSplitBlockersResponse | None":
    """What the active controller says; None if there is no active controller."""
    from minka.errors import Code, MinkaError

    if not status.from_controller:
        return None
    try:
        return control.split_blockers(row.id)
    except MinkaError as error:
        if error.code not in (Code.NO_CONTROLLER, Code.NOT_CONTROLLER, Code.UNREACHABLE, Code.DEADLINE_EXCEEDED):
            raise
        return None


def located(table: "PartitionTable", keyspace: str, key: str) -> dict[str, Any]:
    """The way from the key to its node. Raises UNKNOWN_KEYSPACE."""
    from minka.hashing import HASH_FUNCTIONS
    from minka.ranges import KeyRange, is_by_ranges
    from minkactl.documents import enum_name
    from minkactl.views import PARTITION_STATE

    _check_names(table, None, keyspace)
    row = next(known for known in table.keyspaces if known.name == keyspace)
    rows = [one for one in table.partitions if one.keyspace_id == row.id]
    number = None
    if is_by_ranges(row):
        typed = parse_key(key)
        partition = next(one for one in rows if KeyRange(one.start_key, one.end_key).contains(typed))
    else:
        number = HASH_FUNCTIONS[row.hash](os.fsencode(key))
        partition = next(one for one in rows if one.slot == number % row.partition_count)
    node = next((known for known in table.nodes if known.id == partition.leader), None)
    return {
        "key": key,
        "keyspace": keyspace,
        "hash": number,
        "slot": partition.slot if number is not None else None,
        "name": f"{keyspace}/{partition.slot}",
        "id": partition.id,
        "state": enum_name(PARTITION_STATE, partition.state),
        "node": partition.leader or None,
        "address": node.address if node else None,
        "replicas": list(partition.replicas),
    }
