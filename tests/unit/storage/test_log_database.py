"""The log database: several writes share a sync, a failure ends the database, and damage is found."""

import asyncio
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from minka.errors import Code, MinkaError
from minkad.storage import log_database
from minkad.storage.log_database import LogDatabase
from tests.unit.storage.crash import crashed_copy


@contextmanager
def opened(path: Path) -> Iterator[LogDatabase]:
    db = LogDatabase.open(path)
    try:
        yield db
    finally:
        db.close()


def syncs_of(db: LogDatabase) -> list[float]:
    """Return a list that gets the duration of each sync from now on."""
    syncs: list[float] = []
    db.on_sync = syncs.append
    return syncs


async def test_synced_writes_survive_a_crash(tmp_path: Path) -> None:
    """Instead of a crash, the test opens a copy of the files, made while the database was open."""
    with opened(tmp_path / "log") as db:
        db.put(b"a", b"1")
        db.put(b"b", b"2")
        db.delete(b"a")
        await db.sync()
        db.put(b"c", b"3")  # never synced
        crashed_copy(tmp_path / "log", tmp_path / "crashed")
    with opened(tmp_path / "crashed") as db:
        assert db.scan(b"", b"z") == [(b"b", b"2")]


async def test_writes_of_one_turn_of_the_loop_share_a_sync(tmp_path: Path) -> None:
    """The first call of `sync` also covers the writes that are staged later in the same turn of the loop."""
    with opened(tmp_path) as db:
        futures, syncs = [], syncs_of(db)
        for i in range(100):
            db.put(b"%d" % i, b"")
            futures.append(db.sync())
        await asyncio.gather(*futures)
        assert len(syncs) == 1
        assert len(db.scan(b"", b"z")) == 100


async def test_writes_staged_during_a_sync_share_the_next_one(tmp_path: Path) -> None:
    """Only one sync is under way at a time. The next sync covers all writes that were staged during this one."""
    with opened(tmp_path) as db:
        syncs = syncs_of(db)

        async def writer(number: int) -> None:
            for i in range(20):
                db.put(b"%d-%d" % (number, i), b"")
                await db.sync()
                assert db.get(b"%d-%d" % (number, i)) == b""

        await asyncio.gather(*(writer(number) for number in range(50)))
        assert 20 <= len(syncs) <= 60


async def test_a_cancelled_waiter_does_not_cancel_the_sync_for_others(tmp_path: Path) -> None:
    with opened(tmp_path) as db:

        async def wait() -> None:
            await db.sync()

        db.put(b"a", b"1")
        impatient, patient = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        impatient.cancel()
        await patient
        with pytest.raises(asyncio.CancelledError):
            await impatient


@pytest.mark.parametrize("asks", [LogDatabase.sync, LogDatabase.write])
async def test_no_task_waits_for_a_closed_database(
    tmp_path: Path, asks: Callable[[LogDatabase], asyncio.Future[None]]
) -> None:
    """The database is closed before or during a write. All calls end, those before the close and those after it."""
    for turns in range(2):
        db = LogDatabase.open(tmp_path / "log")
        futures = [asks(db)]
        for _ in range(turns):
            await asyncio.sleep(0)
            futures.append(asks(db))
        db.close()
        futures.append(asks(db))
        _, left = await asyncio.wait(futures, timeout=10)
        assert not left
        codes = [future.exception() and future.exception().code for future in futures]  # type: ignore[union-attr]
        assert codes == [None] * turns + [Code.SHUTTING_DOWN] * 2, turns


async def test_the_last_keys_of_groups(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        for key in (b"o9z", b"p1a", b"p1b", b"p3a", b"p4a", b"p4c", b"p4d", b"q1a"):
            db.put(key, b"")
        db.delete(b"p4d")
        db.delete_range(b"p3", b"p4")
        await db.sync()
        assert list(db.last_keys(b"p", b"q", 2)) == [b"p1b", b"p4c"]
        assert list(db.last_keys(b"r", b"s", 2)) == []


async def test_scans(tmp_path: Path) -> None:
    """A scan has two bounds, a direction and a limit."""
    with opened(tmp_path) as db:
        for i in range(10):
            db.put(b"k%d" % i, b"x" * 10)
        db.delete_range(b"k0", b"k2")
        await db.sync()

        def keys(*args: bytes, **kwargs: Any) -> list[int]:
            return [int(key[1:]) for key, _ in db.scan(*args, **kwargs)]

        assert keys(b"k", b"l") == [2, 3, 4, 5, 6, 7, 8, 9]
        assert keys(b"k3", b"k6") == [3, 4, 5]
        assert keys(b"k3", b"k6", reverse=True) == [5, 4, 3]
        assert keys(b"k", b"l", reverse=True, limit=1) == [9]
        assert keys(b"k", b"l", limit=2) == [2, 3]
        assert keys(b"k", b"l", max_bytes=35) == [2, 3, 4]
        assert keys(b"k", b"l", max_bytes=1) == [2]
        assert keys(b"x", b"z") == []


@pytest.fixture
def small_files() -> Iterator[None]:
    """Refuse writes beyond 1 MiB of a file, like a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * 1024, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, old)


@pytest.mark.usefixtures("small_files")
async def test_a_full_disk_fails_the_database_for_good(tmp_path: Path) -> None:
    """Each task that waits gets the error, and so does each later call. The database tells its owner once."""
    with opened(tmp_path / "log") as db:
        failures: list[MinkaError] = []
        db.on_failure = failures.append
        db.put(b"fits", b"1")
        await db.sync()
        db.put(b"too large", b"x" * 2 * 1024 * 1024)
        first = db.sync()
        await asyncio.sleep(0)
        db.put(b"behind", b"2")
        second = db.sync()
        with pytest.raises(MinkaError, match=r"STORAGE_FAILED.*log"):
            await first
        for _ in range(2):
            with pytest.raises(MinkaError) as caught:
                await second
            assert caught.value.code is Code.STORAGE_FAILED
            second = db.sync()
        assert len(failures) == 1
        assert db.error is failures[0]


async def write_some(path: Path) -> Path:
    """Make a log of 1,000 entries, as a crash would leave it; returns the path of its WAL."""
    with opened(path) as db:
        for i in range(1000):
            db.put(b"%04d" % i, b"x" * 100)
        await db.sync()
        crashed_copy(path, path.with_name("crashed"))
    return max(path.with_name("crashed").glob("*.log"), key=lambda file: file.stat().st_size)


async def test_a_torn_tail_is_cut_off(tmp_path: Path) -> None:
    """The torn write was interrupted by a power cut, before the node could acknowledge the write."""
    with opened(tmp_path / "log") as db:
        db.put(b"acknowledged", b"1")
        await db.sync()
        db.put(b"torn", b"2" * 1000)
        await db.sync()
        crashed_copy(tmp_path / "log", tmp_path / "crashed")
    wal = max((tmp_path / "crashed").glob("*.log"), key=lambda file: file.stat().st_size)
    wal.write_bytes(wal.read_bytes()[:-100])
    with opened(tmp_path / "crashed") as db:
        assert db.scan(b"", b"z") == [(b"acknowledged", b"1")]


async def test_a_database_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    """If the damaged entry were skipped, everything after it would be lost silently."""
    wal = await write_some(tmp_path / "log")
    content = bytearray(wal.read_bytes())
    content[len(content) // 2] ^= 1
    wal.write_bytes(content)
    with pytest.raises(MinkaError, match="crashed") as caught:
        LogDatabase.open(tmp_path / "crashed")
    assert caught.value.code is Code.CORRUPT_DATA


async def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """RocksDB's lock refuses the second process."""
    with opened(tmp_path), pytest.raises(MinkaError, match="STORAGE_FAILED"):
        LogDatabase.open(tmp_path)


async def test_an_unsynced_write_survives_a_kill_and_is_synced_soon(tmp_path: Path) -> None:
    """`write` doesn't wait for a sync. Soon after it, one sync covers this write and others."""
    with opened(tmp_path / "log") as db:
        syncs = syncs_of(db)
        db.put(b"a", b"1")
        await db.write()
        assert not syncs
        crashed_copy(tmp_path / "log", tmp_path / "crashed")
        async with asyncio.timeout(5):
            while not syncs:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        db.put(b"b", b"2")
        await asyncio.gather(db.write(), db.sync())
        assert len(syncs) == 2
    with opened(tmp_path / "crashed") as db:
        assert db.scan(b"", b"z") == [(b"a", b"1")]


class HeldSyncs:
    """Holds back the syncs of a database. The test also moves the database's clock."""

    def __init__(self, db: LogDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.begun, self.free = threading.Event(), threading.Event()
        flush = db.flush_wal
        monkeypatch.setattr(db, "_clock", lambda: self.now)
        monkeypatch.setattr(db, "flush_wal", lambda: self._held(flush))

    def _held(self, flush: Callable[[], None]) -> None:
        self.begun.set()
        assert self.free.wait(20)
        flush()

    async def until_begun(self) -> None:
        await asyncio.to_thread(self.begun.wait, 20)
        assert self.begun.is_set()


async def is_left_waiting(future: asyncio.Future[None]) -> bool:
    """True if the future isn't done after 0.1 s. On a slow machine, the test may miss a bug, but it never fails without
    one.
    """
    _, left = await asyncio.wait([future], timeout=0.1)
    return bool(left)


async def test_no_write_is_acknowledged_while_an_earlier_one_is_unsynced_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync of the first write is due, so the second write waits for this sync. Otherwise a power cut could lose
    more than the writes of the last 100 ms.
    """
    with opened(tmp_path) as db:
        held = HeldSyncs(db, monkeypatch)
        db.put(b"first", b"1")
        await db.write()  # acknowledged, but not synced
        held.now = 0.06
        assert db.unsynced_s() == pytest.approx(0.06)
        db.put(b"second", b"2")
        second = db.write()
        await held.until_begun()
        assert await is_left_waiting(second)
        held.free.set()
        await second
        assert db.unsynced_s() == 0.0


async def test_writes_wait_for_their_sync_while_syncs_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a slow sync, a write is acknowledged only when it is synced: if the next sync is slow, too, the write stays
    unsynced for longer than promised.
    """
    with opened(tmp_path) as db:
        held = HeldSyncs(db, monkeypatch)
        slow = db.sync()
        await held.until_begun()
        held.now = 0.4
        held.free.set()
        await slow
        held.begun.clear()
        held.free.clear()
        write = db.write()
        await held.until_begun()
        assert await is_left_waiting(write)
        held.free.set()
        await write  # this sync was quick, so the next write needn't wait for a sync
        syncs = syncs_of(db)
        await db.write()
        assert not syncs, "it waited for no sync"


async def test_writes_are_synced_even_while_the_loop_stands_still(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        db.put(b"a", b"1")
        await db.write()
        until = time.monotonic() + 10
        while db.unsynced_s() and time.monotonic() < until:
            time.sleep(0.005)  # noqa: ASYNC251 - the loop is to stand still
        assert db.unsynced_s() == 0.0


async def test_a_disk_counts_as_stalled_while_the_write_of_the_mark_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread writes the log and its mark (see log_mark.py), so staged writes wait while the mark is written."""
    goes_on, began = threading.Event(), threading.Event()

    def write(*_: object) -> None:
        began.set()
        goes_on.wait(10)

    monkeypatch.setattr(log_database, "_MARK_SOON_S", 0.0)
    monkeypatch.setattr(log_database, "STALLED_S", 0.05)
    with opened(tmp_path / "log") as db:
        monkeypatch.setattr(db._mark, "write", write)
        db.put(b"a", b"1")
        await db.sync()
        await asyncio.to_thread(began.wait, 10)
        while not db.stalled:  # noqa: ASYNC110 - no event: only time has to pass
            await asyncio.sleep(0.005)
        assert db.busy_since is not None
        goes_on.set()
        while db.stalled:  # noqa: ASYNC110 - no event: a thread changes it
            await asyncio.sleep(0.005)
