"""Requests of jobs, people and leaders to the active controller about loads."""

from minka.v1.load_api_pb2 import (
    AbortLoadRequest,
    BeginLoadRequest,
    CommitLoadRequest,
    FinishLoadPartsRequest,
    FinishLoadPartsResponse,
    GetLoadsRequest,
    GetLoadsResponse,
    LoadResponse,
    TouchLoadRequest,
)
from minkad.coordinator.coordinator import Coordinator
from minkad.core.controller.commands import AbortLoad, BeginLoad, Command, CommitLoad, FinishLoadParts, TouchLoad
from minkad.core.controller.loads import blocker, load_blockers, load_with
from minkad.core.state import ROWS_A_PIECE, slices
from minkad.process.clock import unix_ms
from minkad.process.turns import turn

_MAX_BLOCKERS = 100


class LoadRequests:
    """Handles requests if this node is the active controller. A change of the table is answered when it is recorded.
    Methods raise MinkaError, with NOT_CONTROLLER or NO_CONTROLLER if another node has to be asked.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def begin_load(self, request: BeginLoadRequest) -> LoadResponse:
        """Begin a load, unless it has begun already."""
        command = BeginLoad(request.load_id, request.keyspace, request.requested_by, request.job, request.rate_limit)
        return await self._change(request.load_id, command)

    async def touch_load(self, request: TouchLoadRequest) -> LoadResponse:
        """Note that the load's job still works on it."""
        return await self._change(request.load_id, TouchLoad(request.load_id))

    async def commit_load(self, request: CommitLoadRequest) -> LoadResponse:
        """Commit the load with these files: from then on the partitions take them in."""
        return await self._change(request.load_id, CommitLoad(request.load_id, list(request.files)))

    async def abort_load(self, request: AbortLoadRequest) -> LoadResponse:
        """Abort the load; none of its rows becomes visible."""
        command = AbortLoad(request.load_id, request.requested_by, request.reason)
        return await self._change(request.load_id, command)

    async def _change(self, load_id: str, command: Command) -> LoadResponse:
        await self._coordinator.controller().submit(command)
        return LoadResponse(load=load_with(self._coordinator.state, load_id))

    async def get_loads(self, request: GetLoadsRequest) -> GetLoadsResponse:
        """The loads with these ids, or all, the newest first, with the reasons why they wait."""
        active, state = self._coordinator.controller(), self._coordinator.state
        loads = [load_with(state, load_id) for load_id in request.load_ids] or list(state.loads.rows.values())
        response = GetLoadsResponse(loads=sorted(loads, key=lambda load: -load.number), now_ms=unix_ms())
        waiting = {(part.load_number, part.partition_id): part.reason for part in active.reports.waiting_parts()}
        for load in loads:
            parts = list(state.loads.parts.get(load.number, {}).values())
            found = list(load_blockers(state, load))
            for part in parts:
                row = state.partitions.get(part.partition_id)
                if not part.done and row is not None and (reason := waiting.get((load.number, row.id))):
                    found.append(blocker(state, row, reason))
            response.blockers.extend(found[:_MAX_BLOCKERS])
            if request.with_parts:
                for some in slices(parts, ROWS_A_PIECE):
                    response.parts.extend(some)
                    await turn()
        return response

    async def finish_load_parts(self, request: FinishLoadPartsRequest) -> FinishLoadPartsResponse:
        """Record the parts of loads that a leader has taken in, and note the parts that wait."""
        active = self._coordinator.controller()
        active.reports.note_waiting(request.node_id, list(request.waiting))
        if request.finished:
            await active.submit(FinishLoadParts(request.node_id, list(request.finished)))
        return FinishLoadPartsResponse()
