"""This node's calls to the active controller: direct if the controller is on this node, else by gRPC."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import HeartbeatRequest, HeartbeatResponse
from minkad.core.controller_methods import HEARTBEAT, Method, Request, Response

ANYBODY: Final = ""  # the address of a wait for any node


class Here(Protocol):
    """This node's own handlers of requests to the active controller. They raise the MinkaErrors that another node would
    get.
    """

    def __call__(self, method: Method[Request, Response], request: Request, timeout: float) -> Awaitable[Response]:
        """The response."""


class CallsAt(Protocol):
    """A call to the node at an address. Failures are MinkaErrors."""

    def __call__(
        self, address: str, method: Method[Request, Response], request: Request, timeout: float
    ) -> Awaitable[Response]:
        """The response. Raises DEADLINE_EXCEEDED after `timeout` seconds."""


class Nodes(Protocol):
    """Calls to other nodes."""

    @property
    def call(self) -> CallsAt:
        """A call of any method but heartbeats."""

    def heartbeat(
        self, address: str, requests: AsyncIterator[HeartbeatRequest]
    ) -> AsyncGenerator[HeartbeatResponse, None]:
        """The responses, until the stream breaks."""


@dataclass(slots=True, eq=False)
class _Wait:
    """A wait for an answer of a controller."""

    address: str  # the controller's, or ANYBODY
    known: str | None  # the controller's address by Raft when the wait began
    limit: asyncio.Timeout

    def end(self) -> None:
        """Let the wait raise TimeoutError now."""
        if not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time())


class ControllerCalls:
    """Makes each call once: only the caller knows if a call may be repeated, and for how long."""

    def __init__(
        self,
        own_address: str,
        controller_address: Callable[[], str | None],
        here: Here,
        nodes: Nodes,
        call_timeout: float,
    ) -> None:
        """`controller_address` returns the active controller's address, if Raft names one; `call_timeout` (seconds)
        holds for calls without a timeout of their own.
        """
        self.own_address: Final = own_address
        self.controller_address: Final = controller_address
        self._here = here
        self._nodes = nodes
        self._call_timeout = call_timeout
        self._waits: dict[_Wait, None] = {}  # in the order of their beginnings

    async def call(self, method: Method[Request, Response], request: Request, timeout: float | None = None) -> Response:
        """Call the active controller. Raises the controller's refusal; NO_CONTROLLER if this node knows no controller;
        OUTCOME_UNKNOWN as soon as Raft names another controller; DEADLINE_EXCEEDED after `timeout` seconds.
        """
        address = self.controller_address()
        if address is None:
            raise MinkaError(Code.NO_CONTROLLER, "no active controller is known to this node")
        seconds = self._call_timeout if timeout is None else timeout
        try:
            async with self.waiting(address, seconds):
                return await self.call_at(address, method, request, seconds)
        except TimeoutError:
            if self.controller_address() not in (None, address):
                text = f"{address} is no longer the active controller"
                raise MinkaError(Code.OUTCOME_UNKNOWN, text) from None
            raise _late(address) from None

    async def call_at(
        self, address: str, method: Method[Request, Response], request: Request, timeout: float
    ) -> Response:
        """Call the node at the address as the active controller. Raises the node's refusal, which may name another
        controller; DEADLINE_EXCEEDED.
        """
        if address != self.own_address:
            return await self._nodes.call(address, method, request, timeout)
        try:
            async with asyncio.timeout(timeout):
                return await self._here(method, request, timeout)
        except TimeoutError:
            raise _late(address) from None

    def heartbeats(
        self, address: str, requests: AsyncGenerator[HeartbeatRequest, None]
    ) -> AsyncGenerator[HeartbeatResponse, None]:
        """Send heartbeats to the node at the address; yields the responses, until the stream breaks."""
        if address == self.own_address:
            return self._answered_here(requests)
        return self._nodes.heartbeat(address, requests)

    async def _answered_here(
        self, requests: AsyncGenerator[HeartbeatRequest, None]
    ) -> AsyncGenerator[HeartbeatResponse, None]:
        async with aclosing(requests):
            async for request in requests:
                yield await self._here(HEARTBEAT, request, self._call_timeout)

    # Waiting for an answer

    @asynccontextmanager
    async def waiting(self, address: str, seconds: float) -> AsyncGenerator[None, None]:
        """Raises TimeoutError after `seconds`, or when Raft names another leader. A wait for `ANYBODY` also ends when
        the table answers.
        """
        async with asyncio.timeout(seconds) as limit:
            wait = _Wait(address, self.controller_address(), limit)
            self._waits[wait] = None
            try:
                yield
            finally:
                del self._waits[wait]

    def leader_changed(self) -> None:
        """Raft names another leader: end all waits for the former one."""
        known = self.controller_address()
        for wait in self._waits:
            if known not in (None, wait.address, wait.known):
                wait.end()

    def table_answered(self) -> None:
        """The table shows the result of this node's request: end the waits for ANYBODY."""
        for wait in self._waits:
            if wait.address == ANYBODY:
                wait.end()


def _late(address: str) -> MinkaError:
    return MinkaError(Code.DEADLINE_EXCEEDED, f"{address} did not answer in time", address=address)
