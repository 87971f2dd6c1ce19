"""A duty is a suspect if at least two shards failed while they attached it. The controller keeps a suspect away from
shards for a while, and lets a shard try it alone.
"""

from typing import Any

import pytest

from minka.v1.duties_pb2 import AssignmentState, Duty, DutyTables
from minka.v1.duty_api_pb2 import ChangeDutiesRequest, DutyChange, DutyName, DutySpec
from minkad.core.duties.control import choosing, distribution, suspects, trials
from minkad.core.duties.control.distribution import TIMER_MS
from minkad.core.duties.control.duty_rows import duties_in_pieces, duty_with, in_state
from minkad.core.state import DutyState, State
from tests.unit.core.duty_world import DutyWorld, Process

ROUNDS = 10_000
FLEET = ("a", "b", "c", "d")
MANY = 400
RETRY = DutyChange(unquarantine=DutyName(pallet="feeds", id="bad"))


class Poisoned:
    """Shards whose processes end when they attach one of the `bad` duties. Each process is restarted at once."""

    def __init__(self, *bad: str, shards: tuple[str, ...] = FLEET, grace_ms: int = 0) -> None:
        self.world = DutyWorld()
        self.world.pallet("feeds")
        self.bad = set(bad)
        self.grace_ms = grace_ms
        self.died: list[str] = []
        for name in shards:
            self.world.join(name, grace_ms=grace_ms)

    def told(self, process: Process) -> list[Duty]:
        """Return the duties that the process should attach according to the rows."""
        some = self.world.duties.on_shard.get(process.name, {}).values()
        found = [one.duty for one in some if one.state == AssignmentState.ASSIGNMENT_STATE_ASSIGNED]
        return [self.world.duties.duties[number] for number in found]

    def settle(self) -> None:
        """Let shards and controller work until nothing changes."""
        for _ in range(ROUNDS):
            self.world.follow()
            worked = [self.step(process) for process in list(self.world.processes.values())]
            if not any(worked):
                return
        raise AssertionError("the shards and the controller do not come to rest")

    def step(self, process: Process) -> bool:
        """Let the process attach its duties. If one of them is bad, the process ends instead. Returns False if it had
        nothing to do.
        """
        if self.bad.isdisjoint(row.id for row in self.told(process)):
            return self.world.work(process)
        self.died.append(process.name)
        self.world.kill(process.name)
        self.world.join(process.name, grace_ms=self.grace_ms)
        return True

    def wait(self, milliseconds: int) -> int:
        """Let time pass. Returns the number of processes that have ended because of a bad duty."""
        before = len(self.died)
        self.world.now_ms += milliseconds
        self.settle()
        return len(self.died) - before

    @property
    def row(self) -> Duty:
        """The bad duty's row."""
        return self.world.row("bad")


def ids(count: int) -> list[str]:
    """Return names for duties that end no process."""
    return [f"d{number:03}" for number in range(count)]


def test_a_bad_duty_ends_few_processes_and_other_duties_go_on() -> None:
    fleet = Poisoned("bad")
    fleet.world.create("feeds", ids(20))
    fleet.settle()
    fleet.world.create("feeds", ["bad"])
    fleet.settle()
    assert len(fleet.died) == suspects.KEPT_AWAY_FROM
    assert all(fleet.world.where(name) for name in ids(20))
    assert fleet.world.where("bad") == ""
    why = fleet.world.why_unplaced("bad")
    assert f"3 shards have failed while they were attaching it, the last one {fleet.died[-1]}" in why
    left = -(-(fleet.row.suspicion.retry_ms - fleet.world.now_ms) // 1000)
    assert f"again alone on one shard in {left} s (at once: minkactl duty retry feeds/bad)" in why
    fleet.world.check_tables()


def test_a_bad_duty_is_blamed_although_its_ended_shard_was_told_to_release_it() -> None:
    """A rebalance or a drain may want to move the duty before the controller knows that the shard is gone."""
    fleet = Poisoned("bad", shards=("a",))
    fleet.world.create("feeds", ["attached"])
    fleet.settle()
    fleet.world.create("feeds", ["bad"])
    fleet.world.follow()
    told = [fleet.world.row(name).number for name in ("attached", "bad")]
    for record in in_state("a", AssignmentState.ASSIGNMENT_STATE_RELEASING, told, fleet.world.now_ms, "a rebalance"):
        fleet.world.apply(record)
    fleet.world.kill("a")
    assert fleet.row.suspicion.failures == 1
    assert not fleet.world.row("attached").HasField("suspicion")


def test_a_rebalance_does_not_move_a_suspect_whose_shard_ends() -> None:
    """A rebalance has begun to move the suspect. Then the suspect's shard ends, for any reason."""
    fleet = Poisoned("bad", shards=("a",))
    fleet.world.create("feeds", ["bad"], weight=1)
    fleet.world.create("feeds", ["other"], weight=2, stationary=True)
    fleet.world.follow()
    once = duties_in_pieces([duty_with(fleet.row, lambda new: setattr(new.suspicion, "failures", 1))])
    for record in once:
        fleet.world.apply(record)
    fleet.world.join("b")
    assert fleet.world.rebalance("feeds") == 1
    fleet.world.follow()
    [one] = fleet.world.duties.assignments(fleet.row.number)
    assert (one.shard, one.state) == ("a", AssignmentState.ASSIGNMENT_STATE_RELEASING)
    fleet.world.kill("a")
    fleet.world.follow()
    fleet.world.work(fleet.world.processes["b"])
    fleet.world.follow()
    [one] = fleet.world.duties.assignments(fleet.row.number)
    assert one.reason.startswith("it is tried alone")
    fleet.world.join("a")
    assert fleet.world.rebalance("feeds") == 0


@pytest.mark.parametrize("bad", [1, 2])
def test_a_bad_duty_is_found_among_many_that_are_attached_together(bad: int) -> None:
    guilty = [f"bad{number}" for number in range(bad)]
    fleet = Poisoned(*guilty)
    fleet.world.create("feeds", [*ids(MANY), *guilty])
    fleet.settle()
    assert len(fleet.died) <= 5 * bad
    assert all(fleet.world.where(name) for name in ids(MANY))
    kept = {row.id for row in fleet.world.duties.duties.values() if row.HasField("suspicion")}
    assert kept == set(guilty), "duties that a shard has attached are not suspects"
    fleet.world.check_tables()


def test_a_suspect_is_tried_again_alone_after_longer_and_longer_pauses() -> None:
    fleet = Poisoned("bad")
    fleet.world.create("feeds", [*ids(8), "bad"])
    fleet.settle()
    pause_ms = suspects.FIRST_PAUSE_MS
    for _ in range(4):
        assert fleet.row.suspicion.retry_ms - fleet.row.suspicion.since_ms == pause_ms
        left_ms = fleet.row.suspicion.retry_ms - fleet.world.now_ms
        assert fleet.wait(left_ms // 2) == 0
        assert fleet.wait(left_ms // 2 + 1) == 1
        pause_ms *= 2
    for _ in range(10):
        fleet.wait(suspects.LONGEST_PAUSE_MS + 1)
    assert fleet.row.suspicion.retry_ms - fleet.world.now_ms <= suspects.LONGEST_PAUSE_MS


def test_a_shard_that_tries_a_suspect_attaches_nothing_else() -> None:
    fleet = Poisoned("bad")
    fleet.world.create("feeds", ["bad"])
    fleet.settle()
    fleet.world.now_ms += suspects.FIRST_PAUSE_MS
    fleet.world.follow()
    [holder] = fleet.world.duties.assignments(fleet.row.number)
    fleet.world.create("feeds", ids(30))
    fleet.world.now_ms += 1000
    fleet.world.follow()
    assert [row.id for row in fleet.told(fleet.world.processes[holder.shard])] == ["bad"]
    assert all(fleet.world.where(name) not in ("", holder.shard) for name in ids(30))
    fleet.settle()
    assert not any(fleet.world.row(name).HasField("suspicion") for name in ids(30))


def test_only_the_suspect_is_blamed_if_other_duties_are_attached_beside_it() -> None:
    fleet = Poisoned("bad", shards=("a",))
    fleet.world.create("feeds", ["bad"])
    fleet.world.follow()
    fleet.step(fleet.world.processes["a"])
    fleet.world.create("feeds", ["beside"])
    fleet.world.now_ms += 1000
    fleet.world.follow()
    assert {row.id for row in fleet.told(fleet.world.processes["a"])} == {"bad", "beside"}
    fleet.step(fleet.world.processes["a"])
    assert fleet.row.suspicion.failures == 2
    assert not fleet.world.row("beside").HasField("suspicion")


def test_a_process_that_is_killed_once_makes_no_suspects() -> None:
    """After a power cut, for example, all shards attach their duties again, and all may be killed meanwhile. One such
    failure makes no duty a suspect.
    """
    fleet = Poisoned()
    fleet.world.create("feeds", ids(20))
    fleet.world.follow()
    for name in FLEET:
        fleet.world.kill(name)
    for name in FLEET:
        fleet.world.join(name)
    fleet.world.follow()
    assert all(fleet.world.where(name) for name in ids(20))
    fleet.settle()
    assert not fleet.world.duties.suspected


@pytest.mark.parametrize("how", ["retry", "update"])
def test_a_person_can_have_a_suspect_tried_again_at_once(how: str) -> None:
    fleet = Poisoned("bad")
    fleet.world.create("feeds", [*ids(8), "bad"])
    fleet.settle()
    update = DutyChange(update=DutySpec(pallet="feeds", id="bad", payload_id=b"p2"))
    fleet.world.do(ChangeDutiesRequest(changes=[RETRY if how == "retry" else update]))
    assert fleet.wait(0) == 1, "the duty is still bad, and ends one process"
    fleet.bad.clear()
    fleet.world.do(ChangeDutiesRequest(changes=[RETRY]))
    assert fleet.wait(0) == 0
    assert fleet.world.where("bad")
    assert not fleet.row.HasField("suspicion")


def test_a_suspect_changed_while_a_process_dies_of_it_is_tried_again_at_once() -> None:
    fleet = Poisoned("bad")
    fleet.world.create("feeds", ["bad"])
    fleet.settle()
    fleet.world.now_ms = fleet.row.suspicion.retry_ms
    fleet.world.follow()
    [holder] = fleet.world.duties.assignments(fleet.row.number)
    fleet.world.now_ms += 1000
    fleet.world.do(
        ChangeDutiesRequest(changes=[DutyChange(update=DutySpec(pallet="feeds", id="bad", payload_id=b"p2"))])
    )
    fleet.bad.clear()
    fleet.world.kill(holder.shard)
    fleet.settle()
    assert fleet.world.where("bad")


@pytest.mark.parametrize("grace_ms", [0, 60_000])
def test_a_suspect_does_not_end_the_only_shard_for_ever(grace_ms: int) -> None:
    """The shard's next process gets the other duties at once, even those that waited for it, but not the suspect."""
    fleet = Poisoned("bad", shards=("a",), grace_ms=grace_ms)
    fleet.world.create("feeds", [*ids(5), "bad"])
    fleet.settle()
    assert len(fleet.died) <= 5
    assert all(fleet.world.where(name) == "a" for name in ids(5))


def test_a_synthetic_suspect_is_tried_on_one_shard_before_all_get_it() -> None:
    fleet = Poisoned("bad")
    fleet.world.create("feeds", ["bad"], synthetic=True)
    fleet.world.create("feeds", ids(8))
    fleet.settle()
    died = len(fleet.died)
    assert died <= len(FLEET) + 1
    assert fleet.wait(suspects.LONGEST_PAUSE_MS) == 1
    fleet.bad.clear()
    fleet.wait(suspects.LONGEST_PAUSE_MS)
    assert len(fleet.world.duties.assignments(fleet.row.number)) == len(FLEET)


def test_duties_that_older_versions_recorded_as_attached_are_beyond_suspicion() -> None:
    fleet = Poisoned("bad", shards=("a",))
    fleet.world.create("feeds", ["attached"])
    fleet.settle()
    tables = DutyTables()
    for piece in fleet.world.duties.pieces():
        tables.MergeFrom(piece)
    tables.assignments[0].ClearField("was_attached")
    [one] = DutyState.of(tables).assignments(fleet.world.row("attached").number)
    assert one.was_attached


def test_a_synthetic_suspect_that_some_shards_have_is_tried_on_the_others() -> None:
    fleet = Poisoned("bad", shards=("a", "b"))
    fleet.world.create("feeds", ["bad"], synthetic=True)
    fleet.bad.clear()
    fleet.settle()
    fleet.world.join("c")
    fleet.world.follow()
    for _ in range(2):
        fleet.world.kill("c")
        fleet.world.join("c")
        fleet.world.follow()
    assert suspects.is_suspect(fleet.row)
    fleet.wait(600_000)  # by then, shard c is no longer quarantined
    assert {one.shard for one in fleet.world.duties.assignments(fleet.row.number)} == {"a", "b", "c"}
    assert not fleet.row.HasField("suspicion")


def test_a_duty_that_ends_processes_that_prepare_for_it_is_moved_without_preparation() -> None:
    fleet = Poisoned()
    world = fleet.world
    world.change_pallet("feeds", warm=True)
    world.create("feeds", ids(8))
    fleet.settle()
    prepares = list[int]()
    for _ in range(2):
        world.join("new", version="1")
        world.rebalance("feeds")
        world.follow()
        prepares = [number for number, name in world.duties.preparing if name == "new"]
        assert prepares
        world.kill("new")
        world.settle()
    suspect = world.duties.duties[prepares[0]]
    assert suspects.is_suspect(suspect)
    world.join("new", version="1")
    world.rebalance("feeds")
    world.follow()
    assert not any(suspects.is_suspect(world.duties.duties[number]) for number, _ in world.duties.preparing)
    world.settle()
    assert suspect.id in {row.id for row in world.duties.duties.values() if world.where(row.id)}


def test_the_next_controller_knows_the_suspects() -> None:
    fleet = Poisoned("bad")
    fleet.world.create("feeds", [*ids(8), "bad"])
    fleet.settle()
    state = State.from_snapshot(fleet.world.state.to_snapshot())
    assert state.duties.suspected == fleet.world.duties.suspected != {}
    assert state.duties.duties[fleet.row.number].suspicion == fleet.row.suspicion


def test_the_end_of_a_leaving_shard_makes_no_suspects() -> None:
    fleet = Poisoned(shards=("a",))
    fleet.world.create("feeds", ["bad"])
    fleet.world.follow()
    fleet.world.leave("a")
    fleet.world.kill("a")
    assert not fleet.world.duties.suspected


@pytest.mark.parametrize(("idle", "plans"), [("mail", 0), ("feeds", 1)])
def test_many_suspects_that_wait_for_a_shard_cost_little(
    monkeypatch: pytest.MonkeyPatch, idle: str, plans: int
) -> None:
    """The suspects wait: the shard `busy` attaches a duty for long, and `idle` takes another pallet or has no room."""
    world, asked = DutyWorld(), list[int]()
    world.pallet("feeds")
    world.pallet("mail")
    world.join("busy")
    world.create("feeds", ["slow"])
    world.follow()
    world.join("idle", pallets=(idle,), capacity=1)
    for first in range(0, 20_000, 1000):
        world.create("feeds", ids(20_000)[first : first + 1000], weight=2)
    rows = [row for row in world.duties.duties.values() if row.id != "slow"]
    for record in duties_in_pieces(duty_with(row, lambda new: setattr(new.suspicion, "failures", 2)) for row in rows):
        world.apply(record)
    world.now_ms += suspects.SLOW_TRIAL_MS
    original = choosing.chosen

    def counted(*arguments: Any) -> Any:
        asked.append(len(arguments[2]))
        return original(*arguments)

    monkeypatch.setattr(trials, "chosen", counted)
    # The controller learns of all suspects in one look.
    monkeypatch.setattr(distribution, "PIECE", len(rows))
    monkeypatch.setattr(distribution, "WINDOW", 2 * len(rows))
    for _ in range(3):
        world.now_ms += TIMER_MS
        asked.clear()
        assert not world.look()
        assert asked == [suspects.PIECE] * plans
    assert len(world.distributor.unplaced["feeds"]) == len(rows), "all were looked at"
    world.work(world.processes["busy"])
    world.now_ms += TIMER_MS
    [given] = [record.assignments_changed for record in world.look()]
    assert given.shard == "busy"
    assert len(given.duties) > suspects.FEW, "many are tried together"
