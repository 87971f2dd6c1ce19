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
    status = GetStatusResponse()
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
