"""One simulated shard: the SDK's real state machine, with the simulation's transport and delegate."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from minka.duties._events import (
    CallDelegate,
    CallEnded,
    CallOverdue,
    CancelCall,
    Connected,
    Disconnect,
    EndProcess,
    Event,
    GiveUp,
    Instruction,
    Leave,
    MachineSettings,
    Method,
    Note,
    Resized,
    Send,
    Stopped,
    Tick,
)
from minka.duties._machine import ShardMachine
from minka.v1.duties_pb2 import PalletCapacity, Shard
from minka.v1.shards_pb2 import HeldDuty
from tests.simulation.endpoint import Endpoint
from tests.simulation.loop import DriftingClock
from tests.simulation.shard_stream import ShardStream

if TYPE_CHECKING:
    from tests.simulation.duty_world import DutyWorld

SETTINGS: Final = MachineSettings(
    call_timeout=0.4,
    retry_first=0.02,
    retry_most=0.2,
    tries=3,
    report_interval=0.2,
    weight_interval=0.5,
    first_answer=1.0,
    silence=0.3,
)
LEAVE_S: Final = 2.0  # seconds after which a leaving shard releases all duties that it still has
_LOOK_S: Final = 0.1  # the same as in minka.duties._session
_PRECISION: Final = 1e-6  # seconds added to due times, since a rounded sum of times may be too small
_PAUSE_S: Final = 0.05  # seconds between two sessions
_CANCEL_S: Final = 0.1  # seconds after which a cancelled coroutine that hasn't ended counts as hanging


@dataclass(slots=True)
class Manners:
    """The behaviour of a delegate."""

    mean: float  # mean seconds of a call
    raises: float = 0.0  # the share of calls that raise
    hangs: float = 0.0  # the share of calls that take longer than their timeout
    is_coroutine: bool = True
    ends_lazy: float = 0.0  # the probability that the delegate ends a lazy duty before a report
    jitter: float = 0.0  # the share by which reported weights vary


@dataclass(slots=True)
class ShardHost:
    """A shard's machine and the settings of its processes. They outlive a process."""

    number: int
    id: str
    clock: DriftingClock
    name: str
    node: str
    version: str
    grace: float
    pallets: dict[str, int | None]  # the capacities by pallet
    manners: Manners
    methods: tuple[Method, ...]
    ends_process: bool = True
    process: "ShardProcess | None" = None
    stopped_until: float = 0.0
    starts: int = 0

    def row(self) -> Shard:
        """The row with which the next process registers."""
        return Shard(
            name=self.name,
            node=self.node,
            version=self.version,
            grace_ms=int(self.grace * 1000),
            pallets=self.capacities(),
        )

    def capacities(self) -> list[PalletCapacity]:
        """The capacities that the shard's process states."""
        return [PalletCapacity(pallet=name, capacity=most) for name, most in sorted(self.pallets.items())]


class ShardProcess(Endpoint):
    """A shard's process, from its start to its end."""

    world: "DutyWorld"
    machine: ShardHost

    def __init__(self, world: "DutyWorld", host: ShardHost) -> None:
        super().__init__(world)
        self.machine = host
        self.built = True
        self.rng = Random(world.duty_rng.random())
        host.starts += 1
        self.id = f"{host.id}-{host.starts}"
        self.name = host.name
        self._incarnations = 0
        self.core = ShardMachine(
            host.row(),
            host.methods,
            SETTINGS,
            new_incarnation=self._new_incarnation,
            ends_process=host.ends_process,
        )
        self.delegate = Delegate(self)
        self.is_leaving = False
        self.slept_at = float("-inf")  # the true time at which its last pause ended
        self.stops_after_beat = 0.0  # seconds of the pause after its next heartbeat; 0: no pause
        self._stream: ShardStream | None = None
        self._place = self.rng.randrange(100)
        self._known: list[str] = []
        self._tick: asyncio.TimerHandle | None = None
        self.loop.call_soon(self._connect)

    def _new_incarnation(self) -> str:
        self._incarnations += 1
        return f"{self.id}-{self._incarnations}"

    # The state machine

    def handle(self, event: Event, at: float = 0.0) -> None:
        """Handle an event; `at` is the time at which the event was due."""
        if not self.alive:
            return
        now = max(self.now(), at)
        for instruction in self.core.handle(event, now):
            self._carry_out(instruction)
            if self.machine.process is not self:
                return
        if self._tick is not None:
            self._tick.cancel()
        assert self.core.wake_at() > now, "the session spins"
        due = min(self.core.wake_at(), self.now() + _LOOK_S) + _PRECISION
        self._tick = self.loop.call_at(due, self.handle, Tick(), due)
        self.world.checks.looked(self)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Send(message):
                if self._stream is not None:
                    self._stream.say(message)
                if self.stops_after_beat and message.HasField("heartbeat"):
                    self.world.shards.stop(self.machine, self.stops_after_beat)
                    self.stops_after_beat = 0.0
            case CallDelegate():
                self.delegate.begin(instruction)
            case CancelCall(call):
                self.delegate.cancel(call)
            case Note(_, text):
                self.world.say(self.id, "notes", text)
            case Disconnect(reason):
                self.world.say(self.id, "disconnects", reason)
                self._close()
            case EndProcess(reason):
                self.world.say(self.id, "ends itself", reason)
                self.world.shards.end(self)
            case Stopped(error):
                self.world.say(self.id, "stops", str(error or ""))
                self.world.checks.stopped(self)
                self.world.shards.end(self)

    def resize(self) -> None:
        """Report the machine's new capacities from the running process."""
        self.if_alive(lambda: self.handle(Resized(tuple(self.machine.capacities()))))

    def leave_soon(self) -> None:
        """Ask the process to stop, as SIGTERM does."""
        self.if_alive(self._leave)

    def _leave(self) -> None:
        if not self.is_leaving:
            self.is_leaving = True
            self.handle(Leave())
            self.loop.call_later(LEAVE_S, self.handle, GiveUp())

    def die(self) -> None:
        super().die()
        self._close()

    # Sessions, as in `minka.duties._session.Session`

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None and stream.is_open:
            stream.close()
        if self.alive:
            self._connect_later()

    def _connect_later(self) -> None:
        self.loop.call_later(_PAUSE_S * self.rng.uniform(0.5, 1.0), self._connect)

    def _connect(self) -> None:
        if self._stream is not None and self._stream.is_open:
            return
        if not self.core.may_connect:
            self._connect_later()
            return
        endpoints = list(dict.fromkeys((*self.world.endpoints, *self._known)))
        self._place += 1
        self._stream = ShardStream(self, endpoints[self._place % len(endpoints)])
        self.handle(Connected())

    def ended(self, stream: ShardStream) -> None:
        """Connect again later, since the session broke or the node has ended it."""
        if self.alive and self._stream is stream:
            self._stream = None
            self._connect_later()

    def welcome(self, endpoints: list[str]) -> None:
        """Remember the addresses of other nodes, which the node at the other end of the session has sent."""
        self._known = endpoints

    def holds(self, number: int) -> int:
        """The epoch at which the delegate acts for the duty now; 0 if it doesn't act, or has no clearance."""
        if not self.alive or self.now() >= self.core.until:
            return 0
        return self.delegate.acting.get(number, 0)


@dataclass(slots=True)
class _Call:
    call: CallDelegate
    error: str
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


class Delegate:
    """A delegate whose calls take some time, and sometimes raise or hang."""

    def __init__(self, process: ShardProcess) -> None:
        self.acting: dict[int, int] = {}  # by duty: the epoch at which the delegate may act for it
        self.told: dict[int, HeldDuty] = {}
        self._process = process
        self._calls: dict[int, _Call] = {}

    @property
    def manners(self) -> Manners:
        """The behaviour of this machine's delegates. It may change during a run."""
        return self._process.machine.manners

    def begin(self, call: CallDelegate) -> None:
        """Call one of the delegate's methods."""
        process, manners, rng = self._process, self.manners, self._process.rng
        process.world.say(process.id, call.method.value, " ".join(f"{d.id}@{d.epoch}" for d in call.duties))
        if call.method is Method.ATTACH:
            for duty in call.duties:
                self.acting[duty.duty] = duty.epoch
                self.told[duty.duty] = duty
                process.world.checks.attaching(process, duty)
            if poison := [duty.duty for duty in call.duties if process.world.shards.is_poison(duty.duty)]:
                process.loop.call_later(rng.expovariate(1 / manners.mean), self._die_of, poison)
        takes = min(rng.expovariate(1 / manners.mean), 0.9 * call.timeout)
        if rng.random() < manners.hangs and call.method is not Method.REPORT:
            takes = call.timeout * (1 + 3 * rng.random())
        one = self._calls[call.call] = _Call(call, "it raises" if rng.random() < manners.raises else "")
        one.timers.append(process.loop.call_later(takes, self._end, call.call))
        if takes > call.timeout:
            one.timers.append(process.loop.call_later(call.timeout, self._limit, call.call))

    def _die_of(self, poison: list[int]) -> None:
        process = self._process
        process.world.say(process.id, "dies of", str(poison))
        process.world.shards.end(process)

    def cancel(self, number: int) -> None:
        """Cancel the call if it runs a coroutine; a function on a thread continues."""
        if number in self._calls and self.manners.is_coroutine:
            self._cancel(self._calls[number], "cancelled")

    def _limit(self, number: int) -> None:
        if not self.manners.is_coroutine:
            self._process.handle(CallOverdue(number))
        elif number in self._calls:
            self._cancel(self._calls[number], "it took too long")

    def _cancel(self, one: _Call, error: str) -> None:
        loop, number = self._process.loop, one.call.call
        one.error = error
        if self._process.rng.random() < 0.9:
            one.timers.append(loop.call_later(0.005, self._end, number))
        else:  # the coroutine ignores the cancellation
            one.timers.append(loop.call_later(_CANCEL_S, self._overdue, number))

    def _overdue(self, number: int) -> None:
        if number in self._calls:
            self._process.handle(CallOverdue(number))

    def _end(self, number: int) -> None:
        one = self._calls.pop(number, None)
        if one is None:
            return
        for timer in one.timers:
            timer.cancel()
        call, error = one.call, one.error or None
        reported: Mapping[tuple[int, int], int | None] | None = None
        took_nothing = call.method is Method.ATTACH and error
        if took_nothing or (call.method is Method.DETACH and not error):
            for duty in call.duties:
                self.acting.pop(duty.duty, None)
        if call.method is Method.UPDATE and not error:
            for duty in call.duties:
                self.told[duty.duty] = duty
        if call.method is Method.REPORT and not error:
            reported = self._reported()
        self._process.handle(CallEnded(number, error, reported))

    def _reported(self) -> dict[tuple[int, int], int | None]:
        rng, manners = self._process.rng, self.manners
        for number in list(self.acting):
            if self.told[number].lazy and rng.random() < manners.ends_lazy:
                self._process.world.clients.ends(self.told[number])
                del self.acting[number]
        weights = {number: self.told[number].weight for number in self.acting}
        return {
            (number, epoch): round(weights[number] * rng.uniform(1 - manners.jitter, 1 + manners.jitter))
            for number, epoch in self.acting.items()
        }
