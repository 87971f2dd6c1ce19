"""minkactl reassign, minkactl apply."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minkactl import options
from minkactl.commands.migrations import note_begun, watch_operation
from minkactl.completion import complete_keyspace, complete_node
from minkactl.exits import Exit
from minkactl.output import TABLES, emit, is_terminal, note, tsv
from minkactl.pages import Column, Kind, Listing, Page
from minkactl.session import Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from minka.admin import Admin, Plan

MAX_PLAN_BYTES = 64 * 1024 * 1024

MOVE_COLUMNS = (
    Column("PARTITION", "partition"),
    Column("SOURCE", "source"),
    Column("TARGET", "target"),
    Column("DATA", "bytes", Kind.BYTES),
    Column("REASON", "reason"),
    Column("REPLICAS BEFORE", "replicas", wide=True),
    Column("REPLICAS AFTER", "target_replicas", wide=True),
)
BALANCE_COLUMNS = (
    Column("NODE", "node"),
    Column("PARTITIONS BEFORE", "partitions_before", Kind.NUMBER),
    Column("PARTITIONS AFTER", "partitions_after", Kind.NUMBER),
    Column("DATA BEFORE", "bytes_before", Kind.BYTES),
    Column("DATA AFTER", "bytes_after", Kind.BYTES),
    Column("PREFERRED LEADERS BEFORE", "leaders_before", Kind.NUMBER, wide=True),
    Column("PREFERRED LEADERS AFTER", "leaders_after", Kind.NUMBER, wide=True),
)
SPLIT_COLUMNS = (
    Column("SPLIT", "partition"),
    Column("DATA", "bytes", Kind.BYTES),
    Column("AT", "keys"),
    Column("REASON", "reason"),
)
DUTY_MOVE_COLUMNS = (
    Column("DUTY", "partition"),
    Column("SOURCE", "source"),
    Column("TARGET", "target"),
    Column("WEIGHT", "weight", Kind.NUMBER),
    Column("REASON", "reason"),
    Column("EPOCH", "duty_epoch", Kind.NUMBER, wide=True),
)
SHARD_COLUMNS = (
    Column("SHARD", "shard"),
    Column("DUTIES BEFORE", "duties_before", Kind.NUMBER),
    Column("DUTIES AFTER", "duties_after", Kind.NUMBER),
    Column("WEIGHT BEFORE", "weight_before", Kind.NUMBER),
    Column("WEIGHT AFTER", "weight_after", Kind.NUMBER),
    Column("CAPACITY", "capacity", Kind.NUMBER),
)
RateLimit = click.option(
    "--limit",
    "rate_limit",
    type=options.Size(),
    metavar="BYTES_PER_S",
    help="The most bytes a second that each node ships. Default: no limit. Changed by minkactl operations limit.",
)


def _names(values: tuple[tuple[str, ...], ...]) -> list[str]:
    """The names in an option that may be given more than once."""
    return [name for value in values for name in value]


@options.command()
@click.option(
    "--to",
    type=options.Names(),
    multiple=True,
    metavar="NODES",
    shell_complete=complete_node,
    help="Spread over these nodes, separated by commas. Default: all LIVE ones.",
)
@click.option(
    "--keyspace",
    "keyspaces",
    type=options.Names(),
    multiple=True,
    metavar="NAMES",
    shell_complete=complete_keyspace,
    help="Only these keyspaces, separated by commas. Default: all.",
)
@click.option(
    "--drain",
    type=options.Names(),
    multiple=True,
    metavar="NODES",
    shell_complete=complete_node,
    help="Take everything from these nodes, separated by commas; the others give up nothing.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan and stop.")
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the plan to FILE, for minkactl apply, and stop.",
)
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@options.queue
@click.option("--reason", default="", metavar="TEXT", help="The reason, which is kept with the operation.")
@RateLimit
@options.common(watch=False)
@options.pass_session
def reassign(
    session: Session,
    to: tuple[tuple[str, ...], ...],
    keyspaces: tuple[tuple[str, ...], ...],
    drain: tuple[tuple[str, ...], ...],
    dry_run: bool,
    out: Path | None,
    yes: bool,
    queue: bool,
    reason: str,
    rate_limit: int | None,
) -> Exit:
    """Even out the replicas: plan the fewest moves, show them, ask, apply exactly that plan, watch it.

    Exit status 0 when the operation SUCCEEDED or there was nothing to move, 1 when it FAILED or the answer was no, 6
    when anything that the plan moves has changed since it was made. Ctrl-C while watching leaves the operation running.

    Examples:
      minkactl reassign --dry-run
      minkactl reassign --to athens,byzantium --keyspace flights
      minkactl reassign --drain cyrene --limit 50MiB
      minkactl reassign --limit 50MiB --reason "ephesus is new" --out plan.json && minkactl apply plan.json
    """
    with session.admin() as admin:
        plan = admin.plan_reassign(
            to=_names(to),
            keyspaces=_names(keyspaces),
            drain=_names(drain),
            reason=reason,
            rate_limit=rate_limit or 0,
            queue=queue,
        )
        if out is not None:
            write_plan(plan, out)
        if dry_run or out is not None or not plan.moves:
            emit_plan(session, plan, pager=not yes)
            note(_what_next(plan, out))
            return Exit.OK
        return confirm_and_apply(session, admin, plan, yes)


def write_plan(plan: "Plan", out: Path) -> None:
    """Write the plan to a file, for minkactl apply."""
    out.write_text(plan.to_json() + "\n", "utf-8")


def emit_plan(session: Session, plan: "Plan", pager: bool) -> None:
    """Print the plan to stdout, in the format asked for."""
    page = plan_page(plan)
    if session.output in TABLES and plan.moves:
        show_plan(page, session.output, pager=pager)
    else:
        emit(page, session.output)
        if session.output in TABLES and not is_terminal():  # on a terminal they are part of the page
            note("\n".join(plan.notes))


def nothing_to_move(plan: "Plan", otherwise: str) -> str:
    """The sentence about a plan without moves; `otherwise` says why if no note does."""
    return f"Nothing to move: {'the notes say why' if plan.notes else otherwise}."


def _what_next(plan: "Plan", out: Path | None) -> str:
    if not plan.moves:
        return nothing_to_move(plan, "the replicas are where they should be, as even as they can be")
    if out is not None:
        return f"The plan is in {out}. Apply it with: minkactl apply {out}"
    return "Nothing was changed (--dry-run)."


def read_plan(content: bytes, name: str) -> "Plan":
    """The plan that `reassign --out` or `-o json` wrote. Raises as `Plan.from_json` does."""
    from minka.admin import Plan
    from minka.errors import Code, MinkaError

    if len(content) > MAX_PLAN_BYTES:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{name}: not a plan: it has more than {MAX_PLAN_BYTES} bytes")
    try:
        return Plan.from_json(content)
    except MinkaError as error:
        raise MinkaError(error.code, f"{name}: {error.message}") from error


def plan_page(plan: "Plan") -> Page:
    """The page of a plan, for every format."""
    from minka.engine.documents import to_document

    document = to_document(plan.message)
    moves = Listing(DUTY_MOVE_COLUMNS if plan.pallet else MOVE_COLUMNS, document["moves"], "No moves.")

    def draw(wide: bool) -> "RenderableType":
        from minkactl.render import plans, tables

        shown = [plans.moves_by_reason(document, moves, wide), plans.result(document, summary(document))]
        return tables.stacked(shown)

    nodes, shards = Listing(BALANCE_COLUMNS, document["nodes"]), Listing(SHARD_COLUMNS, document["shards"])
    splits = [Listing(SPLIT_COLUMNS, document["splits"])] if plan.splits else []
    listings = [moves, shards if plan.pallet else nodes, *splits]
    return Page(document, listings, [move["partition"] for move in document["moves"]], draw)


def confirm_and_apply(
    session: Session, admin: "Admin", plan: "Plan", yes: bool, reason: str = "", rate_limit: int | None = None
) -> Exit:
    """Show the plan, ask, start it, watch it to its end. `reason` and `rate_limit` replace the plan's."""
    page = plan_page(plan)
    show_plan(page, session.output, pager=not yes)
    if not yes:
        ask(page.document)
    if plan.splits:
        from minkactl.planned_splits import split_first

        exit_code = split_first(session, admin, plan, reason)
        if exit_code is not Exit.OK or not plan.moves:
            return exit_code
        plan = plan.without_splits()
    operation = admin.apply(plan, reason=reason, rate_limit=rate_limit)
    note_begun(operation)
    return watch_operation(session, admin.control, operation.id)


def summary(document: dict[str, Any]) -> str:
    """A text such as: Plan: 7 moves, 31.2 MiB. The fewest moves that could do it: 7. The rest of the plan follows."""
    from minkactl.units import number, rate, size

    amount = size(sum(move["bytes"] for move in document["moves"]))
    fewest = number(document["minimum_moves"])
    said = [f"Plan: {_counted(document)}, {amount}. The fewest moves that could do it: {fewest}."]
    if document["pallet"]:
        weight = number(sum(move["weight"] for move in document["moves"]))
        said = [f"Plan: {_counted(document)} of {document['pallet']}, weight {weight}. The fewest: {fewest}."]
    elif all(set(move["replicas"]) == set(move["target_replicas"]) for move in document["moves"]):
        said = [f"Plan: {_counted(document)}; no data moves."]
    if document["rate_limit"]:
        said.append(f"At most {rate(document['rate_limit'])} a node.")
    if document["reason"]:
        said.append(f"Reason: {document['reason']}")
    return " ".join(said)


def _counted(document: dict[str, Any]) -> str:
    """A text such as "48 moves"; changes of order alone, which move no data, are counted apart."""
    from minkactl.units import counted

    if document["pallet"]:
        return counted(len(document["moves"]), "move")
    if document["splits"]:
        splits = counted(len(document["splits"]), "split")
        return f"{splits}, then {_counted(document | {'splits': []})}" if document["moves"] else splits
    copies = sum(set(move["replicas"]) != set(move["target_replicas"]) for move in document["moves"])
    orders = len(document["moves"]) - copies
    if not orders:
        return counted(copies, "move")
    changes = counted(orders, "change") + " of preferred leader"
    return f"{counted(copies, 'move')} and {changes}" if copies else changes


def show_plan(page: Page, form: str, pager: bool) -> None:
    """Show the plan to the person who is asked; on stderr if the format is one that a program reads from stdout."""
    if form in TABLES and is_terminal():
        from minkactl.render import plans

        text = summary(page.document)
        plans.show(page.document, page.listings[0], text, wide=form == "wide", pager=pager)
        return
    if form in TABLES:
        emit(page, form)
    else:
        for listing in page.listings:
            note("\n".join(tsv(listing, wide=False)))
    note("\n".join([*page.document["notes"], summary(page.document)]))


def ask(document: dict[str, Any]) -> None:
    """Go on only if the answer is yes. Raises UsageError if nobody can answer, Exit(1) for a no."""
    if not sys.stdin.isatty():
        raise click.UsageError(
            "this asks before it acts, and stdin is not a terminal: --yes goes ahead, --dry-run only looks",
            click.get_current_context(),
        )
    if not click.confirm(f"Apply this plan of {_counted(document)}?", err=True):
        note("Nothing was changed.")
        raise click.exceptions.Exit(Exit.FAILED)
