"""Copies of a folder in the state in which a crash would leave it."""

import shutil
import time
from pathlib import Path


def crashed_copy(source: Path, target: Path) -> Path:
    """Copy the folder as it is at one moment, while its databases are open and compact in the background."""
    deadline = time.monotonic() + 10
    while True:
        shutil.rmtree(target, ignore_errors=True)
        try:
            before = _state(source)
            shutil.copytree(source, target)
            if before == _state(source):
                return target
        except (shutil.Error, FileNotFoundError):
            pass  # a compaction removed the file meanwhile
        assert time.monotonic() < deadline, f"{source} is never at rest"


def _state(folder: Path) -> list[tuple[Path, int]]:
    # The times of files don't count: RocksDB may write to its file LOG at any time, which does a copy no harm.
    return sorted((path, path.stat().st_ino) for path in folder.rglob("*"))
