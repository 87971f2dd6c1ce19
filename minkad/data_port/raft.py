"""Raft messages between nodes on their data ports. A node sends to each other node on its own connection, so a slow
connection blocks no other.
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

MAX_QUEUED: Final = 1024  # messages that a node doesn't take; with more, the oldest are dropped: Raft repeats them
MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024  # of the entries in these messages; a single message may have more
MAX_BATCH: Final = 256
MAX_BATCH_BYTES: Final = 1024 * 1024
RECONNECT_S: Final = 0.1
_CONNECT_S: Final = 2.0
_UNACKNOWLEDGED_S: Final = 3.0  # if sent bytes aren't acknowledged for this long, the connection is over
_PROBE_S: Final = 0.5
_ENDS_WITHIN_S: Final = 2.0  # a node that stops closes its gRPC port at most this long after its data port
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
        """A connection to the node with this gRPC address and raft id. Raises UNREACHABLE, and the node's errors."""
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
    """Sends messages to nodes by raft id. Tries a node's addresses in this order, until it reaches the node:

    1. The address that the node has sent on its own connection. A node that has just joined has no table to look in,
       and the table gets the new address of a voter that moved only after others have heard the voter.
    2. The address in the table: a learner that moved sends nothing until it gets a message.
    3. If the node wasn't heard since this process started: the addresses of the configuration. If all voters have
       moved at once, all tables are wrong, and no voter hears another.
    """

    def __init__(
        self,
        connect: Connect,
        send_snapshot: Callable[[str, Message], Awaitable[None]],
        own_address: str,
        address_of: Callable[[int], str | None],
        configured: Callable[[int], Sequence[str]],
    ) -> None:
        """`connect` makes a connection to the node with a gRPC address, and `send_snapshot` sends a message with a
        snapshot to the node; both raise a MinkaError. `address_of` returns a node's address in the table; None for an
        unknown node. `configured` returns the addresses that a node may have by the configuration.
        """
        self.connect = connect
        self.own_address = own_address
        # Set once: the driver needs the transport, so the driver is made after it.
        self.driver = cast("TransportReports", None)
        self._deliver_snapshot = send_snapshot
        self._address_of = address_of
        self._configured = configured
        self._heard: dict[int, str] = {}  # by raft id: the last address that the node sent, or where it was reached
        self._heard_at: dict[int, float] = {}  # by raft id, for nodes that have sent messages: when they last did
        self._unreached: dict[int, set[str]] = {}  # addresses that failed since the node was reached, or all were tried
        self._links: dict[int, _Link] = {}
        self._snapshots: dict[int, asyncio.Task[None]] = {}  # at most one snapshot at a time to each node

    def send(self, messages: Sequence[Message]) -> None:
        """Send each message to its node. If a node takes none, messages wait up to a limit. A snapshot is sent by
        `send_snapshot`, and dropped if another snapshot to the node is under way.
        """
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
        """Note that a node has sent messages, and has called `address` its own."""
        self._heard[raft_id] = address
        self._heard_at[raft_id] = boottime()
        if len(self._heard) > _MAX_HEARD:
            first = next(iter(self._heard))
            for known in (self._heard, self._heard_at, self._unreached):
                known.pop(first, None)

    def last_heard(self, raft_id: int) -> float | None:
        """The time when a node last sent messages, in seconds of `boottime`; None if it has sent none."""
        return self._heard_at.get(raft_id)

    def where(self, raft_id: int) -> str | None:
        """The gRPC address at which to try the node next; None if no address is known."""
        addresses, unreached = self._addresses(raft_id), self._unreached.get(raft_id, ())
        left = [address for address in addresses if address not in unreached]
        return next(iter(left or addresses), None)

    def _addresses(self, raft_id: int) -> list[str]:
        """The addresses that the node may have, the likeliest first."""
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
    """The connection to one node: a `Receiver`. The first message opens the connection. After the connection has
    broken, the next message opens it again.
    """

    def __init__(self, raft_id: int, transport: RaftTransport) -> None:
        self._raft_id = raft_id
        self._transport = transport
        self._queue: deque[tuple[Message, int]] = deque()  # each with the bytes of its entries
        self._queued_bytes = 0  # of the entries in the queue
        self._wake = asyncio.Event()  # set if `_run` is to connect
        self._connection: Connection | None = None
        self._lost: asyncio.Future[MinkaError | None] = asyncio.get_running_loop().create_future()
        self._lost_at = 0.0  # when the last connection broke, by the loop's clock
        self._was_there = False  # True if the node was reached since the last call of `gone`
        self.task = tasks.start(self._run(), f"raft messages to {raft_id}")

    def send(self, messages: Sequence[Message]) -> None:
        """Send the messages in this turn of the loop, or keep them while no connection is open, or it is full."""
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
                except Exception:  # otherwise, the node would get no more messages after a bug
                    log.exception("the connection for raft failed, and begins again", extra={"to": address})
            transport.driver.report_unreachable(self._raft_id)
            self._queue.clear()  # by the time the node is back, these messages are old
            self._queued_bytes = 0
            self._wake.clear()
            await asyncio.sleep(RECONNECT_S)
            if self._was_there and asyncio.get_running_loop().time() - self._lost_at < _ENDS_WITHIN_S:
                self._wake.set()  # try again, to see if the node is stopping: it closes its gRPC port last

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
        """Refuse the message: a node sends its answers on its own connection. Raises INVALID_ARGUMENT."""
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
    """True if the machine refuses the connection: it runs, but no process listens at the address."""
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
        """`begin` gets a sender's gRPC address, and returns the function that takes the sender's encoded
        `RaftMessageBatch`es. Both raise a MinkaError.
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
