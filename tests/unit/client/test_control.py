"""`Control` against real gRPC servers: redirects, repetitions, deadlines, and errors that name each endpoint tried."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from minka.admin.control import Control
from minka.contexts import given_or_resolved, split_endpoints
from minka.engine.grpc_calls import unreachable
from minka.engine.sync_channels import Channels
from minka.errors import Code, MinkaError
from minka.v1 import admin_pb2, admin_pb2_grpc, cluster_pb2

# A server's first HTTP/2 frame; if it doesn't come, gRPC connects again.
EMPTY_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
MURMUR3 = cluster_pb2.HASH_FUNCTION_MURMUR3
Start = Callable[[], Any]


def _not_controller(address: str = "") -> MinkaError:
    return MinkaError(Code.NOT_CONTROLLER, "byzantium doesn't lead", leader="athens", leader_address=address)


def _created(name: str = "flights") -> admin_pb2.CreateKeyspaceResponse:
    return admin_pb2.CreateKeyspaceResponse(keyspace=cluster_pb2.Keyspace(id=1, name=name))


def _status(served_by: str, controller: str = "", address: str = "", *, is_it: bool = False) -> Any:
    return admin_pb2.GetStatusResponse(
        served_by=served_by,
        from_controller=is_it,
        coordinator=admin_pb2.CoordinatorStatus(controller=controller),
        table=cluster_pb2.PartitionTable(nodes=[cluster_pb2.Node(id=controller, address=address)]),
    )


def test_a_redirect_is_followed_and_remembered(control_node: Start) -> None:
    follower, other, leader = control_node(), control_node(), control_node()
    follower.answers["CreateKeyspace"] = _not_controller(leader.address)
    leader.answers["CreateKeyspace"] = _created()
    with Control([follower.address, other.address]) as control:
        assert control.create_keyspace("flights", 9, MURMUR3).id == 1
        control.create_keyspace("flights", 9, MURMUR3)
    assert len(follower.asked) == 1
    assert other.asked == []
    assert len(leader.asked) == 2


def test_endpoints_are_tried_in_order(control_node: Start, free_address: Callable[[], str]) -> None:
    node = control_node()
    node.answers["GetTable"] = admin_pb2.GetTableResponse(table=cluster_pb2.PartitionTable(version=7))
    with Control([free_address(), node.address]) as control:
        assert control.table().version == 7


def test_if_no_endpoint_answers_the_error_names_each_at_once(free_address: Callable[[], str]) -> None:
    endpoints = [free_address(), free_address()]
    start = time.monotonic()
    with Control(endpoints) as control, pytest.raises(MinkaError) as caught:
        control.table()
    assert time.monotonic() - start < 5
    assert caught.value.code is Code.UNREACHABLE
    for endpoint in endpoints:
        assert f"{endpoint}: Connection refused" in caught.value.message


@pytest.mark.parametrize("endpoint", ["http://athens:7400", "athens:7400/", "athens :7400", "athens:٧"])
def test_a_malformed_endpoint_is_refused(endpoint: str) -> None:
    hint = ": leave http:// out" if "//" in endpoint else ""
    for make in (lambda: Control([endpoint]), lambda: split_endpoints(endpoint.replace(" ", "/"), "MINKA_ENDPOINTS")):
        with pytest.raises(MinkaError, match=f"isn't host:port{hint}") as refusal:
            make()
        assert refusal.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("endpoints", "problem"),
    [
        (b"\xff:1", r"MINKA_ENDPOINTS: '\udcff:1' isn't host:port"),
        (b"athens\x07:1", r"MINKA_ENDPOINTS: 'athens\x07:1' isn't host:port"),
        (b"athens:1;byzantium:2", "MINKA_ENDPOINTS: 'athens:1;byzantium:2' isn't host:port: commas separate endpoints"),
        (b"athens:1; byzantium:2", "MINKA_ENDPOINTS: 'athens:1;' isn't host:port: commas separate endpoints"),
    ],
)
def test_a_mistake_in_the_endpoints_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, endpoints: bytes, problem: str
) -> None:
    monkeypatch.setenv("MINKA_ENDPOINTS", os.fsdecode(endpoints))
    with pytest.raises(MinkaError) as refusal:
        given_or_resolved(None, None)
    assert (refusal.value.code, refusal.value.message) == (Code.INVALID_ARGUMENT, problem)


def test_the_error_suggests_that_the_endpoint_is_another_port_of_a_node() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Control([f"127.0.0.1:{server.server_port}"], 2) as control, pytest.raises(MinkaError) as caught:
            control.table()
        server.shutdown()
    assert caught.value.code is Code.UNREACHABLE
    assert "this isn't the gRPC port of a minkad; perhaps it is the HTTP or data port" in caught.value.message


def test_the_error_says_why_the_default_endpoint_was_asked() -> None:
    down = MinkaError(Code.UNREACHABLE, "Connection refused")
    default = unreachable({"127.0.0.1:7400": down}).message
    assert default.endswith(
        "(127.0.0.1:7400 is the default: no endpoints, MINKA_ENDPOINTS, context or playground are set)"
    )
    assert "MINKA_ENDPOINTS" not in unreachable({"athens:7400": down}).message


def test_the_caller_gets_a_nodes_refusal_unchanged(control_node: Start) -> None:
    node = control_node()
    node.answers["CreateKeyspace"] = MinkaError(Code.KEYSPACE_EXISTS, "flights exists", keyspace="flights")
    with (
        Control([node.address]) as control,
        pytest.raises(MinkaError, match="KEYSPACE_EXISTS: flights exists") as caught,
    ):
        control.create_keyspace("flights", 9, MURMUR3)
    assert caught.value.details == {"keyspace": "flights"}
    assert len(node.asked) == 1


def test_a_change_is_tried_until_a_controller_is_elected(control_node: Start) -> None:
    node = control_node()
    answers = [MinkaError(Code.NO_CONTROLLER, "an election is under way"), _created()]
    node.answers["CreateKeyspace"] = lambda _: answers.pop(0)
    with Control([node.address]) as control:
        assert control.create_keyspace("flights", 9, MURMUR3).name == "flights"


def test_a_missing_controller_is_reported_within_the_timeout(
    control_node: Start, free_address: Callable[[], str]
) -> None:
    node, dead = control_node(), free_address()
    node.answers["CreateKeyspace"] = _not_controller(dead)
    start = time.monotonic()
    with Control([node.address], timeout=1.0) as control, pytest.raises(MinkaError) as caught:
        control.create_keyspace("flights", 9, MURMUR3)
    assert time.monotonic() - start < 5
    assert caught.value.code is Code.NO_CONTROLLER
    assert node.address in caught.value.message
    assert f"{dead}: Connection refused" in caught.value.message
    assert len(node.asked) > 1


@pytest.mark.parametrize("code", [Code.UNKNOWN_PARTITION, Code.DISK_LOW])
def test_a_request_that_the_controller_refuses_is_not_repeated(control_node: Start, code: Code) -> None:
    node, other = control_node(), control_node()
    node.answers["PlanReassign"] = MinkaError(code, "partition 7777 does not exist")
    with Control([node.address, other.address]) as control, pytest.raises(MinkaError, match="7777") as caught:
        control.plan_reassign(partitions={7777: ["athens"]})
    assert caught.value.code is code
    assert len(node.asked) == 1
    assert other.asked == []


def test_the_refusal_of_the_only_reachable_node_is_reported(
    control_node: Start, free_address: Callable[[], str]
) -> None:
    node = control_node()
    node.answers["RemoveNode"] = MinkaError(Code.NO_CLEARANCE, "the node has no clearance")
    endpoints = [free_address(), node.address, free_address()]
    with Control(endpoints, timeout=1.0) as control, pytest.raises(MinkaError) as caught:
        control.remove_node("cyrene")
    assert caught.value.code is Code.NO_CLEARANCE
    assert "perhaps too few are up (1 of 3 answered): " in caught.value.message


def test_a_read_leaves_a_slow_endpoint_in_time_to_ask_the_next(control_node: Start) -> None:
    slow, quick = control_node(), control_node()
    release = threading.Event()
    slow.answers["GetTable"] = lambda _: release.wait(10) and None
    quick.answers["GetTable"] = admin_pb2.GetTableResponse(table=cluster_pb2.PartitionTable(version=3))
    with Control([slow.address, quick.address], timeout=4.0) as control:
        assert control.table().version == 3
    release.set()


def test_a_change_is_not_repeated_if_its_answer_is_late(control_node: Start) -> None:
    slow, other = control_node(), control_node()
    release = threading.Event()
    slow.answers["CreateKeyspace"] = lambda _: release.wait(10) and None
    with Control([slow.address, other.address], timeout=1.0) as control, pytest.raises(MinkaError) as caught:
        control.create_keyspace("flights", 9, MURMUR3)
    release.set()
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    assert slow.address in caught.value.message
    assert other.asked == []


_DIES_IN_THE_CALL = """
import os, sys
from concurrent import futures
import grpc
from minka.v1 import admin_pb2_grpc
class Node(admin_pb2_grpc.AdminServicer):
    def CreateKeyspace(self, request, context):
        os._exit(9)
    GetOperations = CreateKeyspace
server = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
admin_pb2_grpc.add_AdminServicer_to_server(Node(), server)
server.add_insecure_port(sys.argv[1])
server.start()
print("ready", flush=True)
server.wait_for_termination(30)
"""


@pytest.mark.parametrize("change", [True, False])
def test_only_reads_are_repeated_when_a_node_dies_in_the_call(
    control_node: Start, free_address: Callable[[], str], change: bool
) -> None:
    address, other = free_address(), control_node()
    other.answers["GetOperations"] = admin_pb2.GetOperationsResponse(now_ms=5)
    command = [sys.executable, "-c", _DIES_IN_THE_CALL, address]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying,
        Control([address, other.address]) as control,
    ):
        assert dying.stdout is not None
        assert dying.stdout.readline() == "ready\n"
        if change:
            with pytest.raises(MinkaError) as caught:
                control.create_keyspace("flights", 9, MURMUR3)
            assert caught.value.code is Code.OUTCOME_UNKNOWN
            assert address in caught.value.message
            assert other.asked == []
        else:
            assert control.operations().now_ms == 5


def test_status_comes_from_the_active_controller(control_node: Start) -> None:
    follower, leader = control_node(), control_node()
    follower.answers["GetStatus"] = _status("byzantium", "athens", leader.address)
    leader.answers["GetStatus"] = _status("athens", "athens", leader.address, is_it=True)
    with Control([follower.address]) as control:
        assert control.status().served_by == "athens"


def test_status_comes_from_any_node_when_the_controller_is_gone(
    control_node: Start, free_address: Callable[[], str]
) -> None:
    follower = control_node()
    follower.answers["GetStatus"] = _status("byzantium", "athens", free_address())
    with Control([free_address(), follower.address]) as control:
        status = control.status()
    assert status.served_by == "byzantium"
    assert not status.from_controller


def _listing(*ids: int, served_by: str, is_it: bool, address: str = "") -> Callable[[object], Any]:
    """Make a function that answers ListPartitions: with the status, each of the partitions, and their number."""
    return lambda _: iter(
        [
            admin_pb2.ListPartitionsResponse(status=_status(served_by, "athens", address, is_it=is_it)),
            *(admin_pb2.ListPartitionsResponse(partitions=[cluster_pb2.Partition(id=id_)]) for id_ in ids),
            admin_pb2.ListPartitionsResponse(matching=[admin_pb2.MatchingCount(partitions=7)]),
        ]
    )


def test_partitions_come_from_the_active_controller(control_node: Start, free_address: Callable[[], str]) -> None:
    follower, leader = control_node(), control_node()
    follower.answers["ListPartitions"] = _listing(1, served_by="byzantium", is_it=False, address=leader.address)
    leader.answers["ListPartitions"] = _listing(1, 2, 3, served_by="athens", is_it=True)
    wanted = admin_pb2.PartitionFilter(node="athens")
    with Control([follower.address]) as control:
        listed = control.partitions(wanted, 3)
        assert listed.status.served_by == "athens"
        assert [page.partitions[0].id for page in listed] == [1, 2, 3]
        assert [one.partitions for one in listed.matching] == [7]
    assert leader.asked == [("ListPartitions", admin_pb2.ListPartitionsRequest(filter=wanted, limit=3))]
    follower.answers["ListPartitions"] = _listing(4, 5, served_by="byzantium", is_it=False, address=free_address())
    with Control([follower.address]) as control:
        assert [row.id for row in control.partitions().whole().table.partitions] == [4, 5]


def test_a_list_times_out_if_the_node_stalls_but_not_if_the_caller_reads_slowly(control_node: Start) -> None:
    node, go_on = control_node(), threading.Event()

    def answer(request: admin_pb2.ListPartitionsRequest) -> Any:
        yield from _listing(1, 2, served_by="athens", is_it=True)(request)
        go_on.wait(10)

    def stuck(request: admin_pb2.ListPartitionsRequest) -> Any:
        yield next(_listing(served_by="athens", is_it=True)(request))
        go_on.wait(10)

    with Control([node.address], timeout=0.2) as control:
        node.answers["ListPartitions"] = answer
        listed = iter(control.partitions())
        first = next(listed)
        time.sleep(0.3)  # longer than the timeout, as if a person reads
        assert (first.partitions[0].id, next(listed).partitions[0].id) == (1, 2)
        node.answers["ListPartitions"] = stuck
        with pytest.raises(MinkaError, match=r"DEADLINE_EXCEEDED: .* did not answer in time"):
            control.partitions().whole()
        go_on.set()
        node.answers["ListPartitions"] = MinkaError(Code.INVALID_ARGUMENT, "no such thing")
        with pytest.raises(MinkaError, match="INVALID_ARGUMENT: no such thing"):
            control.partitions()


def test_progress_comes_from_the_active_controller(control_node: Start) -> None:
    follower, leader = control_node(), control_node()
    follower.answers["GetStatus"] = _status("byzantium", "athens", leader.address)
    leader.answers["GetStatus"] = _status("athens", "athens", leader.address, is_it=True)
    leader.answers["GetOperations"] = admin_pb2.GetOperationsResponse(now_ms=5)
    with Control([follower.address]) as control:
        assert control.operations(with_migrations=True).now_ms == 5
    assert [method for method, _ in leader.asked] == ["GetStatus", "GetOperations"]


def test_count_keys_asks_only_the_node_that_is_named(control_node: Start) -> None:
    node, endpoint = control_node(), control_node()
    node.answers["CountKeys"] = admin_pb2.CountKeysResponse(
        partitions=[admin_pb2.PartitionCount(partition_id=2, keys=40)]
    )
    with Control([endpoint.address]) as control:
        assert [p.keys for p in control.count_keys(node.address, [2])] == [40]
    assert node.asked == [("CountKeys", admin_pb2.CountKeysRequest(partition_ids=[2]))]


@pytest.mark.parametrize("endpoints", [[], ["athens"], ["athens:"], [":7000"], ["a:b"], ["a:0"], ["a:65536"], "a:7000"])
def test_endpoints_are_checked_before_any_request(endpoints: Any) -> None:
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT"):
        Control(endpoints)


def test_the_request_for_a_plan_has_all_arguments(control_node: Start) -> None:
    node = control_node()
    node.answers["PlanReassign"] = admin_pb2.Plan()
    with Control([node.address]) as control:
        control.plan_reassign(["athens"], ["flights"], ["cyrene"], weights={"athens": 2}, partitions={7: ["athens"]})
    ((_, request),) = node.asked
    assert (request.to, request.keyspaces, request.drain) == (["athens"], ["flights"], ["cyrene"])
    assert request.weights == {"athens": 2.0}
    assert [(one.partition_id, one.replicas) for one in request.partitions] == [(7, ["athens"])]


def test_clients_in_one_process_do_not_share_connections() -> None:
    """After a failure to connect, gRPC waits before it connects again. Other clients should not have to wait, too."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:
        server.settimeout(10)
        for _ in range(2):
            channels = Channels(None)
            stack.callback(channels.close)
            channel = channels.to(f"127.0.0.1:{server.getsockname()[1]}")
            admin_pb2_grpc.AdminStub(channel).GetStatus.future(admin_pb2.GetStatusRequest())
        for _ in range(2):
            stack.enter_context(server.accept()[0]).sendall(EMPTY_SETTINGS)


def test_the_import_does_not_load_heavy_modules() -> None:
    script = (
        "import sys, minka.admin.control; print([m for m in ('msgspec', 'mmh3', 'uvloop', 'rich') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
