"""Ways to damage a file or a folder."""

import shutil
from pathlib import Path


def flipped(path: Path, place: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[int(place * (len(content) - 1))] ^= 0x10
    path.write_bytes(content)


def flipped_at_its_start(path: Path) -> None:
    flipped(path, 0.0)  # a table of RocksDB begins with the database's own record (its key is empty)


def flipped_at_its_end(path: Path) -> None:
    flipped(path, 1.0)


def truncated(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def deleted(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def a_folder(path: Path) -> None:
    deleted(path)
    path.mkdir()


def a_file(path: Path) -> None:
    deleted(path)
    path.touch()


def a_link_to_itself(path: Path) -> None:
    deleted(path)
    path.symlink_to(path.name)
