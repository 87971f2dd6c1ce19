"""Requests to the active controller: a request is a command, or becomes one."""

from typing import Any

from google.protobuf.message import Message

from minkad.coordinator.coordinator import Coordinator


class ControllerRequests:
    """Handles requests if this node is the active controller. A change of the table is answered when it is recorded.
    Methods raise MinkaError, with NOT_CONTROLLER or NO_CONTROLLER if another node has to be asked.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def run(self, request: Message) -> Any:
        """Answer a request that is a command itself."""
        return await self._coordinator.controller().run(request)
