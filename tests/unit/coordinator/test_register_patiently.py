"""A node that registers asks several addresses for the active controller. The controller's own answer decides."""

from typing import Any

import pytest

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Node
from minka.v1.coordinator_pb2 import RegisterRequest
from minkad.coordinator.member import register_patiently
from minkad.core.controller_methods import Method

FOLLOWER, CONTROLLER, DEAD = "byzantium:7400", "cyrene:7400", "delphi:7400"


class Controllers:
    """Three addresses. A follower names the controller; the controller answers with the error `verdict`; no node
    listens at the third address.
    """

    def __init__(self, verdict: Code) -> None:
        self.verdict = verdict

    async def call(self, address: str, method: Method[Any, Any], request: Any, timeout: float) -> Any:
        """Answer as Coordinator.Register does."""
        if address == FOLLOWER:
            raise MinkaError(Code.NOT_CONTROLLER, "cyrene leads", leader="cyrene", leader_address=CONTROLLER)
        if address == DEAD:
            raise MinkaError(Code.UNREACHABLE, f"{address} does not answer")
        raise MinkaError(self.verdict, "the verdict")


@pytest.mark.parametrize("verdict", [Code.NOT_REGISTERED, Code.NODE_REMOVED, Code.WRONG_DATA_DIRECTORY])
async def test_the_controllers_verdict_counts_although_a_missing_node_is_asked_after_it(verdict: Code) -> None:
    call = Controllers(verdict).call
    with pytest.raises(MinkaError) as error:
        await register_patiently(call, [FOLLOWER, DEAD], RegisterRequest(node=Node(id="athens")), 0.0, 1.0, lambda: 0.0)
    assert error.value.code is verdict
