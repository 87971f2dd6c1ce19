"""The requests that `minka.admin` sends to a node, and what it makes of the node's prepared answers."""

import ast
import dataclasses
import getpass
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import minkactl
from minka.admin import (
    Admin,
    Code,
    DrainOperation,
    Durability,
    HashFunction,
    MinkaError,
    OperationKind,
    OperationState,
    Partitioning,
    SplitOperation,
    admin_client,
    membership,
)
from minka.admin.control import Control
from minka.admin.requester import requester
from minka.v1 import admin_pb2, cluster_pb2
from tests.unit.client.conftest import ControlNode

RUNNING = cluster_pb2.OPERATION_STATE_RUNNING
SUCCEEDED = cluster_pb2.OPERATION_STATE_SUCCEEDED
READING = {"close", "summary", "partitions", "operations"}  # methods of Control that minkactl may call without Admin


@pytest.fixture
def node(control_node: Callable[[], ControlNode]) -> ControlNode:
    return control_node()


@pytest.fixture
def admin(node: ControlNode) -> Iterator[Admin]:
    with Admin([node.address], requested_by="a program") as admin:
        yield admin


def test_a_created_keyspace_has_its_number_of_partitions(node: ControlNode, admin: Admin) -> None:
    row = cluster_pb2.Keyspace(id=1, name="authors", partitioning=cluster_pb2.PARTITIONING_RANGES, replicas=3)
    node.answers["CreateKeyspace"] = admin_pb2.CreateKeyspaceResponse(keyspace=row)
    created = admin.create_keyspace("authors", split_points=[b"b", b"d"])
    assert (created.partitions, created.partitioning, created.hash_function) == (3, Partitioning.RANGES, None)
    row = cluster_pb2.Keyspace(id=2, name="flights", partition_count=9, hash=cluster_pb2.HASH_FUNCTION_MD5)
    node.answers["CreateKeyspace"] = admin_pb2.CreateKeyspaceResponse(keyspace=row)
    created = admin.create_keyspace("flights", partitions=9, hash_function=HashFunction.MD5)
    assert (created.partitions, created.hash_function, created.durability) == (9, HashFunction.MD5, Durability.SYNC)


def test_a_new_keyspace_has_no_invented_sums(node: ControlNode, admin: Admin) -> None:
    row = cluster_pb2.Keyspace(id=1, name="flights", partition_count=3)
    own = cluster_pb2.Keyspace(id=2, name="_payloads", partition_count=3)
    node.answers["CreateKeyspace"] = admin_pb2.CreateKeyspaceResponse(keyspace=row)
    status = admin_pb2.GetStatusResponse(from_controller=True)
    status.table.keyspaces.extend([row, own])
    status.summary.keyspaces.add(keyspace_id=1, partitions=3, online=2, offline=1, keys=9, bytes=90)
    status.summary.keyspaces.add(keyspace_id=2, partitions=3, online=3)
    node.answers["GetStatus"] = status
    created = admin.create_keyspace("flights", partitions=3)
    flights, payloads = admin.keyspaces()
    assert not {"online", "offline", "keys", "bytes"} & {one.name for one in dataclasses.fields(created)}
    assert (flights.partitions, flights.online, flights.offline, flights.keys, flights.bytes) == (3, 2, 1, 9, 90)
    settings = {one.name for one in dataclasses.fields(created)}
    assert all(getattr(flights, name) == getattr(created, name) for name in settings)
    assert (created.internal, payloads.internal) == (False, True)


def test_an_operation_has_only_the_fields_of_its_kind(node: ControlNode, admin: Admin) -> None:
    split = cluster_pb2.SplitOperation(keyspace_id=3, keys=[b"b"], partitions=[7])
    drain = cluster_pb2.DrainOperation(node="cyrene", decommission=True, plan_digest="d1")
    rows = [cluster_pb2.Operation(id=2, split=split), cluster_pb2.Operation(id=1, drain=drain)]
    node.answers["GetOperations"] = admin_pb2.GetOperationsResponse(operations=rows)
    first, second = admin.operations()
    assert (first.kind, first.split, first.drain) == (OperationKind.SPLIT, SplitOperation(3, (b"b",), (7,)), None)
    assert (second.kind, second.drain, second.split) == (
        OperationKind.DRAIN,
        DrainOperation("cyrene", True, "d1"),
        None,
    )


def test_an_unclean_election_sends_the_partition_epoch_that_the_caller_saw(node: ControlNode, admin: Admin) -> None:
    node.answers["ElectLeaders"] = admin_pb2.ElectLeadersResponse()
    admin.elect_unclean(7, "cyrene", partition_epoch=4, reason="the disks are gone")
    ((_, asked),) = node.asked
    assert asked.unclean == admin_pb2.UncleanElection(partition_id=7, partition_epoch=4, node="cyrene")
    assert (asked.requested_by, asked.reason) == ("a program", "the disks are gone")


def test_the_leader_proposes_where_to_split(node: ControlNode, admin: Admin) -> None:
    status = admin_pb2.GetStatusResponse(from_controller=True)
    status.table.nodes.add(id="athens", address=node.address)
    rows: list[cluster_pb2.Partition] = []

    def pages(_: object) -> object:
        first = admin_pb2.ListPartitionsResponse(status=status)
        return iter([first, admin_pb2.ListPartitionsResponse(partitions=rows)])

    node.answers["ListPartitions"] = pages
    node.answers["SplitKeys"] = admin_pb2.SplitKeysResponse(keys=[b"m"])
    for row, code in ((None, Code.UNKNOWN_PARTITION), (cluster_pb2.Partition(id=7), Code.PARTITION_OFFLINE)):
        rows[:] = [row] if row is not None else []
        with pytest.raises(MinkaError) as refusal:
            admin.split_keys(7, 2)
        assert refusal.value.code is code
    rows[:] = [cluster_pb2.Partition(id=7, leader="athens")]
    assert admin.split_keys(7, 2) == [b"m"]


def test_after_close_no_more_partitions_come(node: ControlNode) -> None:
    status = admin_pb2.GetStatusResponse(from_controller=True)
    status.table.keyspaces.add(id=1, name="flights")
    rows = [cluster_pb2.Partition(id=slot, keyspace_id=1, slot=slot) for slot in range(2)]

    def pages(_: object) -> object:
        yield admin_pb2.ListPartitionsResponse(status=status)
        for row in rows:
            yield admin_pb2.ListPartitionsResponse(partitions=[row])

    node.answers["ListPartitions"] = pages
    admin = Admin([node.address])
    begun, not_begun = admin.partitions(), admin.partitions()
    assert next(begun).name == "flights/0"
    admin.close()
    for listed in (begun, not_begun):
        with pytest.raises(MinkaError, match="INVALID_ARGUMENT: the client is closed"):
            next(listed)


def test_partitions_are_given_by_name_as_rows_or_by_id(node: ControlNode, admin: Admin) -> None:
    status = admin_pb2.GetStatusResponse(from_controller=True)
    status.table.keyspaces.add(id=1, name="flights")
    rows = [cluster_pb2.Partition(id=40 + slot, keyspace_id=1, slot=slot) for slot in (0, 7)]

    def pages(asked: admin_pb2.ListPartitionsRequest) -> object:
        found = [row for row in rows if asked.filter.keyspace in ("", "flights")]
        found = [row for row in found if not asked.filter.slots or row.slot in asked.filter.slots]
        first = admin_pb2.ListPartitionsResponse(status=status)
        return iter([first, admin_pb2.ListPartitionsResponse(partitions=found)])

    node.answers["ListPartitions"] = pages
    node.answers["ElectLeaders"] = admin_pb2.ElectLeadersResponse()
    node.answers["PlanReassign"] = admin_pb2.Plan()
    row = next(admin.partitions("flights"))
    node.asked.clear()
    admin.elect_leaders(partitions=["flights/7", row, 3])
    admin.plan_reassign(partitions={"flights/7": ["athens"], "flights/0": ["cyrene"]})
    admin.elect_unclean("flights/7", "cyrene", partition_epoch=4)
    names, elected, _, planned, _, unclean = [asked for _, asked in node.asked]
    assert names.filter == admin_pb2.PartitionFilter(keyspace="flights", slots=[7])
    assert elected.partitions == [47, 40, 3]
    assert [(one.partition_id, one.replicas) for one in planned.partitions] == [(47, ["athens"]), (40, ["cyrene"])]
    assert unclean.unclean.partition_id == 47
    twice: dict[Any, list[str]] = {"flights/7": ["athens"], 47: ["cyrene"]}
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT: partitions has one partition twice"):
        admin.plan_reassign(partitions=twice)
    for unknown in ("flights/8", "nowhere/7"):
        with pytest.raises(MinkaError, match=f"UNKNOWN_PARTITION: there is no partition {unknown}"):
            admin.split_keys(unknown, 2)


def _answers(*states: Any, then: Any) -> Callable[[object], Any]:
    """Make a function that answers GetOperations: each time with the next of `states`, and after the last one with
    `then`.

    Each state is an error, or the state of operation 3.
    """
    left = list(states)

    def answer(_: object) -> Any:
        now = left.pop(0) if left else then
        if isinstance(now, MinkaError):
            return now
        return admin_pb2.GetOperationsResponse(operations=[cluster_pb2.Operation(id=3, state=now)])

    return answer


def test_waiting_goes_on_through_an_outage(node: ControlNode) -> None:
    outage = [MinkaError(Code.NO_CONTROLLER, "an election is under way")] * 20
    node.answers["GetOperations"] = _answers(RUNNING, *outage, RUNNING, then=SUCCEEDED)
    with Admin([node.address], timeout=0.1) as admin:
        assert admin.wait(3, 30.0).state is OperationState.SUCCEEDED


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (RUNNING, "operation 3 is running after"),
        (
            MinkaError(Code.NO_CONTROLLER, "no leader"),
            r"no node has said if operation 3 has ended \(NO_CONTROLLER: .*\) after",
        ),
    ],
)
def test_waiting_ends_in_time_and_says_what_was_seen_last(node: ControlNode, answer: Any, why: str) -> None:
    node.answers["GetOperations"] = _answers(then=answer)
    with Admin([node.address], timeout=0.1) as admin, pytest.raises(MinkaError, match=why) as late:
        admin.wait(3, 0.5)
    assert late.value.code is Code.DEADLINE_EXCEEDED
    assert late.value.remedy == "Wait again, or watch it: minkactl operations watch 3"


def test_the_last_look_at_an_operation_is_at_the_deadline(node: ControlNode, admin: Admin) -> None:
    node.answers["GetOperations"] = _answers(RUNNING, then=SUCCEEDED)
    assert admin.wait(3, 0.1).state is OperationState.SUCCEEDED


def test_an_operation_that_is_unknown_is_not_waited_for(node: ControlNode, admin: Admin) -> None:
    node.answers["GetOperations"] = MinkaError(Code.UNKNOWN_OPERATION, "there is no operation 3")
    with pytest.raises(MinkaError, match="UNKNOWN_OPERATION"):
        admin.wait(3, 30.0)


def test_blockers_are_asked_for_without_the_partition_table(node: ControlNode, admin: Admin) -> None:
    blocker = admin_pb2.Blocker(operation_id=3, partition_id=7, partition="flights/7", reason="cyrene is FAILED")
    node.answers["GetStatus"] = admin_pb2.GetStatusResponse(from_controller=True)
    node.answers["GetOperations"] = admin_pb2.GetOperationsResponse(blockers=[blocker])
    (found,) = admin.blockers(3)
    assert (found.partition, found.partition_id, found.duty) == ("flights/7", 7, None)
    assert [method for method, _ in node.asked] == ["GetStatus", "GetOperations"]
    (_, status), (_, operations) = node.asked
    assert status.summary
    assert operations.migrations_limit == 1


def _seats(controller: str, voters: str, learners: str = "", nodes: str = "") -> admin_pb2.GetStatusResponse:
    """Make the active controller's status. Each text has names of nodes, with spaces between them."""
    raft = admin_pb2.CoordinatorStatus(controller=controller, voters=voters.split(), learners=learners.split())
    status = admin_pb2.GetStatusResponse(from_controller=True, coordinator=raft)
    status.table.nodes.extend(cluster_pb2.Node(id=name) for name in nodes.split())
    return status


BEFORE = _seats("athens", "athens byzantium", "cyrene", nodes="athens byzantium cyrene")
CHANGES: list[tuple[str, Callable[[Admin], None], list[admin_pb2.GetStatusResponse]]] = [
    (
        "TransferLeadership",
        lambda admin: admin.transfer_leadership("byzantium", timeout=0.3),
        [_seats("", "athens byzantium"), _seats("byzantium", "athens byzantium")],
    ),
    (
        "ChangeVoters",
        lambda admin: admin.change_voters(promote=["cyrene"], demote=["athens"], timeout=0.3),
        [_seats("byzantium", "athens byzantium cyrene"), _seats("byzantium", "byzantium cyrene", "athens")],
    ),
    (
        "RemoveNode",
        lambda admin: admin.remove_node("cyrene", timeout=0.3),
        [_seats("athens", "athens byzantium", "?", "athens byzantium"), _seats("athens", "athens byzantium")],
    ),
]


@pytest.mark.parametrize(("method", "change", "then"), CHANGES, ids=[one[0] for one in CHANGES])
def test_a_change_of_members_is_done_when_it_returns(
    node: ControlNode,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    change: Callable[[Admin], None],
    then: list[admin_pb2.GetStatusResponse],
) -> None:
    monkeypatch.setattr(membership, "_ASK_AGAIN_S", 0.1)
    outage = MinkaError(Code.NO_CONTROLLER, "an election is under way")
    statuses = [BEFORE, BEFORE, outage, *then]
    node.answers[method] = getattr(admin_pb2, f"{method}Response")()
    node.answers["GetStatus"] = lambda _: statuses.pop(0)
    change(admin)
    assert statuses == []
    node.answers["GetStatus"] = BEFORE
    node.asked.clear()
    with pytest.raises(MinkaError, match=r"DEADLINE_EXCEEDED: no sign within 0\.3 s that (cyrene|byzantium) is"):
        change(admin)
    repeated = [asked for asked, _ in node.asked if asked == method]
    assert len(repeated) == 1 if method == "RemoveNode" else len(repeated) > 1


def test_waiting_for_a_change_of_members_ends_in_time_although_no_node_answers(node: ControlNode) -> None:
    go_on = threading.Event()
    node.answers["RemoveNode"] = admin_pb2.RemoveNodeResponse()
    node.answers["GetStatus"] = lambda _: BEFORE if go_on.wait(30) else None
    began = time.monotonic()
    with Admin([node.address], timeout=30.0) as admin, pytest.raises(MinkaError, match=r"no sign within 0\.3 s"):
        admin.remove_node("cyrene", timeout=0.3)
    took = time.monotonic() - began
    go_on.set()
    assert took < 10


def test_a_user_id_without_a_name_can_send_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run as a user id that has no name."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert requester().startswith("uid ")


def _called(source: str) -> set[str]:
    """Return the names of the methods that this source code calls on anything named `control`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and getattr(node.value, "attr", getattr(node.value, "id", "")) == "control":
            found.add(node.attr)
    return found


def test_minkactl_makes_changes_only_through_admin() -> None:
    """Admin calls methods of Control. Of these, the commands of minkactl call only those in `READING` directly."""
    of_admin = _called(inspect.getsource(admin_client)) - READING
    assert {"create_keyspace", "apply_plan", "remove_node", "drain_status"} <= of_admin <= set(dir(Control))
    for path in Path(minkactl.__file__).parent.rglob("*.py"):
        assert not _called(path.read_text("utf-8")) & of_admin, path
