"""The listener of the data port doesn't wait for ever for callers that send nothing. When it stops, it ends their
connections.
"""

import asyncio
import socket
from contextlib import ExitStack, suppress

import pytest

from minka.testing.loopback_ports import free_addresses
from minkad.config.addresses import split_address
from minkad.data_port.listener import Listener
from tests.integration.replication.node import until


async def test_the_oldest_of_many_silent_callers_soon_count_as_redis_clients() -> None:
    made: list[str] = []

    def made_for(kind: str) -> asyncio.Protocol:
        made.append(kind)
        return asyncio.Protocol()

    address = free_addresses(1)[0]
    listener = Listener(address, lambda: made_for("minka"), lambda: made_for("redis"), None)
    await listener.start()
    writers = [(await asyncio.open_connection(*split_address(address)))[1] for _ in range(150)]
    await until(lambda: made == ["redis"] * 22)
    writers[-1].write(b"\x00minka\x01")
    await until(lambda: made[-1] == "minka")
    listener.stop()
    for writer in writers:
        writer.transport.abort()
        await writer.wait_closed()


async def test_a_stop_ends_silent_callers() -> None:
    address = free_addresses(1)[0]
    listener = Listener(address, asyncio.Protocol, asyncio.Protocol, None)
    await listener.start()
    streams = [await asyncio.open_connection(*split_address(address)) for _ in range(150)]
    listener.stop()
    async with asyncio.timeout(5):
        for reader, writer in streams:
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize("turns", range(8))
async def test_a_stop_ends_callers_that_are_just_accepted(turns: int) -> None:
    address = free_addresses(1)[0]
    listener = Listener(address, asyncio.Protocol, asyncio.Protocol, None)
    await listener.start()
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(split_address(address))) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        listener.stop()
        for one in sockets:
            one.setblocking(False)
            async with asyncio.timeout(5):
                with suppress(ConnectionResetError):  # the listener never accepted it
                    assert await asyncio.get_running_loop().sock_recv(one, 1) == b""


async def test_of_many_simultaneous_callers_only_silent_ones_are_ended() -> None:
    """The listener accepts all callers in one turn of the loop, before it reads from any. It must not end callers that
    have sent bytes already.
    """
    made: list[str] = []

    class Heard(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            made.append("minka")

    address = free_addresses(1)[0]
    listener = Listener(address, Heard, None, None)
    await listener.start()
    sockets = [socket.create_connection(split_address(address)) for _ in range(300)]
    for one in sockets:
        one.sendall(b"\x00minka\x01")
    await until(lambda: len(made) == 300)
    for one in sockets:
        one.close()
    listener.stop()
    await asyncio.sleep(0)
