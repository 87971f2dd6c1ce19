"""Connects Redis clients to a node in this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from minka.v1.cluster_pb2 import Keyspace, Node, Partition, Partitioning
from minkad.core.state import State
from minkad.data_port.resp.redis_port import RespPort
from minkad.data_port.resp.service import Service
from tests.integration.replication.harness import Cluster
from tests.integration.replication.node import TestNode
from tests.own_table import Table

RANGES = Keyspace(id=1, name="default", partitioning=Partitioning.PARTITIONING_RANGES)


def table_of(c: Cluster, keyspace: Keyspace) -> State:
    """Return a node's table with the present rows. Later changes of the rows don't change it."""
    state = State()
    state.keyspaces[1] = keyspace
    for row in c.rows.values():
        row.keyspace_id = 1
        copy = Partition()
        copy.CopyFrom(row)
        state.partitions.put(copy)
    for node_id, port in c.ports.items():
        state.nodes[node_id] = Node(id=node_id, data_address=f"127.0.0.1:{port}")
    return state


@asynccontextmanager
async def client(node: TestNode, state: State, *, knows_table: bool = True) -> AsyncIterator["Client"]:
    """Connect a client to the Redis port of the node; the node has this table."""
    async with clients(node, state, 1, knows_table=knows_table) as (one,):
        yield one


@asynccontextmanager
async def clients(
    node: TestNode, state: State, count: int, patience_s: float | None = None, *, knows_table: bool = True
) -> AsyncIterator[list["Client"]]:
    """Connect `count` clients. A batch of writes waits at most `patience_s` seconds for further writes of clients that
    just got an answer.
    """
    memory, requests = node.clients_memory, node.manager.requests
    address = f"127.0.0.1:{node.port}"
    port = RespPort(
        node.id,
        "test",
        address,
        Table(state),
        requests,
        node.telemetry,
        memory,
        lambda: None,
        lambda: knows_table,
    )
    if patience_s is not None:
        port.service.pipes.patience_s = patience_s
    server = await asyncio.get_running_loop().create_server(port.protocol, "127.0.0.1", 0)
    made = [Client(*await asyncio.open_connection(*server.sockets[0].getsockname())) for _ in range(count)]
    for one in made:
        one.service, one.address = port.service, server.sockets[0].getsockname()
    try:
        yield made
    finally:
        for one in made:
            one.close()
        server.close()
        port.close()


class Client:
    """A Redis client that sends raw commands."""

    service: Service  # the node's service for Redis clients
    address: tuple[str, int]  # the node's address for Redis clients

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def say(self, *commands: str) -> list[bytes]:
        """Send inline commands in one piece; returns the answers, one line for each command."""
        self._writer.write("".join(f"{command}\r\n" for command in commands).encode())
        return [(await self._reader.readline()).strip() for _ in commands]

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def say_all(self, commands: bytes, answers: int) -> list[bytes]:
        """Send commands of any form in one piece; returns `answers` answers of one line."""
        self._writer.write(commands)
        return [(await self._reader.readline()).strip() for _ in range(answers)]

    async def lines(self, commands: bytes, count: int) -> list[bytes]:
        """Send commands of any form; returns `count` lines of the answers."""
        self._writer.write(commands)
        return [(await self._reader.readline()).strip() for _ in range(count)]

    async def all_bulks(self, command: str, keys: list[bytes]) -> list[bytes | None]:
        """Send the command for each key, in one piece; returns a value for each key."""
        self._writer.write(b"".join(b"%b %b\r\n" % (command.encode(), key) for key in keys))
        return [await self._bulk() for _ in keys]

    async def say_last(self, commands: bytes) -> bytes:
        """Send these bytes, and no more; returns all answers until the node ends the connection."""
        self._writer.write(commands)
        self._writer.write_eof()
        return await self._reader.read()

    def ask(self, command: str) -> None:
        """Send the command without waiting for the answer."""
        self._writer.write(f"{command}\r\n".encode())

    async def bulks(self, command: str) -> list[bytes | None]:
        """Send the command; returns the array of values in the answer."""
        self.ask(command)
        return [await self._bulk() for _ in range(int((await self._reader.readline())[1:]))]

    async def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Send GET for each key, in one piece; returns the values."""
        return await self.all_bulks("GET", keys)

    async def _bulk(self) -> bytes | None:
        size = int((await self._reader.readline())[1:])
        return None if size < 0 else (await self._reader.readexactly(size + 2))[:size]
