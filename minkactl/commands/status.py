"""minkactl status."""

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from minkactl import options
from minkactl.exits import Exit
from minkactl.pages import Column, Kind, Listing, Page, Row, fields
from minkactl.session import Session
from minkactl.watch import show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from minka.admin.control import Control
    from minkactl.survey import Survey

DETAILS = ("address", "zone", "hash", "replicas")
PROBLEM_COLUMNS = (
    Column("PROBLEM", "problem"),
    Column("NEXT", "next"),
    Column("SEVERITY", "severity"),
    Column("NOTE", "note"),
    Column("OTHERWISE", "otherwise"),
)
OPERATION_COLUMNS = (
    Column("RUNNING OPERATION", "id"),
    Column("KIND", "kind"),
    Column("MIGRATIONS", "migration_count", Kind.NUMBER),
    Column("BY", "by"),
    Column("STARTED", "created_ms", Kind.TIME),
)


@options.command()
@options.common()
@options.pass_session
def status(session: Session) -> Exit:
    """Show the cluster on one page: health, coordinator, nodes, keyspaces, balance, operations.

    Every node is asked, which takes a second at most if one doesn't answer. What no answering node can know is shown as
    not known, with the last known value. Each problem ends with the commands to type next.

    Exit status 5 when it is not healthy, or not known to be: no active controller, a node that FAILED or is heard by
    nobody, a partition OFFLINE, not served by its leader or with fewer replicas in sync than min-insync, fewer nodes
    than the cluster's minimum. Partitions that are under-replicated or unevenly spread are shown, and served:
    exit status 0.

    Examples:
      minkactl status --watch
      minkactl status -o json | jq '.problems'
    """
    from minkactl.survey import survey

    def fetch(control: "Control") -> Page:
        asked = survey(control, _import_views)
        from minkactl.status_views import duty_totals

        return status_page(asked, duty_totals(control) if asked.known else None)

    page = show(session, fetch)
    return Exit.OK if page.document["healthy"] else Exit.UNHEALTHY


def _import_views() -> None:
    """Import the modules of the page while the nodes make up their answers."""
    import_module("minkactl.status_views")
    import_module("minkactl.views")


def _narrow(columns: tuple[Column, ...]) -> list[Column]:
    """The columns, of which only `-o wide` shows the details, so that the rest fits on 80 columns."""
    return [replace(column, wide=column.wide or column.key in DETAILS) for column in columns]


def problem_listing(problems: list[Row]) -> list[Listing]:
    """The listing of the problems, for a pipe; empty without problems."""
    rows = [{**problem, "next": "; ".join(problem["next"])} for problem in problems]
    return [Listing(PROBLEM_COLUMNS, rows)] if rows else []


def status_page(asked: "Survey", duties: Row | None = None) -> Page:
    """The page of the nodes' answers. `duties` is the sum of all pallets; None if it isn't known."""
    from minkactl.status_views import status_document
    from minkactl.views import KEYSPACE_COLUMNS, NODE_COLUMNS
    from minkactl.zones import ZONE_COLUMNS

    document = status_document(asked, duties)
    nodes = Listing(_narrow(NODE_COLUMNS), document["nodes"], "No node yet.")
    keyspaces = Listing(
        _narrow(KEYSPACE_COLUMNS), document["keyspaces"], "No keyspace yet: minkactl keyspace create --help."
    )

    zones = [Listing(ZONE_COLUMNS, document["zones"])] if document["zones"] else []

    def draw(wide: bool) -> "RenderableType":
        from minkactl.render import status

        return status.status(document, [nodes, *zones, keyspaces], wide)

    tables = ("nodes", "zones", "keyspaces", "problems", "operations")
    rest = {key: value for key, value in document.items() if key not in tables}
    found = problem_listing(document["problems"])
    running = [Listing(OPERATION_COLUMNS, document["operations"])] if document["operations"] else []
    return Page(
        document, [fields(rest), *found, *running, nodes, *zones, keyspaces], [document["cluster"]["name"]], draw
    )
