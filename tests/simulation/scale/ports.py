"""The simulated ports that the real transport of Raft messages uses. As in a daemon, the sender's loop encodes the
messages.
"""

from typing import TYPE_CHECKING, cast

from minka.errors import Code, MinkaError
from minka.v1.raft_pb2 import Message, RaftMessageBatch
from minka.wire.data_port import Connection, Receiver

if TYPE_CHECKING:
    from tests.simulation.scale.voter import Voter


class SimPorts:
    """Connects one process to the ports of the others."""

    def __init__(self, voter: "Voter") -> None:
        self._voter = voter

    async def connect(self, address: str, raft_id: int, receiver: Receiver) -> Connection:
        """Connect to the data port of the node with this gRPC address. Raises UNREACHABLE."""
        self._check(address)
        return cast("Connection", _Connection(self._voter, address))

    async def send_snapshot(self, address: str, message: Message) -> None:
        """Send a message with a snapshot. Raises UNREACHABLE."""
        self._check(address)
        _send(self._voter, address, RaftMessageBatch(messages=[message]).SerializeToString())

    def _check(self, address: str) -> None:
        if not self._voter.world.listens(address):
            raise MinkaError(Code.UNREACHABLE, f"{address}: no process listens there")


class _Connection:
    is_paused = False

    def __init__(self, voter: "Voter", address: str) -> None:
        self._voter = voter
        self._address = address
        self._has_begun = False

    def send(self, content: bytes) -> None:
        """Send a frame, but drop the first frame: it has only the sender's address, which the receiver in this world
        knows already.
        """
        if self._has_begun:
            _send(self._voter, self._address, content)
        self._has_begun = True

    send_at_once = send

    def drop(self) -> None:
        """End the connection."""


def _send(voter: "Voter", address: str, content: bytes) -> None:
    voter.sent_bytes += len(content)
    voter.world.raft_to(voter, address, content)
