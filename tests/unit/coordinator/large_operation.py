"""A cluster with thousands of partitions, and an operation that moves them all."""

from minka.v1.admin_pb2 import PlanReassignRequest
from minka.v1.cluster_pb2 import HashFunction
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.reassigns import ApplyPlan
from minkad.core.controller.row_answers import ReplicaReport, ReportReplicas
from minkad.core.controller.rows import ROWS_A_STEP
from minkad.core.placement import plan_reassign
from tests.unit.core.model import Controller

MANY = 6 * ROWS_A_STEP


def a_cluster(partitions: int = MANY) -> Controller:
    """A cluster whose partitions are all on one node, and a second node, which is empty."""
    c = Controller()
    c.register("a")
    c.run(CreateKeyspace("large", partitions, HashFunction.HASH_FUNCTION_MURMUR3, 1))
    c.run(ReportReplicas([ReplicaReport("a", [(row.id, row.partition_epoch) for row in c.state.partitions.values()])]))
    c.undelivered.clear()
    c.register("b")
    return c


def moving_all(c: Controller) -> ApplyPlan:
    return ApplyPlan(plan_reassign(c.state, {}, PlanReassignRequest(to=["b"]), 0), "tester")


def begun(c: Controller) -> int:
    c.run(moving_all(c))
    return max(c.state.operations)
