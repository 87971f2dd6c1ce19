"""The shard's side of a session, and how it ends."""

import asyncio
import threading
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from minka.duties._events import CallOverdue, Event, Method, Tick
from minka.duties._hosting import Phase, Record
from minka.duties._session import Session, boottime, shards_loop
from minka.duties._user_calls import UserMethod
from minka.errors import Code, MinkaError
from tests.unit.duties.world import World, held

DEADLINE = 10.0
NOBODY = ["127.0.0.1:1"]


@pytest.fixture
def closed_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.close()
    return loop


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Reasons for which the library would have ended the process. It adds them to this list instead."""
    reasons: list[str] = []
    monkeypatch.setattr("minka.duties._session.end_process", lambda shard, reason: reasons.append(reason))
    return reasons


async def run(
    world: World,
    user_loop: asyncio.AbstractEventLoop,
    *events: Event,
    methods: Mapping[Method, UserMethod] = MappingProxyType({}),
) -> None:
    """Give these events to a session, and run the session on the library's own loop. No test closes that loop, since
    gRPC fails if a loop that it has used is closed.
    """

    async def run_here() -> None:
        session = Session(world.machine, methods, NOBODY, None, user_loop)
        for event in events:
            session.handle(event)
        await asyncio.wait_for(session.run(), DEADLINE)

    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run_here(), shards_loop()))


async def test_a_session_ends_when_the_users_loop_is_closed(closed_loop: asyncio.AbstractEventLoop) -> None:
    with pytest.raises(MinkaError, match="event loop was closed before the shard") as caught:
        await run(World(), closed_loop)
    assert caught.value.code is Code.INVALID_ARGUMENT


def broken(*_: object) -> None:
    raise LookupError("a fault")


async def test_a_fault_in_the_library_releases_all_duties_and_ends_the_session(
    ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World([])
    monkeypatch.setattr(world.machine.hosting, "overdue", broken)
    with pytest.raises(MinkaError, match="a fault in the library: LookupError: a fault") as caught:
        await run(world, asyncio.get_running_loop(), CallOverdue(1))
    assert caught.value.code is Code.INTERNAL
    assert not ended


@pytest.mark.parametrize("has_duties", [True, False])
async def test_a_repeated_fault_ends_the_process_if_it_has_duties(
    has_duties: bool, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World([])
    world.now = boottime()
    if has_duties:
        world.connect()
        world.attach(held(1, 11))
        world.end_calls()
    monkeypatch.setattr(world.machine, "handle", broken)
    with pytest.raises(MinkaError, match="a fault in the library"):
        await run(world, asyncio.get_running_loop(), Tick())
    assert set(ended) == ({"a fault in the library: LookupError: a fault"} if has_duties else set())


@pytest.mark.parametrize("part", ["_connect", "_tick_when_due"])
async def test_a_fault_of_the_session_ends_it(part: str, ended: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: Session) -> None:
        raise LookupError("a fault")

    monkeypatch.setattr(Session, part, fail)
    world = World([])
    world.now = boottime()
    world.connect()
    world.attach(held(1, 11))
    world.end_calls()
    released = threading.Event()
    detach = UserMethod(lambda _: released.set(), on_loop=False)
    with pytest.raises(MinkaError, match="a fault in the library: LookupError: a fault") as caught:
        await run(world, asyncio.get_running_loop(), methods={Method.DETACH: detach})
    assert caught.value.code is Code.INTERNAL
    assert released.is_set() == (part == "_connect")
    assert bool(ended) == (part == "_tick_when_due")


class Racing(Record):
    """A record that the sessions' thread changes whenever another thread reads it."""

    world: World

    def __getattribute__(self, name: str) -> object:
        if name == "live":
            world: World = super().__getattribute__("world")
            number = len(world.machine.hosting.records) + 1
            world.machine.hosting.records[number] = Record(held(number, number), Phase.ATTACHED, live=True)
        return super().__getattribute__(name)


async def test_the_duties_may_change_while_another_thread_reads_them() -> None:
    world = World([])
    racing = Racing(held(1, 11), Phase.ATTACHED, live=True)
    racing.world = world
    world.machine.hosting.records[1] = racing
    session = Session(world.machine, {}, NOBODY, None, asyncio.get_running_loop())
    assert [duty.id for duty in session.duties()] == ["d1"]
