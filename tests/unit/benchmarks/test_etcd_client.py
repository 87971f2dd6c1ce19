"""The benchmarks' own gRPC client, tested against a server of the gRPC library."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from benchmarks.etcd_client import PUT, Calls, put_request, txn_request
from benchmarks.processes import free_ports


class Recorder:
    """A server that answers each call with as many bytes as etcd does, or refuses each call."""

    def __init__(self, refuse: bool = False) -> None:
        self.requests: list[bytes] = []
        self._refuse = refuse

    async def put(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        self.requests.append(request)
        if self._refuse:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests")
        return b"r" * 30

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        service, method = PUT[1:].split("/")
        server = grpc.aio.server()
        handler: Any = grpc.unary_unary_rpc_method_handler(self.put)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        port = server.add_insecure_port(f"127.0.0.1:{free_ports(1)[0]}")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(0)


async def load_from(recorder: Recorder, message: bytes, concurrency: int, connections: int) -> Calls:
    """Send requests for 0.05 s, and wait until the recorder has answered all of them."""
    load = Calls(PUT, lambda number: message + put_request(b"%d" % number, b""))
    async with recorder.serve() as address, asyncio.timeout(30):
        await load.run(address, concurrency, connections, 0.05)
    return load


@pytest.mark.parametrize(("size", "concurrency", "connections"), [(0, 1, 1), (100, 16, 4), (40_000, 8, 1)])
async def test_every_call_arrives_once_and_whole(size: int, concurrency: int, connections: int) -> None:
    """A message of 40,000 bytes takes several frames, and 8 such messages exceed a connection's window."""
    recorder, message = Recorder(), put_request(b"k", b"v" * size)
    load = await load_from(recorder, message, concurrency, connections)
    numbers = range(1, len(load.latencies) + 1)
    assert sorted(recorder.requests) == sorted(message + put_request(b"%d" % n, b"") for n in numbers)
    assert len(load.latencies) >= concurrency
    assert all(0 < latency < 30 for latency in load.latencies)


async def test_refused_call_is_an_error() -> None:
    with pytest.raises(ConnectionError, match="refused"):
        await load_from(Recorder(refuse=True), b"", 4, 2)


def test_messages_are_encoded_as_etcd_encodes_them() -> None:
    """Numbers of fields in rpc.proto: PutRequest.key is 1, value 2; TxnRequest.success 2; RequestOp.request_put 2."""
    put = bytes.fromhex("0a016b") + bytes.fromhex("1203767676")
    assert put_request(b"k", b"vvv") == put
    assert txn_request([(b"k", b"vvv")] * 2) == (b"\x12\x0a\x12\x08" + put) * 2
    assert put_request(b"k", b"v" * 300)[3:6] == b"\x12\xac\x02"
