"""minkactl playground."""

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from minkactl import options
from minkactl.output import emit, note
from minkactl.pages import Column, Listing, Page
from minkactl.session import Session

COLUMNS = (
    Column("NODE", "name"),
    Column("STATE", "state"),
    Column("PID", "pid"),
    Column("ADDRESS", "address"),
    Column("HTTP", "http_address"),
    Column("DATA PORT", "data_address"),
    Column("LOG", "log"),
)


def complete_local(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The nodes of the playground."""
    from minka.errors import MinkaError
    from minkactl.playground_server import ask

    try:
        rows = ask("list")["rows"]
    except MinkaError:
        return []
    return [CompletionItem(row["name"], help=row["state"]) for row in rows if row["name"].startswith(incomplete)]


@options.group(invoke_without_command=True)
@click.option("--nodes", type=click.IntRange(1, 20), default=3, show_default=True, metavar="N", help="How many.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the nodes' data there, and go on with earlier data. Default: a temporary folder.",
)
@click.option("--debug", is_flag=True, expose_value=False, hidden=True)
@click.pass_context
def playground(ctx: click.Context, nodes: int, data: Path | None) -> None:
    """Run a cluster on this machine, in the foreground; Ctrl-C stops it and removes everything.

    While it runs, minkactl finds it without any endpoints.

    Examples:
      minkactl playground --nodes 3
      minkactl playground add ephesus
      minkactl playground kill athens
      minkactl playground restart athens
    """
    if ctx.invoked_subcommand is not None:
        return
    from minkactl.playground_server import Server

    if data is not None:
        data.mkdir(parents=True, exist_ok=True)
    Server(nodes, data).run()


def _tell(command: str, name: str) -> None:
    from minkactl.playground_server import ask

    note(ask(command, name)["text"])


@playground.command()
@click.argument("name", required=False, default="")
def add(name: str) -> None:
    """Start one more node."""
    _tell("add", name)


@playground.command()
@click.argument("name", shell_complete=complete_local)
def kill(name: str) -> None:
    """Kill a node with SIGKILL, as a crash would."""
    _tell("kill", name)


@playground.command()
@click.argument("name", shell_complete=complete_local)
def stop(name: str) -> None:
    """Stop a node gracefully, with SIGTERM."""
    _tell("stop", name)


@playground.command()
@click.argument("name", shell_complete=complete_local)
def restart(name: str) -> None:
    """Start a node again, with its data."""
    _tell("restart", name)


@playground.command("list")
@options.common(watch=False)
@options.pass_session
def list_(session: Session) -> None:
    """List the nodes of the playground, those that were killed or stopped too."""
    from minkactl.playground_server import ask

    rows = ask("list")["rows"]
    emit(Page(rows, [Listing(COLUMNS, rows)], [row["name"] for row in rows]), session.output)
