"""A mark beside the log database says where the log ends, so the database notices if a file has lost durable data."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minkad.storage import log_database
from minkad.storage.log_database import LogDatabase
from minkad.storage.log_mark import LogMark
from tests.integration.replication.node import until
from tests.unit.storage.crash import crashed_copy


async def grown(path: Path, writes: int) -> None:
    """Open the database, make this many writes, and stop the database."""
    db = LogDatabase.open(path / "log")
    for i in range(writes):
        db.put(b"%d/%d" % (db.starts, i), bytes(1000))
        await db.sync()
    db.close()


async def crashed(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that a crash would leave of a database with tables and a log. The mark covers all 20 writes."""
    monkeypatch.setattr(log_database, "_MARK_SOON_S", 0.0)
    (path / "live").mkdir()
    db = LogDatabase.open(path / "live" / "log")
    for i in range(20):
        db.put(b"%d" % i, bytes(1000))
        await db.sync()
        if i == 10:
            db._db.flush()
    await until(lambda: marked(path / "live") == 20)
    copy = crashed_copy(path / "live", path / "crashed")
    db.close()
    return copy


def marked(path: Path) -> int:
    mark = LogMark.load(path / "log.mark")
    return mark.sequence if mark is not None else 0


def refusal(path: Path, *, must_exist: bool = False) -> str:
    with pytest.raises(MinkaError) as caught:
        LogDatabase.open(path / "log", must_exist=must_exist)
    assert caught.value.code is Code.CORRUPT_DATA
    return caught.value.message


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("harm", [Path.unlink, cut, zero])
@pytest.mark.parametrize("pattern", ["*.log", "MANIFEST-*", "CURRENT", "*.sst"])
async def test_after_a_crash_a_missing_or_damaged_file_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, harm: Callable[[Path], None]
) -> None:
    """A second start is refused like the first one, although RocksDB cleans up files at the first start."""
    path = await crashed(tmp_path, monkeypatch)
    (file,) = (path / "log").glob(pattern)
    harm(file)
    assert "log" in refusal(path)
    assert "log" in refusal(path)


async def test_a_manifest_without_its_end_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB takes the shorter manifest for an older one, and would open the database without its newest table."""
    path = await crashed(tmp_path, monkeypatch)
    (manifest,) = (path / "log").glob("MANIFEST-*")
    manifest.write_bytes(manifest.read_bytes()[:-20])
    assert "were written" in refusal(path)


async def test_an_undamaged_copy_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = await crashed(tmp_path, monkeypatch)
    db = LogDatabase.open(path / "log", must_exist=True)
    assert db.count(b"", b"\xff") == 20
    assert db.starts == 2
    db.close()


async def test_an_older_copy_of_the_folder_is_noticed(tmp_path: Path) -> None:
    await grown(tmp_path, 3)
    shutil.copytree(tmp_path / "log", tmp_path / "old")
    await grown(tmp_path, 3)
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "old").rename(tmp_path / "log")
    assert "was in use already" in refusal(tmp_path)


async def test_after_a_clean_stop_the_mark_covers_the_last_write(tmp_path: Path) -> None:
    """No write is torn in a clean stop, so the next start needs every write, even the last one."""
    await grown(tmp_path, 5)
    assert marked(tmp_path) == 5


async def test_a_missing_folder_or_mark_is_noticed(tmp_path: Path) -> None:
    await grown(tmp_path, 1)
    shutil.copytree(tmp_path, tmp_path / "copy")
    shutil.rmtree(tmp_path / "log")
    assert "does not exist" in refusal(tmp_path)
    (tmp_path / "copy" / "log.mark").unlink()
    assert "log.mark is gone" in refusal(tmp_path / "copy", must_exist=True)


async def test_one_slot_of_the_mark_may_be_damaged(tmp_path: Path) -> None:
    """The mark is written to its two slots in turn. A crash may tear one slot, so the other one is enough for a start.
    If both are damaged, the start is refused.
    """
    await grown(tmp_path, 1)
    path = tmp_path / "log.mark"
    content = path.read_bytes()
    for place in (20, 532):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        mark = LogMark.load(path)
        assert mark is not None
        assert mark.start == 1
    path.write_bytes(bytes(len(content)))
    assert "log.mark is damaged" in refusal(tmp_path)


async def test_damage_found_by_a_read_ends_the_node(tmp_path: Path) -> None:
    """The node must not write to a damaged log database, since it has votes and acknowledged writes."""
    db = LogDatabase.open(tmp_path / "log")
    for i in range(100):
        db.put(b"%03d" % i, random.Random(i).randbytes(100))
    await db.sync()
    db._db.flush()
    (table,) = (tmp_path / "log").glob("*.sst")
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0x10
    table.write_bytes(content)
    told: list[MinkaError] = []
    db.on_failure = told.append
    with pytest.raises(MinkaError) as caught:
        db.scan(b"0", b"1")
    assert told == [caught.value]
    assert table.name in caught.value.message
    with pytest.raises(MinkaError, match="CORRUPT_DATA"):
        await db.sync()
    db.close()


async def test_a_kill_while_the_first_mark_is_written_leaves_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is durable yet, so the next start begins again."""

    class KilledError(Exception):
        pass

    def killed(path: Path, _: bytes) -> int:
        path.touch()
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", killed)
        with pytest.raises(KilledError):
            LogMark.create(tmp_path / "log.mark")
    await grown(tmp_path, 1)
    await grown(tmp_path, 1)
    assert marked(tmp_path) > 0
