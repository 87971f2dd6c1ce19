"""Partitions move between nodes while clients write."""

import pytest

from minka.admin.control import Control
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import OperationState
from tests.cluster.cluster import (
    QUICK,
    assert_nobody_holds_what_it_does_not_own,
    create_keyspace,
    leaders,
    wait_ended,
    wait_settled,
)
from tests.cluster.workload import Workload


def test_thirty_partitions_and_a_fourth_node_under_load() -> None:
    with LocalCluster(3, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        create_keyspace(control, "flights", 30, live=3)
        with Workload(cluster.endpoints, "flights", seed=1, timeout=20.0) as load:
            cluster.add("ephesus")
            wait_settled(control, live=4)
            plan = control.plan_reassign()
            assert len(plan.moves) == plan.minimum_moves == 7
            operation = control.apply_plan(plan, "test")
            ended = wait_ended(control, operation.id)
            load.stop()
            assert (ended.state, ended.outcome) == (
                OperationState.OPERATION_STATE_SUCCEEDED,
                "7 of 7 partitions moved",
            )
            table = wait_settled(control, live=4)
            assert leaders(table, cluster.nodes) == [7, 7, 8, 8]
            assert load.acknowledged > 0
            assert load.failures == [], "a reassign must not fail a client's write"
            assert assert_nobody_holds_what_it_does_not_own(cluster, control, table) == load.check()


def test_a_plan_is_refused_if_a_partition_in_it_has_changed() -> None:
    """A plan becomes invalid when one of its partitions changes. It stays valid when only other things change."""
    with LocalCluster(3, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        create_keyspace(control, "flights", 9, live=3)
        cluster.add("ephesus")
        wait_settled(control, live=4)
        plan = control.plan_reassign()
        one = control.plan_reassign(partitions={plan.moves[0].partition_id: ["ephesus"]})
        other = control.plan_reassign(partitions={plan.moves[1].partition_id: ["ephesus"]})
        create_keyspace(control, "more", 3, live=4)
        wait_ended(control, control.apply_plan(one, "test").id)
        with pytest.raises(MinkaError) as refusal:
            control.apply_plan(plan, "test")
        assert refusal.value.code is Code.STALE_PLAN
        assert wait_ended(control, control.apply_plan(other, "test").id).outcome == "1 of 1 partitions moved"
