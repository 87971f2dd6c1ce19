"""Rows of a CSV, TSV or JSON Lines file as keys and values, and putting them in bulk."""

import asyncio
import csv
import gzip
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from minka.errors import Code, MinkaError

if TYPE_CHECKING:
    from minka import AsyncKeyspace

Pair = tuple[bytes, bytes]

FORMATS: Final = ("csv", "tsv", "jsonl")
BATCH_ROWS: Final = 2000
BATCH_BYTES: Final = 1 << 20
IN_FLIGHT: Final = 6

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def format_of(name: str) -> str:
    """The format that a file's name says: flights.csv, flights.jsonl.gz. Raises INVALID_ARGUMENT."""
    suffix = Path(name.removesuffix(".gz")).suffix.removeprefix(".").lower()
    form = {"ndjson": "jsonl"}.get(suffix, suffix)
    if form not in FORMATS:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{name}: its name says none of {', '.join(FORMATS)}: use --format")
    return form


def open_rows(path: str, form: str, key_columns: Sequence[str]) -> Iterator[Pair]:
    """The rows of a file ("-": stdin; .gz is unpacked); see `rows`. Raises OSError, MinkaError(INVALID_ARGUMENT)."""
    if path == "-":
        return rows(sys.stdin.buffer, form, key_columns, "stdin")
    return _rows_of_file(path, form, key_columns)


def _rows_of_file(path: str, form: str, key_columns: Sequence[str]) -> Iterator[Pair]:
    with open(path, "rb") as file:
        yield from rows(gzip.GzipFile(fileobj=file) if path.endswith(".gz") else file, form, key_columns, path)


def rows(file: IO[bytes] | gzip.GzipFile, form: str, key_columns: Sequence[str], name: str) -> Iterator[Pair]:
    """A key, the row's `key_columns` joined by "/", and a value, the row as a JSON object, for each row.

    Raises MinkaError(INVALID_ARGUMENT) with the file's name and the line.
    """
    text = TextIOWrapper(file, "utf-8-sig", newline="")
    records = _json_lines(text) if form == "jsonl" else _table(text, "\t" if form == "tsv" else ",")
    last = 0
    try:
        for line, record, value in records:
            last = line
            yield "/".join([str(record[column]) for column in key_columns]).encode(), value.encode()
    except KeyError as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{name}, line {last}: it has no column {error}") from error
    except (ValueError, csv.Error, EOFError) as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{name}, after line {last}: {error}") from error
    finally:
        text.detach()


def _table(text: Iterable[str], delimiter: str) -> Iterator[tuple[int, dict[str, str], str]]:
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    header = next(reader, [])
    if len(set(header)) != len(header):
        raise ValueError("two columns have the same name")
    for cells in reader:
        if not cells:
            continue
        if len(cells) != len(header):
            raise ValueError(f"line {reader.line_num} has {len(cells)} cells, and the header {len(header)}")
        record = dict(zip(header, cells, strict=True))
        yield reader.line_num, record, _encode(record)


def _json_lines(text: Iterable[str]) -> Iterator[tuple[int, dict[str, Any], str]]:
    for number, line in enumerate(text, 1):
        if line.strip():
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError(f"line {number} is not an object")
            yield number, record, line.strip()


def batches(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """The pairs in batches of limited number and size."""
    batch: list[Pair] = []
    size = 0
    for key, value in pairs:
        batch.append((key, value))
        size += len(key) + len(value)
        if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@dataclass(slots=True)
class Loaded:
    """The rows and bytes that have been put durably, and the seconds that this took."""

    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0


async def load(keyspace: "AsyncKeyspace", pairs: Iterable[Pair], report: Callable[[Loaded], None]) -> Loaded:
    """Put all pairs, several batches at a time; if a key is given twice, the last value counts.

    `report` is called after each batch. Raises what the client and `pairs` raise.
    """
    loaded, started = Loaded(), time.monotonic()
    pending: dict[asyncio.Task[None], frozenset[bytes]] = {}

    async def put(batch: list[Pair]) -> None:
        await keyspace.put_many(batch)
        loaded.rows += len(batch)
        loaded.bytes += sum(len(key) + len(value) for key, value in batch)
        loaded.seconds = time.monotonic() - started
        report(loaded)

    try:
        for batch in batches(pairs):
            keys = frozenset(key for key, _ in batch)
            while len(pending) >= IN_FLIGHT or not all(keys.isdisjoint(others) for others in pending.values()):
                await _some_done(pending)
            pending[asyncio.create_task(put(batch))] = keys
        while pending:
            await _some_done(pending)
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    return loaded


async def _some_done(pending: dict[asyncio.Task[None], frozenset[bytes]]) -> None:
    done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        del pending[task]
        task.result()
