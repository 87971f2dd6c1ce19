"""Requests about loads to the active controller that aren't commands themselves."""

from minka.v1.load_api_pb2 import FinishLoadPartsRequest, FinishLoadPartsResponse, GetLoadsRequest, GetLoadsResponse
from minkad.coordinator.controller_requests import ControllerRequests
from minkad.core.controller.loads import blocker, load_blockers, load_with
from minkad.core.state import ROWS_A_PIECE, slices
from minkad.process.clock import unix_ms
from minkad.process.turns import turn

_MAX_BLOCKERS = 100


class LoadRequests(ControllerRequests):
    """Requests of jobs, people and leaders."""

    async def get_loads(self, request: GetLoadsRequest) -> GetLoadsResponse:
        """The loads with these ids, or all, the newest first, with the reasons why they wait."""
        active, state = await self._coordinator.up_to_date(), self._coordinator.state
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
        """Record the parts of loads that a leader has taken in, and note the parts that have to wait."""
        active = self._coordinator.controller()
        active.reports.note_waiting(request.node_id, list(request.waiting))
        if request.finished:
            await active.run(request)
        return FinishLoadPartsResponse()
