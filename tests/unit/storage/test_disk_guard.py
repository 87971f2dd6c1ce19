"""The disk guard: a thread that ends the process if the disk hangs. Such a process can't end gracefully."""

import asyncio
import queue
import threading
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minkad.storage.disk_guard import DiskGuard
from minkad.storage.log_database import LogDatabase


async def test_a_disk_that_does_not_answer_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard ends the process even if the event loop hangs. It does nothing while the disk answers."""
    free = threading.Event()
    ends: queue.SimpleQueue[MinkaError] = queue.SimpleQueue()
    db = LogDatabase.open(tmp_path / "log")
    guard = DiskGuard(db, 0.3, ends.put)
    guard.start()
    for _ in range(50):
        await db.sync()
    assert ends.empty()
    monkeypatch.setattr(db, "flush_wal", lambda: free.wait(20))
    sync = db.sync()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    error = ends.get(timeout=20)  # this call blocks the loop on purpose
    assert error.code is Code.STORAGE_FAILED
    assert f"{tmp_path / 'log'}: the disk has not answered for 0.3 s" in error.message
    free.set()
    await sync
    db.close()


async def test_a_node_that_does_not_end_after_a_failure_is_ended(tmp_path: Path) -> None:
    """The guard ends the process with the error of the log database."""
    ends: queue.SimpleQueue[MinkaError] = queue.SimpleQueue()
    db = LogDatabase.open(tmp_path / "log")
    guard = DiskGuard(db, 3600, ends.put)
    guard.start()
    failure = MinkaError(Code.STORAGE_FAILED, "the disk fails")
    db.fail(failure)
    assert ends.get(timeout=20) is failure
    db.close()
