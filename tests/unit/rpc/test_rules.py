"""Every field of every request has a rule, and the rules refuse bad values."""

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from minka.errors import Code, MinkaError
from minka.v1 import (
    admin_pb2,
    changes_pb2,
    coordinator_pb2,
    duty_api_pb2,
    history_pb2,
    load_api_pb2,
    shards_pb2,
    snapshots_pb2,
)
from minka.v1.admin_pb2 import CreateKeyspaceRequest, DrainNodeRequest, PlanReassignRequest, SplitRequest
from minka.v1.cluster_pb2 import Node, Partition
from minka.v1.coordinator_pb2 import HeartbeatRequest, LeaveRequest, RegisterRequest, UpdateReplicasRequest
from minka.v1.duties_pb2 import Canary, Pallet
from minka.v1.duty_api_pb2 import (
    ChangeDutiesRequest,
    ChangePalletsRequest,
    DutyChange,
    DutyName,
    DutySpec,
    GetDutiesRequest,
    PalletChange,
)
from minka.v1.raft_pb2 import Message as RaftMessage
from minka.v1.raft_pb2 import MessageType, RaftMessageBatch
from minkad.rpc import field_rules
from minkad.rpc.validation import check, check_of

METHODS: list[Any] = [
    method
    for file in (
        admin_pb2.DESCRIPTOR,
        changes_pb2.DESCRIPTOR,
        coordinator_pb2.DESCRIPTOR,
        duty_api_pb2.DESCRIPTOR,
        load_api_pb2.DESCRIPTOR,
        history_pb2.DESCRIPTOR,
        shards_pb2.DESCRIPTOR,
        snapshots_pb2.DESCRIPTOR,
    )
    for service in file.services_by_name.values()
    for method in service.methods
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
def test_every_field_of_every_request_has_a_rule(method: MethodDescriptor) -> None:
    check_of(method.input_type)  # raises LookupError if a field has no rule


@pytest.mark.parametrize("message", [load_api_pb2.UploadHeader, load_api_pb2.FetchRequest])
def test_every_field_of_the_message_that_begins_a_stream_of_raw_bytes_has_a_rule(message: type[Message]) -> None:
    check_of(message.DESCRIPTOR)


def test_a_plan_may_name_more_than_a_thousand_nodes() -> None:
    """The plan has the balance of each node, and may have a note about each node."""
    balances = [admin_pb2.NodeBalance(node=f"n{number}") for number in range(2000)]
    plan = admin_pb2.Plan(cluster_id="c", digest="d", nodes=balances, notes=["its disk is low"] * 2000)
    check(admin_pb2.ApplyPlanRequest(plan=plan))


def test_every_rule_belongs_to_a_field() -> None:
    names: set[str] = set()

    def walk(descriptor: Any) -> None:
        for field in descriptor.fields:
            names.update((field.name, f"{descriptor.name}.{field.name}"))
            if field.type == FieldDescriptor.TYPE_MESSAGE and f"{descriptor.name}." not in field.message_type.full_name:
                walk(field.message_type)
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                names.update(f"{field.message_type.name}.{one}" for one in ("key", "value"))

    for method in METHODS:
        walk(method.input_type)
    # No method takes these messages: the first two begin streams of raw bytes, and the last one goes to the data port.
    for raw in (load_api_pb2.UploadHeader, load_api_pb2.FetchRequest, RaftMessageBatch):
        walk(raw.DESCRIPTOR)
    assert set(field_rules.RULES) | set(field_rules.COUNTS) | set(field_rules.REQUIRED) | field_rules.WRAPPERS <= names


GOOD = {"id": "athens", "data_id": "d", "incarnation": "i", "address": "athens:7400"}


def registering(**changes: str) -> RegisterRequest:
    return RegisterRequest(node=Node(**{**GOOD, **changes}))  # type: ignore[arg-type]


def duties(spec: DutySpec) -> ChangeDutiesRequest:
    return ChangeDutiesRequest(changes=[DutyChange(create=spec)])


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (RegisterRequest(), "node: is missing"),
        (registering(id=""), "node.id: is missing"),
        (registering(id="a\0b"), "node.id"),
        (registering(id="a" * 64), "node.id"),
        (registering(data_id=""), "node.data_id: is missing"),
        (registering(address="athens"), "node.address: must be host:port: the port is missing"),
        (registering(address="0.0.0.0:7400"), "others can dial"),
        (registering(address="ath\nens:7400"), "node.address"),
        (registering(zone="\x1b[31m"), "node.zone"),
        (RegisterRequest(node=Node(**GOOD, state=99)), "node.state: 99"),  # type: ignore[arg-type]
        (LeaveRequest(), "node_id: is missing"),
        (CreateKeyspaceRequest(name="No Name"), "name: must have 1 to 63"),
        (CreateKeyspaceRequest(name="flights", hash=7), "hash: 7"),  # type: ignore[arg-type]
        (DrainNodeRequest(node="athens", reason="a\0b"), "reason: must have no control characters"),
        (PlanReassignRequest(weights={"athens": float("nan")}), "weights[athens]: must be from 0 to 1000000, not nan"),
        (PlanReassignRequest(to=["athens"] * 10_001), "to: there must be 10000 at most, not 10001"),
        (SplitRequest(keyspace="flights", keys=[b"x" * 70_000]), "keys[0]: must have 65537 bytes at most"),
        (UpdateReplicasRequest(partitions=[Partition(), Partition(isr=["\n"])]), "partitions[1].isr[0]"),
        (duties(DutySpec(pallet="feeds")), "changes[0].id: is missing"),
        (duties(DutySpec(pallet="feeds", id="x" * 257)), "changes[0].id: must have 256 characters at most, not 257"),
        (duties(DutySpec(pallet="feeds", id="a\tb")), "changes[0].id: must have no control characters"),
        (duties(DutySpec(pallet="feeds/a", id="b")), "changes[0].pallet: must have no slash"),
        (
            duties(DutySpec(pallet="feeds", id="b", payload=b"x" * (2**20 + 1))),
            "payload: must have 1048576 bytes",
        ),
        (duties(DutySpec(pallet="feeds", id="b", weight=2**60)), "changes[0].weight: must be 1000000000000"),
        (ChangeDutiesRequest(changes=[DutyChange()] * 1001), "changes: there must be 1000 at most, not 1001"),
        (ChangeDutiesRequest(consistency=9), "consistency: 9"),  # type: ignore[arg-type]
        (ChangePalletsRequest(changes=[PalletChange(create=Pallet())]), "changes[0].id: is missing"),
        (
            ChangePalletsRequest(changes=[PalletChange(update=Pallet(id="f", canary=Canary(percent=101)))]),
            "changes[0].canary.percent: must be 100 at most, not 101",
        ),
        (
            CreateKeyspaceRequest(name="flights", ranges=admin_pb2.Ranges(split_points=[b"x" * 70_000])),
            "split_points[0]: must have 65537 bytes at most",
        ),
        (GetDutiesRequest(names=[DutyName(pallet="feeds")]), "names[0].id: is missing"),
        (RaftMessageBatch(messages=[RaftMessage(type=MessageType.MSG_HUP)]), "messages[0].type: 0 isn't a type"),
        (RaftMessageBatch(messages=[RaftMessage(type=MessageType.MSG_APP, term=2**63)]), "messages[0].term"),
    ],
)
def test_refused_requests_and_their_messages(request_: Message, named: str) -> None:
    with pytest.raises(MinkaError) as caught:
        check(request_)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert named in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "request_",
    [
        registering(address="[2001:db8::1]:7400", zone="a/b"),
        CreateKeyspaceRequest(name="flights", partition_count=64),
        duties(DutySpec(pallet="Feeds of news", id="https://bbc.co.uk/ä", payload=b"\0", weight=0)),
        PlanReassignRequest(to=["athens"], weights={"athens": 0.5}),
        HeartbeatRequest(node_id="athens", incarnation="i", sequence=1, clock_ahead_ms=-5),
        UpdateReplicasRequest(controller_term=1, partitions=[Partition(id=1, replicas=["a", "b"], leader="a")]),
    ],
)
def test_accepted_requests(request_: Message) -> None:
    check(request_)
