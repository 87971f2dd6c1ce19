"""This node as a member: it registers, sends heartbeats, and holds the clearance that the answers grant."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Node
from minka.v1.coordinator_pb2 import (
    ControlledShutdownRequest,
    HeartbeatRequest,
    LeaveRequest,
    RegisterRequest,
    RegisterResponse,
    UnansweredPort,
)
from minkad.coordinator.clock_offset import ClockOffset
from minkad.coordinator.controller_calls import ANYBODY, CallsAt, ControllerCalls
from minkad.coordinator.heartbeat_reports import DataPlane, HeartbeatReports
from minkad.coordinator.raft_driver import RaftDriver
from minkad.core.clearance import Clearance
from minkad.core.controller_methods import CONTROLLED_SHUTDOWN, LEAVE, REGISTER, Method, Request, Response
from minkad.core.state import is_up
from minkad.process.clock import ClusterClock
from minkad.storage.disk_space import DiskWatch
from minkad.storage.log_database import LogDatabase

log: Final = logging.getLogger(__name__)

# With these answers, the active controller of this node's own cluster makes the process stop. CLUSTER_MISMATCH isn't a
# reason to stop: it comes from another cluster's node, perhaps at the address of a former member.
FINAL: Final = (
    Code.NODE_ID_TAKEN,
    Code.NODE_REMOVED,
    Code.WRONG_DATA_DIRECTORY,
    Code.DATA_DIRECTORY_ROLLED_BACK,
)
# Answers about the calling process: no other node can know better.
_VERDICTS: Final = (*FINAL, Code.NOT_REGISTERED, Code.NOT_SERVING)
RETRY: Final = 0.1  # seconds between tries to register for the first time
SHUTDOWN_POLL: Final = 0.02
_OPEN: Final = (Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED)


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The intervals of heartbeats, and this node's timeouts; in seconds."""

    heartbeat_interval: float
    silence_timeout: float  # without an answer for this long, the node looks for the controller again
    holder_patience: float  # while its id is taken, the node waits this long for its last process's clearance to end

    @property
    def call_timeout(self) -> float:
        """The time in which the controller, which may be busy, has to answer a call. The wait for a silent controller
        ends earlier if Raft names another one.
        """
        return max(1.0, 5 * self.heartbeat_interval)

    @property
    def hurry(self) -> float:
        """The pause between two tries to reach the controller, or to get a clearance from a controller that has just
        begun to lead.
        """
        return self.heartbeat_interval / 4


class Member:
    """Registers this process and sends heartbeats. If the controller no longer counts the process as up, it registers
    again.
    """

    def __init__(
        self,
        node: Node,
        settings: MemberSettings,
        calls: ControllerCalls,
        *,
        other_addresses: Callable[[], Sequence[str]],
        data_plane: DataPlane,
        raft: RaftDriver,
        now: Callable[[], float],
        clock: ClusterClock,
        disk: DiskWatch,
        log_db: LogDatabase,
        unanswered: Callable[[], Mapping[str, str]],
    ) -> None:
        """`unanswered` returns the data ports that don't answer this node, and their errors."""
        self.node = node  # the row that this process registers; its incarnation changes when the process does so again
        self.clearance = Clearance()
        self.registered = asyncio.Event()  # set while an active controller answers this node's heartbeats
        self.low_disks: frozenset[str] = frozenset()  # the nodes whose disks are low, by the last answer
        self._settings = settings
        self._calls = calls
        self._controller_address = calls.controller_address
        self._other_addresses = other_addresses
        self._unheard_since: float | None = None  # since when Raft has named no controller; None while it names one
        self._asked = 0  # the number of times that another node was asked for the controller
        self._is_known = False  # this process is registered; a new controller knows this from the table
        self._silent: str | None = None  # the address at which the controller did not answer last time
        self._look = asyncio.Event()  # Raft names another leader: try again at once
        self._ungranted = asyncio.Event()  # the last answer granted no clearance: the next heartbeat follows sooner
        self._data_plane = data_plane
        self._raft = raft
        self._now = now
        self.clock = clock
        self._disk = disk
        self._log_db = log_db
        self._unanswered = unanswered
        self.withheld = ""  # the reason why the active controller gives no clearance
        self._sequence = 0  # of the last heartbeat
        self._answered = 0  # the sequence number of the last answer
        self._stream = 0  # the number of the present stream of heartbeats
        self._sent_at: dict[int, float] = {}  # by sequence number: when the unanswered heartbeats were sent
        self._problem = ""  # the code of the last error, which isn't logged again

    def has_clearance(self) -> bool:
        """True if this node may serve now."""
        return self.clearance.holds(self._now())

    def running_migrations(self) -> int:
        """The number of migrations from this node."""
        return len(self._data_plane.migrations())

    async def run(self) -> None:
        """Run until cancelled. Raises MinkaError with a code of FINAL if this process has to stop."""
        while True:
            await self._disk_answers()
            self._look.clear()
            known, asked = self._controller_address(), None
            rest = self._settings.hurry
            try:
                address = asked = self._address_to_ask()
                if not self._is_known or address != self._controller_address():
                    address = await self._register(address)
                await self._send_heartbeats(address)
            except MinkaError as error:
                if error.code in FINAL:
                    raise
                if error.code is Code.NOT_REGISTERED:
                    self._is_known = False
                is_silent = error.code in (Code.UNREACHABLE, Code.DEADLINE_EXCEEDED)
                # This node is never silent to itself: its own table had an old address of this node.
                self._silent = known if is_silent and asked == known != self.node.address else None
                self._note(error)
                if error.code is Code.NOT_SERVING:
                    self.withheld, rest = error.message, self._settings.heartbeat_interval
            self.registered.clear()
            try:
                async with asyncio.timeout(rest):
                    await self._look.wait()
            except TimeoutError:
                pass

    async def _disk_answers(self) -> None:
        """Wait while the disk doesn't answer: without heartbeats this node is replaced as a leader, as it has to be."""
        if self._log_db.stalled:
            log.warning("the disk does not answer, so this node sends no heartbeats")
            await self._until_disk_answers()
            log.warning("the disk answers again")

    async def _until_disk_answers(self) -> None:
        while self._log_db.stalled:  # noqa: ASYNC110 - depends on time alone, which sets no event
            await asyncio.sleep(self._settings.hurry)

    def leader_changed(self) -> None:
        """Raft names another leader: end all waits for the former one."""
        if self._controller_address() is not None:
            self._look.set()
            self._calls.leader_changed()

    def nodes_changed(self, row: Node | None) -> None:
        """The table's nodes have changed; `row` is this node's. As soon as the table has this node's registration, the
        node doesn't wait for the answer, which may be lost: the controller expects heartbeats.
        """
        if self._is_known or row is None or row.incarnation != self.node.incarnation or not is_up(row):
            return
        self._is_known = True
        self._calls.table_answered()

    def _note(self, error: MinkaError) -> None:
        """Log each problem once, not at each try."""
        if self.registered.is_set() and error.code is not Code.NOT_CONTROLLER:
            log.warning("lost the active controller", extra={"reason": str(error)})
        elif error.code.name != self._problem:
            level = logging.WARNING if error.code is Code.CLUSTER_MISMATCH else logging.INFO
            log.log(level, "not in touch with the active controller", extra={"reason": str(error)})
        self._problem = error.code.name

    def _in_touch(self, controller: str) -> None:
        if not self.registered.is_set():
            self._problem, self._silent = "", None
            self.registered.set()
            log.info("in touch with the active controller", extra={"controller": controller})

    def _address(self) -> str:
        address = self._controller_address()
        if address is None:
            raise MinkaError(Code.NO_CONTROLLER, "no leader is known")
        return address

    def _address_to_ask(self) -> str:
        """The active controller's address. If Raft has named no controller for `silence_timeout`, or if the controller
        doesn't answer, the other nodes' addresses in turn: each of them may name the controller. A removed node learns
        of its removal in this way, since no leader sends to it. Raises NO_CONTROLLER.
        """
        address = self._controller_address()
        others = list(self._other_addresses())
        if address is not None:
            self._unheard_since = None
            if address != self._silent or not others:
                return address
        else:
            now = self._now()
            if self._unheard_since is None:
                self._unheard_since = now
            if now - self._unheard_since < self._settings.silence_timeout or not others:
                raise MinkaError(Code.NO_CONTROLLER, "no leader is known")
        self._asked += 1
        return others[self._asked % len(others)]

    async def _register(self, address: str) -> str:
        settings, was_known = self._settings, self._is_known
        patience = settings.holder_patience + settings.call_timeout
        if self._is_known and self._controller_address() not in (None, address):
            # The asked node only has to name the controller. If this node is silent, too, try the controller again.
            patience = settings.heartbeat_interval
        try:
            # The wait has a limit, since the asked node may name a silent controller.
            async with self._calls.waiting(ANYBODY, patience):
                request = RegisterRequest(node=self.node, log_unchecked=not self._raft.log_is_checked)
                controller, _ = await register_patiently(
                    self._when_disk_answers,
                    [address],
                    request,
                    settings.holder_patience,
                    settings.call_timeout,
                    self._now,
                )
        except TimeoutError:
            if was_known or not self._is_known:
                text = f"the controller at {address} did not register this node"
                raise MinkaError(Code.UNREACHABLE, text) from None
            controller = self._address()
        except MinkaError as error:
            if error.code is Code.NOT_REGISTERED:
                self._begin_again()
            raise
        self._is_known = True
        log.info("registered", extra={"controller": controller})
        return controller

    async def _when_disk_answers(
        self, address: str, method: Method[Request, Response], request: Request, timeout: float
    ) -> Response:
        """Call the node at the address. A try to register may come long after the first: if the disk has stalled
        meanwhile, a registered node could be chosen to lead, and would send no heartbeats.
        """
        await self._until_disk_answers()
        return await self._calls.call_at(address, method, request, timeout)

    def _begin_again(self) -> None:
        """The controller counts this process as dead, so the process comes back as a new one. It leads nothing, and
        ignores rows that are on their way to the process that it was.
        """
        self._data_plane.stop_leading()
        self.node = as_new_process(self.node)

    async def _send_heartbeats(self, address: str) -> None:
        """Send heartbeats until Raft names another controller. Raises the controller's refusal, and UNREACHABLE if it
        is silent.
        """
        self._sent_at.clear()
        reports, offset = HeartbeatReports(self._data_plane), ClockOffset(self.clock)
        requests = self._heartbeats(self._stream, reports, offset)
        responses = self._calls.heartbeats(address, requests)
        heard_at = self._now()
        try:
            while True:
                async with self._calls.waiting(address, self._settings.silence_timeout):
                    response = await anext(responses)
                heard_at = self._now()
                self._in_touch(address)
                self.clearance.grant(self._sent_at.pop(response.sequence), response.clearance_ms / 1000)
                self._answered = response.sequence
                if not response.clearance_ms:
                    self._ungranted.set()
                offset.answered(response)
                self._note_withheld(response.withheld)
                self.low_disks = frozenset(response.low_disks)
                if response.from_start_wanted:
                    reports.begin_again()
        except (TimeoutError, StopAsyncIteration) as end:
            if self._log_db.stalled:
                return  # it had no heartbeat to answer
            known = self._controller_address()
            if known not in (None, address) and self._now() - heard_at < 2 * self._settings.heartbeat_interval:
                return  # another node leads, and no time was lost
            raise MinkaError(Code.UNREACHABLE, f"the controller at {address} does not answer heartbeats") from end
        finally:
            self._stream += 1
            await responses.aclose()

    def _note_withheld(self, reason: str) -> None:
        """If the controller finds that this node serves nothing, give up the clearance: then other nodes can take over
        at once.
        """
        if reason:
            self.clearance.revoke()
            if not self.withheld:
                log.warning("this node serves nothing, so it gives up its clearance", extra={"reason": reason})
        self.withheld = reason

    async def _heartbeats(
        self, stream: int, reports: HeartbeatReports, offset: ClockOffset
    ) -> AsyncGenerator[HeartbeatRequest, None]:
        # After the call has ended, gRPC still asks for the next heartbeat, and drops it: give it none.
        while stream == self._stream:
            await self._until_disk_answers()
            self._sequence += 1
            request = HeartbeatRequest(
                node_id=self.node.id,
                incarnation=self.node.incarnation,
                sequence=self._sequence,
                applied_index=self._raft.applied_index,
                disk=self._disk.space,
                unanswered=[UnansweredPort(node_id=node, reason=why) for node, why in self._unanswered().items()],
                without_clearance=not self.has_clearance(),
                answered_sequence=self._answered,
            )
            reports.add_to(request)
            offset.add_to(request)
            self._sent_at[self._sequence] = self._now()
            self._ungranted.clear()
            yield request
            try:
                async with asyncio.timeout(self._settings.heartbeat_interval):
                    await self._ungranted.wait()
                    await asyncio.sleep(self._settings.hurry)
            except TimeoutError:
                pass

    async def shut_down(self, timeout: float) -> None:
        """Let other nodes take over this node's leaderships, in at most `timeout` seconds. Until then this node serves
        its partitions.
        """
        request = ControlledShutdownRequest(node_id=self.node.id, incarnation=self.node.incarnation)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        answer = await self._calls.call(CONTROLLED_SHUTDOWN, request)
                        if not answer.remaining:
                            return
                    except MinkaError as error:
                        self._note(error)
                    await asyncio.sleep(SHUTDOWN_POLL)
        except TimeoutError:
            log.warning("other nodes have not taken over all leaderships in time", extra={"seconds": timeout})

    async def leave(self, timeout: float) -> None:
        """Tell the controller that this process has stopped serving. If this fails for `timeout` seconds, give up: the
        controller will miss the heartbeats.
        """
        request = LeaveRequest(node_id=self.node.id, incarnation=self.node.incarnation)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        await self._calls.call(LEAVE, request)
                        return
                    except MinkaError as error:
                        # The next controller may be elected and not active yet. To say goodbye twice does no harm.
                        if not error.code.info.retriable and error.code not in _OPEN:
                            log.info("could not say goodbye", extra={"reason": str(error)})
                            return
                    await asyncio.sleep(SHUTDOWN_POLL)
        except TimeoutError:
            log.info("could not say goodbye in time", extra={"seconds": timeout})


def as_new_process(node: Node) -> Node:
    """The node's row for a new process after the controller counted the last one as dead."""
    row = Node()
    row.CopyFrom(node)
    first, _, number = node.incarnation.partition(".")
    row.incarnation = f"{first}.{int(number or 1) + 1}"
    return row


async def register_patiently(
    call_at: CallsAt,
    addresses: Sequence[str],
    request: RegisterRequest,
    holder_patience: float,
    call_timeout: float,
    now: Callable[[], float],
) -> tuple[str, RegisterResponse]:
    """Register at the active controller, which any of `addresses` may name. Returns its address and its response.

    If the node's former process has just died, the node has to wait until that process's clearance ends. So
    NODE_ID_TAKEN is raised only after `holder_patience` seconds, or at once if the holder has another data directory.
    """
    give_up = now() + holder_patience
    candidates = list(addresses)
    while True:
        address = candidates.pop(0)
        try:
            return address, await call_at(address, REGISTER, request, call_timeout)
        except MinkaError as error:
            taken_for_now = error.code is Code.NODE_ID_TAKEN and error.details.get("same_data") == "true"
            leader = error.details.get("leader_address", "")
            if error.code is Code.NOT_CONTROLLER and leader and leader != address:
                candidates.insert(0, leader)
                continue
            if taken_for_now and now() < give_up:
                candidates.insert(0, address)
            elif not candidates or error.code in _VERDICTS:
                raise
        await asyncio.sleep(RETRY)
