"""The commands reassign, apply and migrations. They show plans, write plans to files, ask before they apply a plan, and
watch its operation.
"""

import json
import re
from pathlib import Path

import pytest

from minka.cluster.plan_digest import plan_digest
from minka.engine.documents import from_document, to_document
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import (
    ApplyPlanResponse,
    GetOperationsRequest,
    GetOperationsResponse,
    GetStatusResponse,
    Plan,
    PlanReassignRequest,
)
from minka.v1.cluster_pb2 import Migration, MigrationState, NodeState, OperationState
from minka.v1.coordinator_pb2 import MigrationPhase, MigrationProgress
from minkactl.commands.reassign import read_plan
from minkactl.exits import Exit
from minkactl.pages import Page
from minkactl.progress import Tracker
from minkactl.session import Session
from minkactl.watch import repeated
from tests.cli.conftest import AnsweringNode, Run, make_operation, make_plan, on_terminal, plain_lines

_PHASE = MigrationPhase

RUNNING, SUCCEEDED, FAILED = (
    OperationState.OPERATION_STATE_RUNNING,
    OperationState.OPERATION_STATE_SUCCEEDED,
    OperationState.OPERATION_STATE_FAILED,
)


def looks(end: OperationState.ValueType = SUCCEEDED) -> list[GetOperationsResponse]:
    """Return a node's answers about operation 12, in order. One migration copies data, and is blocked for a while; the
    other migration is pending. In the last answer, the operation has ended.
    """
    answers = []
    for step in range(4):
        last = step == 3
        operation = make_operation(end if last else RUNNING, finished_ms=1_700_000_004_000 if last else 0)
        if last:
            stayed = "; 1 stayed: flights/1: target ephesus failed"
            operation.outcome = f"1 of 2 partitions moved{stayed}" if end == FAILED else "2 of 2 partitions moved"
        states = [MigrationState.MIGRATION_STATE_COPYING, MigrationState.MIGRATION_STATE_PENDING]
        if last:
            cancelled = end == FAILED
            states = [MigrationState.MIGRATION_STATE_COMPLETED] * 2
            states[1] = MigrationState.MIGRATION_STATE_CANCELLED if cancelled else states[1]
        response = GetOperationsResponse(operations=[operation], now_ms=1_700_000_001_000 + step * 1000)
        for slot, state in enumerate(states):
            response.migrations.append(
                Migration(
                    operation_id=12, partition_id=slot + 1, source=["athens", "byzantium"][slot], target="ephesus",
                    state=state, reason="to even out",
                )
            )  # fmt: skip
        if not last:
            response.progress.append(
                MigrationProgress(
                    partition_id=1, target="ephesus", bytes_total=4 << 20, bytes_done=step << 20,
                    phase=_PHASE.MIGRATION_PHASE_SHIP, blocked_by="ephesus does not answer" if step == 2 else "",
                )
            )  # fmt: skip
        answers.append(response)
    return answers


@pytest.fixture
def operating(node: AnsweringNode, monkeypatch: pytest.MonkeyPatch) -> AnsweringNode:
    """A node that makes and applies plans. In its fourth answer about operation 12, the operation has SUCCEEDED."""
    sequence = looks()

    def operations(_: GetOperationsRequest) -> GetOperationsResponse:
        return sequence.pop(0) if len(sequence) > 1 else sequence[0]

    monkeypatch.setattr("minkactl.commands.migrations.PIPE_INTERVAL_S", 0.01)
    node.answers["PlanReassign"] = lambda _: make_plan()
    node.answers["ApplyPlan"] = lambda _: ApplyPlanResponse(operation=make_operation(RUNNING))
    node.answers["GetOperations"] = operations
    return node


def ending(node: AnsweringNode, response: GetOperationsResponse) -> None:
    """Let the node answer each request for operations with this response."""
    node.answers["GetOperations"] = lambda _: response


def test_dry_run_shows_every_move_and_changes_nothing(run: Run, operating: AnsweringNode) -> None:
    result = run(
        "reassign", "--dry-run", "--to", "athens,byzantium", "--to", "ephesus", "--endpoints", operating.address
    )
    assert result.exit_code == 0
    moves, nodes = (part.splitlines() for part in result.stdout.split("\n\n"))
    assert moves[1].split("\t") == ["flights/0", "athens", "ephesus", str(1 << 20), "athens has 3, ephesus none"]
    assert nodes[0].split("\t")[:3] == ["NODE", "PARTITIONS BEFORE", "PARTITIONS AFTER"]
    assert nodes[-1].split("\t") == ["ephesus", "0", "2", "0", str(2 << 20)]
    assert "2 moves" in result.stderr
    assert "fewest" in result.stderr
    assert operating.requests("PlanReassign")[0].to == ["athens", "byzantium", "ephesus"]
    assert not operating.requests("ApplyPlan")


def test_a_plan_reads_back_as_it_was(run: Run, operating: AnsweringNode, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert run("reassign", "--out", path, "--endpoints", operating.address).exit_code == 0
    assert not operating.requests("ApplyPlan")
    assert read_plan(path.read_bytes(), "plan.json").message == make_plan()
    result = run("apply", path, "--yes", "--reason", "ephesus is new", "--endpoints", operating.address)
    assert result.exit_code == 0
    (request,) = operating.requests("ApplyPlan")
    assert request.plan == make_plan()
    assert request.reason == "ephesus is new"
    assert re.fullmatch(r"\S+@\S+", request.requested_by)


def test_the_dry_runs_json_is_a_plan_for_apply(run: Run, operating: AnsweringNode) -> None:
    planned = run("reassign", "--dry-run", "-o", "json", "--endpoints", operating.address).stdout
    assert json.loads(planned)["minimum_moves"] == 2
    assert run("apply", "-", "--yes", "--endpoints", operating.address, input=planned).exit_code == 0
    assert operating.requests("ApplyPlan")[0].plan == make_plan()


def test_a_dry_run_of_a_plan_applies_nothing(
    run: Run, operating: AnsweringNode, status: GetStatusResponse, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    assert run("reassign", "--out", path, "--endpoints", operating.address).exit_code == 0
    options = ("apply", path, "--dry-run", "--yes", "--endpoints", operating.address)
    gone = run(*options)
    assert gone.exit_code == Exit.STALE_PLAN
    assert "flights/0 can't go to ephesus, which is not LIVE" in gone.stderr
    status.table.nodes.add(id="ephesus", state=NodeState.NODE_STATE_LIVE)
    current = run(*options)
    assert current.exit_code == 0, current.stderr
    assert "flights/0\tathens\tephesus" in current.stdout
    assert "The plan still holds. Nothing was changed (--dry-run)." in current.stderr
    status.has_clearance = False
    assert run(*options).exit_code == Exit.UNREACHABLE
    status.has_clearance = True
    status.table.partitions[1].partition_epoch = 3
    stale = run(*options)
    assert stale.exit_code == Exit.STALE_PLAN
    assert "flights/1: its epoch was 2, now it is 3" in stale.stderr
    assert not operating.requests("ApplyPlan")


@pytest.mark.parametrize(
    "options", [("PLAN", "--format", "yaml"), ("-f", "PLAN", "--reason", "so"), ("-f", "PLAN", "--limit", "0")]
)
def test_apply_refuses_options_of_the_other_kind_of_file(run: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    path = tmp_path / "feeds.yaml"
    path.write_text("pallets: []\n")
    result = run("apply", *(str(path) if one == "PLAN" else one for one in options))
    assert (result.exit_code, "go" in result.stderr) == (Exit.USAGE, True)


def test_without_a_terminal_it_asks_for_yes(run: Run, operating: AnsweringNode) -> None:
    result = run("reassign", "--endpoints", operating.address, input="y\n")
    assert result.exit_code == Exit.USAGE
    assert "--yes" in result.stderr
    assert not operating.requests("ApplyPlan")


@pytest.mark.parametrize(("answer", "applied", "code"), [("y\n", 1, 0), ("n\n", 0, 1)])
def test_on_a_terminal_it_asks(operating: AnsweringNode, answer: str, applied: int, code: int) -> None:
    ended = on_terminal("reassign", "--endpoints", operating.address, keys=answer, when="Apply this plan of 2 moves?")
    assert ended.status == code
    assert "athens has 3, ephesus none" in ended.text
    assert "Plan: 2 moves, 2 MiB. The fewest moves that could do it: 2." in ended.text
    assert "3 → 2" in ended.text
    assert len(operating.requests("ApplyPlan")) == applied


def test_nothing_to_move(run: Run, operating: AnsweringNode) -> None:
    operating.answers["PlanReassign"] = lambda _: Plan()
    result = run("reassign", "--endpoints", operating.address)
    assert result.exit_code == 0
    assert "as even as they can be" in result.stderr
    assert not operating.requests("ApplyPlan")


def test_nothing_to_move_although_not_all_is_well(run: Run, operating: AnsweringNode) -> None:
    text = "after this plan, flights/0 has fewer replicas than the 3 of keyspace flights"
    operating.answers["PlanReassign"] = Plan(notes=[text])
    result = run("reassign", "--endpoints", operating.address)
    assert (result.exit_code, result.stderr) == (0, f"{text}\nNothing to move: the notes say why.\n")
    shown = on_terminal("reassign", "--endpoints", operating.address).text
    assert (shown.count(text), "as even as they can be" in shown) == (1, False)


def test_an_operation_that_can_not_begin_yet_is_queued(run: Run, operating: AnsweringNode) -> None:
    """With --queue, minkactl says why the queued operation waits, and watches the operation until it ends."""
    queued = make_operation(OperationState.OPERATION_STATE_QUEUED)
    first_look = looks()[0]
    first_look.operations[0].CopyFrom(queued)
    first_look.blockers.add(operation_id=12, reason="operation 11 (drain athens, asked for by ann) has not ended")
    rest = looks()
    operating.answers["GetOperations"] = lambda _: rest.pop(0) if len(rest) > 1 else rest[0]
    rest.insert(0, first_look)
    operating.answers["ApplyPlan"] = lambda _: ApplyPlanResponse(operation=queued)
    result = run("reassign", "--queue", "--yes", "--endpoints", operating.address)
    assert result.exit_code == 0
    assert operating.requests("PlanReassign")[0].queue
    assert "operation 12 is queued: it begins once those before it that touch the same have ended" in result.stderr
    assert "operation 11 (drain athens, asked for by ann) has not ended" in result.stdout
    assert "operation 12 succeeded" in result.stderr


def test_a_failed_operation_is_status_1_and_says_why(run: Run, operating: AnsweringNode) -> None:
    ending(operating, looks(FAILED)[-1])
    result = run("reassign", "--yes", "--endpoints", operating.address)
    assert result.exit_code == Exit.FAILED
    assert (
        "operation 12 failed in 3.0 s: 1 of 2 partitions moved; 1 stayed: flights/1: target ephesus failed"
        in result.stderr
    )


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [(Code.STALE_PLAN, Exit.STALE_PLAN), (Code.OPERATION_RUNNING, Exit.FAILED), (Code.DAMAGED_PLAN, Exit.FAILED)],
)
def test_a_refused_plan(run: Run, operating: AnsweringNode, tmp_path: Path, code: Code, exit_code: Exit) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(to_document(make_plan())))
    operating.answers["ApplyPlan"] = MinkaError(code, "the explanation of the node")
    result = run("apply", path, "--yes", "--endpoints", operating.address)
    assert result.exit_code == exit_code
    assert result.stderr.splitlines()[-2:] == [
        f"error: {code.name}: the explanation of the node", f"  remedy: {code.info.remedy}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"{}", b"[]", b"null", b"\xff"),
        *(
            b'{"moves": 3}',
            b'{"moves": [{"bytes": "many"}]}',
            b'{"colour": 1}',
            b'{"created_ms": 18446744073709551615}',
        ),
    ],
)
def test_a_file_that_is_not_a_plan(run: Run, operating: AnsweringNode, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    result = run("apply", path, "--yes", "--endpoints", operating.address)
    assert result.exit_code == Exit.USAGE
    assert "error: INVALID_ARGUMENT: " in result.stderr
    assert "plan.json: not a plan: " in result.stderr
    assert (result.stdout, operating.asked) == ("", [])


@pytest.mark.parametrize(
    ("field", "value"),
    [("digest", ""), ("moves", []), ("rate_limit", 1), ("reason", "another"), ("table_version", 1), ("notes", ["x"])],
)
def test_a_plan_that_was_changed_is_refused_before_it_is_shown(
    run: Run, operating: AnsweringNode, tmp_path: Path, field: str, value: object
) -> None:
    document = to_document(make_plan()) | {field: value}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    for form in ("table", "json"):
        result = run("apply", path, "--yes", "-o", form, "--endpoints", operating.address)
        assert result.exit_code == (Exit.FAILED if field != "digest" else Exit.USAGE)
        assert result.stderr.startswith(f"error: {'DAMAGED_PLAN' if field != 'digest' else 'INVALID_ARGUMENT'}: ")
        assert len(result.stderr.splitlines()) == 2
        assert (result.stdout, operating.asked) == ("", [])


def test_limit_and_reason_travel_with_the_plan(run: Run, operating: AnsweringNode, tmp_path: Path) -> None:
    def planned(request: PlanReassignRequest) -> Plan:
        plan = make_plan()
        plan.reason, plan.rate_limit = request.reason, request.rate_limit
        plan.digest = plan_digest(plan)
        return plan

    operating.answers["PlanReassign"] = planned
    path, options = tmp_path / "plan.json", ("--endpoints", operating.address)
    made = run("reassign", "--limit", "5MiB", "--reason", "ephesus is new", "--out", path, *options)
    assert "At most 5 MiB/s a node. Reason: ephesus is new" in made.stderr
    shown = run("apply", path, "--yes", *options)
    assert "At most 5 MiB/s a node. Reason: ephesus is new" in shown.stderr
    run("apply", path, "--yes", "--limit", "0", "--reason", "sooner", *options)
    as_planned, otherwise = operating.requests("ApplyPlan")
    assert (as_planned.plan.reason, as_planned.plan.rate_limit) == ("ephesus is new", 5 << 20)
    assert (as_planned.reason, as_planned.HasField("rate_limit")) == ("", False)
    assert (otherwise.reason, otherwise.HasField("rate_limit"), otherwise.rate_limit) == ("sooner", True, 0)


def long_plan() -> Plan:
    """Return a plan with 48 moves of replicas from three nodes to one node, and one change of leader. The moves from
    the same node have the same reason.
    """
    plan = make_plan()
    del plan.moves[:]
    for slot in range(48):
        source = ("athens", "byzantium", "cyrene")[slot % 3]
        plan.moves.add(
            partition_id=slot + 1, partition=f"flights/{slot}", source=source, target="ephesus", partition_epoch=2,
            bytes=1 << 20, replicas=[source], target_replicas=["ephesus"],
            reason=f"{source} has 40 replicas of flights and is to have 24; ephesus has 0 and is to have 48",
        )  # fmt: skip
    plan.moves.add(
        partition_id=99, partition="crews/3", partition_epoch=2, replicas=["athens", "cyrene"],
        target_replicas=["cyrene", "athens"], reason="cyrene is to lead instead of athens; no data moves",
    )  # fmt: skip
    plan.minimum_moves = 48
    plan.digest = plan_digest(plan)
    return plan


SMALL = {"COLUMNS": "80", "LINES": "24"}


def test_a_long_plan_says_each_reason_once_and_ends_with_the_summary(operating: AnsweringNode) -> None:
    operating.answers["PlanReassign"] = lambda _: long_plan()
    ended = on_terminal("reassign", "--dry-run", "--yes", "--endpoints", operating.address, env=SMALL)
    assert ended.status == 0
    lines = plain_lines(ended.text)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert len(lines) < 45
    for node in ("athens", "byzantium", "cyrene"):
        assert text.count(f"{node} has 40 replicas of flights") == 1
    assert sorted(re.findall(r"flights/\d+", text)) == sorted(f"flights/{slot}" for slot in range(48))
    assert " ".join(text.split()).endswith(
        "Plan: 48 moves and 1 change of preferred leader, 48 MiB. The fewest moves that could do it: 48. "
        "Nothing was changed (--dry-run)."
    )
    assert text.index("ephesus") < text.index("crews/3") < text.index("NODE ") < text.index("Plan: ")
    wide = on_terminal("reassign", "--dry-run", "--yes", "-o", "wide", "--endpoints", operating.address, env=SMALL)
    assert re.search(r"flights/47 +cyrene +ephesus +1 MiB", wide.text)


def test_a_plan_of_orders_alone_moves_no_data(run: Run, operating: AnsweringNode) -> None:
    plan = long_plan()
    del plan.moves[:48]
    operating.answers["PlanReassign"] = lambda _: plan
    result = run("reassign", "--dry-run", "--endpoints", operating.address)
    assert "Plan: 1 change of preferred leader; no data moves.\n" in result.stderr


def test_a_plan_longer_than_the_screen_goes_through_the_pager(operating: AnsweringNode, tmp_path: Path) -> None:
    operating.answers["PlanReassign"] = lambda _: long_plan()
    paged = tmp_path / "paged"
    pager = tmp_path / "pager"
    pager.write_text(f'#!/bin/sh\ncat >"{paged}"\n')
    pager.chmod(0o755)
    env = {**SMALL, "PAGER": str(pager)}
    ended = on_terminal(
        "reassign", "--endpoints", operating.address, keys="n\n", when="Apply this plan of 48 moves", env=env
    )
    assert "flights/47" in paged.read_text()
    assert "flights/47" not in ended.text  # only the pager has this line
    assert "The fewest moves that could do it: 48." in " ".join(" ".join(plain_lines(ended.text)).split())
    paged.unlink()
    for quiet in ({**env, "PAGER": ""}, {**env, "LINES": "60"}):
        shown = on_terminal("reassign", "--dry-run", "--endpoints", operating.address, env=quiet)
        assert "flights/47" in shown.text
    assert "flights/47" in on_terminal("reassign", "--yes", "--endpoints", operating.address, env=env).text
    assert not paged.exists()


def test_watching_on_a_pipe_appends_what_changes(run: Run, operating: AnsweringNode) -> None:
    result = run("migrations", "watch", "12", "--endpoints", operating.address)
    assert result.exit_code == 0
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert lines[0][1:6] == ["PARTITION", "SOURCE", "TARGET", "STATE", "PHASE"]
    moving = [line for line in lines if line[1] == "flights/0"]
    assert [line[4] for line in moving] == ["copying", "copying", "copying", "completed"]
    assert [line[6] for line in moving] == ["0", str(1 << 20), str(2 << 20), str(4 << 20)]
    assert moving[2][8:11] == [str(1 << 20), "2000", "ephesus does not answer"]
    assert [line[4] for line in lines if line[1] == "flights/1"] == ["pending", "completed"]
    assert "operation 12 succeeded in 3.0 s: 2 of 2 partitions moved" in result.stderr


def test_watching_in_json_lines(run: Run, operating: AnsweringNode) -> None:
    result = run("migrations", "watch", "12", "-o", "json", "--endpoints", operating.address)
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert [document["operation"]["state"] for document in documents] == ["running"] * 3 + ["succeeded"]
    whole = documents[2]["progress"]
    assert (whole["migrations"], whole["completed"], whole["rate"]) == (2, 0, 1 << 20)
    assert (whole["bytes_done"], whole["bytes_total"]) == (2 << 20, (4 << 20) + (2 << 20))
    assert whole["eta_ms"] == 4000


def test_watching_goes_on_through_errors_that_pass() -> None:
    page = Page({}, [])
    answers: list[Page | Code] = [page, Code.NO_CONTROLLER, Code.UNREACHABLE, page, Code.UNKNOWN_OPERATION]
    said: list[str] = []

    def fetch() -> Page:
        answer = answers.pop(0)
        if isinstance(answer, Code):
            raise MinkaError(answer, "the explanation of the node")
        return answer

    pages = repeated(Session(), fetch, 0.001, said.append)
    assert [next(pages), next(pages)] == [page, page]
    assert said == ["NO_CONTROLLER: the explanation of the node; trying again", "the cluster answers again"]
    with pytest.raises(MinkaError, match="UNKNOWN_OPERATION"):
        next(pages)
    answers.append(Code.NO_CONTROLLER)
    with pytest.raises(MinkaError, match="NO_CONTROLLER"):
        next(repeated(Session(), fetch, 0.001, said.append))


def test_watching_for_too_long_is_status_124(run: Run, operating: AnsweringNode) -> None:
    ending(operating, looks()[0])
    result = run("migrations", "watch", "--timeout", "0.3", "--endpoints", operating.address)
    assert result.exit_code == Exit.TIMEOUT
    assert "error: DEADLINE_EXCEEDED: watched for 0.3 s\n  remedy: What was watched goes on: " in result.stderr


def test_ctrl_c_leaves_the_operation_running_and_says_so(operating: AnsweringNode) -> None:
    ending(operating, looks()[1])
    ended = on_terminal("reassign", "--yes", "--endpoints", operating.address, keys="\x03", when="copying")
    assert ended.status == Exit.INTERRUPTED
    assert "operation 12 goes on; watch it again with: minkactl migrations watch 12" in ended.text
    assert "Traceback" not in ended.text


def test_a_terminal_sees_bars_rates_and_what_blocks(operating: AnsweringNode) -> None:
    ended = on_terminal("migrations", "watch", "--endpoints", operating.address)
    assert ended.status == 0
    for text in ("0 of 2 migrations done", "athens → ephesus", "(ship)", "ephesus does not answer", "1 MiB/s", "━"):
        assert text in ended.text
    assert "operation 12 succeeded" in ended.text


def test_reasons_are_told_once_and_a_long_table_is_cut() -> None:
    from rich.console import Console

    from minkactl.render import migrations

    look = looks(FAILED)[-1]
    for number in range(100):
        migration = look.migrations.add()
        migration.CopyFrom(look.migrations[1])
        migration.partition_id, migration.outcome = 100 + number, "ephesus failed"
    (document,) = Tracker({}, {}).documents(look)
    console = Console(width=120, height=30)
    with console.capture() as captured:
        console.print(migrations.migrations(document))
    text = captured.get()
    assert "✗ 100, 101, 102 and 97 more cancelled: ephesus failed" in text
    assert text.count("ephesus failed") == 1
    assert "… and " in text
    assert len(text.splitlines()) < 40


def test_listing(run: Run, operating: AnsweringNode) -> None:
    ending(operating, looks()[-1])
    result = run("migrations", "--endpoints", operating.address)
    operations, migrations = (part.splitlines() for part in result.stdout.split("\n\n"))
    assert operations[1].split("\t")[:5] == ["12", "reassign", "succeeded", "2", "ann@host"]
    assert [line.split("\t")[1] for line in migrations[1:]] == ["flights/0", "flights/1"]
    document = json.loads(run("migrations", "-o", "json", "--operation", "12", "--endpoints", operating.address).stdout)
    assert document[0]["migrations"][0]["state"] == "completed"
    assert operating.requests("GetOperations")[-1].ids == [12]


def test_no_operation_yet(run: Run, operating: AnsweringNode) -> None:
    ending(operating, GetOperationsResponse())
    assert run("migrations", "-o", "json", "--endpoints", operating.address).stdout == "[]\n"
    watched = run("migrations", "watch", "--endpoints", operating.address)
    assert (watched.exit_code, watched.stdout) == (0, "")
    assert "No operation yet" in watched.stderr


def test_a_transfer_that_starts_again_has_no_negative_rate() -> None:
    tracker = Tracker({1: "flights/0", 2: "flights/1"}, {})
    _, before, after, _ = looks()
    after.progress[0].bytes_done = 0
    tracker.documents(before)
    row = tracker.documents(after)[0]["migrations"][0]
    assert (row["rate"], row["eta_ms"], row["bytes_done"]) == (None, None, 0)


def test_documents_refuse_what_they_do_not_know() -> None:
    document = to_document(make_plan())
    assert from_document(document, Plan()) == make_plan()
    for wrong in ({**document, "digests": ""}, {**document, "kind": "swap"}, {**document, "table_version": -1}):
        with pytest.raises(MinkaError):
            from_document(wrong, Plan())
