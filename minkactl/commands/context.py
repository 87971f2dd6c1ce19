"""minkactl context."""

import click

from minkactl import options
from minkactl.completion import complete_context
from minkactl.output import Column, Listing, Page, emit, note
from minkactl.session import Session

COLUMNS = (Column("CURRENT", "mark"), Column("CONTEXT", "name"), Column("ENDPOINTS", "endpoints"))


@options.group()
def context() -> None:
    """Name clusters, and choose the one to talk to.

    What counts, first to last: --endpoints, --context, MINKA_ENDPOINTS, the current context, a running playground,
    127.0.0.1:7400.
    """


@context.command("list")
@options.common(watch=False)
@options.pass_session
def list_(session: Session) -> None:
    """List the contexts."""
    from minkactl.context import load

    config = load()
    rows = [
        {"name": name, "endpoints": list(addresses), "current": name == config.current}
        for name, addresses in config.contexts.items()
    ]
    shown = [row | {"mark": "*" if row["current"] else None} for row in rows]
    listing = Listing(COLUMNS, shown, "No context yet: minkactl context set --help.")
    emit(Page(rows, [listing], list(config.contexts)), session.output)


@context.command("set")
@click.argument("name", shell_complete=complete_context)
@click.argument("endpoints", metavar="HOST:PORT,…")
def set_(name: str, endpoints: str) -> None:
    """Create a context, or change where it leads. The first one becomes the current one.

    Example:
      minkactl context set prod 10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400
    """
    from minkactl.context import config_path, load, save, split_endpoints

    config = load()
    config.contexts[name] = split_endpoints(endpoints, f"context {name}")
    config.current = config.current or name
    save(config)
    note(f"context {name} is in {config_path()}{' and is the current one' if config.current == name else ''}")


@context.command()
@click.argument("name", shell_complete=complete_context)
def use(name: str) -> None:
    """Make a context the current one."""
    from minkactl.context import find, load, save

    config = load()
    find(config, name)
    config.current = name
    save(config)
    note(f"context {name} is the current one")


@context.command("show")
@options.common(watch=False)
@options.pass_session
def show_(session: Session) -> None:
    """Show which endpoints count right now, and who says so."""
    endpoints = session.endpoints()
    row = {"source": endpoints.source, "endpoints": list(endpoints.addresses)}
    columns = (Column("SOURCE", "source"), Column("ENDPOINTS", "endpoints"))
    emit(Page(row, [Listing(columns, [row])], list(endpoints.addresses)), session.output)
