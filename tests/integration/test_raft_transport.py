"""The transport of Raft: messages over real data ports, where a hanging peer doesn't block others, and snapshots over
real gRPC, in chunks.
"""

import asyncio
import gc
import logging
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from minka.errors import Code, MinkaError
from minka.testing.loopback_ports import free_addresses
from minka.v1 import coordinator_pb2_grpc
from minka.v1.coordinator_pb2 import SnapshotChunk
from minka.v1.coordinator_pb2_grpc import RaftStub
from minka.v1.raft_pb2 import Entry, Message, MessageType, Snapshot, SnapshotMetadata
from minka.wire.data_port import Connection, Purpose, Receiver
from minkad.data_port import raft
from minkad.data_port.incoming import Incoming
from minkad.data_port.listener import Listener
from minkad.data_port.raft import RaftPorts, RaftService, RaftTransport
from minkad.process.memory import Memory
from minkad.rpc.channels import Channels
from minkad.rpc.interceptor import Interceptor
from minkad.rpc.raft import RaftCalls, RaftReceiver
from tests.integration.replication.node import until

MIB = 1024 * 1024


def free_address() -> str:
    return free_addresses(1)[0]


class Peer:
    """A receiver that remembers the number of messages and the last message."""

    def __init__(self) -> None:
        self.count = 0
        self.last = Message()
        self.indexes: set[int] = set()
        self.heard: dict[int, str] = {}
        self.address, self.data_address = free_addresses(2)
        self.refuses = False
        self.raft_id = 0

    def receive(self, messages: Sequence[Message]) -> None:
        self.count += len(messages)
        self.last = messages[-1]
        self.indexes.update(message.index for message in messages)
        if self.refuses:
            raise MinkaError(Code.OVERLOADED, "too many messages")

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Peer"]:
        server = grpc.aio.server(
            interceptors=[Interceptor("test", *(Memory(64 * MIB, time.monotonic) for _ in range(2)))],
            options=[("grpc.so_reuseport", 0)],
        )
        receiver = RaftReceiver(
            self.receive, self.heard.__setitem__, data_address=self.data_address, raft_id=self.raft_id
        )
        coordinator_pb2_grpc.add_RaftServicer_to_server(receiver, server)
        server.add_insecure_port(self.address)
        incoming = Incoming("test", "byzantium", {Purpose.RAFT: RaftService(receiver.begin).serve})
        data_port = Listener(self.data_address, incoming.protocol, None, None)
        await server.start()
        await data_port.start()
        try:
            yield self
        finally:
            data_port.stop()
            incoming.close()
            await server.stop(None)


class Sender:
    """The transport of node 1. `addresses` has the other nodes' addresses, by raft id."""

    def __init__(
        self, addresses: dict[int, str], snapshot_bytes_per_second: int = 1000 * MIB, configured: Sequence[str] = ()
    ) -> None:
        self.unreachable: list[int] = []
        self.gone: list[int] = []
        self.snapshots: list[tuple[int, bool]] = []
        self.channels = Channels("test", "athens")
        self.calls = RaftCalls(self.channels, snapshot_bytes_per_second)
        self.transport = RaftTransport(
            RaftPorts(self.calls.locate, "test", "athens", lambda: None).connect, self.calls.send_snapshot,
            "127.0.0.1:7400", addresses.get, lambda _: configured,
        )  # fmt: skip
        self.transport.driver = self

    def report_unreachable(self, raft_id: int) -> None:
        self.unreachable.append(raft_id)

    def report_gone(self, raft_id: int) -> None:
        self.gone.append(raft_id)

    def report_snapshot(self, raft_id: int, ok: bool) -> None:
        self.snapshots.append((raft_id, ok))

    async def __aenter__(self) -> "Sender":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.transport.close()
        await self.channels.close()


def heartbeat(to: int, number: int = 0, size: int = 0) -> Message:
    return Message(
        type=MessageType.MSG_APP, to=to, from_id=1, term=2, index=number, entries=[Entry(data=bytes(size))] * (size > 0)
    )


def snapshot(to: int, size: int) -> Message:
    content = Snapshot(data=os.urandom(size), metadata=SnapshotMetadata(index=7, term=2))
    return Message(type=MessageType.MSG_SNAP, to=to, from_id=1, term=2, snapshot=content)


@asynccontextmanager
async def hanging_process() -> AsyncIterator[str]:
    """Yield the address of a process that hangs: the kernel accepts connections, but the process reads nothing."""
    kept: list[Any] = []
    server = await asyncio.start_server(lambda *streams: kept.append(streams), *free_address().split(":"), limit=1)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()
        for _, writer in kept:
            writer.close()


@asynccontextmanager
async def located(data_address: str) -> AsyncIterator[str]:
    """Yield the address of a process that answers only requests for the address of its data port."""
    server, address = grpc.aio.server(options=[("grpc.so_reuseport", 0)]), free_address()
    coordinator_pb2_grpc.add_RaftServicer_to_server(RaftReceiver(print, print, data_address=data_address), server)
    server.add_insecure_port(address)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


@asynccontextmanager
async def hanging_data_port() -> AsyncIterator[str]:
    """Yield the address of a process that names its data port, and reads nothing at this port."""
    async with hanging_process() as data_address, located(data_address) as address:
        yield address


async def test_messages_arrive_in_order_on_one_stream() -> None:
    async with Peer().listening() as peer, Sender({2: peer.address}) as sender:
        for number in range(1, 501):
            sender.transport.send([heartbeat(2, number)])
            if number % 100 == 0:
                await until(lambda number=number: peer.last.index == number)  # type: ignore[misc]
        assert peer.count == 500
        assert peer.heard == {1: "127.0.0.1:7400"}
        assert not sender.unreachable


async def test_an_unreachable_data_port_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The node answers over gRPC, so only this log line says why Raft messages don't reach it."""
    caplog.set_level(logging.INFO, raft.log.name)
    async with located(free_address()) as address, Sender({2: address}) as sender:

        def is_told() -> bool:
            sender.transport.send([heartbeat(2)])
            return len(sender.unreachable) >= 3

        await until(is_told)
    (line,) = [record for record in caplog.records if record.name == raft.log.name]
    assert line.message == "a node's data port can't be reached"
    assert line.__dict__["address"] in line.__dict__["reason"]


async def test_undelivered_messages_are_not_sent_when_the_node_is_back() -> None:
    peer = Peer()
    async with Sender({2: peer.address}) as sender:
        sender.transport.send([heartbeat(2, 1)])
        await until(lambda: bool(sender.unreachable))

        def reached() -> bool:
            sender.transport.send([heartbeat(2, 2)])
            return 2 in peer.indexes

        async with peer.listening():
            await until(reached)
    assert peer.indexes == {2}


@pytest.mark.parametrize("data_address", ["", "nowhere", "127.0.0.1:port"])
async def test_the_transport_asks_again_for_an_invalid_data_port(data_address: str) -> None:
    async with located(data_address) as address, Sender({2: address}) as sender:

        def is_told() -> bool:
            sender.transport.send([heartbeat(2)])
            return len(sender.unreachable) >= 2

        await until(is_told)


async def test_the_transport_connects_again_after_a_bug(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Peer().listening() as peer, Sender({2: peer.address}) as sender:
        connect, faults = sender.transport.connect, [ValueError("once")]

        async def fail_once(address: str, raft_id: int, receiver: Receiver) -> Connection:
            if faults:
                raise faults.pop()
            return await connect(address, raft_id, receiver)

        monkeypatch.setattr(sender.transport, "connect", fail_once)

        def reached() -> bool:
            sender.transport.send([heartbeat(2, 1)])
            return peer.count > 0

        await until(reached)
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == [
        "the connection for raft failed, and begins again"
    ]


async def test_a_forwarded_message_does_not_change_the_known_address() -> None:
    """A follower forwards node 3's request to lead. The receiver must not store the follower's address as node 3's."""
    async with Peer().listening() as peer, Sender({2: peer.address}) as sender:
        sender.transport.send([Message(type=MessageType.MSG_TRANSFER_LEADER, to=2, from_id=3)])
        await until(lambda: peer.count == 1)
        assert not peer.heard
        sender.transport.send([heartbeat(2, 1)])
        await until(lambda: peer.count == 2)
        assert peer.heard == {1: "127.0.0.1:7400"}


async def test_a_dead_process_is_distinguished_from_a_broken_stream() -> None:
    peer = Peer()
    async with Sender({2: peer.address}) as sender:

        def reached(number: int) -> bool:
            sender.transport.send([heartbeat(2, number)])
            return peer.last.index == number

        async with peer.listening():
            await until(lambda: reached(1))
        await until(lambda: bool(sender.gone))
        async with peer.listening():
            await until(lambda: reached(2))
            gone = list(sender.gone)
            assert set(gone) == {2}
            peer.refuses = True
            before = len(sender.unreachable)
            await until(lambda: reached(3) and len(sender.unreachable) > before)
            assert sender.gone == gone


@pytest.mark.parametrize("hanging", [hanging_process, hanging_data_port])
async def test_a_hanging_peer_blocks_no_other_and_costs_little_memory(hanging: Any) -> None:
    async with hanging() as still, Peer().listening() as peer, Sender({2: still, 3: peer.address}) as sender:
        sent, waiting = 20_000, []
        for number in range(1, sent + 1):
            sender.transport.send([heartbeat(2, number, size=2000), heartbeat(3, number)])
            if number % 500 == 0:
                await until(lambda number=number: peer.last.index == number)  # type: ignore[misc]
            if number % 2000 == 0:
                gc.collect()
                waiting.append(sum(isinstance(one, Message) and one.to == 2 for one in gc.get_objects()))
        assert peer.count == sent, "all arrive, while the other peer reads nothing"
        assert max(waiting) == raft.MAX_QUEUED, "while the peer reads nothing, the transport drops its messages"


async def test_a_snapshot_keeps_its_rate_limit_and_messages_overtake_it() -> None:
    async with Peer().listening() as peer, Sender({2: peer.address}, snapshot_bytes_per_second=4 * MIB) as sender:
        message = snapshot(2, 2 * MIB)
        started = time.monotonic()
        sender.transport.send([message])
        sender.transport.send([message])  # as if Raft sent it again while the first one is under way
        sender.transport.send([heartbeat(2, 5)])
        await until(lambda: peer.count == 1)
        assert peer.last.index == 5
        await until(lambda: sender.snapshots == [(2, True)])
        assert time.monotonic() - started >= 2 / 4
        assert (peer.count, peer.last) == (2, message)


async def test_an_undelivered_snapshot_is_reported() -> None:
    nobody = free_address()
    async with Sender({2: nobody}) as sender:
        sender.transport.send([snapshot(2, 1000), snapshot(9, 1000)])
        await until(lambda: sorted(sender.snapshots) == [(2, False), (9, False)])


@pytest.mark.parametrize("damage", ["a flipped bit", "the end is missing"])
async def test_a_damaged_snapshot_is_refused(damage: str) -> None:
    async with Peer().listening() as peer, Sender({2: peer.address}) as sender:
        chunks = [chunk async for chunk in sender.calls.chunks(snapshot(2, MIB))]
        assert len(chunks) > 4
        if damage == "a flipped bit":
            chunks[1].data = bytes([chunks[1].data[0] ^ 1]) + chunks[1].data[1:]
        else:
            chunks.pop()
        with pytest.raises(grpc.aio.AioRpcError, match="CORRUPT_DATA"):
            await RaftStub(sender.channels.to(peer.address)).SendSnapshot(
                each(chunks), metadata=sender.channels.identity
            )
        assert peer.count == 0


async def each(chunks: Sequence[SnapshotChunk]) -> AsyncIterator[SnapshotChunk]:
    for chunk in chunks:
        yield chunk


async def test_a_broken_stream_begins_again_at_the_last_heard_address() -> None:
    first, second = Peer(), Peer()
    async with Sender({2: first.address}) as sender, first.listening():
        sender.transport.send([heartbeat(2, 1)])
        await until(lambda: first.count == 1)
        sender.transport.heard_from(2, second.address)
        async with second.listening():
            sender.transport.send([heartbeat(2, 2)])
            await until(lambda: first.count == 2)
    async with Sender({2: first.address}) as sender, second.listening():
        sender.transport.heard_from(2, second.address)
        sender.transport.send([heartbeat(2, 3)])
        await until(lambda: second.count == 1)
        assert first.count == 2


async def test_a_moved_node_is_found_at_the_tables_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that has moved sends nothing until it gets a message, so only the table has its new address. The
    transport tries this address, too.
    """
    monkeypatch.setattr(raft, "RECONNECT_S", 0.01)
    addresses = {2: free_address()}
    async with Peer().listening() as peer, Sender(addresses) as sender:
        sender.transport.heard_from(2, addresses[2])
        addresses[2] = peer.address
        await until(lambda: sent_until_received(sender, peer))
        assert sender.transport.where(2) == peer.address, "a snapshot goes there, too"


async def test_a_node_is_found_at_the_heard_address_if_the_tables_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(raft, "RECONNECT_S", 0.01)
    async with Peer().listening() as peer, Sender({2: free_address()}) as sender:
        await until(lambda: sent_until_received(sender, peer) or bool(sender.unreachable))
        sender.transport.heard_from(2, peer.address)
        await until(lambda: sent_until_received(sender, peer))


async def test_a_node_that_was_never_heard_is_found_at_a_configured_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After all nodes have moved, the transport tries the configured addresses. Here, the first address is that of
    another node, no process listens at the second address, and the last address leads to the node.
    """
    monkeypatch.setattr(raft, "RECONNECT_S", 0.01)
    other, gone = Peer(), free_address()
    other.raft_id = 3
    configured = [other.address, gone]
    async with (
        other.listening(),
        Peer().listening() as peer,
        Sender({2: free_address()}, configured=configured) as sender,
    ):
        configured.append(peer.address)
        await until(lambda: sent_until_received(sender, peer))
        assert sender.transport.where(2) == peer.address, "a snapshot goes there, too"
        assert other.count == 0


async def test_a_heard_node_is_not_searched_at_configured_addresses() -> None:
    """The transport tries only the address that it last heard from the node, and the table's address. A search would
    delay the connection to a node that comes back at its old address.
    """
    async with Sender({2: "127.0.0.1:1"}, configured=["127.0.0.1:2"]) as sender:
        sender.transport.heard_from(2, "127.0.0.1:3")
        tried = [sender.transport.where(2)]
        for _ in range(3):
            sender.transport.reached(2, str(tried[-1]), False)
            tried.append(sender.transport.where(2))
    assert tried == ["127.0.0.1:3", "127.0.0.1:1"] * 2


async def test_no_message_is_sent_to_another_node_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raft, "RECONNECT_S", 0.01)
    other = Peer()
    other.raft_id = 3
    async with other.listening(), Peer().listening() as peer, Sender({2: peer.address}) as sender:
        sender.transport.heard_from(2, other.address)
        await until(lambda: sent_until_received(sender, peer))
        assert other.count == 0


def sent_until_received(sender: Sender, peer: Peer) -> bool:
    sender.transport.send([heartbeat(2)])
    return peer.count > 0


async def test_a_snapshot_follows_a_node_whose_old_address_another_node_has() -> None:
    other, moved = Peer(), Peer()
    other.raft_id, moved.raft_id = 3, 2
    async with other.listening(), moved.listening(), Sender({2: moved.address}) as sender:
        sender.transport.heard_from(2, other.address)
        sender.transport.send([snapshot(2, 1000)])
        await until(lambda: sender.snapshots == [(2, False)])
        assert not other.count
        sender.transport.send([snapshot(2, 1000)])
        await until(lambda: sender.snapshots == [(2, False), (2, True)])
        assert moved.last.type == MessageType.MSG_SNAP
        assert sender.transport.where(2) == moved.address
