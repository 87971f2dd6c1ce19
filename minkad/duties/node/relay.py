"""This node's messages to the active controller about its shards: their heartbeats, and their reports about duties."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from minka.errors import Code, MinkaError
from minka.v1.duties_pb2 import Shard
from minka.v1.shards_pb2 import (
    LeaveShardRequest,
    RegisterShardRequest,
    ReportShardsRequest,
    ShardHeartbeatsRequest,
    ShardHeartbeatsResponse,
    ShardReport,
    ShardReported,
    ShardSign,
)
from minkad.coordinator.controller_calls import ControllerCalls
from minkad.core.controller_methods import (
    LEAVE_SHARD,
    REGISTER_SHARD,
    REPORT_SHARDS,
    SHARD_HEARTBEATS,
    Method,
    Request,
    Response,
)

log: Final = logging.getLogger(__name__)

# After these errors, another controller may answer, or this controller in a moment.
_TRY_AGAIN: Final = (
    *(Code.NOT_CONTROLLER, Code.NO_CONTROLLER, Code.UNREACHABLE, Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED),
    *(Code.OVERLOADED, Code.SHUTTING_DOWN),
)

SIGNS_GATHER_S: Final = 0.025  # the first heartbeat waits this long for more, since calls are expensive
MAX_REPORTS: Final = 200  # in a call
REPORT_CALLS: Final = 2  # calls under way at once; each lasts until its reports are recorded


class Heard(Protocol):
    """A session whose shard has sent a heartbeat."""

    @property
    def is_open(self) -> bool:
        """True if the shard still waits for an answer."""

    def granted(self, sequence: int, clearance_ms: int) -> None:
        """The controller has renewed the shard's clearance."""

    def fenced(self, reason: str) -> None:
        """The controller counts the shard's process as dead."""


class Relay:
    """Repeats every call until a controller answers; the caller decides how long to wait. `hurry`: seconds between
    two tries.
    """

    def __init__(self, controller: ControllerCalls, hurry: float) -> None:
        self._controller = controller
        self._hurry = hurry
        self._signs: dict[tuple[str, str], tuple[int, Heard]] = {}  # by process: the last heartbeat to tell
        self._signed = asyncio.Event()
        self._reports: deque[tuple[ShardReported, asyncio.Future[int]]] = deque()  # reports to tell
        self._reported = asyncio.Event()

    def beat(self, shard: Shard, sequence: int, session: Heard) -> None:
        """Note that the shard lives."""
        self._signs[shard.name, shard.incarnation] = sequence, session
        self._signed.set()

    async def run(self) -> None:
        """Send heartbeats and reports to the controller, until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._tell_heartbeats(), name="heartbeats of shards")
            both.create_task(self._tell_reports(), name="reports of shards")

    async def _tell_heartbeats(self) -> None:
        while True:
            await self._signed.wait()
            await asyncio.sleep(SIGNS_GATHER_S)
            self._signed.clear()
            signs = {process: sign for process, sign in self._signs.items() if sign[1].is_open}
            self._signs = {}
            if not signs:
                continue
            request = ShardHeartbeatsRequest(
                signs=[
                    ShardSign(shard=name, incarnation=incarnation, sequence=sequence)
                    for (name, incarnation), (sequence, _) in signs.items()
                ]
            )
            response = await self._renewed(request)
            if not response.clearance_ms:  # no answer, or no quorum has confirmed the controller yet
                self._signs = {**signs, **self._signs}
                self._signed.set()
                await asyncio.sleep(self._hurry)
                continue
            refused = set(response.refused)
            for (name, _), (sequence, session) in signs.items():
                if name in refused:
                    session.fenced("the active controller doesn't know this process as a live one")
                else:
                    session.granted(sequence, response.clearance_ms)

    async def _renewed(self, request: ShardHeartbeatsRequest) -> ShardHeartbeatsResponse:
        """The answer; an empty one if no controller answers."""
        try:
            return await self._controller.call(SHARD_HEARTBEATS, request)
        except MinkaError as error:
            if error.code not in _TRY_AGAIN:
                log.warning("heartbeats of shards are refused", extra={"reason": str(error)})
            return ShardHeartbeatsResponse()

    async def register(self, shard: Shard) -> int:
        """Register a process. Returns the index of the log at which the process is registered. Raises MinkaError:
        SHARD_NAME_TAKEN, SHARD_FENCED, or the fault of the request.
        """
        return (await self._patiently(REGISTER_SHARD, RegisterShardRequest(shard=shard))).index

    async def report(self, shard: Shard, report: ShardReport) -> int:
        """Report for a shard. Returns the index of the log at which the report is recorded. Raises MinkaError:
        SHARD_FENCED, or the fault of the report.
        """
        recorded: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        one = ShardReported(shard=shard.name, incarnation=shard.incarnation, report=report)
        self._reports.append((one, recorded))
        self._reported.set()
        return await recorded

    async def _tell_reports(self) -> None:
        """Reports that come while all calls are under way share the next call. A shard has one report under way at a
        time, so the order of the answers doesn't matter.
        """
        free = asyncio.Semaphore(REPORT_CALLS)
        async with asyncio.TaskGroup() as calls:
            while True:
                await self._reported.wait()
                await free.acquire()
                some = [self._reports.popleft() for _ in range(min(len(self._reports), MAX_REPORTS))]
                if not self._reports:
                    self._reported.clear()
                waiting = [(one, recorded) for one, recorded in some if not recorded.done()]
                call = calls.create_task(self._tell(waiting), name="reports of shards")
                call.add_done_callback(lambda _: free.release())

    async def _tell(self, waiting: Sequence[tuple[ShardReported, asyncio.Future[int]]]) -> None:
        request = ReportShardsRequest(reports=[one for one, _ in waiting])
        try:
            response = await self._patiently(REPORT_SHARDS, request)
        except MinkaError as error:
            refusal = error
            _answer(waiting, lambda _: refusal)
            return
        fenced = set(response.fenced)
        text = "the cluster counts its process as dead"
        _answer(waiting, lambda one: MinkaError(Code.SHARD_FENCED, text) if one.shard in fenced else response.index)

    async def leave(self, shard: Shard) -> None:
        """Tell the controller that the shard's process is about to stop. Raises the MinkaError of a refusal."""
        await self._patiently(LEAVE_SHARD, LeaveShardRequest(shard=shard.name, incarnation=shard.incarnation))

    async def _patiently(self, method: Method[Request, Response], request: Request) -> Response:
        while True:
            try:
                return await self._controller.call(method, request)
            except MinkaError as error:
                if error.code not in _TRY_AGAIN:
                    raise
            await asyncio.sleep(self._hurry)


def _answer(
    waiting: Sequence[tuple[ShardReported, asyncio.Future[int]]],
    answer: Callable[[ShardReported], int | MinkaError],
) -> None:
    for one, recorded in waiting:
        if recorded.done():
            continue
        match answer(one):
            case MinkaError() as error:
                recorded.set_exception(error)
            case index:
                recorded.set_result(index)
