"""The output and exit status of commands if the answering node isn't the active controller, or no quorum has confirmed
that this node still is the active controller.
"""

import json

import pytest

from minka.v1.admin_pb2 import GetOperationsResponse, GetSplitBlockersResponse, GetStatusResponse
from minka.v1.cluster_pb2 import OperationState
from minkactl.exits import Exit
from tests.cli.conftest import AnsweringNode, Run, make_operation, on_terminal

NOTE = "Not known to be so: athens remembers it, and no active controller that a quorum has confirmed says so."
DONE = make_operation(OperationState.OPERATION_STATE_SUCCEEDED, finished_ms=1_700_000_002_000)
RUNNING = make_operation(OperationState.OPERATION_STATE_RUNNING)


@pytest.fixture
def asked(node: AnsweringNode) -> AnsweringNode:
    """A server for athens. It answers requests for operations with operation 12, which has SUCCEEDED."""
    node.answers["GetOperations"] = lambda _: GetOperationsResponse(operations=[DONE], now_ms=DONE.finished_ms)
    node.answers["GetSplitBlockers"] = GetSplitBlockersResponse()
    return node


@pytest.fixture(params=["not the controller", "without clearance"])
def lost(request: pytest.FixtureRequest, status: GetStatusResponse) -> None:
    """The answering node isn't the active controller, or no quorum has confirmed that it still is (no clearance)."""
    status.from_controller = request.param != "not the controller"
    status.has_clearance = request.param != "without clearance"


COMMANDS = [
    "partitions --under-replicated -o name",
    "partitions --under-min-insync -o name",
    "partitions --state offline -o json",
    "partitions explain flights/1",
    "partitions locate flights key",
    "nodes cyrene",
    "keyspaces",
    "raft status",
    "operations",
    "operations list",
    "operations watch",
    "migrations",
    "migrations watch",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_said_and_the_exit_status_is_that_of_status(
    run: Run, asked: AnsweringNode, lost: None, command: str
) -> None:
    result = run(*command.split(), "--endpoints", asked.address)
    assert result.exit_code == Exit.UNHEALTHY
    assert result.stderr.count(NOTE) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_confirmed_controller_is_not_news(run: Run, asked: AnsweringNode, command: str) -> None:
    result = run(*command.split(), "--endpoints", asked.address)
    assert (result.exit_code, NOTE in result.stderr) == (Exit.OK, False)


def test_a_terminal_is_told_as_well(asked: AnsweringNode, status: GetStatusResponse) -> None:
    status.has_clearance = False
    ended = on_terminal("partitions", "--under-replicated", "--endpoints", asked.address)
    assert (ended.status, NOTE in ended.text) == (Exit.UNHEALTHY, True)


def test_how_an_operation_ended_is_known_for_ever(run: Run, asked: AnsweringNode, lost: None) -> None:
    for command in ("show", "watch"):
        result = run("operations", command, 12, "--endpoints", asked.address)
        assert (result.exit_code, NOTE in result.stderr) == (Exit.OK, False)
    asked.answers["GetOperations"] = lambda _: GetOperationsResponse(operations=[RUNNING])
    assert run("operations", "show", 12, "--endpoints", asked.address).exit_code == Exit.UNHEALTHY


def test_a_watch_says_it_once(run: Run, asked: AnsweringNode, lost: None) -> None:
    result = run("keyspaces", "--watch", "0.1", "--timeout", "0.5", "--endpoints", asked.address)
    assert (result.exit_code, result.stderr.count(NOTE)) == (Exit.TIMEOUT, 1)


def test_the_versions_are_told_with_a_note(run: Run, asked: AnsweringNode, lost: None) -> None:
    """`minkactl version` is mainly about minkactl's own version. So its exit status is 0, even if the nodes' answers
    are unconfirmed.
    """
    result = run("version", "-o", "json", "--endpoints", asked.address)
    assert (result.exit_code, NOTE in result.stderr) == (Exit.OK, True)
    assert {node["state"] for node in json.loads(result.stdout)["nodes"]} == {"unknown"}
