"""How replicas reach other nodes."""

from collections.abc import AsyncIterator
from typing import Protocol


class ReplicationLinks(Protocol):
    """Calls to a node by its id. Failures are MinkaErrors; a refusal is as the node raised it."""

    def append(self, node_id: str, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """APPEND_METHOD: sends `frames` (each a list of Append) and yields the answers (each a list of Ack)."""

    async def ship(self, node_id: str, messages: AsyncIterator[bytes]) -> bytes:
        """SHIP_METHOD: sends `messages` and gives the answer (a Shipped)."""
