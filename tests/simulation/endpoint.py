"""The base of all simulated processes: a loop that runs by the machine's clock, and messages between processes."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tests.simulation.loop import DriftingClock, ProcessLoop

if TYPE_CHECKING:
    from tests.simulation.full_world import FullWorld


class Host(Protocol):
    """The machine, which outlives the process."""

    number: int
    id: str
    clock: DriftingClock
    stopped_until: float


class Endpoint:
    """A process, from its start to its end."""

    machine: Host

    def __init__(self, world: "FullWorld") -> None:
        self.world = world
        self.alive = True
        self.built = False  # True once this process takes messages from other processes
        self.wake: float | None = None
        self.loop = ProcessLoop(self.now, self.loop_wake)

    def now(self) -> float:
        """The time on the machine's monotonic clock, in seconds."""
        return self.machine.clock.at(self.world.now)

    def loop_wake(self, local: float) -> None:
        """Ask the world for a turn when the process's clock shows `local`."""
        self.world.wake(self, self.machine.clock.true_at(local))

    def turned(self) -> None:
        """React to the end of a turn of the process's loop."""

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds` by the process's own clock."""
        future = self.loop.create_future()
        self.loop.call_later(seconds, lambda: None if future.done() else future.set_result(None))
        await future

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine as a task of this process."""
        self.loop.create_task(coroutine)

    def die(self) -> None:
        """End the process: from now on its actions have no effect."""
        self.alive = False
        self.loop.halted = True

    # The network

    def if_alive(self, act: Callable[[], object]) -> None:
        """Let a message arrive at this process if it is alive; a stopped process handles the message when it
        continues.
        """
        if self.alive:
            self.loop.call_soon(act)

    def deliver(
        self,
        to: "Endpoint",
        act: Callable[[], object],
        broken: Callable[[], object] | None = None,
    ) -> None:
        """Call `act` at the process `to` after some time. If `to` has died by then, call `broken` at this process.

        While a link is cut, messages on it wait: then the caller may hear nothing for long, and the message may arrive
        late.
        """
        world, here, there = self.world, self.machine.number, to.machine.number

        def break_off() -> None:
            if broken is not None:
                self.if_alive(broken)

        def arrive() -> None:
            # A process that hasn't joined yet gets only answers to its calls: these messages have no `broken`.
            if to.alive and (to.built or broken is None):
                to.if_alive(act)
            else:  # the machine of `to` answers that no process listens
                world.after(world.network.delay(), world.through, (there, here), break_off, break_off)

        if self.alive:
            world.after(world.network.delay(), world.through, (here, there), arrive, break_off)

    def refused(self, address: str, broken: Callable[[], object]) -> None:
        """Call `broken`, since no process listens at the address. The call comes late if the answer of the machine at
        this address can't arrive.
        """
        world, machine = self.world, self.world.machine_at(address)
        back = (machine.number, self.machine.number) if machine is not None else (0, 0)
        world.after(0.01, world.through, back, partial(self.if_alive, broken), partial(self.if_alive, broken))
