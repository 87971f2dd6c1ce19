"""A leader lets a follower get the files of loads before the follower joins the in-sync set."""

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from minka.errors import Code, MinkaError
from minka.v1.load_api_pb2 import PullFileRequest
from minka.v1.loads_pb2 import Load, LoadFile, LoadState
from minkad.core.replication.instructions import BringLoadFiles
from minkad.replication.changing import load_files as module
from minkad.replication.changing.load_files import LoadFiles
from tests.unit.client.asking import until


class Leader:
    """The leader's node, which has the files `kept`: each a load's number and a file's name."""

    def __init__(self, *kept: tuple[int, str]) -> None:
        self.pulled: list[tuple[str, int, str]] = []
        self.brought: list[bool] = []
        self.may = asyncio.Event()
        self.error: MinkaError | None = None
        states = {1: LoadState.LOAD_STATE_STAGING, 2: LoadState.LOAD_STATE_ABORTED, 3: LoadState.LOAD_STATE_COMMITTED}
        rows = {number: Load(number=number, state=state) for number, state in states.items()}
        files = [(number, LoadFile(name=name, partition_id=7)) for number, name in kept]
        loads: Any = SimpleNamespace(
            spool=SimpleNamespace(files_for=lambda partition_id: files if partition_id == 7 else []),
            table=SimpleNamespace(state=SimpleNamespace(loads=SimpleNamespace(rows=rows))),
            pull=self.pull,
        )
        around: Any = SimpleNamespace(loads=loads, clock=lambda: 0.0)
        self.replicas = {7: None}
        self.parts = LoadFiles(around, self)  # type: ignore[arg-type]
        self.may.set()

    async def pull(self, node: str, request: PullFileRequest) -> None:
        self.pulled.append((node, request.load_number, request.file.name))
        await self.may.wait()
        if self.error is not None:
            raise self.error

    def load_files_brought(self, _instruction: BringLoadFiles, _now: float, *, has_all: bool) -> None:
        self.brought.append(has_all)

    def bring(self, partition_id: int = 7, node: str = "byzantium", leader_epoch: int = 1) -> None:
        state = SimpleNamespace(id=partition_id)
        progress: Any = SimpleNamespace(node_id=node, state=state, leader_epoch=leader_epoch)
        self.parts.bring(BringLoadFiles(progress))

    async def bring_again(self, node: str = "byzantium", leader_epoch: int = 1) -> None:
        """Bring the files, and wait for the end of that."""
        count = len(self.brought)
        self.bring(node=node, leader_epoch=leader_epoch)
        await until(lambda: len(self.brought) > count)


async def test_a_follower_gets_the_files_of_loads_that_may_have_marks() -> None:
    """That excludes loads that are staged or aborted, and includes loads that the table no longer has."""
    leader = Leader((1, "staged"), (2, "aborted"), (3, "committed"), (4, "done"))
    leader.bring()
    await until(lambda: bool(leader.brought))
    assert leader.pulled == [("byzantium", 3, "committed"), ("byzantium", 4, "done")]
    assert leader.brought == [True]


@pytest.mark.parametrize("partition_id", [7, 8])
async def test_without_such_files_the_follower_joins_at_once(partition_id: int) -> None:
    leader = Leader((1, "staged"))
    leader.bring(partition_id)
    assert leader.brought == [True]


async def test_a_file_that_can_not_be_had_is_reported() -> None:
    leader = Leader((3, "one"), (3, "two"))
    leader.error = MinkaError(Code.UNKNOWN_FILE, "no node has it")
    leader.bring()
    await until(lambda: bool(leader.brought))
    assert leader.brought == [False]


async def test_a_file_that_takes_long_holds_up_no_other_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.05)
    leader = Leader((3, "one"))
    leader.may.clear()
    for _ in range(2 * module._PULLS_AT_ONCE):
        leader.bring()
    await until(lambda: len(leader.brought) == 2 * module._PULLS_AT_ONCE)
    assert set(leader.brought) == {False}


async def test_the_end_of_the_node_gives_the_pulls_up() -> None:
    leader = Leader((3, "one"))
    leader.may.clear()
    leader.bring()
    await until(lambda: bool(leader.pulled))
    await leader.parts.close()
    assert leader.brought == []


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    """Returns the node and the reason of each line of the log, and clears the log."""
    caplog.set_level(logging.INFO, module.log.name)

    def told() -> list[tuple[str, str]]:
        found = [(record.__dict__["node"], record.__dict__["reason"]) for record in caplog.records]
        caplog.clear()
        return found

    return told


async def test_the_log_says_once_why_a_node_can_not_join(
    monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[tuple[str, str]]]
) -> None:
    """Reasons that take turns are logged once, too: a fetch takes several seconds, and then fails."""
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.01)
    leader, gone = Leader((3, "one")), MinkaError(Code.UNKNOWN_FILE, "no node has it")
    late = "one of load 3 isn't there and checked after 0.01 s; the node goes on with it"
    for _ in range(3):
        leader.may.clear()
        await leader.bring_again()
        leader.may.set()
        leader.error = gone
        await leader.bring_again()
        await leader.bring_again("cyrene")
    assert told() == [("byzantium", late), ("byzantium", str(gone)), ("cyrene", str(gone))]
    leader.error = None
    await leader.bring_again()
    leader.error = gone
    for node in "byzantium", "cyrene":
        await leader.bring_again(node)
    assert told() == [("byzantium", str(gone))], "this node had all files in between"
    for _ in range(2):
        await leader.bring_again("cyrene", leader_epoch=2)
    assert told() == [("cyrene", str(gone))]


async def test_the_log_of_reasons_does_not_grow(told: Callable[[], list[tuple[str, str]]]) -> None:
    leader = Leader((3, "one"))
    for number in range(100):
        leader.error = MinkaError(Code.UNREACHABLE, f"connection {number} was lost")
        await leader.bring_again()
    assert len(told()) == 100
    assert sum(len(one.reasons) for one in leader.parts._told.values()) <= 10


async def test_nothing_is_remembered_of_replicas_that_are_gone(told: Callable[[], list[tuple[str, str]]]) -> None:
    leader = Leader((3, "one"))
    leader.error = MinkaError(Code.UNREACHABLE, "the connection was lost")
    await leader.bring_again()
    leader.replicas = {8: None}
    await leader.bring_again("cyrene")
    assert [node for _, node in leader.parts._told] == ["cyrene"]
