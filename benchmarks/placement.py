"""Measures the planners, without daemons. For balancers of duties: the evenness of the result, the number of moves
compared with the minimum, and the time. For partitions: the time of a large plan. The peer of the balancers is a hash
ring (the package uhashring), which needs no plan and is less even.
"""

import importlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from benchmarks.measure import MINKA, Goal, Report, Sample, main
from minka.v1.admin_pb2 import Plan, PlanReassignRequest
from minka.v1.cluster_pb2 import Keyspace, Node, NodeState, Partition, PartitionState
from minkad.core.duties.placement import BALANCERS, BalancerSettings, DutyPlan, PlacedDuty, ShardRoom
from minkad.core.placement import plan_reassign
from minkad.core.placement.assign import Placement
from minkad.core.state import State

RING: Final = "uhashring"
SHARDS: Final = 100
_GOAL_DUTIES: Final = 100_000
_GOAL: Final = Goal(at_most=2)  # seconds for _GOAL_DUTIES duties on SHARDS shards
_PLAN_GOAL: Final = Goal(at_most=2)  # seconds for 100,000 partitions on 1,000 nodes
_SMALL_PLAN_GOAL: Final = Goal(at_most=1)  # seconds for 20,000 partitions on four nodes
_SETTINGS: Final = BalancerSettings()
_JOINS: Final = "aa"  # the first name in order, so SPILL_OVER fills this shard
_LEAVES: Final = "s000"

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class World:
    """Duties with weights from 1 to 1,000, on shards of three sizes. They fill two thirds of the shards' capacity."""

    duties: list[PlacedDuty]
    shards: list[ShardRoom]

    @classmethod
    def of(cls, count: int, seed: int) -> "World":
        """Make a world with `count` unplaced duties."""
        rng = Random(seed)
        weights = [min(1000, max(1, int(rng.lognormvariate(3, 1)))) for _ in range(count)]
        duties = [PlacedDuty(n, f"feeds/{n}", weight, n) for n, weight in enumerate(weights)]
        each = 1.5 * sum(weights) / SHARDS
        sizes = [rng.choice([0.5, 1.0, 1.5]) for _ in range(SHARDS)]
        rooms = [ShardRoom(f"s{n:03}", int(each * size / sum(sizes) * SHARDS)) for n, size in enumerate(sizes)]
        return cls(duties, rooms)


def run(report: Report) -> None:
    """Measure all cases, the largest one only once."""
    counts = [1000, 10_000] if report.options.quick else [1000, 10_000, 100_000, 1_000_000]
    ring = _ring()
    if ring is None:
        report.absent[RING] = "not installed (pip install uhashring): no figures beside it"
    for count in counts:
        for seed in range(1 if count == 1_000_000 else report.options.rounds):
            world = World.of(count, seed)
            for name in BALANCERS:
                _minka(report, world, name)
                if ring is not None and name != "spill_over":  # a ring can't fill one shard after the other
                    _beside(report, world, name, ring)
    for table in _QUICK_TABLES if report.options.quick else _TABLES:
        _partitions(report, table)


def _add(report: Report, system: str, world: World, name: str, what: str, took_s: float, **details: float) -> None:
    count = len(world.duties)
    case = report.case(
        f"{name}, {count:,} duties, {what}",
        "s",
        RING if name != "spill_over" else "",
        goal=_GOAL if count == _GOAL_DUTIES else None,
    )
    report.add(case, system, Sample(took_s, details=details))


def _changes(world: World) -> list[tuple[str, list[ShardRoom]]]:
    """The changes of the shards that are measured once all duties are placed: for each, its name and the shards
    after it.
    """
    return [
        ("a shard joins", [ShardRoom(_JOINS, world.shards[1].capacity), *world.shards]),
        ("a shard leaves", [shard for shard in world.shards if shard.name != _LEAVES]),
    ]


def _uneven(name: str, loads: dict[str, tuple[int, int]], shards: Sequence[ShardRoom]) -> float:
    """The unevenness of the shards. `loads` has the number and the weight of each shard's duties.

    It is the largest value of a shard divided by the mean, in the measure that the balancer evens out. For spill over,
    it is the number of shards in use divided by the smallest number that has room for all duties.
    """
    if name == "spill_over":
        left, fewest = sum(weight for _, weight in loads.values()), 0
        for shard in sorted(shards, key=lambda shard: shard.name):
            if left > 0:
                fewest += 1
                left -= shard.capacity or 0
        return sum(count > 0 for count, _ in loads.values()) / fewest
    parts = [(shard.capacity or 0) if name == "capacity_workload" else 1 for shard in shards]
    own = [loads[shard.name][name != "round_robin"] for shard in shards]
    return max(amount / part for amount, part in zip(own, parts, strict=True)) * sum(parts) / sum(own)


# Minka


def _minka(report: Report, world: World, name: str) -> None:
    balancer = BALANCERS[name]
    plan, took = _timed(partial(balancer.rebalance, world.duties, world.shards, _SETTINGS))
    left = {"without a place": len(plan.unplaced)} if plan.unplaced else {}
    _add(report, MINKA, world, name, "all placed", took, uneven=_uneven(name, _loads(plan), world.shards), **left)
    there = {move.number: move.target for move in plan.moves}
    placed = [replace(duty, shard=there.get(duty.number, "")) for duty in world.duties]
    for what, shards in _changes(world):
        plan, took = _timed(partial(balancer.rebalance, placed, shards, _SETTINGS))
        _add(
            report, MINKA, world, name, what, took, uneven=_uneven(name, _loads(plan), shards),
            moves=len(plan.moves), times_the_fewest=len(plan.moves) / max(1, plan.minimum_moves),
        )  # fmt: skip


def _timed(plan: Callable[[], P]) -> tuple[P, float]:
    """Return the plan, and the processor time that it took. Other work of the machine doesn't count."""
    began = time.thread_time()
    made = plan()
    return made, time.thread_time() - began


def _loads(plan: DutyPlan) -> dict[str, tuple[int, int]]:
    return {shard.name: (shard.count, shard.weight) for shard in plan.shards}


# Partitions


@dataclass(frozen=True, slots=True)
class Table:
    """Partitions of three replicas on `nodes` nodes in `zones` zones (0: without zones), and `added` more nodes without
    replicas.
    """

    partitions: int
    nodes: int
    added: int
    zones: int
    goal: Goal | None = None

    def state(self) -> State:
        """Build the table."""
        state = State()
        nodes = [
            Node(id=f"n{i:04}", state=NodeState.NODE_STATE_LIVE, zone=f"z{i % self.zones}" if self.zones else "")
            for i in range(self.nodes + self.added)
        ]
        state.nodes = {node.id: node for node in nodes}
        state.keyspaces[1] = Keyspace(id=1, name="flights", replicas=3, min_insync=2)
        placement = Placement(nodes[: self.nodes], self.partitions, 3)
        for slot in range(self.partitions):
            placement.place(slot)
        for slot, replicas in enumerate(placement.even_out()):
            row = Partition(id=slot + 1, keyspace_id=1, slot=slot, replicas=replicas, isr=replicas, leader=replicas[0])
            row.state = PartitionState.PARTITION_STATE_ONLINE
            state.partitions.put(row)
        return state


_TABLES: Final = (
    Table(20_000, 4, 1, 0, _SMALL_PLAN_GOAL),
    *(Table(100_000, 1000, 20, zones, _PLAN_GOAL) for zones in (0, 3, 10)),
)
_QUICK_TABLES: Final = (Table(2000, 4, 1, 0), Table(10_000, 100, 2, 3))


def _partitions(report: Report, table: Table) -> None:
    state = table.state()
    drained = max(1, table.nodes // 100)
    changes = [
        (f"{table.added} more", PlanReassignRequest()),
        (f"{drained} drained", PlanReassignRequest(drain=[f"n{i:04}" for i in range(drained)])),
    ]
    name = f"{table.partitions:,} partitions x 3 on {table.nodes:,} nodes, {table.zones or 'no'} zones"
    for what, request in changes:
        for _ in range(report.options.rounds):
            plan, took = _timed(partial(plan_reassign, state, {}, request, 0))
            case = report.case(f"{name}, {what}", "s", goal=table.goal)
            moves = _copies(plan)
            details = {"moves": moves, "times_the_fewest": moves / max(1, plan.minimum_moves)}
            report.add(case, MINKA, Sample(took, details={"uneven": _uneven_replicas(plan), **details}))


def _copies(plan: Plan) -> int:
    """The number of moves that copy replicas. The other moves change only the order of replicas."""
    return sum(set(move.replicas) != set(move.target_replicas) for move in plan.moves)


def _uneven_replicas(plan: Plan) -> float:
    """The most replicas on a node, divided by the mean of all nodes that have replicas."""
    counts = [node.partitions_after for node in plan.nodes if node.partitions_after]
    return max(counts) * len(counts) / sum(counts)


# The ring


def _ring() -> Any | None:
    try:
        return importlib.import_module("uhashring").HashRing
    except ImportError:
        return None


def _beside(report: Report, world: World, name: str, ring: Any) -> None:
    """Measure the ring. It considers only capacities, and looks up each duty again when a shard joins or leaves."""
    before, took = _looked_up(world, name, ring, world.shards)
    loads = _loads_of(world, before, world.shards)
    _add(report, RING, world, name, "all placed", took, uneven=_uneven(name, loads, world.shards))
    for what, shards in _changes(world):
        after, took = _looked_up(world, name, ring, shards)
        loads = _loads_of(world, after, shards)
        moves = sum(old != new for old, new in zip(before, after, strict=True))
        _add(report, RING, world, name, what, took, uneven=_uneven(name, loads, shards), moves=moves)


def _looked_up(world: World, name: str, ring: Any, shards: Sequence[ShardRoom]) -> tuple[list[str], float]:
    least = min(shard.capacity or 1 for shard in shards)
    by_capacity = name == "capacity_workload"
    nodes = {s.name: {"weight": round((s.capacity or 1) / least * 2) if by_capacity else 1} for s in shards}
    began = time.thread_time()
    made = ring(nodes)
    found = [made.get_node(duty.name) for duty in world.duties]
    return found, time.thread_time() - began


def _loads_of(world: World, found: Sequence[str], shards: Sequence[ShardRoom]) -> dict[str, tuple[int, int]]:
    count: Counter[str] = Counter(found)
    weight: Counter[str] = Counter()
    for shard, duty in zip(found, world.duties, strict=True):
        weight[shard] += duty.weight
    return {shard.name: (count[shard.name], weight[shard.name]) for shard in shards}


if __name__ == "__main__":
    main("placement", "Measure the planners: the evenness of their results, the number of moves, and the time.", run)
