"""The commands drain, undrain and elect-leaders: they say if it is safe to stop a node, and name remedies."""

import json
import re
from collections.abc import Callable

import pytest

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import (
    Blocker,
    DrainNodeResponse,
    ElectLeadersResponse,
    GetDrainStatusRequest,
    GetDrainStatusResponse,
    GetOperationsRequest,
    GetOperationsResponse,
    GetStatusResponse,
    UndrainNodeResponse,
)
from minka.v1.cluster_pb2 import (
    DrainOperation,
    ElectLeadersOperation,
    Migration,
    MigrationState,
    NodeState,
    Operation,
    OperationState,
)
from minkactl.exits import Exit
from tests.cli.conftest import AnsweringNode, Run, make_plan, on_terminal, plain_lines

RUNNING, SUCCEEDED, FAILED = (
    OperationState.OPERATION_STATE_RUNNING,
    OperationState.OPERATION_STATE_SUCCEEDED,
    OperationState.OPERATION_STATE_FAILED,
)
NOT_IN_SYNC = Blocker(
    partition_id=2, partition="flights/1", reason="no other replica is in sync: it would be OFFLINE",
    remedy="start athens",
)  # fmt: skip


def make_drain(state: OperationState.ValueType, outcome: str = "", decommission: bool = False) -> Operation:
    """Operation 12, which drains cyrene."""
    return Operation(
        id=12, drain=DrainOperation(node="cyrene", decommission=decommission), state=state, outcome=outcome,
        created_ms=1_700_000_001_000, finished_ms=0 if state == RUNNING else 1_700_000_002_000,
    )  # fmt: skip


def make_drain_status(leaders: int, *blockers: Blocker) -> GetDrainStatusResponse:
    """Return the drain status of cyrene: it leads `leaders` partitions, and is safe to stop if it has no blockers."""
    return GetDrainStatusResponse(
        state=NodeState.NODE_STATE_DRAINING, leaders=leaders, replicas=9, safe_to_stop=not blockers, blockers=blockers,
        blocker_count=len(blockers),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the intervals of minkactl, and the time after which it reports that a drain is stuck."""
    monkeypatch.setattr("minkactl.commands.drain.PIPE_INTERVAL_S", 0.01)
    monkeypatch.setattr("minkactl.commands.drain.STUCK_S", 0.2)


@pytest.fixture
def draining(node: AnsweringNode) -> AnsweringNode:
    """A node that reports the drain of cyrene. In its first answer cyrene leads three partitions, in its second answer
    two, and so on. When cyrene leads none, operation 12 has SUCCEEDED.
    """
    leads = [3]

    def look(_: GetOperationsRequest) -> GetOperationsResponse:
        state, outcome = (RUNNING, "") if leads[0] else (SUCCEEDED, "cyrene is safe to stop")
        return GetOperationsResponse(operations=[make_drain(state, outcome)], now_ms=1_700_000_002_000)

    def status(_: GetDrainStatusRequest) -> GetDrainStatusResponse:
        now, leads[0] = leads[0], max(leads[0] - 1, 0)
        return make_drain_status(now, *[NOT_IN_SYNC] * bool(now))

    node.answers["DrainNode"] = DrainNodeResponse(operation=make_drain(RUNNING))
    node.answers["GetOperations"] = look
    node.answers["GetDrainStatus"] = status
    return node


def stuck_at(node: AnsweringNode, operation: Operation, status: GetDrainStatusResponse) -> None:
    """Let the node answer each request about the drain with this operation and this status."""
    node.answers["GetOperations"] = GetOperationsResponse(operations=[operation], now_ms=1_700_000_002_000)
    node.answers["GetDrainStatus"] = status


def test_it_ends_with_safe_to_stop(run: Run, draining: AnsweringNode) -> None:
    result = run("drain", "cyrene", "--reason", "new disk", "--limit", "1MiB", "--endpoints", draining.address)
    assert result.exit_code == 0
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert [line[:3] for line in lines if line[0] == "cyrene"] == [["cyrene", "draining", str(n)] for n in (3, 2, 1, 0)]
    assert result.stderr.splitlines() == [
        "operation 12 started", "operation 12 succeeded: cyrene is safe to stop", "safe to stop: yes",
    ]  # fmt: skip
    (request,) = draining.requests("DrainNode")
    assert (request.node, request.decommission, request.reason) == ("cyrene", False, "new disk")
    assert (request.rate_limit, "@" in request.requested_by) == (1 << 20, True)


def test_json(run: Run, draining: AnsweringNode) -> None:
    result = run("drain", "cyrene", "-o", "json", "--endpoints", draining.address)
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert [document["drain"]["safe_to_stop"] for document in documents] == [False] * 3 + [True]
    assert documents[0]["drain"]["blockers"][0]["remedy"] == "start athens"
    assert documents[-1]["operation"]["state"] == "succeeded"


def test_a_stuck_drain_names_the_blocker_and_the_remedy(run: Run, draining: AnsweringNode) -> None:
    stuck_at(draining, make_drain(RUNNING), make_drain_status(1, NOT_IN_SYNC))
    result = run("drain", "cyrene", "--endpoints", draining.address)
    assert result.exit_code == Exit.FAILED
    assert result.stderr.splitlines()[1:] == [
        "operation 12 running",
        "  flights/1: no other replica is in sync: it would be OFFLINE; helps: start athens",
        "safe to stop: no",
    ]
    assert result.stdout.count("start athens") == 1


def test_the_timeout_names_it_too(run: Run, draining: AnsweringNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minkactl.commands.drain.STUCK_S", 60)
    stuck_at(draining, make_drain(RUNNING), make_drain_status(1, NOT_IN_SYNC))
    result = run("drain", "cyrene", "--timeout", "0.5", "--endpoints", draining.address)
    assert result.exit_code == Exit.TIMEOUT
    assert "helps: start athens\nsafe to stop: no\nerror: DEADLINE_EXCEEDED: " in result.stderr


def test_a_drain_that_failed(run: Run, draining: AnsweringNode) -> None:
    stuck_at(draining, make_drain(FAILED, "cyrene failed: no heartbeat"), make_drain_status(0))
    result = run("drain", "cyrene", "--endpoints", draining.address)
    assert result.exit_code == Exit.FAILED
    assert "operation 12 failed: cyrene failed: no heartbeat\nsafe to stop: no" in result.stderr


def test_a_drain_that_runs_is_watched(run: Run, draining: AnsweringNode, status: GetStatusResponse) -> None:
    status.running.append(make_drain(RUNNING))
    result = run("drain", "cyrene", "--endpoints", draining.address)
    assert (result.exit_code, draining.requests("DrainNode")) == (0, [])
    assert "operation 12 drains cyrene already" in result.stderr
    # The running drain moves no replicas. With --decommission, the command asks for more than this drain does, so the
    # active controller refuses it.
    draining.answers["PlanReassign"] = make_plan()
    draining.answers["DrainNode"] = MinkaError(Code.OPERATION_RUNNING, "operation 12 drains cyrene already")
    more = run("drain", "cyrene", "--decommission", "--yes", "--endpoints", draining.address)
    assert more.exit_code == Exit.FAILED
    assert "error: OPERATION_RUNNING: " in more.stderr


def test_decommission_asks_and_shows_what_moves(run: Run, draining: AnsweringNode) -> None:
    plan = make_plan()
    plan.notes.append("flights/3 has two replicas in zone a")
    draining.answers["PlanReassign"] = plan
    refused = run("drain", "cyrene", "--decommission", "--endpoints", draining.address, input="y\n")
    assert (refused.exit_code, draining.requests("DrainNode")) == (Exit.USAGE, [])
    operation = make_drain(SUCCEEDED, "cyrene holds nothing and is safe to stop", decommission=True)
    stuck_at(draining, operation, make_drain_status(0))
    draining.answers["GetOperations"].migrations.append(
        Migration(
            operation_id=12, partition_id=1, source="cyrene", target="athens",
            state=MigrationState.MIGRATION_STATE_COMPLETED,
        )
    )  # fmt: skip
    result = run("drain", "cyrene", "--decommission", "--yes", "--endpoints", draining.address)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (0, "safe to stop: yes")
    assert "two replicas in zone a" in result.stderr
    assert "flights/0\tcyrene\tathens\tcompleted" in result.stdout
    assert draining.requests("PlanReassign")[0].drain == ["cyrene"]
    assert draining.requests("DrainNode")[0].decommission


def test_on_a_terminal(draining: AnsweringNode) -> None:
    stuck_at(draining, make_drain(RUNNING), make_drain_status(1, NOT_IN_SYNC))
    ended = on_terminal("drain", "cyrene", "--endpoints", draining.address, keys="\x03", when="helps: start athens")
    assert ended.status == Exit.INTERRUPTED
    assert "no other replica is in sync" in ended.text
    assert "operation 12 goes on; watch it again with: minkactl drain cyrene" in ended.text
    assert "Traceback" not in ended.text


def test_undrain(run: Run, draining: AnsweringNode) -> None:
    draining.answers["UndrainNode"] = UndrainNodeResponse()
    draining.answers["GetDrainStatus"] = GetDrainStatusResponse(state=NodeState.NODE_STATE_LIVE, replicas=9)
    result = run("undrain", "cyrene", "--endpoints", draining.address)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split("\t") == ["cyrene", "live", "0", "9", "false"]
    assert "cyrene was not drained: nothing was changed." in result.stderr
    states = iter((NodeState.NODE_STATE_DRAINING, NodeState.NODE_STATE_LIVE))
    draining.answers["GetDrainStatus"] = lambda _: GetDrainStatusResponse(state=next(states), replicas=9)
    result = run("undrain", "cyrene", "--endpoints", draining.address)
    assert "minkactl elect-leaders --preferred" in result.stderr
    request = draining.requests("UndrainNode")[0]
    assert request.node == "cyrene"
    assert re.fullmatch(r"\S+@\S+", request.requested_by)


@pytest.mark.parametrize("command", ["drain", "undrain"])
def test_a_mistyped_node(run: Run, node: AnsweringNode, command: str) -> None:
    node.answers["DrainNode"] = node.answers["UndrainNode"] = MinkaError(Code.UNKNOWN_NODE, "there is no node cyren")
    node.answers["GetDrainStatus"] = node.answers["UndrainNode"]
    result = run(command, "cyren", "--endpoints", node.address)
    assert (result.exit_code, result.stdout) == (Exit.FAILED, "")
    assert "error: UNKNOWN_NODE: " in result.stderr


@pytest.fixture
def electing(node: AnsweringNode) -> Callable[..., None]:
    """A function that prepares the answer to elect-leaders: operation 13 has SUCCEEDED. Each argument is a blocker of a
    partition that the operation has skipped.
    """

    def answer(*skipped: Blocker) -> None:
        operation = Operation(
            id=13, elect_leaders=ElectLeadersOperation(), state=SUCCEEDED, created_ms=1_700_000_001_000,
            finished_ms=1_700_000_002_000, outcome="3 of 3 preferred leaders lead",
        )  # fmt: skip
        node.answers["GetOperations"] = GetOperationsResponse(operations=[operation])
        node.answers["ElectLeaders"] = ElectLeadersResponse(operation=operation, skipped=skipped)

    return answer


def test_elect_leaders(run: Run, node: AnsweringNode, electing: Callable[..., None]) -> None:
    electing()
    result = run("elect-leaders", "--preferred", "--keyspace", "flights", "--endpoints", node.address)
    assert result.exit_code == 0
    assert "operation 13 succeeded in 1.0 s: 3 of 3 preferred leaders lead" in result.stderr
    assert result.stdout.splitlines()[1].split("\t")[:3] == ["13", "elect_leaders", "succeeded"]
    (request,) = node.requests("ElectLeaders")
    assert (request.keyspaces, "@" in request.requested_by) == (["flights"], True)


def test_preferred_leaders_that_cannot_lead(run: Run, node: AnsweringNode, electing: Callable[..., None]) -> None:
    reason = "cyrene, its preferred leader, is not LIVE"
    electing(Blocker(partition_id=3, partition="flights/2", reason=reason, remedy="start cyrene"))
    result = run("elect-leaders", "--preferred", "--endpoints", node.address)
    assert result.exit_code == Exit.FAILED
    assert result.stderr.splitlines()[-1] == f"flights/2: {reason}; helps: start cyrene"


def test_nothing_to_elect(run: Run, node: AnsweringNode) -> None:
    node.answers["ElectLeaders"] = ElectLeadersResponse()
    result = run("elect-leaders", "--preferred", "--endpoints", node.address)
    assert (result.exit_code, result.stderr) == (0, "Nothing to elect.\n")
    usage = run("elect-leaders", "--endpoints", node.address)
    assert usage.exit_code == Exit.USAGE
    assert len(node.requests("ElectLeaders")) == 1


def test_a_decommission_that_is_done_shows_success(draining: AnsweringNode) -> None:
    done = make_drain(SUCCEEDED, "cyrene holds nothing and is safe to stop; 1 of 1 replicas moved", decommission=True)
    migration = Migration(
        operation_id=12, partition_id=2, source="cyrene", target="athens",
        state=MigrationState.MIGRATION_STATE_COMPLETED, left_behind=["cyrene"],
        outcome="moved; cyrene will delete its copy when it is back",
    )  # fmt: skip
    draining.answers["PlanReassign"] = make_plan()
    draining.answers["GetDrainStatus"] = make_drain_status(0)
    draining.answers["GetOperations"] = GetOperationsResponse(operations=[done], migrations=[migration])
    ended = on_terminal("drain", "cyrene", "--decommission", "--yes", "--endpoints", draining.address)
    assert ended.status == 0
    assert "✓ flights/1 moved; cyrene will delete its copy when it is back" in "\n".join(plain_lines(ended.text))
    assert "✗" not in ended.text
    migration.state, migration.outcome = MigrationState.MIGRATION_STATE_CANCELLED, "no progress for 60 s"
    draining.answers["GetOperations"] = GetOperationsResponse(operations=[done], migrations=[migration])
    failed = on_terminal("operations", "show", "12", "--endpoints", draining.address)
    assert "✗ flights/1 cancelled: no progress for 60 s" in "\n".join(plain_lines(failed.text))


def test_a_decommission_that_has_failed_is_not_safe_and_advises_nothing_that_was_typed(
    run: Run, node: AnsweringNode
) -> None:
    node.answers["PlanReassign"] = make_plan()
    node.answers["DrainNode"] = DrainNodeResponse(operation=make_drain(RUNNING, decommission=True))
    ended, remedy = make_drain(FAILED, "cyrene still holds 9 partitions", True), "minkactl drain cyrene --decommission"
    hurt = Blocker(partition_id=2, partition="flights/1", reason="it would be OFFLINE", remedy=remedy)
    for blockers in ([], [hurt]):
        stuck_at(node, ended, make_drain_status(0, *blockers))
        result = run("drain", "cyrene", "--decommission", "--yes", "-o", "json", "--endpoints", node.address)
        document = json.loads(result.stdout.splitlines()[-1])
        assert (document["drain"]["safe_to_stop"], document["drain"]["blocker_count"]) == (False, 9)
        assert (result.exit_code, "safe to stop: no" in result.stderr) == (Exit.FAILED, True)
        assert remedy not in result.stderr
