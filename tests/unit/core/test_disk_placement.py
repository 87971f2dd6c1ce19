"""Replicas go to nodes whose disks have room."""

import pytest

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import AssignedReplicas, PlanReassignRequest
from minka.v1.cluster_pb2 import HashFunction
from minka.v1.coordinator_pb2 import DiskSpace
from minkad.core.controller.drains import DrainNode
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.placement import plan_reassign
from tests.unit.core.model import Controller

SIZES = dict.fromkeys(range(1, 13), 100)


def disk(free: int, *, low: bool = False) -> DiskSpace:
    return DiskSpace(total_bytes=10_000, free_bytes=free, low_mark_bytes=1000, is_low=low)


def cluster() -> Controller:
    """Twelve partitions of 100 bytes on two nodes, and two more nodes that have nothing."""
    c = Controller()
    c.register("a", "b")
    c.keyspace("k", 12)
    c.register("c", "d")
    return c


def test_nothing_goes_to_a_node_whose_disk_is_low() -> None:
    c = cluster()
    plan = plan_reassign(c.state, SIZES, PlanReassignRequest(), 1, {"c": disk(1200, low=True), "d": disk(5000)})
    assert {move.target for move in plan.moves} == {"d"}
    assert "nothing goes to c: its disk is low" in plan.notes


def test_a_node_gets_only_as_many_replicas_as_leave_its_disk_above_the_mark() -> None:
    c = cluster()
    plan = plan_reassign(c.state, SIZES, PlanReassignRequest(), 1, {"c": disk(1250), "d": disk(5000)})
    assert sorted(move.target for move in plan.moves) == ["c", "c", "d", "d", "d"]


def test_a_plan_that_a_person_asks_for_is_refused_if_there_is_no_room() -> None:
    c = cluster()
    wanted = [AssignedReplicas(partition_id=id_, replicas=["c"]) for id_ in (1, 2, 3)]
    with pytest.raises(MinkaError, match="k/2 can't go to c") as refusal:
        plan_reassign(c.state, SIZES, PlanReassignRequest(partitions=wanted), 1, {"c": disk(1250)})
    assert refusal.value.code is Code.DISK_LOW


def test_the_replicas_of_a_drained_node_go_to_nodes_with_room() -> None:
    c = cluster()
    disks = {"b": disk(900, low=True), "c": disk(1050), "d": disk(5000)}
    c.run(DrainNode("a", True, "tester", "", SIZES, 0, disks))
    migrations = [m for of in c.state.migrations.values() for m in of.values()]
    assert [m.target for m in migrations] == ["d"] * 6


def test_a_new_keyspace_has_no_replica_on_a_low_disk() -> None:
    c = cluster()

    def create(name: str, replicas: int) -> None:
        murmur = HashFunction.HASH_FUNCTION_MURMUR3
        c.run(CreateKeyspace(name, 8, murmur, replicas, low_disks=["c"]))

    create("new", 3)
    rows = [row for row in c.state.partitions.values() if row.keyspace_id == 2]
    assert {node for row in rows for node in row.replicas} == {"a", "b", "d"}
    with pytest.raises(MinkaError, match="3 are LIVE and have room: the disks of c are low") as refusal:
        create("wide", 4)
    assert refusal.value.code is Code.NOT_ENOUGH_NODES


def test_leaderships_move_away_from_nodes_with_low_disks() -> None:
    """Leaderships move only to replicas in sync whose disks aren't low. After such a move, the leadership stays."""
    c = Controller()
    c.register("a", "b", "c")
    c.keyspace("k", 6, replicas=2)
    for low in ("a", "ab", "abc", "bc"):
        c.low_disks = frozenset(low)
        before = {row.id: row.leader for row in c.state.partitions.values()}
        c.settle()
        for row in c.state.partitions.values():
            others = set(row.isr) - set(low)
            assert row.leader in others or not others
            moved = row.leader != before[row.id]
            assert moved == (before[row.id] in low and bool(others)), row
