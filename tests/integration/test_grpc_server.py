"""gRPC has a bug: a call with an invalid name makes the server stop, and while it stops, gRPC writes to memory that it
has freed. A server with minkad's handlers stops as well, but doesn't write to freed memory.
"""

import asyncio
import contextlib
import logging
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from minkad.rpc.server import _GenericHandlers
from tests.http2 import preface

_SIZES: Final = range(16, 512, 16)  # bytes; Python keeps objects of these sizes in its own pools
_COUNT: Final = 500
_MARK: Final = b"\x55"


async def _end_server_by_a_call() -> list[bytes]:
    """End a server by a call with an invalid name. At the moment at which the server ends, create objects of all small
    sizes; returns these objects. If the server wrote to freed memory, one of them would change.
    """
    objects: list[bytes] = []
    ended = asyncio.Event()

    def mark(_: logging.LogRecord) -> bool:
        objects.extend(_MARK * size for size in _SIZES for _ in range(_COUNT))
        ended.set()
        return False

    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    services: Any = _GenericHandlers(server)
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), services)
    await server.start()
    log = logging.getLogger("grpc._cython.cygrpc")
    log.addFilter(mark)
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(preface(b"/grpc.health.v1.Health/\xff\xfe"))
        async with asyncio.timeout(10):
            await ended.wait()
            with contextlib.suppress(UnicodeDecodeError):
                await server.stop(0)
        writer.close()
    finally:
        log.removeFilter(mark)
    return objects


async def test_a_server_that_ends_does_not_write_to_freed_memory() -> None:
    assert all(set(each) == set(_MARK) for each in await _end_server_by_a_call())
