"""Common parts of all our RocksDB databases: options, errors, iteration."""

import os
from collections.abc import Iterator
from errno import (
    EBADMSG,
    EDQUOT,
    EEXIST,
    EIO,
    EISDIR,
    ELOOP,
    EMFILE,
    ENFILE,
    ENOENT,
    ENOSPC,
    ENOTDIR,
    ENOTEMPTY,
    EPERM,
    EUCLEAN,
)
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import Final

from rocksdict import Options, Rdict, RdictIter, ReadOptions

from minka.errors import Code, MinkaError
from minka.wire.stored_values import MAX_HEAD_BYTES
from minkad.core.replication.replica_storage import DeletedAheadError

KIB = 1024
MIB = 1024 * KIB
_INCOMPLETE: Final = "Result incomplete"
# A missing file that RocksDB's manifest names is damage, too.
_DAMAGE: Final = ("Corruption", "IO error: No such file")
_NO_CURRENT: Final = "(create_if_missing is false)"
# The errors of the operating system, and of RocksDB, for one file or folder that can't be used. They don't mean that
# the disk is full, or that the process has too many open files.
_BAD_FILE: Final = (
    *map(os.strerror, (EBADMSG, EEXIST, EIO, EISDIR, ELOOP, ENOENT, ENOTDIR, ENOTEMPTY, EPERM, EUCLEAN)),
    "lock hold by current process",
    "NotFound: ",  # a checkpoint finds no file, as when the folder is gone
)

_NO_ROOM: Final = (ENOSPC, EDQUOT, EMFILE, ENFILE)

# The files of a new folder before its first CURRENT, in the order in which they are made. RocksDB replaces CURRENT by
# renaming, so a crash never leaves a folder without CURRENT later. As soon as there is a CURRENT, the folder gets
# another manifest and a file OPTIONS, before any data; then MANIFEST-000001 is removed.
_MADE_FIRST: Final = frozenset(
    {"rocksdict-config.json", "LOG", "LOCK", "000000.dbtmp", "IDENTITY", "MANIFEST-000001", "000001.dbtmp"}
)
_OLD_LOG: Final = "LOG.old."  # the LOG of an earlier try


def storage_error(error: Exception, what: str) -> MinkaError:
    """The error for an exception of rocksdict (a bare Exception with RocksDB's status as its text): CORRUPT_DATA or
    STORAGE_FAILED.

    Drops the frames of `error`: they may have an iterator, and a database with an iterator stays open and locked even
    after `close`.
    """
    error.__traceback__ = None
    text = str(error)
    code = Code.CORRUPT_DATA if text.startswith(_DAMAGE) or _NO_CURRENT in text else Code.STORAGE_FAILED
    return MinkaError(code, f"{what}: {text}")


def data_error(error: Exception, what: str, path: Path) -> MinkaError:
    """Like `storage_error`, for the data of a partition in the folder `path`. A file that can't be used, such as a file
    in an unreadable sector, is damage of this partition alone: CORRUPT_DATA. STORAGE_FAILED means that the node lacks
    something, such as room, or that its whole disk can't be used.
    """
    if isinstance(error, MinkaError):
        return error
    failure = storage_error(error, what)
    text = str(error).replace(str(path), "")  # a folder's name may contain the text of an error
    if any(reason in text for reason in _BAD_FILE) and _is_usable(path.parent):
        return MinkaError(Code.CORRUPT_DATA, failure.message)
    return failure


def _is_usable(folder: Path) -> bool:
    """True if the disk still takes a file in the folder, or would take it if there were room."""
    try:
        with TemporaryFile(dir=folder, buffering=0) as file:
            file.write(b"1")
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in _NO_ROOM
    return True


def is_made_first(entry: os.DirEntry[str]) -> bool:
    """True for a file that RocksDB makes before it has completely made a database. A folder that has only such files
    never had any data: a kill ended the making. The folder can be given to RocksDB again.
    """
    is_known = entry.name in _MADE_FIRST or entry.name.startswith(_OLD_LOG)
    return is_known and entry.is_file(follow_symlinks=False)


def base_options(write_buffer_bytes: int, write_buffers: int) -> Options:
    """Options of a database with one writer, which RocksDB never delays: a delayed or stopped write would hold the GIL.
    So the triggers of delays are out of reach, and every writer checks `is_stalled` first.
    """
    options = Options(raw_mode=True)
    options.create_if_missing(False)  # a database whose files are gone must not become an empty one
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(write_buffers)
    options.set_allow_concurrent_memtable_write(False)
    options.set_level_zero_slowdown_writes_trigger(1_000_000)
    options.set_level_zero_stop_writes_trigger(1_000_001)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_hard_pending_compaction_bytes_limit(0)
    options.set_max_background_jobs(2)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(MIB)
    return options


def open_database(path: Path, options: Options) -> Rdict:
    """Open a database, or create it, with exactly these options. Raises rocksdict's errors.

    rocksdict also wants the options of the only column family. Otherwise it takes those in the file OPTIONS of an
    existing database: they have neither our block cache, but one of 8 MiB for each database, nor our bloom filters.
    """
    return Rdict(str(path), options, {"default": options})


def is_stalled(db: Rdict) -> bool:
    """True if RocksDB would delay a write now. Only writes to a database bring it into this state."""
    return bool(db.property_int_value("rocksdb.is-write-stopped")) or bool(
        db.property_int_value("rocksdb.actual-delayed-write-rate")
    )


def pairs(
    db: Rdict, start: bytes, end: bytes | None, reverse: bool = False, max_passed: int = 0
) -> Iterator[tuple[bytes, bytes]]:
    """The pairs with start <= key < end, in order. `end` None: to the last key.

    Raises DeletedAheadError if more than `max_passed` deleted keys and older versions come one after another (0: no
    limit). Raises rocksdict's errors, also at a damaged block; there, rocksdict's own iterators just end.
    """
    # Not set_iterate_lower_bound: in rocksdict 0.3.29 it sets the upper bound.
    options = ReadOptions()
    if end is not None:
        options.set_iterate_upper_bound(end)
    if max_passed:
        options.set_max_skippable_internal_keys(max_passed)
    iterator: RdictIter = db.iter(options)
    step = iterator.prev if reverse else iterator.next
    if reverse:
        iterator.seek_to_last()
    else:
        iterator.seek(start)
    while iterator.valid() and (not reverse or iterator.key() >= start):
        yield iterator.key(), iterator.value()
        step()
    _check_status(iterator)


def last_keys(db: Rdict, start: bytes, end: bytes, width: int) -> Iterator[bytes]:
    """For the keys between `start` and `end`: the last key of each group of keys that have equal first `width` bytes.

    The cost grows with the number of groups, not of keys. There is one iterator for all groups, since it may take half
    a millisecond to make one. Raises rocksdict's errors.
    """
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    iterator: RdictIter = db.iter(options)
    iterator.seek(start)
    while iterator.valid():
        beyond = iterator.key()[:width] + b"\xff" * 9
        iterator.seek_for_prev(beyond)
        _check_status(iterator)
        yield iterator.key()
        iterator.next()
    _check_status(iterator)


def _check_status(iterator: RdictIter) -> None:
    try:
        iterator.status()
    except Exception as error:
        if str(error).startswith(_INCOMPLETE):
            raise DeletedAheadError from error
        raise


def page(
    db: Rdict,
    start: bytes,
    end: bytes,
    reverse: bool,
    max_rows: int,
    max_bytes: int,
    max_passed: int = 0,
    max_seconds: float = inf,
    only_heads: bool = False,
) -> tuple[list[bytes], list[bytes], bool]:
    """Keys and values with start <= key < end, in order, and True if these are all. `end` b"": to the last key.

    The page has at most `max_rows` rows and `max_bytes`, and gets no row after `max_seconds`; but it has the first row
    in any case. The page also ends where more than `max_passed` (0: no limit) deleted keys and older versions come one
    after another, which take a quarter of a microsecond each; if they come before the first row, this raises
    DeletedAheadError. With `only_heads` the values end after the head of their stored form. This isn't a generator:
    when it returns, the iterator must be gone. It holds the GIL for about 1 µs a row. Raises rocksdict's errors.
    """
    options = ReadOptions()
    if end:
        options.set_iterate_upper_bound(end)
    if max_passed:
        options.set_max_skippable_internal_keys(max_passed)
    until = perf_counter() + max_seconds
    iterator: RdictIter = db.iter(options)
    valid, key_of, value_of = iterator.valid, iterator.key, iterator.value
    step = iterator.prev if reverse else iterator.next
    if reverse:
        iterator.seek_to_last()
    else:
        iterator.seek(start)
    keys: list[bytes] = []
    values: list[bytes] = []
    size = 0
    while valid():
        key, value = key_of(), value_of()
        if only_heads:
            value = value[:MAX_HEAD_BYTES]
        if reverse and key < start:
            break
        size += len(key) + len(value)
        if len(keys) == max_rows or (keys and (size > max_bytes or perf_counter() > until)):
            return keys, values, False
        keys.append(key)
        values.append(value)
        step()
    try:
        _check_status(iterator)
    except DeletedAheadError:
        if not keys:
            raise
        return keys, values, False
    return keys, values, True


def count(db: Rdict, start: bytes, end: bytes) -> int:
    """The number of keys with start <= key < end. This reads every block with such keys. Raises rocksdict's errors."""
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    iterator: RdictIter = db.iter(options)
    iterator.seek(start)
    found = 0
    while iterator.valid():
        found += 1
        iterator.next()
    iterator.status()
    return found
