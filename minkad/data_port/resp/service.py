"""The parts that all connections of Redis clients at one node share."""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from minkad.data_port.resp.command import Command, upper
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

log: Final = logging.getLogger(__name__)

TURN_S: Final = 0.005
"""In a turn of the loop, new commands begin for this long, then waiting commands for as long; then comes other work."""


class Service:
    """Only the loop's thread may use it."""

    def __init__(
        self,
        means: Means,
        memory: Memory,
        commands: Mapping[bytes, Command],
        cursors: "Cursors",
        walks: "Walks",
        own_address: str,
        knows_table: Callable[[], bool],
    ) -> None:
        """`own_address`: the address of this node's data port, for clients. `knows_table`: see `RespPort`."""
        self.means = means
        self.memory = memory
        self.commands = dict(commands)  # by name, in each spelling seen so far
        self.names = dict(commands)  # by name, in capitals
        self.get, self.set = commands[b"GET"], commands[b"SET"]
        self.keyspaces: Keyspaces = means.keyspaces
        self.reads = Reads(means)
        self.gets = Gets(means, self.reads)
        self.pipes = Pipes(means, memory.share())
        self.telemetry = means.telemetry
        self.own_address = own_address
        self.knows_table = knows_table
        self.connections: dict[int, RespConnection] = {}  # the open connections, by id
        self.cursors = cursors
        self.walks = walks
        self.ids = itertools.count(1)
        self.started = time.monotonic()
        self.commands_done = 0
        self.connections_made = 0
        self._settling: list[RespConnection] = []  # connections to settle at the end of this turn
        self._is_settling = False  # True during `_end_turn`
        self._until = 0.0  # when commands have taken enough of this turn
        self._pieces: deque[tuple[RespConnection, Callable[[], None]]] = deque()  # of long commands
        self.is_in_turn = False
        """True if `_end_turn` will be called at the end of this turn of the loop."""

    def find(self, name: bytes) -> Command | None:
        """The command of this name in any spelling."""
        command = self.names.get(upper(name))
        if command is not None:
            self.commands[bytes(name)] = command
        return command

    def is_cluster(self, connection: "RespConnection") -> bool:
        """True if the connection has a keyspace for clients of Redis Cluster."""
        view = self.keyspaces.view(connection.keyspace)
        return view is not None and view.is_cluster

    def begin_turn(self) -> None:
        """Input or an answer has come. After all input of this turn of the loop was taken, the gathered GETs are read,
        and answers are sent.
        """
        self.is_in_turn = True
        asyncio.get_running_loop().call_soon(self._end_turn)
        if not self._is_settling:
            self._until = time.perf_counter() + TURN_S
        self.keyspaces.refresh()

    def is_late(self) -> bool:
        """True if commands have taken enough of this turn of the loop."""
        return time.perf_counter() > self._until

    def in_turn(self, connection: "RespConnection", piece: Callable[[], None]) -> None:
        """Do a piece of a long command in its turn."""
        self._pieces.append((connection, piece))
        if not self.is_in_turn:
            self.begin_turn()

    def settle_soon(self, connection: "RespConnection") -> None:
        """Answers are ready: send them at the end of this turn."""
        self._settling.append(connection)
        if not self.is_in_turn:
            self.begin_turn()

    def _end_turn(self) -> None:
        self.gets.run()
        self.is_in_turn, self._is_settling = False, True
        self._until = time.perf_counter() + TURN_S
        settling, self._settling = self._settling, []
        for place, connection in enumerate(settling):
            if self.is_late():
                self._settling = settling[place:] + self._settling
                break
            _guarded(connection, connection.settle)
        for number in range(len(self._pieces)):
            if number and self.is_late():  # one piece always has its turn, even if it is late
                break
            _guarded(*self._pieces.popleft())
        self._is_settling = False
        if (self._pieces or self._settling) and not self.is_in_turn:
            self.begin_turn()
        self._until = time.perf_counter() + TURN_S

    def close(self) -> None:
        """End all connections."""
        for connection in list(self.connections.values()):
            connection.close()


def _guarded(connection: "RespConnection", work: Callable[[], None]) -> None:
    """Do the work for the connection. A bug ends only this connection."""
    try:
        work()
    except Exception:
        log.exception("the connection of %s is ended", connection.address)
        connection.abort()
