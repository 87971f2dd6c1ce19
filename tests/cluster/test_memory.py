"""Clients request much data, but don't read the answers. The node's memory stays bounded; other clients are served."""

import asyncio
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

import minka
from minka.admin.control import Control
from minka.bulk.bulk_loads import UPLOAD_METHOD
from minka.testing.local_cluster import LocalCluster
from minka.v1.changes_pb2 import ReadChangesRequest
from minka.v1.changes_pb2_grpc import ChangesStub
from minka.v1.cluster_pb2 import Partition
from minka.v1.load_api_pb2 import UploadHeader
from minka.v1.loads_pb2 import LoadFile
from minka.wire import kv_frames
from tests.cluster.cluster import QUICK, create_keyspace, eventually
from tests.cluster.data_frames import framed, greeting

MIB = 1024 * 1024
LIMIT_MIB = 128
# The node's own count of its clients' bytes stays below the limit. In addition, gRPC has copies of these bytes, and the
# allocator keeps freed memory.
BOUND_MIB = 3 * LIMIT_MIB
KEYS = [b"large%d" % i for i in range(16)]
ROUNDS = 3
PIECES = 32  # of an upload
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
# gRPC's probes are off: they would enlarge its windows, and its buffers would take more memory than the bound allows.
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 0),
]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(["athens"], config={**QUICK, "clients": {"memory_mib": LIMIT_MIB}}) as cluster:
        yield cluster


async def filled(cluster: LocalCluster) -> Partition:
    """Create a partition with 16 values of 1 MiB each."""
    with Control(cluster.endpoints) as control:
        row = create_keyspace(control, "large", 1, live=1).partitions[0]
    async with minka.AsyncClient(cluster.endpoints, keyspace="large") as client:
        for key in KEYS:
            await client.put(key, key[-1:] * MIB)
    return row


def resident_mib(cluster: LocalCluster) -> float:
    """The daemon's resident memory, in MiB."""
    process = cluster.node("athens").process
    assert process is not None
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * 4096 / MIB


def metric(cluster: LocalCluster, name: str) -> float:
    """Return the value of this metric of the daemon."""
    with urllib.request.urlopen(f"http://{cluster.node('athens').http_address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]  # it is there


def frame(row: Partition, number: int, keys: list[bytes]) -> bytes:
    """Encode a frame with a read, whose deadline is in ten minutes."""
    group = kv_frames.Group(kv_frames.Op.READ, row.id, row.generation, kv_frames.encode(keys))
    return kv_frames.encode(kv_frames.Request(number, 600_000, [group]))


@asynccontextmanager
async def connections(cluster: LocalCluster, count: int) -> AsyncIterator[list[_Streams]]:
    """Open connections to the node's data port."""
    host, port = cluster.node("athens").data_address.split(":")
    async with AsyncExitStack() as stack:
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(count)]
        for _, writer in opened:
            stack.callback(writer.close)
            writer.write(greeting())
        yield opened


async def send(writer: asyncio.StreamWriter, row: Partition, keys: list[bytes], frames: int) -> None:
    """Send frames without reading the answers."""
    with suppress(ConnectionError):  # the node ended the connection
        for number in range(frames):
            writer.write(framed(frame(row, number, keys)))
            await writer.drain()


async def take_slowly(reader: asyncio.StreamReader) -> None:
    """Read the answers slowly: a quarter of a MiB at a time."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            await reader.readexactly(MIB // 4)
            await asyncio.sleep(1.5)


async def served_meanwhile(cluster: LocalCluster, others: list[Awaitable[None]]) -> float:
    """Run `others` for a few seconds, and check that all calls of a good client succeed in this time. Returns the
    greatest growth of the daemon's memory in MiB.
    """
    before, most = resident_mib(cluster), 0.0
    tasks = [asyncio.ensure_future(other) for other in others]

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, resident_mib(cluster) - before)
            await asyncio.sleep(0.02)

    tasks.append(asyncio.ensure_future(watch()))
    try:
        async with minka.AsyncClient(cluster.endpoints, keyspace="large", timeout=60) as client:
            await asyncio.sleep(1.0)  # meanwhile the others begin; nothing here depends on the exact time
            until = time.monotonic() + 3.0
            done = 0
            while done < ROUNDS or time.monotonic() < until:
                assert await client.get(KEYS[done % 16]) == KEYS[done % 16][-1:] * MIB
                await client.put(b"small", b"%d" % done)
                assert await client.get(b"small") == b"%d" % done
                done += 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return most


async def test_answers_that_nobody_takes(cluster: LocalCluster) -> None:
    row = await filled(cluster)
    async with connections(cluster, 12) as opened:
        grown = await served_meanwhile(cluster, [send(writer, row, KEYS, 500) for _, writer in opened])
    assert grown < BOUND_MIB, f"{grown:.0f} MiB more"


@pytest.mark.soak
async def test_two_hundred_slow_clients(cluster: LocalCluster) -> None:
    row = await filled(cluster)
    async with connections(cluster, 200) as opened:
        senders = [send(writer, row, KEYS[:1], 50) for _, writer in opened]
        takers = [take_slowly(reader) for reader, _ in opened]
        grown = await served_meanwhile(cluster, [*senders, *takers])
    assert grown < BOUND_MIB, f"{grown:.0f} MiB more"


async def test_changes_that_nobody_takes(cluster: LocalCluster) -> None:
    """Many clients ask for changes and don't read the answers. The node reserves memory before it reads changes, and
    still serves reads of keys.
    """
    row = await filled(cluster)
    request = ReadChangesRequest(partition_id=row.id, until_offset=len(KEYS))
    before = resident_mib(cluster)
    channels = [grpc.aio.insecure_channel(cluster.endpoints[0], options=_OPTIONS) for _ in range(2)]
    try:
        calls = [ChangesStub(channel).Read(request) for channel in channels for _ in range(100)]
        most = [0.0]

        def is_one_ended() -> bool:
            most.append(max(most[-1], resident_mib(cluster)))
            return metric(cluster, "minka_clients_ended_total") > 0

        await asyncio.to_thread(eventually, "a stream is ended", is_one_ended, 90.0)
        assert most[-1] < before + BOUND_MIB
        async with minka.AsyncClient(cluster.endpoints, keyspace="large") as client:
            assert await client.get(KEYS[0])
        assert MIB < metric(cluster, "minka_clients_memory_bytes") <= LIMIT_MIB * MIB
        for call in calls:
            call.cancel()
    finally:
        for channel in channels:
            await channel.close()
    await asyncio.to_thread(
        eventually, "all is given back", lambda: metric(cluster, "minka_clients_memory_bytes") < MIB
    )


async def test_uploads_that_wait_for_their_turn(cluster: LocalCluster) -> None:
    """Of all uploads, the node receives eight at the same time. The other senders can't send most of their data yet,
    since gRPC's windows are small.
    """
    with Control(cluster.endpoints) as control:
        partition = create_keyspace(control, "loaded", 1, live=1).partitions[0].id
        number = control.begin_load("half", "loaded").number
    sent = 0

    async def half(name: str) -> AsyncIterator[bytes]:
        nonlocal sent
        file = LoadFile(name=name, partition_id=partition, bytes=100 * MIB, rows=1)
        yield UploadHeader(load_number=number, file=file).SerializeToString()
        for _ in range(PIECES):
            yield bytes(MIB // 4)
            sent += 1
        await asyncio.Event().wait()

    before = resident_mib(cluster)
    async with grpc.aio.insecure_channel(cluster.endpoints[0], options=_OPTIONS) as channel:
        method: Any = channel.stream_unary(UPLOAD_METHOD)
        waiting = [method(half(f"waits{n}")) for n in range(100)]
        last = -1
        while sent < 8 * PIECES or sent != last:  # until eight have sent all, and the others can't send
            last = sent
            await asyncio.sleep(1)
        assert resident_mib(cluster) < before + LIMIT_MIB
        for call in waiting:
            call.cancel()
