"""Requests of clients and people to the active controller about pallets, duties and shards."""

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import Plan
from minka.v1.duties_pb2 import AssignmentState, Duty, Pallet, Shard
from minka.v1.duty_api_pb2 import (
    ChangeDutiesRequest,
    ChangeDutiesResponse,
    ChangePalletsRequest,
    ChangePalletsResponse,
    ComparePalletRequest,
    ComparePalletResponse,
    Consistency,
    DutyStatus,
    ExplainDutyRequest,
    ExplainDutyResponse,
    GetDutiesRequest,
    GetDutiesResponse,
    GetPalletsRequest,
    GetPalletsResponse,
    GetShardsRequest,
    GetShardsResponse,
    PalletSummary,
    PlanRebalanceRequest,
    ShardLoad,
    ShardStatus,
    UnplacedDuty,
)
from minkad.coordinator.active_controller import ActiveController
from minkad.coordinator.controller_requests import ControllerRequests
from minkad.core.duties.control import duty_changes, why_not_placed
from minkad.core.duties.control.distribution import describe_unplaced
from minkad.core.duties.control.duty_rebalance import compare_pallet, held_back
from minkad.core.duties.control.rooms import rooms
from minkad.core.duties.control.suspects import is_quarantined
from minkad.core.duties.control.trust import score
from minkad.core.state import DutyState, State, assignment_row, weight_of
from minkad.duties.control.payload_keyspace import ensure_payload_keyspace
from minkad.process.clock import unix_ms
from minkad.process.turns import turn

CONFIRMED_WITHIN_S: Final = 5.0  # for all members that the level requires, after a majority has the change
_DEFAULT_LIMIT: Final = 1000
_ROWS_A_TURN: Final = 500
_SHOWN_UNPLACED: Final = 20
_SHOWN_MOVES: Final = 100
_ATTACHED: Final = AssignmentState.ASSIGNMENT_STATE_ATTACHED


class DutyRequests(ControllerRequests):
    """Requests of clients and people. A change of the tables is answered when its consistency level is reached. Raises
    CONSISTENCY_NOT_REACHED if a majority has the change, but the level isn't reached within `timeout` seconds, or
    `CONFIRMED_WITHIN_S` seconds after the majority has it.
    """

    # Changes

    async def change_pallets(self, request: ChangePalletsRequest, timeout: float) -> ChangePalletsResponse:
        """Change pallets. The response has their rows as decided; for a deleted pallet, the last row."""
        until = asyncio.get_running_loop().time() + timeout
        if any(change.HasField("create") for change in request.changes):
            await ensure_payload_keyspace(self._coordinator)
        response: ChangePalletsResponse = await self._change(request, until)
        return response

    async def change_duties(self, request: ChangeDutiesRequest, timeout: float) -> ChangeDutiesResponse:
        """Change duties. The response has their rows as decided; for a deleted duty, the last row."""
        until = asyncio.get_running_loop().time() + timeout
        response: ChangeDutiesResponse = await self._change(request, until)
        return response

    async def _change(self, request: ChangePalletsRequest | ChangeDutiesRequest, until: float) -> Any:
        """The answer has the rows as this command decided them, and not the latest rows: later changes may be decided
        already, and be lost again.
        """
        logged = request.consistency == Consistency.CONSISTENCY_LEADER
        response = await self._coordinator.controller().run(request, logged=logged)
        if request.consistency in (Consistency.CONSISTENCY_VOTERS, Consistency.CONSISTENCY_ALL):
            await self._confirmed_by(request.consistency, until)
        return response

    async def _confirmed_by(self, consistency: Consistency.ValueType, until: float) -> None:
        driver = self._coordinator.driver
        # While the voters change, the voters of both sets count.
        voters = (*driver.conf_state.voters, *driver.conf_state.voters_outgoing)
        learners = driver.conf_state.learners if consistency == Consistency.CONSISTENCY_ALL else ()
        members = list(dict.fromkeys((*voters, *learners)))
        seconds = max(0.0, min(CONFIRMED_WITHIN_S, until - asyncio.get_running_loop().time()))
        try:
            async with asyncio.timeout(seconds):
                await driver.logged_by(members)
        except TimeoutError:
            match = driver.match()
            behind = [raft_id for raft_id in members if match.get(raft_id, 0) < driver.applied_index]
            nodes = [node.id for node in map(self._coordinator.node_with, behind) if node is not None]
            text = f"not confirmed within {seconds:.1f} s by {', '.join(nodes) or 'all'}"
            raise MinkaError(Code.CONSISTENCY_NOT_REACHED, text, nodes=",".join(nodes)) from None

    # Queries

    async def _committed(self) -> tuple[ActiveController, State]:
        """The controller, and the table with everything decided before the call: waits for entries that only the
        leader's log has.
        """
        return await self._coordinator.up_to_date(), self._coordinator.state

    async def get_pallets(self, request: GetPalletsRequest) -> GetPalletsResponse:
        """The pallets with these ids, or all. Raises UNKNOWN_PALLET."""
        controller, state = await self._committed()
        ids = list(request.ids) or sorted(state.duties.pallets)
        for id_ in ids:
            if id_ not in state.duties.pallets:
                raise duty_changes.unknown_pallet(id_)
        response = GetPalletsResponse()
        for id_ in ids:
            response.pallets.append(await self._summary(controller, state, state.duties.pallets[id_]))
        return response

    async def _summary(self, controller: ActiveController, state: State, pallet: Pallet) -> PalletSummary:
        counts = Counter[str]()
        for place, number in enumerate(list(state.duties.in_pallet.get(pallet.id, ()))):
            if place % _ROWS_A_TURN == 0:
                await turn()
            row = state.duties.duties.get(number)
            if row is None:
                continue
            counts["duties"] += 1
            counts["weight"] += weight_of(row)
            counts["quarantined"] += is_quarantined(row)
            counts["attached"] += any(one.state == _ATTACHED for one in state.duties.assignments(number))
        nowhere = state.duties.nowhere.get(pallet.id, {})
        found = rooms(state, pallet.id, unix_ms())
        return PalletSummary(
            pallet=pallet,
            duties=counts["duties"],
            attached=counts["attached"],
            weight=counts["weight"],
            unplaced=[
                UnplacedDuty(id=row.id, reason=describe_unplaced(state, controller.shards.distributor, row, unix_ms()))
                for row in map(state.duties.duties.__getitem__, islice(list(nowhere), _SHOWN_UNPLACED))
            ],
            unplaced_count=len(nowhere),
            quarantined=counts["quarantined"],
            loads=[
                ShardLoad(
                    shard=room.name, pallet=pallet.id, duties=room.count, weight=room.weight, capacity=room.capacity
                )
                for room in found
            ],
            held_back=held_back(state, pallet, found),
            hand_overs=self._coordinator.history.hand_overs(pallet.id),
        )

    async def get_duties(self, request: GetDutiesRequest) -> GetDutiesResponse:
        """The duties in order of their numbers: the next page begins after the last number. Raises UNKNOWN_DUTY,
        UNKNOWN_PALLET.
        """
        controller, state = await self._committed()
        if request.names:
            rows = [_named(state, name.pallet, name.id) for name in request.names]
            return GetDutiesResponse(duties=[_status(controller, state, row) for row in rows], total=len(rows))
        numbers, limit = list(_meant(state.duties, request)), request.limit or _DEFAULT_LIMIT
        response = GetDutiesResponse(total=len(numbers))
        for place in range(bisect_right(numbers, request.after), len(numbers)):
            if place % _ROWS_A_TURN == 0:
                await turn()
            found = state.duties.duties.get(numbers[place])
            if found is None:
                continue
            if len(response.duties) == limit:
                response.more = True
                break
            response.duties.append(_status(controller, state, found))
        return response

    async def get_shards(self, request: GetShardsRequest) -> GetShardsResponse:
        """The shards with these names, or all. Raises UNKNOWN_SHARD."""
        controller, state = await self._committed()
        names = list(request.names) or sorted(state.duties.shards)
        for name in names:
            if name not in state.duties.shards:
                raise MinkaError(Code.UNKNOWN_SHARD, f"there is no shard {name}", shard=name)
        response = GetShardsResponse(moves=islice(self._coordinator.history.moves(), _SHOWN_MOVES))
        for name in names:
            await turn()
            if (shard := state.duties.shards.get(name)) is not None:
                response.shards.append(_shard_status(controller, state.duties, shard))
        return response

    async def explain_duty(self, request: ExplainDutyRequest) -> ExplainDutyResponse:
        """The reasons why a duty is where it is, and the shards that could have it. Raises UNKNOWN_DUTY."""
        controller, state = await self._committed()
        row = _named(state, request.name.pallet, request.name.id)
        status = _status(controller, state, row)
        moves = (move for move in self._coordinator.history.moves() if (move.pallet, move.id) == (row.pallet, row.id))
        return ExplainDutyResponse(
            status=status,
            summary=why_not_placed.summary(state, row, status.unplaced, unix_ms()),
            shards=why_not_placed.verdicts(state, row, unix_ms()),
            moves=islice(moves, _SHOWN_MOVES),
        )

    async def plan_rebalance(self, request: PlanRebalanceRequest) -> Plan:
        """Plan the moves of a pallet's balancer; changes nothing. Raises UNKNOWN_PALLET."""
        return await (await self._coordinator.up_to_date()).shards.plan(request)

    async def compare_pallet(self, request: ComparePalletRequest) -> ComparePalletResponse:
        """Compare the balancers' results for a pallet; changes nothing. Raises UNKNOWN_PALLET."""
        shards = (await self._coordinator.up_to_date()).shards
        state = shards.for_planning()
        response: ComparePalletResponse = await shards.in_thread(compare_pallet, state, request.pallet, unix_ms())
        return response


def _named(state: State, pallet: str, id_: str) -> Duty:
    row = state.duties.named(pallet, id_)
    if row is None:
        raise duty_changes.unknown_duty(pallet, id_)
    return row


def _meant(duties: DutyState, request: GetDutiesRequest) -> Iterable[int]:
    """The numbers of the duties that the request asks for, ascending. Raises UNKNOWN_PALLET, UNKNOWN_SHARD."""
    found = _listed(duties, request)
    return [number for number in found if is_quarantined(duties.duties[number])] if request.quarantined else found


def _listed(duties: DutyState, request: GetDutiesRequest) -> Iterable[int]:
    if request.pallet and request.pallet not in duties.pallets:
        raise duty_changes.unknown_pallet(request.pallet)
    if request.shard and request.shard not in duties.shards:
        raise MinkaError(Code.UNKNOWN_SHARD, f"there is no shard {request.shard}", shard=request.shard)
    if request.unplaced:
        pallets = [request.pallet] if request.pallet else list(duties.nowhere)
        return sorted(number for pallet in pallets for number in duties.nowhere.get(pallet, ()))
    if request.shard:
        return sorted(_of_pallet(duties, duties.on_shard.get(request.shard, ()), request.pallet))
    return list(duties.in_pallet.get(request.pallet, ()) if request.pallet else duties.duties)


def _of_pallet(duties: DutyState, numbers: Iterable[int], pallet: str) -> Iterator[int]:
    return (number for number in numbers if not pallet or duties.duties[number].pallet == pallet)


def _status(controller: ActiveController, state: State, row: Duty) -> DutyStatus:
    return DutyStatus(
        duty=row,
        assignments=map(assignment_row, state.duties.assignments(row.number)),
        unplaced=describe_unplaced(state, controller.shards.distributor, row, unix_ms()),
    )


def _shard_status(controller: ActiveController, duties: DutyState, shard: Shard) -> ShardStatus:
    states = Counter(one.state for one in duties.on_shard.get(shard.name, {}).values())
    capacities = {one.pallet: one for one in shard.pallets}
    loads = duties.loads.get(shard.name, {})
    status = ShardStatus(
        shard=shard,
        score=score(shard, unix_ms()),
        heartbeat_age_ms=int(controller.shards.silence(shard.name) * 1000),
        assigned=states[AssignmentState.ASSIGNMENT_STATE_ASSIGNED],
        attached=states[_ATTACHED],
        releasing=states[AssignmentState.ASSIGNMENT_STATE_RELEASING],
    )
    for pallet in sorted({*capacities, *(id_ for id_, load in loads.items() if load.duties)}):
        load, said = duties.load(shard.name, pallet), capacities.get(pallet)
        capacity = said.capacity if said is not None and said.HasField("capacity") else None
        status.loads.append(
            ShardLoad(shard=shard.name, pallet=pallet, duties=load.duties, weight=load.weight, capacity=capacity)
        )
    return status
