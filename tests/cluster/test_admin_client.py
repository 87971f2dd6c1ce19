"""Programs use `minka.admin` on a real cluster."""

from collections.abc import Iterator

import pytest

from minka import Client
from minka.admin import (
    Admin,
    Code,
    Durability,
    MinkaError,
    NodeState,
    OperationKind,
    OperationState,
    Partitioning,
    Plan,
)
from minka.testing.local_cluster import LocalCluster
from tests.cluster.cluster import QUICK, eventually


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(4, config=QUICK) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.endpoints, timeout=20.0, requested_by="a program") as admin:
        eventually("all nodes are LIVE", lambda: {node.state for node in admin.nodes()} == {NodeState.LIVE})
        yield admin


def test_an_operation_is_held_up_limited_and_cancelled(cluster: LocalCluster, admin: Admin) -> None:
    """The limit makes a reassign slow. The test kills the target node meanwhile, and a blocker names this node."""
    admin.create_keyspace("fares", partitions=2, replicas=1)
    eventually("all are ONLINE", lambda: {one.state for one in admin.partitions("fares")} == {"online"})
    with Client(cluster.endpoints, keyspace="fares", timeout=20) as fares:
        fares.put_many({b"%d" % number: bytes(1000) for number in range(10_000)})
    first, second = admin.partitions("fares")
    away = next(one.id for one in admin.nodes() if one.id not in (first.leader, second.leader) and not one.is_voter)
    plan = admin.plan_reassign(partitions={first: [away], second: [away]}, rate_limit=1)
    assert {(move.partition, move.partition_id, move.target) for move in plan.moves} == {
        (one.name, one.id, away) for one in (first, second)
    }
    operation = admin.apply(Plan.from_json(plan.to_json()), reason="to see it wait")
    assert operation.reassign is not None
    assert (operation.rate_limit, operation.reassign.plan_digest) == (1, plan.digest)
    cluster.kill(away)
    (blocker, *_) = eventually("it is held up", lambda: admin.blockers(operation) or None)
    assert blocker.operation_id == operation.id
    assert away in blocker.reason
    assert {one.partition_id for one in admin.migrations(operation)} == {first.id, second.id}
    assert admin.limit(operation, 0).rate_limit == 0
    assert admin.pause(operation).paused
    assert not admin.resume(operation).paused
    with pytest.raises(MinkaError, match="is running after"):
        admin.wait(operation, 0.5)
    admin.cancel(operation, reason="it has waited")
    assert admin.wait(operation, 30.0).state is OperationState.CANCELLED
    cluster.restart(away)


def test_seats_and_leaders_change(admin: Admin) -> None:
    voters = {one.id for one in admin.nodes() if one.is_voter}
    learner = next(one.id for one in admin.nodes() if one.id not in voters and one.state is NodeState.LIVE)
    controller = next(one.id for one in admin.nodes() if one.is_controller)
    other = next(iter(voters - {controller}))
    admin.transfer_leadership(other)
    assert next(one.id for one in admin.nodes() if one.is_controller) == other

    def change() -> bool:
        admin.change_voters(promote=[learner], demote=[controller])
        return True

    eventually("the learner has caught up, and is a voter", change)
    assert {one.id for one in admin.nodes() if one.is_voter} == voters - {controller} | {learner}
    drained = admin.wait(admin.drain(learner), 30.0)
    assert drained.state is OperationState.SUCCEEDED
    assert admin.drain_status(learner).state is NodeState.DRAINING
    admin.undrain(learner)
    assert admin.drain_status(learner).state is NodeState.LIVE
    election = admin.elect_leaders()
    if election.operation is not None:
        assert admin.wait(election.operation, 30.0).elect_leaders is not None
    assert election.skipped == ()


def test_a_node_is_emptied_and_removed(cluster: LocalCluster, admin: Admin) -> None:
    created = admin.create_keyspace("flights", partitions=6, replicas=2, durability=Durability.ASYNC)
    assert (created.partitions, created.replicas, created.durability, created.max_bytes) == (6, 2, "async", None)
    with Client(cluster.endpoints, keyspace="flights", timeout=20) as flights:
        flights.put_many({b"%d" % number: b"x" for number in range(100)})
    eventually("all are ONLINE", lambda: {one.name: one.online for one in admin.keyspaces()}["flights"] == 6)
    controller = next(node.id for node in admin.nodes() if node.is_controller)
    last = next(node.id for node in admin.nodes() if not node.is_voter)
    assert (
        admin.wait(admin.apply(admin.plan_reassign(to=[last, controller], keyspaces=["flights"])), 60.0).state
        == "succeeded"
    )
    assert {replica for one in admin.partitions("flights") for replica in one.replicas} == {last, controller}
    plan = admin.plan_reassign(drain=[last], keyspaces=["flights"], reason="a new disk")
    assert {move.source for move in plan.moves} == {last}
    assert len(plan.moves) == plan.minimum_moves == 6
    operation = admin.wait(admin.apply(plan), 60.0)
    assert (operation.state, operation.reason, operation.requested_by) == ("succeeded", "a new disk", "a program")
    assert {migration.state for migration in admin.migrations(operation)} == {"completed"}
    with pytest.raises(MinkaError) as refusal:
        admin.apply(plan)
    assert refusal.value.code is Code.STALE_PLAN
    drained = admin.wait(admin.drain(last, decommission=True), 60.0)
    assert (drained.kind, drained.state) == (OperationKind.DRAIN, OperationState.SUCCEEDED)
    assert drained.drain is not None
    assert (drained.drain.node, drained.drain.decommission) == (last, True)
    assert admin.drain_status(last).safe_to_stop
    cluster.terminate(last)
    eventually("it has left", lambda: next(n.state for n in admin.nodes() if n.id == last) is NodeState.LEFT)
    admin.remove_node(last)
    assert last not in {node.id for node in admin.nodes()}
    assert [one.id for one in admin.operations(limit=1)] == [drained.id]
    cluster.add()  # the other tests need a node that isn't a voter


def test_a_range_is_split_and_merged(admin: Admin) -> None:
    created = admin.create_keyspace("authors", split_points=[b"m"], replicas=1, max_bytes=1 << 30)
    assert (created.partitioning, created.hash_function, created.max_bytes) == (Partitioning.RANGES, None, 1 << 30)
    eventually("it is ONLINE", lambda: {one.state for one in admin.partitions("authors")} == {"online"})
    split = admin.split("authors", [b"f"])
    assert split is not None
    assert admin.wait(split, 30.0).state is OperationState.SUCCEEDED
    assert [(one.start_key, one.end_key) for one in admin.partitions("authors")] == [
        (b"", b"f"),
        (b"f", b"m"),
        (b"m", b""),
    ]
    assert admin.split("authors", [b"f"]) is None
    with pytest.raises(MinkaError) as empty:
        admin.split_keys(next(admin.partitions("authors")).id, 2)
    assert empty.value.code is Code.NO_SPLIT_KEY
    assert admin.wait(admin.merge("authors", [b"f", b"m"]), 30.0).state is OperationState.SUCCEEDED
    assert len(list(admin.partitions("authors"))) == 1


def test_wrong_arguments_have_error_codes(admin: Admin) -> None:
    for code, call in (
        (Code.INVALID_ARGUMENT, lambda: admin.create_keyspace("neither")),
        (Code.INVALID_ARGUMENT, lambda: admin.create_keyspace("x", partitions=1, hash_function="sha")),  # type: ignore[arg-type]
        (Code.INVALID_ARGUMENT, lambda: admin.operations(limit=0)),
        (Code.UNKNOWN_KEYSPACE, lambda: list(admin.partitions("nowhere"))),
        (Code.UNKNOWN_NODE, lambda: admin.drain("nobody")),
        (Code.UNKNOWN_OPERATION, lambda: admin.operation(4711)),
        (Code.UNKNOWN_PARTITION, lambda: admin.split_keys(4711, 2)),
        (Code.UNKNOWN_PARTITION, lambda: admin.elect_unclean(4711, "cyrene", partition_epoch=1)),
    ):
        with pytest.raises(MinkaError) as refusal:
            call()
        assert refusal.value.code is code
