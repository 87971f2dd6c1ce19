"""A process of the node for work that would hold the interpreter's lock. It takes one request at a time, a line of JSON
on its standard input, and answers with a line on its standard output.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from minka.errors import Code, MinkaError
from minkad.process import helper_processes

_IDLE_SECONDS: Final = 10.0
_LINE_BYTES: Final = 64 * 1024 * 1024

T = TypeVar("T", bound=msgspec.Struct)


class _Failure(msgspec.Struct):
    code: str
    message: str


class _Answer(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw(b"null")
    failure: _Failure | None = None


class Worker:
    """A process that starts with the first request, and ends after 10 s without one. For the loop's thread."""

    def __init__(self, module: str) -> None:
        """`module`: the name of a module that calls `serve` when it runs."""
        self._module = module
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None  # ends the process

    async def ask(self, request: msgspec.Struct, answer: type[T]) -> T:
        """The answer to a request. Raises the error of the process, and STORAGE_FAILED if the process has died."""
        async with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            try:
                return await self._ask(request, answer)
            except BaseException as error:
                if not isinstance(error, MinkaError) or error.code is Code.STORAGE_FAILED:
                    await self._end()  # the process may be in the middle of the request
                raise
            finally:
                loop = asyncio.get_running_loop()
                self._idle = loop.call_later(_IDLE_SECONDS, self._end_idle)

    async def _ask(self, request: msgspec.Struct, answer: type[T]) -> T:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self._module), stdin=-1, stdout=-1, limit=_LINE_BYTES, start_new_session=True
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(msgspec.json.encode(request) + b"\n")
            await stdin.drain()
            line = await stdout.readline()
        except OSError as error:
            raise MinkaError(Code.STORAGE_FAILED, f"{self._module}: {error}") from error
        if not line:
            raise MinkaError(Code.STORAGE_FAILED, f"{self._module} ended with status {await self._process.wait()}")
        found = msgspec.json.decode(line, type=_Answer)
        if found.failure is not None:
            raise MinkaError(Code[found.failure.code], found.failure.message)
        return msgspec.json.decode(found.result, type=answer)

    def _end_idle(self) -> None:
        if not self._lock.locked() and self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()  # the process ends with its input
            self._process = None

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def close(self) -> None:
        """Kill the process, whatever it is doing."""
        if self._idle is not None:
            self._idle.cancel()
        await self._end()


def serve(request: type[T], work: Callable[[T], msgspec.Struct]) -> None:
    """Answer requests until standard input ends, or the node is gone; call this in the process."""
    helper_processes.run(lambda: _serve(request, work))


def _serve(request: type[T], work: Callable[[T], msgspec.Struct]) -> None:
    for line in sys.stdin.buffer:
        try:
            result = work(msgspec.json.decode(line, type=request))
            answer = _Answer(result=msgspec.Raw(msgspec.json.encode(result)))
        except MinkaError as error:
            answer = _Answer(failure=_Failure(error.code.name, error.message))
        except Exception as error:  # noqa: BLE001 - in any case, the node must hear of it
            answer = _Answer(failure=_Failure(Code.STORAGE_FAILED.name, f"{type(error).__name__}: {error}"))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
