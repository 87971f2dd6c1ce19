"""A node checks a leader repeatedly only while the leader may have something to do."""

from collections.abc import Callable

import pytest

from minkad.core.replication.instructions import IsrProposal
from minkad.core.replication.replica import Replica
from tests.unit.core.replication.bench import Bench, leader_of, log_of, row


def settled() -> tuple[Bench, Replica]:
    """A leader whose followers have all entries. A check of it has found nothing to do."""
    bench = Bench()
    replica = bench.host(row(), log_of(1))
    leader_of(replica).epoch_durable()
    bench.serve(replica)
    check(bench, replica)
    bench.take_all()
    assert bench.shared.unsettled == set()
    return bench, replica


def check(bench: Bench, replica: Replica, now: float | None = None) -> None:
    bench.now = bench.now if now is None else now
    leader_of(replica).check(bench.now, stalled=False)


def is_settled(bench: Bench) -> bool:
    return not bench.shared.unsettled


def test_a_new_leader_is_checked_until_all_followers_have_everything() -> None:
    bench = Bench()
    replica = bench.host(row(), log_of(1))
    check(bench, replica)
    assert not is_settled(bench)
    bench.align(replica, "byzantium")
    check(bench, replica)
    assert not is_settled(bench)
    bench.align(replica, "cyrene")
    check(bench, replica)
    assert is_settled(bench)


EVENTS: dict[str, Callable[[Bench, Replica], None]] = {
    "a write": lambda bench, replica: bench.write(replica),
    "a newer row": lambda bench, replica: bench.adopt(replica),
    "a broken stream": lambda bench, replica: leader_of(replica).disconnected(
        leader_of(replica).progress["cyrene"], "gone", bench.now
    ),
    "nodes that come or go": lambda bench, replica: leader_of(replica).nodes_changed(bench.now),
}


@pytest.mark.parametrize("event", EVENTS)
def test_a_settled_leader_is_checked_again_after_each_event(event: str) -> None:
    bench, replica = settled()
    EVENTS[event](bench, replica)
    assert bench.shared.unsettled == {replica.id}


@pytest.mark.parametrize(
    "fields",
    [
        {"successor": "byzantium"},
        {"replicas": ("athens", "byzantium", "cyrene", "delphi"), "adding_replicas": ("delphi",)},
        {"isr": ("athens", "byzantium")},
    ],
)
def test_a_leader_is_checked_while_its_row_is_in_transition(fields: dict[str, object]) -> None:
    bench, replica = settled()
    bench.adopt(replica, **fields)
    check(bench, replica)
    assert not is_settled(bench)


def test_a_leader_is_checked_while_a_proposal_is_open() -> None:
    bench, replica = settled()
    bench.view.absent = {"cyrene"}
    leader_of(replica).nodes_changed(bench.now)
    check(bench, replica)
    [proposal] = bench.take(IsrProposal)
    assert not is_settled(bench)
    bench.adopt(replica, isr=proposal.isr)
    leader_of(replica).disconnected(leader_of(replica).progress["cyrene"], "gone", bench.now)
    check(bench, replica)
    assert is_settled(bench), "no check is needed for an absent node that isn't in sync"
    bench.view.absent = set()
    leader_of(replica).nodes_changed(bench.now)
    check(bench, replica)
    assert not is_settled(bench), "it is back, and may join"


def test_a_former_leader_is_not_checked() -> None:
    bench, replica = settled()
    bench.write(replica)
    bench.adopt(replica, leader="byzantium", leader_epoch=2)
    assert is_settled(bench)


def test_a_followers_lag_begins_at_the_first_write_not_at_the_last_check() -> None:
    bench, replica = settled()
    timeout = bench.shared.settings.lag_timeout
    bench.now = 10 * timeout
    bench.write(replica)
    bench.sync(replica)
    bench.ack(replica, "byzantium")
    assert leader_of(replica).lags(bench.now) == {"byzantium": (0, 0.0), "cyrene": (1, 0.0)}
    check(bench, replica)
    assert bench.take(IsrProposal) == []
    check(bench, replica, 10.9 * timeout)
    assert bench.take(IsrProposal) == []
    entries, seconds = leader_of(replica).lags(bench.now)["cyrene"]
    assert entries == 1
    assert seconds == pytest.approx(0.9 * timeout)
    check(bench, replica, 11.1 * timeout)
    assert [proposal.isr for proposal in bench.take(IsrProposal)] == [("athens", "byzantium")]
