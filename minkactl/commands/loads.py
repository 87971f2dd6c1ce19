"""minkactl loads."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from minka.admin.requester import requester
from minkactl import options
from minkactl.completion import complete_load
from minkactl.output import emit
from minkactl.pages import Column, Kind, Listing, Page
from minkactl.session import Session
from minkactl.watch import show as show_page

if TYPE_CHECKING:
    from minka.admin.control import Control
    from minka.v1.load_api_pb2 import GetLoadsResponse
    from minka.v1.loads_pb2 import Load

LOAD_COLUMNS: Final = (
    Column("LOAD", "id"),
    Column("KEYSPACE", "keyspace"),
    Column("STATE", "state", Kind.STATE),
    Column("PARTS", "parts", Kind.NUMBER),
    Column("DONE", "parts_done", Kind.NUMBER),
    Column("ROWS", "rows", Kind.NUMBER),
    Column("BYTES", "bytes", Kind.BYTES),
    Column("BY", "requested_by"),
    Column("BEGUN", "created_ms", Kind.TIME),
    Column("TOUCHED", "touched_ms", Kind.TIME, wide=True),
    Column("COMMITTED", "committed_ms", Kind.TIME, wide=True),
    Column("ENDED", "finished_ms", Kind.TIME, wide=True),
    Column("LIMIT", "rate_limit", Kind.BYTES, wide=True),
    Column("OUTCOME", "outcome"),
)
_PART_COLUMNS: Final = (
    Column("PARTITION", "partition"),
    Column("FILE", "name"),
    Column("ROWS", "rows", Kind.NUMBER),
    Column("BYTES", "bytes", Kind.BYTES),
    Column("DONE", "done"),
)
_BLOCKER_COLUMNS: Final = (
    Column("PARTITION", "partition"),
    Column("WAITS FOR", "reason"),
    Column("WHAT HELPS", "remedy"),
)

IdArgument = click.argument("load_id", metavar="ID", shell_complete=complete_load)


@options.group(invoke_without_command=True)
@options.common()
@click.pass_context
def loads(ctx: click.Context) -> None:
    """List the loads of files that have not ended, and the last that have; show one, or give one up.

    Examples:
      minkactl loads --watch
      minkactl loads show flights-2013
      minkactl loads abort flights-2013 --reason "wrong file"
    """
    if ctx.invoked_subcommand is None:
        show_page(ctx.ensure_object(Session), _listing)


@loads.command("list")
@options.common()
@options.pass_session
def list_(session: Session) -> None:
    """List the loads: the same as minkactl loads."""
    show_page(session, _listing)


@loads.command()
@IdArgument
@options.common()
@options.pass_session
def show(session: Session, load_id: str) -> None:
    """Show a load: its parts while they are taken in, and what each waits for.

    Example:
      minkactl loads show flights-2013 --watch
    """
    show_page(session, lambda control: _page(control, load_id))


@loads.command()
@IdArgument
@click.option("--reason", default="", metavar="TEXT", help="The reason, which is kept with the load.")
@options.common(watch=False)
@options.pass_session
def abort(session: Session, load_id: str, reason: str) -> None:
    """Give up a load that is not committed: nothing of it is taken in, and its files are removed from the nodes.

    Refused with LOAD_ENDED once it is committed: then all of it is taken in.

    Example:
      minkactl loads abort flights-2013 --reason "wrong file"
    """
    with session.control() as control:
        load = control.abort_load(load_id, requester(), reason)
        document = _documents(control, [load])[0]
    emit(Page(document, [Listing(LOAD_COLUMNS, [document])], [load.id]), session.output)


def _listing(control: "Control") -> Page:
    rows = _documents(control, control.loads().loads)
    return Page(rows, [Listing(LOAD_COLUMNS, rows, "No load yet.")], [row["id"] for row in rows])


def _page(control: "Control", load_id: str) -> Page:
    from minka.engine.documents import to_document

    found: GetLoadsResponse = control.loads([load_id], with_parts=True)
    (load,) = _documents(control, found.loads)
    names = _partition_names(control, {part.partition_id for part in found.parts})
    parts = [to_document(part) | {"partition": names.get(part.partition_id, "")} for part in found.parts]
    blockers = [to_document(blocker) for blocker in found.blockers]
    listings = [Listing(LOAD_COLUMNS, [load])]
    if parts:
        listings.append(Listing(_PART_COLUMNS, parts))
    if blockers:
        listings.append(Listing(_BLOCKER_COLUMNS, blockers))
    return Page({"load": load, "parts": parts, "blockers": blockers}, listings, [load_id])


def _documents(control: "Control", found: "Iterable[Load]") -> list[dict[str, Any]]:
    from minka.engine.documents import to_document

    keyspaces = {keyspace.id: keyspace.name for keyspace in control.summary().table.keyspaces}
    return [to_document(load) | {"keyspace": keyspaces.get(load.keyspace_id, "")} for load in found]


def _partition_names(control: "Control", ids: set[int]) -> dict[int, str]:
    """The names of those that are still there."""
    from minka.v1.admin_pb2 import PartitionFilter
    from minkactl.views import partition_names

    return partition_names(control.partitions(PartitionFilter(ids=ids)).whole()) if ids else {}
