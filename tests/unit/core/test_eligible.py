"""An eligible replica may lead if no replica in sync can: since it left the in-sync set, writes have been refused. A
person may also accept a loss, and let any other replica lead.
"""

import pytest

from minka.cluster.in_sync import eligible_replicas
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition, PartitionState
from minka.v1.coordinator_pb2 import AlterIsrRequest, IsrChange
from minka.v1.records_pb2 import PartitionsChanged, Record
from minkad.core.controller.drains import DrainNode
from minkad.core.controller.isr import isr_refusal
from minkad.core.controller.membership import FailNodes
from minkad.core.controller.unclean import ElectUnclean
from tests.unit.core.model import Controller, changed

OFFLINE = PartitionState.PARTITION_STATE_OFFLINE


def alone(min_insync: int = 2, **more: bool) -> tuple[Controller, Partition]:
    """Partition 1 on three nodes. First c left the in-sync set, then b; a leads alone."""
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
def test_a_leaving_replica_is_eligible_if_writes_need_it(min_insync: int, expected: list[str]) -> None:
    c, _ = alone(min_insync)
    assert sorted(eligible(c)) == expected


def test_no_replica_stays_eligible_once_writes_are_taken_without_it() -> None:
    c, _ = alone()
    c.register("c", incarnation="2")
    c.alter_isr(row(c), ["a", "c"])
    assert eligible(c) == []
    c.run(FailNodes(dict.fromkeys("ac", "gone")))
    c.register("b", incarnation="2")
    assert row(c).state == OFFLINE


def test_a_replica_stays_eligible_while_writes_are_refused() -> None:
    c, _ = alone(3)
    c.register("b", incarnation="2")
    c.alter_isr(row(c), ["a", "b"])
    assert eligible(c) == ["c"]


def test_an_eligible_replica_leads_if_no_replica_in_sync_can() -> None:
    c, before = alone()
    c.run(FailNodes({"a": "gone"}))
    assert row(c).state == OFFLINE
    c.register("c", incarnation="2")
    assert row(c).state == OFFLINE, "c left the set while writes went on without it"
    c.register("b", incarnation="2")
    after = row(c)
    assert (after.leader, after.leader_epoch, after.unclean_elections) == ("b", before.leader_epoch + 1, 0)
    assert sorted(after.isr) == ["a", "b"], "both have everything; b takes a out later, since a is gone"
    assert eligible(c) == []
    c.replace_controller()
    c.settle()
    c.register("a", incarnation="2")
    c.settle()
    assert sorted(row(c).isr) == ["a", "b", "c"]


def test_a_replica_in_sync_is_preferred_to_an_eligible_one() -> None:
    c, _ = alone()
    c.run(FailNodes({"a": "gone"}))
    c.register("a", incarnation="2")
    assert (row(c).leader, eligible(c)) == ("a", ["b"])


def test_an_eligible_replica_is_preferred_to_an_unclean_election() -> None:
    c, _ = alone(unclean=True)
    c.register("b", "c", incarnation="2")
    assert eligible(c) == ["b"]
    c.run(FailNodes({"a": "gone"}))
    assert (row(c).leader, row(c).unclean_elections) == ("b", 0)


def test_the_leader_can_end_a_replicas_eligibility() -> None:
    c, _ = alone()
    c.alter_isr(row(c), ["a"], eligible=[])
    assert eligible(c) == []


@pytest.mark.parametrize("named", ["c", "a", "x"])
def test_a_replica_that_lacks_something_can_not_become_eligible(named: str) -> None:
    c, now = alone()
    change = IsrChange(
        partition_id=1,
        leader_epoch=now.leader_epoch,
        partition_epoch=now.partition_epoch,
        isr=["a"],
        eligible=[named],
    )
    assert isr_refusal(c.state, "a", change) is Code.INVALID_ARGUMENT
    c.run(AlterIsrRequest(node_id="a", changes=[change]))
    assert row(c) == now


def test_the_eligible_replicas_of_a_row_are_void_once_an_older_version_has_changed_it() -> None:
    """A controller of an older version keeps the field `eligible` in the row, even when the in-sync set grows and takes
    writes again.
    """
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
def test_only_replicas_that_have_just_left_may_become_eligible(named: str) -> None:
    c, _ = alone()

    def name(new: Partition) -> None:
        new.eligible.append(named)
        new.eligible_at = new.partition_epoch + 1

    with pytest.raises(AssertionError):
        c.state.apply(Record(partitions_changed=PartitionsChanged(partitions=[changed(row(c), name)])))


def test_no_replica_may_be_eligible_beside_a_set_that_takes_writes() -> None:
    c, _ = alone()

    def grow(new: Partition) -> None:
        new.isr.append("c")
        new.eligible_at = new.partition_epoch + 1

    with pytest.raises(AssertionError):
        c.state.apply(Record(partitions_changed=PartitionsChanged(partitions=[changed(row(c), grow)])))


# A loss that a person accepts


def lost() -> Controller:
    """Partition 1 has no leader: the nodes a and b are gone, and c may lack acknowledged writes."""
    c, _ = alone()
    c.run(FailNodes({"a": "gone"}))
    c.register("c", incarnation="2")
    return c


def accept(c: Controller, node: str) -> None:
    c.run(ElectUnclean(1, row(c).partition_epoch, node))


def test_a_person_can_let_a_remaining_replica_lead() -> None:
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
def test_a_person_can_not_let_an_unfit_replica_lead(node: str, why: str, remedy: str) -> None:
    c = lost()
    c.register("d")
    with pytest.raises(MinkaError, match=f"{node} can't lead flights/0: {why}") as refusal:
        c.run(ElectUnclean(1, row(c).partition_epoch, node, ["c"]))
    assert refusal.value.code is Code.INELIGIBLE_REPLICA
    assert refusal.value.details["remedy"].startswith(remedy)


def test_a_drain_leaves_offline_partitions_where_they_are_and_names_all_remedies() -> None:
    c = lost()
    c.register("d", "e")
    told = (
        r"a still holds 1 partitions \(flights/0\): it stays on a: it is OFFLINE, and its data is on a, b; "
        "start a or b; if that data is lost for good: minkactl elect-leaders --unclean --partition flights/0"
    )
    with pytest.raises(MinkaError, match=told) as refusal:
        c.run(DrainNode("a", True, "tester", "", {}))
    assert refusal.value.code is Code.NO_SOURCE


def test_a_drain_advises_no_unclean_election_if_no_copy_could_lead() -> None:
    c = lost()
    c.register("d", "e")
    c.fail("c")
    with pytest.raises(MinkaError, match="no node that is up has another copy") as refusal:
        c.run(DrainNode("a", True, "tester", "", {}))
    assert "elect-leaders" not in str(refusal.value)


def test_a_loss_is_not_accepted_while_a_replica_leads_or_for_an_older_row() -> None:
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


def test_a_damaged_leader_that_is_alone_in_sync_can_be_replaced() -> None:
    """The row still names the damaged node as leader, although the node serves nothing."""
    c, _ = alone()
    c.register("c", incarnation="2")
    epoch = row(c).partition_epoch
    with pytest.raises(MinkaError, match="a can't lead flights/0: its copy is damaged"):
        c.run(ElectUnclean(1, epoch, "a", ["a"]))
    c.run(ElectUnclean(1, epoch, "c", ["a"]))
    assert (row(c).leader, list(row(c).isr), row(c).unclean_elections) == ("c", ["c"], 1)


def test_a_damaged_leader_is_not_replaced_uncleanly_while_another_replica_is_in_sync() -> None:
    c, _ = alone()
    c.register("b", "c", incarnation="2")
    c.alter_isr(row(c), ["a", "b"])
    with pytest.raises(MinkaError) as refusal:
        c.run(ElectUnclean(1, row(c).partition_epoch, "c", ["a"]))
    assert refusal.value.code is Code.LEADER_EXISTS
