"""The world of loads: the full world, and jobs that load files into its keyspaces; see docs/simulation.md."""

import random
from collections.abc import Iterable
from dataclasses import replace
from unittest import mock

from minka.v1.loads_pb2 import Load, LoadState
from minkad.coordinator import load_requests
from minkad.core.controller import loads as controller_loads
from minkad.core.state import LOADS_UNENDED, State
from tests.simulation.full_world import FullWorld
from tests.simulation.load_jobs import LoadJobs
from tests.simulation.load_plane import LoadPlane, Mark, taken_of
from tests.simulation.process import Process
from tests.simulation.trace import Outcome, Trace, Violation

_KEYSPACES = 4
_ABANDONED_AFTER_S = 3.0
_S = LoadState


class LoadWorld(FullWorld):
    """What it adds is drawn by a generator of its own."""

    def __init__(self, seed: int, trace: Trace) -> None:
        super().__init__(seed, trace)
        self.load_rng = random.Random(f"{seed} loads")
        self.admin.most = _KEYSPACES
        self.controller_settings = replace(self.controller_settings, abandon_loads_after=_ABANDONED_AFTER_S)
        self.loads: dict[int, Load] = {}  # the newest rows that any replica of the state has applied
        self.marks: dict[int, Mark] = {}  # what some of the numbers in the logs are
        self.files: dict[str, set[tuple[int, int]]] = {machine.id: set() for machine in self.machines}  # in spools
        self._done: set[tuple[int, int]] = set()  # loads and partitions
        self.jobs = LoadJobs(self)

    def run(self) -> Outcome:
        """As `FullWorld.run`. A commit is of several pieces also where there are few partitions."""
        with (
            mock.patch.object(load_requests, "unix_ms", self.unix_ms),
            mock.patch.object(controller_loads, "_PARTS_A_RECORD", 1),
        ):
            return super().run()

    def wire(self, process: Process) -> None:
        process.loads = LoadPlane(self, process)
        process.spawn(process.loads.run())

    def begin(self) -> None:
        super().begin()
        self.jobs.begin()

    def end(self) -> None:
        super().end()
        self.jobs.end()

    def append(self, process: Process, partition_id: int, mark: Mark) -> None:
        """A leader has a mark for its log."""
        state = self.loads[mark.load_number].state
        if state not in (_S.LOAD_STATE_COMMITTED, _S.LOAD_STATE_DONE):
            raise Violation("only what is committed is taken in", f"load {mark.load_number} is {state}")
        self._writes += 1
        self.marks[self._writes] = mark
        self.say(process.machine.id, "mark", f"of load {mark.load_number} for partition {partition_id}")
        process.data_plane.append_mark(partition_id, self._writes)

    def applied(self, process: Process, position: tuple[int, int], digest: int) -> None:
        is_new = position not in self._digests
        super().applied(process, position, digest)
        if is_new:
            self._check_loads(process.coordinator.state)

    def acknowledged(self, process: Process, partition_id: int) -> None:
        super().acknowledged(process, partition_id)
        copy = process.data_plane.replicas[partition_id].copy
        self._check_once(partition_id, copy.log[: copy.committed])

    def _check_loads(self, state: State) -> None:
        before, self.loads = self.loads, dict(state.loads.rows)
        for number, load in self.loads.items():
            if load.state == _S.LOAD_STATE_COMMITTED and len(state.loads.parts[number]) != load.parts:
                raise Violation("a load is committed as a whole", f"load {number}: {load}")
            old = before.get(number)
            if old is not None and old.state == _S.LOAD_STATE_STAGING and load.state == _S.LOAD_STATE_COMMITTED:
                self.jobs.recorded(load, state.loads.parts[number])
            if old is not None and old.parts_done != load.parts_done:
                self._check_done(state, load)

    def _check_done(self, state: State, load: Load) -> None:
        """What is done is in the log of the partition's leader, where it is committed."""
        for partition_id in self.jobs.partitions_of(load):
            if load.number in state.loads.due.get(partition_id, ()) or (load.number, partition_id) in self._done:
                continue
            self._done.add((load.number, partition_id))
            if state.keyspaces[load.keyspace_id].unclean_election:
                continue  # which may lose it, as all else
            copy = self.machine(state.partitions[partition_id].leader).copies[partition_id]
            self._check_taken(load, partition_id, copy.log[: copy.committed])

    def _check_taken(self, load: Load, partition_id: int, log: Iterable[int]) -> None:
        if not any(n in self.marks and self.marks[n].load_number == load.number for n in log):
            raise Violation(
                "what is done is taken in", f"load {load.number} is done at partition {partition_id}, which lacks it"
            )

    def _check_once(self, partition_id: int, log: list[int]) -> None:
        """What the data says of the loads that it has taken in is right at each mark: the first of a load counts, and
        no other, which would bring back what was overwritten since.
        """
        seen: set[int] = set()
        for offset, number in enumerate(log):
            if (mark := self.marks.get(number)) is None:
                continue
            taken = taken_of(self.marks, log[:offset])
            if taken.has(mark.load_number) != (mark.load_number in seen):
                what = "ignored" if mark.load_number not in seen else "taken in again"
                raise Violation(
                    "a load is taken in once", f"load {mark.load_number} is {what} by partition {partition_id}"
                )
            seen.add(mark.load_number)

    def missing(self) -> str:
        if missing := super().missing():
            return missing
        active = self.active()
        assert active is not None
        state = active.coordinator.state
        for load in state.loads.rows.values():
            if load.state in LOADS_UNENDED:
                return f"load {load.id} has not ended"
        self.jobs.check(state)
        self._check_in_the_end(state)
        return ""

    def _check_in_the_end(self, state: State) -> None:
        """Every replica has all parts of what is done."""
        for load in state.loads.rows.values():
            if load.state != _S.LOAD_STATE_DONE or state.keyspaces[load.keyspace_id].unclean_election:
                continue
            for partition_id in self.jobs.partitions_of(load):
                for node in state.partitions[partition_id].replicas:
                    self._check_taken(load, partition_id, self._log_at(node, partition_id))
