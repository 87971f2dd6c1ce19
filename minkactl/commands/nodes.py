"""minkactl nodes."""

from typing import TYPE_CHECKING

from minkactl import options
from minkactl.output import Listing, Page
from minkactl.session import Session
from minkactl.watch import show

if TYPE_CHECKING:
    from minka.control import Control


@options.command()
@options.common()
@options.pass_session
def nodes(session: Session) -> None:
    """List the nodes: state, address, what they hold, and when they were last heard.

    Examples:
      minkactl nodes -o wide
      minkactl nodes -o json | jq -r '.[] | select(.state == "failed").id'
    """
    from minkactl.views import NODE_COLUMNS, node_rows

    def fetch(control: "Control") -> Page:
        rows = node_rows(control.status())
        return Page(rows, [Listing(NODE_COLUMNS, rows, "No node yet.")], [row["id"] for row in rows])

    show(session, fetch)
