"""The way to the nodes that lead partitions which are not led here: their data ports, as a client of Minka."""

import asyncio
import itertools
import ssl
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from minka import wire
from minka.data_port import Connection, Hello, Purpose, connect
from minka.errors import Code, MinkaError
from minka.wire import Group, GroupResult, Op
from minkad.config.addresses import split_address
from minkad.process import tasks

_CONNECT_S: Final = 2.0
_GRACE_S: Final = 1.0  # a node answers within the timeout; so much later it counts as hung
_READS: Final = frozenset({Op.READ, Op.READ_STALE, Op.READ_VERSIONED, Op.SCAN})

OnDone = Callable[[GroupResult], None]


class Elsewhere:
    """A connection to each node that was asked."""

    def __init__(self, cluster_id: str, tls: Callable[[], ssl.SSLContext | None]) -> None:
        """`tls` gives the context for the next connection."""
        self._cluster_id = cluster_id
        self._tls = tls
        self._nodes: dict[str, _Node] = {}

    def ask(self, address: str, group: Group, timeout_ms: int, on_done: OnDone) -> None:
        """Pass the group on to the node with this data port; `on_done` is called in a later turn of the loop, with
        OUTCOME_UNKNOWN if a write may have been done.
        """
        if not address:
            asyncio.get_running_loop().call_soon(on_done, _refused(Code.UNREACHABLE, "the node's address is not known"))
            return
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = _Node(address, self._cluster_id, self._tls, self._nodes.pop)
        node.ask(group, timeout_ms, on_done)

    def keep(self, addresses: Collection[str]) -> None:
        """Only nodes with these data ports are there: end the connections to others once they have answered."""
        for address, node in list(self._nodes.items()):
            node.leave(address not in addresses)

    def close(self) -> None:
        """End the connections."""
        for node in list(self._nodes.values()):  # some are forgotten meanwhile
            node.close()


class _Node:
    """The connection to one node: a `Receiver`. What is asked in one turn of the loop is one frame."""

    def __init__(
        self,
        address: str,
        cluster_id: str,
        tls: Callable[[], ssl.SSLContext | None],
        forget: Callable[[str], object],
    ) -> None:
        """`forget` is called with the address at the end."""
        self._address = address
        self._forget = forget
        self._is_leaving = False
        self._hello = Hello(Purpose.KV, cluster_id, "")
        self._tls = tls
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._ids = itertools.count(1)
        self._queue: list[tuple[Group, int, OnDone]] = []
        self._under_way: dict[int, tuple[asyncio.TimerHandle, list[tuple[Group, int, OnDone]]]] = {}

    def ask(self, group: Group, timeout_ms: int, on_done: OnDone) -> None:
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._begin)
        self._queue.append((group, timeout_ms, on_done))

    def leave(self, is_leaving: bool) -> None:
        """Whether to end once everything that was asked is answered."""
        self._is_leaving = is_leaving
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._is_leaving and not (self._queue or self._under_way):
            self._is_leaving = False
            self._forget(self._address)
            if self._connection is not None:
                self._connection.drop()

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.drop()
        self.lost(None)

    # The receiver

    def received(self, content: bytes) -> None:
        try:
            response = wire.decode_response(content)
        except msgspec.MsgspecError as error:
            raise MinkaError(Code.INTERNAL, f"an answer is not understood: {error}") from error
        timer, asked = self._under_way.pop(response.id)
        timer.cancel()
        for (_, _, on_done), result in zip(asked, response.results, strict=True):
            on_done(result)
        self._end_if_idle()

    def ended(self) -> None:
        self.lost(None)

    def lost(self, error: MinkaError | None) -> None:
        self._connection = None
        text = f"{self._address}: {error.message if error is not None else 'the connection was closed'}"
        for timer, asked in list(self._under_way.values()):
            timer.cancel()
            self._give_up(asked, text, was_sent=True)
        self._under_way.clear()
        self._end_if_idle()

    def paused(self) -> None: ...
    def resumed(self) -> None: ...

    # Asking

    def _begin(self) -> None:
        if self._connection is None or self._connection.is_over:
            if self._connecting is None:
                self._connecting = tasks.start(self._connect(), "passing on", self._failed_to_connect)
            return
        while self._queue:
            asked, self._queue = self._queue[: wire.MAX_GROUPS], self._queue[wire.MAX_GROUPS :]
            self._send(self._connection, asked)

    def _send(self, connection: Connection, asked: list[tuple[Group, int, OnDone]]) -> None:
        number, timeout_ms = next(self._ids), max(timeout_ms for _, timeout_ms, _ in asked)
        overdue = asyncio.get_running_loop().call_later(timeout_ms / 1000 + _GRACE_S, connection.abort)
        self._under_way[number] = overdue, asked
        connection.send(wire.encode(wire.Request(number, timeout_ms, [group for group, _, _ in asked])))

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                self._connection = await connect(split_address(self._address), self._tls(), self._hello, self)
        except (MinkaError, TimeoutError) as error:
            self._failed_to_connect(error)
        finally:
            self._connecting = None
        if self._queue:
            self._begin()
        self._end_if_idle()

    def _failed_to_connect(self, error: BaseException) -> None:
        asked, self._queue = self._queue, []
        self._give_up(asked, str(error) or f"{self._address}: no connection within {_CONNECT_S:g} s")

    @staticmethod
    def _give_up(asked: list[tuple[Group, int, OnDone]], text: str, *, was_sent: bool = False) -> None:
        for group, _, on_done in asked:
            unknown = was_sent and group.op not in _READS
            on_done(_refused(Code.OUTCOME_UNKNOWN if unknown else Code.UNREACHABLE, text))


def _refused(code: Code, text: str) -> GroupResult:
    return GroupResult(MinkaError(code, text).to_proto().SerializeToString(), None)
