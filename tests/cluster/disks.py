"""Disks of single nodes: each is a file system in a file. Tests can fill the disk, or copy the file as it is now."""

import contextlib
import os
from pathlib import Path
from typing import Final

from tests.cluster.undo import Undo, run

MIB: Final = 1024 * 1024
_CHUNKS: Final = (4 * MIB, 64 * 1024, 4096)


class Disk:
    """An ext4 file system in a file; `undo` unmounts it. Raises NotPermitted if this user can't mount it."""

    def __init__(self, undo: Undo, directory: Path, name: str, size: int) -> None:
        self.image = directory / f"{name}.img"
        with self.image.open("wb") as file:
            file.truncate(size)
        run("mkfs.ext4", "-q", "-m", "0", str(self.image))
        self.mount = mounted(undo, self.image, directory / name)

    def fill(self, room: int) -> None:
        """Fill the disk until exactly `room` bytes are free. At no moment are fewer bytes free, since a node might
        notice that and exit.
        """
        with self._ballast.open("ab", buffering=0) as file:
            for size in _CHUNKS:
                with contextlib.suppress(OSError):
                    while (taken := min(size, self._free_bytes() - room)) > 0:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, taken)

    def free(self) -> None:
        """Free the space that `fill` took."""
        self._ballast.unlink(missing_ok=True)

    def _free_bytes(self) -> int:
        found = os.statvfs(self.mount)
        return found.f_bavail * found.f_frsize

    @property
    def _ballast(self) -> Path:
        return self.mount / "ballast"


def mounted(undo: Undo, image: Path, mount: Path) -> Path:
    """Mount the file system in the file `image`; `undo` unmounts it. Raises NotPermitted if this user can't do that."""
    mount.mkdir()
    run("mount", "-o", "loop", str(image), str(mount))
    # A process that was just killed may still use the file system. Then only a lazy unmount (-l) succeeds.
    undo.add(["umount", str(mount)], ["umount", "-l", str(mount)])
    return mount


def copy_image(source: Path, target: Path) -> None:
    """Copy a disk's file. Like a disk after a power cut, the copy lacks all data that is now only in memory."""
    run("cp", "--reflink=never", "--sparse=always", str(source), str(target))
