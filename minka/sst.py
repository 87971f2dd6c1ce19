"""Files of sorted rows in RocksDB's SST format, which nodes take in as they are, and the digest of a set of rows.

Writing a file takes neither a node nor a daemon: its format is stated here, and nodes use the same for theirs.
"""

import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import lt, xor
from pathlib import Path
from typing import Final

from rocksdict import BlockBasedOptions, DBCompressionType, Options, SstFileWriter
from xxhash import xxh64_intdigest

from minka.errors import Code, MinkaError
from minka.ranges import MAX_KEY_BYTES
from minka.v1.loads_pb2 import LoadDigest
from minka.wire import MAX_VALUE_BYTES

_SEED: Final = 42  # Spark's
_MASK: Final = 2**64 - 1
_READ_BYTES: Final = 1024 * 1024


def table_options() -> BlockBasedOptions:
    """The format of the tables on disk: a bloom filter of 10 bits a key, XXH3 checksums."""
    table = BlockBasedOptions()
    table.set_format_version(5)
    table.set_bloom_filter(10, False)
    return table


def compression() -> DBCompressionType:
    """The compression of the tables' blocks."""
    return DBCompressionType.lz4()


class Digest:
    """What a set of rows is, in whatever order they come: how many, their bytes, and the XOR and the sum modulo
    2**64 of their digests. XOR alone misses pairs of the same row.
    """

    __slots__ = ("bytes", "rows", "sum", "xor")

    def __init__(self, rows: int = 0, bytes_: int = 0, xor: int = 0, sum_: int = 0) -> None:
        """Bytes are those of keys and values."""
        self.rows, self.bytes, self.xor, self.sum = rows, bytes_, xor, sum_

    def add(self, key: bytes, value: bytes) -> None:
        """One row more, whose own is what Spark SQL calls xxhash64(key, value)."""
        digest = xxh64_intdigest(value, xxh64_intdigest(key, _SEED))
        self.rows += 1
        self.bytes += len(key) + len(value)
        self.xor ^= digest
        self.sum += digest

    def add_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """The same for many rows, which costs less a row."""
        hash_of = xxh64_intdigest
        digests = [hash_of(value, hash_of(key, _SEED)) for key, value in zip(keys, values, strict=True)]
        self.rows += len(digests)
        self.bytes += sum(map(len, keys)) + sum(map(len, values))
        self.xor = reduce(xor, digests, self.xor)
        self.sum += sum(digests)

    def join(self, other: "Digest") -> None:
        """The rows of another set, too."""
        self.rows += other.rows
        self.bytes += other.bytes
        self.xor ^= other.xor
        self.sum += other.sum

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return f"<{self.rows} rows, {self.bytes} bytes, xor {self.xor:016x}, sum {self.sum & _MASK:016x}>"

    def _fields(self) -> tuple[int, int, int, int]:
        return self.rows, self.bytes, self.xor, self.sum & _MASK

    def to_proto(self) -> LoadDigest:
        """Without the number of rows, which is beside it."""
        return LoadDigest(bytes=self.bytes, xor=self.xor, sum=self.sum & _MASK)

    @classmethod
    def of(cls, rows: int, digest: LoadDigest) -> "Digest":
        """As it was sent."""
        return cls(rows, digest.bytes, digest.xor, digest.sum)


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written: its bytes, the CRC-32 of them, and what rows it has."""

    path: Path
    bytes: int
    checksum: int
    digest: Digest


class SstWriter:
    """Writes one file. Not finished, it leaves nothing."""

    def __init__(self, path: Path) -> None:
        """The file is made with the first row."""
        self._path = path
        self._writer: SstFileWriter | None = None
        self._last = b""
        self.digest = Digest()

    def put(self, key: bytes, value: bytes) -> None:
        """The next row. Raises INVALID_ARGUMENT for a key that is empty, or not greater than the last; TOO_LARGE."""
        if key <= self._last:
            what = "comes twice" if key == self._last and key else "is empty" if not key else "is not in order"
            raise MinkaError(Code.INVALID_ARGUMENT, f"{self._path}: the key {key[:100]!r} {what}")
        if len(key) > MAX_KEY_BYTES or len(value) > MAX_VALUE_BYTES:
            raise MinkaError(Code.TOO_LARGE, f"{self._path}: the row of key {key[:100]!r} is over its limits")
        if self._writer is None:
            self._writer = _opened(self._path)
        self._writer[key] = value
        self._last = key
        self.digest.add(key, value)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """The same for the next rows, which costs less a row."""
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
            writer[key] = value
        self._last = keys[-1]
        self.digest.add_many(keys, values)

    def finish(self) -> Written | None:
        """The file, complete and synced; None if there was no row, since there can be no empty one."""
        if self._writer is None:
            return None
        writer, self._writer = self._writer, None
        try:
            writer.finish()
        except Exception as error:
            raise MinkaError(Code.STORAGE_FAILED, f"{self._path}: {error}") from error
        return Written(self._path, self._path.stat().st_size, checksum_of(self._path), self.digest)

    def abandon(self) -> None:
        """Leave nothing."""
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
    """Write sorted pairs (keys ascending bytewise, each once) to a file; None, and no file, for none.

    Raises INVALID_ARGUMENT, TOO_LARGE, STORAGE_FAILED; then there is no file either.
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
