"""Checkpoints: taken, shipped, put in place; never half."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rocksdict import Cache

from minka.errors import Code, MinkaError
from minka.wire import WriteBody
from minkad.storage import checkpoint
from minkad.storage.checkpoint import Checkpoint, CheckpointFile, Incoming
from minkad.storage.data_database import Applied, DataDatabase

KEYS = [b"%06d" % i for i in range(5000)]


def new(path: Path) -> DataDatabase:
    """With a small cache."""
    return DataDatabase(path, Cache(1 << 20))


async def filled(path: Path) -> DataDatabase:
    """Some of it in a table, some in memory."""
    data = new(path)
    data.write([WriteBody(KEYS[:3000], list(KEYS[:3000]))], Applied(3, 2))
    await data.flush()
    data.write([WriteBody(KEYS[3000:], list(KEYS[3000:]))], Applied(5, 2))
    return data


async def receive(incoming: Incoming, chunks: list[bytes]) -> list[int]:
    """All at once."""

    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return await incoming.write(stream())


async def read(taken: Checkpoint, chunk_bytes: int = 1000) -> tuple[list[bytes], list[int]]:
    """Content and checksums."""
    chunks, checksums = [], []
    async for chunk, checksum in taken.read(chunk_bytes):
        assert len(chunk) <= chunk_bytes
        chunks.append(chunk)
        if checksum is not None:
            checksums.append(checksum)
    return chunks, checksums


@pytest.mark.parametrize("chunk_bytes", [100, 4096, 1 << 20])
def test_the_copy_is_as_the_original_was(tmp_path: Path, chunk_bytes: int) -> None:
    """While that goes on."""

    async def scenario() -> None:
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
        copy.open()
        assert copy.applied == Applied(5, 2)
        assert copy.get(KEYS) == KEYS
        assert not (tmp_path / "out" / "1").exists()
        assert not (tmp_path / "in" / "1").exists()
        # The two are independent of each other.
        copy.write([WriteBody([KEYS[1]], [b"copy"])], Applied(6, 3))
        await copy.flush()
        assert data.get(KEYS[:2]) == [b"later", KEYS[1]]
        await copy.close()
        await data.close()

    asyncio.run(scenario())


def test_an_older_folder_is_replaced(tmp_path: Path) -> None:
    """Of the checkpoint, of what came, and of the database."""

    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_files_of_any_size(tmp_path: Path) -> None:
    """Empty ones, first, last and in between."""
    sizes = [0, 5, 0, 0, 1, 3, 0]
    files = [CheckpointFile(f"f{i}", size) for i, size in enumerate(sizes)]

    async def scenario() -> None:
        incoming = Incoming(tmp_path / "in", files)
        checksums = await receive(incoming, [b"ab", b"cdefgh", b"i"])
        assert len(checksums) == len(files)
        assert [(tmp_path / "in" / file.name).read_bytes() for file in files] == [
            b"", b"abcde", b"", b"", b"f", b"ghi", b"",
        ]  # fmt: skip

    asyncio.run(scenario())


def test_damage_on_the_way_is_noticed(tmp_path: Path) -> None:
    """By the checksum of the file."""

    async def scenario() -> None:
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

    asyncio.run(scenario())


@pytest.mark.parametrize("content", [[], [b"1234"], [b"123456"], [b"123", b"45", b"6"]])
def test_more_or_less_than_announced(tmp_path: Path, content: list[bytes]) -> None:
    """Is refused."""

    async def scenario() -> None:
        incoming = Incoming(tmp_path / "in", [CheckpointFile("a", 2), CheckpointFile("b", 3)])
        with pytest.raises(MinkaError, match="INVALID_ARGUMENT"):
            await receive(incoming, content)

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b"])
def test_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    """Are refused."""
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT"):
        Incoming(tmp_path, [CheckpointFile(name, 1)])
