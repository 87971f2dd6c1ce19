"""A caller that already has a version of the table gets only the changes since this version."""

import grpc

from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.admin_pb2 import GetTableRequest, GetTableResponse
from minka.v1.admin_pb2_grpc import MetadataStub
from tests.cluster.cluster import QUICK, create_keyspace, wait_ended, wait_settled


def test_only_changed_rows_are_sent() -> None:
    with LocalCluster(2, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        create_keyspace(control, "flights", 100, live=2)
        before = wait_settled(control, live=2)
        status = control.status()
        row = before.partitions[0]
        other = next(node.id for node in before.nodes if node.id != row.leader)
        wait_ended(control, control.apply_plan(control.plan_reassign(partitions={row.id: [other]}), "test").id)
        after = wait_settled(control, live=2)

        def ask(version: int, cluster_id: str) -> GetTableResponse:
            with grpc.insecure_channel(cluster.endpoints[0]) as channel:
                request = GetTableRequest(known_version=version, known_cluster=cluster_id)
                return MetadataStub(channel).GetTable(request, timeout=5)

        changes = ask(before.version, before.cluster.id).changes
        assert [one.id for one in changes.partitions] == [row.id]
        assert not changes.nodes
        assert ask(before.version, "another").table == after
        assert ask(after.version, after.cluster.id) == GetTableResponse()
        assert status.table.version < after.version
        assert control.status().table == after, "Control makes the table from the former one and the changes"
