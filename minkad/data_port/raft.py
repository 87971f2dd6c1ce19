"""Raft messages between nodes on their data ports: each node sends to each other on one connection. A slow connection
blocks no other.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, cast

from minka.errors import Code, MinkaError
from minka.v1.raft_pb2 import MSG_SNAP, Message, RaftMessageBatch
from minka.wire.data_port import Connection, Hello, Purpose, Receiver, connect
from minkad.config.addresses import split_address
from minkad.process import tasks
from minkad.process.clock import boottime
from minkad.process.logs import Seldom

log: Final = logging.getLogger(__name__)

MAX_QUEUED: Final = 1024  # messages to one node that doesn't take them; Raft repeats dropped ones
MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024  # of the entries in them; one message may have more
MAX_BATCH: Final = 256
MAX_BATCH_BYTES: Final = 1024 * 1024
RECONNECT_S: Final = 0.1
_CONNECT_S: Final = 2.0
_UNACKNOWLEDGED_S: Final = 3.0  # after this, the other machine has vanished without a word
_PROBE_S: Final = 0.5
_ENDS_WITHIN_S: Final = 2.0
_MAX_HEARD: Final = 4096  # senders whose address is remembered

Connect = Callable[[str, int, Receiver], Awaitable[Connection]]
Take = Callable[[bytes], None]


class RaftPorts:
    """Finds the data ports of other nodes by their gRPC addresses."""

    def __init__(
        self,
        locate: Callable[[str, int], Awaitable[str]],
        cluster_id: str,
        node_id: str,
        tls: Callable[[], ssl.SSLContext | None],
    ) -> None:
        """`locate` asks the node at a gRPC address, with a raft id, for the address of its data port, or raises a
        MinkaError.
        """
        self._locate = locate
        self._hello = Hello(Purpose.RAFT, cluster_id, node_id)
        self._tls = tls
        self._seldom = Seldom(log)

    async def connect(self, address: str, raft_id: int, receiver: Receiver) -> Connection:
        """A connection to the node with this gRPC address and raft id. Raises UNREACHABLE, and the errors that it
        answers.
        """
        data_address = await self._locate(address, raft_id)
        try:
            async with asyncio.timeout(_CONNECT_S):
                connection = await connect(split_address(data_address), self._tls(), self._hello, receiver)
        except (MinkaError, TimeoutError) as error:
            reason = str(error) or f"no connection within {_CONNECT_S:g} s"
            self._seldom.log(logging.INFO, "a node's data port can't be reached", address=data_address, reason=reason)
            raise MinkaError(Code.UNREACHABLE, f"{data_address}: {reason}") from error
        connection.give_up_after(_UNACKNOWLEDGED_S)
        return connection


class TransportReports(Protocol):
    """The part of the Raft driver that hears how the transport gets on; the nodes by raft id."""

    def report_unreachable(self, raft_id: int) -> None:
        """Messages to the node were lost."""

    def report_gone(self, raft_id: int) -> None:
        """The node's process has died."""

    def report_snapshot(self, raft_id: int, ok: bool) -> None:
        """A snapshot was delivered, or wasn't."""


class RaftTransport:
    """Sends messages to nodes by raft id.

    Each connection gives the gRPC address of its sender, which takes precedence over the table: a node that has just
    joined has no table yet, and the new address of a voter that moved is recorded only after it is heard. A learner
    that moved is silent until it gets a message, so where one address can't be reached, the other is tried. If all
    voters have moved at once, all tables are wrong, and nobody hears anybody: a node not heard since this one started
    is also looked for at the addresses of the configuration.
    """

    def __init__(
        self,
        connect: Connect,
        send_snapshot: Callable[[str, Message], Awaitable[None]],
        own_address: str,
        address_of: Callable[[int], str | None],
        configured: Callable[[int], Sequence[str]],
    ) -> None:
        """`connect` makes a connection to the node with a gRPC address, and `send_snapshot` sends it a message with a
        snapshot; both raise a MinkaError. `address_of` returns a node's address by the table; None for an unknown node.
        `configured` returns the addresses that a node may have by the configuration.
        """
        self.connect = connect
        self.own_address = own_address
        # Set once: the driver needs the transport, so the driver is made after it.
        self.driver = cast("TransportReports", None)
        self._deliver_snapshot = send_snapshot
        self._address_of = address_of
        self._configured = configured
        self._heard: dict[int, str] = {}
        self._heard_at: dict[int, float] = {}
        self._unreached: dict[int, set[str]] = {}  # addresses at which a node wasn't reached, until all are tried again
        self._links: dict[int, _Link] = {}
        self._snapshots: dict[int, asyncio.Task[None]] = {}

    def send(self, messages: Sequence[Message]) -> None:
        """Send each message to its node, as far as that takes them; a snapshot has a call of its own."""
        by_node: dict[int, list[Message]] = {}
        for message in messages:
            if message.type != MSG_SNAP:
                by_node.setdefault(message.to, []).append(message)
            elif message.to not in self._snapshots:
                task = tasks.start(self._send_snapshot(message), f"raft snapshot to {message.to}", tasks.told)
                self._snapshots[message.to] = task
        for raft_id, some in by_node.items():
            self._link(raft_id).send(some)

    def heard_from(self, raft_id: int, address: str) -> None:
        """Note that a node has sent messages, and that `address` is its address as it says."""
        self._heard[raft_id] = address
        self._heard_at[raft_id] = boottime()
        if len(self._heard) > _MAX_HEARD:
            first = next(iter(self._heard))
            for known in (self._heard, self._heard_at, self._unreached):
                known.pop(first, None)

    def last_heard(self, raft_id: int) -> float | None:
        """The time when a node last sent messages, in seconds of `boottime`; None: not yet."""
        return self._heard_at.get(raft_id)

    def where(self, raft_id: int) -> str | None:
        """The node's gRPC address, or the next one to try; None if none is known."""
        addresses, unreached = self._addresses(raft_id), self._unreached.get(raft_id, ())
        left = [address for address in addresses if address not in unreached]
        return next(iter(left or addresses), None)

    def _addresses(self, raft_id: int) -> list[str]:
        """The addresses that may be the node's, the likeliest first."""
        heard, known = self._heard.get(raft_id), self._address_of(raft_id)
        configured = () if raft_id in self._heard_at else self._configured(raft_id)
        return [address for address in dict.fromkeys((heard, known, *configured)) if address]

    def reached(self, raft_id: int, address: str, is_reached: bool) -> None:
        """Note whether the node was reached at this address."""
        if is_reached:
            self._unreached.pop(raft_id, None)
            if address != self._address_of(raft_id) or raft_id in self._heard:
                self._heard[raft_id] = address
            return
        unreached = self._unreached.setdefault(raft_id, set())
        unreached.add(address)
        if unreached.issuperset(self._addresses(raft_id)):
            unreached.clear()

    def _link(self, raft_id: int) -> "_Link":
        link = self._links.get(raft_id)
        if link is None:
            link = self._links[raft_id] = _Link(raft_id, self)
        return link

    async def _send_snapshot(self, message: Message) -> None:
        address, ok = self.where(message.to), False
        try:
            if address is not None:
                await self._deliver_snapshot(address, message)
                ok = True
                self.reached(message.to, address, True)
        except MinkaError as error:
            if address is not None and error.code is Code.UNREACHABLE:
                self.reached(message.to, address, False)
            log.info("a snapshot was not delivered", extra={"to": address, "reason": str(error)})
        finally:
            del self._snapshots[message.to]
            self.driver.report_snapshot(message.to, ok)

    def close(self) -> None:
        """End all connections."""
        for task in [link.task for link in self._links.values()] + list(self._snapshots.values()):
            task.cancel()
        self._links.clear()


class _Link:
    """The connection to one node: a `Receiver`. The first message makes it; after it has broken, the next one makes it
    again.
    """

    def __init__(self, raft_id: int, transport: RaftTransport) -> None:
        self._raft_id = raft_id
        self._transport = transport
        self._queue: deque[tuple[Message, int]] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._connection: Connection | None = None
        self._lost: asyncio.Future[MinkaError | None] = asyncio.get_running_loop().create_future()
        self._lost_at = 0.0
        self._was_there = False  # since it was last told that the node is gone
        self.task = tasks.start(self._run(), f"raft messages to {raft_id}")

    def send(self, messages: Sequence[Message]) -> None:
        """Send the messages with everything else that leaves in this turn of the loop; they wait while there is no
        connection, or the node takes nothing.
        """
        if self._connection is not None and not self._queue and not self._connection.is_paused:
            self._connection.send_at_once(RaftMessageBatch(messages=messages).SerializeToString())
            return
        for message in messages:
            size = sum(len(entry.data) for entry in message.entries)
            self._queue.append((message, size))
            self._queued_bytes += size
        while len(self._queue) > MAX_QUEUED or (len(self._queue) > 1 and self._queued_bytes > MAX_QUEUED_BYTES):
            self._queued_bytes -= self._queue.popleft()[1]
        self._wake.set()

    def _flush(self, connection: Connection) -> None:
        while self._queue and not connection.is_paused:
            connection.send(RaftMessageBatch(messages=self._take()).SerializeToString())

    def _take(self) -> list[Message]:
        batch: list[Message] = []
        total = 0
        while self._queue and len(batch) < MAX_BATCH and total < MAX_BATCH_BYTES:
            message, size = self._queue.popleft()
            self._queued_bytes -= size
            total += size
            batch.append(message)
        return batch

    async def _run(self) -> None:
        transport = self._transport
        while True:
            await self._wake.wait()
            address = transport.where(self._raft_id)
            if address is not None:
                try:
                    await self._until_lost(address)
                    if self._was_there and await _is_refused(address):
                        self._was_there = False
                        transport.driver.report_gone(self._raft_id)
                except Exception:  # else nothing more would be sent to the node
                    log.exception("the connection for raft failed, and begins again", extra={"to": address})
            transport.driver.report_unreachable(self._raft_id)
            self._queue.clear()  # old by the time the node is back
            self._queued_bytes = 0
            self._wake.clear()
            await asyncio.sleep(RECONNECT_S)
            if self._was_there and asyncio.get_running_loop().time() - self._lost_at < _ENDS_WITHIN_S:
                self._wake.set()  # the node may be ending, and ends its other port last

    async def _until_lost(self, address: str) -> None:
        self._lost = asyncio.get_running_loop().create_future()
        try:
            connection = await self._transport.connect(address, self._raft_id, self)
        except MinkaError:
            self._transport.reached(self._raft_id, address, False)
            return
        self._transport.reached(self._raft_id, address, True)
        try:
            connection.send(self._transport.own_address.encode())
            self._connection, self._was_there = connection, True
            self._flush(connection)
            error = await self._lost
            self._lost_at = asyncio.get_running_loop().time()
            log.info("the connection for raft broke", extra={"to": address, "reason": str(error or "it was closed")})
        finally:
            self._connection = None
            connection.drop()

    # The receiver

    def received(self, content: bytes) -> None:
        """Refuse it: answers come on the connection of the other node. Raises INVALID_ARGUMENT."""
        raise MinkaError(Code.INVALID_ARGUMENT, "a node answers to Raft messages on its own connection")

    def ended(self) -> None:
        """Nothing comes anyway."""

    def lost(self, error: MinkaError | None) -> None:
        """The connection is over."""
        if not self._lost.done():
            self._lost.set_result(error)

    def paused(self) -> None:
        """Messages to send wait."""

    def resumed(self) -> None:
        """All that was sent has left."""
        if self._connection is not None:
            self._flush(self._connection)


async def _is_refused(address: str) -> bool:
    """True if the machine is there, but no process listens at the address."""
    try:
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(*split_address(address))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    writer.close()
    return False


class RaftService:
    """Serves the connections of other nodes, without tasks."""

    def __init__(self, begin: Callable[[str], Take]) -> None:
        """`begin` is called with a sender's own gRPC address; its result takes in each encoded `RaftMessageBatch`. Both
        raise a MinkaError.
        """
        self._begin = begin

    def serve(self, connection: Connection) -> "RaftConnection":
        """Serve a connection for `Purpose.RAFT`."""
        return RaftConnection(self._begin, connection)


class RaftConnection:
    """The messages of one node: a `Receiver`. The first frame has the node's gRPC address."""

    def __init__(self, begin: Callable[[str], Take], connection: Connection) -> None:
        self._begin = begin
        self._connection = connection
        self._take: Take | None = None

    def received(self, content: bytes) -> None:
        """Messages have come, or first the address. Raises INVALID_ARGUMENT, and the errors of `Take`."""
        if self._take is None:
            self._take = self._begin(content.decode("ascii", "replace"))
        else:
            self._take(content)

    def ended(self) -> None:
        """The node sends no more."""
        self._connection.close()

    def lost(self, error: MinkaError | None) -> None:
        """The node connects again."""

    def paused(self) -> None:
        """Nothing is sent."""

    def resumed(self) -> None:
        """Nothing is sent."""
