"""Bugs in loads: in the decisions, in the table, and in the list of loads that a partition's data has taken in."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from minka.v1.load_api_pb2 import FinishLoadPartsRequest
from minka.v1.loads_pb2 import Load, LoadState, LoadTables
from minka.v1.records_pb2 import Record, RecordBatch
from minkad.coordinator.deciding import Deciding
from minkad.core.controller import loads
from minkad.core.controller.decision import Steps
from minkad.core.controller.loads import AbortAbandoned
from minkad.core.state import LoadTable, State
from minkad.storage.taken_loads import TakenLoads
from tests.simulation.mutations_full import Patch, decided_by


def commit_in_pieces() -> Sequence[Patch]:
    async def record_at_once(self: Deciding, pieces: Iterable[Sequence[Record]]) -> None:
        for record in chain.from_iterable(pieces):
            self.decided.apply(record)
            self._propose_together([RecordBatch(records=[record]).SerializeToString()])
            await asyncio.sleep(0.02)
            self._check_active()

    return [(Deciding, "_record_at_once", record_at_once)]


def take_in_again() -> Sequence[Patch]:
    return [(TakenLoads, "has", lambda self, number: number < self.floor)]


def forget_open_loads() -> Sequence[Patch]:
    return [(LoadTable, "lowest_open", lambda self: self.next_number)]


def snapshot_without_parts() -> Sequence[Patch]:
    def pieces(self: LoadTable) -> Iterator[LoadTables]:
        yield LoadTables(loads=self.rows.values(), next_number=self.next_number)

    return [(LoadTable, "pieces", pieces)]


def abandon_committed_loads() -> Sequence[Patch]:
    def abort_abandoned(state: State, command: AbortAbandoned, now_ms: int) -> Steps[None]:
        yield [loads._aborted(load, "", now_ms) for load in state.loads.unended()]

    return [decided_by(AbortAbandoned, abort_abandoned)]


def finish_all_parts_at_once() -> Sequence[Patch]:
    """When one part of a load is done, all its parts count as done."""
    original = loads.finish_parts

    def finish_parts(state: State, request: FinishLoadPartsRequest, now_ms: int) -> Steps[None]:
        for records in original(state, request, now_ms):
            for record in records:
                done = record.load_parts_done
                parts = state.loads.parts[done.load.number].values()
                done.partition_ids[:] = [part.partition_id for part in parts if not part.done]
                done.load.parts_done, done.load.state = done.load.parts, LoadState.LOAD_STATE_DONE
            yield records

    return [decided_by(FinishLoadPartsRequest, finish_parts)]


def commit_in_any_state() -> Sequence[Patch]:
    """The controller commits a load that was aborted."""
    original = loads.load_with

    def load_with(state: State, load_id: str) -> Load:
        load = Load()
        load.CopyFrom(original(state, load_id))
        if load.state == LoadState.LOAD_STATE_ABORTED:
            load.state = LoadState.LOAD_STATE_STAGING
        return load

    return [(loads, "load_with", load_with)]
