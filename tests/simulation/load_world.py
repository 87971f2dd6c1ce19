"""The world of loads: the full world with jobs that load files into its keyspaces; see docs/simulation.md."""

import random
from dataclasses import replace
from pathlib import Path
from unittest import mock

from minka.v1.loads_pb2 import Load, LoadState
from minkad.coordinator import load_requests
from minkad.core.controller import loads as controller_loads
from minkad.core.state import LOADS_UNENDED, State
from minkad.replication.surroundings import LoadSources
from tests.simulation.full_world import FullWorld
from tests.simulation.load_jobs import LoadJobs
from tests.simulation.process import Process
from tests.simulation.spools import NodeSpool
from tests.simulation.trace import Outcome, Trace, Violation

_KEYSPACES = 4
_ABANDONED_AFTER_S = 3.0
_S = LoadState


class LoadWorld(FullWorld):
    """The full world with jobs. The jobs use a random generator of their own."""

    def __init__(self, seed: int, trace: Trace) -> None:
        super().__init__(seed, trace)
        self.load_rng = random.Random(f"{seed} loads")
        self.admin.most = _KEYSPACES
        self.controller_settings = replace(self.controller_settings, abandon_loads_after=_ABANDONED_AFTER_S)
        self.loads: dict[int, Load] = {}  # the newest rows that any replica of the state has applied
        self._done: set[tuple[int, int]] = set()  # the parts that are done: load and partition
        self.jobs = LoadJobs(self)

    def run(self) -> Outcome:
        """Run like `FullWorld`, but put only one part of a load into each record, so that the commit of a load makes
        several records even if the keyspace has few partitions.
        """
        with (
            mock.patch.object(load_requests, "unix_ms", self.unix_ms),
            mock.patch.object(controller_loads, "_PARTS_A_RECORD", 1),
        ):
            return super().run()

    def load_sources(self, process: Process) -> LoadSources:
        process.spool = NodeSpool(process)
        return process.spool.sources()

    def spooled(self, process: Process, file: Path) -> dict[bytes, bytes]:
        assert process.spool is not None
        return process.spool.files.rows(file)

    def wire(self, process: Process) -> None:
        assert process.spool is not None
        process.spool.begin()

    def begin(self) -> None:
        super().begin()
        self.jobs.begin()

    def end(self) -> None:
        super().end()
        self.jobs.end()

    def applied(self, process: Process, position: tuple[int, int], digest: int) -> None:
        is_new = position not in self._digests
        super().applied(process, position, digest)
        if is_new:
            self._check_loads(process.coordinator.state)

    def _check_loads(self, state: State) -> None:
        before, self.loads = self.loads, dict(state.loads.rows)
        for number, load in self.loads.items():
            if load.state == _S.LOAD_STATE_COMMITTED and len(state.loads.parts[number]) != load.parts:
                raise Violation("a load is committed as a whole", f"load {number}: {load}")
            old = before.get(number)
            if old is not None and old.state == _S.LOAD_STATE_STAGING and load.state == _S.LOAD_STATE_COMMITTED:
                self.jobs.recorded(state, load)
            if old is not None and old.parts_done != load.parts_done:
                self._check_done(state, load)

    def _check_done(self, state: State, load: Load) -> None:
        """Check that all replicas in sync have each part that is done."""
        for partition_id, rows in self.jobs.rows_of(load).items():
            if load.number in state.loads.due.get(partition_id, ()) or (load.number, partition_id) in self._done:
                continue
            self._done.add((load.number, partition_id))
            if not state.keyspaces[load.keyspace_id].unclean_election:  # an unclean election may lose a part
                self.data.has_brought(state.partitions[partition_id], rows)

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
        return ""
