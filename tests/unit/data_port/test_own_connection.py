"""A connection within one process behaves like one over the network."""

import asyncio

from minka.errors import Code, MinkaError
from minka.wire.data_port import Connection
from minkad.data_port.own_connection import connect_here


class Side:
    """A receiver that notes what its connection tells it, and answers each frame if it is a server."""

    def __init__(self, refusal: MinkaError | None = None) -> None:
        self.frames: list[bytes] = []
        self.lost_with: list[MinkaError | None] = []
        self.pauses: list[str] = []
        self.refusal = refusal
        self.connection: Connection | None = None

    def serve(self, connection: Connection) -> "Side":
        self.connection = connection
        return self

    def received(self, content: bytes) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.frames.append(content)
        if self.connection is not None:
            self.connection.send(b"answer to " + content)

    def ended(self) -> None: ...

    def lost(self, error: MinkaError | None) -> None:
        self.lost_with.append(error)

    def paused(self) -> None:
        self.pauses.append("paused")

    def resumed(self) -> None:
        self.pauses.append("resumed")


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_frames_are_answered_in_later_turns() -> None:
    client, server = Side(), Side()
    connection = connect_here(client, server.serve)
    connection.send_at_once(b"one")
    connection.send_at_once(b"two")
    assert not server.frames
    await turns()
    assert server.frames == [b"one", b"two"]
    assert client.frames == [b"answer to one", b"answer to two"]


async def test_a_side_that_reads_nothing_pauses_the_other() -> None:
    client, server = Side(), Side()
    connection = connect_here(client, server.serve)
    assert server.connection is not None
    server.connection.pause_reading()
    connection.send(b"x" * 300_000)
    await turns()
    assert (server.frames, client.pauses, connection.is_paused) == ([], ["paused"], True)
    assert connection.unsent_bytes > 300_000
    server.connection.resume_reading()
    await turns()
    assert (len(server.frames), client.pauses, connection.unsent_bytes) == (1, ["paused", "resumed"], 0)


async def test_the_client_hears_why_the_node_ends_the_connection() -> None:
    client, server = Side(), Side(MinkaError(Code.TOO_LARGE, "too large"))
    connection = connect_here(client, server.serve)
    connection.send(b"one")
    await turns()
    assert [error.code for error in client.lost_with if error is not None] == [Code.TOO_LARGE]
    assert len(server.lost_with) == 1
    assert connection.is_over


async def test_the_node_hears_that_the_client_has_gone() -> None:
    client, server = Side(), Side()
    connection = connect_here(client, server.serve)
    connection.send(b"one")
    connection.drop()
    await turns()
    assert (server.lost_with, client.lost_with, client.frames) == ([None], [], [])
