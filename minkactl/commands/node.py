"""minkactl node."""

from typing import TYPE_CHECKING

import click

from minkactl import options
from minkactl.commands.raft import controller_status, remove_node
from minkactl.completion import complete_node
from minkactl.output import note
from minkactl.session import Session

if TYPE_CHECKING:
    from minka.v1.admin_pb2 import GetStatusResponse


@options.group()
def node() -> None:
    """Change one node."""


@node.command()
@click.argument("node", shell_complete=complete_node)
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@options.common(output=False)
@options.pass_session
def rebuild(session: Session, node: str, yes: bool) -> None:
    """Let NODE, whose data directory is damaged, begin again with what its peers have.

    What the peers have is the partition table and a seat in the coordinator. It is refused with NODE_IN_USE while the
    table says that NODE holds partitions, and while it is LIVE. Replicated ones can be moved away although NODE is
    gone: minkactl drain NODE --decommission. Otherwise NODE is removed from the cluster; started with an empty data
    directory, it joins under its old id as a learner.

    Example:
      minkactl node rebuild cyrene
    """
    with session.admin() as admin:
        _check_nothing_is_lost(controller_status(session, admin.control), node)
        remove_node(session, admin, node, yes, f"Remove {node}, to begin again with an empty data directory?")
    note(
        f"Now, on {node}: move its data_dir away, and start minkad. It joins as a learner and takes the table from its "
        f"peers.\nIf it was a voter: minkactl raft promote {node} --instead-of VOTER gives it a seat again."
    )


def _check_nothing_is_lost(status: "GetStatusResponse", node: str) -> None:
    """Raises NODE_IN_USE, in the words of this command, while the node holds partitions. The active controller would
    refuse it, too.
    """
    from minka.errors import Code, MinkaError

    counts = next((one for one in status.summary.nodes if one.node_id == node), None)
    if counts is None:
        return
    if counts.sole:
        raise MinkaError(
            Code.NODE_IN_USE,
            f"{node} holds {counts.replicas} partitions, and no other node has all of {counts.sole} of them: they "
            f"can't be rebuilt from peers. If {node} still starts, move them away; if not, restore its data_dir from a "
            f"backup; if there is none, their data is lost: {_what_is_left(status, node, counts.sole)}",
            node=node,
            remedy=f"minkactl partitions --node {node} --state offline",
        )
    if counts.replicas:
        raise MinkaError(
            Code.NODE_IN_USE,
            f"{node} holds {counts.replicas} partitions, which others have, too: let them be replicated elsewhere "
            f"first, with minkactl drain {node} --decommission",
            node=node,
        )


def _what_is_left(status: "GetStatusResponse", node: str, sole: int) -> str:
    from minkactl.unclean import LOST, accept_loss

    without = next((one.without_copy for one in status.summary.unserved.nodes if one.node_id == node), 0)
    if without >= sole:
        return f"no node that is up has another whole copy; {LOST}"
    more = f"; of {without} no node that is up has another whole copy" if without else ""
    return f"where another copy is left, {accept_loss('NAME')}{more}"
