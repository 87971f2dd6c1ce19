"""The active controller on its event loop. Its proposals are committed at once, and nodes answer like real ones."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from minka.errors import Code, MinkaError, newer_rows
from minka.v1.cluster_pb2 import HashFunction, Node, NodeState, OperationState, PartitionState
from minka.v1.coordinator_pb2 import (
    AlterIsrRequest,
    HandOverRequest,
    HeartbeatRequest,
    IsrChange,
    ReplicaStats,
)
from minka.v1.duties_pb2 import Shard
from minka.v1.records_pb2 import Record
from minkad.coordinator import active_controller
from minkad.coordinator.controller_settings import ControllerSettings
from minkad.core.controller.decision import Decision, Steps
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.load_balancer import SpreadLoad
from minkad.core.controller.membership import FailNodes
from minkad.core.controller.mover import MigrationCaps
from minkad.core.state import State, is_up
from tests.unit.coordinator.controller_harness import SETTINGS, STEP, Harness, until


async def test_alter_isr_answers_each_change_separately() -> None:
    h = Harness()
    await h.begin("a", "b", "c", replicas=3)
    mine = next(p for p in h.state.partitions.values() if p.leader == "a")
    other = next(p for p in h.state.partitions.values() if p.leader != "a")

    def change(partition_id: int, epoch: int) -> IsrChange:
        return IsrChange(partition_id=partition_id, leader_epoch=1, partition_epoch=epoch, isr=["a", "b"])

    changes = [change(mine.id, mine.partition_epoch), change(other.id, other.partition_epoch), change(99, 1)]
    answer = await h.controller.run(AlterIsrRequest(node_id="a", changes=changes))
    assert [(r.partition_id, r.error) for r in answer.results] == [
        (mine.id, ""),
        (other.id, "NOT_LEADER"),
        (99, "UNKNOWN_PARTITION"),
    ]
    assert [list(r.partition.isr) for r in answer.results[:1]] == [["a", "b"]]
    assert answer.results[1].partition == h.state.partitions[other.id]
    assert not answer.results[2].HasField("partition")
    again = await h.controller.run(AlterIsrRequest(node_id="a", changes=changes[:1]))
    assert again.results[0].error == "STALE_EPOCH"
    with pytest.raises(MinkaError) as refusal:
        await h.controller.run(AlterIsrRequest(node_id="z", changes=changes))
    assert refusal.value.code is Code.NOT_REGISTERED
    h.controller.close()


async def test_a_refusal_waits_until_the_rows_in_it_are_recorded() -> None:
    h = Harness()
    await h.begin("a", "b", replicas=2)
    row = next(p for p in h.state.partitions.values() if p.leader == "a")
    change = IsrChange(
        partition_id=row.id, leader_epoch=row.leader_epoch, partition_epoch=row.partition_epoch, isr=["a"]
    )
    h.hold()
    shrinks = asyncio.create_task(h.controller.run(AlterIsrRequest(node_id="a", changes=[change])))
    hands_over = asyncio.create_task(
        h.controller.run(
            HandOverRequest(node_id="a", partition_id=row.id, partition_epoch=row.partition_epoch, target="b")
        )
    )
    await until(lambda: bool(h.held))
    await h.look_around()
    assert not hands_over.done()
    h.release()
    with pytest.raises(MinkaError) as refusal:
        await hands_over
    assert newer_rows(refusal.value) == (h.state.partitions[row.id],)
    await shrinks
    h.controller.close()


async def test_a_migration_without_progress_is_cancelled_with_its_reason() -> None:
    h = Harness()
    await h.begin("a", replicas=1)
    await h.register("b")
    operation = await h.reassign()
    await until(lambda: any(p.adding_replicas for p in h.state.partitions.values()))
    await h.look_around()
    h.now += 59
    await h.look_around()
    assert h.state.operations[operation].state == OperationState.OPERATION_STATE_RUNNING
    h.now += 2
    await until(lambda: h.state.operations[operation].state == OperationState.OPERATION_STATE_FAILED)
    assert "no progress for 60 s" in h.state.operations[operation].outcome
    assert not any(p.adding_replicas for p in h.state.partitions.values())
    h.controller.close()


async def test_a_reloaded_setting_holds_for_the_controller_that_runs() -> None:
    h = Harness()
    await h.begin("a", replicas=1)
    await h.register("b")
    operation = await h.reassign()
    await until(lambda: any(p.adding_replicas for p in h.state.partitions.values()))
    await h.look_around()
    h.controller.settings = replace(SETTINGS, stall_timeout=5.0)
    h.now += 6
    await until(lambda: h.state.operations[operation].state == OperationState.OPERATION_STATE_FAILED)
    assert "no progress for 5 s" in h.state.operations[operation].outcome
    h.controller.close()


async def test_a_busy_node_gives_up_a_leadership() -> None:
    """The controller acts on the leaders' reports of a high load once the load has lasted for a while."""
    h = Harness()
    await h.begin("a", "b", "c", replicas=3)
    nothing = HashFunction.HASH_FUNCTION_UNSPECIFIED
    await h.controller.run(CreateKeyspace("authors", 0, nothing, 3, split_points=[b"k"], max_ops=100))
    await until(lambda: all(p.state == PartitionState.PARTITION_STATE_ONLINE for p in h.state.partitions.values()))
    low, high = (p for p in h.state.partitions.values() if p.start_key or p.end_key)
    await h.controller.run(
        SpreadLoad(high.id, [low.leader, *(n for n in high.replicas if n != low.leader)], "", "", "test")
    )
    await until(lambda: h.state.partitions[high.id].successor == low.leader)
    await h.controller.run(
        HandOverRequest(
            node_id=high.leader,
            partition_id=high.id,
            partition_epoch=h.state.partitions[high.id].partition_epoch,
            target=low.leader,
        )
    )
    await until(lambda: not h.state.running_operations())
    stats = [ReplicaStats(partition_id=p.id, ops=1000) for p in (low, high)]
    h.controller.heartbeat(HeartbeatRequest(node_id=low.leader, incarnation="1", replicas=stats))
    await h.look_around()
    h.now += 2
    await h.look_around()
    h.now += 4
    await h.look_around()
    assert not h.state.running_operations()
    h.now += 2
    await until(lambda: bool(h.state.running_operations()))
    (operation,) = h.state.running_operations()
    assert operation.automatic
    assert "has 1,000 operations a second" in operation.reason
    h.controller.close()


async def test_a_new_controller_completes_a_creation_that_its_predecessor_began() -> None:
    first = Harness()
    await first.begin("a", "b", "c", replicas=3)
    first.controller.close()
    state = State.from_snapshot(first.state.to_snapshot())
    for row in list(state.partitions.values()):  # rows as the first of the creation's two records made them
        new = type(row)()
        new.CopyFrom(row)
        new.ClearField("isr")
        new.leader, new.leader_epoch, new.state = "", 0, PartitionState.PARTITION_STATE_NEW
        state.partitions.put(new)
    second = Harness(state)
    await until(lambda: all(p.state == PartitionState.PARTITION_STATE_ONLINE for p in state.partitions.values()))
    assert all(len(p.isr) == 3 for p in state.partitions.values())
    second.controller.close()


# Verdicts on silent nodes: the failure timeout is 0.8 s

JUDGING = ControllerSettings(0.6, 0.8, 60.0, MigrationCaps(4, 32))


def quick(monkeypatch: pytest.MonkeyPatch, raft_id: int) -> Harness:
    """A harness whose controller looks for silent nodes as soon as a test has moved its clock."""
    monkeypatch.setattr(active_controller, "TICK", 0.001)
    monkeypatch.setattr(active_controller, "LOOK_INTERVAL_S", 0.001)
    h = Harness(settings=JUDGING, raft_id=raft_id)
    h.controller.detector.tick = h.controller.shards.detector.tick = STEP
    return h


async def judge(monkeypatch: pytest.MonkeyPatch, *, raft_id: int = 0) -> Harness:
    """A harness whose controller has heard all five nodes. `raft_id=1`: the controller is on the first node."""
    h = quick(monkeypatch, raft_id)
    await h.begin("a", "b", "c", "d", "e", replicas=3)
    await h.pass_time(1.0)
    return h


def failed(h: Harness) -> list[str]:
    return [node.id for node in h.state.nodes.values() if node.state == NodeState.NODE_STATE_FAILED]


async def test_one_of_two_processes_that_register_the_same_shard_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    h = await judge(monkeypatch)
    await h.pass_time(8.0)
    h.hold()
    shards = [Shard(name="s", incarnation=incarnation) for incarnation in ("1", "2")]
    asked = [asyncio.create_task(h.controller.shards.register(shard)) for shard in shards]
    await h.look_around()
    h.release()
    first, second = await asyncio.gather(*asked, return_exceptions=True)
    assert first is None
    assert isinstance(second, MinkaError)
    assert second.code is Code.SHARD_NAME_TAKEN
    assert h.state.duties.shards["s"].incarnation == "1"
    h.controller.close()


async def test_nodes_that_fall_silent_together_are_failed_by_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    h = await judge(monkeypatch)
    await h.pass_time(0.75, "b", "c")
    assert failed(h) == []
    del h.batches[:]
    await h.pass_time(0.1, "b", "c")
    await until(lambda: failed(h) == ["b", "c"])
    first = next(batch for batch in h.batches if any(r.HasField("node_changed") for r in batch.records))
    assert [r.node_changed.id for r in first.records if r.HasField("node_changed")] == ["b", "c"]
    assert not [p for p in h.state.partitions.values() if p.leader in ("b", "c", "")]
    h.controller.close()


async def test_a_controller_ends_if_one_of_its_tasks_dies(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    h = await judge(monkeypatch)

    def die() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(h.controller, "_before_tick", die)
    await until(lambda: h.controller.failed)
    assert "a task failed" in caplog.text
    h.controller.close()


async def test_a_controller_ends_after_a_bug_in_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state may then have records that are never proposed, so it must not decide anything by this state."""
    h = Harness()
    await h.begin("a", "b", replicas=2)

    def steps() -> Steps[None]:
        yield [Record(node_changed=Node(id="c", raft_id=9))]
        raise ZeroDivisionError

    monkeypatch.setattr(h.controller, "_decide", lambda command: Decision(steps(), is_atomic=True))
    with pytest.raises(ZeroDivisionError):
        await h.controller.run(FailNodes({}))
    assert h.controller.failed
    with pytest.raises(MinkaError) as caught:
        await h.controller.run(FailNodes({}))
    assert caught.value.code is Code.NOT_CONTROLLER
    h.controller.close()


async def test_a_command_ends_before_the_next_one_even_if_its_caller_is_cancelled_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = Harness()
    await h.begin("a", replicas=1)
    order: list[str] = []

    def steps(name: str) -> Steps[None]:
        for number in range(100):
            order.append(f"{name} {number}")
            yield []  # after each piece, other tasks get a turn

    decide = h.controller._decide
    monkeypatch.setattr(
        h.controller,
        "_decide",
        lambda command: Decision(steps(command), is_atomic=True) if isinstance(command, str) else decide(command),
    )
    first = asyncio.create_task(h.controller.run(cast(Any, "first")))
    while not order:  # noqa: ASYNC110  # the state of the whole, which sets no event
        await asyncio.sleep(0)
    second = asyncio.create_task(h.controller.run(cast(Any, "second")))
    for _ in range(2):
        first.cancel()
        await asyncio.sleep(0)
    assert len(order) < 100, "the command is under way"
    await asyncio.wait([first, second])
    assert order == [f"{name} {number}" for name in ("first", "second") for number in range(100)]
    h.controller.close()


async def test_an_active_controller_does_not_fail_its_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    h = await judge(monkeypatch, raft_id=1)
    assert h.state.nodes["a"].raft_id == 1
    await h.pass_time(10.0, "a")
    assert failed(h) == []
    h.controller.close()


async def test_a_controller_that_can_not_confirm_that_it_leads_fails_no_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While this controller paused, the nodes may have elected another one."""
    h = await judge(monkeypatch)
    h.confirms = False
    await h.pass_time(2.0, "b")
    assert failed(h) == []
    h.confirms = True
    await h.pass_time(STEP, "b")
    await until(lambda: failed(h) == ["b"])
    h.controller.close()


async def test_a_controller_that_stood_still_fails_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    h = await judge(monkeypatch)
    for pause in (0.92, 6.0, 60.0):
        h.now += pause
        await h.look_around()
        await h.pass_time(0.5)
    assert failed(h) == []
    h.controller.close()


async def test_only_the_former_leader_is_failed_early_by_a_new_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The votes prove that no voter has heard the former leader for 0.7 s. So the controller fails the former leader
    soon, but gives the other nodes time to find the new controller.
    """
    h = await judge(monkeypatch)
    h.controller.close()
    second = Harness(h.state, JUDGING, raft_id=2, former=1, silent_for=0.7)
    second.controller.detector.tick = STEP
    await second.pass_time(0.1, *"abcde")
    assert failed(second) == [], "the former leader gets a moment to send a heartbeat"
    await second.pass_time(0.1, *"abcde")
    await until(lambda: failed(second) == ["a"])
    await second.pass_time(1.0, *"ab")
    assert failed(second) == ["a"]
    second.controller.close()


async def test_a_node_is_not_failed_before_its_registration_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the answer to its registration, a node sends no heartbeat. The answer takes long if the disks of a quorum
    are slow.
    """
    h = await judge(monkeypatch)
    await h.pass_time(1.0, "c")
    await until(lambda: failed(h) == ["c"])
    h.hold()
    registers = asyncio.create_task(h.controller.register(Node(id="c", data_id="c", incarnation="2")))
    await until(lambda: bool(h.held))
    await h.pass_time(2.0, "c")
    h.release()
    await registers
    await h.pass_time(0.7, "c")
    assert failed(h) == []
    await h.pass_time(0.2, "c")
    await until(lambda: failed(h) == ["c"])
    h.controller.close()


NOT_ANSWERED = "no answer"


class Watched:
    """Four nodes, with the controller on `a`. The node `silent` sends heartbeats, but its data port doesn't answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.h = quick(monkeypatch, raft_id=1)
        self.silent = ""
        self.without_clearance = True
        self.sequence = 0
        self.answered: dict[str, int] = {}  # by node: the sequence number of its last heartbeat

    async def begin(self) -> None:
        await self.h.begin("a", "b", "c", "d", replicas=3)
        await self.beats(1.0)  # the controller counts reports about a new process only after a while

    async def beats(self, seconds: float) -> None:
        """Send heartbeats of all nodes that are up, every 50 ms."""
        for _ in range(round(seconds / STEP)):
            self.h.now += STEP
            for node in [node for node in self.h.state.nodes.values() if is_up(node)]:
                self.beat(node.id)
            await self.h.look_around()

    def beat(self, node: str) -> str:
        """Send a heartbeat of the node. Returns the reason for which the answer grants no clearance, or ""."""
        self.sequence += 1
        request = HeartbeatRequest(node_id=node, incarnation="1", sequence=self.sequence)
        request.answered_sequence = self.answered.get(node, 0)
        self.answered[node] = self.sequence
        if self.silent:
            request.unanswered.add(node_id=self.silent, reason=NOT_ANSWERED)
            request.without_clearance = self.without_clearance and node == self.silent
        return self.h.controller.heartbeat(request).withheld

    def state(self, node: str) -> NodeState.ValueType:
        return self.h.state.nodes[node].state


async def test_a_node_with_a_dead_data_port_is_failed_once_it_has_given_up_its_clearance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    await watched.begin()
    watched.silent = "c"
    await watched.beats(0.2)
    row = watched.h.state.nodes["c"]
    assert row.state == NodeState.NODE_STATE_FAILED
    assert row.state_reason == "its data port  does not answer a, b, d and the node itself (no answer)"
    assert not any(p.leader == "c" for p in watched.h.state.partitions.values())
    watched.h.controller.close()


async def test_a_node_with_a_dead_data_port_that_may_hold_a_clearance_is_failed_like_a_silent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    watched.without_clearance = False
    await watched.begin()
    watched.silent = "c"
    await watched.beats(0.7)
    assert watched.state("c") == NodeState.NODE_STATE_LIVE
    assert watched.beat("c"), "it gets no clearance"
    await watched.beats(0.3)
    assert watched.state("c") == NodeState.NODE_STATE_FAILED
    watched.h.controller.close()


async def test_no_node_is_failed_while_a_former_controllers_clearance_may_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    await watched.begin()
    watched.h.controller.detector.clearances_end = watched.h.now + 0.4
    watched.silent = "c"
    await watched.beats(0.3)
    assert watched.state("c") == NodeState.NODE_STATE_LIVE
    await watched.beats(0.2)
    assert watched.state("c") == NodeState.NODE_STATE_FAILED
    watched.h.controller.close()


async def test_a_node_without_heartbeats_is_failed_for_its_silence_not_for_its_data_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    await watched.begin()
    for _ in range(20):
        watched.h.now += STEP
        watched.silent = "c"
        for node in "abd":
            watched.beat(node)
        await watched.h.look_around()
    row = watched.h.state.nodes["c"]
    assert row.state == NodeState.NODE_STATE_FAILED
    assert row.state_reason.startswith("no heartbeat for ")
    await watched.h.controller.register(Node(id="c", data_id="c", incarnation="1.2", address="c:1"))
    watched.h.controller.close()


async def test_a_node_failed_for_its_data_port_registers_again_once_the_port_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    await watched.begin()
    watched.silent = "c"
    await watched.beats(0.2)

    async def register(incarnation: str) -> None:
        await watched.h.controller.register(Node(id="c", data_id="c", incarnation=incarnation, address="c:1"))

    with pytest.raises(MinkaError) as refusal:
        await register("1.2")
    assert refusal.value.code is Code.NOT_SERVING
    assert "does not answer a, b and d" in refusal.value.message
    watched.silent = ""
    await watched.beats(0.2)
    await register("1.2")
    assert watched.state("c") == NodeState.NODE_STATE_LIVE
    watched.h.controller.close()


async def test_a_restarted_process_registers_despite_the_dead_data_port_of_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    await watched.begin()
    watched.silent = "c"
    await watched.beats(0.2)
    await watched.h.controller.register(Node(id="c", data_id="c", incarnation="2", address="c:1"))
    assert watched.state("c") == NodeState.NODE_STATE_LIVE
    watched.h.controller.close()


async def test_a_controller_whose_own_data_port_is_dead_hands_over_and_fails_no_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    await watched.begin()
    watched.silent = "a"
    await watched.beats(1.0)
    assert "does not answer b, c, d and the node itself" in watched.h.hand_overs[0]
    assert watched.state("a") == NodeState.NODE_STATE_LIVE
    watched.h.controller.close()


async def test_the_controller_notices_a_node_that_applies_nothing_more() -> None:
    h = Harness(raft_id=1)
    await h.begin("a", "b", replicas=2)

    def beat(node: str, applied: int) -> None:
        h.controller.heartbeat(HeartbeatRequest(node_id=node, incarnation="1", applied_index=applied))

    for _ in range(3):
        beat("a", 10)
        beat("b", 10)
        h.now += 1.0
    assert h.controller.behind("b") == 0, "there is no lag"
    for applied in (11, 12, 13):
        beat("a", applied)
        beat("b", 10)
        h.now += 1.0
    assert h.controller.behind("b") == 3.0
    beat("b", 11)
    assert h.controller.behind("b") == 0, "it goes on"
    h.controller.close()
