"""The history that a node keeps of the moves of duties, and the memory that the history takes."""

from collections.abc import Iterable

import pytest

from minka.v1.records_pb2 import Record, RecordBatch
from minka.v1.shards_pb2 import DelegateTime, Holding, ShardReport, ShardReported
from minkad.duties.control.duty_history import DutyHistory
from tests.unit.core.duty_world import DutyWorld


class NotedWorld(DutyWorld):
    """A world that notes each record in the history before it applies the record."""

    def __init__(self) -> None:
        super().__init__()
        self.history = DutyHistory()

    def apply(self, record: Record) -> None:
        """Note the record, and apply it."""
        self.history.note(RecordBatch(records=[record]), self.state)
        super().apply(record)


@pytest.fixture
def world() -> NotedWorld:
    """A world with a pallet."""
    world = NotedWorld()
    world.pallet("feeds")
    return world


def say_attached(world: NotedWorld, name: str, ids: Iterable[str], took_ms: int) -> ShardReported:
    """Let the shard report that it has attached the duties. Returns the report that the controller gets."""
    numbers = [world.row(id_).number for id_ in ids]
    report = ShardReport(
        attached=[Holding(duty=n, epoch=world.duties.on_shard[name][n].epoch) for n in numbers],
        times=[DelegateTime(duty=n, took_ms=took_ms) for n in numbers],
    )
    process = world.processes[name]
    reported = ShardReported(shard=name, incarnation=process.incarnation, report=report)
    world.history.note_times(world.duties, reported)
    process.held.update((one.duty, one.epoch) for one in report.attached)
    world.report(process, report)
    return reported


def test_planned_hand_overs_are_measured_without_the_delegates_time(world: NotedWorld) -> None:
    world.join("s1")
    world.create("feeds", ["a"])
    world.settle()
    world.leave("s1")
    world.follow()
    world.join("s2")
    (process,) = (one for one in world.processes.values() if one.name == "s1")
    world.now_ms += 500
    world.work(process)
    world.now_ms += 1
    world.follow()
    released_ms = world.now_ms - 1
    assert world.where("a") == "s2"
    world.now_ms += 40
    say_attached(world, "s2", ["a"], took_ms=15)
    times = world.history.hand_overs("feeds")
    assert (times.count, times.max_ms) == (1, world.now_ms - released_ms - 15)
    (move,) = world.history.moves()
    assert (move.source, move.target) == ("s1", "s2")


def test_a_delegates_time_is_forgotten_when_its_duty_is_attached_or_gone(world: NotedWorld) -> None:
    """If the history kept such times for ever, its memory would grow with each duty that ever existed."""
    world.join("s1")
    world.create("feeds", ["job", "deleted", "kept"], lazy=True)
    world.follow()
    reported = say_attached(world, "s1", ["job", "kept"], took_ms=3)
    world.history.note_times(world.duties, reported)  # the shard repeats the report because the answer was lost
    number = world.row("deleted").number
    holding = Holding(duty=number, epoch=world.duties.on_shard["s1"][number].epoch)
    late = ShardReport(attached=[holding], times=[DelegateTime(duty=number, took_ms=3)])
    world.history.note_times(world.duties, ShardReported(shard="s1", report=late))
    assert set(world.history._took_ms) == {number}
    world.delete("feeds", "deleted")
    world.finish("s1", "job")
    world.settle()
    assert not world.history._took_ms


def test_moves_tell_why_a_duty_left_and_why_it_came(world: NotedWorld) -> None:
    world.join("alpha", capacity=10)
    world.create("feeds", ["one"], weight=5)
    world.settle()
    world.join("beta", capacity=10)
    world.pin("feeds", "one", "beta")
    world.settle()
    world.kill("beta")
    world.settle()
    world.leave("alpha")
    world.join("gamma", capacity=10)
    world.settle()
    assert [(move.source, move.target, move.reason) for move in world.history.moves()] == [
        ("alpha", "gamma", "alpha is about to stop; the balancer chose gamma, which goes from weight 0 to 5"),
        ("beta", "alpha", "beta is gone; the balancer chose alpha, which goes from weight 0 to 5"),
        ("alpha", "beta", "it is pinned to beta"),
    ]
