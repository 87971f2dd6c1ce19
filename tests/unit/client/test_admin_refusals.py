"""`Admin` and `Client.plan_rebalance` against real gRPC servers: the arguments that they refuse, and their requests."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from minka.admin import Admin, Code, HashFunction, MinkaError, Plan
from minka.cluster.plan_digest import plan_digest
from minka.duties import Client
from minka.v1 import admin_pb2, cluster_pb2
from minka.v1.cluster_pb2 import Partitioning
from tests.unit.client.conftest import ControlNode

Start = Callable[[], ControlNode]
MOVES = [admin_pb2.Move(partition=f"flights/{slot}", source="athens", target="cyrene") for slot in range(2)]
PLAN = admin_pb2.Plan(digest="4711", created_ms=1_700_000_000_000, moves=MOVES, reason="a new disk")
Ask = Callable[[Any], Any]
WRONG: list[tuple[str, Ask]] = [
    ("partitions is '8', not int", lambda admin: admin.create_keyspace("f", partitions="8")),
    ("partitions is -1, not from 0 to 4,294,967,295", lambda admin: admin.create_keyspace("f", partitions=-1)),
    ("partitions is True, not int", lambda admin: admin.create_keyspace("f", partitions=True)),
    ("partitions is 0; give at least 1", lambda admin: admin.create_keyspace("f", partitions=0)),
    ("replicas is 0; give at least 1, or None", lambda admin: admin.create_keyspace("f", partitions=8, replicas=0)),
    ("min_insync is 0; give at least 1, or None", lambda admin: admin.create_keyspace("f", partitions=8, min_insync=0)),
    (
        "max_bytes is 0; give at least 1, or None",
        lambda admin: admin.create_keyspace("f", split_points=[], max_bytes=0),
    ),
    ("max_bytes and max_ops are only for", lambda admin: admin.create_keyspace("f", partitions=4, max_bytes=1 << 30)),
    ("max_bytes and max_ops are only for", lambda admin: admin.create_keyspace("f", partitions=4, max_ops=0)),
    ("hash_function is only for", lambda a: a.create_keyspace("f", split_points=[], hash_function=HashFunction.CRC16)),
    ("the name of a keyspace is int, not str", lambda admin: admin.create_keyspace(5, partitions=8)),
    ("the name of a keyspace must have 1 to 63 characters", lambda admin: admin.create_keyspace("a b/", partitions=8)),
    ("unclean_election is 'no', not bool", lambda a: a.create_keyspace("f", partitions=8, unclean_election="no")),
    ("one of split_points is 'b', not bytes", lambda admin: admin.create_keyspace("f", split_points=["b"])),
    ("split_points is b'b', not a list of bytes", lambda admin: admin.create_keyspace("f", split_points=b"b")),
    ("one of keys is 't', not bytes", lambda admin: admin.split("r2", ["t"])),
    ("keys is b't', not a list of bytes", lambda admin: admin.merge("r2", b"t")),
    ("operation is '3', not int", lambda admin: admin.operation("3")),
    ("operation is '3', not int", lambda admin: admin.pause("3")),
    ("operation is None, not int", lambda admin: admin.cancel(None)),
    ("rate_limit is 1.5, not int", lambda admin: admin.limit(3, 1.5)),
    ("rate_limit is -1, not from 0 to", lambda admin: admin.limit(3, -1)),
    ("rate_limit is 18446744073709551616, not from 0 to", lambda admin: admin.drain("cyrene", rate_limit=1 << 64)),
    ("limit is 'x', not int", lambda admin: admin.operations("x")),
    ("limit is 0, not from 1 to 1,000", lambda admin: admin.operations(0)),
    ("'x' isn't a positive time", lambda admin: admin.wait(3, "x")),
    ("drain is 'cyrene', not a list of str", lambda admin: admin.plan_reassign(drain="cyrene")),
    ("to is 'cyrene', not a list of str", lambda admin: admin.plan_reassign(to="cyrene")),
    ("keyspaces is 'r2', not a list of str", lambda admin: admin.plan_reassign(keyspaces="r2")),
    ("keyspaces is None, not a list of str", lambda admin: admin.elect_leaders(keyspaces=None)),
    ("partitions is '28', not a list of partitions", lambda admin: admin.elect_leaders(partitions="28")),
    ("'28' isn't a partition's name, such as", lambda admin: admin.plan_reassign(partitions={"28": ["athens"]})),
    ("a partition is 2.5, not int", lambda admin: admin.plan_reassign(partitions={2.5: ["athens"]})),
    ("a value of partitions is 'athens', not a list", lambda admin: admin.plan_reassign(partitions={28: "athens"})),
    ("partitions is .*, not a mapping", lambda admin: admin.plan_reassign(partitions=[28])),
    ("a value of weights is 'x', not float", lambda admin: admin.plan_reassign(weights={"athens": "x"})),
    ("a value of weights is True, not float", lambda admin: admin.plan_reassign(weights={"athens": True})),
    ("True isn't a positive time", lambda admin: admin.wait(3, True)),
    ("weights is 2, not a mapping from str to float", lambda admin: admin.plan_reassign(weights=2)),
    ("queue is 'yes', not bool", lambda admin: admin.plan_reassign(queue="yes")),
    ("demote is 'cyrene', not a list of str", lambda admin: admin.change_voters(demote="cyrene")),
    ("node is None, not str", lambda admin: admin.drain(None)),
    ("reason .* isn't UTF-8 text", lambda admin: admin.drain("cyrene", reason="\udcff")),
    ("keyspace is 5, not str", lambda admin: list(admin.partitions(5))),
    ("'7' isn't a partition's name, such as flights/7", lambda admin: admin.split_keys("7", 2)),
    ("'/7' isn't a partition's name", lambda admin: admin.elect_unclean("/7", "cyrene", partition_epoch=3)),
    ("a partition is None, not int", lambda admin: admin.elect_unclean(None, "cyrene", partition_epoch=3)),
    ("node is 5, not str", lambda admin: admin.remove_node(5)),
]
EDITS: list[dict[str, Any]] = [{"moves": ()}, {"rate_limit": 200_000}, {"reason": "mine"}, {"queued": True}]


@pytest.mark.parametrize(("why", "call"), WRONG)
def test_the_error_names_an_argument_of_the_wrong_type(why: str, call: Ask) -> None:
    with Admin(["127.0.0.1:1"]) as admin, pytest.raises(MinkaError, match=why) as refusal:
        call(admin)
    assert refusal.value.code is Code.INVALID_ARGUMENT


def test_a_closed_client_sends_no_request(control_node: Start) -> None:
    node = control_node()
    node.answers["GetStatus"] = admin_pb2.GetStatusResponse(from_controller=True)
    with Admin([node.address]) as admin:
        assert admin.nodes() == []
    node.asked.clear()
    for call in (admin.nodes, lambda: list(admin.partitions()), lambda: admin.remove_node("cyrene")):
        with pytest.raises(MinkaError, match="INVALID_ARGUMENT: the client is closed"):
            call()
    assert node.asked == []


@pytest.mark.parametrize(("wanted", "count"), [({"partitions": 4}, 4), ({"split_points": [b"f", b"m"]}, 3)], ids=str)
def test_a_new_keyspace_has_its_number_of_partitions(control_node: Start, wanted: dict[str, Any], count: int) -> None:
    node = control_node()

    def create(request: admin_pb2.CreateKeyspaceRequest) -> admin_pb2.CreateKeyspaceResponse:
        row = cluster_pb2.Keyspace(id=1, name=request.name, created_ms=1, hash=request.hash)
        row.partitioning = (
            Partitioning.PARTITIONING_RANGES if request.HasField("ranges") else Partitioning.PARTITIONING_HASH
        )
        row.partition_count = request.partition_count
        return admin_pb2.CreateKeyspaceResponse(keyspace=row)

    node.answers["CreateKeyspace"] = create
    with Admin([node.address]) as admin:
        assert admin.create_keyspace("flights", **wanted).partitions == count


@pytest.mark.parametrize("edit", EDITS, ids=str)
@pytest.mark.parametrize("of", ["replicas", "duties"])
def test_an_edited_plan_is_refused(control_node: Start, of: str, edit: dict[str, Any]) -> None:
    node = control_node()
    node.answers |= {"PlanReassign": PLAN, "PlanRebalance": PLAN}
    with Admin([node.address]) as admin, Client([node.address]) as duties:
        plan = admin.plan_reassign() if of == "replicas" else duties.plan_rebalance("feeds")
        node.asked.clear()
        with pytest.raises(MinkaError, match=f"these fields of the plan were edited: {next(iter(edit))}") as refusal:
            admin.apply(dataclasses.replace(plan, **edit))
        for method in (Plan.to_json, Plan.without_splits):
            with pytest.raises(MinkaError, match="DAMAGED_PLAN"):
                method(dataclasses.replace(plan, **edit))
    assert refusal.value.code is Code.DAMAGED_PLAN
    assert node.asked == []


def test_a_plan_is_kept_as_json(control_node: Start) -> None:
    made = admin_pb2.Plan()
    made.CopyFrom(PLAN)
    made.cluster_id = "flights"
    made.splits.add(partition="authors/1", keyspace="authors", keys=[b"\x00\xff", b"a"])
    made.digest = plan_digest(made)
    node = control_node()
    node.answers["PlanReassign"] = made
    with Admin([node.address]) as admin:
        plan = admin.plan_reassign()
    kept = plan.to_json()
    assert Plan.from_json(kept) == Plan.from_json(kept.encode()) == plan
    assert Plan.from_json(kept).message == made
    edited = kept.replace("a new disk", "mine")
    for text, code, why in (
        (edited, Code.DAMAGED_PLAN, "the plan was edited: it names the digest"),
        ("{", Code.INVALID_ARGUMENT, "not a plan: "),
        ('{"moves": 5}', Code.INVALID_ARGUMENT, "not a plan: "),
        ("{}", Code.INVALID_ARGUMENT, "not a plan: it has no digest, or names no cluster"),
        (b"\xff", Code.INVALID_ARGUMENT, "not a plan: "),
        ("[]", Code.INVALID_ARGUMENT, "not a plan: "),
        (None, Code.INVALID_ARGUMENT, "not a plan: NoneType, not JSON in str or bytes"),
        (5, Code.INVALID_ARGUMENT, "not a plan: int, not JSON in str or bytes"),
    ):
        with pytest.raises(MinkaError, match=why) as refusal:
            Plan.from_json(text)  # type: ignore[arg-type]
        assert refusal.value.code is code


def test_a_plan_is_sent_unchanged_when_it_is_applied(control_node: Start) -> None:
    node = control_node()
    node.answers["PlanReassign"] = PLAN
    node.answers["ApplyPlan"] = admin_pb2.ApplyPlanResponse(operation=cluster_pb2.Operation(id=7, created_ms=1))
    with Admin([node.address]) as admin:
        plan: Plan = admin.plan_reassign()
        assert admin.apply(plan, rate_limit=5).id == 7
        for other in (plan.message, "a plan", None):
            with pytest.raises(MinkaError, match=r"not a minka\.admin\.Plan"):
                admin.apply(other)  # type: ignore[arg-type]
    assert [request.plan for method, request in node.asked if method == "ApplyPlan"] == [PLAN]
