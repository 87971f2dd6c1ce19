"""The files of the history: append-only blocks, in segments of an hour; the oldest segments are removed first.

A block is a serialized `HistoryBlock` after its length and its CRC-32. Nothing is synced: a kill tears at most the
block that was being written. A power cut may tear more blocks; readers leave torn blocks out.
"""

import logging
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from minka.v1.history_pb2 import HistoryBlock

log: Final = logging.getLogger(__name__)

_FRAME: Final = struct.Struct("<II")
_MAX_BLOCK_BYTES: Final = 1 << 20
_SEGMENT_MS: Final = 3_600_000
_SEGMENTS: Final = 32  # about the least number of segments of a full history, so little is removed at a time
_SUFFIX: Final = ".blocks"


class HistoryStore:
    """Blocking; for one thread at a time, but `read` may run beside other calls. Times are Unix milliseconds."""

    def __init__(self, folder: Path, retention_ms: int, max_bytes: int) -> None:
        """Existing files stay, but nothing is appended to them, since their end may be torn."""
        self._folder = folder
        self._retention_ms = retention_ms
        self._max_bytes = max_bytes
        self._current: Path | None = None  # the segment that takes blocks; None: the next block begins a segment

    def begins_segment(self, now_ms: int) -> bool:
        """True if the next block begins a segment; then the block must have all sizes."""
        current = self._current
        if current is None or not 0 <= now_ms - _start_ms(current) < _SEGMENT_MS:  # or the clock was set back
            return True
        try:
            return current.stat().st_size >= self._max_bytes // _SEGMENTS
        except OSError:
            return True

    def append(self, blocks: Sequence[HistoryBlock], now_ms: int) -> None:
        """Append the blocks, and delete old or excess segments. Raises OSError; then some of the blocks may be kept."""
        if self.begins_segment(now_ms):
            self._folder.mkdir(exist_ok=True)
            self._delete_old(now_ms)
            self._current = self._new_segment(now_ms)
        assert self._current is not None, "it has begun"
        try:
            with self._current.open("ab", buffering=0) as file:
                for block in blocks:
                    framed = _framed(block)
                    if file.write(framed) != len(framed):
                        raise OSError(f"{self._current}: a block was written in part")
        except OSError:
            self._current = None  # readers would not find blocks after a torn block
            raise

    def read(self, from_ms: int, to_ms: int) -> Iterator[bytes]:
        """Serialized blocks whose intervals began in this time, in the order of writing. Leaves out damaged blocks, and
        all blocks after them in their segments.
        """
        segments = self._segments()
        for number, segment in enumerate(segments):
            is_last = number + 1 == len(segments)
            if not is_last and _start_ms(segments[number + 1]) <= from_ms:
                continue
            if _start_ms(segment) >= to_ms + _SEGMENT_MS:
                return
            for raw, start_ms in _blocks(segment):
                if from_ms <= start_ms < to_ms:
                    yield raw

    def _segments(self) -> list[Path]:
        """The segments, the oldest first."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        found = [self._folder / name for name in names if name.endswith(_SUFFIX) and name[: -len(_SUFFIX)].isdigit()]
        return sorted(found, key=_start_ms)

    def _new_segment(self, now_ms: int) -> Path:
        """A segment after all others, even if the clock was set back."""
        last = max(map(_start_ms, self._segments()), default=-1)
        return self._folder / f"{max(now_ms, last + 1):016d}{_SUFFIX}"

    def _delete_old(self, now_ms: int) -> None:
        """Before a segment begins, delete segments, the oldest first, that are too old, or leave no room for two
        segments: one interval may make a segment longer than planned. A segment ends when the next segment begins, and
        the last segment ends now.
        """
        segments = self._segments()
        sizes = [segment.stat().st_size for segment in segments]
        ends = [*map(_start_ms, segments[1:]), now_ms]
        most = self._max_bytes - 2 * (self._max_bytes // _SEGMENTS)
        total = sum(sizes)
        for segment, end, size in zip(segments, ends, sizes, strict=False):
            if end > now_ms - self._retention_ms and total <= most:
                return
            segment.unlink()
            total -= size


def _start_ms(segment: Path) -> int:
    return int(segment.name[: -len(_SUFFIX)])


def _framed(block: HistoryBlock) -> bytes:
    raw = block.SerializeToString()
    assert len(raw) <= _MAX_BLOCK_BYTES, len(raw)
    return _FRAME.pack(len(raw), zlib.crc32(raw)) + raw


def _blocks(segment: Path) -> Iterator[tuple[bytes, int]]:
    """Each block, still serialized, and when its interval began."""
    try:
        file = segment.open("rb")
    except FileNotFoundError:  # deleted meanwhile
        return
    with file:
        while frame := file.read(_FRAME.size):
            size, checksum = _FRAME.unpack(frame) if len(frame) == _FRAME.size else (0, 0)
            raw = file.read(size) if size <= _MAX_BLOCK_BYTES else b""
            if not raw or len(raw) != size or zlib.crc32(raw) != checksum:
                log.info("the rest of a file of the history is torn, and left out", extra={"file": str(segment)})
                return
            yield raw, HistoryBlock.FromString(raw).start_ms
