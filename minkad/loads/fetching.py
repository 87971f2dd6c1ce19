"""Fetches missing files of loads from other nodes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.load_api_pb2 import FetchRequest
from minka.v1.loads_pb2 import LoadFile
from minkad.core.state import OwnTable, is_up
from minkad.loads.spool import Spool
from minkad.process.shared_work import SharedWork

log: Final = logging.getLogger(__name__)

_AT_ONCE: Final = 4
_NAMED: Final = 3
_SILENCE_SECONDS: Final = 5.0  # then the next node is asked

Fetch = Callable[[str, FetchRequest], AsyncIterator[bytes]]
"""Yields a node's messages: first its description of the file (a LoadFile), then the content. Raises MinkaError."""


class Fetching:
    """Fetches files of loads from other nodes. For the loop's thread."""

    def __init__(self, node_id: str, spool: Spool, fetch: Fetch, table: OwnTable) -> None:
        self._node_id = node_id
        self._spool = spool
        self._fetch = fetch
        self._table = table
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._under_way = SharedWork()  # by the number of the load, and name

    async def ensure(self, number: int, file: LoadFile, first: Collection[str] = ()) -> None:
        """Fetch the file unless it is here. After the call, the file is here durably. Asks the nodes in `first` that
        are up, then all others that are up, then the rest of `first`.

        Raises UNKNOWN_FILE if no node that is up has the file, UNREACHABLE if some nodes didn't tell, DISK_FULL,
        STORAGE_FAILED.
        """
        while not self._spool.has(number, file.name, file.checksum):
            work = partial(self._get, number, file, self._in_order(first))
            await self._under_way.wait_for((number, file.name), work, f"fetching {file.name}")

    def _in_order(self, first: Collection[str]) -> list[str]:
        up = {node.id for node in self._table.state.nodes.values() if is_up(node)}
        nodes = [node for node in first if node in up] + sorted(up) + list(first)
        return [node for node in dict.fromkeys(nodes) if node != self._node_id]

    async def close(self) -> None:
        """Give up the fetches under way."""
        await self._under_way.close()

    async def _get(self, number: int, file: LoadFile, nodes: Collection[str]) -> None:
        failures: dict[str, MinkaError] = {}
        async with self._slots:
            for node in nodes:
                try:
                    await self._get_from(node, number, file)
                    log.info("a file of a load was fetched", extra={"file": file.name, "load": number, "from": node})
                    return
                except MinkaError as error:
                    if error.code in (Code.DISK_FULL, Code.STORAGE_FAILED):
                        raise
                    failures[node] = error
        others = {node: error for node, error in failures.items() if error.code is not Code.UNKNOWN_FILE}
        if not others:
            raise MinkaError(Code.UNKNOWN_FILE, f"no node that is up has {file.name} of load {number}")
        named = "; ".join(f"{node}: {error.message[:200]}" for node, error in list(others.items())[:_NAMED])
        raise MinkaError(Code.UNREACHABLE, f"{file.name} of load {number} could not be fetched: {named}")

    async def _get_from(self, node: str, number: int, file: LoadFile) -> None:
        request = FetchRequest(load_number=number, name=file.name, checksum=file.checksum)
        messages = _from_elsewhere(self._fetch(node, request))
        try:
            known = LoadFile.FromString(await anext(messages))
            if (known.checksum, known.bytes) != (file.checksum, file.bytes):
                raise MinkaError(Code.UNKNOWN_FILE, f"{node} has another file of this name")
            await self._spool.receive(number, known, messages, is_checked=True)
        except StopAsyncIteration as error:
            raise MinkaError(Code.UNREACHABLE, f"{node} sent nothing") from error


async def _from_elsewhere(messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The messages. Raises UNREACHABLE for any error but UNKNOWN_FILE: a failure of another node's disk must not look
    like a failure of this node's disk. Raises UNREACHABLE also if no message comes for `_SILENCE_SECONDS`.
    """
    try:
        while True:
            async with asyncio.timeout(_SILENCE_SECONDS):
                message = await anext(messages)
            yield message
    except StopAsyncIteration:
        return
    except TimeoutError:
        raise MinkaError(Code.UNREACHABLE, f"nothing came for {_SILENCE_SECONDS:g} s") from None
    except MinkaError as error:
        if error.code is Code.UNKNOWN_FILE:
            raise
        raise MinkaError(Code.UNREACHABLE, error.message) from error
