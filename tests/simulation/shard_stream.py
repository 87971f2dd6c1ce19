"""A shard's session with a node, over the simulated network. Messages keep their order in both directions, and no
message is lost until the stream breaks. At the node, the real `ShardSessions` serves the session.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from minka.duties._events import Disconnected, Received
from minka.errors import Code, MinkaError
from minka.v1.shards_pb2 import ShardInstruction, ShardMessage
from minkad.duties.control.duty_requests import DutyRequests
from minkad.duties.node.relay import Relay
from minkad.duties.node.shard_sessions import SessionSettings, ShardSessions
from minkad.process.memory import Memory
from tests.simulation.streams import Way

if TYPE_CHECKING:
    from tests.simulation.duty_world import DutyWorld
    from tests.simulation.process import Process
    from tests.simulation.shard_process import ShardProcess

_MEMORY: Final = 64 * 1024 * 1024  # bytes


class ShardDoors:
    """A daemon's parts for shards, wired as `minkad.node.daemon` wires them."""

    def __init__(self, world: "DutyWorld", process: "Process") -> None:
        self.duty_requests = DutyRequests(process.coordinator)
        self.memory = Memory(_MEMORY, process.now)
        relay = Relay(process.controller, world.heartbeat / 4)
        self.sessions = ShardSessions(
            relay,
            _Payloads(process, Random(world.duty_rng.random())),
            SessionSettings(world.shard_heartbeat, world.controller_settings.shards.failure_timeout),
            node_id=process.machine.id,
            table=process.coordinator,
            raft=process.driver,
            member=process.member,
        )
        process.coordinator.on_shards_changed = self.sessions.changed
        process.coordinator.on_restored = self.sessions.restored
        process.spawn(relay.run())
        process.spawn(self.sessions.run())


def payload_of(payload_id: bytes) -> bytes:
    """Compute the payload that is stored under this id; no payload is kept in memory."""
    return payload_id[::-1]


class _Payloads:
    """A store that has all payloads. A read takes time, and sometimes fails."""

    def __init__(self, process: "Process", rng: Random) -> None:
        self._process = process
        self._rng = rng

    async def get_many(self, ids: Iterable[bytes], timeout: float) -> dict[bytes, bytes]:
        await self._process.pause(self._rng.choice((0.0, 0.005, 0.05)))
        if self._rng.random() < 0.02:
            raise MinkaError(Code.UNREACHABLE, "the payloads can't be read")
        return {id_: payload_of(id_) for id_ in ids}


class ShardStream:
    """One session, from the shard's request until it has ended for the shard and the node."""

    def __init__(self, client: "ShardProcess", address: str) -> None:
        self._client = client
        server = client.world.process_at(address)
        self._server = server if server is not None and server.built else None
        self._address = address
        if self._server is not None:
            self._there = Way(client, self._server, self._broken)
            self._back = Way(self._server, client, self._closed)
        self._heard: asyncio.Queue[ShardMessage] = asyncio.Queue()
        self._serving: asyncio.Task[None] | None = None
        self.is_open = True  # at the shard's side
        self._is_closed = False  # at the node's side

    # The shard's side

    def say(self, message: ShardMessage) -> None:
        """Send to the node."""
        if self._server is None:
            self._client.refused(self._address, self._broken)
            return
        copy = ShardMessage()
        copy.CopyFrom(message)  # the sender may change the message
        self._there.send(partial(self._take, copy))

    def close(self) -> None:
        """Close the session from the shard's side: the shard does this, or its machine if the process is gone. The node
        hears of it later.
        """
        self.is_open = False
        if self._server is not None:
            server, world = self._server, self._client.world
            link = (self._client.machine.number, server.machine.number)
            arrive = partial(server.if_alive, self._closed)
            world.after(world.network.delay(), world.through, link, arrive, arrive)

    def _broken(self) -> None:
        self._ended(MinkaError(Code.UNREACHABLE, f"{self._address}: the session broke"))

    def _ended(self, error: MinkaError) -> None:
        if self.is_open:
            self.is_open = False
            self._client.handle(Disconnected(error.code.name, error.message))
            self._client.ended(self)

    def _receive(self, instruction: ShardInstruction) -> None:
        if not self.is_open:
            return
        if instruction.HasField("welcome"):
            self._client.welcome(list(instruction.welcome.endpoints))
        self._client.handle(Received(instruction))

    # The node's side

    def _take(self, message: ShardMessage) -> None:
        if self._is_closed:
            return
        if self._serving is None:
            assert self._server is not None
            self._serving = self._server.loop.create_task(self._serve(self._server))
        self._heard.put_nowait(message)

    async def _serve(self, server: "Process") -> None:
        doors = server.doors
        assert doors is not None
        error = MinkaError(Code.UNREACHABLE, f"{self._address}: the node ended the session")
        try:
            await doors.sessions.serve(self._messages(), self._write, doors.memory)
        except MinkaError as why:
            error = why
        self._back.send(lambda: self._ended(error))

    async def _messages(self) -> AsyncIterator[ShardMessage]:
        while True:
            yield await self._heard.get()

    async def _write(self, instruction: ShardInstruction) -> None:
        copy = ShardInstruction()
        copy.CopyFrom(instruction)
        self._back.send(lambda: self._receive(copy))

    def _closed(self) -> None:
        """End the session at the node: cancel the task that serves it, as gRPC does."""
        self._is_closed = True
        if self._serving is not None:
            self._serving.cancel()
