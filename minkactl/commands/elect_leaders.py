"""minkactl elect-leaders."""

import click

from minkactl import options
from minkactl.commands.migrations import note_begun, watch_operation
from minkactl.completion import complete_keyspace
from minkactl.exits import Exit
from minkactl.output import note
from minkactl.session import Session, requester


@options.command(name="elect-leaders")
@click.option("--preferred", is_flag=True, help="Elect the first of each partition's replicas.")
@click.option(
    "--keyspace",
    "keyspaces",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_keyspace,
    help="Only in this keyspace; may be repeated. Default: all.",
)
@options.queue
@click.option("--reason", default="", metavar="TEXT", help="The reason, which is kept with the operation.")
@options.common(watch=False)
@options.pass_session
def elect_leaders(session: Session, preferred: bool, keyspaces: tuple[str, ...], queue: bool, reason: str) -> Exit:
    """Let preferred leaders lead again, as after a drain or a failure, and watch it.

    Exit status 0 when they all lead, 1 when one of them can't: then the reason is shown, and what helps.

    Examples:
      minkactl elect-leaders --preferred
      minkactl elect-leaders --preferred --keyspace flights
    """
    if not preferred:
        raise click.UsageError("say which leaders: --preferred", click.get_current_context())
    with session.control() as control:
        answer = control.elect_leaders(keyspaces, requested_by=requester(), reason=reason, queue=queue)
        if answer.HasField("operation"):
            note_begun(answer.operation)
            end = watch_operation(session, control, answer.operation.id)
        else:
            note("Nothing to elect.")
            end = Exit.OK
    for blocker in answer.skipped:
        note(f"{blocker.partition}: {blocker.reason}{'; helps: ' if blocker.remedy else ''}{blocker.remedy}")
    return Exit.FAILED if answer.skipped and end is Exit.OK else end
