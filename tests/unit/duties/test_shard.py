"""The arguments of a shard, and the errors that its program gets."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from minka.duties import Capacity, Delegate, Duty, Shard, changes
from minka.duties._events import Method
from minka.duties._session import Session
from minka.duties._user_calls import methods_of
from minka.errors import Code, MinkaError

DEADLINE = 10.0


class Refusal:
    """A permanent refusal by the cluster. Every session gets it as soon as the test sets `due`."""

    def __init__(self) -> None:
        self.due = threading.Event()
        self.error: MinkaError | None = MinkaError(Code.INVALID_ARGUMENT, "Shard.pallets: must have no slash")


class Fetcher(Delegate):
    def attach(self, duties: Sequence[Duty]) -> None: ...

    def detach(self, duties: Sequence[Duty]) -> None: ...


class Ducklike:
    """A delegate that doesn't inherit from `Delegate`."""

    async def attach(self, duties: Sequence[Duty]) -> None: ...

    async def detach(self, duties: Sequence[Duty]) -> None: ...


PALLETS: list[tuple[str, Any]] = [
    ("0 pallets are given; a shard takes the duties of 1 to 1,000", {}),
    ("1001 pallets are given; a shard takes", dict.fromkeys(map(str, range(1001)))),
    ("pallets is list, not a mapping", ["feeds"]),
    ("the capacity for feeds is 5, not a Capacity or None", {"feeds": 5}),
    ("the name of a pallet is int, not str", {5: None}),
    ("the name of a pallet must have no slash: 'mail/in'", {"feeds": None, "mail/in": None}),
    ("the name of a pallet .* isn't UTF-8 text", {"\udcff": None}),
    ("the name of a pallet must have 256 characters at most", {"x" * 257: None}),
    ("the name of a pallet must not be empty", {"": None}),
]


@pytest.mark.parametrize(
    ("why", "weight"), [("-1, not from 0 to 9,223", -1), ("'5', not int", "5"), ("True, not int", True)]
)
def test_a_capacity_is_checked_when_it_is_made(why: str, weight: Any) -> None:
    with pytest.raises(MinkaError, match=f"the weight of a Capacity is {why}") as caught:
        Capacity(weight)
    assert caught.value.code is Code.INVALID_ARGUMENT


class NumpyInteger:
    """Like an integer of numpy, this isn't an int, but it can be converted to one."""

    def __index__(self) -> int:
        return 3


class NumpyArray:
    """Like an array of numpy, this has `__index__`, which raises TypeError."""

    def __index__(self) -> int:
        raise TypeError("only integer scalar arrays can be converted to a scalar index")


def test_whole_numbers_may_be_numpy_integers() -> None:
    number: Any = NumpyInteger()
    assert type(Capacity(number).weight) is int
    assert changes.create("feeds", "bbc", weight=number)._message.create.weight == 3
    assert changes.update("feeds", "bbc", weight=number, if_version=number)._message.if_version == 3


def test_an_array_is_not_a_whole_number() -> None:
    array: Any = NumpyArray()
    calls: list[Callable[[], Any]] = [
        lambda: Capacity(array),
        lambda: changes.create("feeds", "bbc", weight=array),
        lambda: changes.delete("feeds", "bbc", if_version=array),
    ]
    for call in calls:
        with pytest.raises(MinkaError) as caught:
            call()
        assert caught.value.code is Code.INVALID_ARGUMENT


def made(**given: Any) -> Shard:
    return Shard(**{"delegate": Fetcher(), "pallets": {"feeds": None}, "endpoints": ["athens:7400"], **given})


def test_a_shard_without_endpoints_uses_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINKA_ENDPOINTS", "athens:7400,byzantium")
    with pytest.raises(MinkaError, match="byzantium"):
        Shard(Fetcher(), {"feeds": None})
    monkeypatch.setenv("MINKA_ENDPOINTS", "athens:7400,byzantium:7400")
    assert Shard(Fetcher(), {"feeds": None})._endpoints == ("athens:7400", "byzantium:7400")


@pytest.mark.parametrize(
    ("why", "given"),
    [
        *((why, {"pallets": pallets}) for why, pallets in PALLETS),
        ("grace=-1 isn't a time in seconds from 0 to 604800", {"grace": -1}),
        ("grace='5' isn't a time in seconds", {"grace": "5"}),
        ("grace=True isn't a time in seconds", {"grace": True}),
        ("call_timeout=True isn't a positive time in seconds", {"call_timeout": True}),
        ("on_stuck is 'shrug', not exit or report", {"on_stuck": "shrug"}),
        ("call_timeout=None isn't a positive time in seconds", {"call_timeout": None}),
        ("call_timeout=inf isn't a positive time in seconds", {"call_timeout": float("inf")}),
        ("endpoints is empty", {"endpoints": []}),
        ("endpoints is int, not a list of strings", {"endpoints": 5}),
        ("endpoint None isn't str", {"endpoints": [None]}),
        ("the name of a shard is int, not str", {"name": 5}),
        ("the name of a shard must have no control characters", {"name": "bad\nname"}),
        ("the version is int, not str", {"version": 2}),
        ("the version must have 64 characters at most, not 65", {"version": "1" * 65}),
        ("the node is int, not str", {"node": 5}),
        ("tls is int, not minka.Tls", {"tls": 5}),
        ("the delegate is NoneType, which has no attach: attach and detach are needed", {"delegate": None}),
        ("the delegate is the class Fetcher: an instance is wanted", {"delegate": Fetcher}),
        ("the delegate is Delegate, which has no", {"delegate": Delegate()}),
        (
            "the delegate is SimpleNamespace, whose attach can't be called",
            {"delegate": SimpleNamespace(attach=1, detach=print)},
        ),
    ],
)
def test_malformed_arguments_are_refused(why: str, given: dict[str, object]) -> None:
    with pytest.raises(MinkaError, match=why) as refused:
        made(**given)
    assert refused.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(("why", "pallets"), PALLETS)
async def test_malformed_arguments_of_resize_are_refused(why: str, pallets: Any) -> None:
    shard = made()
    with pytest.raises(MinkaError, match=why) as refused:
        shard.resize(pallets)
    assert refused.value.code is Code.INVALID_ARGUMENT
    assert [one.pallet for one in shard._machine.shard.pallets] == ["feeds"]


@pytest.mark.parametrize("make", [Fetcher, Ducklike])
def test_a_delegate_has_the_methods_that_it_defines(make: Callable[[], Any]) -> None:
    methods = methods_of(make())
    assert methods.keys() == {Method.ATTACH, Method.DETACH}
    assert {method.on_loop for method in methods.values()} == {make is Ducklike}


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """A permanent refusal that ends the session of every shard as soon as the test sets `due`."""
    refusal = Refusal()

    async def run(_: Session) -> None:
        await asyncio.to_thread(refusal.due.wait, DEADLINE)
        if refusal.error is not None:
            raise refusal.error

    monkeypatch.setattr(Session, "run", run)
    return refusal


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def wait_and_go_on() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await wait_for_ever()


@pytest.mark.parametrize("body", [wait_for_ever, wait_and_go_on])
async def test_the_with_block_ends_with_the_error_that_ends_its_shard(
    refused: Refusal, body: Callable[[], Awaitable[None]]
) -> None:
    limit = asyncio.timeout(DEADLINE / 2)

    async def hosting() -> None:
        async with made():
            refused.due.set()
            async with limit:
                await body()

    with pytest.raises(MinkaError, match="must have no slash") as caught:
        await hosting()
    assert caught.value is refused.error
    assert not limit.expired()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # would raise if the task were still cancelled


async def test_a_with_block_that_is_cancelled_by_others_too_stays_cancelled(refused: Refusal) -> None:
    async def hosting() -> None:
        async with made():
            refused.due.set()
            try:
                await wait_for_ever()
            except asyncio.CancelledError:
                task.cancel()  # another cancellation at the same time
                raise

    task = asyncio.create_task(hosting())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_the_with_block_goes_on_when_its_shard_ends_as_asked(refused: Refusal) -> None:
    refused.error = None
    async with asyncio.timeout(DEADLINE), made() as shard:
        refused.due.set()
        assert shard._running is not None
        await shard._running
        await asyncio.sleep(0)
