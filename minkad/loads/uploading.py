"""Jobs' requests to a node's spool: to upload files, and to make new files from files in the spool."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from minka.bulk.row_digest import Digest
from minka.errors import Code, MinkaError
from minka.v1.loads_pb2 import LoadFile, LoadState
from minkad.core.state import OwnTable
from minkad.loads.cut import Cut, Outcome, Target
from minkad.loads.spool import Spool
from minkad.loads.throttle import Throttle
from minkad.loads.worker import Worker
from minkad.process import tasks
from minkad.process.rate_limits import RateLimits

_AT_ONCE: Final = 8  # files; each takes little more than a MiB of memory
_SILENT_S: Final = 60.0  # an upload ends if in this time at most `_LITTLE_BYTES` come,
_STALLED_S: Final = 20.0  # or in this time, if others wait for its place
_LITTLE_BYTES: Final = 64 * 1024
_LOOK_S: Final = 1.0


class Uploading:
    """Takes in files that jobs upload, and cuts them. For the loop's thread."""

    def __init__(self, spool: Spool, table: OwnTable, limits: RateLimits, throttle: Throttle) -> None:
        """A load that isn't in the table may have just begun."""
        self._spool = spool
        self._table = table
        self._limits = limits
        self._throttle = throttle
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0  # uploads that wait for a slot
        self._cutter = Worker("minkad.loads.cut")

    async def close(self) -> None:
        """End the process that cuts files."""
        await self._cutter.close()

    async def upload(self, number: int, file: LoadFile, chunks: AsyncIterator[bytes]) -> None:
        """Take the file in, unless it is here already. After the call, the file is here durably.

        Raises UNKNOWN_LOAD, LOAD_ENDED, INVALID_ARGUMENT if another file has its name, OVERLOADED if hardly anything
        comes, and the errors of `Spool.receive`.
        """
        self._check_wanted(number, file)
        if self._spool.has(number, file.name, file.checksum):
            return
        if any(one.name == file.name for one in self._spool.files(number)):
            text = f"load {number} has another file {file.name} here: each attempt needs a name of its own"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        self._spool.check_room(file.bytes)  # a full disk is reported at once, not when the file's turn comes
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            await self._spool.receive(number, file, self._throttled(number, file, chunks))
        finally:
            self._slots.release()

    async def _throttled(self, number: int, file: LoadFile, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in self._arriving(file, chunks):
            async for part in self._limits.parts(chunk, lambda: self._limited(number)):
                self._check_wanted(number, file)
                self._spool.check_room(0)  # other files may have filled the disk meanwhile
                await self._throttle.take(len(part))
                yield part

    def _limited(self, number: int) -> tuple[int, int]:
        load = self._table.state.loads.rows.get(number)
        return number, 0 if load is None else load.rate_limit

    async def _arriving(self, file: LoadFile, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The chunks as they come. Raises OVERLOADED if hardly any come."""
        loop, chunks = asyncio.get_running_loop(), aiter(chunks)
        waited, came = 0.0, 0  # seconds of waiting for the sender, and bytes, since the last `_LITTLE_BYTES` came
        while True:
            began, coming = loop.time(), tasks.awaited(_next(chunks), f"upload of {file.name}")
            try:
                while not coming.done():
                    await asyncio.wait([coming], timeout=_LOOK_S)
                    waited, began = waited + loop.time() - began, loop.time()
                    if waited > (_STALLED_S if self._waiting else _SILENT_S):
                        text = f"{file.name}: {came} bytes came in the last {waited:.0f} s"
                        raise MinkaError(Code.OVERLOADED, text)
                chunk = await coming
            finally:
                tasks.drop(coming)
            if chunk is None:
                return
            came += len(chunk)
            if came > _LITTLE_BYTES:
                waited, came = 0.0, 0
            yield chunk

    def _check_wanted(self, number: int, file: LoadFile) -> None:
        if not self._is_lost(number, file):
            self._check_staging(number)

    def _check_staging(self, number: int) -> None:
        """Raises UNKNOWN_LOAD, LOAD_ENDED: the nodes have all files of a committed load, and fetch them from each
        other.
        """
        table = self._table.state.loads
        load = table.rows.get(number)
        if load is None and number < table.next_number:
            raise MinkaError(Code.UNKNOWN_LOAD, f"there is no longer a load {number}")
        if load is not None and load.state != LoadState.LOAD_STATE_STAGING:
            raise MinkaError(Code.LOAD_ENDED, f"load {load.id} takes no more files")

    def _is_lost(self, number: int, file: LoadFile) -> bool:
        """True if a partition has yet to take in exactly this file: if it is lost, it may be uploaded again."""
        part = self._table.state.loads.parts.get(number, {}).get(file.partition_id)
        return part is not None and not part.done and (part.name, part.checksum) == (file.name, file.checksum)

    async def cut(self, number: int, sources: list[str], targets: list[LoadFile]) -> list[LoadFile]:
        """Make files with the ranges and the names of `targets` from all rows of `sources`, which stay. Returns the new
        files that have rows.

        Raises UNKNOWN_FILE, UNKNOWN_LOAD, LOAD_ENDED, DISK_FULL, INVALID_ARGUMENT, CORRUPT_DATA.
        """
        self._check_staging(number)
        files = [self._spool.find(number, name) for name in sources]
        self._spool.check_room(sum(file.bytes for file in files))
        parts = [self._spool.new_part() for _ in targets]
        total = sum((Digest.from_proto(file.rows, file.digest) for file in files), Digest())
        request = Cut(
            [str(self._spool.path(number, name)) for name in sources],
            [Target(str(part), one.start_key, one.end_key) for part, one in zip(parts, targets, strict=True)],
            str(self._spool.new_part()),
            total.rows,
            total.bytes,
            total.xor,
            total.sum,
        )
        outcome = await self._cutter.ask(request, Outcome)
        made = []
        for one in outcome.made:
            file = LoadFile()
            file.CopyFrom(targets[one.place])
            file.bytes, file.rows, file.checksum = one.file_bytes, one.rows, one.checksum
            file.digest.CopyFrom(Digest(one.rows, one.bytes, one.xor, one.sum).to_proto())
            await self._spool.keep(number, file, parts[one.place])
            made.append(file)
        return made


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)
