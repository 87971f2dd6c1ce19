"""What minkactl says is in the way of a split is what the controller refuses it for; and that a copy is damaged."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from minka.v1.admin_pb2 import GetOperationsResponse, GetStatusResponse
from minka.v1.cluster_pb2 import Keyspace, Partition, Partitioning, PartitionState
from minkactl.explain import explanation, obstacles, subject
from minkad.core.controller.splits import obstacle

NODES = ["athens", "byzantium", "cyrene"]


@given(
    st.sampled_from(PartitionState.values()[1:]), st.booleans(), st.booleans(), st.booleans(), st.integers(1, 3),
    st.integers(1, 3),
)  # fmt: skip
def test_as_the_controller(state: Any, splitting: bool, moves: bool, hands: bool, in_sync: int, needed: int) -> None:
    row = Partition(
        id=7, keyspace_id=1, replicas=NODES, isr=NODES[:in_sync], leader="athens", state=state, splitting=splitting,
        split_to=8 if splitting else 0, target_replicas=NODES if moves else [], successor="cyrene" if hands else "",
    )  # fmt: skip
    keyspace = Keyspace(id=1, name="authors", min_insync=needed, partitioning=Partitioning.PARTITIONING_RANGES)
    status = GetStatusResponse()
    status.table.keyspaces.append(keyspace)
    status.table.partitions.append(row)
    found = obstacles(subject(status, GetOperationsResponse(), row))
    refusal: Any = SimpleNamespace(keyspaces={1: keyspace})
    assert bool(found) == (obstacle(refusal, row) is not None)


def test_a_damaged_copy_is_named() -> None:
    status = GetStatusResponse()
    status.table.keyspaces.add(id=1, name="authors", partition_count=1)
    status.table.partitions.add(id=7, keyspace_id=1, replicas=NODES, isr=NODES[:2], leader="athens")
    status.damaged.add(partition_id=7, node_id="cyrene", reason="CORRUPT_DATA: reading 000012.sst")
    sentences = explanation(subject(status, GetOperationsResponse(), status.table.partitions[0]))["sentences"]
    said = [one["sentence"] for one in sentences if one["about"] == "replicas"]
    assert "Cyrene serves nothing of its copy, which is damaged: CORRUPT_DATA: reading 000012.sst." in said
