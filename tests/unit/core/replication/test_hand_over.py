"""The steps of a leader's hand-over: the successor lacks only a few entries, the write gate closes, the successor gets
all entries, and the leader asks the controller to record the successor as leader.
"""

from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import HandOverRequest, MigrationPhase
from minkad.core.replication.gate import Gate
from minkad.core.replication.instructions import AskHandOver, Changed, GateOpened, IsrProposal, WakeAt
from minkad.core.replication.replica import Replica
from tests.unit.core.replication.bench import SETTINGS, Bench, gate_of, leader_of, log_of, row

REFUSED = MinkaError(Code.INELIGIBLE_REPLICA, "the successor isn't in sync")
UNKNOWN = MinkaError(Code.UNREACHABLE, "no answer")


def handing_over() -> tuple[Bench, Replica]:
    """A leader that should hand over to byzantium, which lacks an entry."""
    bench = Bench()
    replica = bench.host(row(), log_of(1))
    bench.align(replica, "byzantium", "cyrene")
    bench.apply(replica)
    leader_of(replica).epoch_durable()
    bench.write(replica)
    bench.sync(replica)
    bench.take_all()
    bench.adopt(replica, successor="byzantium")
    return bench, replica


def asking() -> tuple[Bench, Replica, HandOverRequest]:
    """A leader that has sent the controller its request to record byzantium as leader."""
    bench, replica = handing_over()
    bench.ack(replica, "byzantium")
    bench.ack(replica, "cyrene")
    bench.apply(replica)
    [ask] = bench.take(AskHandOver)
    return bench, replica, ask.request


def answer(bench: Bench, replica: Replica, request: HandOverRequest, error: MinkaError | None) -> None:
    leader_of(replica).hand_over_answered(request, error, bench.now)


def test_writes_go_on_before_the_successor_is_near() -> None:
    bench, replica = handing_over()
    assert gate_of(replica) is Gate.OPEN
    assert bench.take(AskHandOver) == []


def test_writes_wait_once_the_successor_is_near() -> None:
    bench, replica = handing_over()
    leader_of(replica).progress["byzantium"].next_append(2**20)
    leader_of(replica).progressed(bench.now)
    assert gate_of(replica) is Gate.CLOSED
    assert bench.take(WakeAt) == [WakeAt(1, SETTINGS.write_pause_timeout)]


def test_writes_do_not_wait_for_a_successor_that_is_not_in_sync() -> None:
    bench = Bench()
    replica = bench.host(row(isr=("athens",), successor="byzantium"), log_of(1))
    bench.align(replica, "byzantium")
    assert gate_of(replica) is Gate.OPEN


def test_the_gate_is_not_closed_while_a_node_of_the_in_sync_set_is_gone() -> None:
    """The leader can't commit entries before cyrene has left the set, so the hand-over couldn't end."""
    bench, replica = handing_over()
    bench.view.absent = {"cyrene"}
    bench.ack(replica, "byzantium")
    assert gate_of(replica) is Gate.OPEN
    leader_of(replica).nodes_changed(bench.now)
    assert [proposal.isr for proposal in bench.take(IsrProposal)] == [("athens", "byzantium")]
    bench.adopt(replica, isr=("athens", "byzantium"))
    assert gate_of(replica) is Gate.CLOSED


def test_the_gate_is_opened_when_a_node_of_the_in_sync_set_is_gone() -> None:
    bench, replica = handing_over()
    bench.ack(replica, "byzantium")
    assert gate_of(replica) is Gate.CLOSED
    bench.view.absent = {"cyrene"}
    leader_of(replica).nodes_changed(bench.now)
    assert gate_of(replica) is Gate.OPEN
    assert [proposal.isr for proposal in bench.take(IsrProposal)] == [("athens", "byzantium")]


def test_the_controller_is_asked_once_the_successor_has_all_entries_and_all_are_applied() -> None:
    bench, replica = handing_over()
    bench.ack(replica, "byzantium")
    assert (gate_of(replica), bench.take(AskHandOver)) == (Gate.CLOSED, [])
    bench.ack(replica, "cyrene")
    bench.apply(replica)
    request = HandOverRequest(node_id="athens", partition_id=1, leader_epoch=1, partition_epoch=2, target="byzantium")
    assert bench.take(AskHandOver) == [AskHandOver(request)]
    assert gate_of(replica) is Gate.CLOSED_TO_READS


def test_the_controller_is_not_asked_while_the_successor_lacks_an_entry() -> None:
    bench, replica = handing_over()
    leader_of(replica).progress["byzantium"].next_append(2**20)
    bench.ack(replica, "cyrene")
    replica.applied = 2  # as if the entry were applied
    leader_of(replica).progressed(bench.now)
    assert (gate_of(replica), bench.take(AskHandOver)) == (Gate.CLOSED, [])


def test_the_controller_is_not_asked_before_all_entries_are_applied() -> None:
    bench, replica = handing_over()
    bench.ack(replica, "cyrene")
    bench.ack(replica, "byzantium")
    assert (gate_of(replica), bench.take(AskHandOver)) == (Gate.CLOSED, [])


def test_a_refusal_opens_the_gate_and_the_leader_tries_again_after_a_pause() -> None:
    bench, replica, request = asking()
    bench.now = 1.0
    answer(bench, replica, request, REFUSED)
    assert gate_of(replica) is Gate.OPEN
    taken = bench.take_all()
    assert GateOpened(1, "byzantium", 1.0) in taken
    assert taken.index(GateOpened(1, "byzantium", 1.0)) < taken.index(Changed(1)) < taken.index(WakeAt(1, 1.05))
    bench.tick(replica, 1.04)
    assert bench.take(AskHandOver) == []
    bench.tick(replica, 1.05)
    assert bench.take(AskHandOver) == [AskHandOver(request)]
    assert gate_of(replica) is Gate.CLOSED_TO_READS


def test_the_pauses_between_tries_grow() -> None:
    bench, replica, request = asking()
    answer(bench, replica, request, REFUSED)
    bench.tick(replica, 0.05)
    [ask] = bench.take(AskHandOver)
    answer(bench, replica, ask.request, REFUSED)
    bench.tick(replica, 0.14)
    assert bench.take(AskHandOver) == []
    bench.tick(replica, 0.16)
    assert len(bench.take(AskHandOver)) == 1


def test_while_the_outcome_is_unknown_reads_and_writes_wait_and_the_leader_asks_again() -> None:
    bench, replica, request = asking()
    answer(bench, replica, request, UNKNOWN)
    assert gate_of(replica) is Gate.CLOSED_TO_READS
    assert bench.take(WakeAt) == [WakeAt(1, 0.05)]
    bench.tick(replica, 0.04)
    assert bench.take(AskHandOver) == []
    bench.tick(replica, 0.05)
    assert bench.take(AskHandOver) == [AskHandOver(request)]


def test_a_refusal_after_an_unknown_outcome_decides_nothing() -> None:
    bench, replica, request = asking()
    answer(bench, replica, request, UNKNOWN)
    bench.tick(replica, 0.05)
    [ask] = bench.take(AskHandOver)
    answer(bench, replica, ask.request, REFUSED)
    assert gate_of(replica) is Gate.CLOSED_TO_READS
    bench.tick(replica, 9.0)
    assert len(bench.take(AskHandOver)) == 1


def test_after_a_recorded_hand_over_reads_and_writes_wait_for_the_row() -> None:
    bench, replica, request = asking()
    answer(bench, replica, request, None)
    assert gate_of(replica) is Gate.CLOSED_TO_READS
    bench.adopt(replica, leader="byzantium", leader_epoch=2, successor="")
    assert (replica.leader, gate_of(replica)) == (None, Gate.OPEN)


def test_the_gate_opens_when_the_successor_does_not_catch_up_in_time() -> None:
    bench, replica = handing_over()
    leader_of(replica).progress["byzantium"].next_append(2**20)
    leader_of(replica).progressed(bench.now)
    bench.tick(replica, SETTINGS.write_pause_timeout - 0.01)
    assert gate_of(replica) is Gate.CLOSED
    bench.take_all()
    bench.tick(replica, SETTINGS.write_pause_timeout)
    assert gate_of(replica) is Gate.OPEN
    assert bench.take(GateOpened) == [GateOpened(1, "byzantium", SETTINGS.write_pause_timeout)]
    [migration] = leader_of(replica).migrations()
    assert migration.blocked_by == "the target did not catch up within 0.5 s"


def test_the_gate_opens_when_the_stream_to_the_successor_breaks() -> None:
    bench, replica = handing_over()
    progress = leader_of(replica).progress["byzantium"]
    progress.next_append(2**20)
    leader_of(replica).progressed(bench.now)
    leader_of(replica).disconnected(progress, "reset", bench.now)
    assert gate_of(replica) is Gate.OPEN


def test_absent_nodes_are_taken_out_after_the_gate_opens() -> None:
    bench, replica, request = asking()
    bench.view.absent = {"cyrene"}
    leader_of(replica).check(bench.now, stalled=False)
    assert bench.take(IsrProposal) == []
    answer(bench, replica, request, REFUSED)
    assert [proposal.isr for proposal in bench.take(IsrProposal)] == [("athens", "byzantium")]


def test_a_row_without_a_successor_cancels_the_hand_over() -> None:
    bench, replica, request = asking()
    bench.adopt(replica, successor="")
    assert gate_of(replica) is Gate.OPEN
    assert bench.take(GateOpened) == [GateOpened(1, "byzantium", 0.0)]
    answer(bench, replica, request, None)
    bench.tick(replica, 9.0)
    assert bench.take(AskHandOver) == []


def test_a_row_with_another_successor_begins_a_hand_over_to_that_one() -> None:
    bench, replica, _ = asking()
    bench.adopt(replica, successor="cyrene")
    [ask] = bench.take(AskHandOver)
    assert ask.request.target == "cyrene"


def test_a_newer_row_with_the_same_successor_begins_the_hand_over_again() -> None:
    bench, replica, request = asking()
    bench.adopt(replica)
    answer(bench, replica, request, UNKNOWN)
    bench.tick(replica, 0.05)
    assert gate_of(replica) is Gate.OPEN  # the request names an older row, so it can no longer be recorded
    bench.tick(replica, 0.1)
    [ask] = bench.take(AskHandOver)
    assert ask.request.partition_epoch == 3


def test_late_answers_about_a_hand_over_are_ignored() -> None:
    bench, replica, request = asking()
    answer(bench, replica, request, REFUSED)
    bench.tick(replica, 0.05)
    [ask] = bench.take(AskHandOver)
    answer(bench, replica, request, REFUSED)
    assert gate_of(replica) is Gate.CLOSED_TO_READS
    answer(bench, replica, ask.request, REFUSED)
    assert gate_of(replica) is Gate.OPEN


def test_the_progress_of_a_hand_over_names_what_blocks_it() -> None:
    bench, replica, request = asking()
    phases = [leader_of(replica).migrations()[0].phase]
    answer(bench, replica, request, UNKNOWN)
    [migration] = leader_of(replica).migrations()
    assert "waiting for the outcome" in migration.blocked_by
    bench.adopt(replica)
    bench.tick(replica, 0.05)
    phases.append(leader_of(replica).migrations()[0].phase)
    bench.tick(replica, 0.1)
    [migration] = leader_of(replica).migrations()
    assert (migration.target, migration.blocked_by) == ("byzantium", "")
    assert phases == [MigrationPhase.MIGRATION_PHASE_HAND_OVER, MigrationPhase.MIGRATION_PHASE_FOLLOW]


def test_the_end_of_the_leadership_opens_the_gate() -> None:
    bench, replica, _ = asking()
    bench.node.stop_leading(bench.now)
    assert (gate_of(replica), replica.leader) == (Gate.OPEN, None)
