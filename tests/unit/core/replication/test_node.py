"""The one door to the replicas of a node: every event ends with its instructions handed out, in their order."""

import ast
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

import minkad
from minka.errors import Code
from minkad.core.replication.instructions import Apply, Changed, Instruction, Level, Report, Send, Sync
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Applying, ReplicaState
from tests import strict_replicas
from tests.unit.core.replication.bench import Bench, MemoryData, a_write, leader_of, row


def test_instructions_of_an_event_that_comes_meanwhile_are_carried_out_after_the_present_ones() -> None:
    bench = Bench()
    outer, _ = bench.host(row(1)), bench.host(row(2, ("athens",)))
    bench.sync(outer)
    bench.align(outer, "byzantium", "cyrene")
    bench.take_all()
    carried_out: list[Instruction] = []

    def carry_out(instruction: Instruction) -> None:
        if not carried_out:
            bench.node.append(bench.hosted(2), a_write())
        carried_out.append(instruction)

    bench.node.carry_out = carry_out
    bench.write(outer)
    assert carried_out == [
        Sync(1, on_disk=False),
        *(Send(progress) for progress in leader_of(outer).progress.values()),
        Sync(2, on_disk=False),
    ]


def test_an_event_whose_instruction_fails_leaves_the_door_open() -> None:
    bench = Bench()
    replica = bench.host(row(1, ("athens",)))
    bench.take_all()

    def fail(_: Instruction) -> None:
        raise ZeroDivisionError

    handed_out: list[Instruction] = []
    bench.node.carry_out = fail
    with pytest.raises(ZeroDivisionError):
        bench.write(replica)
    bench.node.carry_out = handed_out.append
    bench.write(replica)
    assert Sync(1, on_disk=False) in handed_out


def test_the_instructions_after_one_that_fails_are_carried_out_with_the_next_event() -> None:
    bench = Bench()
    replica = bench.host(row(1, ("athens",)))
    bench.take_all()

    def fail(_: Instruction) -> None:
        bench.node.carry_out = carry_out
        raise ZeroDivisionError

    carry_out, bench.node.carry_out = bench.node.carry_out, fail
    with pytest.raises(ZeroDivisionError):
        bench.adopt(replica)  # the shell fails to carry out RowAdopted, the first instruction
    bench.write(replica)
    kinds = [type(one) for one in bench.take_all()]
    assert kinds.index(Changed) < kinds.index(Sync)


def test_a_daemon_condemns_a_replica_whose_state_can_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node goes on with its other replicas."""
    monkeypatch.setattr(Node, "condemn", strict_replicas.condemn)
    monkeypatch.setattr(ReplicaState, "violated", lambda self: "a rule" if self.id == 1 else "")
    bench = Bench()
    replica = bench.host(row(1, ("athens",)))
    bench.write(bench.host(row(2, ("athens",))))
    damage = cast("MemoryData", replica.data).damage
    assert damage is not None
    assert damage.code is Code.CORRUPT_DATA
    assert "a rule" in str(damage)
    (first, *_) = bench.take(Report)
    assert first.level is Level.ERROR
    assert bench.hosted(2).state.high_watermark == 0
    assert cast("MemoryData", bench.hosted(2).state.data).damage is None


@pytest.mark.parametrize("replace", [ReplicaState.put_data, ReplicaState.put_empty_data])
def test_the_end_of_a_mark_on_data_that_was_replaced_changes_nothing(
    replace: Callable[[ReplicaState, MemoryData], None],
) -> None:
    """Carrying a mark out may take long, and a checkpoint may come meanwhile, with marks after it."""
    bench = Bench()
    replica, hosted = bench.host(row(1, ("athens",))), bench.hosted(1)
    former, new = replica.data, MemoryData()
    seen: list[Applying] = []
    bench.node.mark_begun(hosted, 0.0)
    replace(replica, new)
    seen.append(replica.applying)
    bench.node.mark_begun(hosted, 0.0)
    for data in former, new:
        bench.node.mark_ended(hosted, data, 0.0, is_passed=True)
        seen.append(replica.applying)
    assert seen == [Applying.IDLE, Applying.AT_MARK, Applying.IDLE]


def test_a_finished_sync_says_what_can_be_applied() -> None:
    bench = Bench()
    replica = bench.host(row(1, ("athens",)))
    bench.write(replica)
    bench.take_all()
    hosted = bench.hosted(1)
    due = bench.node.stored({hosted: (replica.log.end, replica.log.truncations)}, 0.0, on_disk=True)
    assert due == [hosted]
    assert bench.take(Apply) == [], "it isn't handed out a second time"


def test_the_fields_that_decide_what_a_replica_has_are_written_in_one_file() -> None:
    fields = {"copy", "data", "applying", "high_watermark", "applied", "durable", "flushed"}
    root = Path(minkad.__file__).parent
    writers: dict[str, set[str]] = defaultdict(set)
    for path in [*root.glob("core/replication/*.py"), *root.glob("replication/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                for one in ast.walk(target) if isinstance(target, ast.AST) else ():
                    if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and one.attr in fields:
                        writers[one.attr].add(path.relative_to(root).as_posix())
    assert writers == {field: {"core/replication/replica_state.py"} for field in fields}
