"""Jobs that load files in the simulation, and what they were told."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from minka.errors import MinkaError
from minka.v1.load_api_pb2 import AbortLoadRequest, BeginLoadRequest, CommitLoadRequest, TouchLoadRequest
from minka.v1.loads_pb2 import Load, LoadFile, LoadPart, LoadState
from minkad.core.state import State
from tests.simulation.load_plane import LoadPlane
from tests.simulation.trace import Violation

if TYPE_CHECKING:
    from tests.simulation.load_world import LoadWorld
    from tests.simulation.process import Process

_PAUSE: Final = 0.15  # seconds, the mean
_MOST: Final = 12
_S = LoadState


class LoadJobs:
    """Any job may be asked for anything at any node, once or again, by who had no answer or by a second run."""

    def __init__(self, world: "LoadWorld") -> None:
        self._world = world
        self._names: list[str] = []
        self._ended = False
        self._committed: set[str] = set()  # a job was told so
        self._aborted: set[str] = set()  # the same
        self._partitions: dict[int, list[int]] = {}  # by load, of those that were recorded as committed

    def begin(self) -> None:
        """From now on."""
        self._world.after(1.5, self._next)

    def end(self) -> None:
        """No new ones; what nobody commits is abandoned."""
        self._ended = True

    def _next(self) -> None:
        if self._ended:
            return
        world, rng = self._world, self._world.load_rng
        world.after(rng.expovariate(1 / _PAUSE), self._next)
        processes = [process for process in world.processes() if process.loads is not None]
        active = world.active()
        if not processes or active is None:
            return
        process = active if rng.random() < 0.8 else rng.choice(processes)
        actions = (self._begin, self._commit, self._commit, self._commit, self._touch, self._abort)
        ask = actions[0] if not self._names else rng.choice(actions)
        if world.now >= process.machine.stopped_until:
            process.spawn(self._asking(process, ask))

    async def _asking(self, process: "Process", ask: "Callable[[Process, LoadPlane], Awaitable[None]]") -> None:
        assert process.loads is not None
        with contextlib.suppress(MinkaError):  # the next job asks again
            await ask(process, process.loads)

    async def _begin(self, process: "Process", plane: LoadPlane) -> None:
        keyspaces = [keyspace.name for keyspace in process.coordinator.state.keyspaces.values()]
        if not keyspaces:
            return
        if len(self._names) < _MOST:
            self._names.append(f"load-{len(self._names) + 1}")
        name, rng = self._world.load_rng.choice(self._names), self._world.load_rng
        request = BeginLoadRequest(load_id=name, keyspace=rng.choice(keyspaces), requested_by="simulation")
        await plane.requests.begin_load(request)

    async def _commit(self, process: "Process", plane: LoadPlane) -> None:
        """With a file for each partition or for some; now and then one is cut for another slot."""
        state, rng = process.coordinator.state, self._world.load_rng
        load = state.loads.with_id(rng.choice(self._names))
        if load is None:
            return
        files = []
        for row in state.partitions.values():
            if row.keyspace_id == load.keyspace_id and rng.random() < 0.9:
                slot = row.slot + (rng.random() < 0.05)
                files.append(LoadFile(partition_id=row.id, name=f"p{row.id}", slot=slot, bytes=1, rows=1))
                nodes = list(row.replicas)
                for node in rng.sample(nodes, rng.randint(1, len(nodes))):
                    self._world.files[node].add((load.number, row.id))
        if rng.random() < 0.3:
            await process.pause(rng.random())  # what was cut for the table as it was then
        await plane.requests.commit_load(CommitLoadRequest(load_id=load.id, files=files))
        if process.alive:
            self._committed.add(load.id)

    async def _touch(self, process: "Process", plane: LoadPlane) -> None:
        await plane.requests.touch_load(TouchLoadRequest(load_id=self._world.load_rng.choice(self._names)))

    async def _abort(self, process: "Process", plane: LoadPlane) -> None:
        if self._world.load_rng.random() < 0.7:
            return
        name = self._world.load_rng.choice(self._names)
        await plane.requests.abort_load(AbortLoadRequest(load_id=name, requested_by="simulation"))
        if process.alive:
            self._aborted.add(name)

    # What must be so

    def recorded(self, load: Load, parts: Mapping[int, LoadPart]) -> None:
        """The commit is in the table."""
        self._partitions[load.number] = list(parts)

    def partitions_of(self, load: Load) -> list[int]:
        """Those that have a part of it."""
        return self._partitions.get(load.number, [])

    def check(self, state: State) -> None:
        """In the end what jobs were told is so."""
        for load in state.loads.rows.values():
            if load.id in self._committed and load.state != _S.LOAD_STATE_DONE:
                raise Violation("what a job was told stays", f"{load.id} was committed, and is {load}")
            if load.id in self._aborted and load.state != _S.LOAD_STATE_ABORTED:
                raise Violation("what a job was told stays", f"{load.id} was aborted, and is {load}")
        names = {load.id for load in state.loads.rows.values()}
        assert self._committed | self._aborted <= names, "loads are remembered"
