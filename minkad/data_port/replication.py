"""Replication between nodes on their data ports (see minkad.replication.sending.peer_frames)."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from minka.errors import Code, MinkaError
from minka.wire.data_port import Connection, Hello, Purpose, connect
from minkad.config.addresses import split_address
from minkad.data_port.streams import MessageStream
from minkad.process import tasks
from minkad.process.telemetry import Telemetry
from minkad.replication.manager import ReplicaManager

log: Final = logging.getLogger(__name__)

_CONNECT_S: Final = 2.0
_END_S: Final = 5.0  # for the end of a stream whose connection is closed
_SHIP_S: Final = 3600.0  # a last resort: the stall timeout of the migration is shorter


class DataLinks:
    """`ReplicationLinks`: a connection for each leader's stream, and one for each checkpoint."""

    def __init__(
        self,
        address_of: Callable[[str], str],
        cluster_id: str,
        node_id: str,
        telemetry: Telemetry,
        tls: Callable[[], ssl.SSLContext | None],
    ) -> None:
        """`address_of` returns the address of a node's data port by its id, or raises a MinkaError."""
        self._address_of = address_of
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._telemetry = telemetry
        self._tls = tls

    async def append(self, node_id: str, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """See ReplicationLinks."""
        async with self._sending(node_id, Purpose.APPEND, frames) as stream:
            async for answer in stream.messages():
                yield answer

    async def ship(self, node_id: str, messages: AsyncIterator[bytes]) -> bytes:
        """See ReplicationLinks."""
        counted = self._counted(messages)
        try:
            async with asyncio.timeout(_SHIP_S), self._sending(node_id, Purpose.SHIP, counted) as stream:
                async for answer in stream.messages():
                    return answer
        except TimeoutError as error:
            raise MinkaError(Code.DEADLINE_EXCEEDED, f"{node_id}: no answer within {_SHIP_S:g} s") from error
        raise MinkaError(Code.UNREACHABLE, f"{node_id}: the connection was closed without an answer")

    @asynccontextmanager
    async def _sending(
        self, node_id: str, purpose: Purpose, messages: AsyncIterator[bytes]
    ) -> AsyncIterator[MessageStream]:
        """A connection on which a task sends the messages. If making a message fails, the connection ends, and this
        raises the message's error.
        """
        stream = await self._connected(node_id, purpose)
        sending = tasks.awaited(_send(stream, messages), f"{purpose} to {node_id}")
        try:
            yield stream
        except MinkaError:
            if sending.done() and not sending.cancelled():
                sending.result()
            raise
        finally:
            tasks.drop(sending)
            stream.connection.abort()

    async def _counted(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for message in messages:
            yield message
            self._telemetry.migration_bytes_sent += len(message)

    async def _connected(self, node_id: str, purpose: Purpose) -> MessageStream:
        stream = MessageStream()
        hello = Hello(purpose, self._cluster_id, self._node_id, node_id)
        try:
            async with asyncio.timeout(_CONNECT_S):
                where = split_address(self._address_of(node_id))
                stream.connection = await connect(where, self._tls(), hello, stream)
        except TimeoutError as error:
            raise MinkaError(Code.UNREACHABLE, f"{node_id}: no connection within {_CONNECT_S:g} s") from error
        return stream


async def _send(stream: MessageStream, messages: AsyncIterator[bytes]) -> None:
    """Send the messages, and then their end. If making a message fails, abort the connection."""
    try:
        await stream.send_all(messages)
    except BaseException:
        stream.connection.abort()
        raise
    stream.end()


class ReplicationServices:
    """Serves the streams and checkpoints of leaders, each in a task."""

    def __init__(self, manager: ReplicaManager, telemetry: Telemetry) -> None:
        self._manager = manager
        self._telemetry = telemetry
        self._tasks: set[asyncio.Task[None]] = set()

    async def wait_closed(self) -> None:
        """Wait until the work of all streams has ended; their connections are closed. A checkpoint that is being put in
        place is put in place first.
        """
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_END_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def append(self, connection: Connection) -> MessageStream:
        """Serve a connection for `Purpose.APPEND`."""
        return self._spawn(connection, self._append)

    def ship(self, connection: Connection) -> MessageStream:
        """Serve a connection for `Purpose.SHIP`."""
        return self._spawn(connection, self._ship)

    async def _append(self, stream: MessageStream) -> None:
        await stream.send_all(self._manager.follow(stream.messages()))

    async def _ship(self, stream: MessageStream) -> None:
        stream.connection.send(await self._manager.install(self._counted(stream.messages())))

    async def _counted(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for message in messages:
            self._telemetry.migration_bytes_received += len(message)
            yield message

    def _spawn(
        self, connection: Connection, work: Callable[[MessageStream], Coroutine[Any, Any, None]]
    ) -> MessageStream:
        stream = MessageStream()
        stream.connection = connection
        task = tasks.start(_until_over(stream, work(stream)), "stream of a node", lambda _: connection.abort())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream


async def _until_over(stream: MessageStream, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except MinkaError as error:
        stream.connection.fail(error)
    except Exception as error:
        log.exception("a connection between nodes failed")
        stream.connection.fail(MinkaError(Code.INTERNAL, f"{type(error).__name__}: {error}"))
    finally:
        stream.connection.close()
