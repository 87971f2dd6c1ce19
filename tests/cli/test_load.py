"""`minkactl kv load` reads rows from files, makes keys and values from the rows, and writes the pairs in batches."""

import asyncio
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minkactl import load
from minkactl.load import Pair, batches, format_of, open_rows, rows

CSV = b'\xef\xbb\xbfyear,carrier,note\n2013,UA,"two\nlines"\n2013,"D,L",\xc3\xa9\n\n'


def read(content: bytes, form: str, *columns: str) -> list[Pair]:
    return list(rows(io.BytesIO(content), form, columns, "flights"))


def test_csv() -> None:
    assert read(CSV, "csv", "carrier", "year") == [
        (b"UA/2013", b'{"year":"2013","carrier":"UA","note":"two\\nlines"}'),
        (b"D,L/2013", '{"year":"2013","carrier":"D,L","note":"é"}'.encode()),
    ]


def test_tsv_and_json_lines() -> None:
    assert read(b"a\tb\n1\t2\n", "tsv", "b") == [(b"2", b'{"a":"1","b":"2"}')]
    assert read(b'{"a": 1, "b": [2]}\n\n {"a": "x"} \n', "jsonl", "a") == [
        (b"1", b'{"a": 1, "b": [2]}'),
        (b"x", b'{"a": "x"}'),
    ]


@pytest.mark.parametrize(
    ("content", "form", "message"),
    [
        (b"a,b\n1,2\n3\n", "csv", "flights, after line 2: line 3 has 1 cells, and the header 2"),
        (b"a,a\n1,2\n", "csv", "flights, after line 0: two columns have the same name"),
        (b"b\n1\n", "csv", "flights, line 2: it has no column 'a'"),
        (b'a\n"1\n', "csv", "flights, after line 0: unexpected end of data"),
        (b"a\n1\n\xff\n", "csv", "flights, after line"),
        (b'{"a": 1}\n[1]\n', "jsonl", "flights, after line 1: line 2 is not an object"),
        (b'{"a": 1}\n{\n', "jsonl", "flights, after line 1: "),
    ],
)
def test_a_mistake_is_named_with_its_line(content: bytes, form: str, message: str) -> None:
    with pytest.raises(MinkaError) as caught:
        read(content, form, "a")
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert caught.value.message.startswith(message)


def test_files_by_their_names(tmp_path: Path) -> None:
    assert [format_of(name) for name in ("x.csv", "x.TSV", "a.b/x.jsonl.gz", "x.ndjson")] == [
        "csv", "tsv", "jsonl", "jsonl",
    ]  # fmt: skip
    with pytest.raises(MinkaError, match="--format"):
        format_of("x.parquet")
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(CSV))
    assert [key for key, _ in open_rows(str(path), "csv", ["year"])] == [b"2013", b"2013"]


def test_batches_by_number_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BATCH_ROWS", 3)
    monkeypatch.setattr(load, "BATCH_BYTES", 100)
    pairs = [(b"%d" % n, b"") for n in range(7)]
    assert [len(batch) for batch in batches(pairs)] == [3, 3, 1]
    assert [len(batch) for batch in batches([(b"k", b"v" * 60)] * 4)] == [2, 2]
    assert list(batches([])) == []


class Memory:
    """Stands in for a keyspace: takes batches, and counts how many it takes at the same time. Of ten batches, the first
    takes the longest time, the second takes less, and so on. So a later batch may end before an earlier one.
    """

    def __init__(self, fails_at: int = -1) -> None:
        self.content: dict[bytes, bytes] = {}
        self.begun = self.running = self.most_running = 0
        self.fails_at = fails_at

    async def put_many(self, pairs: list[Pair]) -> None:
        number, self.begun = self.begun, self.begun + 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            for _ in range(10 - number % 10):
                await asyncio.sleep(0)
            if number == self.fails_at:
                raise MinkaError(Code.PARTITION_OFFLINE, "nobody leads the partition")
            self.content.update(pairs)
        finally:
            self.running -= 1


async def test_the_last_of_a_key_counts_though_batches_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BATCH_ROWS", 2)
    pairs = [(b"%d" % (n % 7), b"%d" % n) for n in range(100)]
    memory, reports = Memory(), []
    loaded = await load.load(memory, pairs, lambda loaded: reports.append(loaded.rows))  # type: ignore[arg-type]  # a stand-in
    assert memory.content == dict(pairs)
    assert memory.most_running > 1
    assert (loaded.rows, reports[-1], reports == sorted(reports)) == (100, 100, True)
    assert loaded.bytes == sum(len(key) + len(value) for key, value in pairs)


async def test_a_failure_ends_the_load_and_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BATCH_ROWS", 1)
    memory = Memory(fails_at=20)
    with pytest.raises(MinkaError, match="nobody leads the partition"):
        await load.load(memory, [(b"%d" % n, b"") for n in range(1000)], lambda _: None)  # type: ignore[arg-type]  # a stand-in
    assert memory.running == 0
    assert len(asyncio.all_tasks()) == 1
    assert 20 < memory.begun < 60


async def test_rows_are_read_as_they_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BATCH_ROWS", 1)
    memory, ahead = Memory(), []

    def lazily() -> Iterator[Pair]:
        for n in range(50):
            ahead.append(n - len(memory.content))
            yield b"%d" % n, json.dumps(n).encode()

    await load.load(memory, lazily(), lambda _: None)  # type: ignore[arg-type]  # a stand-in
    assert max(ahead) <= load.IN_FLIGHT + 1
    assert len(memory.content) == 50
