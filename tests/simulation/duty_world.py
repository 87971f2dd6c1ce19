"""The world of duties: the full world with shards that host duties; see docs/simulation.md."""

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Final
from unittest import mock

from minkad.core.duties.control import distribution, suspects, trust
from minkad.duties.control import duty_requests, shard_control
from minkad.duties.control.shard_control import ShardSettings
from minkad.duties.node import shard_sessions
from tests.simulation.duty_checks import DutyChecks, check_indexes
from tests.simulation.duty_clients import DutyClients
from tests.simulation.endpoint import Endpoint
from tests.simulation.full_world import FullWorld
from tests.simulation.process import Process
from tests.simulation.shard_process import ShardProcess
from tests.simulation.shard_stream import ShardDoors
from tests.simulation.shards import Shards
from tests.simulation.trace import Outcome, Trace

_HALF_LIFE_MS: Final = 2000  # a penalty's half-life, so short that a shard is trusted again before the run ends
_FORGOTTEN_AFTER_MS: Final = 3000
_FIRST_PAUSE_MS: Final = 500  # the shortest time for which a suspect is kept away
_LONGEST_PAUSE_MS: Final = 1000
_KEYSPACES: Final = 3
_BALANCE_INTERVAL: Final = 0.1  # seconds
_SETTLED: Final = 0.2  # seconds without changes until a pallet is balanced; few, since duties change all the time here


class DutyWorld(FullWorld):
    """The full world with shards. The shards use a random generator of their own."""

    def __init__(self, seed: int, trace: Trace) -> None:
        super().__init__(seed, trace)
        self.duty_rng = rng = random.Random(f"{seed} duties")
        self.admin.most = _KEYSPACES
        self.pallets = [f"p{number}" for number in range(1, rng.randint(1, 3) + 1)]
        self.is_calm = False
        self.shard_heartbeat = rng.choice((0.08, 0.15))
        clearance = rng.choice((0.6, 1.0))
        margin = self.shard_heartbeat / 2 + rng.choice((0.001, 0.3))
        self.controller_settings = replace(
            self.controller_settings, shards=ShardSettings(clearance, clearance * 1.1 + margin)
        )
        self._plans_take = rng.choice((0.0, 0.02, 0.3))
        self.endpoints = [machine.address for machine in self.machines]
        self.shards = Shards(self)
        self.clients = DutyClients(self)
        self.checks = DutyChecks(self)

    def run(self) -> Outcome:
        """Run like `FullWorld`, with shorter times for the rules of duties."""
        clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
        with (
            mock.patch.object(shard_control, "unix_ms", self.unix_ms),
            mock.patch.object(duty_requests, "unix_ms", self.unix_ms),
            mock.patch.object(shard_control, "BALANCE_INTERVAL_S", _BALANCE_INTERVAL),
            mock.patch.object(shard_control, "SETTLED_S", _SETTLED),
            mock.patch.object(shard_sessions, "time", clock),
            mock.patch.object(trust, "HALF_LIFE_MS", _HALF_LIFE_MS),
            mock.patch.object(suspects, "FIRST_PAUSE_MS", _FIRST_PAUSE_MS),
            mock.patch.object(suspects, "LONGEST_PAUSE_MS", _LONGEST_PAUSE_MS),
            mock.patch.object(distribution, "FORGOTTEN_AFTER_MS", _FORGOTTEN_AFTER_MS),
        ):
            return super().run()

    def wire(self, process: Process) -> None:
        check_indexes(process.coordinator.state.duties)  # a starting process has made the indexes from its snapshot
        process.doors = ShardDoors(self, process)

    def planning_time(self) -> float:
        return self.duty_rng.random() * self._plans_take

    def begin(self) -> None:
        super().begin()
        self.shards.begin()
        self.clients.begin()
        self.checks.begin()

    def end(self) -> None:
        super().end()
        self.is_calm = True
        self.shards.end_faults()
        self.clients.end()

    def crash(self, process: Endpoint) -> None:
        if not isinstance(process, ShardProcess):  # `Shards.end` has handled the death of a shard's process
            super().crash(process)

    def applied(self, process: Process, position: tuple[int, int], digest: int) -> None:
        is_new = position not in self._digests
        super().applied(process, position, digest)
        if is_new:
            self.checks.applied(process.coordinator.state.duties, position[0])

    def restored(self, process: Process, index: int, digest: int) -> None:
        super().restored(process, index, digest)
        check_indexes(process.coordinator.state.duties)

    def missing(self) -> str:
        active = self.active()
        found = super().missing()
        if found or active is None:
            return found
        state = active.coordinator.state
        for process in self.processes():
            check_indexes(process.coordinator.state.duties)
        return self.checks.missing(state.duties) or self.clients.missing(state)
