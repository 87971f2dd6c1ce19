"""The plan that a pallet's balancer makes for its duties, and the operation that carries the plan out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Final

from minka.cluster.plan_digest import plan_digest
from minka.v1.admin_pb2 import Move, Plan, ShardBalance
from minka.v1.cluster_pb2 import Migration, MigrationState, Operation, RebalanceOperation
from minka.v1.duties_pb2 import AssignmentState, BalancerKind, Duty, Pallet, ShardState
from minka.v1.duty_api_pb2 import BalancerComparison, ComparePalletResponse, PlanRebalanceRequest, ShardLoad
from minkad.core.controller.operation_kind import Begins, OperationKind
from minkad.core.duties.control.duty_changes import unknown_pallet
from minkad.core.duties.control.duty_mover import MOVES_PER_SHARD
from minkad.core.duties.control.quarantines import quarantine_of
from minkad.core.duties.control.rooms import (
    balancer_name,
    balancer_of,
    groups,
    placed_duty,
    refusal,
    rooms,
    settings_of,
    versions,
)
from minkad.core.duties.placement import DutyPlan, ShardRoom, compare
from minkad.core.duties.placement import ShardBalance as PlannedBalance
from minkad.core.state import Assignment, State, duty_name, weight_of

MOVES_AT_ONCE = 1000  # moves of one automatic operation, at most
_KEPT: Final = AssignmentState.ASSIGNMENT_STATE_KEPT
_RELEASING: Final = AssignmentState.ASSIGNMENT_STATE_RELEASING
_SHOWN = 5  # of the duties without a place, the plan's notes show this many


def pallet_named(state: State, pallet: str) -> Pallet:
    """The pallet with this id. Raises UNKNOWN_PALLET."""
    found = state.duties.pallets.get(pallet)
    if found is None:
        raise unknown_pallet(pallet)
    return found


def movable(state: State, pallet: str) -> list[Duty]:
    """The pallet's duties that a balancer considers."""
    rows = (state.duties.duties[number] for number in state.duties.in_pallet.get(pallet, ()))
    return [row for row in rows if not (row.synthetic or row.deleting)]


def plan_rebalance(state: State, request: PlanRebalanceRequest, now_ms: int) -> Plan:
    """The moves that the pallet's balancer would make, with a reason for each. Raises UNKNOWN_PALLET."""
    pallet = pallet_named(state, request.pallet)
    found, duties = rooms(state, pallet.id, now_ms), movable(state, pallet.id)
    plans = [_plan_of(state, pallet, some, open_) for some, open_ in groups(state, pallet, duties, found)]
    moves = [move for plan in plans for move in _moves(state, plan)]
    plan = Plan(
        cluster_id=state.cluster.id,
        table_version=state.version,
        created_ms=now_ms,
        moves=moves,
        minimum_moves=sum(plan.minimum_moves for plan in plans),
        notes=_notes(state, pallet, plans, found),
        reason=request.reason,
        pallet=pallet.id,
        shards=_balances(found, duties, moves, {row.number: state.duties.holder(row.number) for row in duties}),
    )
    plan.digest = plan_digest(plan)
    return plan


def _plan_of(state: State, pallet: Pallet, duties: Sequence[Duty], found: Sequence[ShardRoom]) -> DutyPlan:
    asked = [placed_duty(state, row) for row in duties]
    return balancer_of(pallet).rebalance(asked, found, settings_of(pallet.balancer))


def _moves(state: State, plan: DutyPlan) -> Iterator[Move]:
    """The plan's moves of duties that have a shard; duties without a shard are placed without a plan."""
    for move in plan.moves:
        row, holder = state.duties.duties[move.number], state.duties.holder(move.number)
        if holder is not None:
            yield Move(
                duty=move.number,
                partition=duty_name(row),
                source=move.source,
                target=move.target,
                duty_epoch=holder.epoch,
                weight=weight_of(row),
                reason=move.reason,
            )


def _notes(state: State, pallet: Pallet, plans: Iterable[DutyPlan], found: list[ShardRoom]) -> list[str]:
    unplaced = [one for plan in plans for one in plan.unplaced]
    notes = [f"{duty_name(state.duties.duties[one.number])}: {one.reason}" for one in unplaced[:_SHOWN]]
    if len(unplaced) > _SHOWN:
        notes.append(f"and {len(unplaced) - _SHOWN} more have no place")
    if why := held_back(state, pallet, found):
        notes.append(f"nothing is moved automatically now: {why}")
    return notes


def _balances(
    found: Iterable[ShardRoom], duties: Iterable[Duty], moves: Iterable[Move], holders: dict[int, Assignment | None]
) -> list[ShardBalance]:
    balances = {room.name: ShardBalance(shard=room.name, capacity=room.capacity) for room in found}
    target = {move.duty: move.target for move in moves}
    for row in duties:
        holder = holders[row.number]
        if holder is None:
            continue
        before, after = balances[holder.shard], balances[target.get(row.number, holder.shard)]
        before.duties_before += 1
        before.weight_before += weight_of(row)
        after.duties_after += 1
        after.weight_after += weight_of(row)
    return list(balances.values())


def held_back(state: State, pallet: Pallet, found: list[ShardRoom]) -> str:
    """The reason why no duty of the pallet is moved automatically at present; "" if there is none."""
    if pallet.manual:
        return "the pallet is balanced by hand"
    running = versions(state, found)
    if len(running) > 1 and not pallet.HasField("canary"):
        return f"a deploy is under way: its shards run the versions {', '.join(one or 'none' for one in running)}"
    closed = (room.name for room in found if not room.accepts and room.count)
    leaving = next((name for name in closed if _is_being_emptied(state, pallet, name, found)), "")
    return f"{leaving} is being emptied" if leaving else ""


def _is_being_emptied(state: State, pallet: Pallet, name: str, found: list[ShardRoom]) -> bool:
    """True if duties of the pallet are going to leave this shard, which gets no more duties. This doesn't wait for
    duties that are kept for the shard, are stationary or have no other place: they may stay for very long.
    """
    shard = state.duties.shards[name]
    if shard.state == ShardState.SHARD_STATE_AWAY:
        return False
    if shard.state in (ShardState.SHARD_STATE_LEAVING, ShardState.SHARD_STATE_GONE):
        return any(True for _ in _held(state, pallet, name))
    if state.duties.releasing.get(name) and any(one.state == _RELEASING for one, _ in _held(state, pallet, name)):
        return True
    first = list(islice((row for _, row in _held(state, pallet, name) if not row.stationary), MOVES_PER_SHARD))
    return any(
        balancer_of(pallet).place(asked, open_, settings_of(pallet.balancer)).moves
        for some, open_ in groups(state, pallet, first, found)
        if (asked := [placed_duty(state, row) for row in some])
    )


def _held(state: State, pallet: Pallet, name: str) -> Iterator[tuple[Assignment, Duty]]:
    """The pallet's duties that the shard may have now, except synthetic duties and those that are being deleted."""
    for one in state.duties.on_shard[name].values():
        row = state.duties.duties[one.duty]
        is_meant = row.pallet == pallet.id and not (row.synthetic or row.deleting)
        if is_meant and one.holds and one.state != _KEPT:
            yield one, row


def compare_pallet(state: State, pallet_id: str, now_ms: int) -> ComparePalletResponse:
    """The plan of each balancer for the pallet's duties as they are now. Raises UNKNOWN_PALLET."""
    pallet = pallet_named(state, pallet_id)
    asked = [placed_duty(state, row) for row in movable(state, pallet.id)]
    found, settings = rooms(state, pallet.id, now_ms), settings_of(pallet.balancer)
    kinds = {balancer_name(kind): kind for kind in BalancerKind.values() if kind}
    present = balancer_name(pallet.balancer.kind)
    return ComparePalletResponse(
        balancers=(
            BalancerComparison(
                kind=kinds[one.balancer],
                is_present=one.balancer == present,
                moves=one.moves,
                minimum_moves=one.minimum_moves,
                weight_skew=one.weight_skew,
                count_skew=one.count_skew,
                load_skew=one.fill_skew or 0.0,
                unplaced=len(one.unplaced),
                loads=[_load(pallet.id, shard) for shard in one.shards],
            )
            for one in compare(asked, found, settings)
        )
    )


def _load(pallet: str, shard: PlannedBalance) -> ShardLoad:
    return ShardLoad(shard=shard.name, pallet=pallet, duties=shard.count, weight=shard.weight, capacity=shard.capacity)


# The operation


def migration_of(move: Move) -> Migration:
    """The move of a plan as a migration."""
    return Migration(
        duty=move.duty,
        source=move.source,
        target=move.target,
        state=MigrationState.MIGRATION_STATE_PENDING,
        reason=move.reason,
    )


def problem_of(state: State, move: Move) -> str | None:
    """The reason why a plan's move of a duty can no longer be carried out; None if it can."""
    row, holder = state.duties.duties.get(move.duty), state.duties.holder(move.duty)
    if row is None or row.deleting:
        return "it was deleted"
    if holder is None or holder.shard != move.source:
        return f"it is {f'on {holder.shard}' if holder is not None else 'nowhere'} now"
    if holder.epoch != move.duty_epoch:
        return f"its epoch was {move.duty_epoch}, now it is {holder.epoch}"
    target = state.duties.shards.get(move.target)
    if target is None:
        return f"there is no shard {move.target}"
    if why := refusal(state, target):
        return why
    return "it couldn't be attached there" if quarantine_of(state, row, target) is not None else None


@dataclass(frozen=True, slots=True)
class BalancePallet(Begins):
    """A pallet's balancer has found its duties out of balance. Moves that are no longer possible are left out."""

    plan: Plan

    def operation(self, state: State) -> Operation | None:
        """The operation; None if no move of the plan is still possible."""
        if not any(problem_of(state, move) is None for move in self.plan.moves):
            return None
        return Operation(automatic=True, reason=self.plan.reason, rebalance=RebalanceOperation(pallet=self.plan.pallet))

    def migrations(self) -> list[Migration]:
        """The first MOVES_AT_ONCE of the plan's moves; another plan will have the rest. A move that is no longer
        possible is cancelled when its turn comes.
        """
        return [migration_of(move) for move in self.plan.moves[:MOVES_AT_ONCE]]


class Rebalances(OperationKind):
    """A rebalance consists of its migrations alone."""

    shifts_load: ClassVar[bool] = False

    def told(self, state: State, operation: Operation) -> str:
        """The name of the command, and that of the pallet."""
        return f"pallet rebalance {operation.rebalance.pallet}"
