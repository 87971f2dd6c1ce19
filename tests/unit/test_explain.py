"""`minkactl partitions explain`, by what the status says."""

from minka.v1.admin_pb2 import GetOperationsResponse, GetStatusResponse
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
