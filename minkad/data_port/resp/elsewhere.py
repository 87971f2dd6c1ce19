"""The way to the nodes that lead other partitions: their data ports, as a client of Minka.

A request names the most bytes that its answers may have, and takes this memory from the clients' memory first; a read
waits until there is room. If an answer is larger, the other node refuses, and this node asks again when there is room
for the largest answer. Of each client, one read waits for room at a time: no client waits for all reads of another.
"""

import asyncio
import itertools
import ssl
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import msgspec

from minka.errors import Code, MinkaError, error_to_proto
from minka.v1 import errors_pb2
from minka.wire import kv_frames
from minka.wire.data_port import Connection, Hello, Purpose, connect
from minka.wire.kv_frames import GroupResult
from minkad.config.addresses import split_address
from minkad.data_port.resp.errands import READS, Asked
from minkad.process import tasks
from minkad.process.memory import Share

_CONNECT_S: Final = 2.0
_GRACE_S: Final = 1.0  # a node answers within the timeout; if no answer has come this much later, the node hangs
_TAKE_SOONER: Final = "take the answers sooner, or send fewer reads at a time"
_FRAME_BYTES: Final = 1024 * 1024  # most expected bytes of answers in one frame; a single answer may have more


class Elsewhere:
    """A connection to each node that was asked."""

    def __init__(self, cluster_id: str, tls: Callable[[], ssl.SSLContext | None]) -> None:
        """`tls` returns the context for the next connection."""
        self._cluster_id = cluster_id
        self._tls = tls
        self._nodes: dict[str, _Node] = {}  # by the address of the data port
        self._is_closed = False

    def ask(self, address: str, asked: Asked) -> None:
        """Pass the group on to the node with this data port; `on_done` is called in a later turn of the loop, with
        OUTCOME_UNKNOWN if a write may have been done.
        """
        if not address or self._is_closed:
            why = "the node's address is not known" if not address else "this node is stopping"
            refusal = _refused(Code.UNREACHABLE, why)
            asyncio.get_running_loop().call_soon(_answer, asked, refusal)
            return
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = _Node(address, self._cluster_id, self._tls, self._nodes.pop)
        node.ask(asked)

    def keep(self, addresses: Collection[str]) -> None:
        """Only nodes with these data ports exist now: end the connections to other nodes after these have answered."""
        for address, node in list(self._nodes.items()):
            node.leave(address not in addresses)

    def close(self) -> None:
        """End the connections, and make no more."""
        self._is_closed = True
        for node in list(self._nodes.values()):  # a copy, since `close` may remove the node
            node.close()


class _Node:
    """The connection to one node: a `Receiver`. It sends the groups of one turn of the loop in one frame, or a few."""

    def __init__(
        self,
        address: str,
        cluster_id: str,
        tls: Callable[[], ssl.SSLContext | None],
        forget: Callable[[str], object],
    ) -> None:
        """`forget` is called with the address when the connection ends."""
        self._address = address
        self._forget = forget
        self._is_leaving = False  # the node no longer exists
        self._hello = Hello(Purpose.KV, cluster_id, "")
        self._tls = tls
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._ids = itertools.count(1)
        self._queue: deque[Asked] = deque()  # to send at the end of this turn, or when there is a connection
        self._under_way: dict[int, tuple[asyncio.TimerHandle, list[Asked]]] = {}  # by the request's id
        self._waiting: dict[Share, deque[Asked]] = {}  # by client: groups that wait until `_reserving` is done
        self._reserving: dict[Share, asyncio.Task[None]] = {}  # by client: waits for room for one group

    def ask(self, asked: Asked) -> None:
        if not asked.size:
            self._wait_for_room(asked)
            return
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._begin)
        self._queue.append(asked)

    def leave(self, is_leaving: bool) -> None:
        """`is_leaving`: end after everything asked is answered."""
        self._is_leaving = is_leaving
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._is_leaving and not (self._queue or self._under_way or self._waiting or self._reserving):
            self._is_leaving = False
            self._forget(self._address)
            if self._connection is not None:
                self._connection.drop()

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        for task in self._reserving.values():
            task.cancel()
        self._waiting.clear()
        if self._connection is not None:
            self._connection.drop()
        self.lost(None)

    # The receiver

    def received(self, content: bytes) -> None:
        try:
            response = kv_frames.decode_response(content)
        except msgspec.MsgspecError as error:
            raise MinkaError(Code.INTERNAL, f"an answer is not understood: {error}") from error
        timer, asked = self._under_way.pop(response.id)
        timer.cancel()
        for one, result in zip(asked, response.results, strict=True):
            if result.error is not None and one.size < one.most and _is_too_large(result.error):
                one.expected = one.most
                self._wait_for_room(one)
            else:
                _answer(one, result)
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
            some, size = [self._queue.popleft()], 0
            size = some[0].size
            while self._queue and len(some) < kv_frames.MAX_GROUPS and size + self._queue[0].size <= _FRAME_BYTES:
                size += self._queue[0].size
                some.append(self._queue.popleft())
            self._send(self._connection, some, size)

    def _send(self, connection: Connection, asked: list[Asked], max_bytes: int) -> None:
        loop, number = asyncio.get_running_loop(), next(self._ids)
        timeout_ms = max(1, int((max(one.deadline for one in asked) - loop.time()) * 1000))
        overdue = loop.call_later(timeout_ms / 1000 + _GRACE_S, connection.abort)
        self._under_way[number] = overdue, asked
        groups = [one.group for one in asked]
        connection.send(kv_frames.encode(kv_frames.Request(number, timeout_ms, groups, max_bytes)))

    def _wait_for_room(self, asked: Asked) -> None:
        self._waiting.setdefault(asked.share, deque()).append(asked)
        self._reserve(asked.share)

    def _reserve(self, share: Share) -> None:
        waiting = self._waiting.get(share)
        if waiting is None or share in self._reserving:
            return
        asked = waiting.popleft()
        if not waiting:
            del self._waiting[share]
        task = tasks.start(self._with_room(asked), "passing on", partial(self._failed_to_reserve, asked))
        self._reserving[share] = task
        task.add_done_callback(lambda _: self._reserved(share))

    def _reserved(self, share: Share) -> None:
        del self._reserving[share]
        self._reserve(share)
        self._end_if_idle()

    async def _with_room(self, asked: Asked) -> None:
        has_room = await asked.share.reserve(asked.expected - asked.size, asked.deadline, lambda: asked.size)
        if has_room:
            asked.size = asked.expected
        if asked.deadline <= asyncio.get_running_loop().time():
            _answer(asked, _refused(Code.OVERLOADED, f"there was no memory for this answer in time: {_TAKE_SOONER}"))
        elif has_room:
            self.ask(asked)
        else:
            _answer(
                asked,
                _refused(Code.OVERLOADED, f"answers that are not taken leave no memory for this one: {_TAKE_SOONER}"),
            )

    @staticmethod
    def _failed_to_reserve(asked: Asked, error: BaseException) -> None:
        _answer(asked, _refused(Code.INTERNAL, f"{type(error).__name__}: {error}"))

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
        asked, self._queue = list(self._queue), deque()
        self._give_up(asked, str(error) or f"{self._address}: no connection within {_CONNECT_S:g} s")

    @staticmethod
    def _give_up(asked: list[Asked], text: str, *, was_sent: bool = False) -> None:
        for one in asked:
            unknown = was_sent and one.group.op not in READS
            _answer(one, _refused(Code.OUTCOME_UNKNOWN if unknown else Code.UNREACHABLE, text))


def _answer(asked: Asked, result: GroupResult) -> None:
    asked.share.give(asked.size)
    asked.on_done(result)


def _is_too_large(error: bytes) -> bool:
    return errors_pb2.Error.FromString(error).code == Code.TOO_LARGE.name


def _refused(code: Code, text: str) -> GroupResult:
    return GroupResult(error_to_proto(MinkaError(code, text)).SerializeToString(), None)
