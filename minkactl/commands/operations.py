"""minkactl operations."""

from typing import TYPE_CHECKING

import click

from minkactl import options
from minkactl.commands.migrations import LIMIT, OLDER, make_tracker, operation_page, watch_one
from minkactl.completion import complete_operation, complete_running_operation
from minkactl.exits import Exit
from minkactl.output import emit, note
from minkactl.pages import Listing, Page
from minkactl.session import Session
from minkactl.watch import show as show_page

if TYPE_CHECKING:
    from minka.admin import Operation
    from minka.admin.control import Control
    from minkactl.progress import Tracker

IdArgument = click.argument(
    "operation_id", metavar="ID", type=click.IntRange(1, options.MAX_64), shell_complete=complete_operation
)
RunningArgument = click.argument(
    "operation_id", metavar="ID", type=click.IntRange(1, options.MAX_64), shell_complete=complete_running_operation
)


@options.group(invoke_without_command=True)
@options.common()
@click.pass_context
def operations(ctx: click.Context) -> Exit:
    """List the newest operations, what the running ones wait for, and what helps; change a running one.

    Exit status 5 when the list isn't from an active controller that a quorum has confirmed, but from a node's memory.

    Examples:
      minkactl operations
      minkactl operations show 12
      minkactl operations limit 12 50MiB
    """
    return show_page(ctx.ensure_object(Session), _listing).exit if ctx.invoked_subcommand is None else Exit.OK


@operations.command("list")
@options.common()
@options.pass_session
def list_(session: Session) -> Exit:
    """List the newest operations: the same as minkactl operations."""
    return show_page(session, _listing).exit


def _listing(control: "Control") -> Page:
    from minka.admin.operation_rows import operation_of
    from minkactl.progress import BLOCKER_COLUMNS, OPERATION_COLUMNS, blocker_document, operation_document
    from minkactl.survey import unconfirmed

    remembered = unconfirmed(control.summary())  # this finds the active controller, too, which is asked next
    newest = control.operations(limit=LIMIT + 1)
    left_out = OLDER if len(newest.operations) > LIMIT else ""
    del newest.operations[LIMIT:]
    running = [one.id for one in newest.operations if not one.finished_ms]
    # The active controller alone knows what they wait for, and with_migrations asks it.
    looked = control.operations(running, with_migrations=True, migrations_limit=1) if running else None
    found = looked.blockers if looked is not None else []
    blockers = [blocker_document(one) for one in found]
    rows = []
    for operation in newest.operations:
        own = [one for one in blockers if one["operation_id"] == operation.id]
        rows.append(operation_document(operation_of(operation), newest.now_ms) | {"blockers": own})
    listings = [Listing(OPERATION_COLUMNS, rows, "No operation yet: minkactl reassign --help.")]
    if blockers:
        listings.append(Listing(BLOCKER_COLUMNS, blockers))
    return Page(rows, listings, [str(row["id"]) for row in rows], unconfirmed=remembered, left_out=left_out)


@operations.command()
@IdArgument
@options.common()
@options.pass_session
def show(session: Session, operation_id: int) -> Exit:
    """Show an operation: its migrations, what each waits for, and the command that helps.

    Example:
      minkactl operations show 12
    """
    tracker: Tracker | None = None

    def fetch(control: "Control") -> Page:
        nonlocal tracker
        tracker = tracker or make_tracker(control)
        return operation_page(control, tracker, operation_id)

    return show_page(session, fetch).exit


@operations.command()
@click.argument(
    "operation_id",
    metavar="[ID]",
    required=False,
    type=click.IntRange(1, options.MAX_64),
    shell_complete=complete_operation,
)
@options.common(watch=False)
@options.pass_session
def watch(session: Session, operation_id: int | None) -> Exit:
    """Watch an operation until it ends. Without an ID: the one that runs, else the newest.

    Exit status 0 when it SUCCEEDED, 1 when it FAILED or was CANCELLED. Ctrl-C stops watching; the operation goes on.
    """
    with session.control() as control:
        return watch_one(session, control, operation_id)


@operations.command()
@RunningArgument
@options.common(watch=False)
@options.pass_session
def pause(session: Session, operation_id: int) -> None:
    """Begin no further migration of it; those under way go on.

    Example:
      minkactl operations pause 12
    """
    with session.admin() as admin:
        _changed(session, admin.pause(operation_id))
    note(f"it goes on with: minkactl operations resume {operation_id}")


@operations.command()
@RunningArgument
@options.common(watch=False)
@options.pass_session
def resume(session: Session, operation_id: int) -> None:
    """Go on with an operation that is paused.

    Example:
      minkactl operations resume 12
    """
    with session.admin() as admin:
        _changed(session, admin.resume(operation_id))


@operations.command()
@RunningArgument
@click.option("--reason", default="", metavar="TEXT", help="The reason, which is kept with the operation.")
@options.common(watch=False)
@options.pass_session
def cancel(session: Session, operation_id: int, reason: str) -> None:
    """Let partitions that are still being copied go back to the replicas that they had; the others are completed.

    Refused with CANCEL_REFUSED if too few of those replicas are alive and in sync. The command ends before the
    operation does.

    Examples:
      minkactl operations cancel 12 --reason "too slow"
      minkactl operations watch 12
    """
    with session.admin() as admin:
        operation = admin.cancel(operation_id, reason=reason)
        _changed(session, operation)
    if operation.finished is None:
        note(f"it ends in a moment: minkactl operations watch {operation_id}")


@operations.command()
@RunningArgument
@click.argument("rate_limit", metavar="BYTES_PER_S", type=options.Size())
@options.common(watch=False)
@options.pass_session
def limit(session: Session, operation_id: int, rate_limit: int) -> None:
    """Limit the bytes a second that each node ships for an operation, from now on; 0: no limit.

    Examples:
      minkactl operations limit 12 50MiB
      minkactl operations limit 12 0
    """
    with session.admin() as admin:
        _changed(session, admin.limit(operation_id, rate_limit))


def _changed(session: Session, operation: "Operation") -> None:
    """Show the operation as it is now."""
    from dataclasses import replace

    from minkactl.progress import OPERATION_COLUMNS, operation_document

    document = operation_document(operation)
    shown = ("id", "kind", "state", "paused", "rate_limit", "outcome")
    columns = [replace(column, wide=column.key not in shown) for column in OPERATION_COLUMNS if column.key != "took_ms"]
    emit(Page(document, [Listing(columns, [document])], [str(operation.id)]), session.output)
