"""A process that hosts duties: `run_shard`, which blocks, and `Shard` for asyncio."""

import asyncio
import concurrent.futures
import contextlib
import os
import re
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self

from minka.cluster.name_rules import name_problem
from minka.contexts import given_or_resolved
from minka.duties._arguments import checked_pallet, checked_shard
from minka.duties._events import GiveUp, Leave, MachineSettings, Resized
from minka.duties._machine import ShardMachine
from minka.duties._session import Session, boottime, shards_loop
from minka.duties._user_calls import methods_of
from minka.duties.delegate import Capacity, Delegate, Duty
from minka.duties.limits import MAX_PALLETS
from minka.engine.arguments import checked_text, checked_timeout, invalid, is_number
from minka.engine.grpc_calls import channel_credentials, checked_endpoints, clipped
from minka.tls import Tls
from minka.v1.duties_pb2 import PalletCapacity
from minka.v1.duties_pb2 import Shard as ShardRow

LEAVE_S: Final = 30.0  # when the process stops, the cluster has this time to place its duties elsewhere
_MAX_GRACE_S: Final = 7 * 86_400.0
_MAX_VERSION_CHARS: Final = 64


class Shard:
    """Hosts duties from `run` (or the beginning of `async with`) on, until `stop` was called and other shards have the
    duties. `pallets` has the pallets whose duties the shard takes, each with its capacity. None means no limit;
    CAPACITY_WORKLOAD then gives the shard as much as a shard with the mean of the stated capacities. `endpoints` are
    addresses host:port of some of the nodes; without `endpoints` the shard uses the cluster of `context`, or the
    cluster that `minka.connect` would find. `name` identifies the shard (default: HOST-PID): a process that comes back
    under the same name within `grace` seconds gets its duties again. `version` is the version of your application, and
    `node` is the Minka node on whose machine the process runs, if any. `call_timeout` is the time limit of a call to
    the delegate, in seconds. `on_stuck` is for a delegate that hasn't released everything when the clearance ends:
    "exit" ends the process at once with status 70, since other shards get its duties; "report" only writes to the log.
    `tls` is for a cluster with TLS.

    Raises MinkaError: INVALID_ARGUMENT for arguments that aren't valid, INVALID_CONFIG for a mistake in the TLS files.
    """

    name: Final[str]

    def __init__(
        self,
        delegate: Delegate,
        pallets: Mapping[str, Capacity | None],
        endpoints: Sequence[str] | None = None,
        *,
        context: str | None = None,
        name: str | None = None,
        version: str | None = None,
        node: str | None = None,
        grace: float = 0.0,
        tls: Tls | None = None,
        on_stuck: Literal["exit", "report"] = "exit",
        call_timeout: float = 30.0,
    ) -> None:
        if on_stuck not in ("exit", "report"):
            raise invalid(f"on_stuck is {on_stuck!r}, not exit or report")
        endpoints, tls = given_or_resolved(endpoints, tls, context)
        channel_credentials(tls)  # raises an error at once if a file is bad
        self.name = default_name() if name is None else checked_shard(name)
        self._methods = methods_of(delegate)
        self._endpoints = checked_endpoints(endpoints)
        self._tls = tls
        row = ShardRow(
            name=self.name,
            version=_label(version, "the version", lambda text: name_problem(text, _MAX_VERSION_CHARS)),
            node=_label(node, "the node", name_problem),
            grace_ms=int(_checked_grace(grace) * 1000),
            pallets=_capacity_rows(pallets),
        )
        self._machine: Final = ShardMachine(
            row,
            self._methods,
            MachineSettings(call_timeout=checked_timeout(call_timeout, "call_timeout")),
            new_incarnation=lambda: uuid.uuid4().hex,
            ends_process=on_stuck == "exit",
        )
        self._session: Session | None = None
        self._began = False
        self._stop_asked = False
        self._lock = threading.Lock()
        self._running: asyncio.Task[None] | None = None
        self._body: asyncio.Task[Any] | None = None  # the task of `async with`, while its body runs
        self._body_cancelled = False
        self._cancelled_before = 0  # how often that task had been cancelled before `__aenter__`

    async def run(self) -> None:
        """Host duties until `stop` was called and other shards have them. If the task is cancelled before, the delegate
        releases everything without waiting for the cluster. The event loop must not be closed before this returns.

        While no node answers, or another process has the shard's name, the shard keeps trying, and logs a WARNING to
        `minka.duties`. It also logs a WARNING if nobody has created one of its pallets. If the cluster refuses the
        shard for good, this raises MinkaError once the delegate has released everything. A second call raises
        INVALID_ARGUMENT.
        """
        if self._began:
            raise invalid("a shard runs once: make another one")
        self._began = True
        loop = shards_loop()
        user_loop = asyncio.get_running_loop()
        ended = asyncio.run_coroutine_threadsafe(self._host(user_loop), loop)
        waiting: asyncio.Future[None] = user_loop.create_future()
        ended.add_done_callback(lambda ended: _pass_on(ended, waiting))
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if waiting.done():
                raise
            self.stop(0.0)
            await asyncio.wait([waiting])
            raise

    async def _host(self, user_loop: asyncio.AbstractEventLoop) -> None:
        session = Session(self._machine, self._methods, self._endpoints, self._tls, user_loop)
        with self._lock:
            self._session = session
            stop_asked = self._stop_asked
        if not stop_asked:
            await session.run()

    def stop(self, timeout: float = LEAVE_S) -> None:
        """Begin to stop; any thread may call this. The cluster moves the duties away one after the other; the delegate
        releases each before another shard gets it. After `timeout` seconds, or at a second call, the delegate releases
        at once all duties that are left. `run` returns when the delegate has released everything.
        """
        with self._lock:
            again, self._stop_asked = self._stop_asked, True
            session = self._session
        if session is None:
            return
        loop = shards_loop()
        if not again and timeout > 0:
            loop.call_soon_threadsafe(session.handle, Leave())
            loop.call_soon_threadsafe(loop.call_later, timeout, session.handle, GiveUp())
        else:
            loop.call_soon_threadsafe(session.handle, GiveUp())

    def resize(self, pallets: Mapping[str, Capacity | None]) -> None:
        """Take the duties of these pallets from now on, each up to its capacity; any thread may call this. Duties of
        pallets that are no longer named go to other shards, and so do duties that a balancer moves because of the new
        capacities.

        Raises MinkaError(INVALID_ARGUMENT) for arguments that aren't valid.
        """
        shards_loop().call_soon_threadsafe(self._handle, Resized(tuple(_capacity_rows(pallets))))

    def _handle(self, event: Resized) -> None:
        if self._session is not None:
            self._session.handle(event)
        else:
            self._machine.handle(event, boottime())  # the session sends the new pallets when it begins

    @property
    def duties(self) -> list[Duty]:
        """The duties for which the delegate may act, among them those that it is taking or releasing now. Any thread
        may call this.
        """
        session = self._session
        return [] if session is None else session.duties()

    async def __aenter__(self) -> Self:
        """Host duties while the body of `async with` runs. If an error ends the shard earlier, the body is cancelled,
        and `async with` raises the error when the body has ended, as `asyncio.TaskGroup` does.
        """
        body = asyncio.current_task()
        assert body is not None, "only a task can wait"
        self._body = body
        self._cancelled_before = body.cancelling()
        self._running = asyncio.create_task(self.run(), name=f"shard {self.name}")
        self._running.add_done_callback(self._cancel_body)
        return self

    def _cancel_body(self, running: "asyncio.Task[None]") -> None:
        if self._body is not None and not running.cancelled() and running.exception() is not None:
            self._body_cancelled = True
            self._body.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._running is not None, "__aenter__ came first"
        assert self._body is not None, "__aenter__ came first"
        body, self._body = self._body, None
        if self._body_cancelled and body.uncancel() > self._cancelled_before and kind is asyncio.CancelledError:
            return  # others have cancelled the body, too, so CancelledError goes on
        self.stop()
        await self._running


def run_shard(
    delegate: Delegate,
    pallets: Mapping[str, Capacity | None],
    endpoints: Sequence[str] | None = None,
    *,
    context: str | None = None,
    name: str | None = None,
    version: str | None = None,
    node: str | None = None,
    grace: float = 0.0,
    tls: Tls | None = None,
    on_stuck: Literal["exit", "report"] = "exit",
    call_timeout: float = 30.0,
) -> None:
    """Host duties until SIGTERM or SIGINT. Then the cluster moves the duties away one after the other; the delegate
    releases each before another shard gets it. After 30 s, or at a second signal, the delegate releases at once all
    duties that are left. This returns when the delegate has released everything; a `detach` that hangs delays the
    return without limit. Coroutines of the delegate run on a loop of this thread. `Shard` describes the arguments.

    Raises MinkaError: the errors of `Shard` and its `run`, and INVALID_ARGUMENT on any thread but the main thread,
    since only the main thread gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise invalid("run_shard waits for signals on the main thread; elsewhere use Shard")
    shard = Shard(
        delegate,
        pallets,
        endpoints,
        context=context,
        name=name,
        version=version,
        node=node,
        grace=grace,
        tls=tls,
        on_stuck=on_stuck,
        call_timeout=call_timeout,
    )
    asyncio.run(_until_signalled(shard))


async def _until_signalled(shard: Shard) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shard.stop)
    await shard.run()


def default_name() -> str:
    """The name, HOST-PID, of a shard to which the user gave no name. A restarted process gets another name."""
    host = re.sub(r"[^a-z0-9.-]", "-", socket.gethostname().lower()).strip("-.") or "shard"
    return f"{host[:50]}-{os.getpid()}"


def _pass_on(ended: "concurrent.futures.Future[None]", waiting: "asyncio.Future[None]") -> None:
    """Pass the end of the session on to `run`, which waits on the user's loop."""

    def settle() -> None:
        error = ended.exception()
        if waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
        waiting.get_loop().call_soon_threadsafe(settle)


def _label(given: str | None, what: str, problem_of: Callable[[str], str]) -> str:
    return "" if given is None else checked_text(given, what, problem_of)


def _checked_grace(seconds: Any) -> float:
    if not is_number(seconds) or not 0 <= seconds <= _MAX_GRACE_S:
        raise invalid(f"grace={clipped(repr(seconds))} isn't a time in seconds from 0 to {_MAX_GRACE_S:.0f}")
    return seconds


def _capacity_rows(pallets: Mapping[str, Capacity | None]) -> list[PalletCapacity]:
    if not isinstance(pallets, Mapping):
        raise invalid(f"pallets is {type(pallets).__name__}, not a mapping from names to a Capacity or None")
    if not 1 <= len(pallets) <= MAX_PALLETS:
        raise invalid(f"{len(pallets)} pallets are given; a shard takes the duties of 1 to {MAX_PALLETS:,}")
    return [_capacity_row(checked_pallet(pallet), capacity) for pallet, capacity in pallets.items()]


def _capacity_row(pallet: str, capacity: Capacity | None) -> PalletCapacity:
    if capacity is None:
        return PalletCapacity(pallet=pallet)
    if not isinstance(capacity, Capacity):
        raise invalid(f"the capacity for {pallet} is {clipped(repr(capacity))}, not a Capacity or None")
    return PalletCapacity(pallet=pallet, capacity=capacity.weight)
