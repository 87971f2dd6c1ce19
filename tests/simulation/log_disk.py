"""The simulated log database of the replicas: the content of the machine's disk, and the database of a process.

When a process ends, its writes stay. A power cut loses the last unsynced batches, a random number of them.
"""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from minka.errors import Code, MinkaError
from minkad.storage.log_database import STALLED_S, Sync

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.process import Process

# LogDatabase has the same two limits.
_SYNC_DUE_S: Final = 0.05  # seconds after which a write is synced, if it was acknowledged before its sync
_SYNC_MAY_TAKE_S: Final = 0.05  # seconds; after a sync that took longer, a write is acknowledged only when it is synced

# A put (key, value, None), a delete (key, None, None), or the delete of a range (start, None, end)
_Operation = tuple[bytes, bytes | None, bytes | None]
_Undo = list[tuple[bytes, bytes | None]]  # the keys of a batch and their former values


class LogDisk:
    """The content of a machine's disk; it outlives a process."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._values: dict[bytes, bytes] = {}
        self._unsynced: list[_Undo] = []  # by batch
        self._volatile: set[bytes] = set()  # keys whose last put is not synced

    def write(self, batch: list[_Operation]) -> None:
        """Write a batch: from here on only a power cut can lose it."""
        undo: _Undo = []
        for key, value, end in batch:
            if end is not None:
                for other in self.keys(key, end):
                    self._put(other, None, undo)
            else:
                self._put(key, value, undo)
        self._unsynced.append(undo)

    def _put(self, key: bytes, value: bytes | None, undo: _Undo) -> None:
        old = self._values.get(key)
        undo.append((key, old))
        self._set(key, old, value)
        if value is not None:
            self._volatile.add(key)

    def _set(self, key: bytes, old: bytes | None, value: bytes | None) -> None:
        if value is not None:
            self._values[key] = value
            if old is None:
                insort(self._keys, key)
        elif old is not None:
            del self._values[key], self._keys[bisect_left(self._keys, key)]

    def sync(self) -> None:
        """Make everything written so far durable."""
        self._unsynced.clear()
        self._volatile.clear()

    def cut_power(self, rng: "Random") -> None:
        """Lose some of the last unsynced batches."""
        kept = rng.randint(0, len(self._unsynced))
        for undo in reversed(self._unsynced[kept:]):
            for key, old in reversed(undo):
                self._set(key, self._values.get(key), old)
        self.sync()

    def get(self, key: bytes) -> bytes | None:
        """The key's last written value."""
        return self._values.get(key)

    def keys(self, start: bytes, end: bytes) -> list[bytes]:
        """The keys with start <= key < end, in order."""
        return self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, end)]

    def is_durable(self, key: bytes) -> bool:
        """True if a power cut would keep the key's present value."""
        return key not in self._volatile


class SimLogDatabase:
    """The simulated `LogDatabase`, with the methods that `minkad.replication` uses. It calls `on_put` with each staged
    key and value, and `on_delete` with the start and the end of each staged delete of a range.
    """

    def __init__(
        self,
        process: "Process",
        disk: LogDisk,
        on_put: Callable[[bytes, bytes], None],
        on_delete: Callable[[bytes, bytes], None],
    ) -> None:
        self.error: MinkaError | None = None
        self.on_failure: Callable[[MinkaError], None] | None = None
        self._process = process
        self._loop = process.loop
        self._disk = disk
        self._on_put = on_put
        self._on_delete = on_delete
        self._batch: list[_Operation] = []
        self._next: Sync | None = None
        self._next_written: Sync | None = None
        self._futures: dict[Sync, None] = {}  # the futures that are not done
        self._is_busy = False
        self._asked_at: float | None = None
        self._unsynced_since: float | None = None
        self._last_sync_s = 0.0

    def die(self) -> None:
        """Cancel all futures for which tasks wait, since the process ends."""
        for future in self._futures:
            asyncio.Future.cancel(future)

    # The interface of LogDatabase

    @property
    def stalled(self) -> bool:
        """True if the present sync takes longer than a slow disk would need."""
        return self._asked_at is not None and self._process.now() - self._asked_at > STALLED_S

    def put(self, key: bytes, value: bytes) -> None:
        """Stage a put."""
        self._batch.append((key, value, None))
        self._on_put(key, value)

    def delete(self, key: bytes) -> None:
        """Stage a delete."""
        self._batch.append((key, None, None))

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Stage the delete of a range."""
        self._batch.append((start, None, end))
        self._on_delete(start, end)

    def sync(self) -> asyncio.Future[None]:
        """Return a future. It is done when all writes that are staged before the end of this turn of the loop are
        durable.
        """
        if self._next is None:
            self._next = self._new_future()
        return self._next

    def write(self) -> asyncio.Future[None]:
        """Return a future. It is done when the operating system has all writes that are staged so far."""
        if self._next_written is None:
            self._next_written = self._new_future()
        return self._next_written

    def get(self, key: bytes) -> bytes | None:
        """The key's last written value."""
        return self._disk.get(key)

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False, limit: int = 0, max_bytes: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """Scan like `LogDatabase`."""
        keys = self._disk.keys(start, end)
        if reverse:
            keys.reverse()
        found: list[tuple[bytes, bytes]] = []
        size = 0
        for key in keys:
            value = self._disk.get(key)
            assert value is not None, key
            size += len(value)
            if found and max_bytes and size > max_bytes:
                break
            found.append((key, value))
            if len(found) == limit:
                break
        return found

    def last_keys(self, start: bytes, end: bytes, width: int) -> Iterator[bytes]:
        """Yield the last key of each group of keys with the same first `width` bytes, like `LogDatabase`."""
        yield from {key[:width]: key for key in self._disk.keys(start, end)}.values()

    def count(self, start: bytes, end: bytes) -> int:
        """The number of keys with start <= key < end."""
        return len(self._disk.keys(start, end))

    def damaged(self, what: str) -> MinkaError:
        """Fail because the log database is damaged; returns the error."""
        error = MinkaError(Code.CORRUPT_DATA, f"the log database is damaged: {what}")
        self.fail(error)
        return error

    def fail(self, error: MinkaError) -> None:
        """Let every later sync fail with this error."""
        if self.error is None and self._process.alive:
            self.error = error
            if self.on_failure is not None:
                self.on_failure(error)

    # Writing

    def _new_future(self) -> Sync:
        future = Sync(loop=asyncio.get_running_loop())
        if not self._process.alive:
            asyncio.Future.cancel(future)
            return future
        self._futures[future] = None
        future.add_done_callback(self._forget)
        if self.error is not None:
            future.set_exception(self.error)
            future.exception()
        elif not self._is_busy:
            self._loop.call_soon(self._start)
        return future

    def _forget(self, future: asyncio.Future[None]) -> None:
        self._futures.pop(future, None)  # type: ignore[call-overload]

    def _start(self) -> None:
        synced, written = self._next, self._next_written
        if self._is_busy or (synced is None and written is None) or not self._process.alive:
            return
        batch, self._batch = self._batch, []
        self._next = self._next_written = None
        self._process.point()
        self._disk.write(batch)
        self._process.point()
        if written is not None and self._acknowledges_written():
            if self._unsynced_since is None:
                self._unsynced_since = self._process.now()
                self._loop.call_later(_SYNC_DUE_S, self._sync_if_due)
            _done(written)
            if synced is None:
                return
        self._sync(synced, written)

    def _acknowledges_written(self) -> bool:
        """True if a write may be acknowledged before it is synced: see LogDatabase."""
        since = self._unsynced_since
        is_due = since is not None and self._process.now() - since >= _SYNC_DUE_S
        return not is_due and self._last_sync_s <= _SYNC_MAY_TAKE_S

    def _sync_if_due(self) -> None:
        if self._unsynced_since is not None and not self._is_busy and self._process.alive:
            self._sync(None, None)

    def _sync(self, *futures: Sync | None) -> None:
        began, seconds = self._process.now(), self._process.sync_time()
        if not seconds:
            self._synced(began, futures)
            return
        self._is_busy, self._asked_at = True, began
        self._loop.call_later(seconds, self._synced, began, futures)

    def _synced(self, began: float, futures: tuple[Sync | None, ...]) -> None:
        if not self._process.alive:
            return
        if self.stalled:
            self._process.stalled_until = self._process.world.now
        self._disk.sync()
        self._is_busy, self._asked_at, self._unsynced_since = False, None, None
        self._last_sync_s = self._process.now() - began
        self._process.point()
        for future in futures:
            if future is not None:
                _done(future)
        self._start()


def _done(future: Sync) -> None:
    if not future.done():
        future.set_result(None)
