"""minkactl drain, minkactl undrain."""

import time
from typing import TYPE_CHECKING, Any, Final

import click

from minkactl import options
from minkactl.commands.migrations import PIPE_INTERVAL_S, TERMINAL_INTERVAL_S, make_tracker, note_begun, operation_page
from minkactl.commands.raft import confirm, controller_status
from minkactl.commands.reassign import RateLimit
from minkactl.completion import complete_node
from minkactl.exits import Exit
from minkactl.output import emit, is_terminal, note
from minkactl.pages import Column, Kind, Listing, Page
from minkactl.session import Session
from minkactl.watch import repeated, sink

if TYPE_CHECKING:
    from rich.console import RenderableType

    from minka.admin import Admin, DrainStatus
    from minka.v1.admin_pb2 import GetStatusResponse
    from minkactl.progress import Tracker

STUCK_S: Final = 30.0  # a drain that has not changed for this long counts as held up
MAX_NAMED: Final = 8

DRAIN_COLUMNS = (
    Column("NODE", "node"),
    Column("STATE", "state", Kind.STATE),
    Column("LEADS", "leaders", Kind.NUMBER),
    Column("REPLICAS", "replicas", Kind.NUMBER),
    Column("SAFE TO STOP", "safe_to_stop"),
    Column("BLOCKERS", "blocker_count", Kind.NUMBER),
)
SHARD_COLUMNS = (Column("SHARD ON IT", "shard"), Column("DUTIES", "duties", Kind.NUMBER))


@options.command()
@click.argument("node", shell_complete=complete_node)
@click.option("--decommission", is_flag=True, help="Move all its replicas to other nodes as well.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask. Only --decommission asks.")
@options.queue
@click.option("--reason", default="", metavar="TEXT", help="The reason, which is kept with the operation.")
@RateLimit
@options.common(watch=False)
@options.pass_session
def drain(
    session: Session, node: str, decommission: bool, yes: bool, queue: bool, reason: str, rate_limit: int | None
) -> Exit:
    """Make NODE safe to stop: others lead its partitions, and no write is refused because its replicas are missing.

    Waits, and ends with "safe to stop: yes" and exit status 0. If nothing changes for 30 seconds it ends with "safe to
    stop: no", what holds it up and what helps, and exit status 1; after --timeout likewise, with 124. The drain goes on
    in any case, and the same command watches it again. NODE leads nothing until undrain, or until it is started again.

    Examples:
      minkactl drain cyrene && ssh cyrene systemctl stop minkad
      minkactl drain cyrene --decommission --limit 50MiB
    """
    with session.admin() as admin:
        operation_id = _running(controller_status(session, admin.control), node, decommission)
        if operation_id:
            note(f"operation {operation_id} drains {node} already")
        else:
            if decommission:
                _ask(admin, node, yes, queue)
            started = admin.drain(
                node, decommission=decommission, reason=reason, rate_limit=rate_limit or 0, queue=queue
            )
            operation_id = started.id
            note_begun(started)
        return _wait(session, admin, node, operation_id)


def _running(status: "GetStatusResponse", node: str, decommission: bool) -> int:
    """The id of the operation that does this already, or 0."""
    found = (o for o in status.running if o.HasField("drain") and o.drain.node == node)
    return next((o.id for o in found if o.drain.decommission or not decommission), 0)


def _ask(admin: "Admin", node: str, yes: bool, queue: bool) -> None:
    """Say how much is to be moved, and go on only if the answer is yes."""
    from minkactl.units import counted, size

    plan = admin.plan_reassign(drain=[node], queue=queue)
    note("\n".join(plan.notes))
    amount = f"{counted(len(plan.moves), 'replica')}, {size(sum(move.bytes for move in plan.moves))},"
    confirm(f"Move {amount} away from {node}, so that nothing is left there?", yes)


def _wait(session: Session, admin: "Admin", node: str, operation_id: int) -> Exit:
    """Watch until the drain has ended, or is stuck, or the time is over."""
    from minka.errors import Code, MinkaError

    tracker = make_tracker(admin.control)
    interval_s = TERMINAL_INTERVAL_S if is_terminal() else PIPE_INTERVAL_S
    page: Page | None = None
    before: Any = None
    changed = time.monotonic()
    try:
        with sink(session.output) as out:
            for page in repeated(session, lambda: _page(admin, tracker, node, operation_id), interval_s, out.say):
                out.show(page)
                operation = page.document["operation"]
                if operation["finished_ms"]:
                    break
                if (now := _signature(page.document)) != before:
                    before, changed = now, time.monotonic()
                elif operation["state"] != "queued" and time.monotonic() - changed > STUCK_S:
                    break
    except KeyboardInterrupt:
        note(f"\noperation {operation_id} goes on; watch it again with: minkactl drain {node}")
        return Exit.INTERRUPTED
    except MinkaError as error:
        if error.code is Code.DEADLINE_EXCEEDED and page is not None:
            _say(page.document)
        raise
    assert page is not None
    return _say(page.document)


def _signature(document: dict[str, Any]) -> Any:
    """A value that changes as long as the drain makes progress."""
    states = [migration["state"] for migration in document["migrations"]]
    return document["drain"], document["progress"]["bytes_done"], states


def _page(admin: "Admin", tracker: "Tracker", node: str, operation_id: int) -> Page:
    """The page: the node, its shards, the migrations of its replicas, then the drain's blockers."""
    from minkactl.progress import BLOCKER_COLUMNS, MIGRATION_COLUMNS

    looked = operation_page(admin.control, tracker, operation_id).document
    drain = _by_verdict(drain_document(node, admin.drain_status(node)), looked["operation"])
    document = looked | {"drain": drain}
    listings = [Listing(DRAIN_COLUMNS, [drain])]
    shards = [Listing(SHARD_COLUMNS, drain["shards"])] if drain["shards"] else []
    listings += shards
    if looked["migrations"]:
        listings.append(Listing(MIGRATION_COLUMNS, looked["migrations"]))
    if blockers := blockers_of(document):
        listings.append(Listing(BLOCKER_COLUMNS[1:], blockers))

    def draw(wide: bool) -> "RenderableType":
        from minkactl.render import migrations, tables

        shown = looked | {"blockers": blockers}
        own = [tables.table(one, wide) for one in (listings[0], *shards)]
        above = 3 + sum(2 + len(one.rows) for one in shards)
        return tables.stacked([*own, migrations.migrations(shown, above=above)])

    return Page(document, listings, [node], draw)


def drain_document(node: str, status: "DrainStatus") -> dict[str, Any]:
    """The active controller's answer about the node, as a document."""
    from minkactl.documents import record_document

    return {"node": node, **record_document(status)}


def _by_verdict(drain: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    """After a drain that did not succeed, the node isn't safe to stop: each replica that a decommission left there is
    in the way.
    """
    if not operation["finished_ms"] or operation["state"] == "succeeded":
        return drain
    left = drain["replicas"] if operation["decommission"] else 0
    return drain | {"safe_to_stop": False, "blocker_count": max(drain["blocker_count"], left)}


def blockers_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The blockers of the operation and of the drain, each once, without the remedy that the user has just typed."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    operation = document["operation"]
    typed = f"minkactl drain {operation['node']} --decommission" if operation["decommission"] else None
    for blocker in (*document["blockers"], *document["drain"]["blockers"]):
        if blocker["remedy"] == typed:
            blocker = blocker | {"remedy": ""}
        found.setdefault((blocker["partition"], blocker["reason"]), blocker)
    return list(found.values())


def _say(document: dict[str, Any]) -> Exit:
    """Say how the drain ended, and return the exit status that goes with that."""
    from minkactl.units import counted

    operation, drain = document["operation"], document["drain"]
    ended = bool(operation["finished_ms"])
    note(
        f"operation {operation['id']} {operation['state']}{': ' if operation['outcome'] else ''}{operation['outcome']}"
    )
    if ended and operation["state"] == "succeeded" and drain["safe_to_stop"]:
        note("safe to stop: yes")
        return Exit.OK
    for one in drain["shards"][:MAX_NAMED]:
        note(f"  shard {one['shard']} on this machine still has {counted(one['duties'], 'duty', 'duties')}")
    blockers = blockers_of(document)
    for blocker in blockers[:MAX_NAMED]:
        where = f"{blocker['partition']}: " if blocker["partition"] else ""
        helps = f"; helps: {blocker['remedy']}" if blocker["remedy"] else ""
        note(f"  {where}{blocker['reason']}{helps}")
    if len(blockers) > MAX_NAMED:
        note(f"  … and {len(blockers) - MAX_NAMED} more: minkactl operations show {operation['id']}")
    note("safe to stop: " + ("yes, and the operation goes on" if drain["safe_to_stop"] and not ended else "no"))
    return Exit.FAILED


@options.command()
@click.argument("node", shell_complete=complete_node)
@options.common(watch=False)
@options.pass_session
def undrain(session: Session, node: str) -> None:
    """Let NODE stay after all: it may lead again, and a drain that runs is cancelled.

    elect-leaders gives its former leaderships back, and reassign the replicas that --decommission has moved away.

    Examples:
      minkactl undrain cyrene
      minkactl elect-leaders --preferred
    """
    with session.admin() as admin:
        is_running = _running(controller_status(session, admin.control), node, False)
        drained = is_running or admin.drain_status(node).state == "draining"
        admin.undrain(node)
        document = drain_document(node, admin.drain_status(node))
    emit(Page(document, [Listing(DRAIN_COLUMNS[:-1], [document])], [node]), session.output)
    if not drained:
        note(f"{node} was not drained: nothing was changed.")
        return
    back = "minkactl elect-leaders --preferred" if document["replicas"] else "minkactl reassign"
    note(f"what it had comes back with: {back}")
