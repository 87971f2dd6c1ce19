"""Tests of the data port with clients: the port refuses some clients, and limits clients that read no answers."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minka.wire import kv_frames
from minka.wire.data_port import PREFACE, Connection, Hello, Purpose, encode_hello
from minka.wire.key_operations import Set
from minkad.config.addresses import split_address
from minkad.data_port.clients import MAX_FRAMES_IN_FLIGHT
from tests.integration.replication.harness import cluster
from tests.integration.replication.node import until

_VALUE = b"v" * 1024 * 1024


def frame(number: int, op: kv_frames.Op, body: bytes, timeout_ms: int = 5000) -> bytes:
    return kv_frames.encode(kv_frames.Request(number, timeout_ms, [kv_frames.Group(op, 1, 1, body)]))


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (Hello("kv", "another", ""), Code.CLUSTER_MISMATCH),
        (Hello("nonsense", "test", "n"), Code.INVALID_ARGUMENT),
        (Hello("append", "", "byzantium"), Code.INVALID_ARGUMENT),
        (Hello("ship", "test", ""), Code.INVALID_ARGUMENT),
        (Hello("append", "test", "byzantium", "cyrene"), Code.UNREACHABLE),
    ],
)
async def test_a_wrong_hello_is_refused(tmp_path: Path, hello: Hello, code: Code) -> None:
    async with cluster(tmp_path) as c:
        await c.add("athens")
        stream = await c.connect("athens", hello)
        with pytest.raises(MinkaError) as caught:
            await anext(stream.messages())
        assert caught.value.code is code


async def test_a_client_with_another_protocol_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        await c.add("athens")
        host, port = split_address(c.address_of("athens"))
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(PREFACE[:-1] + b"\x7f" + encode_hello(Hello("kv", "", "")))
        answer = await asyncio.wait_for(reader.read(), 5)
        assert b"INVALID_ARGUMENT" in answer
        writer.close()


async def test_the_node_stops_reading_from_a_client_that_reads_no_answers(tmp_path: Path) -> None:
    """The answers that the client doesn't read count as used memory. The node serves other clients, and sends the slow
    client all answers when it reads again.
    """
    async with cluster(tmp_path) as c:
        athens = (await c.add("athens"))[0]
        await c.create("athens", 1)
        await athens.put(1, {b"k": _VALUE})
        slow, quick = (
            await c.connect("athens", Hello(Purpose.KV, "", "")),
            await c.connect("athens", Hello(Purpose.KV, "test", "")),
        )
        slow.connection.pause_reading()
        count = 2 * MAX_FRAMES_IN_FLIGHT
        for number in range(count):
            slow.connection.send(frame(number, kv_frames.Op.READ, kv_frames.encode([b"k"])))
        await until(lambda: any(not one.is_reading for one in athens.connections()))
        for number in range(20):
            quick.connection.send(frame(number, kv_frames.Op.READ, kv_frames.encode([b"k"])))
            assert kv_frames.decode_response(await anext(quick.messages())).id == number
        assert len(_VALUE) < athens.clients_memory.used < 8 * len(_VALUE)
        slow.connection.resume_reading()
        answers = slow.messages()
        assert [kv_frames.decode_response(await anext(answers)).id for _ in range(count)] == list(range(count))
        await until(lambda: athens.clients_memory.used < len(_VALUE))


async def test_a_client_with_many_requests_under_way_is_read_again_once_half_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, {b"k": b"v"})
        answered, seen = 0, list[int]()

        def send(self: Connection, content: bytes) -> None:
            nonlocal answered
            answered += self in athens.connections()
            original_send(self, content)

        def resume(self: Connection) -> None:
            if self in athens.connections() and not self.is_reading:
                seen.append(answered)
            original_resume(self)

        original_send, original_resume = Connection.send, Connection.resume_reading
        stream = await c.connect("athens", Hello(Purpose.KV, "test", ""))
        monkeypatch.setattr(Connection, "send", send)
        monkeypatch.setattr(Connection, "resume_reading", resume)
        athens.replica().state.gate.close()
        body, count = kv_frames.encode(kv_frames.WriteBody([b"k"], [b"v"])), MAX_FRAMES_IN_FLIGHT + 1
        for number in range(count):
            stream.connection.send(frame(number, kv_frames.Op.WRITE, body))
        await until(lambda: any(not one.is_reading for one in athens.connections()))
        assert answered == 0
        athens.replica().state.gate.open()
        answers = stream.messages()
        assert {kv_frames.decode_response(await anext(answers)).id for _ in range(count)} == set(range(count))
        assert seen == [MAX_FRAMES_IN_FLIGHT // 2]


@pytest.mark.parametrize("waits_for", ["the gate", "a follower"])
async def test_a_request_that_waits_is_answered_at_its_deadline(tmp_path: Path, waits_for: str) -> None:
    async with cluster(tmp_path) as c:
        athens, byzantium = await c.add("athens", "byzantium")
        await c.create("athens", 1, followers=["byzantium"])
        if waits_for == "the gate":
            athens.replica().state.gate.close()
        else:
            byzantium.manager.mute = True
        stream = await c.connect("athens", Hello(Purpose.KV, "test", ""))
        began = asyncio.get_running_loop().time()
        body = kv_frames.encode(kv_frames.WriteBody([b"k"], [b"v"]))
        stream.connection.send(frame(7, kv_frames.Op.WRITE, body, timeout_ms=200))
        answer = kv_frames.decode_response(await asyncio.wait_for(anext(stream.messages()), 5))
        assert answer.id == 7
        assert b"DEADLINE_EXCEEDED" in (answer.results[0].error or b"")
        assert asyncio.get_running_loop().time() - began >= 0.15
        athens.replica().state.gate.open()


async def test_the_answer_of_operations_that_come_too_late_takes_no_memory(tmp_path: Path) -> None:
    """The node has decided the operations, with an old value as the answer, but can't commit them in time."""
    async with cluster(tmp_path) as c:
        athens, byzantium = await c.add("athens", "byzantium")
        await c.create("athens", 1, followers=["byzantium"])
        await athens.put(1, {b"k": _VALUE})
        byzantium.manager.mute = True
        stream = await c.connect("athens", Hello(Purpose.KV, "test", ""))
        body = kv_frames.encode([Set(b"k", b"new", wants_value=True)])
        stream.connection.send(frame(7, kv_frames.Op.OPERATE, body, timeout_ms=200))
        await until(lambda: athens.clients_memory.used > len(_VALUE))
        answer = kv_frames.decode_response(await asyncio.wait_for(anext(stream.messages()), 5))
        assert b"DEADLINE_EXCEEDED" in (answer.results[0].error or b"")
        await until(lambda: athens.clients_memory.used < len(_VALUE))


async def test_the_node_stops_reading_from_a_client_whose_requests_wait(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens = (await c.add("athens"))[0]
        await c.create("athens", 1)
        athens.replica().state.gate.close()
        stream = await c.connect("athens", Hello(Purpose.KV, "test", ""))
        body = kv_frames.encode(kv_frames.WriteBody([b"k"], [_VALUE[: 256 * 1024]]))
        for number in range(200):
            stream.connection.send(frame(number, kv_frames.Op.WRITE, body, timeout_ms=60_000))
        # Wait until the node has read as much as it accepts. After that, nothing changes until the gate opens.
        await until(lambda: any(not one.is_reading for one in athens.connections()))
        assert athens.clients_memory.used < 12 * len(_VALUE)
        athens.replica().state.gate.open()
        athens.manager.waits.notify(1)
        answers = stream.messages()
        answered = {kv_frames.decode_response(await anext(answers)).id for _ in range(200)}
        assert answered == set(range(200))


async def test_the_requests_under_way_take_no_room_from_their_own_answers(tmp_path: Path) -> None:
    """The requests leave only once they are answered. If the answers waited for that, all would wait for ever."""
    async with cluster(tmp_path) as c:
        c.clients_memory_bytes = 4 * 1024 * 1024
        athens = (await c.add("athens"))[0]
        await c.create("athens", 1)
        await athens.put(1, {b"k": b"v"})
        stream = await c.connect("athens", Hello(Purpose.KV, "test", ""))
        count, keys = 8, [b"%06d" % number for number in range(10_000)]
        for number in range(count):
            stream.connection.send(frame(number, kv_frames.Op.READ, kv_frames.encode(keys), timeout_ms=60_000))
        answers = stream.messages()
        for _ in range(count):
            answer = kv_frames.decode_response(await asyncio.wait_for(anext(answers), 20))
            assert answer.results[0].error is None


async def test_clients_that_read_no_answers_are_ended_when_others_wait_for_memory(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        c.clients_memory_bytes = 8 * len(_VALUE)  # clients that read nothing use more than half of this memory
        athens = (await c.add("athens"))[0]
        await c.create("athens", 1)
        await athens.put(1, {b"k": _VALUE})
        slow = [await c.connect("athens", Hello(Purpose.KV, "", "")) for _ in range(16)]
        for stream in slow:
            stream.connection.pause_reading()
            for number in range(40):
                stream.connection.send(frame(number, kv_frames.Op.READ, kv_frames.encode([b"k"]), timeout_ms=60_000))
        await until(lambda: athens.clients_memory.is_waited_for)
        quick = await c.connect("athens", Hello(Purpose.KV, "", ""))
        quick.connection.send(frame(7, kv_frames.Op.READ, kv_frames.encode([b"k"]), timeout_ms=60_000))
        assert kv_frames.decode_response(await asyncio.wait_for(anext(quick.messages()), 20)).id == 7
        await until(lambda: athens.clients_memory.ended > 0)


async def test_connections_without_a_hello_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minkad.data_port.incoming._HELLO_S", 0.05)
    monkeypatch.setattr("minkad.data_port.listener._FIRST_BYTE_S", 0.05)
    async with cluster(tmp_path) as c:
        await c.add("athens")
        host, port = split_address(c.address_of("athens"))
        for said in (b"", PREFACE):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(said)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()


async def test_a_connection_that_arrives_while_the_port_closes_is_ended(tmp_path: Path) -> None:
    """A connection that arrives while the port closes is ended. If the node served it, a leader could send entries to a
    node that has stopped.
    """
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        reader, writer = await asyncio.open_connection("127.0.0.1", athens.port)
        other, other_writer = await asyncio.open_connection("127.0.0.1", athens.port)
        other_writer.write(PREFACE)
        await until(lambda: len(athens.connections()) == 1)  # then the first connection has arrived, too
        athens.data_port.close()
        writer.write(PREFACE + encode_hello(Hello(Purpose.APPEND, "test", "byzantium")))
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert await other.read() in (b"", PREFACE)
        writer.close()
        other_writer.close()
