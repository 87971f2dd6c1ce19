"""minkactl apply."""

import sys
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from minkactl import options
from minkactl.commands.reassign import MAX_PLAN_BYTES, confirm_and_apply, emit_plan, read_plan
from minkactl.exits import Exit
from minkactl.output import TABLES, emit, note
from minkactl.pages import Column, Listing, Page
from minkactl.session import Session

if TYPE_CHECKING:
    from minka.admin import Admin, Plan
    from minka.duties import Client
    from minkactl.manifest import Difference

DIFFERENCE_COLUMNS = (Column("CHANGE", "change"), Column("WHAT", "name"), Column("HOW", "reason"))
MAX_SHOWN = 40  # rows of a table; -o wide and the other formats have all


@options.command()
@click.argument("plan_file", metavar="[PLAN.json]", type=click.File("rb"), required=False)
@click.option(
    "--file",
    "-f",
    "manifest_file",
    type=click.File("rb"),
    metavar="FILE",
    help='A file of pallets and duties instead ("-": stdin): YAML, or JSON Lines.',
)
@click.option("--format", "form", type=click.Choice(["yaml", "jsonl"]), help="With --file. Default: by its name.")
@click.option("--dry-run", is_flag=True, help="Show the plan, or the difference, and stop.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@click.option("--reason", default="", metavar="TEXT", help="The reason. Default: the plan's.")
@click.option(
    "--limit",
    "rate_limit",
    type=options.Size(),
    metavar="BYTES_PER_S",
    help="The most bytes a second that each node ships; 0: no limit. Default: the plan's.",
)
@options.common(watch=False)
@options.pass_session
def apply(
    session: Session,
    plan_file: Any,
    manifest_file: BinaryIO | None,
    form: str | None,
    dry_run: bool,
    yes: bool,
    reason: str,
    rate_limit: int | None,
) -> Exit:
    """Apply exactly the plan in the file ("-": stdin), or refuse it if anything that it moves has changed since (status
    6).

    A plan of `minkactl data load-report` may split partitions, too: each keyspace's splits are an operation, and the
    moves another one after them.

    The plan's own limit and reason hold, unless others are given. With --dry-run it is shown and compared with the
    cluster, and nothing is applied. A file that isn't a plan, and a plan that was changed, are refused before anything
    is shown or asked.

    With -f: make the pallets and duties in FILE as it says; others are left alone. The difference is shown first. It is
    sent in batches of 1,000, each done as a whole; after a failure the same command does the rest.

    Examples:
      minkactl reassign --limit 50MiB --reason "ephesus is new" --out plan.json
      minkactl apply plan.json
      minkactl apply -f feeds.yaml
      generate-feeds | minkactl apply -f - --format jsonl --yes
    """
    if (plan_file is None) == (manifest_file is None):
        raise click.UsageError("give a plan or --file, one of them", click.get_current_context())
    if form and manifest_file is None:
        raise click.UsageError("--format goes with --file", click.get_current_context())
    if manifest_file is not None and (reason or rate_limit is not None):
        raise click.UsageError("--reason and --limit go with a plan", click.get_current_context())
    if manifest_file is not None:
        return _apply_manifest(session, manifest_file, form, dry_run, yes)
    plan = read_plan(plan_file.read(MAX_PLAN_BYTES + 1), getattr(plan_file, "name", "stdin"))
    if not plan.moves and not plan.splits:
        note("The plan has no moves: there is nothing to apply.")
        return Exit.OK
    with session.admin() as admin:
        if dry_run:
            return _dry_run(session, admin, plan, yes)
        return confirm_and_apply(session, admin, plan, yes, reason, rate_limit)


def _dry_run(session: Session, admin: "Admin", plan: "Plan", yes: bool) -> Exit:
    """Show the plan, and whether it still holds. Raises STALE_PLAN if it doesn't."""
    from minkactl.plan_checks import check_current

    check_current(session, admin.control, plan.message)
    emit_plan(session, plan, pager=not yes)
    note("The plan still holds. Nothing was changed (--dry-run).")
    return Exit.OK


def _apply_manifest(session: Session, file: BinaryIO, form: str | None, dry_run: bool, yes: bool) -> Exit:
    """Apply a file of pallets and duties. It is read as a whole first, so that a mistake in its last line changes
    nothing.
    """
    from minka.errors import Code, MinkaError
    from minkactl import manifest

    name = "stdin" if file is sys.stdin.buffer else getattr(file, "name", "stdin")
    if form is None and name in ("stdin", "-", "<stdin>"):
        raise click.UsageError("stdin has no name that says its format: use --format", click.get_current_context())
    wanted = manifest.read(file, form or manifest.format_of(name), name)
    if not wanted.pallets and not wanted.duties:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{name} has no pallets and no duties")
    with session.duties() as client:
        difference = manifest.compare(client, wanted)
        _show(session, difference)
        if not difference.rows:
            note(f"Nothing to change: all {difference.unchanged:,} are as the file says.")
            return Exit.OK
        if dry_run:
            note("Nothing was changed (--dry-run).")
            return Exit.OK
        if not yes:
            _ask(difference)
        _carry_out(client, difference)
    return Exit.OK


def _show(session: Session, difference: "Difference") -> None:
    """Show the changes; a table has only the first of many."""
    rows = difference.rows
    shown = rows if session.output not in ("table",) else rows[:MAX_SHOWN]
    document = {"changes": rows, "unchanged": difference.unchanged}
    if rows or session.output not in TABLES:
        emit(Page(document, [Listing(DIFFERENCE_COLUMNS, shown)], [row["name"] for row in rows]), session.output)
    if len(shown) < len(rows):
        note(f"… and {len(rows) - len(shown):,} more: -o wide shows all")
    if rows:
        note(_summary(difference))


def _summary(difference: "Difference") -> str:
    """A text such as: 12 to create, 3 to update, 40 unchanged."""
    counts = {change: sum(row["change"] == change for row in difference.rows) for change in ("create", "update")}
    return f"{counts['create']:,} to create, {counts['update']:,} to update, {difference.unchanged:,} unchanged"


def _ask(difference: "Difference") -> None:
    """Go on only if the answer is yes. Raises UsageError if nobody can answer, Exit(1) for a no."""
    if not sys.stdin.isatty():
        raise click.UsageError(
            "this asks before it acts, and stdin is not a terminal: --yes goes ahead, --dry-run only looks",
            click.get_current_context(),
        )
    if not click.confirm(f"Make {'this change' if len(difference.rows) == 1 else 'these changes'}?", err=True):
        note("Nothing was changed.")
        raise click.exceptions.Exit(Exit.FAILED)


def _carry_out(client: "Client", difference: "Difference") -> None:
    """Make the changes and show the progress; if it ends early, say what was done."""
    from minka.errors import MinkaError
    from minkactl.manifest import carry_out

    total, made = len(difference.rows), 0

    def done(number: int) -> None:
        nonlocal made
        made = number
        if sys.stderr.isatty():
            print(f"\r{made:,} of {total:,}", end="" if made < total else "\n", file=sys.stderr, flush=True)

    try:
        carry_out(client, difference, done)
    except MinkaError:
        note(f"{made:,} of {total:,} changes are made; the same command makes the others.")
        raise
    note(f"{total:,} {'change is' if total == 1 else 'changes are'} made.")
