"""Streams between simulated processes. Messages keep their order in both directions, and no message is lost until the
stream breaks.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from minka.errors import Code, MinkaError
from tests.simulation.endpoint import Endpoint

if TYPE_CHECKING:
    from tests.simulation.process import Process

_END: Final = MinkaError(Code.UNREACHABLE, "the stream ended")

Handler = Callable[["Process", AsyncIterator[bytes]], AsyncIterator[bytes]]


@dataclass(slots=True)
class _Message:
    act: Callable[[], None]
    is_there: bool = False


class Way:
    """One direction of a stream."""

    def __init__(
        self, sender: Endpoint, to: Endpoint, broken: Callable[[], None], hangs_until: Callable[[], float] = lambda: 0.0
    ) -> None:
        """`broken` is called at the sender when the stream breaks, perhaps more than once. `hangs_until` returns the
        time until which `to` handles no messages.
        """
        self._hangs_until = hangs_until
        self._sender = sender
        self._to = to
        self._broken = broken
        self._under_way: deque[_Message] = deque()

    def send(self, act: Callable[[], None]) -> None:
        """Call `act` at the other end, after all messages that were sent earlier have arrived."""
        message = _Message(act)
        self._under_way.append(message)
        self._sender.deliver(self._to, partial(self._arrive, message), self._broken)

    def _arrive(self, message: _Message) -> None:
        world = self._to.world
        if (wait := self._hangs_until() - world.now) > 0:
            world.after(wait, self._arrive_late, message)
            return
        message.is_there = True
        while self._under_way and self._under_way[0].is_there:
            self._under_way.popleft().act()

    def _arrive_late(self, message: _Message) -> None:
        if self._to.alive:
            self._to.if_alive(partial(self._arrive, message))
        else:  # the process never took the message, so `ByteStream.died` hasn't told the sender
            _tell(self._to, self._sender, self._broken)


class ByteStream:
    """A streaming call from one node to another, until it has ended for both nodes."""

    def __init__(self, client: "Process", address: str, handler: Handler) -> None:
        self._client = client
        self._address = address
        self._handler = handler
        self._server = server = client.world.process_at(address)
        self._answers: asyncio.Queue[bytes | MinkaError] = asyncio.Queue()
        self._heard: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._serving: asyncio.Task[None] | None = None
        self._is_over = False  # True when the call has ended at the server
        if server is not None:
            self._there = Way(client, server, self._break, lambda: server.machine.deaf_until)
            self._back = Way(server, client, self._abandoned)

    # The client's side

    async def run(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Send the messages, and yield the answers. Raises the server's error, or UNREACHABLE if the stream broke."""
        pump = asyncio.get_running_loop().create_task(self._pump(messages))
        self._client.streams[self] = None
        try:
            while True:
                answer = await self._answers.get()
                if answer is _END:
                    return
                if isinstance(answer, MinkaError):
                    raise answer
                yield answer
        finally:
            pump.cancel()
            if self._client.alive:  # if the client is dead, its machine tells the server: see `died`
                self._client.streams.pop(self, None)
            self._hang_up()

    async def _pump(self, messages: AsyncIterator[bytes]) -> None:
        try:
            async for message in messages:
                self._say(partial(self._take, message))
            self._say(partial(self._take, None))
        except MinkaError as error:
            self._answers.put_nowait(error)

    def _say(self, act: Callable[[], None]) -> None:
        if self._server is None:
            self._client.refused(self._address, self._break)
        else:
            self._there.send(act)

    def _break(self) -> None:
        self._answers.put_nowait(MinkaError(Code.UNREACHABLE, f"{self._address}: the stream broke"))

    def _hang_up(self) -> None:
        if self._server is not None and not self._is_over:
            _tell(self._client, self._server, self._abandoned)

    # The server's side

    def _take(self, message: bytes | None) -> None:
        if self._is_over:
            return
        self._heard.put_nowait(message)
        if self._serving is None:
            assert self._server is not None
            self._server.streams[self] = None
            self._serving = self._server.loop.create_task(self._serve(self._server))

    async def _serve(self, server: "Process") -> None:
        last = _END
        try:
            async for answer in self._handler(server, self._messages()):
                self._back.send(partial(self._answers.put_nowait, answer))
        except MinkaError as error:
            last = error
        finally:
            self._is_over = True
            if server.alive:  # if the server is dead, its machine tells the client: see `died`
                server.streams.pop(self, None)
        self._back.send(partial(self._answers.put_nowait, last))

    async def _messages(self) -> AsyncIterator[bytes]:
        while (message := await self._heard.get()) is not None:
            yield message

    def _abandoned(self) -> None:
        """End the call at the server, since the client is gone: cancel the task that serves the call, as gRPC does."""
        self._is_over = True
        if self._serving is not None:
            self._serving.cancel()

    def died(self, process: "Process") -> None:
        """Tell the process at the other end that `process` has died, as the dead process's machine would."""
        if self._server is None:
            return
        if process is self._client:
            _tell(process, self._server, self._abandoned)
        else:
            _tell(process, self._client, self._break)


def _tell(sender: Endpoint, to: Endpoint, act: Callable[[], None]) -> None:
    """Call `act` at the process `to`, even if the sending process is gone: its machine sends the message."""
    world = sender.world
    arrive = partial(to.if_alive, act)
    world.after(world.network.delay(), world.through, (sender.machine.number, to.machine.number), arrive, arrive)
