"""Makes a plan that people have seen an operation with exactly its moves."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from minka.cluster.plan_digest import plan_digest
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import ApplyPlanRequest, Move, Plan
from minka.v1.cluster_pb2 import Migration, MigrationState, NodeState, Operation, ReassignOperation, RebalanceOperation
from minkad.core.controller.operation_kind import Begins
from minkad.core.controller.rows import ROWS_A_STEP
from minkad.core.duties.control import duty_rebalance
from minkad.core.placement.moving import destinations_in_pieces
from minkad.core.state import State, replace


@dataclass(frozen=True, slots=True)
class ApplyPlan(Begins):
    """A person wants exactly this plan carried out."""

    plan: Plan
    requested_by: str
    reason: str = ""  # "": the plan's
    rate_limit: int | None = None  # bytes a second for each node, 0: no limit; None: the plan's

    @classmethod
    def of(cls, request: ApplyPlanRequest) -> "ApplyPlan":
        """The command that a person gives by the request."""
        rate_limit = request.rate_limit if request.HasField("rate_limit") else None
        return cls(request.plan, request.requested_by, request.reason, rate_limit)

    @property
    def queue(self) -> bool:
        """True if the plan was made to be queued."""
        return self.plan.queued

    def check(self, state: State) -> Iterator[None]:
        """Raises DAMAGED_PLAN, CLUSTER_MISMATCH, INVALID_ARGUMENT, and STALE_PLAN if a thing that the plan moves has
        changed since the plan was made.
        """
        _check_plan(state, self.plan)
        yield
        yield from _check_moves(state, self.plan)

    def operation(self, state: State) -> Operation:
        """The operation."""
        operation = Operation(
            requested_by=self.requested_by,
            reason=self.reason or self.plan.reason,
            rate_limit=self.plan.rate_limit if self.rate_limit is None else self.rate_limit,
        )
        if self.plan.pallet:
            operation.rebalance.CopyFrom(RebalanceOperation(pallet=self.plan.pallet, plan_digest=self.plan.digest))
        else:
            operation.reassign.CopyFrom(ReassignOperation(plan_digest=self.plan.digest))
        return operation

    def migrations(self) -> Iterator[Migration]:
        """Exactly the plan's moves."""
        return migrations_of(self.plan)


def migrations_of(plan: Plan) -> Iterator[Migration]:
    """The plan's moves as migrations, one for each, in the same order."""
    places = Counter[int]()
    for move in plan.moves:
        if move.HasField("duty"):
            yield duty_rebalance.migration_of(move)
            continue
        is_simple = replace(move.replicas, move.source, move.target) == list(move.target_replicas)
        yield Migration(
            partition_id=move.partition_id,
            source=move.source,
            target=move.target,
            state=MigrationState.MIGRATION_STATE_PENDING,
            reason=move.reason,
            index=places[move.partition_id],
            target_replicas=() if is_simple else move.target_replicas,
        )
        places[move.partition_id] += 1


def _check_plan(state: State, plan: Plan) -> None:
    if plan.digest != plan_digest(plan):
        raise MinkaError(
            Code.DAMAGED_PLAN, f"the plan says digest {plan.digest[:12]}, its content {plan_digest(plan)[:12]}"
        )
    if plan.cluster_id != state.cluster.id:
        raise MinkaError(
            Code.CLUSTER_MISMATCH, f"the plan is for cluster {plan.cluster_id}, this is {state.cluster.id}"
        )
    if plan.splits:
        raise MinkaError(Code.INVALID_ARGUMENT, "the plan has splits, which are operations of their own")
    if not plan.moves:
        raise MinkaError(Code.INVALID_ARGUMENT, "the plan has no moves")


def _check_moves(state: State, plan: Plan) -> Iterator[None]:
    destination = yield from destinations_in_pieces(state)
    replicas: dict[int, list[str]] = {}  # by partition: its replicas after the moves so far
    for number, move in enumerate(plan.moves):
        if number % ROWS_A_STEP == 0:
            yield
        if move.HasField("duty"):
            if (problem := duty_rebalance.problem_of(state, move)) is not None:
                raise MinkaError(Code.STALE_PLAN, f"{move.partition} can't go to {move.target}: {problem}")
            continue
        if move.partition_id in destination:
            if not plan.queued:
                continue  # another operation moves it: `begin` refuses this one, and names the other
            replicas.setdefault(move.partition_id, destination[move.partition_id].replicas)
        problem = _problem_of(state, move, replicas)
        if problem is not None:
            going = f"from {move.source} to {move.target}" if move.source else f"to {', '.join(move.target_replicas)}"
            raise MinkaError(Code.STALE_PLAN, f"{move.partition} can't go {going}: {problem}")
        replicas[move.partition_id] = list(move.target_replicas)


def _problem_of(state: State, move: Move, replicas: dict[int, list[str]]) -> str | None:
    partition = state.partitions.get(move.partition_id)
    if partition is None:
        return "it does not exist"
    if partition.id not in replicas and partition.partition_epoch != move.partition_epoch:
        return f"its epoch was {move.partition_epoch}, now it is {partition.partition_epoch}"
    now = replicas.get(partition.id, list(partition.replicas))
    if list(move.replicas) != now:
        return f"its replicas are {', '.join(now)}"
    target = list(move.target_replicas)
    min_insync = state.keyspaces[partition.keyspace_id].min_insync
    if len(set(target)) != len(target) or len(target) < max(1, min_insync):
        return f"it would have the replicas {', '.join(target)}, and {max(1, min_insync)} must be in sync"
    for node_id in target:
        node = state.nodes.get(node_id)
        if node_id in partition.removing_replicas:
            return f"{node_id} is still deleting an older copy"
        if node_id not in now and (node is None or node.state != NodeState.NODE_STATE_LIVE):
            return f"{node_id} is not LIVE"
    return None
