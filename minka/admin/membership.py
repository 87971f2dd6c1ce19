"""Waiting until a change of the nodes, or of the coordinator's Raft group, is done."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from minka.admin.control import Control
from minka.errors import Code, DeadlineExceeded, MinkaError, Unavailable
from minka.v1.admin_pb2 import GetStatusResponse

_POLL_S: Final = 0.05
_ASK_AGAIN_S: Final = 2.0  # the pause after which a request that may be lost is repeated


def wait_until(
    is_done: Callable[[GetStatusResponse], bool],
    control: Control,
    what: str,
    timeout: float,
    ask_again: Callable[[], None] | None = None,
) -> None:
    """Wait until `is_done` is true for the active controller's status. `what` describes the change in the error, as in
    "athens is the active controller". `ask_again` repeats the request; None if a repetition isn't safe. Raises
    DEADLINE_EXCEEDED after `timeout` seconds, and the controller's refusal, if it refuses a request.
    """
    asked = time.monotonic()
    deadline = asked + timeout
    while True:
        try:
            status = control.summary(max(min(control.timeout, deadline - time.monotonic()), _POLL_S))
            if status.from_controller and is_done(status):
                return
            if ask_again is not None and time.monotonic() - asked > _ASK_AGAIN_S:
                asked = time.monotonic()
                ask_again()
        except (Unavailable, DeadlineExceeded):
            pass  # a new controller is being elected
        if time.monotonic() > deadline:
            text = f"no sign within {timeout:g} s that {what}; it may still happen: minkactl raft status shows it"
            raise MinkaError(Code.DEADLINE_EXCEEDED, text)
        time.sleep(_POLL_S)


def leads(status: GetStatusResponse, node: str) -> bool:
    """True if the node is the active controller."""
    return status.coordinator.controller == node


def have_seats(status: GetStatusResponse, voters: Sequence[str], learners: Sequence[str]) -> bool:
    """True if the nodes in `voters` are voters, and the nodes in `learners` are learners."""
    raft = status.coordinator
    return all(node in raft.voters for node in voters) and all(node in raft.learners for node in learners)


def is_gone(status: GetStatusResponse, node: str) -> bool:
    """True if neither the table nor the Raft group has the node."""
    # "?" stands for a member of the Raft group that is no longer in the table: perhaps this node.
    members = [*status.coordinator.voters, *status.coordinator.learners]
    return not {node, "?"}.intersection(members) and all(row.id != node for row in status.table.nodes)
