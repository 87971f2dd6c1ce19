"""minkactl raft."""

import sys
import time
from typing import TYPE_CHECKING, Final

import click

from minkactl import options
from minkactl.completion import complete_node
from minkactl.exits import Exit
from minkactl.output import note
from minkactl.pages import Listing, Page, fields
from minkactl.session import Session
from minkactl.watch import show

if TYPE_CHECKING:
    from minka.admin import Admin
    from minka.admin.control import Control
    from minka.v1.admin_pb2 import GetStatusResponse

WAIT_S: Final = 30.0  # how long a change may take, unless --timeout says otherwise
POLL_S: Final = 0.05

NodeArgument: Final = click.argument("node", shell_complete=complete_node)
Yes: Final = click.option("--yes", "-y", is_flag=True, help="Don't ask.")


@options.group()
def raft() -> None:
    """See and change the coordinator's Raft group: which node leads, which vote, which keep up."""


def raft_page(status: "GetStatusResponse") -> Page:
    """The page of a node's answer."""
    from minkactl.survey import unconfirmed
    from minkactl.views import MEMBER_COLUMNS, raft_document

    document = raft_document(status)
    facts = {key: value for key, value in document.items() if key != "members"}
    members = document["members"]
    listings = [fields(facts), Listing(MEMBER_COLUMNS, members, "No member yet.")]
    return Page(document, listings, [member["id"] for member in members], unconfirmed=unconfirmed(status))


@raft.command("status")
@options.common()
@options.pass_session
def status_(session: Session) -> Exit:
    """Show the Raft group: leader, term, indices, voters, learners, and how far each member lags.

    Exit status 5 when no active controller that a quorum has confirmed says so.

    Examples:
      minkactl raft status --watch
      minkactl raft status -o json | jq '.members[] | select(.lag > 1000).id'
    """
    return show(session, lambda control: raft_page(control.summary())).exit


@raft.command()
@NodeArgument
@Yes
@options.common(watch=False)
@options.pass_session
def transfer(session: Session, node: str, yes: bool) -> None:
    """Make the voter NODE the leader, hence the active controller, and wait until it is.

    Example:
      minkactl raft transfer byzantium
    """
    with session.admin() as admin:
        status = controller_status(session, admin.control)
        if status.coordinator.controller != node:
            confirm(f"Transfer the leadership from {status.coordinator.controller} to {node}?", yes)
        _transfer(session, admin, node)
        _show(session, admin.control)


@raft.command()
@NodeArgument
@click.option(
    "--instead-of", metavar="NODE", default="", shell_complete=complete_node,
    help="The voter that gives up its seat and becomes a learner, in the same change.",
)  # fmt: skip
@Yes
@options.common(watch=False)
@options.pass_session
def promote(session: Session, node: str, instead_of: str, yes: bool) -> None:
    """Make the learner NODE a voter: in the seat of another one, or in a seat of its own.

    Examples:
      minkactl raft promote ephesus --instead-of cyrene
      minkactl raft promote ephesus
    """
    _change_voters(session, [node], [instead_of] if instead_of else [], yes)


@raft.command()
@NodeArgument
@Yes
@options.common(watch=False)
@options.pass_session
def add(session: Session, node: str, yes: bool) -> None:
    """Add a voter: the learner NODE gets a seat of its own, as with promote without --instead-of.

    A node becomes a learner automatically when it joins the cluster. An odd number of voters is best: a fourth one
    makes the majority larger, and the group survives no more failures.

    Example:
      minkactl raft add ephesus
    """
    _change_voters(session, [node], [], yes)


@raft.command()
@NodeArgument
@Yes
@options.common(watch=False)
@options.pass_session
def demote(session: Session, node: str, yes: bool) -> None:
    """Make the voter NODE a learner. If it leads, another voter takes over first.

    Refused if fewer voters than coordinator.voters would be left: then promote a learner instead of it.

    Example:
      minkactl raft demote cyrene
    """
    _change_voters(session, [], [node], yes)


@raft.command()
@NodeArgument
@Yes
@options.common(watch=False)
@options.pass_session
def remove(session: Session, node: str, yes: bool) -> None:
    """Forget NODE for good: it must be stopped, and hold no partition. It can't come back with its old data.

    A voter gives up its seat with it. A leader that is stopped (SIGTERM) hands over the leadership first.

    Example:
      minkactl reassign --to athens,byzantium,cyrene && systemctl --host ephesus stop minkad
      minkactl raft remove ephesus
    """
    with session.admin() as admin:
        remove_node(session, admin, node, yes, f"Remove {node} from the cluster? It can't come back with its data.")
        _show(session, admin.control)


def remove_node(session: Session, admin: "Admin", node: str, yes: bool, question: str) -> None:
    """Ask, remove the node, wait until its seat in the Raft group is gone too. Raises MinkaError."""
    status = controller_status(session, admin.control)
    _known(status, node)
    confirm(question, yes)
    admin.remove_node(node, timeout=_patience(session))
    note(f"{node} is no longer a member")


def _known(status: "GetStatusResponse", node: str) -> None:
    from minka.errors import Code, MinkaError

    if all(row.id != node for row in status.table.nodes):
        raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {node}", node=node)


def _change_voters(session: Session, up: list[str], down: list[str], yes: bool) -> None:
    from minka.admin.membership import have_seats

    with session.admin() as admin:
        status = controller_status(session, admin.control)
        for node in up + down:
            _known(status, node)
        leader = status.coordinator.controller
        successor = _successor(status) if leader in down else ""
        first = f"{leader} leads: transfer the leadership to {successor}, then " if successor else ""
        steps = [f"promote {node}" for node in up] + [f"demote {node}" for node in down]
        done = [f"{node} is a voter" for node in up] + [f"{node} is a learner" for node in down]

        if not have_seats(status, up, down):
            question = f"{first}{' and '.join(steps)}?"
            confirm(question[0].upper() + question[1:], yes)
        if successor:
            _transfer(session, admin, successor)
        admin.change_voters(promote=up, demote=down, timeout=_patience(session))
        note(" and ".join(done))
        _show(session, admin.control)


def _successor(status: "GetStatusResponse") -> str:
    """The voter to lead instead of the present leader: the LIVE one that lags least. Raises INVALID_VOTERS."""
    from minka.errors import Code, MinkaError
    from minka.v1.cluster_pb2 import NodeState

    leader = status.coordinator.controller
    live = {node.id for node in status.table.nodes if node.state == NodeState.NODE_STATE_LIVE}
    applied = {node.node_id: node.applied_index for node in status.nodes}
    others = [voter for voter in status.coordinator.voters if voter != leader and voter in live]
    if not others:
        raise MinkaError(
            Code.INVALID_VOTERS, f"{leader} leads, and no other voter is LIVE: add one (minkactl raft add NODE) first"
        )
    return max(others, key=lambda voter: applied.get(voter, 0))


def _transfer(session: Session, admin: "Admin", node: str) -> None:
    admin.transfer_leadership(node, timeout=_patience(session))
    note(f"{node} is the active controller")


def _patience(session: Session) -> float:
    """The seconds that a change may take to be seen."""
    left = session.seconds_left()
    return WAIT_S if left is None else max(left, POLL_S)


def controller_status(session: Session, control: "Control") -> "GetStatusResponse":
    """The active controller's status; if one is being elected, wait for it. Raises NO_CONTROLLER."""
    from minka.errors import Code, MinkaError

    end = time.monotonic() + session.request_timeout_s / 2
    while not (status := control.summary()).from_controller:
        if time.monotonic() > end:
            voters = ", ".join(status.coordinator.voters)
            raise MinkaError(Code.NO_CONTROLLER, f"no active controller answers; the voters are {voters}")
        time.sleep(POLL_S)
    return status


def confirm(question: str, yes: bool) -> None:
    """Go on only if the answer is yes. Raises UsageError if nobody can answer, Exit(1) for a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            "this asks before it acts, and stdin is not a terminal: --yes goes ahead", click.get_current_context()
        )
    if not click.confirm(question, err=True):
        note("Nothing was changed.")
        raise click.exceptions.Exit(Exit.FAILED)


def _show(session: Session, control: "Control") -> None:
    from minkactl.output import emit

    emit(raft_page(controller_status(session, control)), session.output)
