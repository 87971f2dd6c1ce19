"""minkactl elect-leaders."""

import click

from minkactl import options
from minkactl.commands.migrations import note_begun, watch_operation
from minkactl.commands.raft import confirm, controller_status
from minkactl.completion import complete_keyspace, complete_node
from minkactl.exits import Exit
from minkactl.output import note
from minkactl.session import Session


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
@click.option("--unclean", is_flag=True, help="Elect a replica that may lack acknowledged writes: they are lost then.")
@click.option("--partition", metavar="NAME", help="With --unclean: the partition, such as flights/7.")
@click.option(
    "--node", metavar="NODE", shell_complete=complete_node, help="With --unclean: the leader. Default: the newest copy."
)
@click.option("--yes", "-y", is_flag=True, help="With --unclean: don't ask.")
@options.queue
@click.option("--reason", default="", metavar="TEXT", help="The reason, which is kept with the operation.")
@options.common(watch=False)
@options.pass_session
def elect_leaders(
    session: Session,
    preferred: bool,
    keyspaces: tuple[str, ...],
    unclean: bool,
    partition: str | None,
    node: str | None,
    yes: bool,
    queue: bool,
    reason: str,
) -> Exit:
    """Let preferred leaders lead again, as after a drain or a failure, and watch it.

    Exit status 0 when they all lead, 1 when one of them can't: then the reason is shown, and the remedy.

    --unclean is the last resort for one partition: it is OFFLINE because the disks of all replicas that had everything
    are lost, or it serves nothing because its leader's copy is damaged and nobody else is in sync. The command shows
    where each copy ends and what is lost, asks, and lets the newest copy lead, or that of --node. It does so even if
    the keyspace forbids unclean elections, and the partition's unclean_elections counts it.

    Examples:
      minkactl elect-leaders --preferred
      minkactl elect-leaders --preferred --keyspace flights
      minkactl elect-leaders --unclean --partition flights/7
    """
    context = click.get_current_context()
    if preferred == unclean:
        raise click.UsageError("say which leaders: --preferred, or --unclean with --partition", context)
    if unclean:
        if partition is None or keyspaces or queue:
            raise click.UsageError(
                "--unclean is for one partition: --partition NAME, without --keyspace or --queue", context
            )
        return _accept_loss(session, partition, node, yes, reason)
    if partition is not None or node is not None or yes:
        raise click.UsageError("--partition, --node and --yes belong to --unclean", context)
    with session.admin() as admin:
        answer = admin.elect_leaders(keyspaces=keyspaces, reason=reason, queue=queue)
        if answer.operation is not None:
            note_begun(answer.operation)
            end = watch_operation(session, admin.control, answer.operation.id)
        else:
            note("Nothing to elect.")
            end = Exit.OK
    for blocker in answer.skipped:
        note(f"{blocker.partition}: {blocker.reason}{'; helps: ' if blocker.remedy else ''}{blocker.remedy}")
    return Exit.FAILED if answer.skipped and end is Exit.OK else end


def _accept_loss(session: Session, partition: str, node: str | None, yes: bool, reason: str) -> Exit:
    """Show what is left, ask, and elect. Raises NO_CONTROLLER, UNKNOWN_PARTITION, LEADER_EXISTS, INELIGIBLE_REPLICA,
    STALE_EPOCH.
    """
    from minka.errors import Code, MinkaError
    from minkactl.output import emit
    from minkactl.pages import Listing, Page
    from minkactl.partition_names import find_partition, selections
    from minkactl.unclean import COLUMNS, chosen, copies_of, leader_serves_nothing, losses

    with session.admin() as admin:
        control = admin.control
        status = controller_status(session, control)
        listed = [control.partitions(wanted).whole() for wanted in selections(partition)]
        if not all(part.from_controller for part in listed):
            raise MinkaError(Code.NO_CONTROLLER, f"who leads {partition} is not known")
        found = {row.id: row for part in listed for row in part.table.partitions}
        status.table.partitions.extend(found.values())
        row = find_partition(status.table, partition)
        name = f"{next(one.name for one in status.table.keyspaces if one.id == row.keyspace_id)}/{row.slot}"
        if row.leader and not leader_serves_nothing((one for part in listed for one in part.damaged), row):
            raise MinkaError(Code.LEADER_EXISTS, f"{name} needs no unclean election: {row.leader} leads it")
        copies = copies_of(control, status.table, row)
        rows = [copy.document() for copy in copies]
        emit(Page(rows, [Listing(COLUMNS, rows)], [copy.node for copy in copies]), session.output)
        leads = chosen(copies, name, node)
        note("\n".join(losses(copies, leads)))
        confirm(f"Let {leads.node} lead {name}, and accept what is lost?", yes)
        admin.elect_unclean(row.id, leads.node, partition_epoch=row.partition_epoch, reason=reason)
    note(f"{leads.node} leads {name}. minkactl partitions explain {name}")
    return Exit.OK
