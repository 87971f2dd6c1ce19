"""The shards of the world of duties: their processes and their faults."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from minka.duties._events import Method
from tests.simulation.loop import DriftingClock
from tests.simulation.network import between
from tests.simulation.shard_process import Manners, ShardHost, ShardProcess

if TYPE_CHECKING:
    from tests.simulation.duty_world import DutyWorld

_FIRST_NUMBER: Final = 101  # the first shard's address on the network
_POISON_EVERY: Final = 7  # every seventh duty ends processes
_HEALTHY: Final = 0.01  # mean seconds of a delegate's call after the faults


class Shards:
    """Runs the shards, and makes their faults. The seed decides which kinds of faults a run has, and how often."""

    def __init__(self, world: "DutyWorld") -> None:
        self._world = world
        self._rng = rng = world.duty_rng
        self.hosts = [self._host(number) for number in range(1, rng.choice((2, 3, 3, 4, 5)) + 1)]
        self._by_name = {host.name: host for host in self.hosts}
        faults: list[Callable[[], None]] = [
            self._kill,
            self._kill_for_long,
            self._kill_all,
            self._stop,
            self._cut,
            self._cut,
            self._split,
            self._leave,
            self._rename,
            self._upgrade,
            self._change_capacities,
            self._drift,
        ]
        weights = [rng.choice((0, 0, 1, 1, 3)) for _ in faults]
        self._faults = [fault for fault, weight in zip(faults, weights, strict=True) for _ in range(weight)]
        self._pause = rng.choice((0.3, 0.8, 2.0))
        self._versions = 1
        self._starts_late: dict[str, float] = {}
        self._ended = False
        self._poison = rng.random() < 0.4  # True if some duties end the processes that attach them

    def is_poison(self, number: int) -> bool:
        """True if this duty ends each process that attaches it. Once the faults have ended, no duty ends a process."""
        return self._poison and not self._ended and number % _POISON_EVERY == 0

    def _host(self, number: int) -> ShardHost:
        world, rng = self._world, self._rng
        clock = DriftingClock(rng.uniform(0, 1e6), rng.uniform(1 - world.drift, 1 + world.drift))
        methods = [method for method in (Method.UPDATE, Method.PREPARE, Method.REPORT) if rng.random() < 0.7]
        return ShardHost(
            number=_FIRST_NUMBER + number,
            id=f"h{number}",
            clock=clock,
            name=f"s{number}",
            node=rng.choice(["", *(machine.id for machine in world.machines)]),
            version="v1",
            grace=rng.choice((0.0, 0.0, 0.5, 2.0)),
            pallets=self._capacities(),
            manners=Manners(
                mean=rng.choice((0.005, 0.02, 0.1)),
                raises=rng.choice((0.0, 0.05, 0.3)),
                hangs=rng.choice((0.0, 0.0, 0.02, 0.1)),
                is_coroutine=rng.random() < 0.6,
                ends_lazy=rng.choice((0.0, 0.02)),
                jitter=rng.choice((0.0, 0.05, 0.3)),
            ),
            methods=(Method.ATTACH, Method.DETACH, *methods),
            ends_process=rng.random() < 0.8,
        )

    def _capacities(self) -> dict[str, int | None]:
        rng = self._rng
        taken = [pallet for pallet in self._world.pallets if rng.random() < 0.8] or self._world.pallets[:1]
        return {pallet: rng.choice((None, 100, 100, 30, 10, 0)) for pallet in taken}

    # Processes

    def processes(self) -> list[ShardProcess]:
        """The living processes."""
        return [host.process for host in self.hosts if host.process is not None]

    def process_named(self, name: str) -> ShardProcess | None:
        """The process that started under this name; None if there is none."""
        return next((process for process in self.processes() if process.name == name), None)

    def begin(self) -> None:
        """Start the shards and the faults."""
        for host in self.hosts:
            self._world.after(0.3 + self._rng.random(), self._start, host)
        if self._faults:
            self._world.after(2.0, self._next)

    def end_faults(self) -> None:
        """End the faults: from now on, delegates' calls succeed, and all shards run."""
        self._ended = True
        newest = f"v{self._versions}"
        for host in self.hosts:
            host.manners = replace(host.manners, mean=_HEALTHY, raises=0.0, hangs=0.0, jitter=0.0, ends_lazy=0.0)
            host.stopped_until = min(host.stopped_until, self._world.now)
            if host.process is not None:
                host.process.stops_after_beat = 0.0
            if self._rng.random() < 0.8 and host.version != newest:  # some shards keep the old version
                host.version = newest
                if host.process is not None:
                    self._world.after(self._rng.random(), host.process.leave_soon)
            self._world.after(0.1, self._start, host)

    def _start(self, host: ShardHost) -> None:
        if host.process is None and (self._ended or self._starts_late.get(host.id, 0.0) <= self._world.now):
            host.process = ShardProcess(self._world, host)
            said = f"{host.process.id} as {host.name} {host.version} grace {host.grace} {host.pallets}"
            self._world.say(host.id, "start", said)

    def end(self, process: ShardProcess, pause: float = 0.3) -> None:
        """End the process; start the next process later."""
        process.die()
        process.machine.process = None
        self._world.after(self._rng.expovariate(1 / pause), self._start, process.machine)

    # Faults

    def _next(self) -> None:
        if self._ended:
            return
        self._world.after(self._rng.expovariate(1 / self._pause), self._next)
        self._rng.choice(self._faults)()

    def _any(self) -> ShardHost:
        return self._rng.choice(self.hosts)

    def _kill_process(self, host: ShardHost, pause: float = 0.3) -> None:
        if host.process is not None:
            self._world.say("nemesis", "kill", host.process.id)
            self.end(host.process, pause)

    def _kill(self) -> None:
        self._kill_process(self._any(), self._rng.choice((0.02, 0.5)))

    def _kill_for_long(self) -> None:
        host = self._any()
        self._starts_late[host.id] = self._world.now + 3.0
        self._kill_process(host)
        self._world.after(3.1, self._start, host)

    def _kill_all(self) -> None:
        if self._rng.random() < 0.3:
            for host in self.hosts:
                self._kill_process(host)

    def _stop(self) -> None:
        """Pause a shard's process as SIGSTOP does."""
        host = self._any()
        pause = self._rng.expovariate(1 / self._rng.choice((0.3, 1.5)))
        if host.process is not None and self._rng.random() < 0.5:
            host.process.stops_after_beat = pause  # the heartbeat's answer then waits in the process's buffers
        else:
            self.stop(host, pause)

    def stop(self, host: ShardHost, pause: float) -> None:
        """Pause the shard's process for `pause` seconds."""
        self._world.say("nemesis", "stop", f"{host.id} for {pause:.2f}")
        host.stopped_until = max(host.stopped_until, self._world.now + pause)
        if host.process is not None:
            host.process.slept_at = host.stopped_until

    def _cut(self) -> None:
        """Cut a shard off from some or all nodes, in one direction or in both."""
        world, rng = self._world, self._rng
        host = self._any()
        numbers = [machine.number for machine in world.machines]
        some = numbers if rng.random() < 0.5 else rng.sample(numbers, rng.randint(1, len(numbers)))
        kind = rng.choice(("both", "both", "there", "back"))
        links = [(host.number, n) for n in some if kind != "back"] + [(n, host.number) for n in some if kind != "there"]
        world.say("nemesis", "cut", f"{host.id} from {some}, {kind}")
        world.network.block(links)
        world.cut_at.update(dict.fromkeys(links, world.now))
        world.after(rng.expovariate(1 / 1.0), world.availability.heal)

    def _split(self) -> None:
        """Cut off the active controller, together with some shards, from all other nodes and shards."""
        world, rng = self._world, self._rng
        active = world.active()
        one = (active.machine if active is not None else rng.choice(world.machines)).number
        numbers = [host.number for host in self.hosts]
        company = {one, *rng.sample(numbers, rng.randint(1, len(numbers)))}
        others = {machine.number for machine in world.machines} | set(numbers)
        links = between(company, others - company, both=rng.random() < 0.7)
        world.say("nemesis", "split", str(sorted(company)))
        world.network.block(links)
        world.cut_at.update(dict.fromkeys(links, world.now))
        world.after(rng.expovariate(1 / 1.5), world.availability.heal)

    def _leave(self) -> None:
        process = self._any().process
        if process is not None:
            self._world.say("nemesis", "leave", process.id)
            process.leave_soon()

    def _rename(self) -> None:
        """Give the machine's next process another shard name."""
        host = self._any()
        host.name = f"s{host.id[1:]}{self._rng.choice('abc')}"
        self._again(host)

    def _upgrade(self) -> None:
        """Deploy the newest version of the application on one shard."""
        host = self._any()
        if host.version == f"v{self._versions}" and self._versions < 3:
            self._versions += 1
        host.version = f"v{self._versions}"
        self._again(host)

    def _change_capacities(self) -> None:
        """Change a shard's capacities. In half of the cases, the running process reports the new capacities. In the
        other half, this process ends, and the next process registers with the new capacities.
        """
        host = self._any()
        host.pallets = self._capacities()
        if host.process is not None and self._rng.random() < 0.5:
            self._world.say("nemesis", "resize", f"{host.process.id} {host.pallets}")
            host.process.resize()
            return
        host.grace = self._rng.choice((0.0, 0.0, 0.5, 2.0))
        self._again(host)

    def _again(self, host: ShardHost) -> None:
        if host.process is None:
            return
        if self._rng.random() < 0.5:
            host.process.leave_soon()
        else:
            self._kill_process(host)

    def _drift(self) -> None:
        """Let a clock run at another rate, within the permitted drift."""
        world = self._world
        self._any().clock.drift(world.now, self._rng.choice((1 - world.drift, 1 + world.drift)))
