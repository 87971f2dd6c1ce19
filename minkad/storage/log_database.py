"""The log database of a node: the coordinator's Raft log and every partition's log, made durable together."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, Self

from rocksdict import DBRecoveryMode, Options, Rdict, WriteBatch

from minka.bulk.sst_files import table_options
from minka.errors import Code, MinkaError
from minkad.process.failpoints import failpoint
from minkad.storage.log_mark import LogMark
from minkad.storage.rocks import MIB, base_options, count, is_stalled, last_keys, open_database, pairs, storage_error

_WRITE_BUFFER_BYTES: Final = 64 * MIB
_WRITE_BUFFERS: Final = 4
STALLED_S: Final = 1.0  # a disk whose write or sync takes longer counts as not answering
_STALL_POLL_S: Final = 0.001
# `write` promises that acknowledged data is on the disk after 100 ms: a sync is due once the operating system alone has
# had the data for 50 ms, and the sync may take 50 ms.
_SYNC_DUE_S: Final = 0.05
_SYNC_MAY_TAKE_S: Final = 0.05
_MARK_SOON_S: Final = 1.0  # from a sync to the mark that covers it


class Sync(asyncio.Future[None]):
    """Done when a batch is durable, or written. Many callers share it, so a cancelled caller doesn't cancel it."""

    def cancel(self, msg: object = None) -> bool:
        return False


_Work = tuple[WriteBatch, Sync | None, Sync | None]  # the batch, and the futures of `sync` and of `write`


class LogDatabase:
    """One writer, group commit: changes staged while one sync is in flight join the next sync.

    Call every method on the loop's thread, except where its docstring allows any thread. Reads see all changes that
    `sync` has made durable; they may or may not see later staged changes. After a failed write, nobody knows the state
    of the disk. So every later `sync` fails with the error of that write, `on_failure` is called once, and the node has
    to stop.
    """

    def __init__(self, path: Path, db: Rdict, mark: LogMark, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.starts = mark.start  # the number of this start: see `LogMark.start`
        self.on_failure: Callable[[MinkaError], None] | None = None
        self.on_sync: Callable[[float], None] = lambda _: None  # called with the seconds of each sync
        self._db = db
        self._clock = clock
        self._mark = mark
        self._batch = WriteBatch(raw_mode=True)  # the staged changes
        self._next: Sync | None = None  # for the callers of `sync` who wait for the staged changes
        self._next_written: Sync | None = None  # for the callers of `write` who wait for the staged changes
        self._writing = False  # a batch is on its way to the disk
        self._error: MinkaError | None = None  # once set, it stays
        # Only the writing thread sets this time; other threads read it.
        self._busy_since: float | None = None
        self._asked_at: float | None = None  # the time of a request to the disk that isn't answered yet
        self._unsynced_since: float | None = None  # the time when the oldest unsynced write was acknowledged
        self._last_sync_s = 0.0  # the duration of the last sync
        self._synced = mark.sequence  # RocksDB's number of the last write that is certainly durable
        self._mark_due: float | None = None  # when to mark the durable end; None: no sync since the last mark
        self._work: SimpleQueue[_Work | None] = SimpleQueue()  # for the writing thread; None ends it
        self._thread = threading.Thread(target=self._write_loop, name="log-sync", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, path: Path, *, must_exist: bool = False) -> Self:
        """Open the database, or create it. Raises CORRUPT_DATA for a damaged log, or if there is no mark although it
        `must_exist`; STORAGE_FAILED for anything else, such as another process that has the database open. A torn tail,
        which nobody has acknowledged, isn't damage: RocksDB truncates it.
        """
        mark_path = path.with_name(f"{path.name}.mark")
        mark = LogMark.load(mark_path)
        if mark is None and must_exist:
            raise MinkaError(Code.CORRUPT_DATA, f"{mark_path} is gone")
        options = _options()
        options.create_if_missing(mark is None and not any(path.glob("*.sst")))
        logs = ", ".join(sorted(file.name for file in path.glob("*.log"))) or "no *.log is there"
        if mark is not None:
            mark.check_manifest(path)
        path.mkdir(parents=True, exist_ok=True)
        try:
            db = open_database(path, options)
        except Exception as error:
            raise storage_error(error, f"opening the log database {path} ({logs})") from error
        try:
            found = db.latest_sequence_number()
            if mark is not None:
                mark.check_sequence(path, found, logs)
            else:
                mark = LogMark.create(mark_path)
            mark.started(path, found)
            return cls(path, db, mark)
        except OSError as error:
            db.close()
            raise storage_error(error, f"writing {mark_path}") from error
        except MinkaError:
            db.close()
            raise

    def close(self) -> None:
        """Finish the write in flight and close. Changes staged without a `sync` are dropped, and callers that wait for
        another write get SHUTTING_DOWN.

        Raises STORAGE_FAILED, but not for a database that has failed already.
        """
        self._work.put(None)
        self._thread.join()
        has_failed = self._error is not None
        if not has_failed:
            self._error = MinkaError(Code.SHUTTING_DOWN, f"{self.path} is closed")
            self._fail_next()
        try:
            sequence = self._db.latest_sequence_number()
            self._db.close()
            if not has_failed:
                self._mark.write(self.path, sequence)  # the exact end
        except Exception as error:
            if not has_failed:
                raise storage_error(error, f"closing the log database {self.path}") from error

    def forget_start(self) -> None:
        """Don't count this start, which the cluster has refused. The cluster refuses an older copy of the directory
        because the copy has counted fewer starts; if refused starts counted, enough of them would let the copy in.
        """
        with suppress(OSError):  # then just this one refused start stays counted
            self._mark.forget_start()

    @property
    def error(self) -> MinkaError | None:
        """The reason why the database has failed; None while it has not."""
        return self._error

    @property
    def busy_since(self) -> float | None:
        """When the running write, sync or mark began, by a monotonic clock; None without one. For any thread."""
        return self._busy_since

    @property
    def stalled(self) -> bool:
        """True if the disk hasn't answered a request for more than STALLED_S: the node can make nothing durable. The
        time in which a write waits for RocksDB's flushes doesn't count: a disk that is busy with flushes answers.
        """
        since = self._asked_at
        return since is not None and self._clock() - since > STALLED_S

    def unsynced_s(self) -> float:
        """The age, in seconds, of the oldest acknowledged write that a power cut would lose, because it isn't synced; 0
        if everything is synced.
        """
        since = self._unsynced_since
        return 0.0 if since is None else self._clock() - since

    def put(self, key: bytes, value: bytes) -> None:
        """Stage a value; the next `sync` makes it durable."""
        self._batch[key] = value

    def delete(self, key: bytes) -> None:
        """Stage the deletion of a key; the next `sync` makes it durable."""
        self._batch.delete(key)

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Stage the deletion of start <= key < end."""
        self._batch.delete_range(start, end)

    def sync(self) -> asyncio.Future[None]:
        """A future that is done when all changes staged until the end of this turn of the loop are durable. All
        callers that wait for one batch share a future. It fails with STORAGE_FAILED or CORRUPT_DATA.
        """
        if self._next is not None:
            return self._next
        self._next = future = Sync(loop=asyncio.get_running_loop())
        self._start_soon(future)
        return future

    def write(self) -> asyncio.Future[None]:
        """Like `sync`, but done when the operating system has the data, which then survives the end of the process, but
        not a power cut within the next 100 ms. While syncs are too slow for this, `write` waits for the sync.
        """
        if self._next_written is not None:
            return self._next_written
        self._next_written = future = Sync(loop=asyncio.get_running_loop())
        self._start_soon(future)
        return future

    def _start_soon(self, future: Sync) -> None:
        if self._error is not None:
            self._fail_next()
        elif not self._writing:
            # Begin at the end of this turn of the loop, so that other changes of this turn can join.
            future.get_loop().call_soon(self._start_write)

    def get(self, key: bytes) -> bytes | None:
        """The value of the key; None if the key doesn't exist. Raises CORRUPT_DATA, STORAGE_FAILED."""
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._unreadable(error) from error
        return value

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False, limit: int = 0, max_bytes: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """The pairs with start <= key < end in order: at most `limit` pairs, with at most `max_bytes` of values (0: no
        limit). The first pair is returned even if its value is larger. Raises CORRUPT_DATA, STORAGE_FAILED.
        """
        found: list[tuple[bytes, bytes]] = []
        size = 0
        try:
            for pair in pairs(self._db, start, end, reverse):
                size += len(pair[1])
                if found and max_bytes and size > max_bytes:
                    break
                found.append(pair)
                if len(found) == limit:
                    break
        except Exception as error:
            raise self._unreadable(error) from error
        return found

    def last_keys(self, start: bytes, end: bytes, width: int) -> Iterator[bytes]:
        """The last key of each group of keys that have equal first `width` bytes, and at most eight bytes more.

        Raises CORRUPT_DATA, STORAGE_FAILED.
        """
        try:
            yield from last_keys(self._db, start, end, width)
        except Exception as error:
            raise self._unreadable(error) from error

    def count(self, start: bytes, end: bytes) -> int:
        """The number of keys with start <= key < end. Reads every block that has such keys, and compares its checksum.

        Raises CORRUPT_DATA, STORAGE_FAILED.
        """
        try:
            return count(self._db, start, end)
        except Exception as error:
            raise self._unreadable(error) from error

    def damaged(self, what: str) -> MinkaError:
        """Note that something is missing, so nobody can rely on this database: see `fail`. Returns the error, for the
        caller to raise.
        """
        error = MinkaError(Code.CORRUPT_DATA, f"the log database {self.path} is damaged: {what}")
        self.fail(error)
        return error

    def _unreadable(self, error: Exception) -> MinkaError:
        failure = storage_error(error, f"reading the log database {self.path}")
        if failure.code is Code.CORRUPT_DATA:
            self.fail(failure)
        return failure

    def fail(self, error: MinkaError) -> None:
        """Make every later `sync` fail with `error`. The node can't go on: nobody can trust its disk any longer, or it
        lacks something essential.
        """
        if self._error is not None:
            return
        self._error = error
        if not self._writing:
            self._fail_next()
        if self.on_failure is not None:
            self.on_failure(error)

    def _fail_next(self) -> None:
        assert self._error is not None
        futures = (self._next, self._next_written)
        self._next = self._next_written = None
        for future in futures:
            _fail(future, self._error)

    def _start_write(self) -> None:
        synced, written = self._next, self._next_written
        if (synced is None and written is None) or self._writing:
            return
        batch, self._batch = self._batch, WriteBatch(raw_mode=True)
        self._next, self._next_written, self._writing = None, None, True
        self._work.put((batch, synced, written))

    # On the thread

    def _write_loop(self) -> None:
        loop: asyncio.AbstractEventLoop | None = None
        while True:
            self._mark_if_due()
            try:
                work = self._work.get(timeout=self._until_due())
            except Empty:
                self._sync_if_due(loop)
                continue
            if work is None:
                return
            first = work[1] or work[2]
            assert first is not None, "nobody waits for this"
            loop = first.get_loop()
            self._store(loop, *work)

    def _until_due(self) -> float | None:
        """Seconds until the thread itself has to sync, or to mark the durable end; None if neither is due."""
        sync_due = None if self._unsynced_since is None else self._unsynced_since + _SYNC_DUE_S
        due = [at for at in (sync_due, self._mark_due) if at is not None]
        return max(0.0, min(due) - self._clock()) if due else None

    def _mark_if_due(self) -> None:
        """Mark the durable end, at most once a second. By the mark, a start can tell if something is missing."""
        if self._mark_due is not None and self._clock() >= self._mark_due:
            self._mark_due = None
            self._busy_since = self._asked_at = self._clock()  # staged changes also wait for this
            with suppress(OSError):  # if the disk fails, the next sync reports it
                self._mark.write(self.path, self._synced)
            self._busy_since = self._asked_at = None

    def _sync_if_due(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if self._unsynced_since is not None and self._clock() >= self._unsynced_since + _SYNC_DUE_S:
            assert loop is not None, "something is not synced, and was never written"
            self._sync_unsynced(loop)

    def _sync_unsynced(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sync unsynced writes, even if the loop is blocked: the 100 ms don't wait for the loop."""
        error = None
        started = self._busy_since = self._clock()
        try:
            self._sync()
        except Exception as failure:  # noqa: BLE001 - goes to the owner
            error = storage_error(failure, f"writing the log database {self.path}")
            self._unsynced_since = None  # nobody knows what is on the disk; don't try again
        self._busy_since = None
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finish_sync, error, self._clock() - started)

    def _store(
        self, loop: asyncio.AbstractEventLoop, batch: WriteBatch, synced: Sync | None, written: Sync | None
    ) -> None:
        started = self._busy_since = self._clock()
        error, is_synced = None, False
        try:
            self._write(batch)
            if written is not None and self._will_be_synced_in_time():
                if self._unsynced_since is None:
                    self._unsynced_since = self._clock()
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_done, written)
                is_synced = synced is not None
            else:
                is_synced = True
            if is_synced:
                self._sync()
        except Exception as failure:  # noqa: BLE001 - goes to the callers that wait
            error = storage_error(failure, f"writing the log database {self.path}")
        self._busy_since = None
        if not loop.is_closed():
            seconds = self._clock() - started if is_synced else None
            loop.call_soon_threadsafe(self._finish_write, synced, written, error, seconds)

    def _will_be_synced_in_time(self) -> bool:
        """True if a write may be acknowledged before it is synced. False while a sync is due, and after a slow sync:
        the write could stay unsynced for longer than the promised 100 ms.
        """
        since = self._unsynced_since
        is_due = since is not None and self._clock() - since >= _SYNC_DUE_S
        return not is_due and self._last_sync_s <= _SYNC_MAY_TAKE_S

    def _write(self, batch: WriteBatch) -> None:
        while is_stalled(self._db):
            time.sleep(_STALL_POLL_S)
        self._asked_at = self._clock()
        self._db.write(batch)
        self._asked_at = None

    @failpoint("log.sync")
    def flush_wal(self) -> None:
        """Sync the written data; for the writing thread. This releases the GIL; RocksDB's `write` with sync doesn't."""
        self._db.flush_wal(sync=True)

    def _sync(self) -> None:
        started = self._asked_at = self._clock()
        self.flush_wal()
        self._asked_at = None
        self._unsynced_since = None
        self._last_sync_s = self._clock() - started
        self._synced = self._db.latest_sequence_number()
        if self._mark_due is None:
            self._mark_due = self._clock() + _MARK_SOON_S

    # On the loop

    def _finish_write(
        self, synced: Sync | None, written: Sync | None, error: MinkaError | None, seconds: float | None
    ) -> None:
        """`seconds`: the duration of write and sync; None without a sync."""
        self._writing = False
        if error is not None:
            _fail(synced, error)
            _fail(written, error)
            self.fail(error)
        elif seconds is not None:
            self.on_sync(seconds)
            for future in (synced, written):
                if future is not None:
                    _done(future)
        if self._error is not None:
            self._fail_next()
        else:
            self._start_write()

    def _finish_sync(self, error: MinkaError | None, seconds: float) -> None:
        if error is not None:
            self.fail(error)
        else:
            self.on_sync(seconds)


def _done(future: Sync) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: Sync | None, error: MinkaError) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
        future.exception()  # so asyncio doesn't warn if nobody waits for the future


def _options() -> Options:
    options = base_options(_WRITE_BUFFER_BYTES, _WRITE_BUFFERS)
    options.set_block_based_table_factory(table_options())
    # RocksDB truncates a torn last record, which nobody has acknowledged, and refuses a log with damage before it.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    return options
