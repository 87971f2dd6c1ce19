"""A node joins an in-sync set only with the files of the loads whose marks are in the log."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minka.errors import Code, MinkaError
from minka.v1.load_api_pb2 import PullFileRequest
from minkad.core.replication.entries import IngestMark, TrimToRange, encode_mark
from minkad.core.replication.peer_messages import Entry
from minkad.replication.changing import load_files as module
from minkad.replication.changing.load_files import LoadFiles, marks_in_log
from minkad.storage.taken_loads import TakenLoads

REPLICA: Any = SimpleNamespace(id=7)


def mark(number: int) -> IngestMark:
    return IngestMark(number, 1, f"file-{number}", 10, 99, 3, 8)


class Nodes:
    """The other nodes: each gets a file once it `may`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str]] = []
        self.may = asyncio.Event()
        self.error: MinkaError | None = None

    async def pull(self, node: str, request: PullFileRequest) -> None:
        self.asked.append((node, request.load_number, request.file.name))
        await self.may.wait()
        if self.error is not None:
            raise self.error


async def test_each_joining_node_gets_each_file() -> None:
    nodes = Nodes()
    nodes.may.set()
    files = LoadFiles(nodes.pull)
    assert await files.bring(REPLICA, [mark(1), mark(2)], ["athens", "byzantium"])
    expected = [(node, number, f"file-{number}") for node in ("athens", "byzantium") for number in (1, 2)]
    assert nodes.asked == expected


async def test_a_slow_node_goes_on_after_it_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.01)
    nodes = Nodes()
    files = LoadFiles(nodes.pull)
    for _ in range(2):
        assert not await files.bring(REPLICA, [mark(1)], ["athens"])
    assert len(nodes.asked) == 1
    nodes.may.set()
    assert await files.bring(REPLICA, [mark(1)], ["athens"])
    await files.close()


async def test_a_node_that_had_the_file_is_asked_again() -> None:
    """It may have lost the file since, with its replica."""
    nodes = Nodes()
    nodes.may.set()
    files = LoadFiles(nodes.pull)
    for _ in range(2):
        assert await files.bring(REPLICA, [mark(1)], ["athens"])
    assert len(nodes.asked) == 2


async def test_a_node_that_can_not_get_the_file_is_asked_again() -> None:
    nodes = Nodes()
    nodes.may.set()
    nodes.error = MinkaError(Code.UNKNOWN_FILE, "no node has it")
    files = LoadFiles(nodes.pull)
    assert not await files.bring(REPLICA, [mark(1)], ["athens"])
    nodes.error = None
    assert await files.bring(REPLICA, [mark(1)], ["athens"])
    assert len(nodes.asked) == 2


def test_the_marks_in_a_log() -> None:
    """Of the loads that are taken in, those with marks after the log's base; and all marks that aren't applied."""
    bodies = {4: encode_mark(mark(2)), 5: b"write", 6: encode_mark(TrimToRange(b"", b"", 1, False)), 7: b"write"}
    bodies |= {8: encode_mark(mark(3))}

    def read(start: int, end: int, max_bytes: int) -> list[Entry]:
        return [Entry(1, bodies[offset]) for offset in range(start, min(end, start + 1) + 1)]

    readable = {6: 8, 8: 8, 9: 8}
    log = SimpleNamespace(base=3, end=8, read=read, readable=lambda start, stored: readable[start])
    data = SimpleNamespace(loads=TakenLoads({1: 2, 2: 4}))
    state = SimpleNamespace(applied=5, durable=8, take_over_data=lambda: None)
    replica = cast(Any, SimpleNamespace(log=log, data=data, state=state))
    found = marks_in_log(replica)
    assert found is not None
    assert [one.load_number for one in found] == [2, 3]
    log.end = 9
    assert marks_in_log(replica) is None, "the newest entry isn't stored yet"
