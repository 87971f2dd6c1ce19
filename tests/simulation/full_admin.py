"""What people and clients ask of the full world, and what they were told."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import HashFunction
from minkad.core.controller import ApplyPlan, CreateKeyspace
from minkad.core.placement.reassign import plan_reassign
from minkad.core.state import State
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.full_world import FullWorld

_UNKNOWN: Final = (Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED)
MAX_KEYSPACES: Final = 6
LAST: Final = "last"


class Admin:
    """Creates keyspaces, reassigns partitions, changes the voters, hands over leadership, and writes data."""

    def __init__(self, world: "FullWorld") -> None:
        self._world = world
        self._created: set[str] = set()  # acknowledged
        self._refused: set[str] = set()  # a client was told that nothing was done
        self._numbers = 0
        self._pause = world.rng.choice((0.2, 0.6))
        self._ended = False

    def begin(self) -> None:
        """Load from now on."""
        self._world.after(1.0, self._next)
        self._world.after(1.0, self._write)

    def end(self) -> None:
        """No more load but the writes, and one last keyspace."""
        self._ended = True
        self._world.after(1.0, self._create_last)

    def _create_last(self) -> None:
        active = self._world.active()
        if active is None or active.coordinator.state.keyspace_named(LAST) is None:
            self._world.after(1.0, self._create_last)
        if active is not None:
            self._ask(active, LAST, lambda process: self._create(process, LAST))

    def _next(self) -> None:
        if self._ended:
            return
        world = self._world
        world.after(world.rng.expovariate(1 / self._pause), self._next)
        processes = world.processes()
        if not processes:
            return
        active = world.active()
        process = active if active is not None and world.rng.random() < 0.8 else world.rng.choice(processes)
        action = world.rng.choice((self._create_next, self._reassign, self._reassign, self._transfer, self._voters))
        action(process)

    def _ask(self, process: Process, name: str, ask: Callable[[Process], Awaitable[None]]) -> None:
        async def asking() -> None:
            try:
                await ask(process)
            except MinkaError as error:
                if process.alive and error.code not in _UNKNOWN and name != LAST:
                    self._refused.add(name)

        if self._world.now >= process.machine.stopped_until:
            process.spawn(asking())

    # Administrators

    def _create_next(self, process: Process) -> None:
        if self._numbers < MAX_KEYSPACES:
            self._numbers += 1
            name = f"k{self._numbers}"
            self._ask(process, name, lambda to: self._create(to, name))

    async def _create(self, process: Process, name: str) -> None:
        count = 1 + len(name) % 3 + self._numbers % 2
        command = CreateKeyspace(name, count, HashFunction.HASH_FUNCTION_MURMUR3, 1)
        await process.coordinator.controller().submit(command)
        if process.alive:
            self._world.say(process.machine.id, "created", name)
            self._created.add(name)

    def _reassign(self, process: Process) -> None:
        world = self._world
        live = [machine.id for machine in world.machines]
        to = sorted(world.rng.sample(live, world.rng.randint(1, len(live))))

        async def apply(server: Process) -> None:
            controller = server.coordinator.controller()
            plan = plan_reassign(server.coordinator.state, controller.sizes(), to, [], world.unix_ms())
            await controller.submit(ApplyPlan(plan, "simulation", ""))

        self._ask(process, "", apply)

    def _transfer(self, process: Process) -> None:
        to = self._world.rng.choice(self._world.machines).id

        async def transfer(server: Process) -> None:
            server.coordinator.transfer_leadership(to)

        self._ask(process, "", transfer)

    def _voters(self, process: Process) -> None:
        one, other = self._world.rng.choice(self._world.machines).id, self._world.rng.choice(self._world.machines).id

        async def change(server: Process) -> None:
            server.coordinator.change_voters([one], [other] if other != one else [])

        self._ask(process, "", change)

    # Clients

    def _write(self) -> None:
        world = self._world
        world.after(world.rng.expovariate(20), self._write)
        processes = world.processes()
        if processes:
            process = world.rng.choice(processes)
            if world.now >= process.machine.stopped_until:
                for id_ in [id_ for id_ in process.data_plane.replicas if process.serves(id_)]:
                    world.write(process, id_)

    # The end

    def missing(self, state: State) -> str:
        """What a client was told and is not so."""
        names = {keyspace.name for keyspace in state.keyspaces.values()}
        assert self._created <= names, f"acknowledged, and gone: {self._created - names}"
        assert not self._refused & names, f"refused, and there: {self._refused & names}"
        return "" if LAST in names else "the last keyspace is not created"
