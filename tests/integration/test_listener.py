"""The listener of the data port: who has said nothing yet takes none of its room for ever."""

import asyncio

from minkactl.playground import free_addresses
from minkad.config.addresses import split_address
from minkad.data_port.listener import Listener
from tests.integration.replication.node import until


async def test_of_many_that_say_nothing_the_oldest_count_as_clients_of_redis_at_once() -> None:
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
    for writer in writers:
        writer.transport.abort()
    listener.stop()
