"""The node in whose process a client runs. The client's requests to this node don't leave the process."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from minka.v1.admin_pb2 import GetTableRequest, GetTableResponse
from minka.wire.data_port import Connection, Receiver


class OwnNode(Protocol):
    """Does what the node's ports do."""

    @property
    def address(self) -> str:
        """The node's address for gRPC."""

    @property
    def data_address(self) -> str:
        """The address of the node's data port."""

    @property
    def table(self) -> Callable[[GetTableRequest], Awaitable[GetTableResponse]]:
        """Answers like Metadata.GetTable. Raises MinkaError."""

    async def connect(self, receiver: Receiver) -> Connection:
        """A connection for reads and writes. Raises MinkaError."""
