"""minkactl partitions."""

import os
from typing import TYPE_CHECKING

import click

from minkactl import options
from minkactl.completion import complete_keyspace, complete_node, complete_partition
from minkactl.exits import Exit
from minkactl.keys import parse_key
from minkactl.output import TABLES, emit, emit_rows, is_terminal, note
from minkactl.pages import Column, Kind, Listing, Page
from minkactl.ranges import of_keyspace
from minkactl.session import Session
from minkactl.watch import show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from minka.admin.control import Control
    from minka.v1.admin_pb2 import GetSplitBlockersResponse, GetStatusResponse, MatchingCount, PartitionFilter
    from minka.v1.cluster_pb2 import Partition, PartitionTable

MAX_DRAWN = 300  # rows, in a table on a terminal: nobody reads more of them, and they take seconds
FEWER = "choose some with --keyspace, --node, --state or --under-replicated, or see all with | less or -o json"
COUNT_COLUMNS = (
    Column("KEYSPACE", "keyspace"),
    Column("STATE", "state", Kind.STATE),
    Column("PARTITIONS", "partitions", Kind.NUMBER),
)
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
) -> Exit:
    """List the partitions: state, leader, replicas, size, keys read and written a second.

    With --keyspace, one by ranges of keys is drawn: its bounds in order, and how much of --max-bytes each partition
    has. Exit status 5 when the list isn't from an active controller that a quorum has confirmed, but from a node's
    memory.

    Examples:
      minkactl partitions --keyspace authors
      minkactl partitions --state offline
      minkactl partitions --under-replicated -o wide
      minkactl partitions --node athens -o name
      minkactl partitions locate flights 2013-01-01/UA/1545/EWR/0
      minkactl partitions explain flights/6
      minkactl partitions story flights/6
    """
    if ctx.invoked_subcommand is not None:
        return Exit.OK
    from minka.engine.messages import number
    from minka.v1.admin_pb2 import PartitionFilter
    from minka.v1.cluster_pb2 import PartitionState

    wanted = PartitionFilter(
        keyspace=keyspace or "",
        node=node or "",
        state=PartitionState.ValueType(number(PartitionState.DESCRIPTOR, state or "unspecified")),
        under_replicated=under_replicated,
        under_min_insync=under_min_insync,
    )
    session = ctx.ensure_object(Session)
    if session.watch_s is not None or (session.output in TABLES and is_terminal()):
        return show(session, lambda control: _page(control, wanted, session.output)).exit
    with session.control() as control:
        return _stream(control, wanted, session.output)


def _stream(control: "Control", wanted: "PartitionFilter", form: str) -> Exit:
    """Print them as they come; those of one keyspace by ranges together, since each is compared with the others."""
    from minkactl.survey import unconfirmed
    from minkactl.views import PARTITION_COLUMNS, PartitionView

    listed = control.partitions(wanted)
    _check_names(listed.status.table, wanted.node, wanted.keyspace)
    if form in TABLES and _by_ranges(listed.status.table, wanted.keyspace):
        listed.close()
        page = _range_page(control, wanted)
        emit(page, form)
        return page.exit
    view = PartitionView(listed.status)
    emit_rows((list(view.rows(page.partitions, page.replicas)) for page in listed), PARTITION_COLUMNS, form)
    note(remembered := unconfirmed(listed.status))
    return Exit.UNHEALTHY if remembered else Exit.OK


def _page(control: "Control", wanted: "PartitionFilter", form: str) -> Page:
    """The page of them, or only their number if they are too many to be read on a terminal."""
    from minkactl.survey import unconfirmed
    from minkactl.views import PARTITION_COLUMNS, partition_rows

    drawn = form in TABLES and is_terminal()
    listed = control.partitions(wanted, MAX_DRAWN if drawn else 0)
    status = listed.whole()
    _check_names(status.table, wanted.node, wanted.keyspace)
    if drawn and sum(one.partitions for one in listed.matching) > MAX_DRAWN:
        return _too_many(status, listed.matching)
    if _by_ranges(status.table, wanted.keyspace):
        return _range_page(control, wanted)
    rows = partition_rows(status)
    listing = Listing(PARTITION_COLUMNS, rows, "No such partition.")
    return Page(rows, [listing], [row["name"] for row in rows], unconfirmed=unconfirmed(status))


def _too_many(status: "GetStatusResponse", matching: "Sequence[MatchingCount]") -> Page:
    """The number of partitions in each state, and the options that show them."""
    from minka.engine.messages import word
    from minkactl.survey import unconfirmed
    from minkactl.views import PARTITION_STATE

    names = {keyspace.id: keyspace.name for keyspace in status.table.keyspaces}
    rows = [
        {
            "keyspace": names[one.keyspace_id],
            "state": word(PARTITION_STATE, one.state),
            "partitions": one.partitions,
        }
        for one in matching
    ]
    listing = Listing(COUNT_COLUMNS, rows)

    def draw(wide: bool) -> "RenderableType":
        from minkactl.render import tables

        total = sum(one.partitions for one in matching)
        text = f"{total:,} partitions are too many to be drawn ({MAX_DRAWN:,} at most)"
        return tables.noted(tables.table(listing, wide), f"{text}: {FEWER}.")

    return Page(rows, [listing], [names[one.keyspace_id] for one in matching], draw, unconfirmed(status))


def _by_ranges(table: "PartitionTable", keyspace: str) -> bool:
    from minka.cluster.key_ranges import is_by_ranges

    return any(is_by_ranges(one) for one in table.keyspaces if one.name == keyspace)


def _range_page(control: "Control", wanted: "PartitionFilter") -> Page:
    """The wanted partitions of a keyspace by ranges, with bounds and bars: these compare them with all the others."""
    from minkactl.range_views import keyspace_named, range_columns, range_rows
    from minkactl.survey import unconfirmed
    from minkactl.views import partition_rows

    status = control.partitions(of_keyspace(wanted.keyspace)).whole()
    fitting = control.partitions(wanted)
    ids = {row.id for page in fitting for row in page.partitions}
    known = keyspace_named(status, wanted.keyspace)
    rows = [row for row in partition_rows(status) if row["id"] in ids]
    listing = Listing(
        range_columns(known), [row for row in range_rows(status, known) if row["id"] in ids], "No such partition."
    )

    def draw(wide: bool) -> "RenderableType":
        from minkactl.render import tables

        return tables.ranges(listing, wide)

    return Page(rows, [listing], [row["name"] for row in rows], draw, unconfirmed(status))


def _check_names(table: "PartitionTable", node: str, keyspace: str) -> None:
    """Raises UNKNOWN_NODE or UNKNOWN_KEYSPACE, since a mistyped name must not look as if there were no partitions."""
    from minka.errors import Code, MinkaError
    from minkactl.suggest import did_you_mean

    nodes, keyspaces = [one.id for one in table.nodes], [one.name for one in table.keyspaces]
    if node and node not in nodes:
        raise MinkaError(Code.UNKNOWN_NODE, f"no node {node!r}{did_you_mean(node, nodes)}")
    if keyspace and keyspace not in keyspaces:
        raise MinkaError(Code.UNKNOWN_KEYSPACE, f"no keyspace {keyspace!r}{did_you_mean(keyspace, keyspaces)}")


@partitions.command()
@click.argument("keyspace", shell_complete=complete_keyspace)
@click.argument("key")
@options.common(watch=False)
@options.pass_session
def locate(session: Session, keyspace: str, key: str) -> Exit:
    """Show where a key lies: its hash, slot, partition and node. The key need not exist."""
    with session.control() as control:
        page = located(control, keyspace, key)
    emit(page, session.output)
    return page.exit


@partitions.command()
@click.argument("partition", metavar="[NAME]", required=False, shell_complete=complete_partition)
@click.option(
    "--id", "partition_id", type=click.IntRange(1, options.MAX_32), metavar="ID", help="By its id, not its name."
)
@options.common()
@options.pass_session
def explain(session: Session, partition: str | None, partition_id: int | None) -> Exit:
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
    return show(session, lambda control: _explained(control, partition, partition_id or 0)).exit


@partitions.command()
@click.argument("partition", metavar="[NAME]", required=False, shell_complete=complete_partition)
@click.option(
    "--id", "partition_id", type=click.IntRange(1, options.MAX_32), metavar="ID", help="By its id, not its name."
)
@options.common()
@options.pass_session
def story(session: Session, partition: str | None, partition_id: int | None) -> Exit:
    """Show what happened to a partition's replicas lately: rows, leaderships, in-sync sets, copies, damage.

    Each node remembers the last 48 things that happened to its replica since the node's start. Their order across
    nodes is by the nodes' wall clocks. EPOCH, COMMITTED and LOG END are those of the replica after it.

    Examples:
      minkactl partitions story flights/6
      minkactl partitions story --id 7 -o wide
      minkactl partitions story flights/6 -o json | jq -r '.[] | select(.node == "athens") | .what'
    """
    if (partition is None) == (partition_id is None):
        raise click.UsageError("give a partition's name, or --id", click.get_current_context())
    return show(session, lambda control: _story(control, partition, partition_id or 0)).exit


def _story(control: "Control", name: str | None, partition_id: int) -> Page:
    """Raises UNKNOWN_PARTITION, and INVALID_ARGUMENT for a number that can mean several."""
    from minkactl.stories import story_of

    status, row = _around(control, name, partition_id)
    keyspace = next(one.name for one in status.table.keyspaces if one.id == row.keyspace_id)
    return story_of(control, status.table, row, f"{keyspace}/{row.slot}")


def _explained(control: "Control", name: str | None, partition_id: int) -> Page:
    """The page about a partition. Raises UNKNOWN_PARTITION, and INVALID_ARGUMENT for a number that can mean several."""
    from minka.v1.admin_pb2 import GetOperationsResponse
    from minkactl.explain import COLUMNS, explanation, subject
    from minkactl.survey import unconfirmed

    status, row = _around(control, name, partition_id)
    running = [one.id for one in status.running]
    operations = control.operations(running, with_migrations=True) if running else GetOperationsResponse()
    document = explanation(subject(status, operations, _split_blockers(control, status, row), row))
    following = document["next"] or ["nothing has to be done"]
    rows = [*document["sentences"], *({"about": "next", "sentence": text} for text in following)]

    def draw(_: bool) -> "RenderableType":
        from minkactl.render import tables

        return tables.sentences(rows)

    return Page(document, [Listing(COLUMNS, rows)], [document["partition"]["name"]], draw, unconfirmed(status))


def _around(control: "Control", name: str | None, partition_id: int) -> "tuple[GetStatusResponse, Partition]":
    """The partition, and a status with those that it is compared with: the others of its leader, and of its keyspace
    by ranges.
    """
    from minka.v1.admin_pb2 import PartitionFilter
    from minkactl.partition_names import find_partition, partition_with_id, selections

    found = control.summary()
    for wanted in [PartitionFilter(ids=[partition_id])] if name is None else selections(name):
        _add(found, control.partitions(wanted).whole())
    if name is not None and not found.table.partitions:
        found = control.status()  # for the names that it may mean
    row = partition_with_id(found.table, partition_id) if name is None else find_partition(found.table, name)
    keyspace = next(one.name for one in found.table.keyspaces if one.id == row.keyspace_id)
    around = control.partitions(PartitionFilter(ids=[row.id])).whole()
    if row.leader:
        _add(around, control.partitions(PartitionFilter(node=row.leader)).whole())
    if _by_ranges(found.table, keyspace):
        _add(around, control.partitions(of_keyspace(keyspace)).whole())
    return around, row


def _add(status: "GetStatusResponse", more: "GetStatusResponse") -> None:
    """Add the partitions that are not there yet, with what is reported of them."""
    known = {row.id for row in status.table.partitions}
    status.table.partitions.extend(row for row in more.table.partitions if row.id not in known)
    status.replicas.extend(one for one in more.replicas if one.partition_id not in known)
    status.damaged.extend(one for one in more.damaged if one.partition_id not in known)


def _split_blockers(
    control: "Control", status: "GetStatusResponse", row: "Partition"
) -> "GetSplitBlockersResponse | None":
    """The active controller's answer; None if there is no active controller."""
    from minka.errors import Code, MinkaError

    if not status.from_controller:
        return None
    try:
        return control.split_blockers(row.id)
    except MinkaError as error:
        if error.code not in (Code.NO_CONTROLLER, Code.NOT_CONTROLLER, Code.UNREACHABLE, Code.DEADLINE_EXCEEDED):
            raise
        return None


def located(control: "Control", keyspace: str, key: str) -> Page:
    """The way from the key to its node. Raises UNKNOWN_KEYSPACE."""
    from minka.cluster.hashing import HASH_FUNCTIONS, digest_of
    from minka.cluster.key_ranges import KeyRange, is_by_ranges
    from minka.engine.messages import word
    from minka.v1.admin_pb2 import PartitionFilter
    from minkactl.survey import unconfirmed
    from minkactl.views import PARTITION_STATE

    table = control.summary().table
    _check_names(table, "", keyspace)
    row = next(known for known in table.keyspaces if known.name == keyspace)
    number, wanted = None, of_keyspace(keyspace)
    if not is_by_ranges(row):
        number = HASH_FUNCTIONS[row.hash](os.fsencode(key))
        slot = digest_of(row.hash, row.partition_count)(os.fsencode(key)) % row.partition_count
        wanted = PartitionFilter(keyspace=keyspace, slots=[slot])
    status = control.partitions(wanted).whole()
    rows = status.table.partitions
    typed = parse_key(key) if number is None else b""
    partition = next(one for one in rows if number is not None or KeyRange(one.start_key, one.end_key).contains(typed))
    node = next((known for known in table.nodes if known.id == partition.leader), None)
    document = {
        "key": key,
        "keyspace": keyspace,
        "hash": number,
        "slot": partition.slot if number is not None else None,
        "name": f"{keyspace}/{partition.slot}",
        "id": partition.id,
        "state": word(PARTITION_STATE, partition.state),
        "node": partition.leader or None,
        "address": node.address if node else None,
        "replicas": list(partition.replicas),
    }
    listing = Listing(LOCATE_COLUMNS, [document])
    return Page(document, [listing], [f"{keyspace}/{partition.slot}"], unconfirmed=unconfirmed(status))
