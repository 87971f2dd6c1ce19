"""A node's spool over gRPC."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from zlib import crc32

from minka.bulk.bulk_loads import FETCH_METHOD
from minka.v1.load_api_pb2 import FetchRequest
from minka.v1.loads_pb2 import LoadFile
from minkad.loads.spool import Spool
from minkad.rpc import spool as module

MIB = 1024 * 1024


async def content(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def fetched(spool: Spool) -> list[bytes]:
    """The messages with the content of a file, as the node sends them to one that takes them at once."""
    called: Any = type("Called", (), {"method": FETCH_METHOD, "invocation_metadata": ()})
    unused: Any = None
    handler: Any = module.spool_handler(spool, unused).service(called)
    messages = handler.unary_stream(FetchRequest(load_number=7, name="one").SerializeToString(), None)
    assert LoadFile.FromString(await anext(messages)) == spool.find(7, "one")
    return [message async for message in messages]


async def test_a_file_goes_out_in_messages_that_come_soon(tmp_path: Path) -> None:
    """The node that fetches hears nothing until a message has come completely, and gives up after some seconds."""
    data = bytes(range(256)) * (3 * MIB // 256) + b"x"
    spool = Spool(tmp_path / "spool", lambda _: None)
    file = LoadFile(name="one", partition_id=1, bytes=len(data), checksum=crc32(data))
    await spool.receive(7, file, content(data), is_checked=True)
    messages = await fetched(spool)
    assert b"".join(messages) == data
    assert max(len(message) for message in messages) <= MIB // 4
