"""The session of a shard with the cluster, on a thread and a loop of its own. No user code runs there, so heartbeats go
on and the clearance is watched even if the delegate or a handler of the log hangs.
"""

import asyncio
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

import grpc

from minka.duties._events import (
    CallDelegate,
    CancelCall,
    Connected,
    Disconnect,
    Disconnected,
    EndProcess,
    Event,
    GiveUp,
    Instruction,
    LoopClosed,
    Method,
    Note,
    Received,
    Send,
    Stopped,
    Tick,
)
from minka.duties._log import Log, end_process
from minka.duties._machine import ShardMachine
from minka.duties._user_calls import Calls, UserMethod
from minka.duties.delegate import Duty
from minka.duties.messages import held_duty
from minka.engine.grpc_calls import aio_channel, channel_credentials, channel_options, claim_aio, error_from_call
from minka.engine.loops import SharedLoop
from minka.errors import Code, MinkaError
from minka.tls import Tls
from minka.v1.shards_pb2 import ShardInstruction, ShardMessage
from minka.v1.shards_pb2_grpc import ShardsStub

_CONNECT_S: Final = 2.0
# The most seconds between two looks at `boottime`: timers of asyncio stand still while the computer sleeps.
_LOOK_S: Final = 0.1
_PAUSE_S: Final = (0.05, 1.0)  # the first and the longest pause between two tries to find a node

_making: Final = threading.Lock()
_shared: "_Shared | None" = None


class _Shared(SharedLoop):
    """The loop of the sessions, its thread, and the log for their messages."""

    def __init__(self) -> None:
        self.log: Final = Log()
        super().__init__("minka shard")
        self.loop.call_soon_threadsafe(self.loop.set_exception_handler, self._failed)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        trace = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        self.log.say(logging.ERROR, f"{context.get('message')}\n{trace}".rstrip())


def boottime() -> float:
    """Seconds by CLOCK_BOOTTIME, which goes on while the computer sleeps. Without this clock: by CLOCK_MONOTONIC."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def shards_loop() -> asyncio.AbstractEventLoop:
    """The loop for the sessions of all shards in this process. It is never closed (see `minka.engine.loops`)."""
    return _sessions().loop


def _sessions() -> _Shared:
    global _shared
    claim_aio()
    with _making:
        if _shared is None:
            _shared = _Shared()
        return _shared


class Session:
    """Carries out the instructions of a `ShardMachine`. A session is made and used on the thread of `shards_loop`; only
    `is_held` and `duties` may be called on any thread.
    """

    def __init__(
        self,
        machine: ShardMachine,
        methods: Mapping[Method, UserMethod],
        endpoints: Sequence[str],
        tls: Tls | None,
        user_loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._machine = machine
        self._log = _sessions().log
        self._calls = Calls(methods, user_loop, self.handle, self.is_held)
        self._user_loop = user_loop
        self._has_failed = False
        self._endpoints = list(endpoints)
        self._known: list[str] = []  # the addresses in the last welcome of a node
        self._tls = tls
        self._rng = Random()
        self._out: deque[ShardMessage] = deque()
        self._written = asyncio.Event()
        self._handled = asyncio.Event()
        self._changed = asyncio.Event()
        self._call: Any = None
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def is_held(self, number: int, epoch: int) -> bool:
        """True if the delegate may act for this assignment now. Any thread may call this."""
        return self._machine.holds(number, epoch, boottime())

    def duties(self) -> list[Duty]:
        """The duties that the delegate has. Any thread may call this."""
        records = self._machine.hosting.records.copy()  # in a single step, so the session can't change them meanwhile
        return [held_duty(record.duty, self.is_held) for record in records.values() if record.live]

    async def run(self) -> None:
        """Run until the shard has ended. Raises MinkaError if the cluster refuses the shard for good."""
        ticks = asyncio.create_task(self._tick_when_due())
        tasks = {asyncio.create_task(self._connect(), name="shard session"), ticks}
        try:
            while not self._stopped.done():
                done, _ = await asyncio.wait({*tasks, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks & done:
                    tasks.discard(task)
                    # Without ticks nothing is released in time, so `_fail` then ends the shard at once.
                    self._has_failed |= task is ticks
                    if isinstance(fault := task.exception(), Exception):
                        self._fail(fault)
            self._stopped.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def handle(self, event: Event) -> None:
        """Let the machine handle the event, and carry out its instructions."""
        fault: Exception | None = None
        try:
            instructions = self._machine.handle(event, boottime())
        except Exception as error:  # noqa: BLE001 - see _fail
            instructions, fault = [], error
        for instruction in instructions:
            try:
                self._carry_out(instruction)
            except Exception as error:  # noqa: BLE001 - carry out the other instructions, so that each call ends
                fault = error
        if fault is not None:
            self._fail(fault)
        self._handled.set()

    def _fail(self, fault: Exception) -> None:
        """Give up after a fault in this library: release everything, and end; if the release fails as well, end at
        once.
        """
        self._say(logging.ERROR, "".join(traceback.format_exception(fault)))
        reason = f"a fault in the library: {type(fault).__name__}: {fault}"
        if not self._has_failed:
            self._has_failed = True
            self.handle(GiveUp((Code.INTERNAL.name, reason)))
            return
        if self._machine.ends_process and self._machine.hosting.live:
            end_process(self._machine.shard.name, reason)
        self._stop((Code.INTERNAL.name, reason))

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Send(message):
                self._out.append(message)
                self._written.set()
            case CallDelegate():
                self._calls.begin(instruction)
            case CancelCall(call, why):
                self._calls.cancel(call, why)
            case Note(level, text):
                self._say(level, text)
            case Disconnect(reason):
                self._say(logging.INFO, reason)
                self._changed.set()
                if self._call is not None:
                    self._call.cancel()
            case EndProcess(reason):
                end_process(self._machine.shard.name, reason)
            case Stopped(error):
                self._stop(error)

    def _say(self, level: int, text: str) -> None:
        self._log.say(level, f"{self._machine.shard.name}: {text}")

    def _stop(self, error: tuple[str, str] | None) -> None:
        if self._stopped.done():
            return
        if error is None:
            self._stopped.set_result(None)
        else:
            self._stopped.set_exception(MinkaError(Code[error[0]], error[1]))

    async def _tick_when_due(self) -> None:
        while True:
            if self._user_loop.is_closed():
                self.handle(LoopClosed())
            wait = min(_LOOK_S, max(0.0, self._machine.wake_at() - boottime()))
            self._handled.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._handled.wait()
            except TimeoutError:
                self.handle(Tick())

    # Connections

    async def _connect(self) -> None:
        """Hold one session at a time. When a session ends, the next one begins with another node."""
        pause, place = _PAUSE_S[0], self._rng.randrange(len(self._endpoints))
        while True:
            while not self._machine.may_connect:  # noqa: ASYNC110 - until the delegate has released everything
                await asyncio.sleep(_LOOK_S / 2)
            endpoints = list(dict.fromkeys((*self._endpoints, *self._known)))
            was_welcome = await self._session(endpoints[place % len(endpoints)])
            place += 1
            pause = _PAUSE_S[0] if was_welcome or place % len(endpoints) else min(_PAUSE_S[1], 2 * pause)
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))

    async def _session(self, endpoint: str) -> bool:
        """Hold a session with this node until the session ends; return True if the node registered the shard."""
        error = MinkaError(Code.UNREACHABLE, f"{endpoint}: the node ended the session")
        welcome = False
        self._out.clear()
        self._changed.clear()
        try:
            channel = aio_channel(endpoint, channel_credentials(self._tls), _options())
        except MinkaError as problem:  # a TLS file can't be read, perhaps only for a moment
            self.handle(Disconnected(problem.code.name, problem.message))
            return False
        call = self._call = ShardsStub(channel).Session()
        writer = asyncio.create_task(self._write(call), name="shard writer")
        try:
            self.handle(Connected())
            while isinstance(said := await call.read(), ShardInstruction):
                if said.HasField("welcome"):
                    welcome = True
                    self._known = list(said.welcome.endpoints)
                self.handle(Received(said))
                if self._changed.is_set():
                    break
        except grpc.aio.AioRpcError as failure:
            error = error_from_call(failure, endpoint, repeatable=True)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._changed.is_set() or (task is not None and task.cancelling()):
                raise
        finally:
            self._call = None
            writer.cancel()
            call.cancel()
            await asyncio.gather(writer, channel.close(), return_exceptions=True)
        if not self._changed.is_set():
            self.handle(Disconnected(error.code.name, error.message))
        return welcome

    async def _write(self, call: Any) -> None:
        while True:
            await self._written.wait()
            self._written.clear()
            while self._out:
                try:
                    await call.write(self._out.popleft())
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the call is over; `_session`, which reads from it, reports why


def _options() -> list[tuple[str, int]]:
    return [
        *channel_options(_CONNECT_S),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
    ]
