"""A leader reacts when a follower in sync has lost committed entries, and when its own data is damaged."""

from typing import Any

from minka.errors import Code, MinkaError
from minkad.core.replication.instructions import CancelCheckpoint, IsrProposal, Send, SendCheckpoint, StopSending
from minkad.core.replication.peer_messages import Ack, KeptFile, Standing
from minkad.core.replication.replica import Replica
from minkad.core.replication.replica_state import Copy
from tests.unit.core.replication.bench import Bench, a_write, leader_of, log_of, row


def three_entries(**fields: Any) -> tuple[Bench, Replica]:
    """A leader with three committed entries; all followers are about to be probed again."""
    bench = Bench()
    replica = bench.host(row(**fields), log_of(1, 1, 1))
    bench.align(replica, "byzantium", "cyrene")
    for progress in leader_of(replica).progress.values():
        leader_of(replica).disconnected(progress, "reset", bench.now)
    bench.take_all()
    return bench, replica


def test_a_follower_that_lost_committed_entries_leaves_the_isr_before_it_gets_a_checkpoint() -> None:
    bench, replica = three_entries()
    progress = bench.stands(replica, "byzantium", log_of(1))
    [proposal] = bench.take(IsrProposal)
    assert proposal.isr == ("athens", "cyrene")
    assert not progress.wants_sending

    bench.adopt(replica, isr=("athens", "cyrene"))
    assert bench.take(Send) == [Send(progress)]
    bench.stands(replica, "byzantium", log_of(), Standing.NEEDS_CHECKPOINT)
    assert bench.take(SendCheckpoint) == [SendCheckpoint(progress, [])]


def test_a_follower_with_an_unusable_copy_leaves_the_isr_before_it_gets_a_checkpoint() -> None:
    bench, replica = three_entries()
    bench.stands(replica, "byzantium", log_of(1, 1, 1), Standing.NEEDS_CHECKPOINT)
    taken = bench.take_all()
    assert [one.isr for one in taken if isinstance(one, IsrProposal)] == [("athens", "cyrene")]
    assert not any(isinstance(one, SendCheckpoint) for one in taken)


def test_a_follower_gets_no_checkpoint_while_its_leaving_is_refused() -> None:
    bench, replica = three_entries()
    bench.stands(replica, "byzantium", log_of(1))
    [proposal] = bench.take(IsrProposal)
    leader_of(replica).isr_refused(proposal, bench.now)
    leader_of(replica).check(bench.now, stalled=False)
    taken = bench.take_all()
    assert [one.isr for one in taken if isinstance(one, IsrProposal)] == [("athens", "cyrene")]
    assert not any(isinstance(one, SendCheckpoint) for one in taken)


def test_a_follower_that_lacks_only_uncommitted_entries_stays_in_the_isr() -> None:
    bench, replica = three_entries()
    leader_of(replica).epoch_durable()
    bench.write(replica)
    bench.sync(replica)
    progress = bench.stands(replica, "byzantium", log_of(1, 1, 1))
    assert bench.take(IsrProposal) == []
    assert (progress.matched, progress.is_replicating) == (3, True)


def test_an_empty_follower_gets_even_a_long_log_while_nothing_is_committed() -> None:
    """While a follower gets a checkpoint, it can't lead. If the leader died meanwhile, no replica could lead. So the
    leader sends the log instead of a checkpoint.
    """
    long = log_of(1)
    long.append(1, a_write(b"k", b"v" * 300_000))
    bench = Bench()
    replica = bench.host(row(), long)
    bench.take_all()
    progress = bench.stands(replica, "byzantium", log_of())
    assert (bench.take(SendCheckpoint), progress.is_replicating) == ([], True)


def test_a_follower_out_of_sync_that_has_lost_much_gets_a_checkpoint_at_once() -> None:
    bench, replica = three_entries(isr=("athens", "cyrene"))
    kept = [KeptFile("000001.sst", 3, 5)]
    progress = leader_of(replica).progress["byzantium"]
    progress.next_append(1)
    ack = Ack(1, 1, Standing.NEEDS_CHECKPOINT, 1, [(0, 0)], kept)
    leader_of(replica).acknowledged(progress, ack, bench.now)
    assert bench.take(SendCheckpoint) == [SendCheckpoint(progress, kept)]


def test_a_follower_that_asks_twice_gets_one_checkpoint() -> None:
    bench, replica = three_entries(isr=("athens", "cyrene"))
    progress = bench.stands(replica, "byzantium", log_of(), Standing.NEEDS_CHECKPOINT)
    leader_of(replica).acknowledged(progress, Ack(1, 1, Standing.NEEDS_CHECKPOINT, 0), bench.now)
    assert bench.take(SendCheckpoint) == [SendCheckpoint(progress, [])]


def test_a_checkpoint_to_a_node_that_no_longer_follows_is_cancelled() -> None:
    bench, replica = three_entries(isr=("athens", "cyrene"))
    progress = bench.stands(replica, "byzantium", log_of(), Standing.NEEDS_CHECKPOINT)
    bench.take_all()
    bench.adopt(replica, replicas=("athens", "cyrene"))
    assert bench.take_all()[1:3] == [CancelCheckpoint(progress), StopSending(progress)]
    assert "byzantium" not in replica.retention.readers


def test_a_damaged_leader_proposes_an_isr_without_itself() -> None:
    bench, replica = three_entries()
    replica.data.condemn(MinkaError(Code.CORRUPT_DATA, "a block is damaged"))
    leader_of(replica).shrink()
    assert [one.isr for one in bench.take(IsrProposal)] == [("byzantium", "cyrene")]
    assert not replica.is_ready


def test_a_damaged_leader_whose_data_is_made_again_from_its_log_stays_in_the_isr() -> None:
    bench, replica = three_entries()
    replica.data.condemn(MinkaError(Code.CORRUPT_DATA, "a block is damaged"))
    replica.copy = Copy.REBUILDING
    leader_of(replica).shrink()
    assert bench.take(IsrProposal) == []


def test_a_damaged_leader_that_is_alone_in_the_isr_stays_in_it() -> None:
    bench, replica = three_entries(isr=("athens",))
    bench.take_all()
    replica.data.condemn(MinkaError(Code.CORRUPT_DATA, "a block is damaged"))
    leader_of(replica).proposed = None
    leader_of(replica).shrink()
    assert bench.take(IsrProposal) == []
