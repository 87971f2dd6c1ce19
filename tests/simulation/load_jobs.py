"""Simulated jobs that load files, and checks of the answers that they get."""

import contextlib
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from minka.errors import MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.load_api_pb2 import AbortLoadRequest, BeginLoadRequest, CommitLoadRequest, TouchLoadRequest
from minka.v1.loads_pb2 import Load, LoadDigest, LoadFile, LoadState
from minkad.coordinator.load_requests import LoadRequests
from minkad.core.state import State, range_of
from tests.simulation.spools import encode_rows
from tests.simulation.trace import Violation

if TYPE_CHECKING:
    from tests.simulation.load_world import LoadWorld
    from tests.simulation.process import Process

_PAUSE: Final = 0.15  # mean seconds between two requests
_MOST: Final = 12  # loads
_MISCUT: Final = 0.05  # the share of files that are made for a wrong slot
_S = LoadState


class LoadJobs:
    """Jobs that load files. They send each request to any node, and repeat some requests, as if a job got no answer
    or somebody ran the job again.
    """

    def __init__(self, world: "LoadWorld") -> None:
        self._world = world
        self._names: list[str] = []
        self._ended = False
        self._committed: set[str] = set()  # loads that a job saw committed
        self._aborted: set[str] = set()  # loads that a job saw aborted
        self._files: dict[str, tuple[int, dict[bytes, bytes]]] = {}  # by name: the file's partition and its rows
        self._rows: dict[int, dict[int, dict[bytes, bytes]]] = {}  # by committed load and partition: the rows

    def begin(self) -> None:
        """Start the jobs."""
        self._world.after(1.5, self._next)

    def end(self) -> None:
        """Start no further jobs. The controller abandons the loads that no job has committed."""
        self._ended = True

    def _next(self) -> None:
        if self._ended:
            return
        world, rng = self._world, self._world.load_rng
        world.after(rng.expovariate(1 / _PAUSE), self._next)
        processes = [process for process in world.processes() if process.spool is not None]
        active = world.active()
        if not processes or active is None:
            return
        process = active if rng.random() < 0.8 else rng.choice(processes)
        actions = (self._begin, self._commit, self._commit, self._commit, self._touch, self._abort)
        ask = actions[0] if not self._names else rng.choice(actions)
        if world.now >= process.machine.stopped_until:
            process.spawn(self._asking(process, ask))

    async def _asking(self, process: "Process", ask: "Callable[[Process, LoadRequests], Awaitable[None]]") -> None:
        with contextlib.suppress(MinkaError):  # a request may fail; a later job asks again
            await ask(process, LoadRequests(process.coordinator))

    async def _begin(self, process: "Process", requests: LoadRequests) -> None:
        keyspaces = [keyspace.name for keyspace in process.coordinator.state.keyspaces.values()]
        if not keyspaces:
            return
        if len(self._names) < _MOST:
            self._names.append(f"load-{len(self._names) + 1}")
        name, rng = self._world.load_rng.choice(self._names), self._world.load_rng
        request = BeginLoadRequest(load_id=name, keyspace=rng.choice(keyspaces), requested_by="simulation")
        await requests.run(request)

    async def _commit(self, process: "Process", requests: LoadRequests) -> None:
        """Commit a load with files for all or some partitions; a file may be made for a wrong slot."""
        state, rng = process.coordinator.state, self._world.load_rng
        load = state.loads.with_id(rng.choice(self._names))
        if load is None:
            return
        files = []
        for row in state.partitions.values():
            if row.keyspace_id == load.keyspace_id and rng.random() < 0.9:
                files.append(file := self._file(row))
                nodes = list(row.replicas)
                for node in rng.sample(nodes, rng.randint(1, len(nodes))):
                    content = encode_rows(self._files[file.name][1])
                    self._world.machine(node).spool_disk.keep(load.number, file, content)
        if rng.random() < 0.3:
            await process.pause(rng.random())  # meanwhile the table may change
        await requests.run(CommitLoadRequest(load_id=load.id, files=files))
        if process.alive:
            self._committed.add(load.id)

    def _file(self, row: Partition) -> LoadFile:
        """Make a file with new keys of the partition; some files get the slot of another partition."""
        rng = self._world.load_rng
        rows = {self._world.data_clients.new_key(row): b"loaded" for _ in range(rng.randint(1, 3))}
        rows = {key: value for key, value in rows.items() if range_of(row).contains(key)}
        name, content = f"file-{len(self._files) + 1}.", encode_rows(rows)
        self._files[name] = (row.id, rows)
        return LoadFile(
            partition_id=row.id,
            name=name,
            slot=row.slot + (rng.random() < _MISCUT),
            start_key=row.start_key,
            end_key=row.end_key,
            bytes=len(content),
            rows=len(rows),
            checksum=zlib.crc32(content),
            digest=LoadDigest(bytes=sum(len(key) + len(value) for key, value in rows.items())),
        )

    async def _touch(self, process: "Process", requests: LoadRequests) -> None:
        await requests.run(TouchLoadRequest(load_id=self._world.load_rng.choice(self._names)))

    async def _abort(self, process: "Process", requests: LoadRequests) -> None:
        if self._world.load_rng.random() < 0.7:
            return
        name = self._world.load_rng.choice(self._names)
        await requests.run(AbortLoadRequest(load_id=name, requested_by="simulation"))
        if process.alive:
            self._aborted.add(name)

    # Checks

    def recorded(self, state: State, load: Load) -> None:
        """Note the rows of the files that a recorded commit names: the partitions take in these files and no others."""
        parts = state.loads.parts[load.number]
        self._rows[load.number] = {id_: self._files[part.name][1] for id_, part in parts.items()}
        for id_, part in parts.items():
            self._world.data.brings(state.partitions[id_], self._files[part.name][1], part.name)

    def rows_of(self, load: Load) -> Mapping[int, dict[bytes, bytes]]:
        """The rows that each partition gets from the load."""
        return self._rows.get(load.number, {})

    def check(self, state: State) -> None:
        """Check at the end of a run: a load that a job saw committed is DONE, and a load that a job saw aborted is
        ABORTED.
        """
        for load in state.loads.rows.values():
            if load.id in self._committed and load.state != _S.LOAD_STATE_DONE:
                raise Violation(
                    "the outcome that a job was told is final", f"{load.id} was committed, but now is {load}"
                )
            if load.id in self._aborted and load.state != _S.LOAD_STATE_ABORTED:
                raise Violation("the outcome that a job was told is final", f"{load.id} was aborted, but now is {load}")
        names = {load.id for load in state.loads.rows.values()}
        assert self._committed | self._aborted <= names, "loads are remembered"
