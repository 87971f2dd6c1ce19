"""Eligible replicas: writes are refused since they left the in-sync set, so they lead if no replica in the set can.
Also: losses that a person accepts.
"""

import pytest

from minka.cluster.in_sync import eligible_replicas
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition, PartitionState
from minka.v1.coordinator_pb2 import IsrChange
from minka.v1.records_pb2 import PartitionsChanged, Record
from minkad.core.controller import AlterIsr, DrainNode, ElectUnclean, FailNodes, isr_refusal
from tests.unit.core.model import Controller, changed

OFFLINE = PartitionState.PARTITION_STATE_OFFLINE


def alone(min_insync: int = 2, **more: bool) -> tuple[Controller, Partition]:
    """Partition 1 on three nodes: a leads alone, and c and then b have left the in-sync set."""
    c = Controller()
    c.register("a", "b", "c")
    c.keyspace("flights", 1, replicas=3, min_insync=min_insync, **more)
    c.fail("c", "b")
    assert (row(c).leader, list(row(c).isr)) == ("a", ["a"])
    return c, row(c)


def row(c: Controller) -> Partition:
    return c.state.partitions[1]


def eligible(c: Controller) -> list[str]:
    return list(eligible_replicas(row(c)))


@pytest.mark.parametrize(("min_insync", "expected"), [(1, []), (2, ["b"]), (3, ["b", "c"])])
def test_who_leaves_is_eligible_if_writes_are_refused_without_it(min_insync: int, expected: list[str]) -> None:
    c, _ = alone(min_insync)
    assert sorted(eligible(c)) == expected


def test_nobody_is_eligible_any_longer_once_writes_are_taken_without_them() -> None:
    c, _ = alone()
    c.register("c", incarnation="2")
    c.alter_isr(row(c), ["a", "c"])
    assert eligible(c) == []
    c.run(FailNodes(dict.fromkeys("ac", "gone")))
    c.register("b", incarnation="2")
    assert row(c).state == OFFLINE


def test_who_is_eligible_stays_it_while_writes_are_refused() -> None:
    c, _ = alone(3)
    c.register("b", incarnation="2")
    c.alter_isr(row(c), ["a", "b"])
    assert eligible(c) == ["c"]


def test_an_eligible_replica_leads_if_nobody_in_sync_can() -> None:
    c, before = alone()
    c.run(FailNodes({"a": "gone"}))
    assert row(c).state == OFFLINE
    c.register("c", incarnation="2")
    assert row(c).state == OFFLINE, "it left while writes were taken without it"
    c.register("b", incarnation="2")
    after = row(c)
    assert (after.leader, after.leader_epoch, after.unclean_elections) == ("b", before.leader_epoch + 1, 0)
    assert sorted(after.isr) == ["a", "b"], "each of them has everything; the leader takes out those that are gone"
    assert eligible(c) == []
    c.replace_controller()
    c.settle()
    c.register("a", incarnation="2")
    c.settle()
    assert sorted(row(c).isr) == ["a", "b", "c"]


def test_one_in_sync_comes_before_an_eligible_one() -> None:
    c, _ = alone()
    c.run(FailNodes({"a": "gone"}))
    c.register("a", incarnation="2")
    assert (row(c).leader, eligible(c)) == ("a", ["b"])


def test_an_eligible_one_comes_before_an_unclean_election() -> None:
    c, _ = alone(unclean=True)
    c.register("b", "c", incarnation="2")
    assert eligible(c) == ["b"]
    c.run(FailNodes({"a": "gone"}))
    assert (row(c).leader, row(c).unclean_elections) == ("b", 0)


def test_the_leader_says_who_is_no_longer_eligible() -> None:
    c, _ = alone()
    c.alter_isr(row(c), ["a"], eligible=[])
    assert eligible(c) == []


@pytest.mark.parametrize("named", ["c", "a", "x"])
def test_nobody_becomes_eligible_who_has_not_everything(named: str) -> None:
    c, now = alone()
    change = IsrChange(
        partition_id=1,
        leader_epoch=now.leader_epoch,
        partition_epoch=now.partition_epoch,
        isr=["a"],
        eligible=[named],
    )
    assert isr_refusal(c.state, "a", change) is Code.INVALID_ARGUMENT
    c.run(AlterIsr("a", [change]))
    assert row(c) == now


def test_what_a_row_says_is_void_once_another_controller_has_changed_it() -> None:
    """A leader of an older version copies the field, and lets the isr grow without looking at it."""
    c, _ = alone()
    old = changed(row(c), lambda new: new.isr.append("c"))
    assert list(old.eligible) == ["b"]
    assert list(eligible_replicas(old)) == []


def test_a_restarted_copy_that_may_not_be_synced_is_not_eligible() -> None:
    c, _ = alone(volatile=True)
    assert eligible(c) == ["b"]
    c.run(FailNodes({"a": "gone"}))
    c.register("b", incarnation="2")
    assert (row(c).state, eligible(c)) == (OFFLINE, [])


@pytest.mark.parametrize("named", ["a", "c"])
def test_who_is_eligible_is_asserted(named: str) -> None:
    c, _ = alone()

    def name(new: Partition) -> None:
        new.eligible.append(named)
        new.eligible_at = new.partition_epoch + 1

    with pytest.raises(AssertionError):
        c.state.apply(Record(partitions_changed=PartitionsChanged(partitions=[changed(row(c), name)])))


def test_that_the_in_sync_set_refuses_writes_is_asserted() -> None:
    c, _ = alone()

    def grow(new: Partition) -> None:
        new.isr.append("c")
        new.eligible_at = new.partition_epoch + 1

    with pytest.raises(AssertionError):
        c.state.apply(Record(partitions_changed=PartitionsChanged(partitions=[changed(row(c), grow)])))


# A loss that a person accepts


def lost() -> Controller:
    """A and b are gone, and c lacks something."""
    c, _ = alone()
    c.run(FailNodes({"a": "gone"}))
    c.register("c", incarnation="2")
    return c


def accept(c: Controller, node: str) -> None:
    c.run(ElectUnclean(1, row(c).partition_epoch, node))


def test_a_person_lets_what_is_left_lead() -> None:
    c = lost()
    epoch = row(c).leader_epoch
    accept(c, "c")
    assert (row(c).leader, list(row(c).isr), row(c).leader_epoch) == ("c", ["c"], epoch + 1)
    assert (row(c).unclean_elections, eligible(c)) == (1, [])
    c.register("a", "b", incarnation="3")
    c.settle()
    assert sorted(row(c).isr) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("node", "why", "remedy"),
    [("a", "it is not LIVE", "Start"), ("d", "it has no replica of it", "Name"), ("c", "its copy is damaged", "Name")],
)
def test_who_can_not_lead(node: str, why: str, remedy: str) -> None:
    c = lost()
    c.register("d")
    with pytest.raises(MinkaError, match=f"{node} can't lead flights/0: {why}") as refusal:
        c.run(ElectUnclean(1, row(c).partition_epoch, node, ["c"]))
    assert refusal.value.code is Code.INELIGIBLE_REPLICA
    assert refusal.value.details["remedy"].startswith(remedy)


def test_a_drain_leaves_what_nobody_leads_alone_and_names_all_that_helps() -> None:
    c = lost()
    c.register("d", "e")
    told = (
        r"a still holds 1 partitions \(flights/0\): it stays on a: it is OFFLINE, and its data is on a, b; "
        "start a or b; if what that had is lost for good: minkactl elect-leaders --unclean --partition flights/0"
    )
    with pytest.raises(MinkaError, match=told) as refusal:
        c.run(DrainNode("a", True, "tester", "", {}))
    assert refusal.value.code is Code.NO_SOURCE


def test_a_drain_advises_no_unclean_election_where_no_copy_could_lead() -> None:
    c = lost()
    c.register("d", "e")
    c.fail("c")
    with pytest.raises(MinkaError, match="no node that is up has another copy") as refusal:
        c.run(DrainNode("a", True, "tester", "", {}))
    assert "elect-leaders" not in str(refusal.value)


def test_nothing_is_accepted_while_somebody_leads_or_for_another_row() -> None:
    c, _ = alone()
    with pytest.raises(MinkaError, match="a leads it") as refusal:
        accept(c, "a")
    assert refusal.value.code is Code.LEADER_EXISTS
    c = lost()
    with pytest.raises(MinkaError) as refusal:
        c.run(ElectUnclean(1, row(c).partition_epoch - 1, "c"))
    assert refusal.value.code is Code.STALE_EPOCH
    with pytest.raises(MinkaError) as refusal:
        c.run(ElectUnclean(9, 1, "c"))
    assert refusal.value.code is Code.UNKNOWN_PARTITION


def test_a_leader_whose_copy_is_damaged_and_who_is_alone_in_sync_can_be_replaced() -> None:
    """The leader leads by the row, but serves nothing."""
    c, _ = alone()
    c.register("c", incarnation="2")
    epoch = row(c).partition_epoch
    with pytest.raises(MinkaError, match="a can't lead flights/0: its copy is damaged"):
        c.run(ElectUnclean(1, epoch, "a", ["a"]))
    c.run(ElectUnclean(1, epoch, "c", ["a"]))
    assert (row(c).leader, list(row(c).isr), row(c).unclean_elections) == ("c", ["c"], 1)


def test_a_damaged_leader_beside_which_another_is_in_sync_needs_no_unclean_election() -> None:
    c, _ = alone()
    c.register("b", "c", incarnation="2")
    c.alter_isr(row(c), ["a", "b"])
    with pytest.raises(MinkaError) as refusal:
        c.run(ElectUnclean(1, row(c).partition_epoch, "c", ["a"]))
    assert refusal.value.code is Code.LEADER_EXISTS
