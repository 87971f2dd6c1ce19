"""A node that stops says goodbye to the active controller, or to the next one. It gives up at a deadline."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Node
from minka.v1.coordinator_pb2 import DiskSpace, HeartbeatRequest, HeartbeatResponse, LeaveRequest
from minkad.coordinator.controller_calls import ControllerCalls
from minkad.coordinator.member import SHUTDOWN_POLL, Member, MemberSettings
from minkad.coordinator.raft_driver import RaftDriver
from minkad.core.controller_methods import LEAVE, Method
from minkad.process.clock import ClusterClock
from minkad.storage.disk_space import DiskWatch
from minkad.storage.log_database import LogDatabase
from tests.simulation.loop import ProcessLoop

if TYPE_CHECKING:
    from minkad.coordinator.heartbeat_reports import DataPlane

TIMEOUT = 2.0
GOODBYE = LeaveRequest(node_id="athens", incarnation="7")
OLD, NEXT = "byzantium:7400", "cyrene:7400"


async def _unasked(method: Method[Any, Any], request: Any, timeout: float) -> Any:
    raise AssertionError("another node is the controller")


class Coordinators:
    """The member of the node Athens, which is stopping. A test sets the controller that the member knows, and the
    answers to the goodbyes.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.known: str | None = OLD
        self.refusals: dict[str, Code] = {}
        self.answer_takes = 0.0
        self.silent: set[str] = set()
        self.asked: list[str] = []
        self.heard: list[tuple[str, LeaveRequest]] = []
        self._loop = ProcessLoop(lambda: self.seconds, lambda _: None)
        settings = MemberSettings(heartbeat_interval=0.1, silence_timeout=1.0, holder_patience=1.0)
        self.member = Member(
            Node(id="athens", incarnation="7"),
            settings,
            ControllerCalls("athens:7400", lambda: self.known, _unasked, self, settings.call_timeout),
            other_addresses=lambda: (),
            data_plane=cast("DataPlane", None),
            raft=cast("RaftDriver", SimpleNamespace(applied_index=0, log_is_checked=True)),
            now=lambda: self.seconds,
            clock=ClusterClock(lambda: 0, lambda: 0),
            disk=cast("DiskWatch", SimpleNamespace(space=DiskSpace())),
            log_db=cast("LogDatabase", SimpleNamespace(stalled=False)),
            unanswered=dict,
        )
        self.member.registered.set()

    def at(self, seconds: float, happens: Callable[[], object]) -> None:
        self._loop.call_at(seconds, happens)

    def elect(self, address: str) -> None:
        self.known = address
        self.member.leader_changed()

    def run(self, stop: Coroutine[Any, Any, None]) -> None:
        """Run the loop until the coroutine is done."""
        task = self._loop.create_task(stop)
        self._loop.turn()
        while not task.done():
            due = self._loop.next_due()
            assert due is not None, "it waits for nothing"
            assert due < 10 * TIMEOUT, "it has no end"
            self.seconds = max(self.seconds, due)
            self._loop.turn()
        task.result()

    def heartbeat(
        self, address: str, requests: AsyncIterator[HeartbeatRequest]
    ) -> AsyncGenerator[HeartbeatResponse, None]:
        raise AssertionError("a node that is stopping sends no heartbeats")

    async def call(self, address: str, method: Method[Any, Any], request: Any, timeout: float) -> Any:
        """Answer a goodbye, as Coordinator.Leave does."""
        assert method is LEAVE
        self.asked.append(address)
        takes = 10 * TIMEOUT if address in self.silent else self.answer_takes
        await asyncio.sleep(min(takes, timeout))
        if takes >= timeout:
            raise MinkaError(Code.DEADLINE_EXCEEDED, f"{address} did not answer in time")
        if address in self.refusals:
            raise MinkaError(self.refusals[address], "the goodbye is refused")
        self.heard.append((address, request))
        return method.response()


def test_the_controller_hears_one_goodbye() -> None:
    c = Coordinators()
    c.run(c.member.leave(TIMEOUT))
    assert c.heard == [(OLD, GOODBYE)]
    assert c.asked == [OLD]
    assert c.seconds == 0.0


@pytest.mark.parametrize("refusal", [Code.NOT_CONTROLLER, Code.NO_CONTROLLER, Code.UNREACHABLE, Code.SHUTTING_DOWN])
def test_a_refused_goodbye_gets_to_the_next_controller(refusal: Code) -> None:
    """The known controller loses its role. Later another controller is elected, and becomes active."""
    c = Coordinators()
    c.refusals = {OLD: refusal, NEXT: Code.NOT_CONTROLLER}
    c.at(0.5, lambda: setattr(c, "known", None))
    c.at(1.0, lambda: c.elect(NEXT))
    c.at(1.5, c.refusals.clear)
    c.run(c.member.leave(TIMEOUT))
    assert c.heard == [(NEXT, GOODBYE)]
    assert list(dict.fromkeys(c.asked)) == [OLD, NEXT]
    assert 1.5 <= c.seconds <= 1.5 + SHUTDOWN_POLL


@pytest.mark.parametrize("known", [None, OLD])
def test_a_goodbye_that_no_controller_hears_ends_at_its_deadline(known: str | None) -> None:
    """The node continues its stop at the deadline."""
    c = Coordinators()
    c.known = known
    c.refusals = {OLD: Code.NOT_CONTROLLER}
    c.at(TIMEOUT + 2 * SHUTDOWN_POLL, c.refusals.clear)
    c.run(c.member.leave(TIMEOUT))
    assert not c.heard
    assert TIMEOUT <= c.seconds <= TIMEOUT + SHUTDOWN_POLL


def test_a_goodbye_to_a_silent_controller_ends_at_its_deadline() -> None:
    c = Coordinators()
    c.answer_takes = 10 * TIMEOUT
    c.run(c.member.leave(TIMEOUT))
    assert not c.heard
    assert set(c.asked) == {OLD}
    assert c.seconds == TIMEOUT


def test_a_goodbye_leaves_a_silent_controller_once_another_is_elected() -> None:
    c = Coordinators()
    c.silent.add(OLD)
    c.at(0.3, lambda: c.elect(NEXT))
    c.run(c.member.leave(TIMEOUT))
    assert c.heard == [(NEXT, GOODBYE)]
    assert c.seconds <= 0.3 + SHUTDOWN_POLL


def test_a_goodbye_that_is_refused_for_good_ends_at_once() -> None:
    """The node continues its stop, and no error is raised."""
    c = Coordinators()
    c.refusals = {OLD: Code.CLUSTER_MISMATCH}
    c.run(c.member.leave(TIMEOUT))
    assert c.asked == [OLD]
    assert c.seconds == 0.0


def test_a_node_that_never_registered_says_goodbye_too() -> None:
    """The controller may have registered the node, even if the answer hasn't come. If it doesn't know the process, it
    ignores the goodbye.
    """
    c = Coordinators()
    c.member.registered.clear()
    c.run(c.member.leave(TIMEOUT))
    assert c.heard == [(OLD, GOODBYE)]


def test_after_a_late_refusal_the_next_try_has_only_the_remaining_time() -> None:
    c = Coordinators()
    c.refusals = {OLD: Code.NOT_CONTROLLER}
    c.answer_takes = 0.7 * TIMEOUT
    c.run(c.member.leave(TIMEOUT))
    assert c.seconds <= TIMEOUT + SHUTDOWN_POLL


def test_after_an_unknown_outcome_the_next_controller_hears_the_goodbye_too() -> None:
    """The first controller lost its leadership during the call, so the goodbye may not be recorded."""
    c = Coordinators()
    c.refusals = {OLD: Code.OUTCOME_UNKNOWN}
    c.at(0.5, lambda: c.elect(NEXT))
    c.run(c.member.leave(TIMEOUT))
    assert c.heard == [(NEXT, GOODBYE)]
