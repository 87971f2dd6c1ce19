"""The faults of the full world."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from minka.cluster.in_sync import eligible_replicas
from minka.v1.cluster_pb2 import Partition
from tests.simulation.network import between, partition
from tests.simulation.process import Machine, Process

if TYPE_CHECKING:
    from tests.simulation.full_world import FullWorld


_DEAF_RUNS: Final = 0.5  # the share of the runs in which data ports hang


class Nemesis:
    """Makes faults. The seed decides which kinds of faults a run has, and how often."""

    def __init__(self, world: "FullWorld") -> None:
        self._world = world
        rng = world.rng
        faults: list[Callable[[], None]] = [
            self._part,
            self._part_controller,
            self._heal,
            self._crash_one,
            self._crash_controller,
            self._crash_in_the_middle,
            self._crash_all,
            self._stop,
            self._stop_controller,
            self._slow_disk,
            self._drift,
            self._leave,
        ]
        weights = [rng.choice((0, 1, 1, 4)) for _ in faults]
        self._faults = [fault for fault, weight in zip(faults, weights, strict=True) for _ in range(weight)]
        self._pause = rng.choice((0.3, 0.8, 2.0))
        self._kills_leaders = rng.random() < 0.2
        self._strikes = rng.choice((0.0, 0.0, 0.2, 0.5))  # the probability of a fault after a change of a row
        self._strikes_after = rng.choice((0.003, 0.03, 0.3))  # mean seconds between the change and the fault
        self._away = random.Random(f"{world.seed} away")
        self._takes_away = self._away.choice((0.0, 0.3, 0.7))  # chance that the last machines in sync go away
        self._hangs_disks = random.Random(f"{world.seed} disks").random() < 0.2
        self._deafens = random.Random(f"{world.seed} data ports")  # a generator of its own keeps other draws the same
        self._usual_sync_times: dict[int, float] = {}  # by machine
        self._ended = False

    def begin(self) -> None:
        """Start the faults."""
        if self._faults:
            self._world.after(1.5, self._next)
        if self._deafens.random() < _DEAF_RUNS:
            self._world.after(1.5, self._deafen)

    def end(self) -> None:
        """End the faults, and repair everything that was broken."""
        self._ended = True
        self._world.availability.heal()
        self._world.network.calm()
        for machine in self._world.machines:
            machine.sync_time, machine.stopped_until = 0.0, min(machine.stopped_until, self._world.now)
            machine.deaf_until = min(machine.deaf_until, self._world.now)
            machine.is_away = False
            if machine.process is None:
                self._world.after(0.0, self._world.start, machine)
            else:
                machine.process.kill_after = 0

    def _next(self) -> None:
        if self._ended:
            return
        world = self._world
        world.after(world.rng.expovariate(1 / self._pause), self._next)
        world.rng.choice(self._faults)()

    def _any(self) -> Machine:
        return self._world.rng.choice(self._world.machines)

    def elected(self, process: Process) -> None:
        """The process has just begun to lead a new term: in some runs, sometimes let it die soon."""
        if self._kills_leaders and not self._ended and self._world.rng.random() < 0.5:
            process.kill_after = self._world.rng.randint(2, 60)

    def changed(self, before: Partition, row: Partition) -> None:
        """After a change of a row, sometimes make a fault at a node of the partition, or at the active controller.
        These changes count: a new leader, successor or replica in sync, and the beginning or end of a split. After a
        new eligible replica, sometimes take away the machines in sync.
        """
        rng = self._world.rng
        is_last = len(eligible_replicas(row)) > len(eligible_replicas(before))
        if is_last and not self._ended and self._away.random() < self._takes_away:
            self._world.after(self._away.expovariate(1 / 0.3), self._take_away, row.id)
        moved = before.leader != row.leader or before.successor != row.successor or before.splitting != row.splitting
        if not self._strikes or self._ended or not (moved or set(row.isr) - set(before.isr)):
            return
        if rng.random() < self._strikes:
            victim = rng.choice([*row.replicas, row.leader, before.leader, "", ""])
            self._world.after(rng.expovariate(1 / self._strikes_after), self._strike, victim)

    def _take_away(self, partition_id: int) -> None:
        """Stop all machines that have an in-sync replica of the partition, and start them again only after several
        seconds, as if their disks were lost. Meanwhile an eligible replica has to lead.
        """
        world, row = self._world, self._world.rows.get(partition_id)
        if row is None or self._ended or not eligible_replicas(row):
            return
        lost = [world.machine(node) for node in row.isr]
        if 2 * len(lost) >= len(world.machines) or any(machine.is_away for machine in world.machines):
            return
        for machine in lost:
            world.say("nemesis", "take away", machine.id)
            machine.is_away = True
            self._crash(machine.process)
            world.after(self._away.uniform(3, 12), self._bring_back, machine)

    def _bring_back(self, machine: Machine) -> None:
        machine.is_away = False
        self._world.start(machine)

    def _strike(self, node_id: str) -> None:
        """Make a fault at a node; "" stands for the node of the active controller."""
        if self._ended:
            return
        machine = self._world.machine(node_id) if node_id else None
        process = machine.process if machine is not None else self._world.active()
        if process is None:
            return
        faults = (self._crash, self._part_off, self._stop_process, self._slow_its_disk)
        self._world.rng.choice(faults)(process)

    # The network

    def _part_off(self, process: Process) -> None:
        """Cut the node off from all others."""
        number = process.machine.number
        others = {machine.number for machine in self._world.machines} - {number}
        self._block(f"{process.machine.id} from all", between({number}, others, both=self._world.rng.random() < 0.7))

    def _part(self) -> None:
        numbers = [machine.number for machine in self._world.machines]
        if len(numbers) > 1:
            name, links = partition(self._world.rng, numbers)
            self._block(name, links)

    def _part_controller(self) -> None:
        """Cut off the active controller, perhaps together with another node, from the other nodes."""
        world, active = self._world, self._world.active()
        if active is None:
            return
        company = {active.machine.number, self._any().number} if world.rng.random() < 0.5 else {active.machine.number}
        others = {machine.number for machine in world.machines} - company
        links = between(company, others, both=world.rng.random() < 0.7)
        self._block(f"controller {active.machine.id} with {sorted(company)}", links)

    def _block(self, name: str, links: list[tuple[int, int]]) -> None:
        world = self._world
        world.say("nemesis", "partition", name)
        world.network.block(links)
        world.cut_at.update(dict.fromkeys(links, world.now))
        world.after(world.rng.expovariate(1 / 1.5), self._heal)

    def _heal(self) -> None:
        self._world.availability.heal()

    def _deafen(self) -> None:
        """Let the data port of one machine hang, while its heartbeats continue."""
        if self._ended:
            return
        world, rng = self._world, self._deafens
        active = world.active()
        machine = active.machine if active is not None and rng.random() < 0.3 else rng.choice(world.machines)
        # Some hang for so long that the others have to act.
        lasts = rng.uniform(5.0, 7.0) if rng.random() < 0.4 else rng.expovariate(1 / 4.0)
        world.say("nemesis", "data port hangs", f"{machine.id} for {lasts:.2f}")
        machine.deaf_since, machine.deaf_until = world.now, world.now + lasts
        world.after(lasts + rng.expovariate(1 / 2.0), self._deafen)

    # Processes, clocks and disks

    def _crash_one(self) -> None:
        self._crash(self._any().process)

    def _crash(self, process: Process | None) -> None:
        if process is not None:
            self._world.crash(process)

    def _crash_controller(self) -> None:
        self._crash(self._world.active())

    def _crash_in_the_middle(self) -> None:
        process = self._world.active() if self._world.rng.random() < 0.5 else self._any().process
        if process is not None:
            process.kill_after = self._world.rng.randint(1, 40)

    def _crash_all(self) -> None:
        if self._world.rng.random() < 0.3:
            for machine in self._world.machines:
                self._crash(machine.process)

    def _stop(self) -> None:
        self._stop_machine(self._any())

    def _stop_controller(self) -> None:
        active = self._world.active()
        if active is not None:
            self._stop_machine(active.machine)

    def _stop_process(self, process: Process) -> None:
        self._stop_machine(process.machine)

    def _stop_machine(self, machine: Machine) -> None:
        """Stop the machine's process as SIGSTOP does: when it continues, time has passed on its clock."""
        world = self._world
        pause = world.rng.expovariate(1 / 1.0)
        world.say("nemesis", "stop", f"{machine.id} for {pause:.2f}")
        machine.stopped_until = world.now + pause

    def _slow_disk(self) -> None:
        self._slow_disk_of(self._any())

    def _slow_its_disk(self, process: Process) -> None:
        self._slow_disk_of(process.machine)

    def _slow_disk_of(self, machine: Machine) -> None:
        world = self._world
        world.say("nemesis", "slow disk", machine.id)
        usual = self._usual_sync_times.setdefault(machine.number, machine.sync_time)
        machine.sync_time = 5.0 if self._hangs_disks else 0.3

        def recover() -> None:
            if not self._ended:
                machine.sync_time = usual

        world.after(world.rng.expovariate(1 / 2), recover)

    def _drift(self) -> None:
        """Let a clock run at another rate, within the permitted drift."""
        world, machine = self._world, self._any()
        machine.clock.drift(world.now, world.rng.choice((1 - world.drift, 1 + world.drift)))

    def _leave(self) -> None:
        process = self._any().process
        if process is not None and process.built and self._world.now >= process.machine.stopped_until:
            self._world.say(process.machine.id, "leaves")
            process.spawn(process.stop())
