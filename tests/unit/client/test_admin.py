"""`Admin` and `Client.plan_rebalance` against real gRPC servers: what they refuse, and what they send."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from minka.admin import Admin, Code, MinkaError, Plan
from minka.duties import Client
from minka.v1 import admin_pb2, cluster_pb2
from tests.unit.client.conftest import ControlNode

Start = Callable[[], ControlNode]
MOVES = [admin_pb2.Move(partition=f"flights/{slot}", source="athens", target="cyrene") for slot in range(2)]
PLAN = admin_pb2.Plan(digest="4711", created_ms=1_700_000_000_000, moves=MOVES, reason="a new disk")
EDITS: list[dict[str, Any]] = [{"moves": ()}, {"rate_limit": 200_000}, {"reason": "mine"}, {"queued": True}]


@pytest.mark.parametrize("edit", EDITS, ids=str)
@pytest.mark.parametrize("of", ["replicas", "duties"])
def test_an_edited_plan_is_refused(control_node: Start, of: str, edit: dict[str, Any]) -> None:
    node = control_node()
    node.answers |= {"PlanReassign": PLAN, "PlanRebalance": PLAN}
    with Admin([node.address]) as admin, Client([node.address]) as duties:
        plan = admin.plan_reassign() if of == "replicas" else duties.plan_rebalance("feeds")
        node.asked.clear()
        with pytest.raises(MinkaError, match=f"edited since it was made: {next(iter(edit))}") as refusal:
            admin.apply(dataclasses.replace(plan, **edit))
    assert refusal.value.code is Code.DAMAGED_PLAN
    assert node.asked == []


def test_a_plan_is_applied_as_it_was_made(control_node: Start) -> None:
    node = control_node()
    node.answers["PlanReassign"] = PLAN
    node.answers["ApplyPlan"] = admin_pb2.ApplyPlanResponse(operation=cluster_pb2.Operation(id=7, created_ms=1))
    with Admin([node.address]) as admin:
        plan: Plan = admin.plan_reassign()
        assert admin.apply(plan, rate_limit=5).id == 7
        for other in (plan.message, "a plan", None):
            with pytest.raises(MinkaError, match="not a minka.admin.Plan"):
                admin.apply(other)  # type: ignore[arg-type]
    assert [request.plan for method, request in node.asked if method == "ApplyPlan"] == [PLAN]
