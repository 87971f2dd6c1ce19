"""minkactl version."""

from typing import Any, Final

import minka
from minkactl import options
from minkactl.output import emit, note
from minkactl.pages import Column, Kind, Listing, Page
from minkactl.session import Session

TIMEOUT_S: Final = 2.0  # unless --timeout says otherwise; short, since the command is about minkactl first

COLUMNS = (Column("WHAT", "what"), Column("VERSION", "version"), Column("STATE", "state", Kind.STATE))


@options.command()
@options.common(watch=False)
@options.pass_session
def version(session: Session) -> None:
    """Show the version of minkactl, and of every node if a cluster can be reached.

    Exit status 0 also when none can, or when it is only what a node remembers: stderr says so.

    Example:
      minkactl version -o json
    """
    from minka.errors import MinkaError

    if session.timeout_s is None:
        session.timeout_s = TIMEOUT_S
    nodes: list[dict[str, Any]] = []
    try:
        nodes, missing = _nodes(session)
    except MinkaError as error:
        missing = f"the nodes' versions are not known: {error.code.name}: {error.message}"
    rows = [{"what": "minkactl", "version": minka.__version__, "state": None}]
    rows += [{"what": node["id"], "version": node["version"], "state": node["state"]} for node in nodes]
    document = {"client": minka.__version__, "nodes": nodes}
    emit(Page(document, [Listing(COLUMNS, rows)], [minka.__version__]), session.output)
    note(missing)


def _nodes(session: Session) -> tuple[list[dict[str, Any]], str]:
    """The nodes' versions when they registered, and a sentence if these are only remembered. Raises MinkaError."""
    from minkactl.survey import unconfirmed
    from minkactl.views import node_rows

    with session.control() as control:
        status = control.summary()
    rows = [{"id": row["id"], "version": row["version"] or None, "state": row["state"]} for row in node_rows(status)]
    return rows, unconfirmed(status)
