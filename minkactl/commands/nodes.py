"""minkactl nodes."""

from typing import TYPE_CHECKING

import click

from minkactl import options
from minkactl.completion import complete_node
from minkactl.output import Listing, Page, fields
from minkactl.session import Session
from minkactl.watch import show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from minka.control import Control


@options.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=complete_node)
@options.common()
@options.pass_session
def nodes(session: Session, name: str | None) -> None:
    """List the nodes: state, address, what they hold, and when they were last heard. With NAME: all about one.

    Examples:
      minkactl nodes -o wide
      minkactl nodes athens
      minkactl nodes -o json | jq -r '.[] | select(.state == "failed").id'
    """
    from minkactl.views import NODE_COLUMNS, node_rows

    def fetch(control: "Control") -> Page:
        if name is not None:
            return _one(control, name)
        rows = node_rows(control.status())
        return Page(rows, [Listing(NODE_COLUMNS, rows, "No node yet.")], [row["id"] for row in rows])

    show(session, fetch)


def _one(control: "Control", name: str) -> Page:
    """Raises UNKNOWN_NODE."""
    from minkactl.node_detail import KEYSPACE_COLUMNS, facts, node_document

    document = node_document(control.status(), name)
    exact = fields({key: value for key, value in document.items() if key not in ("keyspaces", "operations")})
    keyspaces = Listing(KEYSPACE_COLUMNS, document["keyspaces"], "It holds no partition.")

    def draw(wide: bool) -> "RenderableType":
        from minkactl import render

        return render.stacked([render.facts(facts(document)), render.table(keyspaces, wide)])

    return Page(document, [exact, keyspaces], [name], draw)
