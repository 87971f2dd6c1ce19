"""Counterparts of the client library: real gRPC servers on 127.0.0.1 that behave as a test tells them."""

import contextlib
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from minka.errors import MinkaError
from minka.v1 import admin_pb2, admin_pb2_grpc

# Below the ephemeral range; each test process begins elsewhere.
_PORTS = itertools.count(20000 + os.getpid() * 37 % 10000)


def _listen(server: Any) -> str:
    """Bind to a free port and return the address."""
    for port in itertools.islice(_PORTS, 200):
        try:
            server.add_insecure_port(f"127.0.0.1:{port}")
        except RuntimeError:
            continue
        return f"127.0.0.1:{port}"
    raise AssertionError("no free port among 200")


@dataclass
class ControlNode(admin_pb2_grpc.AdminServicer, admin_pb2_grpc.MetadataServicer, admin_pb2_grpc.InventoryServicer):
    """A node whose control calls answer as `answers` says: method name → message, MinkaError to refuse, or function."""

    address: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)

    def _answer(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.asked.append((method, request))
        answer = self.answers[method]
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, MinkaError):
            context.set_trailing_metadata((("minka-error-bin", answer.to_proto().SerializeToString()),))
            context.abort(grpc.StatusCode[answer.code.info.grpc_status], answer.message)
        return answer

    def GetTable(self, request: admin_pb2.GetTableRequest, context: Any) -> Any:
        return self._answer("GetTable", request, context)

    def GetStatus(self, request: admin_pb2.GetStatusRequest, context: Any) -> Any:
        return self._answer("GetStatus", request, context)

    def CreateKeyspace(self, request: admin_pb2.CreateKeyspaceRequest, context: Any) -> Any:
        return self._answer("CreateKeyspace", request, context)

    def PlanReassign(self, request: admin_pb2.PlanReassignRequest, context: Any) -> Any:
        return self._answer("PlanReassign", request, context)

    def ApplyPlan(self, request: admin_pb2.ApplyPlanRequest, context: Any) -> Any:
        return self._answer("ApplyPlan", request, context)

    def GetOperations(self, request: admin_pb2.GetOperationsRequest, context: Any) -> Any:
        return self._answer("GetOperations", request, context)

    def CountKeys(self, request: admin_pb2.CountKeysRequest, context: Any) -> Any:
        return self._answer("CountKeys", request, context)


@pytest.fixture
def control_node() -> Iterator[Callable[[], ControlNode]]:
    """Start control nodes; they are stopped after the test."""
    servers: list[grpc.Server] = []

    def start() -> ControlNode:
        server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        node = ControlNode()
        admin_pb2_grpc.add_AdminServicer_to_server(node, server)
        admin_pb2_grpc.add_MetadataServicer_to_server(node, server)
        admin_pb2_grpc.add_InventoryServicer_to_server(node, server)
        node.address = _listen(server)
        server.start()
        servers.append(server)
        return node

    yield start
    for server in servers:
        server.stop(None).wait()


@pytest.fixture
def free_address() -> Callable[[], str]:
    """Give addresses at which nobody listens."""

    def find() -> str:
        for port in itertools.islice(_PORTS, 200):
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return f"127.0.0.1:{port}"
        raise AssertionError("no free port among 200")

    return find
