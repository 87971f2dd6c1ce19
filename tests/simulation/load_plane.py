"""What `minkad.replication.ingesting` does at a simulated node, by docs/architecture.md: the leaders of partitions see
by their own copy of the table what is due, put a mark into the log, and tell the controller. A file is there or not.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from minka.errors import MinkaError
from minka.v1.load_api_pb2 import FinishedPart, FinishLoadPartsRequest
from minkad.coordinator.load_requests import LoadRequests
from minkad.core.replication.state import Role
from minkad.storage.taken_loads import TakenLoads

if TYPE_CHECKING:
    from tests.simulation.leadership import Replica
    from tests.simulation.load_world import LoadWorld
    from tests.simulation.process import Process

_LOOK = 0.08  # seconds


class Mark(NamedTuple):
    """In a log: the load is taken in here."""

    load_number: int
    floor: int


def taken_of(marks: Mapping[int, Mark], log: Sequence[int]) -> TakenLoads:
    """What the data says that has applied this log. Its log is trimmed at once, so it forgets what it may forget."""
    taken = TakenLoads()
    for offset, number in enumerate(log, 1):
        mark = marks.get(number)
        if mark is not None and not taken.has(mark.load_number):
            taken = taken.with_load(mark.load_number, offset, mark.floor, offset)
    return taken


class LoadPlane:
    """At one process."""

    def __init__(self, world: "LoadWorld", process: "Process") -> None:
        self._world = world
        self._process = process
        self._marked: set[tuple[int, int, int]] = set()  # load, partition, leader_epoch
        self.requests = LoadRequests(process.coordinator)

    async def run(self) -> None:
        """Look, again and again."""
        while True:
            await asyncio.sleep(self._world.load_rng.uniform(0.5, 1.5) * _LOOK)
            finished = []
            for partition_id in list(self._process.coordinator.state.loads.due):
                replica = self._process.data_plane.replicas.get(partition_id)
                if replica is not None and self._is_ready(replica):
                    finished += await self._look(partition_id, replica)
            if finished:
                request = FinishLoadPartsRequest(node_id=self._process.machine.id, finished=finished)
                with contextlib.suppress(MinkaError):  # then it is told again
                    await self._process.member.finish_load_parts(request)

    @staticmethod
    def _is_ready(replica: "Replica") -> bool:
        return replica.role is Role.LEADER and replica.copy.committed >= replica.ready_at

    async def _look(self, partition_id: int, replica: "Replica") -> list[FinishedPart]:
        table = self._process.coordinator.state.loads
        finished = []
        for part in table.due_parts(partition_id):
            taken = taken_of(self._world.marks, replica.copy.log[: replica.copy.committed])
            number, epoch = part.load_number, replica.copy.row.leader_epoch
            if taken.has(number):
                finished.append(FinishedPart(load_number=number, partition_id=partition_id, leader_epoch=epoch))
                continue
            if (number, partition_id, epoch) not in self._marked and await self._have_file(number, partition_id):
                is_same = self._is_ready(replica) and replica.copy.row.leader_epoch == epoch
                is_due = number in self._process.coordinator.state.loads.due.get(partition_id, ())
                if is_same and is_due and not replica.fenced:
                    self._marked.add((number, partition_id, epoch))
                    lowest = self._process.coordinator.state.loads.lowest_open()
                    self._world.append(self._process, partition_id, Mark(number, lowest))
            break
        return finished

    def has_file(self, file: tuple[int, int]) -> bool:
        """Of a load, for a partition."""
        return file in self._world.files[self._process.machine.id]

    async def _have_file(self, number: int, partition_id: int) -> bool:
        """Here, or brought from another node."""
        own, file = self._process.machine.id, (number, partition_id)
        if file in self._world.files[own]:
            return True
        for machine in self._world.machines:
            if machine.id == own:
                continue
            try:
                if await self._process.calls.has_file(machine.address, file):
                    self._world.files[own].add(file)
                    return True
            except MinkaError:
                continue
        return False
