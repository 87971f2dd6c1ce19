"""The requests of nodes to the active controller: the table of methods, and the answers to this node's own requests."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minka.errors import Code, MinkaError
from minka.v1 import coordinator_pb2, duty_api_pb2, load_api_pb2, shards_pb2
from minka.v1.cluster_pb2 import Node
from minka.v1.coordinator_pb2 import HandOverRequest, LeaveRequest, RegisterRequest
from minkad.coordinator.controller_handlers import ControllerHandlers
from minkad.core.controller_methods import HAND_OVER, LEAVE, REGISTER
from minkad.rpc.controller_service import ControllerService


class Coordinator:
    """A coordinator whose node isn't the active controller, or whose active controller has a bug."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.state = SimpleNamespace(nodes={})
        self.driver = SimpleNamespace(match=dict)

    def controller(self) -> Any:
        raise self.error


def service(error: Exception | None = None) -> ControllerService:
    refusal = error or MinkaError(Code.NOT_CONTROLLER, "byzantium is the active controller")
    return ControllerService(ControllerHandlers(cast(Any, Coordinator(refusal))), "athens")


def test_each_method_of_the_protocol_has_a_handler_with_its_types() -> None:
    files = (
        (coordinator_pb2, "Coordinator"),
        (load_api_pb2, "LoadControl"),
        (shards_pb2, "ShardCoordinator"),
        (duty_api_pb2, "DutyControl"),
    )
    services = [file.DESCRIPTOR.services_by_name[name] for file, name in files]
    said = {
        f"/{one.containing_service.full_name}/{one.name}": (one.input_type, one.output_type)
        for service in services
        for one in service.methods
    }
    handled = ControllerHandlers(cast(Any, Coordinator(AssertionError()))).methods
    assert {one.path: (one.request.DESCRIPTOR, one.response.DESCRIPTOR) for one in handled} == said


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (LeaveRequest(incarnation="1"), "node_id: is missing"),
        (LeaveRequest(node_id="byzantium", incarnation="1"), "a node speaks for another one"),
        (LeaveRequest(node_id="athens", incarnation="x" * 65), "incarnation"),
    ],
)
async def test_a_nodes_own_request_is_checked_like_another_nodes(request_: LeaveRequest, text: str) -> None:
    with pytest.raises(MinkaError, match=f"INVALID_ARGUMENT: .*{text}"):
        await service().answer_here(LEAVE, request_, 1.0)


async def test_a_nodes_own_request_is_refused_like_another_nodes() -> None:
    with pytest.raises(MinkaError, match="NOT_CONTROLLER"):
        await service().answer_here(HAND_OVER, HandOverRequest(node_id="athens", target="byzantium"), 1.0)


async def test_a_bug_in_the_controller_is_an_internal_error_for_its_own_node(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(id="athens", data_id="1", incarnation="1", address="127.0.0.1:7400")
    with pytest.raises(MinkaError, match="INTERNAL: KeyError: 'oh'"):
        await service(KeyError("oh")).answer_here(REGISTER, RegisterRequest(node=node), 1.0)
    assert [record.message for record in caplog.records] == ["a call failed"]
