"""minkactl migrations."""

from typing import TYPE_CHECKING, Any

import click

from minkactl import options
from minkactl.completion import complete_operation
from minkactl.exits import Exit
from minkactl.output import is_terminal, note
from minkactl.pages import Listing, Page
from minkactl.session import Session
from minkactl.watch import repeated, show, sink

if TYPE_CHECKING:
    from rich.console import RenderableType

    from minka.admin import Operation
    from minka.admin.control import Control
    from minkactl.progress import Tracker

LIMIT = 20
OLDER = f"Only the newest {LIMIT} operations are shown, and there are older ones: minkactl operations show ID"
SHOWN = 200  # migrations of an operation, those under way first; `minkactl migrations` lists all
TERMINAL_INTERVAL_S = 0.25
PIPE_INTERVAL_S = 1.0


@options.group(invoke_without_command=True)
@click.option(
    "--operation",
    "operation_id",
    type=click.IntRange(1, options.MAX_64),
    metavar="ID",
    shell_complete=complete_operation,
    help="Only this operation.",
)
@options.common()
@click.pass_context
def migrations(ctx: click.Context, operation_id: int | None) -> Exit:
    """List the newest operations, and the migrations of the newest one.

    Exit status 5 when the list isn't from an active controller that a quorum has confirmed, but from a node's memory.

    Examples:
      minkactl migrations --operation 12 -o wide
      minkactl migrations watch
    """
    if ctx.invoked_subcommand is not None:
        return Exit.OK
    tracker: Tracker | None = None

    def fetch(control: "Control") -> Page:
        nonlocal tracker
        tracker = tracker or make_tracker(control)
        return _listing(control, tracker, operation_id)

    return show(ctx.ensure_object(Session), fetch).exit


def make_tracker(control: "Control") -> "Tracker":
    """A Tracker that knows the names and sizes of all partitions."""
    from minkactl.progress import Tracker
    from minkactl.views import partition_names, replica_stats

    status = control.status()
    sizes = {partition_id: stats.bytes for partition_id, stats in replica_stats(status).items()}
    return Tracker(partition_names(status), sizes)


def _listing(control: "Control", tracker: "Tracker", operation_id: int | None) -> Page:
    from minka.admin.operation_rows import operation_of
    from minkactl.progress import MIGRATION_COLUMNS, OPERATION_COLUMNS, operation_document
    from minkactl.survey import unconfirmed

    remembered = unconfirmed(control.summary())  # this finds the active controller, too, which is asked next
    left_out = ""
    if operation_id is None:
        newest = control.operations(limit=LIMIT + 1)
        left_out = OLDER if len(newest.operations) > LIMIT else ""
        del newest.operations[LIMIT:]
        operations = [operation_document(operation_of(one), newest.now_ms) for one in newest.operations]
        ids = [operations[0]["id"]] if operations else []
    else:
        operations, ids = [], [operation_id]
    detailed = tracker.documents(control.operations(ids, with_migrations=True)) if ids else []
    operations = operations or [one["operation"] for one in detailed]
    rows = [row for one in detailed for row in one["migrations"]]
    by_id = {one["operation"]["id"]: one["migrations"] for one in detailed}
    document = [operation | {"migrations": by_id.get(operation["id"])} for operation in operations]
    listings = [Listing(OPERATION_COLUMNS, operations, "No operation yet: minkactl reassign --help.")]
    if rows:
        listings.append(Listing(MIGRATION_COLUMNS, rows))
    names = [str(operation["id"]) for operation in operations]
    return Page(document, listings, names, unconfirmed=remembered, left_out=left_out)


@migrations.command()
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
    """Watch an operation until it ends: per migration its state, bytes, rate, time to go, and what blocks it.

    Without an ID: the one that runs, else the newest. Exit status 0 when it SUCCEEDED, 1 when it FAILED.
    Ctrl-C stops watching; the operation goes on.
    """
    with session.control() as control:
        return watch_one(session, control, operation_id)


def watch_one(session: Session, control: "Control", operation_id: int | None) -> Exit:
    """Watch the operation until it ends; None: the one that runs, else the newest. Without an active controller there
    may be a newer one.
    """
    if operation_id is not None:
        return watch_operation(session, control, operation_id)
    from minkactl.survey import unconfirmed

    remembered = unconfirmed(control.summary())
    newest = control.operations(limit=LIMIT).operations
    end = Exit.OK
    if newest:
        end = watch_operation(session, control, next((one.id for one in newest if not one.finished_ms), newest[0].id))
    else:
        note("No operation yet: minkactl reassign --help.")
    note(remembered)
    return Exit.UNHEALTHY if remembered and end is Exit.OK else end


def note_begun(operation: "Operation") -> None:
    """Say on stderr that the operation has begun, or is queued."""
    if operation.state == "queued":
        note(f"operation {operation.id} is queued: it begins once those before it that touch the same have ended")
    else:
        note(f"operation {operation.id} started")


def watch_operation(session: Session, control: "Control", operation_id: int) -> Exit:
    """Show the operation until it has ended; say on stderr how it ended, or how to watch it again."""
    interval_s = TERMINAL_INTERVAL_S if is_terminal() else PIPE_INTERVAL_S
    page: Page | None = None
    try:
        tracker = make_tracker(control)
        with sink(session.output) as out:
            for page in repeated(session, lambda: operation_page(control, tracker, operation_id), interval_s, out.say):
                out.show(page)
                if page.document["operation"]["finished_ms"]:
                    break
    except KeyboardInterrupt:
        note(f"\noperation {operation_id} goes on; watch it again with: minkactl migrations watch {operation_id}")
        return Exit.INTERRUPTED
    assert page is not None
    return say_outcome(page.document)


def operation_page(control: "Control", tracker: "Tracker", operation_id: int) -> Page:
    """The page of an operation: its first migrations, or the operation itself if it has none; then what blocks it.

    An operation that has ended no longer changes, so any node's answer is good enough. Raises UNKNOWN_OPERATION.
    """
    from minka.errors import Code, MinkaError
    from minkactl.progress import BLOCKER_COLUMNS, MIGRATION_COLUMNS, OPERATION_COLUMNS, STATE_COLUMNS, state_rows
    from minkactl.survey import unconfirmed

    looked = control.operations([operation_id], with_migrations=True, migrations_limit=SHOWN)
    documents = tracker.documents(looked)
    if not documents:
        raise MinkaError(Code.UNKNOWN_OPERATION, f"no operation {operation_id}")
    document = documents[0]
    listings = [Listing(MIGRATION_COLUMNS, document["migrations"])]
    if not document["migrations"]:  # without the time, a line on a pipe is new only when something has changed
        columns = [column for column in OPERATION_COLUMNS if column.key != "took_ms"]
        listings = [Listing(columns, [document["operation"]])]
    if len(document["migrations"]) < document["progress"]["migrations"]:
        listings.insert(0, Listing(STATE_COLUMNS, state_rows(document)))
    if document["blockers"]:
        listings.append(Listing(BLOCKER_COLUMNS, document["blockers"]))

    def draw(_: bool) -> "RenderableType":
        from minkactl.render import migrations

        return migrations.migrations(document)

    remembered = "" if document["operation"]["finished_ms"] else unconfirmed(control.summary())
    return Page(document, listings, [str(operation_id)], draw, remembered)


def say_outcome(document: dict[str, Any]) -> Exit:
    """Say on stderr how the operation ended, and return the exit status that goes with that."""
    from minkactl.units import duration

    operation = document["operation"]
    took = duration(operation["took_ms"] / 1000)
    succeeded = operation["state"] == "succeeded"
    outcome = f": {operation['outcome']}" if operation["outcome"] else ""
    note(f"operation {operation['id']} {operation['state']} in {took}{outcome}")
    return Exit.OK if succeeded else Exit.FAILED
