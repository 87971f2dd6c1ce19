"""Checkpoints are taken, sent and received. A receiver puts a checkpoint in place as a whole or not at all."""

import asyncio
import gc
import threading
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from rocksdict import Cache

from minka.errors import Code, MinkaError
from minka.wire.kv_frames import WriteBody
from minkad.storage import checkpoint
from minkad.storage.applied import Applied
from minkad.storage.checkpoint import Checkpoint, CheckpointFile, Incoming
from minkad.storage.data_database import DataDatabase
from minkad.storage.rocks import MIB

KEYS = [b"%06d" % i for i in range(5000)]


def new(path: Path) -> DataDatabase:
    """A database with a small cache, at this path."""
    return DataDatabase(path, Cache(1 << 20))


async def filled(path: Path) -> DataDatabase:
    """A database with some of its rows in a table, and the others in memory."""
    data = new(path)
    data.write([WriteBody(KEYS[:3000], list(KEYS[:3000]))], Applied(3, 2))
    await data.flush()
    data.write([WriteBody(KEYS[3000:], list(KEYS[3000:]))], Applied(5, 2))
    return data


async def receive(incoming: Incoming, chunks: list[bytes]) -> list[int]:
    """Give all these chunks to `incoming`."""

    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return await incoming.write(stream())


async def read(taken: Checkpoint, chunk_bytes: int = 1000) -> tuple[list[bytes], list[int]]:
    """Read a checkpoint; returns its chunks and checksums."""
    chunks, checksums = [], []
    async for chunk, checksum in taken.read(chunk_bytes):
        assert len(chunk) <= chunk_bytes
        chunks.append(chunk)
        if checksum is not None:
            checksums.append(checksum)
    return chunks, checksums


@pytest.mark.parametrize("chunk_bytes", [100, 4096, 1 << 20])
async def test_a_copy_equals_the_original_at_the_time_of_the_checkpoint(tmp_path: Path, chunk_bytes: int) -> None:
    """The copy doesn't have the writes that the original takes while it is copied."""
    data = await filled(tmp_path / "source")
    taken = await checkpoint.take(data, tmp_path / "out" / "1")
    data.write([WriteBody([KEYS[0]], [b"later"])], Applied(6, 2))
    chunks, checksums = await read(taken, chunk_bytes)
    assert sum(map(len, chunks)) == taken.size
    incoming = Incoming(tmp_path / "in" / "1", taken.files)
    incoming.check(checksums, await receive(incoming, chunks))
    await incoming.install(tmp_path / "target" / "1")
    await taken.remove()
    copy = new(tmp_path / "target" / "1")
    await copy.open()
    assert copy.applied == Applied(5, 2)
    assert copy.get(KEYS) == KEYS
    assert not (tmp_path / "out" / "1").exists()
    assert not (tmp_path / "in" / "1").exists()
    # A write to the copy doesn't change the original.
    copy.write([WriteBody([KEYS[1]], [b"copy"])], Applied(6, 3))
    await copy.flush()
    assert data.get(KEYS[:2]) == [b"later", KEYS[1]]
    await copy.close()
    await data.close()


async def test_an_older_folder_is_replaced(tmp_path: Path) -> None:
    """Older files are removed from the sender's folder, the receiver's folder and the database's folder."""
    data = await filled(tmp_path / "source")
    for folder in ("out", "in", "target"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "000099.sst").write_bytes(b"old")
    taken = await checkpoint.take(data, tmp_path / "out")
    chunks, checksums = await read(taken)
    incoming = Incoming(tmp_path / "in", taken.files)
    incoming.check(checksums, await receive(incoming, chunks))
    await incoming.install(tmp_path / "target")
    assert sorted(file.name for file in (tmp_path / "target").iterdir()) == [file.name for file in taken.files]
    await data.close()


async def test_files_of_any_size_are_received(tmp_path: Path) -> None:
    """Some files are empty: the first one, the last one and some in between."""
    sizes = [0, 5, 0, 0, 1, 3, 0]
    files = [CheckpointFile(f"f{i}", size) for i, size in enumerate(sizes)]
    incoming = Incoming(tmp_path / "in", files)
    checksums = await receive(incoming, [b"ab", b"cdefgh", b"i"])
    assert len(checksums) == len(files)
    assert [(tmp_path / "in" / file.name).read_bytes() for file in files] == [
        b"", b"abcde", b"", b"", b"f", b"ghi", b"",
    ]  # fmt: skip


async def test_damage_on_the_way_is_noticed_by_the_checksum(tmp_path: Path) -> None:
    data = await filled(tmp_path / "source")
    taken = await checkpoint.take(data, tmp_path / "out")
    chunks, checksums = await read(taken)
    chunks[3] = bytes([chunks[3][0] ^ 1]) + chunks[3][1:]
    incoming = Incoming(tmp_path / "in", taken.files)
    found = await receive(incoming, chunks)
    with pytest.raises(MinkaError, match="CRC-32") as caught:
        incoming.check(checksums, found)
    assert caught.value.code is Code.CORRUPT_DATA
    await data.close()


@pytest.mark.parametrize("content", [[], [b"1234"], [b"123456"], [b"123", b"45", b"6"]])
async def test_content_longer_or_shorter_than_announced_is_refused(tmp_path: Path, content: list[bytes]) -> None:
    incoming = Incoming(tmp_path / "in", [CheckpointFile("a", 2), CheckpointFile("b", 3)])
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT"):
        await receive(incoming, content)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b"])
def test_file_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT"):
        Incoming(tmp_path, [CheckpointFile(name, 1)])


async def test_files_synced_before_a_failure_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were written but not synced are lost."""
    files = [CheckpointFile(name, 2 * MIB) for name in "abcde"]
    synced: list[int] = []

    def fsync(handle: int) -> None:
        if len(synced) == 2:
            raise OSError("Input/output error")
        synced.append(handle)

    monkeypatch.setattr("os.fsync", fsync)
    incoming = Incoming(tmp_path / "in", files)
    with pytest.raises(MinkaError, match=r"STORAGE_FAILED.*Input/output error"):
        await receive(incoming, [bytes(MIB)] * 10)
    assert incoming.finished() == dict.fromkeys("ab", zlib.crc32(bytes(2 * MIB)))


async def test_receiving_stops_at_once_after_a_cancellation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the cancellation, nothing is written to the folder: it may be removed, or the next try may use it."""
    files = [CheckpointFile(name, 2 * MIB) for name in "abc"]
    syncing, go_on = threading.Event(), threading.Event()
    synced: list[int] = []

    def fsync(handle: int) -> None:
        syncing.set()
        assert go_on.wait(10)
        synced.append(handle)

    monkeypatch.setattr("os.fsync", fsync)
    incoming = Incoming(tmp_path / "in", files)
    receiving = asyncio.create_task(receive(incoming, [bytes(MIB)] * 6))
    await asyncio.to_thread(syncing.wait, 10)
    receiving.cancel()
    asyncio.get_running_loop().call_soon(go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert list(incoming.finished()) == ["a", "b"][: len(synced)]
    assert synced, "the call waited for the sync under way"
    count = len(synced)
    await incoming.discard()
    assert not (tmp_path / "in").exists()
    assert len(synced) == count


async def test_a_reader_that_stops_early_leaves_nothing_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader stops before the end. Its checkpoint may be removed at once, and no error is logged."""
    (tmp_path / "a").write_bytes(b"content")
    chunks = Checkpoint(tmp_path, (CheckpointFile("a", 7), CheckpointFile("removed", 7))).read(MIB)
    assert isinstance(chunks, AsyncGenerator)
    assert await anext(chunks) == (b"content", zlib.crc32(b"content"))
    executor = asyncio.get_running_loop().run_in_executor
    # The executor got the read of the missing file before these calls. Once the calls have ended, the read has failed.
    await asyncio.gather(*(executor(None, bool) for _ in range(100)))
    await chunks.aclose()
    del chunks
    gc.collect()
    assert not caplog.records
