"""minkactl shows and applies plans that move duties, and shows which shards delay a drain. The server gives prepared
answers.
"""

import json
from pathlib import Path

from minka.cluster.plan_digest import plan_digest
from minka.v1.admin_pb2 import (
    ApplyPlanResponse,
    DrainNodeResponse,
    GetDrainStatusResponse,
    GetOperationsResponse,
    Move,
    Plan,
    ShardBalance,
    ShardsOnNode,
    UndrainNodeResponse,
)
from minka.v1.cluster_pb2 import DrainOperation, Migration, MigrationState, NodeState, Operation, OperationState
from minka.v1.duties_pb2 import Assignment, Duty, Shard
from minka.v1.duty_api_pb2 import DutyMoved, DutyStatus, GetDutiesResponse, GetShardsResponse, ShardStatus
from minkactl.exits import Exit
from tests.cli.conftest import AnsweringNode, Run, make_operation, on_terminal, plain_lines


def make_duty_plan() -> Plan:
    """Return a plan that moves two duties of the pallet `feeds` from fetcher-1 to fetcher-2. fetcher-2 has stated no
    capacity.
    """
    plan = Plan(cluster_id="c-1", table_version=128, created_ms=1_700_000_000_000, minimum_moves=2, pallet="feeds")
    for number, name in ((7, "bbc"), (9, "ft")):
        plan.moves.append(
            Move(
                duty=number, partition=f"feeds/{name}", source="fetcher-1", target="fetcher-2", weight=5, duty_epoch=3,
                reason="fetcher-1 has 2 duties more than fetcher-2",
            )
        )  # fmt: skip
    plan.shards.append(ShardBalance(shard="fetcher-1", duties_before=4, duties_after=2, weight_before=20, capacity=0))
    plan.shards.append(ShardBalance(shard="fetcher-2", duties_after=2, weight_after=10))
    plan.digest = plan_digest(plan)
    return plan


def written(run: Run, node: AnsweringNode, tmp_path: Path) -> Path:
    """Let `minkactl pallet rebalance` write the plan to a file, and return the file."""
    node.answers["PlanRebalance"] = make_duty_plan()
    file = tmp_path / "plan.json"
    result = run("pallet", "rebalance", "feeds", "--out", file, "--endpoints", node.address)
    assert result.exit_code == 0, result.stderr
    return file


def test_a_plan_is_applied_exactly(run: Run, node: AnsweringNode, tmp_path: Path) -> None:
    file = written(run, node, tmp_path)
    done = make_operation(OperationState.OPERATION_STATE_SUCCEEDED, finished_ms=1_700_000_002_000)
    moved = [
        Migration(operation_id=12, duty=number, source="fetcher-1", target="fetcher-2",
                  state=MigrationState.MIGRATION_STATE_COMPLETED, finished_ms=1_700_000_002_000)
        for number in (7, 9)
    ]  # fmt: skip
    node.answers["ApplyPlan"] = ApplyPlanResponse(operation=done)
    node.answers["GetOperations"] = GetOperationsResponse(
        operations=[done], migrations=moved, duty_names={7: "feeds/bbc"}, now_ms=1_700_000_002_000
    )
    result = run("apply", file, "--yes", "--endpoints", node.address)
    assert result.exit_code == 0, result.stderr
    assert node.requests("ApplyPlan")[0].plan == make_duty_plan()
    assert "feeds/bbc\tfetcher-1\tfetcher-2\t5\tfetcher-1 has 2 duties more than fetcher-2" in result.stdout
    assert "fetcher-2\t0\t2\t0\t10\t-" in result.stdout
    assert "Plan: 2 moves of feeds, weight 10. The fewest: 2." in result.stderr
    assert "12\tfeeds/bbc\tfetcher-1\tfetcher-2\tcompleted" in result.stdout
    assert "12\tduty 9\t" in result.stdout


def test_a_dry_run_looks_for_the_duties(run: Run, node: AnsweringNode, tmp_path: Path) -> None:
    file = written(run, node, tmp_path)
    held = [DutyStatus(duty=Duty(number=n), assignments=[Assignment(shard="fetcher-1", epoch=3)]) for n in (7, 9)]
    node.answers["GetDuties"] = lambda _: GetDutiesResponse(duties=held)
    node.answers["GetShards"] = GetShardsResponse(shards=[ShardStatus(shard=Shard(name="fetcher-2"))])
    options = ("apply", file, "--dry-run", "--yes", "--endpoints", node.address)
    current = run(*options)
    assert current.exit_code == Exit.OK, current.stderr
    held[1].assignments[0].epoch = 4
    assert "feeds/ft is no longer on fetcher-1 with epoch 3" in run(*options).stderr
    node.answers["GetShards"] = GetShardsResponse()
    held[1].assignments[0].epoch = 3
    assert run(*options).exit_code == Exit.STALE_PLAN
    assert not node.requests("ApplyPlan")


def test_a_terminal_shows_the_shards(node: AnsweringNode) -> None:
    node.answers["PlanRebalance"] = make_duty_plan()
    ended = on_terminal("pallet", "rebalance", "feeds", "--dry-run", "--endpoints", node.address)
    lines = [line.split() for line in plain_lines(ended.text)]
    assert ["fetcher-1", "→", "fetcher-2", "2", "moves,", "weight", "10"] in lines
    assert ["feeds/bbc", "feeds/ft"] in lines
    assert ["fetcher-1", "4", "→", "2", "-2", "20", "→", "0", "0"] in lines
    assert ["fetcher-2", "0", "→", "2", "+2", "0", "→", "10", "-"] in lines


def test_a_drain_says_what_shards_still_hold(run: Run, node: AnsweringNode) -> None:
    node.answers["UndrainNode"] = UndrainNodeResponse()
    node.answers["GetDrainStatus"] = GetDrainStatusResponse(
        state=NodeState.NODE_STATE_LIVE, replicas=9, shards=[ShardsOnNode(shard="fetcher-1", duties=30)]
    )
    result = run("undrain", "cyrene", "-o", "json", "--endpoints", node.address)
    assert json.loads(result.stdout)["shards"] == [{"shard": "fetcher-1", "duties": 30}]
    assert result.exit_code == Exit.OK


def test_a_drain_that_fails_says_whose_duties_are_left(run: Run, node: AnsweringNode) -> None:
    failed = Operation(
        id=12, drain=DrainOperation(node="cyrene"), state=OperationState.OPERATION_STATE_FAILED,
        created_ms=1_700_000_001_000, finished_ms=1_700_000_002_000,
    )  # fmt: skip
    node.answers["DrainNode"] = DrainNodeResponse(operation=failed)
    node.answers["GetOperations"] = GetOperationsResponse(operations=[failed], now_ms=1_700_000_002_000)
    node.answers["GetDrainStatus"] = GetDrainStatusResponse(
        state=NodeState.NODE_STATE_DRAINING, shards=[ShardsOnNode(shard="fetcher-1", duties=1)]
    )
    result = run("drain", "cyrene", "--endpoints", node.address)
    assert result.exit_code == Exit.FAILED
    assert "  shard fetcher-1 on this machine still has 1 duty\nsafe to stop: no\n" in result.stderr
    assert "SHARD ON IT\tDUTIES\nfetcher-1\t1" in result.stdout


def test_equal_moves_are_one_row_on_a_terminal(run: Run, node: AnsweringNode) -> None:
    ways = [("a", "one", "two"), ("b", "one", "two"), ("c", "one", "two"), ("d", "one", "three"), ("e", "one", "two")]
    node.answers["GetShards"] = GetShardsResponse(
        moves=[DutyMoved(pallet="feeds", id=name, source=source, target=to, reason="why") for name, source, to in ways]
    )
    lines = [line.split() for line in plain_lines(on_terminal("shards", "--endpoints", node.address).text)]
    assert [line[-6:] for line in lines if line[-1:] == ["why"]] == [
        ["and", "3", "more", "one", "two", "why"],
        ["-", "feeds/d", "one", "three", "why"],
    ]
    rows = run("shards", "--endpoints", node.address).stdout.splitlines()
    assert [row.split("\t")[1] for row in rows if row.endswith("why")] == [f"feeds/{name}" for name in "abcde"]
