"""A node finds the next active controller, even if the former one never answers. In these tests, only the node's own
waits take time.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Node, NodeState, Partition
from minka.v1.coordinator_pb2 import (
    AlterIsrRequest,
    DiskSpace,
    HandOverRequest,
    HandOverResponse,
    HeartbeatRequest,
    HeartbeatResponse,
)
from minkad.coordinator.controller_calls import ControllerCalls
from minkad.coordinator.member import Member, MemberSettings
from minkad.coordinator.raft_driver import RaftDriver
from minkad.core.controller_methods import ALTER_ISR, HAND_OVER, HEARTBEAT, REGISTER, Method, Request, Response
from minkad.process.clock import ClusterClock
from minkad.storage.disk_space import DiskWatch
from minkad.storage.log_database import LogDatabase
from tests.simulation.loop import ProcessLoop

if TYPE_CHECKING:
    from minkad.coordinator.heartbeat_reports import DataPlane

OWN, OLD, NEXT, THIRD = "athens:7400", "byzantium:7400", "cyrene:7400", "delphi:7400"
BEAT = 0.2
CLEARANCE = 0.6
LIVE = NodeState.NODE_STATE_LIVE


class Athens:
    """The member of the node athens, and the nodes that answer it. Addresses in `silent` never answer."""

    def __init__(self, *, registered: bool = True) -> None:
        self.seconds = 0.0
        self.known: str | None = OLD
        self.leader = OLD  # the real leader; other nodes name `hint` as the leader
        self.hint = OLD
        self.silent: set[str] = set()
        self.is_mute_here = False  # True: as the controller, athens answers only heartbeats
        self.log_db = SimpleNamespace(stalled=False)
        self.is_taken = False  # another process may hold this node's clearance
        self.grants = CLEARANCE
        self.withheld = ""
        self.unanswered: dict[str, str] = {}
        self.requests: list[HeartbeatRequest] = []
        self.registrations: list[tuple[float, str]] = []
        self.heartbeats: list[tuple[float, str]] = []
        self.is_registered = registered
        self._loop = ProcessLoop(lambda: self.seconds, lambda _: None)
        settings = MemberSettings(BEAT, CLEARANCE, 1.0)
        self.calls = ControllerCalls(OWN, lambda: self.known, self.answer_here, self, settings.call_timeout)
        self.member = Member(
            Node(id="athens", incarnation="7", address=OWN),
            settings,
            self.calls,
            other_addresses=lambda: (OLD, NEXT, THIRD),
            data_plane=cast("DataPlane", self),
            raft=cast("RaftDriver", SimpleNamespace(applied_index=0, log_is_checked=True)),
            now=lambda: self.seconds,
            clock=ClusterClock(self.nanoseconds, self.nanoseconds),
            disk=cast("DiskWatch", SimpleNamespace(space=DiskSpace())),
            log_db=cast("LogDatabase", self.log_db),
            unanswered=lambda: self.unanswered,
        )
        self.task = self._loop.create_task(self.member.run())

    def nanoseconds(self) -> int:
        return int(self.seconds * 1e9)

    def run(self, seconds: float) -> None:
        end = self.seconds + seconds
        self._loop.turn()
        while (due := self._loop.next_due()) is not None and due <= end:
            self.seconds = max(self.seconds, due)
            self._loop.turn()
        self.seconds = end

    def end(self) -> None:
        self._loop.kill()

    def ask(
        self, method: Method[Request, Response], request: Request, timeout: float | None = None
    ) -> "asyncio.Task[Response]":
        return self._loop.create_task(self.calls.call(method, request, timeout))

    def elect(self, address: str) -> None:
        """Elect a controller; Raft tells athens of it."""
        self.leader = self.hint = self.known = address
        self._loop.call_at(self.seconds, self.member.leader_changed)

    def call_soon(self, happens: Callable[[], None]) -> None:
        self._loop.call_soon(happens)

    def stats(self, changed_only: bool) -> list[object]:
        return []

    def migrations(self) -> list[object]:
        return []

    def damaged(self) -> list[object]:
        return []

    def stop_leading(self) -> None:
        raise AssertionError("nobody stops this leader: the controller doesn't treat the node as failed")

    # The controller's side

    async def _reach(self, address: str, seconds: float) -> None:
        if address in self.silent:
            await asyncio.sleep(seconds)
            raise MinkaError(Code.DEADLINE_EXCEEDED, f"{address} did not answer in time")
        if address != self.leader:
            raise MinkaError(Code.NOT_CONTROLLER, "another node is the controller", leader_address=self.hint)

    async def call(self, address: str, method: Method[Request, Response], request: Request, timeout: float) -> Response:
        if method is REGISTER:
            self.registrations.append((self.seconds, address))
        await self._reach(address, timeout)
        if method is REGISTER:
            if self.is_taken:
                raise MinkaError(Code.NODE_ID_TAKEN, "its former process is live", same_data="true")
            self.is_registered = True
        return cast(Response, HandOverResponse(partition=Partition(id=1)) if method is HAND_OVER else method.response())

    async def heartbeat(
        self, address: str, requests: AsyncIterator[HeartbeatRequest]
    ) -> AsyncGenerator[HeartbeatResponse, None]:
        async for request in requests:
            self.heartbeats.append((self.seconds, address))
            self.requests.append(request)
            await self._reach(address, 1e9)
            if not self.is_registered:
                raise MinkaError(Code.NOT_REGISTERED, "the node is not registered")
            granted = 0 if self.withheld else int(self.grants * 1000)
            yield HeartbeatResponse(sequence=request.sequence, clearance_ms=granted, withheld=self.withheld)

    async def answer_here(self, method: Method[Any, Any], request: Any, timeout: float) -> Any:
        if method is HEARTBEAT:
            self.heartbeats.append((self.seconds, OWN))
        if method is REGISTER:
            self.registrations.append((self.seconds, OWN))
        if self.leader != OWN:
            raise MinkaError(Code.NOT_CONTROLLER, "another node leads", leader_address=self.hint)
        if method is HEARTBEAT:
            return HeartbeatResponse(sequence=request.sequence, clearance_ms=int(self.grants * 1000))
        if self.is_mute_here:
            await asyncio.sleep(1e9)
        return HandOverResponse(partition=Partition(id=2)) if method is HAND_OVER else method.response()

    def first_heartbeat(self, address: str) -> float:
        return next(at for at, to in self.heartbeats if to == address)


@pytest.fixture
def athens() -> Iterator[Athens]:
    """A node that is in touch with the first controller."""
    athens = Athens()
    athens.run(1.0)
    assert athens.member.has_clearance()
    yield athens
    athens.end()


@pytest.mark.parametrize("after", [0.0, 0.1, 0.55, 0.7, 1.0, 1.5])
def test_the_next_controller_gets_heartbeats_at_once_although_the_last_one_is_silent(
    athens: Athens, after: float
) -> None:
    """At the election, the node may be waiting for the silent controller's answer, for another node's hint, or for its
    own registration.
    """
    athens.silent.add(OLD)
    athens.run(after)
    elected_at = athens.seconds
    athens.elect(NEXT)
    athens.run(2 * BEAT)
    assert athens.first_heartbeat(NEXT) - elected_at <= BEAT / 2
    assert athens.member.has_clearance()


def test_a_node_does_not_register_again_at_a_new_controller(athens: Athens) -> None:
    before = len(athens.registrations)
    athens.elect(NEXT)
    athens.run(1.0)
    assert len(athens.registrations) == before
    assert athens.member.registered.is_set()


def test_a_node_does_not_wait_for_the_answer_once_its_registration_is_recorded() -> None:
    """The controller's answer to the registration is lost, and the next node that athens asks is silent. The row in the
    table shows athens that it is registered.
    """
    athens = Athens()
    athens.silent = {OLD, NEXT, THIRD}
    athens.run(0.1)
    athens.call_soon(lambda: athens.member.nodes_changed(Node(id="athens", incarnation="6", state=LIVE)))
    athens.run(0.1)
    assert not athens.heartbeats, "that is a former process"
    athens.silent = {NEXT, THIRD}
    athens.is_registered = True
    athens.call_soon(lambda: athens.member.nodes_changed(Node(id="athens", incarnation="7", state=LIVE)))
    athens.run(0.1)
    assert athens.member.has_clearance()
    assert len(athens.registrations) == 1
    athens.end()


def test_other_nodes_are_asked_when_raft_names_only_a_silent_one(athens: Athens) -> None:
    """Athens is a learner that the new leader can't reach, so its Raft core still names the old leader."""
    athens.silent.add(OLD)
    athens.leader = athens.hint = NEXT
    athens.run(CLEARANCE + 2 * BEAT)
    assert athens.first_heartbeat(NEXT) > 0
    assert athens.member.has_clearance()


def test_a_paused_controller_is_found_again_although_all_other_nodes_are_silent(athens: Athens) -> None:
    athens.silent |= {OLD, NEXT, THIRD}
    athens.run(CLEARANCE + BEAT)
    athens.silent.remove(OLD)
    before = len(athens.heartbeats)
    athens.run(1.5 * BEAT)
    assert OLD in [to for _, to in athens.heartbeats[before:]]
    assert athens.member.has_clearance()


def test_a_node_with_a_stalled_disk_sends_no_heartbeats_and_does_not_register(athens: Athens) -> None:
    athens.log_db.stalled = True
    athens.run(BEAT)
    before = len(athens.heartbeats), len(athens.registrations)
    athens.run(3 * CLEARANCE)
    assert (len(athens.heartbeats), len(athens.registrations)) == before
    assert not athens.member.has_clearance()
    athens.log_db.stalled = False
    athens.run(BEAT)
    assert athens.member.has_clearance()


def test_a_node_whose_disk_stalls_while_its_id_is_taken_does_not_register(athens: Athens) -> None:
    athens.is_taken = True
    athens.member._is_known = False
    athens.elect(NEXT)
    athens.run(0.5)
    assert len(athens.registrations) > 2, "it tries repeatedly"
    athens.log_db.stalled, athens.is_taken = True, False
    before = len(athens.registrations)
    athens.run(3 * CLEARANCE)
    assert len(athens.registrations) == before
    athens.log_db.stalled = False
    athens.run(3 * BEAT)
    assert athens.member.has_clearance()


def test_heartbeats_say_which_data_ports_do_not_answer(athens: Athens) -> None:
    athens.unanswered = {"cyrene": "no answer"}
    athens.run(BEAT)
    assert [(one.node_id, one.reason) for one in athens.requests[-1].unanswered] == [("cyrene", "no answer")]
    athens.unanswered = {}
    athens.run(BEAT)
    assert not athens.requests[-1].unanswered


def test_a_node_that_serves_nothing_gives_up_its_clearance_and_reports_it_soon(
    athens: Athens, caplog: pytest.LogCaptureFixture
) -> None:
    said = [request.without_clearance for request in athens.requests]
    assert said[0], "it has none yet"
    assert not said[-1]
    athens.withheld = "its data port does not answer"
    athens.run(1.5 * BEAT)
    assert [athens.member.has_clearance(), athens.member.withheld] == [False, "its data port does not answer"]
    assert athens.requests[-1].without_clearance
    assert [r.message for r in caplog.records if "gives up" in r.message] == [
        "this node serves nothing, so it gives up its clearance"
    ], "once"
    athens.withheld = ""
    athens.run(BEAT)
    assert [athens.member.has_clearance(), athens.member.withheld] == [True, ""]


def test_a_heartbeat_names_the_last_heartbeat_whose_answer_has_come(athens: Athens) -> None:
    """Once the node has a new stream, it ignores answers on the former stream."""
    athens.run(BEAT)
    athens.elect(NEXT)
    athens.run(3 * BEAT)
    said = [(request.sequence, request.answered_sequence) for request in athens.requests]
    assert said[0] == (1, 0)
    assert said[1:] == [(sequence, sequence - 1) for sequence, _ in said[1:]]


def test_a_controller_with_a_new_address_registers_at_itself() -> None:
    """The controller's own table has its old address until the controller has registered."""
    athens = Athens(registered=False)
    athens.silent.add(OLD)
    athens.leader, athens.hint, athens.known = "nobody yet", OLD, OWN
    athens.run(5 * CLEARANCE)
    athens.leader = OWN
    athens.run(5 * CLEARANCE)
    assert athens.member.has_clearance()
    athens.end()


def test_the_controllers_own_node_needs_no_connection_to_itself(athens: Athens) -> None:
    athens.silent.add(OWN)
    athens.elect(OWN)
    athens.run(5 * CLEARANCE)
    assert athens.member.has_clearance()


def test_a_node_soon_asks_a_new_controller_again(athens: Athens) -> None:
    """A new controller's first answer may grant no clearance, since no quorum has confirmed yet that it leads."""
    athens.elect(NEXT)
    athens.grants = 0.0
    athens.run(0.05)
    athens.grants = CLEARANCE
    athens.run(BEAT / 2)
    assert [to for _, to in athens.heartbeats].count(NEXT) >= 2
    assert athens.member.has_clearance()


def test_the_outcome_of_a_call_is_unknown_once_another_controller_is_elected(athens: Athens) -> None:
    athens.silent.add(OLD)
    call = athens.ask(ALTER_ISR, AlterIsrRequest(node_id="athens"))
    athens.run(0.3)
    assert not call.done()
    athens.elect(NEXT)
    athens.run(0.01)
    error = call.exception()
    assert isinstance(error, MinkaError)
    assert error.code is Code.OUTCOME_UNKNOWN


def test_a_call_to_a_silent_controller_ends_after_some_heartbeats(athens: Athens) -> None:
    athens.silent.add(OLD)
    call = athens.ask(HAND_OVER, HandOverRequest(node_id="athens"))
    athens.run(5 * BEAT + 0.01)
    assert call.done()


def test_a_node_that_is_the_controller_asks_itself_without_the_network(athens: Athens) -> None:
    athens.silent.add(OWN)  # athens can't reach itself by gRPC
    athens.elect(OWN)
    athens.run(0.1)
    call = athens.ask(HAND_OVER, HandOverRequest(node_id="athens"))
    athens.run(0.01)
    assert call.result() == HandOverResponse(partition=Partition(id=2))
    athens.elect(OLD)
    athens.run(0.1)
    call = athens.ask(HAND_OVER, HandOverRequest(node_id="athens"))
    athens.run(0.01)
    assert call.result() == HandOverResponse(partition=Partition(id=1))


def test_a_call_of_the_controller_to_itself_ends_like_a_call_to_another_node(athens: Athens) -> None:
    """It ends at its deadline, or once another controller is elected: then its outcome is unknown."""
    athens.is_mute_here = True
    athens.elect(OWN)
    athens.run(0.1)
    late = athens.ask(HAND_OVER, HandOverRequest(node_id="athens"), 0.2)
    moved = athens.ask(HAND_OVER, HandOverRequest(node_id="athens"))
    athens.run(0.3)
    athens.elect(NEXT)
    athens.run(0.01)
    errors = [late.exception(), moved.exception()]
    assert [error.code for error in errors if isinstance(error, MinkaError)] == [
        Code.DEADLINE_EXCEEDED,
        Code.OUTCOME_UNKNOWN,
    ]


def test_the_log_says_that_the_controller_was_lost_and_found(athens: Athens, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "minkad")
    athens.silent.add(OLD)
    athens.run(1.0)
    warnings = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert warnings == ["lost the active controller"], "once"
    caplog.clear()
    athens.elect(NEXT)
    athens.run(1.0)
    assert [r.message for r in caplog.records] == ["in touch with the active controller"]
