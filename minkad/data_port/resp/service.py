"""What all connections of Redis clients at one node share."""

import asyncio
import itertools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from minkad.data_port.resp.command import Command
from minkad.data_port.resp.errands import Means
from minkad.data_port.resp.gets import Gets
from minkad.data_port.resp.keyspaces import Keyspaces
from minkad.data_port.resp.pipes import Pipes
from minkad.data_port.resp.reads import Reads
from minkad.process.memory import Memory

if TYPE_CHECKING:
    from minkad.data_port.resp.connection import RespConnection
    from minkad.data_port.resp.scanning import Cursors
    from minkad.data_port.resp.slot_keys import Walks


class Service:
    """For the loop's thread."""

    def __init__(
        self,
        means: Means,
        memory: Memory,
        commands: Mapping[bytes, Command],
        cursors: "Cursors",
        walks: "Walks",
        own_address: str,
    ) -> None:
        """`own_address`: that of this node's data port, for clients."""
        self.means = means
        self.memory = memory
        self.commands = dict(commands)  # by name, in each spelling that came
        self.names = dict(commands)
        self.get, self.set = commands[b"GET"], commands[b"SET"]
        self.keyspaces: Keyspaces = means.keyspaces
        self.reads = Reads(means)
        self.gets = Gets(means, self.reads)
        self.pipes = Pipes(means, memory.share())
        self.telemetry = means.telemetry
        self.own_address = own_address
        self.connections: dict[int, RespConnection] = {}
        self.cursors = cursors
        self.walks = walks
        self.ids = itertools.count(1)
        self.started = time.monotonic()
        self.commands_done = 0
        self.connections_made = 0
        self._settling: list[RespConnection] = []
        self.is_in_turn = False
        """Whether something has come in this turn of the loop."""

    def find(self, name: bytes) -> Command | None:
        """The command of this name in any spelling."""
        command = self.names.get(name.upper())
        if command is not None:
            self.commands[bytes(name)] = command
        return command

    def is_cluster(self, connection: "RespConnection") -> bool:
        """Whether the connection's keyspace, if there is one, is one for clients of Redis Cluster."""
        view = self.keyspaces.view(connection.keyspace)
        return view is not None and view.is_cluster

    def begin_turn(self) -> None:
        """Something has come: what is to be read together is read, and answers are sent, once all was seen that has
        come in this turn of the loop.
        """
        self.is_in_turn = True
        asyncio.get_running_loop().call_soon(self._end_turn)
        self.keyspaces.refresh()

    def settle_soon(self, connection: "RespConnection") -> None:
        """Answers are there: they are sent at the end of this turn."""
        self._settling.append(connection)
        if not self.is_in_turn:
            self.begin_turn()

    def _end_turn(self) -> None:
        self.gets.end_turn()
        self.is_in_turn = False
        settling, self._settling = self._settling, []
        for connection in settling:
            connection.settle()

    def close(self) -> None:
        """End all connections."""
        for connection in list(self.connections.values()):
            connection.close()
