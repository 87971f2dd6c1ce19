"""The advice of `minkactl partitions explain`, given a status."""

import pytest

from minka.v1.admin_pb2 import GetOperationsResponse, GetSplitBlockersResponse, GetStatusResponse
from minka.v1.cluster_pb2 import NodeState, Partitioning, PartitionState
from minkactl.explain import explanation, subject

NODES = ["athens", "byzantium", "cyrene"]


def test_a_damaged_copy_is_named() -> None:
    status = GetStatusResponse()
    status.table.keyspaces.add(id=1, name="authors", partition_count=1)
    status.table.partitions.add(id=7, keyspace_id=1, replicas=NODES, isr=NODES[:2], leader="athens")
    status.damaged.add(partition_id=7, node_id="cyrene", reason="CORRUPT_DATA: reading 000012.sst")
    sentences = explanation(subject(status, GetOperationsResponse(), None, status.table.partitions[0]))["sentences"]
    said = [one["sentence"] for one in sentences if one["about"] == "replicas"]
    assert "Cyrene serves nothing of its copy, which is damaged: CORRUPT_DATA: reading 000012.sst." in said


def advice(
    replicas: list[str], leader: str, up: str = "", *, by_ranges: bool = False, damaged: str = "", eligible: str = ""
) -> list[str]:
    """Return the advice for authors/0. Two copies are damaged: that of the leader, and that of the node `damaged`. If
    `leader` is "", authors/0 is OFFLINE.
    """
    status = GetStatusResponse(from_controller=True, has_clearance=True)
    keyspace = status.table.keyspaces.add(id=1, name="authors", partition_count=1)
    if by_ranges:
        keyspace.partitioning = Partitioning.PARTITIONING_RANGES
    state = PartitionState.PARTITION_STATE_ASSIGNED if leader else PartitionState.PARTITION_STATE_OFFLINE
    row = status.table.partitions.add(id=7, keyspace_id=1, replicas=replicas, isr=replicas[:1], leader=leader)
    row.state = state
    row.eligible.extend([eligible] if eligible else [])
    for name in NODES:
        live = NodeState.NODE_STATE_LIVE if name in (up, leader) else NodeState.NODE_STATE_FAILED
        status.table.nodes.add(id=name, state=live)
    for name in filter(None, (leader, damaged)):
        status.damaged.add(partition_id=7, node_id=name, reason="CORRUPT_DATA: gone")
    blockers = GetSplitBlockersResponse()
    next_: list[str] = explanation(subject(status, GetOperationsResponse(), blockers, row))["next"]
    return next_


def test_only_remedies_that_can_help_are_advised() -> None:
    lost = "so is the data of authors/0"
    told = advice(["athens"], "athens")
    assert "put data_dir/partitions/7 back" in told[0]
    assert lost in told[1]
    assert len(told) == 2, "neither a move nor an unclean election helps"
    assert lost in advice(["athens"], "")[1]
    assert len(advice(["athens"], "", by_ranges=True)) == 2, "a split doesn't help either"
    for leader in ("athens", ""):
        unclean = "minkactl elect-leaders --unclean --partition authors/0"
        assert advice(NODES, leader, "cyrene")[1].endswith(f"lost for good: {unclean}")
        assert advice(NODES, leader)[1].endswith(f"start byzantium or cyrene, then {unclean}")


@pytest.mark.parametrize("leader", ["athens", ""])
def test_no_advice_lets_a_damaged_copy_lead(leader: str) -> None:
    two = advice(NODES[:2], leader, "byzantium", damaged="byzantium")
    assert two[1].startswith("if that is lost" if leader else "if what that had is lost")
    assert "so is the data of authors/0" in two[1]
    unclean = "minkactl elect-leaders --unclean --partition authors/0"
    assert advice(NODES, leader, "byzantium", damaged="byzantium")[1].endswith(f"start cyrene, then {unclean}")


def test_the_advice_is_to_start_an_eligible_replica_unless_it_is_damaged() -> None:
    assert advice(NODES, "athens", eligible="byzantium")[0] == "start byzantium, which has everything"
    assert "put data_dir" in advice(NODES, "athens", "byzantium", eligible="byzantium", damaged="byzantium")[0]


def by_hash(ops: int = 0) -> GetStatusResponse:
    """Return the active controller's status with authors/0, a partition by hash that athens leads. All is well."""
    status = GetStatusResponse(served_by="athens", from_controller=True, has_clearance=True)
    status.table.keyspaces.add(id=1, name="authors", partition_count=1, min_insync=2)
    for name in NODES:
        status.table.nodes.add(id=name, state=NodeState.NODE_STATE_LIVE)
    row = status.table.partitions.add(id=7, keyspace_id=1, replicas=NODES, isr=NODES, leader="athens")
    row.state = PartitionState.PARTITION_STATE_ONLINE
    status.replicas.add(partition_id=7, ops=ops, cpu_percent=ops // 100)
    return status


def next_of(status: GetStatusResponse, operations: GetOperationsResponse | None = None) -> list[str]:
    """Return what to do next about the first partition."""
    row = status.table.partitions[0]
    next_: list[str] = explanation(
        subject(status, operations or GetOperationsResponse(), GetSplitBlockersResponse(), row)
    )["next"]
    return next_


WATCH = "minkactl partitions explain authors/0 --watch"


@pytest.mark.parametrize("ops", [0, 2000])
def test_there_is_nothing_to_do_if_nothing_is_wrong(ops: int) -> None:
    assert next_of(by_hash(ops)) == []


@pytest.mark.parametrize("in_sync", [True, False])
@pytest.mark.parametrize("load", [0, 9000])
def test_the_first_advice_is_to_start_a_node_that_is_down(load: int, in_sync: bool) -> None:
    """A node that has just failed may still be in sync."""
    status = by_hash(load)
    status.table.nodes[2].state = NodeState.NODE_STATE_FAILED
    if not in_sync:
        status.table.partitions[0].isr[:] = NODES[:2]
    assert (
        next_of(status)[0] == "start cyrene, which is down; how, and what to do if it is gone for good: minkactl status"
    )
    assert len(next_of(status)) == 1, "other nodes would only get more load"
    status.table.nodes[1].state = NodeState.NODE_STATE_LEFT
    assert next_of(status)[0].startswith("start byzantium and cyrene, which are down; how, and what")
    assert "they are gone for good" in next_of(status)[0]


def test_without_an_active_controller_only_the_status_helps() -> None:
    for field in ("from_controller", "has_clearance"):
        for state in (PartitionState.PARTITION_STATE_ONLINE, PartitionState.PARTITION_STATE_OFFLINE):
            status = by_hash(9000)
            setattr(status, field, False)
            status.table.partitions[0].state = state
            assert next_of(status) == [
                "see why there is no active controller, and which nodes to start: minkactl status"
            ]


def test_a_replica_that_catches_up_needs_only_time() -> None:
    status = by_hash()
    status.table.partitions[0].isr[:] = NODES[:2]
    assert next_of(status) == [
        f"wait until cyrene is in sync: {WATCH}; if that takes long: minkactl partitions story authors/0"
    ]
    status.table.partitions[0].adding_replicas.append("cyrene")
    assert next_of(status) == [], "it joins by an operation"


def test_a_damaged_copy_is_replaced_in_time() -> None:
    status = by_hash()
    status.damaged.add(partition_id=7, node_id="cyrene", reason="CORRUPT_DATA: gone")
    assert next_of(status)[0].startswith(f"wait until cyrene has a whole copy: {WATCH}; if that takes long: ")


def test_a_leader_that_has_not_begun_needs_time() -> None:
    status = by_hash()
    status.table.partitions[0].state = PartitionState.PARTITION_STATE_ASSIGNED
    assert next_of(status) == [f"wait until athens serves it: {WATCH}; if that takes long: minkactl status"]


def test_what_an_operation_waits_for_has_a_remedy() -> None:
    operations = GetOperationsResponse()
    operations.blockers.add(
        operation_id=3, partition_id=7, reason="it is paused", remedy="minkactl operations resume 3"
    )
    operations.progress.add(partition_id=7, blocked_by="delphi does not answer", remedy="start delphi")
    operations.progress.add(partition_id=8, remedy="start ephesus")
    assert next_of(by_hash(), operations) == ["minkactl operations resume 3", "start delphi"]


def test_only_a_busy_leader_should_get_rid_of_load() -> None:
    status = by_hash(9000)
    assert [one.partition(":")[0] for one in next_of(status)] == ["if its load is one key's"], "athens has nothing else"
    other = status.table.partitions.add(id=8, keyspace_id=1, slot=1, replicas=NODES, isr=NODES, leader="athens")
    other.state = PartitionState.PARTITION_STATE_ONLINE
    status.replicas.add(partition_id=8, ops=500, cpu_percent=5)
    assert next_of(status)[1] == "move what else athens has: minkactl reassign --dry-run"
    about = subject(status, GetOperationsResponse(), None, status.table.partitions[0])
    sentences = [one["sentence"] for one in explanation(about)["sentences"]]
    assert "95 % of one processor of athens for all that it leads." in sentences
    status.replicas[0].cpu_percent = status.replicas[0].ops = 0
    assert next_of(status) == []
    status.replicas[0].cpu_percent, status.replicas[1].cpu_percent = 5, 85
    assert next_of(status) == ["move what else athens has: minkactl reassign --dry-run"]


def test_a_range_that_lacks_a_replica_is_advised_to_get_it_back() -> None:
    status = by_hash()
    status.table.keyspaces[0].partitioning = Partitioning.PARTITIONING_RANGES
    assert next_of(status) == ["minkactl split authors --partition authors/0 --dry-run"]
    status.table.nodes[2].state = NodeState.NODE_STATE_FAILED
    assert [one.partition(",")[0] for one in next_of(status)] == ["start cyrene"]
