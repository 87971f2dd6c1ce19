"""Long reads of checkpoints, in processes of their own: see `scan_process`."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from typing import Final

from minka.errors import Code, MinkaError
from minkad.storage.rocks import MIB, storage_error
from minkad.storage.scan_process import END, ERROR, ScanRequest, encode_request

_IDLE_SECONDS: Final = 60.0
_MAX_WAITING: Final = 256
_BUFFER_BYTES: Final = 2 * MIB
PROCESSES: Final = max(1, (os.cpu_count() or 2) // 2)


class Scanner:
    """Up to `PROCESSES` scans at a time; others wait their turn. For the loop's thread."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(PROCESSES)
        self._waiting = 0
        self._idle: dict[asyncio.subprocess.Process, asyncio.TimerHandle] = {}
        self._busy: set[asyncio.subprocess.Process] = set()

    async def close(self) -> None:
        """End the processes."""
        for process in [*self._idle, *self._busy]:
            self._end(process)
            await process.wait()

    async def scan(self, request: ScanRequest) -> AsyncGenerator[bytes, None]:
        """The answers, as fast as they are taken. Raises OVERLOADED, CORRUPT_DATA, STORAGE_FAILED."""
        if self._waiting >= _MAX_WAITING:
            raise MinkaError(Code.OVERLOADED, f"{self._waiting} scans wait for their turn")
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            process = await self._process()
            is_done = False
            try:
                async for answer in _answers(process, request):
                    yield answer
                is_done = True
            finally:
                await self._give_back(process, is_done)
        finally:
            self._slots.release()

    async def _process(self) -> asyncio.subprocess.Process:
        if self._idle:
            process, timer = self._idle.popitem()
            timer.cancel()
        else:
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "minkad.storage.scan_process"), stdin=pipe, stdout=pipe, limit=_BUFFER_BYTES
            )
        self._busy.add(process)
        return process

    async def _give_back(self, process: asyncio.subprocess.Process, is_done: bool) -> None:
        self._busy.discard(process)
        if not is_done or process.returncode is not None:
            self._end(process)  # it may be in the middle of an answer that nobody takes
            await process.wait()  # so that nothing is read after the end of a scan
            return
        loop = asyncio.get_running_loop()
        self._idle[process] = loop.call_later(_IDLE_SECONDS, self._end, process)

    def _end(self, process: asyncio.subprocess.Process) -> None:
        if (timer := self._idle.pop(process, None)) is not None:
            timer.cancel()
        if process.returncode is None:
            process.kill()


async def _answers(process: asyncio.subprocess.Process, request: ScanRequest) -> AsyncGenerator[bytes, None]:
    assert process.stdin is not None
    assert process.stdout is not None
    asked = encode_request(request)
    process.stdin.write(len(asked).to_bytes(4, "big") + asked)
    while True:
        try:
            head = await process.stdout.readexactly(5)
            content = await process.stdout.readexactly(int.from_bytes(head[1:], "big"))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise MinkaError(Code.STORAGE_FAILED, f"the process that reads {request.path} has ended") from error
        if head[:1] == END:
            return
        if head[:1] == ERROR:
            raise storage_error(OSError(content.decode()), f"reading {request.path}")
        yield content
