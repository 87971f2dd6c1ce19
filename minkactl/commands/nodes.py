"""minkactl nodes."""

from typing import TYPE_CHECKING

import click

from minkactl import options
from minkactl.completion import complete_node
from minkactl.exits import Exit
from minkactl.pages import Listing, Page, Row, fields
from minkactl.session import Session
from minkactl.watch import show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from minka.admin.control import Control


@options.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=complete_node)
@options.common()
@options.pass_session
def nodes(session: Session, name: str | None) -> Exit:
    """List the nodes: state, address, what they hold, and what is wrong with them. With NAME: all about one.

    Every node is asked, which takes a second at most if one doesn't answer. Without an active controller the state of a
    node is not known; its last known state is shown as such. Exit status 5 when status would say that the cluster is
    not healthy because of its nodes; with NAME, when no active controller that a quorum has confirmed says so.

    Examples:
      minkactl nodes -o wide
      minkactl nodes athens
      minkactl nodes -o json | jq -r '.[] | select(.state == "failed").id'
    """
    from minkactl.problems import node_problems
    from minkactl.survey import survey
    from minkactl.views import NODE_COLUMNS, node_rows

    problems: list[Row] = []

    def fetch(control: "Control") -> Page:
        if name is not None:
            return _one(control, name)
        asked = survey(control)
        problems[:] = node_problems(asked)
        rows = node_rows(asked.status, asked)
        listing = Listing(NODE_COLUMNS, rows, "No node yet.")

        def draw(wide: bool) -> "RenderableType":
            from minkactl.render import status

            return status.nodes(problems, listing, wide)

        return Page(rows, [listing], [row["id"] for row in rows], draw)

    page = show(session, fetch)
    return Exit.UNHEALTHY if any(problem["severity"] == "error" for problem in problems) else page.exit


def _one(control: "Control", name: str) -> Page:
    """The page of one node. Raises UNKNOWN_NODE."""
    from minka.v1.admin_pb2 import PartitionFilter
    from minkactl.node_detail import KEYSPACE_COLUMNS, facts, node_document
    from minkactl.survey import unconfirmed

    held = control.partitions(PartitionFilter(node=name, with_removing=True)).whole()
    document = node_document(status := control.summary(), held, name)
    exact = fields({key: value for key, value in document.items() if key not in ("keyspaces", "operations")})
    keyspaces = Listing(KEYSPACE_COLUMNS, document["keyspaces"], "It holds no partition.")

    def draw(wide: bool) -> "RenderableType":
        from minkactl.render import tables

        return tables.stacked([tables.facts(facts(document)), tables.table(keyspaces, wide)])

    return Page(document, [exact, keyspaces], [name], draw, unconfirmed(status))
