"""Streams from a node's replicas to other simulated nodes."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from minka.errors import Code, MinkaError
from tests.simulation.streams import ByteStream

if TYPE_CHECKING:
    from tests.simulation.process import Process


class SimLinks:
    """The simulated `ReplicationLinks`."""

    def __init__(self, process: "Process") -> None:
        self._process = process

    async def append(self, node_id: str, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Send a leader's frames to a follower; yields its answers."""
        address = self._process.coordinator.address_of(node_id)
        async for answer in ByteStream(self._process, address, _follow).run(frames):
            yield answer

    async def ship(self, node_id: str, messages: AsyncIterator[bytes]) -> bytes:
        """Send a checkpoint; returns the answer."""
        address = self._process.coordinator.address_of(node_id)
        async for answer in ByteStream(self._process, address, _install).run(messages):
            return answer
        raise MinkaError(Code.UNREACHABLE, f"{node_id} did not answer")


def _follow(server: "Process", frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    return server.manager.follow(frames)


async def _install(server: "Process", messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield await server.manager.install(messages)
