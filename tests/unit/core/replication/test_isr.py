"""Changes of the in-sync set that a leader proposes: replicas that join, and replicas that leave."""

import pytest

from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.instructions import BringLoadFiles, IsrProposal
from minkad.core.replication.peer_messages import Standing
from minkad.core.replication.replica import Replica
from minkad.core.replication.replica_state import Copy
from tests.unit.core.replication.bench import SETTINGS, Bench, a_write, leader_of, log_of, row, sent

ALONE = ("athens",)


def led(isr: tuple[str, ...] = ALONE, entries: int = 2) -> tuple[Bench, Replica]:
    """A leader with two followers. The in-sync set is `isr`."""
    bench = Bench()
    replica = bench.host(row(isr=isr), log_of(*[1] * entries))
    leader_of(replica).epoch_durable()
    bench.take_all()
    return bench, replica


def proposed(bench: Bench) -> list[tuple[str, ...]]:
    """Return the in-sync sets that the leader has proposed since the last call."""
    return [proposal.isr for proposal in bench.take(IsrProposal)]


# Replicas that join the in-sync set


def test_a_follower_joins_once_it_has_everything() -> None:
    bench, replica = led()
    bench.stands(replica, "byzantium", log_of(1))
    assert proposed(bench) == []
    bench.ack(replica, "byzantium")
    assert proposed(bench) == [("athens", "byzantium")]


def test_a_follower_with_more_entries_does_not_join_before_it_has_truncated_them() -> None:
    bench, replica = led()
    bench.stands(replica, "byzantium", log_of(1, 1))  # byzantium has all entries, and maybe others after them
    assert proposed(bench) == []
    bench.ack(replica, "byzantium")
    assert proposed(bench) == [("athens", "byzantium")]


def test_the_leader_does_not_wait_for_a_follower_that_is_far_behind() -> None:
    bench, replica = led(entries=1)
    bench.write(replica, *[a_write(b"k", b"v" * 200_000)] * 4)
    bench.sync(replica)
    progress = bench.stands(replica, "byzantium", log_of(1))
    bench.ack(replica, "byzantium", 1)
    assert "byzantium" not in leader_of(replica).may_be_in_sync()
    sent(progress)  # everything is sent, but little is acknowledged
    bench.ack(replica, "byzantium", 2)
    assert "byzantium" not in leader_of(replica).may_be_in_sync()
    bench.ack(replica, "byzantium", 4)
    assert "byzantium" in leader_of(replica).may_be_in_sync()


def test_the_leader_waits_for_a_near_follower_which_joins_with_all_committed_entries() -> None:
    bench, replica = led(isr=("athens", "cyrene"))
    bench.align(replica, "cyrene")
    assert replica.high_watermark == 2
    progress = bench.stands(replica, "byzantium", log_of(1))
    progress.next_append(2**20)
    bench.ack(replica, "byzantium", 1)  # everything is sent, and half of it is acknowledged
    assert leader_of(replica).may_be_in_sync() == {"athens", "byzantium", "cyrene"}
    assert proposed(bench) == []
    bench.ack(replica, "byzantium", 2)
    assert proposed(bench) == [("athens", "cyrene", "byzantium")]


def test_a_follower_joins_only_with_entries_committed_since_its_answer() -> None:
    bench, replica = led(isr=("athens", "cyrene"))
    bench.align(replica, "cyrene")
    bench.write(replica)
    bench.sync(replica)
    bench.ack(replica, "cyrene")
    assert replica.high_watermark == 3
    sent(bench.stands(replica, "byzantium", log_of(1)))
    bench.ack(replica, "byzantium", 2)
    assert proposed(bench) == []
    bench.ack(replica, "byzantium", 3)
    assert proposed(bench) == [("athens", "cyrene", "byzantium")]


# Files of loads


def bring(bench: Bench, replica: Replica) -> list[BringLoadFiles]:
    """Let byzantium stand where it may join; returns the instructions to bring files of loads."""
    bench.with_load_files.add(replica.id)
    bench.align(replica, "byzantium")
    return bench.take(BringLoadFiles)


def with_files(bench: Bench, replica: Replica) -> Progress:
    """Let byzantium have the files of loads without joining."""
    (instruction,) = bring(bench, replica)
    bench.view.low.add("byzantium")
    bench.node.load_files_brought(instruction, bench.now, has_all=True)
    bench.view.low.clear()
    return instruction.progress


def test_a_follower_gets_the_files_of_loads_before_it_joins() -> None:
    bench, replica = led()
    (instruction,) = bring(bench, replica)
    assert "byzantium" not in leader_of(replica).may_be_in_sync()
    bench.ack(replica, "byzantium")
    assert bench.take_all() == [], "it isn't asked twice at a time"
    bench.node.load_files_brought(instruction, bench.now, has_all=True)
    assert proposed(bench) == [("athens", "byzantium")]


def test_a_follower_that_can_not_get_a_file_is_asked_again_later() -> None:
    bench, replica = led()
    (instruction,) = bring(bench, replica)
    bench.node.load_files_brought(instruction, bench.now, has_all=False)
    bench.node.check(1, bench.now, stalled=False, nodes_changed=False)
    assert bench.take(BringLoadFiles) == []
    bench.now += SETTINGS.longest_backoff
    bench.node.check(1, bench.now, stalled=False, nodes_changed=False)
    assert bench.take(BringLoadFiles) == [instruction]


def test_tries_to_get_a_file_take_one_place_in_the_story() -> None:
    """A leader tries once a second. If each try took places of its own, a minute of tries would fill the story."""
    bench, replica = led()
    (instruction,) = bring(bench, replica)
    for _ in range(5):
        bench.node.load_files_brought(instruction, bench.now, has_all=False)
        bench.now += SETTINGS.longest_backoff
        bench.node.check(1, bench.now, stalled=False, nodes_changed=False)
        (instruction,) = bench.take(BringLoadFiles)
    told = [(one.what, one.times) for one in replica.story.all() if "files of loads" in one.what]
    assert told == [("byzantium can't get the files of loads now", 5)]


def test_a_mark_that_is_appended_meanwhile_needs_another_file() -> None:
    bench, replica = led()
    (instruction,) = bring(bench, replica)
    bench.node.append_load_mark(bench.hosted(1), 7, a_write(), {"athens"})
    bench.sync(replica)
    sent(instruction.progress)
    bench.node.load_files_brought(instruction, bench.now, has_all=True)
    bench.ack(replica, "byzantium", 3)
    assert bench.take(BringLoadFiles) == [instruction]


@pytest.mark.parametrize("has_file", [True, False])
def test_a_follower_that_has_the_file_of_the_next_mark_may_join(has_file: bool) -> None:
    bench, replica = led()
    progress = with_files(bench, replica)
    bench.node.append_load_mark(bench.hosted(1), 7, a_write(), {"athens", "byzantium"} if has_file else {"athens"})
    bench.sync(replica)
    sent(progress)
    bench.ack(replica, "byzantium", 3)
    assert proposed(bench) == ([("athens", "byzantium")] if has_file else [])


def test_a_follower_that_comes_back_is_asked_for_the_files_again() -> None:
    bench, replica = led()
    progress = with_files(bench, replica)
    bench.node.follower_lost(progress, "it restarts", bench.now)
    assert bring(bench, replica) == [BringLoadFiles(progress)]


def test_a_follower_that_is_removed_and_added_again_is_asked_for_the_files_again() -> None:
    bench, replica = led()
    with_files(bench, replica)
    bench.adopt(replica, replicas=["athens", "cyrene"])
    bench.adopt(replica, replicas=["athens", "cyrene", "byzantium"])
    assert [one.progress.node_id for one in bring(bench, replica)] == ["byzantium"]


def test_after_skipped_rows_a_follower_is_asked_for_the_files_again() -> None:
    """One of these rows may have removed the follower, and so its files, and a later one may have added it again."""
    bench, replica = led()
    progress = with_files(bench, replica)
    bench.adopt(replica, partition_epoch=replica.row.partition_epoch + 2)
    assert bring(bench, replica) == [BringLoadFiles(progress)]


def test_an_answer_about_files_that_the_follower_may_have_lost_since_does_not_count() -> None:
    bench, replica = led()
    (instruction,) = bring(bench, replica)
    bench.node.follower_lost(instruction.progress, "it restarts", bench.now)
    (again,) = bring(bench, replica)
    bench.node.load_files_brought(instruction, bench.now, has_all=True)
    assert proposed(bench) == []
    bench.node.load_files_brought(again, bench.now, has_all=True)
    assert proposed(bench) == [("athens", "byzantium")]


def test_a_follower_that_is_about_to_join_is_asked_for_the_files_again_once_it_comes_back() -> None:
    bench, replica = led()
    bench.align(replica, "cyrene")  # it is proposed, so the leader proposes nothing else
    (instruction,) = bring(bench, replica)
    bench.node.load_files_brought(instruction, bench.now, has_all=True)
    assert "byzantium" in leader_of(replica).may_be_in_sync()
    bench.node.follower_lost(instruction.progress, "it restarts", bench.now)
    bench.align(replica, "byzantium")
    bench.adopt(replica, isr=["athens", "cyrene"])
    bench.take_all()
    bench.node.check(1, bench.now, stalled=False, nodes_changed=False)
    (again,) = bench.take_all()
    assert isinstance(again, BringLoadFiles)
    bench.node.load_files_brought(again, bench.now, has_all=False)
    assert "byzantium" not in leader_of(replica).may_be_in_sync()


def test_a_load_is_marked_only_once_all_that_may_be_in_sync_have_its_file() -> None:
    bench, _ = led(isr=("athens", "cyrene"))
    with pytest.raises(AssertionError, match="have the file"):
        bench.node.append_load_mark(bench.hosted(1), 7, a_write(), {"athens", "byzantium"})


def test_the_leader_waits_for_a_late_follower_once_it_has_caught_up() -> None:
    bench, replica = led()
    bench.now = SETTINGS.lag_timeout + 0.1
    sent(bench.stands(replica, "byzantium", log_of(1)))
    bench.ack(replica, "byzantium", 1)
    assert leader_of(replica).may_be_in_sync() == {"athens"}
    bench.ack(replica, "byzantium", 2)
    assert leader_of(replica).may_be_in_sync() == {"athens", "byzantium"}


def test_a_follower_joins_only_with_entries_that_a_former_leader_may_have_acknowledged() -> None:
    bench, replica = led(isr=("athens", "cyrene"))
    progress = bench.stands(replica, "byzantium", log_of(1))
    progress.next_append(2**20)
    bench.ack(replica, "byzantium", 1)
    assert (replica.high_watermark, replica.ready_at) == (0, 2)
    assert proposed(bench) == []
    bench.ack(replica, "byzantium", 2)
    assert proposed(bench) == [("athens", "cyrene", "byzantium")]


def test_a_follower_that_is_absent_or_has_no_room_does_not_join() -> None:
    bench, replica = led()
    bench.view.absent, bench.view.low = {"byzantium"}, {"cyrene"}
    bench.align(replica, "byzantium", "cyrene")
    assert proposed(bench) == []


def test_one_follower_is_proposed_at_a_time() -> None:
    bench, replica = led()
    bench.align(replica, "byzantium", "cyrene")
    assert proposed(bench) == [("athens", "byzantium")]
    bench.adopt(replica, isr=("athens", "byzantium"))
    leader_of(replica).progressed(bench.now)
    assert proposed(bench) == [("athens", "byzantium", "cyrene")]


def test_a_follower_whose_stream_breaks_is_no_longer_about_to_join() -> None:
    bench, replica = led(isr=("athens", "cyrene"))
    progress = bench.stands(replica, "byzantium", log_of(1))
    progress.next_append(2**20)
    bench.ack(replica, "byzantium", 1)
    leader_of(replica).disconnected(progress, "reset", bench.now)
    assert leader_of(replica).may_be_in_sync() == {"athens", "cyrene"}


def test_a_proposed_follower_counts_although_its_stream_breaks() -> None:
    bench, replica = led()
    bench.align(replica, "byzantium")
    leader_of(replica).disconnected(leader_of(replica).progress["byzantium"], "reset", bench.now)
    assert leader_of(replica).may_be_in_sync() == {"athens", "byzantium"}


# The controller's answers to proposals


def test_a_refused_follower_is_proposed_again_after_a_pause() -> None:
    bench, replica = led()
    bench.align(replica, "byzantium")
    [proposal] = bench.take(IsrProposal)
    leader_of(replica).isr_refused(proposal, 1.0)
    assert leader_of(replica).may_be_in_sync() == {"athens"}
    leader_of(replica).progressed(1.0 + SETTINGS.longest_backoff - 0.01)
    assert proposed(bench) == []
    leader_of(replica).progressed(1.0 + SETTINGS.longest_backoff)
    assert proposed(bench) == [("athens", "byzantium")]


def test_after_a_refusal_in_doubt_the_leader_proposes_the_present_set() -> None:
    bench, replica = led()
    bench.align(replica, "byzantium")
    [proposal] = bench.take(IsrProposal)
    leader_of(replica).isr_in_doubt(proposal)
    [proposal] = bench.take(IsrProposal)
    leader_of(replica).isr_refused(proposal, bench.now)
    assert bench.take(IsrProposal) == [IsrProposal(1, 1, 1, ALONE, in_doubt=True)]
    # The controller may still record the first request, so the leader still waits for the joining replica.
    assert leader_of(replica).may_be_in_sync() == {"athens", "byzantium"}
    bench.write(replica)
    bench.sync(replica)
    assert replica.high_watermark == 2


def test_a_proposal_in_doubt_ends_when_the_present_set_is_recorded() -> None:
    bench, replica = led()
    bench.align(replica, "byzantium")
    [proposal] = bench.take(IsrProposal)
    leader_of(replica).isr_in_doubt(proposal)
    [proposal] = bench.take(IsrProposal)
    leader_of(replica).isr_refused(proposal, bench.now)
    bench.adopt(replica)
    assert leader_of(replica).proposed is None


def test_a_proposal_in_doubt_ends_when_the_present_set_is_refused_too() -> None:
    bench, replica = led()
    bench.align(replica, "byzantium")
    [proposal] = bench.take(IsrProposal)
    leader_of(replica).isr_in_doubt(proposal)
    [proposal] = bench.take(IsrProposal)
    leader_of(replica).isr_refused(proposal, bench.now)
    [proposal] = bench.take(IsrProposal)
    leader_of(replica).isr_refused(proposal, bench.now)
    assert leader_of(replica).may_be_in_sync() == {"athens"}
    assert leader_of(replica).proposed is None


def test_a_late_refusal_of_another_proposal_changes_nothing() -> None:
    bench, replica = led()
    bench.align(replica, "byzantium")
    [proposal] = bench.take(IsrProposal)
    leader_of(replica).isr_refused(IsrProposal(1, 1, 1, proposal.isr), bench.now)
    assert leader_of(replica).proposed is proposal


# Replicas that leave the in-sync set


def test_absent_nodes_are_taken_out() -> None:
    bench, replica = led(isr=("athens", "byzantium", "cyrene"))
    bench.view.absent = {"byzantium"}
    leader_of(replica).shrink()
    assert proposed(bench) == [("athens", "cyrene")]
    leader_of(replica).shrink()
    assert proposed(bench) == []  # the set without byzantium has been proposed already


def test_a_follower_that_has_not_caught_up_for_long_is_taken_out() -> None:
    bench, replica = led(isr=("athens", "byzantium", "cyrene"))
    bench.align(replica, "cyrene")
    for now in (0.5, 1.0, 1.5, 2.0):
        leader_of(replica).check(now, stalled=False)
    assert proposed(bench) == []
    leader_of(replica).check(2.5, stalled=False)
    assert proposed(bench) == [("athens", "cyrene")]


def test_a_follower_that_is_only_a_moment_behind_stays_in_the_set() -> None:
    bench, replica = led(isr=("athens", "byzantium", "cyrene"))
    bench.align(replica, "byzantium", "cyrene")
    for step in range(1, 20):
        bench.write(replica)
        leader_of(replica).check(step / 2, stalled=False)
        bench.ack(replica, "byzantium")
        bench.ack(replica, "cyrene")
        bench.write(replica)  # so the followers always lack an entry
    assert proposed(bench) == []


def test_a_leader_that_stood_still_itself_takes_no_follower_out() -> None:
    bench, replica = led(isr=("athens", "byzantium", "cyrene"))
    leader_of(replica).check(9.0, stalled=True)
    leader_of(replica).check(11.0, stalled=False)
    assert proposed(bench) == []


def test_a_follower_without_room_is_taken_out_if_enough_others_are_in_sync() -> None:
    bench, replica = led(isr=("athens", "byzantium", "cyrene"))
    bench.view.low = {"byzantium"}
    replica.min_insync = 3
    leader_of(replica).check(0.1, stalled=False)
    assert proposed(bench) == []
    replica.min_insync = 2
    leader_of(replica).check(0.2, stalled=False)
    assert proposed(bench) == [("athens", "cyrene")]


def test_a_leader_without_room_takes_no_follower_out_for_its_lack_of_room() -> None:
    bench, replica = led(isr=("athens", "byzantium", "cyrene"))
    bench.view.low = {"athens", "byzantium"}
    leader_of(replica).check(0.1, stalled=False)
    assert proposed(bench) == []


def test_nothing_is_proposed_while_the_gate_is_closed() -> None:
    bench, replica = led(isr=("athens", "byzantium"))
    replica.gate.close()
    bench.view.absent = {"byzantium"}
    bench.align(replica, "cyrene")
    leader_of(replica).check(9.0, stalled=False)
    assert proposed(bench) == []
    replica.gate.open()
    leader_of(replica).shrink()
    assert proposed(bench) == [("athens",)]


def test_a_newer_row_replaces_the_proposal() -> None:
    bench, replica = led(isr=("athens", "byzantium", "cyrene"))
    bench.view.absent = {"byzantium"}
    leader_of(replica).shrink()
    bench.adopt(replica)
    assert proposed(bench) == [("athens", "cyrene"), ("athens", "cyrene")]
    assert leader_of(replica).proposed == IsrProposal(1, 1, 2, ("athens", "cyrene"))


def elected_with_nothing(*, allows_unclean: bool) -> tuple[Bench, Replica]:
    """A leader that is alone in sync and has no usable data: it was receiving a checkpoint, which broke off."""
    bench = Bench()
    bench.view.keyspaces[1].unclean_election = allows_unclean
    replica = bench.host(row(leader="byzantium", isr=("byzantium",)))
    replica.copy = Copy.INCOMPLETE
    bench.adopt(replica, leader="athens", isr=ALONE, leader_epoch=2)
    assert replica.damage is not None
    bench.take_all()
    return bench, replica


def test_a_leader_elected_with_nothing_names_a_replica_that_has_something() -> None:
    bench, replica = elected_with_nothing(allows_unclean=True)
    bench.stands(replica, "byzantium", log_of(1, base=1))
    assert proposed(bench) == [("byzantium",)]


def test_a_leader_elected_with_nothing_names_no_damaged_or_absent_replica() -> None:
    bench, replica = elected_with_nothing(allows_unclean=True)
    bench.view.absent = {"cyrene"}
    bench.stands(replica, "byzantium", log_of(1), Standing.NEEDS_CHECKPOINT)
    bench.stands(replica, "cyrene", log_of(1, base=1))
    assert proposed(bench) == []


def test_without_unclean_elections_a_leader_elected_with_nothing_names_no_replica() -> None:
    bench, replica = elected_with_nothing(allows_unclean=False)
    bench.stands(replica, "byzantium", log_of(1, base=1))
    assert proposed(bench) == []
