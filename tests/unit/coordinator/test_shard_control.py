"""Clearances of shards, and the history of hand-overs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from minka.v1.duties_pb2 import Shard, ShardState
from minka.v1.shards_pb2 import ShardHeartbeatsRequest, ShardSign
from minkad.core.controller.decision import Command
from minkad.core.duties.control.shard_lives import FailShards, NoteFlap
from minkad.core.state import State
from minkad.duties.control.shard_control import ShardControl, ShardSettings

SETTINGS = ShardSettings(clearance=3.0, failure_timeout=3.6)


class FakeClock:
    """A clock in seconds; the test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Harness:
    """The parts of an active controller that matter here."""

    def __init__(self, *, unconfirmed: float = 10.0) -> None:
        """`unconfirmed`: the seconds since a quorum last confirmed the leadership of the former controller."""
        self.clock = FakeClock()
        self.decided = State()
        self.decided.duties.put_shard(Shard(name="s1", incarnation="a", state=ShardState.SHARD_STATE_LIVE))
        self.confirmed_at = self.clock.now
        self.nodes_are_silent = False
        self.submitted: list[Command] = []
        self.turn = asyncio.Lock()
        self.recorded = asyncio.Event()
        self.recorded.set()
        self.control = ShardControl(
            self,
            SETTINGS,
            unconfirmed_since=self.clock.now - unconfirmed,
            tick=0.05,
            now=self.clock,
            in_thread=_at_once,
        )

    def fail(self, error: BaseException, /) -> None:
        """Ignore the error."""

    def suspects_itself(self) -> bool:
        """True if many nodes are silent."""
        return self.nodes_are_silent

    async def run(self, command: Command) -> Any:
        """Note the command."""
        self.submitted.append(command)

    async def run_when_due(
        self,
        command: Callable[[], Command | None],
        decided: Callable[[asyncio.Future[None] | None], None] = lambda _: None,
    ) -> Any:
        """Wait for the lock `turn`. Then make the command, note it, and wait until it is recorded."""
        async with self.turn:
            made = command()
            if made is not None:
                self.submitted.append(made)
                decided(None)
                await self.recorded.wait()

    def beat(self, incarnation: str = "a") -> Any:
        """Send a heartbeat of the shard; returns the answer."""
        sign = ShardSign(shard="s1", incarnation=incarnation, sequence=1)
        return self.control.heartbeats(ShardHeartbeatsRequest(signs=[sign]))

    def pass_time(self, seconds: float, *, confirmed: bool = True) -> None:
        """Let time pass in ticks; in each, a quorum confirms the leadership unless `confirmed` is false."""
        end = self.clock.now + seconds
        while self.clock.now < end - 1e-9:
            self.clock.now = min(end, self.clock.now + 0.05)
            self.control.turn()
            if confirmed:
                self.confirmed_at = self.clock.now
                self.control.judge()

    def failed(self) -> bool:
        """True if the shard was failed."""
        return any(isinstance(command, FailShards) for command in self.submitted)


async def _at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@pytest.fixture
async def h() -> AsyncIterator[Harness]:
    """A harness with a loop, on which tasks get their turns."""
    harness = Harness()
    yield harness
    harness.control.close()


async def test_a_grant_is_counted_from_the_last_confirmation(h: Harness) -> None:
    assert h.beat().clearance_ms == 3000
    h.clock.now += 1.0
    assert h.beat().clearance_ms == 2000
    h.clock.now += 2.5
    assert h.beat().clearance_ms == 0


async def test_the_heartbeat_of_another_process_is_refused(h: Harness) -> None:
    answer = h.beat("b")
    assert list(answer.refused) == ["s1"]


async def test_a_silent_shard_is_failed_after_its_clearance_and_not_before(h: Harness) -> None:
    h.beat()
    h.pass_time(3.5)
    await asyncio.sleep(0)
    assert not h.failed()
    h.pass_time(0.2)
    await asyncio.sleep(0)
    assert h.failed()


async def test_a_shard_that_is_heard_while_another_command_has_its_turn_is_not_failed(h: Harness) -> None:
    h.beat()
    async with h.turn:
        h.pass_time(3.7)
        await asyncio.sleep(0)
        assert h.beat().clearance_ms == 3000
    await asyncio.sleep(0)
    assert not h.failed()
    h.pass_time(3.7)
    await asyncio.sleep(0)
    assert h.failed()


async def test_a_shard_gets_no_clearance_while_its_failure_is_recorded(h: Harness) -> None:
    h.beat()
    h.recorded.clear()
    h.pass_time(3.7)
    await asyncio.sleep(0)
    assert h.failed()
    assert list(h.beat().refused) == ["s1"]
    h.recorded.set()


async def test_no_shard_is_failed_while_many_nodes_are_silent_or_no_quorum_confirms(h: Harness) -> None:
    h.beat()
    h.nodes_are_silent = True
    h.pass_time(10)
    h.nodes_are_silent = False
    h.pass_time(10, confirmed=False)
    await asyncio.sleep(0)
    assert not h.failed()


async def test_a_late_heartbeat_counts_as_a_flap(h: Harness) -> None:
    h.beat()
    h.pass_time(2.0)
    h.beat()
    h.pass_time(2.6)
    h.beat()
    await asyncio.sleep(0)
    assert h.submitted == [NoteFlap("s1", "a")]


@pytest.mark.parametrize(("unconfirmed", "waits"), [(0.0, 3.3), (1.0, 2.3), (2.0, 2.0), (10.0, 2.0)])
async def test_a_new_controller_waits_for_former_grants_to_end_and_for_shards_to_find_it(
    unconfirmed: float, waits: float
) -> None:
    """On a shard's clock, a grant of the former controller ends 3 s after the controller's last confirmation. The new
    controller's clock may run 1.1 times as fast, so it waits longer: 3.3 s.
    """
    h = Harness(unconfirmed=unconfirmed)
    h.pass_time(waits - 0.06)
    await asyncio.sleep(0)
    assert not h.failed()
    assert h.control.is_alive("s1")
    h.pass_time(0.12)
    await asyncio.sleep(0)
    assert h.failed()
    h.control.close()


async def test_a_shard_that_a_new_controller_has_heard_has_the_whole_timeout(h: Harness) -> None:
    h.pass_time(1.0)
    h.beat()
    h.pass_time(3.5)
    await asyncio.sleep(0)
    assert not h.failed()


@pytest.mark.parametrize("heard", [True, False])
async def test_a_verdict_names_the_shards_that_were_never_heard(h: Harness, heard: bool) -> None:
    if heard:
        h.beat()
    h.pass_time(12.0)
    await asyncio.sleep(0)
    [command] = [command for command in h.submitted if isinstance(command, FailShards)]
    assert ("s1" in command.unheard) is not heard
