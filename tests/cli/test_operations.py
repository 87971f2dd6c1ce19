"""`minkactl operations`, and `minkactl reassign` with --drain and --limit. These show which operations run, what blocks
them, and remedies.
"""

import json

import pytest
from google.protobuf.message import Message

from minka.admin.cluster_rows import DrainStatus
from minka.admin.operation_rows import operation_of
from minka.engine.documents import to_document
from minka.engine.messages import read
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import (
    ApplyPlanResponse,
    Blocker,
    GetDrainStatusResponse,
    GetOperationsResponse,
    OperationResponse,
    ShardsOnNode,
)
from minka.v1.cluster_pb2 import Migration, MigrationState, NodeState, Operation, OperationState
from minka.v1.coordinator_pb2 import MigrationPhase
from minkactl.documents import record_document
from minkactl.exits import Exit
from minkactl.progress import Tracker, operation_document
from tests.cli.conftest import AnsweringNode, Run, make_operation, make_plan, on_terminal

_PHASE = MigrationPhase

RUNNING, SUCCEEDED, CANCELLED = (
    OperationState.OPERATION_STATE_RUNNING,
    OperationState.OPERATION_STATE_SUCCEEDED,
    OperationState.OPERATION_STATE_CANCELLED,
)
REASON, REMEDY = "ephesus is to be in sync and is not LIVE", "start ephesus, or minkactl operations cancel 12"


def stuck() -> GetOperationsResponse:
    """Return an answer about operation 12: it runs, and its migration of flights/0 waits for ephesus."""
    response = GetOperationsResponse(operations=[make_operation(RUNNING, rate_limit=1 << 20)], now_ms=1_700_000_002_000)
    response.migrations.append(
        Migration(
            operation_id=12, partition_id=1, source="athens", target="ephesus",
            state=MigrationState.MIGRATION_STATE_COPYING, reason="to even out",
        )
    )  # fmt: skip
    response.blockers.append(
        Blocker(operation_id=12, partition_id=1, partition="flights/0", reason=REASON, remedy=REMEDY)
    )
    return response


@pytest.fixture
def blocked(node: AnsweringNode) -> AnsweringNode:
    """A node that answers requests for operations with `stuck()`."""
    node.answers["GetOperations"] = lambda _: stuck()
    return node


def test_documents_have_every_field_of_the_messages() -> None:
    """This test fails if a protobuf message gets a new field, and its class in `minka.admin` doesn't get the field."""
    common = [one.name for one in Operation.DESCRIPTOR.fields if one.containing_oneof is None]
    for kind in Operation.DESCRIPTOR.oneofs_by_name["kind"].fields:
        message = Operation(id=12)
        own: Message = getattr(message, kind.name)
        own.SetInParent()
        document = operation_document(operation_of(message))
        assert document["kind"] == kind.name
        assert list(document) == ["id", "kind", *common[1:], *(one.name for one in own.DESCRIPTOR.fields), "by"]
    drained = GetDrainStatusResponse(
        state=NodeState.NODE_STATE_DRAINING,
        blockers=[Blocker(operation_id=12, partition_id=1, partition="flights/0", reason=REASON), Blocker(duty=7)],
        shards=[ShardsOnNode(shard="fetcher-2", duties=3)],
    )
    absent = {"operation_id": None, "partition": None}
    first, second = to_document(drained)["blockers"]
    assert record_document(read(DrainStatus, drained)) == to_document(drained) | {"blockers": [first, second | absent]}


@pytest.mark.parametrize("command", [["operations"], ["operations", "list"], ["operation", "list"]])
def test_the_list_names_blockers_and_what_helps(run: Run, blocked: AnsweringNode, command: list[str]) -> None:
    result = run(*command, "--endpoints", blocked.address)
    listed, blockers = (part.splitlines() for part in result.stdout.split("\n\n"))
    assert listed[1].split("\t")[:5] == ["12", "reassign", "running", "2", "ann@host"]
    assert blockers[1].split("\t") == ["12", "flights/0", REASON, REMEDY]
    (document,) = json.loads(run(*command, "-o", "json", "--endpoints", blocked.address).stdout)
    assert (document["rate_limit"], document["took_ms"]) == (1 << 20, 1000)
    assert [one["remedy"] for one in document["blockers"]] == [REMEDY]


def test_nothing_runs_and_nobody_is_asked_for_blockers(run: Run, node: AnsweringNode) -> None:
    ended = make_operation(SUCCEEDED, finished_ms=1_700_000_004_000, outcome="2 of 2 partitions moved")
    node.answers["GetOperations"] = GetOperationsResponse(operations=[ended])
    lines = run("operations", "--endpoints", node.address).stdout.splitlines()
    assert [line.split("\t")[-1] for line in lines] == ["OUTCOME", "2 of 2 partitions moved"]
    assert len(node.requests("GetOperations")) == 1


def test_a_summary_precedes_the_list_of_many_migrations(run: Run, node: AnsweringNode) -> None:
    """The node lists only some migrations. The summary counts all migrations by state, and adds up their bytes."""
    looked = stuck()
    looked.summaries.add(
        operation_id=12, bytes_done=1 << 20, bytes_total=1 << 30,
        by_state={MigrationState.MIGRATION_STATE_COPYING: 1, MigrationState.MIGRATION_STATE_PENDING: 9999},
    )  # fmt: skip
    node.answers["GetOperations"] = looked
    states, migrations, _ = run("operations", "show", "12", "--endpoints", node.address).stdout.split("\n\n")
    assert [line.split("\t")[1:] for line in states.splitlines()[1:]] == [["pending", "9999"], ["copying", "1"]]
    assert len(migrations.splitlines()) == 2
    assert node.requests("GetOperations")[-1].migrations_limit == 200
    document = json.loads(run("operations", "show", "12", "-o", "json", "--endpoints", node.address).stdout)
    assert document["progress"]["by_state"] == {"copying": 1, "pending": 9999}
    assert (document["progress"]["migrations"], document["progress"]["bytes_total"]) == (10_000, 1 << 30)
    ended = on_terminal("operations", "show", "12", "--endpoints", node.address)
    assert "0 of 10,000 migrations done" in ended.text
    assert "9,999 more (9,999 pending)" in ended.text


def test_show(run: Run, blocked: AnsweringNode) -> None:
    migrations, blockers = run("operations", "show", "12", "--endpoints", blocked.address).stdout.split("\n\n")
    assert migrations.splitlines()[1].split("\t")[1:5] == ["flights/0", "athens", "ephesus", "copying"]
    assert blockers.splitlines()[1].endswith(f"{REASON}\t{REMEDY}")
    assert blocked.requests("GetOperations")[-1].ids == [12]
    assert blocked.requests("GetOperations")[-1].with_migrations


def test_a_terminal_shows_what_helps(blocked: AnsweringNode) -> None:
    ended = on_terminal("operations", "show", "12", "--endpoints", blocked.address, env={"COLUMNS": "160"})
    assert ended.status == 0
    for text in ("flights/0", REASON, f"helps: {REMEDY}", "at most 1 MiB/s a node"):
        assert text in ended.text


@pytest.mark.parametrize("command", ["operations", "migrations"])
def test_older_operations_are_told_of(run: Run, node: AnsweringNode, command: str) -> None:
    ended = [make_operation(SUCCEEDED, finished_ms=1_700_000_004_000) for _ in range(21)]
    node.answers["GetOperations"] = lambda asked: GetOperationsResponse(operations=ended[: asked.limit or 1])
    result = run(command, "-o", "name", "--endpoints", node.address)
    assert len(result.stdout.splitlines()) == 20
    assert "Only the newest 20 operations are shown" in result.stderr
    del ended[20:]
    assert run(command, "--endpoints", node.address).stderr == ""


def test_watching_one_without_migrations(run: Run, node: AnsweringNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minkactl.commands.migrations.PIPE_INTERVAL_S", 0.01)
    states = [RUNNING, RUNNING, SUCCEEDED]

    def look(_: object) -> GetOperationsResponse:
        state = states.pop(0) if len(states) > 1 else states[0]
        finished = 1_700_000_004_000 if state == SUCCEEDED else 0
        operation = make_operation(state, finished_ms=finished)
        return GetOperationsResponse(operations=[operation], now_ms=1_700_000_002_000 + len(states))

    node.answers["GetOperations"] = look
    result = run("operations", "watch", "12", "--endpoints", node.address)
    assert result.exit_code == 0
    assert [line.split("\t")[2] for line in result.stdout.splitlines()] == ["STATE", "running", "succeeded"]
    assert "operation 12 succeeded in 3.0 s" in result.stderr


def test_watching_one_that_was_cancelled_is_status_1(run: Run, node: AnsweringNode) -> None:
    ended = make_operation(CANCELLED, finished_ms=1_700_000_004_000, outcome="cancelled by ann@host")
    node.answers["GetOperations"] = GetOperationsResponse(operations=[ended])
    result = run("operations", "watch", "--endpoints", node.address)
    assert result.exit_code == Exit.FAILED
    assert "operation 12 cancelled in 3.0 s: cancelled by ann@host" in result.stderr


@pytest.mark.parametrize(("command", "method", "paused"), [("pause", "Pause", True), ("resume", "Resume", False)])
def test_pause_and_resume(run: Run, node: AnsweringNode, command: str, method: str, paused: bool) -> None:
    node.answers[f"{method}Operation"] = OperationResponse(operation=make_operation(RUNNING, paused=paused))
    result = run("operations", command, "12", "--endpoints", node.address)
    header, row = (line.split("\t") for line in result.stdout.splitlines())
    assert dict(zip(header, row, strict=True))["PAUSED"] == str(paused).lower()
    assert ("minkactl operations resume 12" in result.stderr) == paused
    (request,) = node.requests(f"{method}Operation")
    assert request.id == 12


def test_cancel(run: Run, node: AnsweringNode) -> None:
    node.answers["CancelOperation"] = OperationResponse(operation=make_operation(RUNNING, cancelled=True))
    result = run("operations", "cancel", "12", "--reason", "too slow", "--endpoints", node.address)
    assert result.exit_code == 0
    assert "minkactl operations watch 12" in result.stderr
    (request,) = node.requests("CancelOperation")
    assert (request.id, request.reason, "@" in request.requested_by) == (12, "too slow", True)


@pytest.mark.parametrize("code", [Code.CANCEL_REFUSED, Code.OPERATION_ENDED, Code.UNKNOWN_OPERATION])
def test_a_refused_cancel(run: Run, node: AnsweringNode, code: Code) -> None:
    node.answers["CancelOperation"] = MinkaError(code, "the explanation of the node")
    result = run("operations", "cancel", "12", "--endpoints", node.address)
    assert result.exit_code == Exit.FAILED
    assert f"error: {code.name}: the explanation of the node\n  remedy: {code.info.remedy}" in result.stderr


@pytest.mark.parametrize(("given", "rate"), [("52428800", 50 << 20), ("50MiB", 50 << 20), ("1GiB", 1 << 30), ("0", 0)])
def test_limit(run: Run, node: AnsweringNode, given: str, rate: int) -> None:
    node.answers["LimitOperation"] = lambda request: OperationResponse(
        operation=make_operation(RUNNING, rate_limit=request.rate_limit)
    )
    result = run("operations", "limit", "12", given, "-o", "json", "--endpoints", node.address)
    assert json.loads(result.stdout)["rate_limit"] == rate
    assert node.requests("LimitOperation")[0].rate_limit == rate


@pytest.mark.parametrize("given", ["fast", "50MB", "1.5MiB", "1e6"])
def test_a_limit_that_is_none(run: Run, node: AnsweringNode, given: str) -> None:
    result = run("operations", "limit", "12", given, "--endpoints", node.address)
    assert result.exit_code == Exit.USAGE
    assert "52428800, or 50MiB" in result.stderr
    assert not node.asked


def test_reassign_drains_with_a_limit(run: Run, node: AnsweringNode) -> None:
    plan = make_plan()
    plan.notes.append("flights/3 has two replicas in zone a: there is no other")
    node.answers["PlanReassign"] = plan
    node.answers["ApplyPlan"] = ApplyPlanResponse(operation=make_operation(RUNNING))
    ended = make_operation(SUCCEEDED, finished_ms=1_700_000_004_000)
    node.answers["GetOperations"] = GetOperationsResponse(operations=[ended])
    result = run(
        "reassign", "--drain", "cyrene,athens", "--limit", "10MiB", "--yes", "--endpoints", node.address
    )  # fmt: skip
    assert result.exit_code == 0
    assert "two replicas in zone a" in result.stderr
    assert node.requests("PlanReassign")[0].drain == ["cyrene", "athens"]
    assert node.requests("PlanReassign")[0].rate_limit == 10 << 20
    assert not node.requests("ApplyPlan")[0].HasField("rate_limit")  # ApplyPlan without a limit uses the plan's limit


def test_progress_to_several_targets_is_added() -> None:
    response = GetOperationsResponse(operations=[make_operation(RUNNING)], now_ms=1_700_000_002_000)
    response.migrations.append(
        Migration(
            operation_id=12, partition_id=1, state=MigrationState.MIGRATION_STATE_COPYING,
            original_replicas=["athens"], target_replicas=["byzantium", "cyrene"],
        )
    )  # fmt: skip
    for target, done in (("byzantium", 3), ("cyrene", 4), ("sparta", 100)):
        response.progress.add(
            partition_id=1,
            target=target,
            bytes_done=done,
            bytes_total=10,
            lag=done,
            phase=_PHASE.MIGRATION_PHASE_SHIP,
        )
    (document,) = Tracker({1: "flights/0"}, {}).documents(response)
    (row,) = document["migrations"]
    assert (row["bytes_done"], row["bytes_total"], row["lag"], row["phase"]) == (7, 20, 4, "ship")
