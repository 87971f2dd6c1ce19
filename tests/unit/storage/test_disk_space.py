"""The limits at which a disk counts as low, and the reserve that lets a node start on a full disk."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from minka.errors import Code, MinkaError
from minkad.storage.disk_space import DiskWatch

MIB = 1024 * 1024


class FileSystem:
    """A file system of 1000 MiB. `free` counts the bytes that are free if its folder is empty."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.free = 1000 * MIB
        monkeypatch.setattr(os, "statvfs", self._statvfs)

    def _statvfs(self, _: Path) -> SimpleNamespace:
        free = self.free - sum(file.stat().st_size for file in self.path.iterdir())
        return SimpleNamespace(f_blocks=1000, f_frsize=MIB, f_bavail=free // MIB)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileSystem:
    return FileSystem(tmp_path, monkeypatch)


def looked(watch: DiskWatch, disk: FileSystem, free: int) -> bool:
    """Set the free space to this many MiB, and check the disk. Return True if the disk is low."""
    disk.free = free * MIB
    watch.check()
    return watch.is_low


def test_a_low_disk_is_low_until_it_has_half_as_much_more_free(disk: FileSystem) -> None:
    watch = DiskWatch(disk.path, 20 * MIB)
    assert [looked(watch, disk, free) for free in (21, 20, 19, 21, 29, 30, 29, 20)] == [
        False, False, True, True, True, False, False, False,
    ]  # fmt: skip


def test_the_mark_is_at_most_a_tenth_of_the_file_system(disk: FileSystem) -> None:
    watch = DiskWatch(disk.path, 1024 * MIB)
    assert watch.space.low_mark_bytes == 100 * MIB
    watch.check_room(900 * MIB)
    with pytest.raises(MinkaError, match="1,000 of 1,000 MiB are free, and below 100 it is low") as refusal:
        watch.check_room(901 * MIB)
    assert refusal.value.code is Code.DISK_LOW


def test_the_reserve_is_made_while_there_is_room_and_given_up_at_a_start_without_room(disk: FileSystem) -> None:
    reserve = disk.path / "reserve"
    watch = DiskWatch(disk.path, 40 * MIB)
    assert not looked(watch, disk, 90)
    assert not reserve.exists(), "with the reserve, the disk would be low"
    assert not looked(watch, disk, 100)
    assert reserve.stat().st_size == 20 * MIB
    watch.give_up_reserve()
    assert reserve.exists()
    disk.free = 30 * MIB  # the reserve takes 20 of these 30 MiB
    full = DiskWatch(disk.path, 40 * MIB)
    full.give_up_reserve()
    assert not reserve.exists()
    assert full.space.free_bytes == 30 * MIB
    assert full.is_low
    assert not looked(full, disk, 101)
    assert reserve.exists()
