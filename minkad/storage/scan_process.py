"""The process in which a node reads whole partitions: `python -m minkad.storage.scan_process`, started by `scanner`.

rocksdict's iterators hold the GIL, so a long scan in the daemon would stop its event loop. Requests come on stdin. Each
answer is a frame on stdout: a byte for the kind, the length in four bytes (big-endian), the content.
"""

import os
import sys
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Final, Literal, cast

import msgspec
import xxhash
from rocksdict import AccessType, Cache, IngestExternalFileOptions, Rdict, ReadOptions

from minka.v1.snapshots_pb2 import BucketDigest, RowBatch, SnapshotDigest
from minka.wire.stored_values import has_expired, value_of
from minkad.process import helper_processes
from minkad.storage.rocks import MIB
from minkad.storage.rocks_data import data_options
from minkad.storage.sst_tables import FIRST_KEY, tables_of

ANSWER: Final = b"A"
ERROR: Final = b"E"
END: Final = b"."

_CACHE_BYTES: Final = 8 * MIB
_READAHEAD_BYTES: Final = 2 * MIB
_OPEN_AT_ONCE: Final = 4
_FILE_ENDING: Final = ".sst"
_SEED: Final = 42
_SUM_MASK: Final = 2**64 - 1
_Pair = tuple[bytes, bytes]


class ScanRequest(msgspec.Struct, array_like=True, frozen=True):
    """A request to read the keys with start <= key < end from the checkpoint, or the file of sorted rows, in `path`. An
    empty `end` means up to the last key.
    """

    path: str
    start: bytes
    end: bytes
    kind: Literal["rows", "keys", "digest", "hashes", "cuts"]
    batch_bytes: int = 0  # for rows, keys and hashes: an answer ends once its keys and values reach this size
    buckets: int = 1  # for digest and hashes: the number of buckets, into which keys are divided by their hashes
    wanted: list[int] = []  # for hashes: the buckets to read
    part_bytes: int = 0  # for cuts: about the bytes between two cuts
    at_ms: int = 0  # Unix milliseconds; rows that have expired by then are left out


encode_request: Final = msgspec.msgpack.Encoder().encode
_decode_request: Final = msgspec.msgpack.Decoder(ScanRequest).decode


def answers(db: Rdict, request: ScanRequest) -> Iterator[bytes]:
    """The serialized messages that answer the request. Raises rocksdict's errors."""
    if request.kind == "cuts":
        yield RowBatch(cuts=_cuts(db, request)).SerializeToString()
    elif request.kind == "digest":
        yield _digest(_pairs(db, request), request.buckets).SerializeToString()
    else:
        pairs = _hashes(db, request) if request.kind == "hashes" else _pairs(db, request)
        yield from _batches(pairs, request.batch_bytes, with_values=request.kind != "keys")


def _pairs(db: Rdict, request: ScanRequest) -> Iterator[_Pair]:
    """The unexpired rows. The fast iterator just ends at a damaged block: then the second raises rocksdict's error."""
    start, last = max(request.start, FIRST_KEY), b""
    items = cast("Iterator[_Pair]", db.items(from_key=start, read_opt=_options(request.end)))
    for key, stored in items:
        last = key
        if not stored[7] & 1 or not has_expired(stored, request.at_ms):
            yield key, value_of(stored)
    iterator = db.iter(_options(request.end))
    iterator.seek(last + b"\x00" if last else start)
    if iterator.valid():
        raise OSError(f"Corruption: a scan ended after {last!r}, and there is more")
    iterator.status()


def _options(end: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_readahead_size(_READAHEAD_BYTES)
    options.fill_cache(False)  # type: ignore[call-arg]  # the stub calls it a property; it is a method
    if end:
        options.set_iterate_upper_bound(end)
    return options


def _batches(pairs: Iterator[_Pair], batch_bytes: int, *, with_values: bool) -> Iterator[bytes]:
    keys: list[bytes] = []
    values: list[bytes] = []
    size = 0
    for key, value in pairs:
        keys.append(key)
        size += len(key)
        if with_values:
            values.append(value)
            size += len(value)
        if size >= batch_bytes:
            yield _batch(keys, values)
            keys, values, size = [], [], 0
    if keys:
        yield _batch(keys, values)


def _batch(keys: list[bytes], values: list[bytes]) -> bytes:
    batch = RowBatch(rows=len(keys), key_offsets=_offsets(keys), keys=b"".join(keys))
    if values:
        batch.value_offsets, batch.values = _offsets(values), b"".join(values)
    return batch.SerializeToString()


def _offsets(parts: list[bytes]) -> bytes:
    offsets = array("i", accumulate(map(len, parts), initial=0))
    if sys.byteorder == "big":
        offsets.byteswap()
    return offsets.tobytes()


def _digest(pairs: Iterator[_Pair], buckets: int) -> SnapshotDigest:
    hash_of = xxhash.xxh64_intdigest
    counts, sizes, xors, sums = ([0] * buckets for _ in range(4))
    for key, value in pairs:
        key_hash = hash_of(key, _SEED)
        pair_hash = hash_of(value, key_hash)
        bucket = key_hash % buckets
        counts[bucket] += 1
        sizes[bucket] += len(key) + len(value)
        xors[bucket] ^= pair_hash
        sums[bucket] += pair_hash
    found = [
        BucketDigest(bucket=bucket, rows=count, bytes=sizes[bucket], xor=xors[bucket], sum=sums[bucket] & _SUM_MASK)
        for bucket, count in enumerate(counts)
        if count
    ]
    return SnapshotDigest(buckets=found)


def _hashes(db: Rdict, request: ScanRequest) -> Iterator[_Pair]:
    """The keys in the buckets, each with the hash of its pair in 8 bytes."""
    hash_of, wanted = xxhash.xxh64_intdigest, frozenset(request.wanted)
    for key, value in _pairs(db, request):
        key_hash = hash_of(key, _SEED)
        if key_hash % request.buckets in wanted:
            yield key, hash_of(value, key_hash).to_bytes(8, "big")


def _cuts(db: Rdict, request: ScanRequest) -> list[bytes]:
    """The keys at which the second part and later parts begin; a part has about `part_bytes`. These are first keys of
    tables, so no data is read.
    """
    found: list[bytes] = []
    size = 0
    for table in sorted(tables_of(db), key=lambda table: table.first):
        is_inside = request.start < table.first and (not request.end or table.first < request.end)
        if is_inside and size >= request.part_bytes and table.first not in found[-1:]:
            found.append(table.first)
            size = 0
        size += table.size
    return found


class _Databases:
    """Keeps the last few databases open: readers read the parts of a database one after the other."""

    def __init__(self) -> None:
        self._cache = Cache(_CACHE_BYTES)
        self._open: dict[str, Rdict] = {}

    @contextmanager
    def of(self, path: str) -> Iterator[Rdict]:
        """The database of a checkpoint, or a new database with the rows of a file. Raises rocksdict's errors."""
        if path.endswith(_FILE_ENDING):
            with _database_of(Path(path)) as db:
                yield db
        else:
            yield self._get(path)

    def _get(self, path: str) -> Rdict:
        for gone in [known for known in self._open if not Path(known).exists()]:
            self._open.pop(gone).close()
        db = self._open.get(path)
        if db is None:
            if len(self._open) == _OPEN_AT_ONCE:
                self._open.pop(next(iter(self._open))).close()
            db = self._open[path] = Rdict(path, data_options(self._cache), access_type=AccessType.read_only())
        return db


@contextmanager
def _database_of(file: Path) -> Iterator[Rdict]:
    """A database that has taken in a link of the file: rocksdict offers no other way to read such a file."""
    with tempfile.TemporaryDirectory(prefix="scan-", dir=file.parent.parent) as folder:
        link = Path(folder) / "link.sst"
        os.link(file, link)
        options = data_options(Cache(_CACHE_BYTES))
        options.create_if_missing(True)
        db = Rdict(f"{folder}/db", options)
        try:
            taking = IngestExternalFileOptions()
            taking.set_move_files(True)
            db.ingest_external_file([str(link)], taking)
            yield db
        finally:
            db.close()


def _frame(kind: bytes, content: bytes = b"") -> bytes:
    return kind + len(content).to_bytes(4, "big") + content


def _serve(source: BinaryIO, sink: BinaryIO) -> None:
    databases = _Databases()
    while header := source.read(4):
        request = _decode_request(source.read(int.from_bytes(header, "big")))
        try:
            with databases.of(request.path) as db:
                for answer in answers(db, request):
                    sink.write(_frame(ANSWER, answer))
                    sink.flush()
            sink.write(_frame(END))
        except BrokenPipeError:
            raise  # the node is gone
        except Exception as error:  # noqa: BLE001 - the daemon raises it
            sink.write(_frame(ERROR, str(error).encode()))
        sink.flush()


def main() -> None:
    """Answer requests until stdin ends, or the node is gone."""
    helper_processes.run(lambda: _serve(sys.stdin.buffer, sys.stdout.buffer))


if __name__ == "__main__":
    main()
