"""minkactl context."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from minka.tls import Tls
from minkactl import options
from minkactl.completion import complete_context
from minkactl.output import emit, note
from minkactl.pages import Column, Listing, Page
from minkactl.session import Session

FILE = click.Path(path_type=Path)
COLUMNS = (
    Column("CURRENT", "mark"), Column("CONTEXT", "name"), Column("ENDPOINTS", "endpoints"), Column("TLS", "paths"),
)  # fmt: skip


@options.group()
def context() -> None:
    """Name clusters, and choose the one to talk to.

    What counts, first to last: --endpoints, --context, MINKA_ENDPOINTS, the current context, a running playground,
    127.0.0.1:7400. A context names its files for TLS; MINKA_TLS_CA, MINKA_TLS_CERT and MINKA_TLS_KEY name those for
    --endpoints, MINKA_ENDPOINTS and 127.0.0.1:7400.
    """


@context.command("list")
@options.common(watch=False)
@options.pass_session
def list_(session: Session) -> None:
    """List the contexts."""
    from minka.contexts import load, tls_document

    config = load()
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "endpoints": list(context.endpoints),
            "current": name == config.current,
            "tls": tls_document(context.tls),
        }
        for name, context in config.contexts.items()
    ]
    shown = [row | {"mark": "*" if row["current"] else None, "paths": paths(row["tls"])} for row in rows]
    listing = Listing(COLUMNS, shown, "No context yet: minkactl context set --help.")
    emit(Page(rows, [listing], list(config.contexts)), session.output)


@context.command("set")
@click.argument("name", shell_complete=complete_context)
@click.argument("endpoints", metavar="HOST:PORT,…")
@click.option("--tls-ca", type=FILE, metavar="FILE", help="For TLS: the authority of the nodes' certificates.")
@click.option("--tls-cert", type=FILE, metavar="FILE", help="For TLS: your certificate.")
@click.option("--tls-key", type=FILE, metavar="FILE", help="For TLS: its private key.")
@click.option("--no-tls", is_flag=True, help="Without TLS from now on.")
def set_(
    name: str, endpoints: str, tls_ca: Path | None, tls_cert: Path | None, tls_key: Path | None, no_tls: bool
) -> None:
    """Create a context, or change where it leads. The first one becomes the current one.

    A context that has TLS keeps it until --no-tls, or other files, are given.

    Examples:
      minkactl context set prod 10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400
      minkactl context set prod 10.0.0.1:7400 --tls-ca ca.pem --tls-cert me.pem --tls-key me.key
    """
    from minka import tls_files
    from minka.contexts import Context, config_path, load, save, split_endpoints

    config = load()
    files = [path for path in (tls_ca, tls_cert, tls_key) if path is not None]
    if len(files) not in (0, 3) or (files and no_tls):
        raise click.UsageError("give --tls-ca, --tls-cert and --tls-key, or --no-tls", click.get_current_context())
    before = config.contexts.get(name)
    tls = before.tls if before is not None and not no_tls else None
    if files:
        tls = Tls(*(path.absolute() for path in files))
        tls_files.read(tls)  # so that a mistake in them is reported now
    config.contexts[name] = Context(split_endpoints(endpoints, f"context {name}"), tls)
    config.current = config.current or name
    save(config)
    note(f"context {name} is in {config_path()}{' and is the current one' if config.current == name else ''}")


@context.command()
@click.argument("name", shell_complete=complete_context)
def use(name: str) -> None:
    """Make a context the current one."""
    from minka.contexts import find, load, save

    config = load()
    find(config, name)
    config.current = name
    save(config)
    note(f"context {name} is the current one")


@context.command()
@click.argument("name", shell_complete=complete_context)
def delete(name: str) -> None:
    """Forget a context. If it is the current one, no context is current until context use."""
    from minka.contexts import config_path, find, load, save

    config = load()
    find(config, name)
    del config.contexts[name]
    was_current = config.current == name
    if was_current:
        config.current = ""
    save(config)
    note(f"context {name} is no longer in {config_path()}")
    if was_current:
        left = f": minkactl context use {next(iter(config.contexts))}" if config.contexts else ""
        note(f"it was the current one; there is none now{left}")


@context.command("show")
@options.common(watch=False)
@options.pass_session
def show_(session: Session) -> None:
    """Show which endpoints count right now, what they come from, and the files for TLS."""
    from minka.contexts import tls_document

    endpoints = session.endpoints()
    tls = tls_document(endpoints.tls)
    row = {"source": endpoints.source, "endpoints": list(endpoints.addresses), "tls": tls}
    columns = (Column("SOURCE", "source"), Column("ENDPOINTS", "endpoints"), Column("TLS", "paths"))
    listing = Listing(columns, [row | {"paths": paths(tls)}])
    emit(Page(row, [listing], list(endpoints.addresses)), session.output)


def paths(tls: Mapping[str, str] | None) -> list[str]:
    """The cell of a table that has the files for TLS."""
    return [] if tls is None else list(tls.values())
