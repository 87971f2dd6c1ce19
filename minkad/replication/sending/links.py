"""Calls from replicas to other nodes."""

from collections.abc import AsyncIterator
from typing import Protocol


class ReplicationLinks(Protocol):
    """Calls to another node. A call raises a MinkaError: the other node's refusal, or that of a failed connection."""

    def append(self, node_id: str, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """A leader's stream: sends `frames` (each an encoded Frame) and yields the answers (each an Answer)."""

    async def ship(self, node_id: str, messages: AsyncIterator[bytes]) -> bytes:
        """A checkpoint: sends `messages` and returns the answer (a Shipped)."""
