"""Files are written to the disk in steps while they grow."""

import os
from pathlib import Path

import pytest

from minkad.storage.writeback import STEP_BYTES, Writeback

WRITE, ALL = 2, 7


def test_each_step_is_started_and_the_step_before_it_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, int]] = []
    original = Writeback._ask

    def ask(self: Writeback, start: int, end: int, flags: int) -> None:
        asked.append((start, end, flags))
        original(self, start, end, flags)

    monkeypatch.setattr(Writeback, "_ask", ask)
    half = STEP_BYTES // 2
    with (tmp_path / "file").open("wb") as file:
        writeback = Writeback(file)
        for _ in range(7):
            file.write(bytes(half))
            writeback.written()
    one, two, three = STEP_BYTES, 2 * STEP_BYTES, 3 * STEP_BYTES
    assert asked == [(0, one, WRITE), (one, two, WRITE), (0, one, ALL), (two, three, WRITE), (one, two, ALL)]
    assert (tmp_path / "file").stat().st_size == 7 * half


def test_a_refusal_of_the_disk_is_raised(tmp_path: Path) -> None:
    """The test's file is a pipe. For a pipe, the kernel refuses `sync_file_range`."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb"), os.fdopen(writer, "wb") as file, pytest.raises(OSError, match="Illegal seek"):
        Writeback(file)._ask(0, 1, WRITE)
