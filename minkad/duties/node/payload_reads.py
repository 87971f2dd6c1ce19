"""Reads payloads for many sessions in one call: calls are expensive, and one record may concern all sessions."""

import asyncio
from collections.abc import Collection, Iterable
from typing import Final, Protocol

from minka.errors import MinkaError
from minkad.process import tasks

COLLECT_S: Final = 0.002  # the first wanted read waits this long for more
SOON_S: Final = 0.5  # a call's timeout
MAX_BYTES: Final = 1024 * 1024  # of a call's payloads, except for one larger read


class Payloads(Protocol):
    """The store of the duties' payloads."""

    async def get_many(self, ids: Iterable[bytes], timeout: float) -> dict[bytes, bytes]:
        """The existing payloads, by id. `timeout` in seconds. Raises MinkaError."""


class _Read:
    def __init__(self, ids: Collection[bytes], size: int) -> None:
        self.ids = ids
        self.size = size
        self.done: asyncio.Future[dict[bytes, bytes]] = asyncio.get_running_loop().create_future()


class PayloadReads:
    """The reads of payloads at one node."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._wanted: list[_Read] = []  # reads that begin with the next calls
        self._calls: set[asyncio.Task[None]] = set()

    async def get_many(self, ids: Collection[bytes], size: int) -> dict[bytes, bytes]:
        """The existing payloads, by id; `size`: bytes of all. Raises MinkaError if any payload of the same call can't
        be read soon: then the caller should read each payload alone.
        """
        read = _Read(ids, size)
        self._wanted.append(read)
        if len(self._wanted) == 1:
            asyncio.get_running_loop().call_later(COLLECT_S, self._begin)
        return await read.done

    def _begin(self) -> None:
        wanted, self._wanted = self._wanted, []
        together: list[_Read] = []
        total = 0
        for read in wanted:
            if together and total + read.size > MAX_BYTES:
                self._call(together)
                together, total = [], 0
            together.append(read)
            total += read.size
        self._call(together)

    def _call(self, reads: list[_Read]) -> None:
        call = tasks.start(self._read(reads), "reading payloads", lambda error: _refuse(reads, error))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _read(self, reads: list[_Read]) -> None:
        waiting = [read for read in reads if not read.done.done()]
        try:
            found = await self._payloads.get_many([id_ for read in waiting for id_ in read.ids], SOON_S)
        except MinkaError as error:
            _refuse(waiting, error)
            return
        for read in waiting:
            if not read.done.done():
                read.done.set_result(found)


def _refuse(reads: Iterable[_Read], error: BaseException) -> None:
    for read in reads:
        if not read.done.done():
            read.done.set_exception(error)
