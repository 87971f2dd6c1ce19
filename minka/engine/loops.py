"""The event loops of this process: one for all synchronous clients and one for shards' sessions, each on its own
thread.

All event loops of a process share one poller in grpc.aio. The loop that the poller wakes handles the events of all
loops. If the loop of an event is closed, handling the event fails with "Event loop is closed", and the events after it
are lost, so that other clients stall. Therefore each loop here is made at its first use, and never closed.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any, Final, Protocol, TypeVar

import grpc

from minka.engine.grpc_calls import claim_aio
from minka.errors import Code, MinkaError

_Result = TypeVar("_Result")

_CLOSE_TIMEOUT_S: Final = 5.0

_making: Final = threading.Lock()
_shared: "SharedLoop | None" = None

# A fork waits for the lock: if another thread held it during the fork, nobody would release it in the child.
os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)


class SharedLoop:
    """An event loop and its thread, which both end with the process."""

    def __init__(self, name: str) -> None:
        self.loop: Final = _new_event_loop()
        self.thread: Final = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self.thread.start()
        # gRPC shuts its poller down when the last channel is freed, on any thread. `_hold_grpc` prevents that: gRPC
        # counts it like a channel, and nothing frees it.
        asyncio.run_coroutine_threadsafe(_hold_grpc(), self.loop).result()
        # When the interpreter ends, the newest finalizers run first. So this one runs after those of clients.
        weakref.finalize(self, _end, self.loop, self.thread, os.getpid())


class AsyncClosable(Protocol):
    """A client for asyncio."""

    async def close(self) -> None:
        """Close the connections; calls under way fail."""


class ClientLoop:
    """A synchronous client's access to the shared loop. It knows the client's calls under way."""

    def __init__(self) -> None:
        self._shared: Final = _shared_loop()
        self._lock: Final = threading.Lock()
        self._calls: Final[set[concurrent.futures.Future[Any]]] = set()
        self._stopping = False

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run the coroutine on the loop's thread, and wait for its result on this thread. Raises its errors,
        INVALID_ARGUMENT if the client is closed, and OUTCOME_UNKNOWN if `stop` gave the call up.
        """
        try:
            future = self._begin(coroutine)
        except MinkaError:
            coroutine.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise MinkaError(Code.OUTCOME_UNKNOWN, "the client was closed") from None
        except BaseException:
            future.cancel()  # this thread was interrupted, so nobody waits for the result
            raise
        finally:
            self._calls.discard(future)

    def pages(self, owner: object, pages: AsyncGenerator[list[_Result], None]) -> Generator[list[_Result], None, None]:
        """Yield the lists of the asynchronous generator `pages`; none of them is empty. This generator refers to
        `owner`, the client, so that the client isn't closed as garbage while somebody still reads.
        """
        try:
            while page := self.run(_next_page(pages)):
                yield page
        finally:
            with contextlib.suppress(MinkaError):  # the client is closed, or the garbage collector ends this generator
                self.run(pages.aclose())

    def rows(self, owner: object, pages: AsyncGenerator[list[_Result], None]) -> Generator[_Result, None, None]:
        """Yield the items of these lists, one by one."""
        with contextlib.closing(self.pages(owner, pages)) as lists:
            for page in lists:
                yield from page

    def _begin(self, coroutine: Coroutine[Any, Any, _Result]) -> "concurrent.futures.Future[_Result]":
        claim_aio()
        if threading.current_thread() is self._shared.thread:
            raise MinkaError(Code.INVALID_ARGUMENT, "the thread of the clients can't wait for itself")
        with self._lock:
            if self._stopping:
                raise MinkaError(Code.INVALID_ARGUMENT, "the client is closed")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._shared.loop)
            self._calls.add(future)
        return future

    def stop(self, client: AsyncClosable, process: int) -> None:
        """Close the client, which ends the calls that wait in other threads; give them up if that takes long. `process`
        is the id of the process that made the client; in a child that was forked from it, this does nothing. The
        garbage collector may call this on any thread. On a thread that runs an event loop, this doesn't wait until the
        client is closed.
        """
        if process != os.getpid():
            return
        with self._lock:
            self._stopping = True
            closing = asyncio.run_coroutine_threadsafe(client.close(), self._shared.loop)
            calls = list(self._calls)
        if _runs_a_loop():  # gRPC may have woken this thread's loop to handle the events of all loops: it can't wait
            return
        unended = concurrent.futures.wait([closing, *calls], _CLOSE_TIMEOUT_S).not_done
        for call in unended - {closing}:
            call.cancel()
        if closing not in unended:
            closing.result()


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _shared_loop() -> SharedLoop:
    global _shared
    claim_aio()
    with _making:
        if _shared is None:
            _shared = SharedLoop("minka client")
        return _shared


async def _next_page(pages: AsyncGenerator[list[_Result], None]) -> list[_Result]:
    return await anext(pages, [])


async def _hold_grpc() -> None:
    grpc.aio.init_grpc_aio()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: int) -> None:
    """Stop the loop at the end of the interpreter, when nothing more may run on a daemon thread."""
    if process == os.getpid():
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSE_TIMEOUT_S)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # uvloop isn't there on every platform, and only makes clients faster
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
