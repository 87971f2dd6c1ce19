"""Every file of a partition's database is damaged in every way. Reads are right or raise CORRUPT_DATA, and a new
database can replace the damaged one in the same process.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
from rocksdict import Cache

from minka.errors import Code, MinkaError
from minka.wire.kv_frames import WriteBody
from minkad.storage.applied import Applied
from minkad.storage.checkpoint import remove_folder, take
from minkad.storage.data_database import DataDatabase
from minkad.storage.rocks import data_error
from tests.unit.storage.damages import (
    a_file,
    a_folder,
    a_link_to_itself,
    deleted,
    emptied,
    flipped,
    flipped_at_its_end,
    flipped_at_its_start,
    truncated,
    zeroed,
)

MIB: Final = 1024 * 1024
KEYS: Final = [b"key %04d" % i for i in range(300)]


OF_FOLDERS: Final = (deleted, a_file, a_link_to_itself)
DAMAGES: Final = (
    flipped, flipped_at_its_start, flipped_at_its_end, truncated, emptied, zeroed, deleted, a_folder, a_link_to_itself,
)  # fmt: skip
OF_RARELY_READ: Final = (zeroed, deleted, a_folder, a_link_to_itself)
CLOSED: Final = [
    *((file, damage) for file in ("CURRENT", "MANIFEST-*", "*.sst") for damage in DAMAGES),
    *(
        (file, damage)
        for file in ("OPTIONS-*", "IDENTITY", "LOCK", "LOG", "*.json", "*.log")
        for damage in OF_RARELY_READ
    ),
    *((".", damage) for damage in OF_FOLDERS),
]
OPEN: Final = [cell for cell in CLOSED if cell[0] in ("CURRENT", "IDENTITY", "*.sst", ".")]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a closed database with three tables."""
    path = tmp_path_factory.mktemp("template") / "1"
    asyncio.run(make(path, 3))
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    """A copy of the template."""
    return shutil.copytree(template, tmp_path / "1")


async def make(path: Path, tables: int) -> Applied:
    """Make a database with this many tables. Each table has all keys."""
    data = DataDatabase(path, Cache(MIB))
    applied = Applied()
    for number in range(1, tables + 1):
        applied = Applied(number, 1)
        data.write([WriteBody(list(KEYS), [b"%d-" % number * 50] * len(KEYS))], applied)
        await data.open()
        await data.flush()
    await data.close()
    return applied


async def use(data: DataDatabase, folder: Path) -> None:
    """Make all calls that a replica makes. Check that failures are CORRUPT_DATA, and that other reads are right."""

    async def checked(work: Awaitable[object]) -> None:
        try:
            await work
        except MinkaError as error:
            if error.code is not Code.CORRUPT_DATA:
                raise

    async def read() -> None:
        for found in (data.get(KEYS), await data.stored_many(list(KEYS))):
            assert None not in found or data.applied.offset < 3, "keys are missing"

    async def page() -> None:
        keys, _, _ = data.page(b"", b"", False, 1000, MIB)
        assert keys == KEYS or data.applied.offset < 3, "keys are missing"

    async def write() -> None:
        data.write([WriteBody([b"new"], [b"x" * 100])], Applied(4, 1))

    async def check() -> None:
        await (await take(data, folder / "taken")).verify()

    await checked(data.open())
    if data.is_open:
        for work in (read, page, data.count, check, write, data.flush, data.compact):
            await checked(work())
        await checked(data.rest(lambda: True))
        await checked(data.open())


async def replaced(data: DataDatabase, path: Path) -> None:
    """Make the damaged database again, as `Damage` does."""
    await data.close()
    await remove_folder(path)
    assert await make(path, 1) == Applied(1, 1)


def harm(path: Path, pattern: str, damage: Callable[[Path], None]) -> None:
    (file,) = [path] if pattern == "." else sorted(path.glob(pattern))[-1:]
    damage(file)


@pytest.mark.parametrize(("pattern", "damage"), CLOSED)
async def test_files_damaged_while_the_database_is_closed(
    path: Path, pattern: str, damage: Callable[[Path], None]
) -> None:
    harm(path, pattern, damage)
    data = DataDatabase(path, Cache(MIB))
    if data.exists():
        await use(data, path.parent)
    await replaced(data, path)


@pytest.mark.parametrize(("pattern", "damage"), OPEN)
async def test_files_damaged_while_the_database_is_open(
    path: Path, pattern: str, damage: Callable[[Path], None]
) -> None:
    data = DataDatabase(path, Cache(MIB))
    await data.open()
    harm(path, pattern, damage)
    await use(data, path.parent)
    await replaced(data, path)


async def test_an_error_that_is_kept_does_not_keep_the_database_open(path: Path) -> None:
    """A log handler or a task may keep the error. Even then, a new database must be able to replace the damaged one."""
    flipped(max(path.glob("*.sst")), 0.3)
    data = DataDatabase(path, Cache(MIB))
    await data.open()
    errors: list[MinkaError] = []
    for read in (lambda: data.page(b"", b"", False, 1000, MIB), lambda: data.get(KEYS)):
        with pytest.raises(MinkaError, match="CORRUPT_DATA") as caught:
            read()
        errors.append(caught.value)
    await replaced(data, path)
    assert len(errors) == 2


async def test_each_refusal_of_damaged_data_is_a_new_error(tmp_path: Path) -> None:
    """If all refusals raised the same error, its traceback would keep the frames of all callers in memory."""
    data = DataDatabase(tmp_path / "1", Cache(MIB))
    data.condemn(MinkaError(Code.CORRUPT_DATA, "a bad block"))
    assert data.damage is not data.damage
    with pytest.raises(MinkaError, match="CORRUPT_DATA: a bad block"):
        data.get([b"a"])
    await data.close()


def test_a_lack_of_resources_does_not_count_as_damage(tmp_path: Path) -> None:
    for text, code in {
        "IO error: While pread offset 0 len 53: 000010.sst: Input/output error": Code.CORRUPT_DATA,
        "IO error: While open a file for random read: 000010.sst: Is a directory": Code.CORRUPT_DATA,
        "IO error: No space left on device: While appending to file: 000010.sst": Code.STORAGE_FAILED,
        "IO error: While open a file for random read: 000010.sst: Too many open files": Code.STORAGE_FAILED,
        "IO error: While open a file for random read: 000010.sst: Permission denied": Code.STORAGE_FAILED,
    }.items():
        assert data_error(Exception(text), "opening 1", tmp_path / "1").code is code, text


def test_an_unusable_disk_does_not_count_as_damage_of_each_partition(tmp_path: Path) -> None:
    text = "IO error: While open a file for random read: 000010.sst: Input/output error"
    assert data_error(Exception(text), "opening 1", tmp_path / "gone" / "1").code is Code.STORAGE_FAILED
    assert not list(tmp_path.iterdir())


def test_a_folders_name_does_not_count_as_a_sign_of_damage(tmp_path: Path) -> None:
    path = tmp_path / "Is a directory" / "1"
    path.mkdir(parents=True)
    text = f"IO error: While open a file for random read: {path}/000010.sst: Too many open files"
    assert data_error(Exception(text), f"opening {path}", path).code is Code.STORAGE_FAILED


async def test_failures_of_a_checkpoints_own_files_do_not_count_as_damage_of_the_data(path: Path) -> None:
    data = DataDatabase(path, Cache(MIB))
    (path.parent / "outgoing").touch()
    with pytest.raises(MinkaError, match="STORAGE_FAILED"):
        await take(data, path.parent / "outgoing" / "taken")
    taken = await take(data, path.parent / "taken")
    await taken.remove()
    with pytest.raises(MinkaError, match="STORAGE_FAILED"):
        await taken.checksum(taken.files[0])
    assert data.damage is None
    await data.close()
