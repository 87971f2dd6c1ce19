"""Helpers for tests of minkactl: a gRPC server with prepared answers, functions that make these answers, and functions
that run minkactl.
"""

import os
import pty
import re
import select
import signal
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result

from minka.cluster.plan_digest import plan_digest
from minka.errors import MinkaError, error_to_proto
from minka.testing.loopback_ports import free_addresses
from minka.v1 import admin_pb2, admin_pb2_grpc, duty_api_pb2, duty_api_pb2_grpc
from minka.v1.admin_pb2 import (
    DescribeNodeRequest,
    DescribeNodeResponse,
    GetStatusResponse,
    GetTableResponse,
    NodeStatus,
    Plan,
    VoterContact,
)
from minka.v1.cluster_pb2 import (
    Cluster,
    HashFunction,
    Keyspace,
    Node,
    NodeState,
    Operation,
    OperationState,
    Partition,
    PartitionState,
    ReassignOperation,
)
from minka.v1.coordinator_pb2 import DiskSpace, ReplicaStats
from minkactl.cli import cli
from tests.minkactl_forks import Forked, server
from tests.summaries import listed, summarized

METHODS = frozenset(
    method.name
    for file in (admin_pb2.DESCRIPTOR, duty_api_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
)


@dataclass
class AnsweringNode:
    """Answers each method with its entry in `answers`: a message, a MinkaError (a refusal), or a function of the
    request. The entry for "GetStatus" has the whole table. From this table, the server makes the summaries and lists
    that requests ask for.
    """

    address: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)

    def __getattr__(self, method: str) -> Any:
        if method not in METHODS:
            raise AttributeError(method)

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            self.asked.append((method, request))
            result = self.answers["GetStatus" if method == "ListPartitions" else method]
            result = result(request) if callable(result) else result
            if isinstance(result, MinkaError):
                context.set_trailing_metadata((("minka-error-bin", error_to_proto(result).SerializeToString()),))
                context.abort(grpc.StatusCode[result.code.info.grpc_status], result.message)
            if isinstance(result, GetStatusResponse):
                if method == "ListPartitions":
                    return listed(result, request)
                return summarized(result, request.silent) if request.summary else result
            return result

        return answer

    def requests(self, method: str) -> list[Any]:
        """The requests that the server has got for this gRPC method."""
        return [request for name, request in self.asked if name == method]


def make_status() -> GetStatusResponse:
    """Return the active controller's status of three nodes: athens, byzantium and cyrene. Their keyspace `flights` has
    9 partitions, all ONLINE. No process listens at the nodes' addresses.
    """
    status = GetStatusResponse(served_by="athens", from_controller=True, has_clearance=True)
    status.table.cluster.CopyFrom(Cluster(id="c-1", name="demo", min_nodes=3, created_ms=1_700_000_000_000))
    status.table.version = 128
    names = ["athens", "byzantium", "cyrene"]
    for index, name in enumerate(names):
        status.table.nodes.append(
            Node(
                id=name, raft_id=index + 1, address=f"127.0.0.1:74{index}0", http_address=f"127.0.0.1:74{index}1",
                state=NodeState.NODE_STATE_LIVE, state_since_ms=1_700_000_000_000, version="0.1.0",
            )
        )  # fmt: skip
        disk = DiskSpace(total_bytes=1 << 40, free_bytes=1 << 30, is_low=index == 0)
        status.nodes.append(NodeStatus(node_id=name, heartbeat_age_ms=20 * index, applied_index=128, disk=disk))
    status.table.keyspaces.append(
        Keyspace(
            id=1, name="flights", partition_count=9, hash=HashFunction.HASH_FUNCTION_MURMUR3, replicas=1,
            created_ms=1_700_000_000_500,
        )
    )  # fmt: skip
    for slot in range(9):
        node = names[slot % 3]
        status.table.partitions.append(
            Partition(
                id=slot + 1, keyspace_id=1, slot=slot, replicas=[node], isr=[node], leader=node, leader_epoch=1,
                partition_epoch=2, generation=1, state=PartitionState.PARTITION_STATE_ONLINE,
            )
        )  # fmt: skip
        status.replicas.append(ReplicaStats(partition_id=slot + 1, keys=1000 + slot, bytes=(slot + 1) * 1024 * 1024))
    coordinator = status.coordinator
    coordinator.controller, coordinator.term, coordinator.commit_index, coordinator.applied_index = (
        "athens",
        3,
        128,
        128,
    )
    coordinator.voters.extend(names)
    return status


def make_plan() -> Plan:
    """Return a plan with two moves to ephesus."""
    plan = Plan(
        cluster_id="c-1", table_version=128, created_ms=1_700_000_000_000,
        minimum_moves=2,
    )  # fmt: skip
    for slot, source in ((0, "athens"), (1, "byzantium")):
        plan.moves.add(
            partition_id=slot + 1, partition=f"flights/{slot}", source=source, target="ephesus", partition_epoch=2,
            bytes=1024 * 1024, reason=f"{source} has 3, ephesus none", replicas=[source], target_replicas=["ephesus"],
        )  # fmt: skip
        plan.nodes.add(node=source, partitions_before=3, partitions_after=2, bytes_before=3 << 20, bytes_after=2 << 20)
    plan.nodes.add(node="ephesus", partitions_before=0, partitions_after=2, bytes_before=0, bytes_after=2 << 20)
    plan.digest = plan_digest(plan)
    return plan


def make_operation(state: OperationState.ValueType, **fields: Any) -> Operation:
    """Return operation 12, a reassign with two migrations."""
    return Operation(
        id=12, reassign=ReassignOperation(plan_digest="d1" * 32), state=state, requested_by="ann@host",
        migration_count=2, created_ms=1_700_000_001_000, **fields,
    )  # fmt: skip


def until(condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    """Wait until the condition holds, or fail."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


@pytest.fixture
def status() -> GetStatusResponse:
    return make_status()


@pytest.fixture
def node(status: GetStatusResponse) -> Iterator[AnsweringNode]:
    """A server for athens, which answers with `status` and the table in it. Each other node of the table has a server
    that answers only DescribeNode.
    """
    athens = AnsweringNode()
    athens.answers["GetStatus"] = lambda _: status
    athens.answers["GetTable"] = lambda _: GetTableResponse(table=status.table)
    with ExitStack() as stack:
        for row in status.table.nodes:
            answering = athens if row.id == "athens" else AnsweringNode()
            answering.answers["DescribeNode"] = partial(description, status, row.id)
            stack.callback(listening(answering).stop, None)
            row.address = answering.address
        if not athens.address:
            stack.callback(listening(athens).stop, None)
        yield athens


def description(status: GetStatusResponse, node: str, _: DescribeNodeRequest) -> DescribeNodeResponse:
    """Return a ready node's description of itself. Its fields follow from the cluster's status."""
    controller = status.coordinator.controller
    return DescribeNodeResponse(
        node=node, cluster_id=status.table.cluster.id, controller=controller, has_clearance=status.has_clearance,
        is_controller=status.from_controller and node == controller, ready=status.has_clearance,
        leads=sum(partition.leader == node for partition in status.table.partitions),
        voters=[VoterContact(node=n.id, address=n.address, heard_ms=50) for n in status.table.nodes if n.id != node],
    )  # fmt: skip


def listening(answering: AnsweringNode) -> grpc.Server:
    """Start a gRPC server for `answering` on a free port, and set `answering.address`."""
    grpc_server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    admin_pb2_grpc.add_AdminServicer_to_server(answering, grpc_server)  # type: ignore[arg-type]  # answers by __getattr__
    admin_pb2_grpc.add_MetadataServicer_to_server(answering, grpc_server)  # type: ignore[arg-type]
    admin_pb2_grpc.add_InventoryServicer_to_server(answering, grpc_server)  # type: ignore[arg-type]
    duty_api_pb2_grpc.add_DutiesServicer_to_server(answering, grpc_server)  # type: ignore[arg-type]
    (answering.address,) = free_addresses(1)
    grpc_server.add_insecure_port(answering.address)
    grpc_server.start()
    return grpc_server


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the configuration, endpoints and playground of the person who runs the tests."""
    runtime = tmp_path / "run"
    runtime.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    for name in ("ENDPOINTS", "TLS_CA", "TLS_CERT", "TLS_KEY"):
        monkeypatch.delenv(f"MINKA_{name}", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Run minkactl within this process. It keeps stdout and stderr apart; stdout isn't a terminal."""
    runner = CliRunner()
    return lambda *arguments, **options: runner.invoke(
        cli, [str(a) for a in arguments], prog_name="minkactl", **options
    )


@dataclass
class Ended:
    """The exit status of a process on a terminal, and all text that the terminal got."""

    status: int
    text: str


def on_terminal(
    *arguments: str, env: dict[str, str] | None = None, keys: str = "", when: str = "", timeout_s: float = 40
) -> Ended:
    """Run minkactl on its own terminal, 120 columns wide. Type `keys` once the terminal has shown `when`."""
    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"} | (env or {})
    process = Forked(server(), arguments, environment, [follower] * 3)
    os.close(follower)
    output, deadline, typed = b"", time.monotonic() + timeout_s, not keys
    while time.monotonic() < deadline:
        if not typed and when.encode() in output:
            os.write(leader, keys.encode())
            typed = True
        if not select.select([leader], [], [], 0.05)[0]:
            continue
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # EIO: no process has the other side open
            break
        if not chunk:
            break
        output += chunk
    else:
        os.kill(process.pid, signal.SIGKILL)
    os.close(leader)
    return Ended(process.wait(), output.decode("utf-8", "replace"))


def plain_lines(text: str) -> list[str]:
    """The lines of the terminal's text, without colours and cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "").rstrip("\n").split("\n")
