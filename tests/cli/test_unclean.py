"""The command elect-leaders --unclean: minkactl shows which writes would be lost, and asks for consent. It refuses if
no writes need to be lost.
"""

from functools import partial

import pytest

from minka.errors import MinkaError
from minka.v1.admin_pb2 import (
    CopyDescription,
    DescribeNodeRequest,
    DescribeNodeResponse,
    ElectLeadersResponse,
    GetSplitBlockersResponse,
    GetStatusResponse,
)
from minka.v1.cluster_pb2 import PartitionState
from minkactl.exits import Exit
from minkactl.unclean import Copy, chosen, losses
from tests.cli.conftest import AnsweringNode, Run, description, listening

COPIES = {
    "athens": CopyDescription(log_end_offset=90, log_end_epoch=3, committed=80),
    "byzantium": CopyDescription(log_end_offset=95, log_end_epoch=3, committed=80),
    "cyrene": CopyDescription(log_end_offset=99, log_end_epoch=3, unusable="its copy is incomplete"),
}


@pytest.fixture
def offline(node: AnsweringNode, status: GetStatusResponse) -> AnsweringNode:
    """The node athens. In its table, flights/6 is OFFLINE: only cyrene is in sync, and cyrene's copy can't lead."""
    row = status.table.partitions[6]
    row.replicas[:], row.isr[:] = ["athens", "byzantium", "cyrene"], ["cyrene"]
    row.leader, row.state = "", PartitionState.PARTITION_STATE_OFFLINE

    def described(name: str, request: DescribeNodeRequest) -> DescribeNodeResponse:
        answer = description(status, name, request)
        answer.copies.extend([COPIES[name]] if request.partitions else [])
        return answer

    for one in status.table.nodes:
        answering = node if one.id == "athens" else AnsweringNode()
        answering.answers["DescribeNode"] = partial(described, one.id)
        if answering is not node:
            listening(answering)
            one.address = answering.address
    node.answers["ElectLeaders"] = ElectLeadersResponse()
    return node


def elect(run: Run, node: AnsweringNode, *options: str) -> tuple[int, str, str]:
    result = run("elect-leaders", "--unclean", *options, "--endpoints", node.address)
    return result.exit_code, result.stdout, result.stderr


def test_it_shows_each_copy_and_lets_the_newest_lead(run: Run, offline: AnsweringNode) -> None:
    exit_, shown, told = elect(run, offline, "--partition", "flights/6", "--yes", "--reason", "the disk is lost")
    assert exit_ == Exit.OK
    assert [line.split("\t") for line in shown.splitlines()[1:]] == [
        ["athens", "false", "90", "3", "80", "-"],
        ["byzantium", "false", "95", "3", "80", "-"],
        ["cyrene", "true", "99", "3", "0", "its copy is incomplete"],
    ]
    assert told.splitlines() == [
        "cyrene has 4 entries more, which are lost.",
        "byzantium leads flights/6. minkactl partitions explain flights/6",
    ]
    (request,) = offline.requests("ElectLeaders")
    wanted = request.unclean
    assert (wanted.partition_id, wanted.partition_epoch, wanted.node) == (7, 2, "byzantium")
    assert request.reason == "the disk is lost"


def test_it_asks(run: Run, offline: AnsweringNode) -> None:
    exit_, _, told = elect(run, offline, "--partition", "flights/6")
    assert (exit_, "--yes goes ahead" in told) == (Exit.USAGE, True)
    assert not offline.requests("ElectLeaders")


def test_a_person_names_the_leader(run: Run, offline: AnsweringNode) -> None:
    exit_, _, told = elect(run, offline, "--partition", "flights/6", "--node", "athens", "--yes")
    assert exit_ == Exit.OK
    assert "byzantium has 5 entries more, which are lost." in told
    assert offline.requests("ElectLeaders")[0].unclean.node == "athens"


@pytest.mark.parametrize(
    ("options", "exit_", "text"),
    [
        (["--partition", "flights/6", "--node", "cyrene", "--yes"], Exit.FAILED, "cyrene: its copy is incomplete"),
        (["--partition", "flights/6", "--node", "delphi", "--yes"], Exit.FAILED, "it has no replica of it"),
        (["--partition", "flights/5", "--yes"], Exit.FAILED, "LEADER_EXISTS"),
        (["--partition", "flights/99", "--yes"], Exit.FAILED, "UNKNOWN_PARTITION"),
        ([], Exit.USAGE, "--partition NAME"),
        (["--partition", "flights/6", "--keyspace", "flights"], Exit.USAGE, "without --keyspace"),
        (["--partition", "flights/6", "--preferred"], Exit.USAGE, "--preferred, or --unclean"),
    ],
)
def test_refused_elections(run: Run, offline: AnsweringNode, options: list[str], exit_: Exit, text: str) -> None:
    found, _, told = elect(run, offline, *options)
    assert (found, text in told) == (exit_, True), told
    assert not offline.requests("ElectLeaders")


def test_losses_are_unknown_if_a_node_does_not_answer() -> None:
    left = Copy("athens", False, COPIES["athens"])
    gone = Copy("cyrene", True, None, "no answer: connection refused")
    assert losses([left, gone], left) == [
        "cyrene had everything, and is not used: how much of that athens lacks isn't known."
    ]
    assert losses([left], left) == ["No other copy that is known has anything that athens lacks."]


def test_explain_names_who_has_everything_and_the_last_resort(run: Run, offline: AnsweringNode) -> None:
    offline.answers["GetSplitBlockers"] = GetSplitBlockersResponse()
    told = run("partitions", "explain", "flights/6", "--endpoints", offline.address).stdout
    assert "start cyrene, which has everything" in told
    assert "minkactl elect-leaders --unclean --partition flights/6" in told


def damaged_leader(offline: AnsweringNode, status: GetStatusResponse, *isr: str) -> None:
    """Let cyrene lead flights/6 with an incomplete copy: cyrene serves nothing from this copy."""
    row = status.table.partitions[6]
    row.leader, row.state = "cyrene", PartitionState.PARTITION_STATE_ONLINE
    row.isr[:] = ["cyrene", *isr]
    status.damaged.add(partition_id=row.id, node_id="cyrene", reason="its copy is incomplete")


def test_a_leader_that_is_alone_in_sync_with_a_damaged_copy_is_replaced(
    run: Run, offline: AnsweringNode, status: GetStatusResponse
) -> None:
    damaged_leader(offline, status)
    exit_, _, told = elect(run, offline, "--partition", "flights/6", "--yes")
    assert exit_ == Exit.OK, told
    assert offline.requests("ElectLeaders")[0].unclean.node == "byzantium"
    offline.answers["GetSplitBlockers"] = GetSplitBlockersResponse()
    told = run("partitions", "explain", "flights/6", "--endpoints", offline.address).stdout
    assert "if that is lost for good: minkactl elect-leaders --unclean --partition flights/6" in told


def test_a_damaged_leader_hands_over_to_one_in_sync_automatically(
    run: Run, offline: AnsweringNode, status: GetStatusResponse
) -> None:
    damaged_leader(offline, status, "athens")
    exit_, _, told = elect(run, offline, "--partition", "flights/6", "--yes")
    assert (exit_, "LEADER_EXISTS" in told) == (Exit.FAILED, True), told


def test_offsets_of_different_leaderships_are_not_compared() -> None:
    """The election would lose all entries of cyrene after the offset at which the two logs diverge. The ends of the
    logs don't show this offset, so minkactl names no number of lost entries.
    """
    left = Copy("athens", False, CopyDescription(log_end_offset=90, log_end_epoch=3))
    for end in (80, 91):
        newer = Copy("cyrene", True, CopyDescription(log_end_offset=end, log_end_epoch=4))
        assert losses([left, newer], left) == [
            "cyrene has entries of a later leadership: how many are lost isn't known."
        ]


def test_where_no_copy_can_lead_the_remedy_says_what_is_left(
    run: Run, offline: AnsweringNode, status: GetStatusResponse
) -> None:
    status.table.partitions[6].replicas[:] = ["cyrene"]
    exit_, _, told = elect(run, offline, "--partition", "flights/6", "--yes")
    assert (exit_, "None needed" in told) == (Exit.FAILED, False), told
    assert "remedy: Bring back what is damaged or gone of it on cyrene" in told
    assert "docs/operations.md" in told


@pytest.mark.parametrize(
    "command",
    [
        ["elect-leaders", "--unclean", "--partition", "flights/5", "--yes"],
        ["node", "rebuild", "cyrene", "--yes"],
        ["drain", "cyrene"],
        ["undrain", "cyrene"],
    ],
)
def test_minkactl_decides_nothing_by_a_table_that_may_be_outdated(
    run: Run, offline: AnsweringNode, status: GetStatusResponse, command: list[str]
) -> None:
    """The answering node has no clearance. So its table may be outdated: the drain of cyrene may have ended, and
    another node may lead flights/5.
    """
    status.from_controller = status.has_clearance = False
    status.running.add(id=3).drain.node = "cyrene"
    result = run(*command, "--endpoints", offline.address, "--timeout", "2")
    assert (result.exit_code, "NO_CONTROLLER" in result.stderr) == (Exit.UNREACHABLE, True), result.output


def test_a_node_that_does_not_answer_is_to_be_started(
    run: Run, offline: AnsweringNode, status: GetStatusResponse
) -> None:
    status.table.partitions[6].replicas[:] = ["cyrene"]
    next(one for one in status.table.nodes if one.id == "cyrene").address = "127.0.0.1:1"
    _, _, told = elect(run, offline, "--partition", "flights/6", "--yes")
    assert "remedy: Start cyrene, or bring back the data directory that it had" in told


def test_where_all_replicas_are_being_moved_the_remedy_says_so() -> None:
    with pytest.raises(MinkaError, match="it has no replica of it") as refusal:
        chosen([], "flights/6", None)
    assert refusal.value.details["remedy"].startswith("Cancel the operation that moves all of its replicas")
