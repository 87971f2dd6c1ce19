"""Files of sorted rows in RocksDB's SST format, with values in their stored form; nodes take these files in unchanged.
Writing a file needs no running node: this module defines the format, and nodes use the same format for their own files.
"""

import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import lt
from pathlib import Path
from typing import Final

from minka.bulk.row_digest import Digest
from minka.cluster.key_ranges import MAX_KEY_BYTES
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import MAX_VALUE_BYTES
from minka.wire.stored_values import LOADED

try:
    from rocksdict import BlockBasedOptions, DBCompressionType, Options, SstFileWriter
except ModuleNotFoundError as error:
    raise MinkaError(Code.PACKAGE_MISSING, 'rocksdict isn\'t installed: pip install "minka-client[load]"') from error

_READ_BYTES: Final = 1024 * 1024


def table_options() -> BlockBasedOptions:
    """The format of the tables on disk: a bloom filter with 10 bits for each key, and XXH3 checksums."""
    table = BlockBasedOptions()
    table.set_format_version(5)
    table.set_bloom_filter(10, False)
    return table


def compression() -> DBCompressionType:
    """The compression of the tables' blocks."""
    return DBCompressionType.lz4()


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written: its size in bytes, its CRC-32, and the digest of its rows."""

    path: Path
    bytes: int
    checksum: int
    digest: Digest


class SstWriter:
    """Writes one file. `finish` completes it, and `abandon` removes it."""

    def __init__(self, path: Path) -> None:
        """The file is created when the first row comes."""
        self._path = path
        self._writer: SstFileWriter | None = None
        self._last = b""
        self.digest = Digest()

    def put(self, key: bytes, value: bytes) -> None:
        """Write the next row. Raises INVALID_ARGUMENT for a key that is empty or not greater than the last key, and
        TOO_LARGE for a key or value over the limit.
        """
        if key <= self._last:
            what = "comes twice" if key == self._last and key else "is empty" if not key else "is not in order"
            raise MinkaError(Code.INVALID_ARGUMENT, f"{self._path}: the key {key[:100]!r} {what}")
        if len(key) > MAX_KEY_BYTES or len(value) > MAX_VALUE_BYTES:
            raise MinkaError(Code.TOO_LARGE, f"{self._path}: the key {key[:100]!r} or its value is larger than allowed")
        if self._writer is None:
            self._writer = _opened(self._path)
        self._writer[key] = LOADED + value
        self._last = key
        self.digest.add(key, value)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write the next rows; this costs less for each row than `put`. Raises the errors of `put`."""
        if not keys:
            return
        is_ordered = keys[0] > self._last and all(map(lt, keys, keys[1:]))
        if not is_ordered or max(map(len, keys)) > MAX_KEY_BYTES or max(map(len, values)) > MAX_VALUE_BYTES:
            for key, value in zip(keys, values, strict=True):
                self.put(key, value)
            return
        if self._writer is None:
            self._writer = _opened(self._path)
        writer = self._writer
        for key, value in zip(keys, values, strict=True):
            writer[key] = LOADED + value
        self._last = keys[-1]
        self.digest.add_many(keys, values)

    def finish(self) -> Written | None:
        """Complete and sync the file. Without rows there is no file, and this returns None. Raises STORAGE_FAILED."""
        if self._writer is None:
            return None
        writer, self._writer = self._writer, None
        try:
            writer.finish()
        except Exception as error:
            raise MinkaError(Code.STORAGE_FAILED, f"{self._path}: {error}") from error
        return Written(self._path, self._path.stat().st_size, checksum_of(self._path), self.digest)

    def abandon(self) -> None:
        """Remove the file."""
        self._writer = None
        self._path.unlink(missing_ok=True)


def _opened(path: Path) -> SstFileWriter:
    options = Options(raw_mode=True)
    options.set_compression_type(compression())
    options.set_block_based_table_factory(table_options())
    try:
        writer = SstFileWriter(options)
        writer.open(str(path))
    except Exception as error:
        raise MinkaError(Code.STORAGE_FAILED, f"{path}: {error}") from error
    return writer


def write_sst(path: str | os.PathLike[str], pairs: Iterable[tuple[bytes, bytes]]) -> Written | None:
    """Write sorted pairs (in the bytewise order of their keys, each key once) to a file. Without pairs there is no
    file, and this returns None.

    Raises MinkaError: INVALID_ARGUMENT, TOO_LARGE, STORAGE_FAILED; after an error there is no file.
    """
    writer = SstWriter(Path(path))
    try:
        for key, value in pairs:
            writer.put(key, value)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def checksum_of(path: Path) -> int:
    """The CRC-32 of a file."""
    checksum = 0
    with path.open("rb", buffering=0) as source:
        while data := source.read(_READ_BYTES):
            checksum = zlib.crc32(data, checksum)
    return checksum
