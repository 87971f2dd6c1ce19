"""minkactl status."""

from dataclasses import replace
from typing import TYPE_CHECKING

from minkactl import options
from minkactl.exits import Exit
from minkactl.output import Column, Kind, Listing, Page, fields
from minkactl.session import Session
from minkactl.watch import show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from minka.v1.admin_pb2 import GetStatusResponse

DETAILS = ("address", "zone", "hash", "replicas")
PROBLEM_COLUMNS = (Column("PROBLEM", "problem"), Column("SEE", "look"), Column("SEVERITY", "severity"))
OPERATION_COLUMNS = (
    Column("RUNNING OPERATION", "id"),
    Column("KIND", "kind"),
    Column("MIGRATIONS", "migration_count", Kind.NUMBER),
    Column("BY", "requested_by"),
    Column("STARTED", "created_ms", Kind.TIME),
)


@options.command()
@options.common()
@options.pass_session
def status(session: Session) -> Exit:
    """Show the cluster on one page: health, coordinator, nodes, keyspaces, balance, operations.

    Exit status 5 when it is not healthy: no active controller, a node FAILED, a partition OFFLINE or with fewer
    replicas in sync than min-insync, fewer nodes than the cluster's minimum. Partitions that are under-replicated are
    shown, and served: exit status 0.

    Examples:
      minkactl status --watch
      minkactl status -o json | jq '.problems'
    """
    page = show(session, lambda control: status_page(control.status()))
    return Exit.OK if page.document["healthy"] else Exit.UNHEALTHY


def _narrow(columns: tuple[Column, ...]) -> list[Column]:
    """What says how the cluster does, so that it fits on 80 columns; `-o wide` has the rest too."""
    return [replace(column, wide=column.wide or column.key in DETAILS) for column in columns]


def status_page(status: "GetStatusResponse") -> Page:
    """The page of a node's answer."""
    from minkactl.views import KEYSPACE_COLUMNS, NODE_COLUMNS, status_document

    document = status_document(status)
    nodes = Listing(_narrow(NODE_COLUMNS), document["nodes"], "No node yet.")
    keyspaces = Listing(
        _narrow(KEYSPACE_COLUMNS), document["keyspaces"], "No keyspace yet: minkactl keyspace create --help."
    )

    def draw(wide: bool) -> "RenderableType":
        from minkactl import render

        return render.status(document, nodes, keyspaces, wide)

    rest = {
        key: value for key, value in document.items() if key not in ("nodes", "keyspaces", "problems", "operations")
    }
    found = [Listing(PROBLEM_COLUMNS, document["problems"])] if document["problems"] else []
    running = [Listing(OPERATION_COLUMNS, document["operations"])] if document["operations"] else []
    return Page(document, [fields(rest), *found, *running, nodes, keyspaces], [document["cluster"]["name"]], draw)
