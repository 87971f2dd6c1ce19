"""The examples of code in CONTRIBUTING.md work."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from minka.errors import Code
from minka.v1.admin_pb2 import CancelOperationRequest
from minka.v1.cluster_pb2 import OperationState
from minkad.core.controller import operation_kinds
from minkad.core.controller.balancer import View
from minkad.core.controller.drains import DrainNode
from tests.unit.core.model import Controller, led_by_others, refused

_TEXT = Path(__file__).parents[3].joinpath("CONTRIBUTING.md").read_text("utf-8")


def shown(path: str) -> str:
    """Return the content of the file that CONTRIBUTING.md's diff for this path would make."""
    (block,) = (block for block in re.findall(r"```diff\n(.*?)```", _TEXT, re.DOTALL) if f"+++ {path}\n" in block)
    return "".join(line[1:] for line in block.splitlines(keepends=True)[2:])


def module(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(compile(source, name, "exec"), made.__dict__)  # noqa: S102 - our own page
    return made


def test_the_balancer_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    source = shown("minkad/core/controller/leader_balancer.py")
    balancer = module("leader_balancer", source, monkeypatch).LeaderBalancer()
    c = led_by_others()
    command = balancer.due(View(c.state, list, 100.0))
    assert balancer.due(View(c.state, list, 159.0)) is None
    c.run(command)
    c.settle()
    assert all(row.leader == row.replicas[0] for row in c.state.partitions.values())
    assert balancer.due(View(c.state, list, 160.0)) is None


def test_the_kind_of_operation_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proto has no field for the operation of the example, so the test uses the field of another operation."""
    source = shown("minkad/core/controller/holds.py")
    for its_own, other in (
        ("HoldOperation", "DrainOperation"),
        ("hold=", "drain="),
        ("operation.hold.", "operation.drain."),
    ):
        source = source.replace(its_own, other)
    holds = module("holds", source, monkeypatch)
    c = Controller()
    c.register("athens", "byzantium")
    with monkeypatch.context() as patch:
        patch.setattr(operation_kinds, "OPERATION_KINDS", {**operation_kinds.OPERATION_KINDS, "drain": holds.Holds()})
        with refused(Code.UNKNOWN_NODE):
            c.run(holds.HoldNode("delphi", "ann"))
        c.run(holds.HoldNode("athens", "ann"))
        c.settle()
        with pytest.raises(
            Exception, match=r"operation 1 \(hold athens, asked for by ann\) has not ended, and both drain"
        ):
            c.run(holds.HoldNode("athens", "bob"))
        c.run(CancelOperationRequest(id=1, requested_by="ann", reason=""))
        c.settle()
        assert c.operation(1).state == OperationState.OPERATION_STATE_CANCELLED
        assert c.operation(1).outcome.startswith("athens was held")
    c.run(DrainNode("athens", False, "bob", "", {}))
