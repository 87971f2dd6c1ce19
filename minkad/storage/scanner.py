"""Long reads of checkpoints, in separate processes: see `scan_process`."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError
from minkad.storage.rocks import MIB, storage_error
from minkad.storage.scan_process import END, ERROR, ScanRequest, encode_request

_IDLE_SECONDS: Final = 60.0
_MAX_WAITING: Final = 256
_UNTAKEN_S: Final = 5.0  # a scan whose answer nobody takes for this long ends, if other scans wait
_LOOK_S: Final = 1.0
_BUFFER_BYTES: Final = 2 * MIB
PROCESSES: Final = max(1, (os.cpu_count() or 2) // 2)


@dataclass(slots=True, eq=False)
class _Scan:
    """A scan under way."""

    process: asyncio.subprocess.Process
    untaken_since: float | None = None  # by the loop's clock; None: no answer waits for its reader
    is_ended: bool = False  # `_end_untaken` has ended it, and has given its slot to another scan


class Scanner:
    """At most `PROCESSES` scans run at a time; the others wait. A reader that stands still doesn't hold up the others:
    it loses its slot. For the loop's thread.
    """

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(PROCESSES)
        self._waiting = 0  # scans that wait for a slot
        self._idle: dict[asyncio.subprocess.Process, asyncio.TimerHandle] = {}  # each with the timer that ends it
        self._busy: set[_Scan] = set()
        self._watch: asyncio.TimerHandle | None = None  # calls `_end_untaken` while scans wait

    async def close(self) -> None:
        """End the processes."""
        if self._watch is not None:
            self._watch.cancel()
        for process in [*self._idle, *(scan.process for scan in self._busy)]:
            self._end(process)
            await process.wait()

    async def scan(self, request: ScanRequest) -> AsyncGenerator[bytes, None]:
        """The answers, as fast as the caller takes them. Raises OVERLOADED if too many scans wait, or if the caller
        takes no answer for 5 s while other scans wait; CORRUPT_DATA, STORAGE_FAILED.
        """
        await self._turn()
        scan: _Scan | None = None
        try:
            scan = _Scan(await self._process())
            self._busy.add(scan)
            is_done = False
            try:
                async for answer in _answers(scan.process, request):
                    scan.untaken_since = asyncio.get_running_loop().time()
                    yield answer
                    scan.untaken_since = None
                    if scan.is_ended:
                        text = f"an answer was not taken or found no memory for {_UNTAKEN_S:g} s while scans waited"
                        raise MinkaError(Code.OVERLOADED, text)
                is_done = True
            finally:
                self._busy.discard(scan)
                await self._give_back(scan.process, is_done)
        finally:
            if scan is None or not scan.is_ended:
                self._slots.release()

    async def _turn(self) -> None:
        if self._waiting >= _MAX_WAITING:
            raise MinkaError(Code.OVERLOADED, f"{self._waiting} scans wait for their turn")
        self._waiting += 1
        if self._watch is None:
            self._watch = asyncio.get_running_loop().call_later(_LOOK_S, self._end_untaken)
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1

    def _end_untaken(self) -> None:
        """While scans wait: end scans whose readers stand still, and give their slots to the scans that wait."""
        loop = asyncio.get_running_loop()
        for scan in self._busy:
            since = scan.untaken_since
            if self._waiting and not scan.is_ended and since is not None and loop.time() - since > _UNTAKEN_S:
                scan.is_ended = True
                self._end(scan.process)
                self._slots.release()
        self._watch = loop.call_later(_LOOK_S, self._end_untaken) if self._waiting else None

    async def _process(self) -> asyncio.subprocess.Process:
        if self._idle:
            process, timer = self._idle.popitem()
            timer.cancel()
        else:
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "minkad.storage.scan_process"),
                stdin=pipe,
                stdout=pipe,
                limit=_BUFFER_BYTES,
                start_new_session=True,
            )
        return process

    async def _give_back(self, process: asyncio.subprocess.Process, is_done: bool) -> None:
        if not is_done or process.returncode is not None:
            self._end(process)  # the process may be in the middle of an answer that nobody takes
            await process.wait()  # so the process reads no file after the end of the scan
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
