"""Plans a reassign: which replicas move to which nodes, in which order, and why."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from minka.cluster.plan_digest import plan_digest
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import AssignedReplicas, Move, NodeBalance, Plan, PlanReassignRequest
from minka.v1.cluster_pb2 import Keyspace, NodeState, Partition
from minka.v1.coordinator_pb2 import DiskSpace
from minkad.core.placement.layout import NO_DISKS, Layout
from minkad.core.placement.leaders import spread_leaders
from minkad.core.placement.moving import has_leader
from minkad.core.placement.rebalance import Rebalance, Step, Wishes, some_names, unplannable
from minkad.core.state import State, is_up, partition_name


def plan_reassign(
    state: State,
    sizes: Mapping[int, int],
    request: PlanReassignRequest,
    now_ms: int,
    disks: Mapping[str, DiskSpace] = NO_DISKS,
) -> Plan:
    """A plan with the fewest moves after which, within each keyspace, every node of `to` has its share, by its weight.
    `weights` overrides the nodes' weights, `sizes` are bytes by partition id.

    Nodes: an empty `to` means all LIVE nodes except those of `drain`; empty `keyspaces` mean all keyspaces. A node that
    isn't in `to` gives up all its replicas; a node that is down gives up those that others can take, and notes name the
    rest. With `drain` and without `to`, only the nodes of `drain` give up replicas. No replica goes to a node whose
    disk, by `disks`, is low or would become low.

    Moves: each move adds one replica; several moves of one partition come one after the other. Preferred leaders are
    spread like replicas. With `partitions`, only these partitions move: they get exactly the given replicas, each in
    one move.

    The plan leaves partitions alone that have no leader or that an operation moves; notes name them. With `queue`, it
    may move the latter again, from the nodes where all operations leave them. Notes also name partitions that will have
    fewer replicas than their keyspace.

    Raises OPERATION_RUNNING if an operation is in the way, UNKNOWN_NODE, NOT_ENOUGH_NODES, UNKNOWN_KEYSPACE,
    UNKNOWN_PARTITION, INVALID_ARGUMENT, DISK_LOW if a named node has no room, or NO_SOURCE or
    PARTITION_OFFLINE if a node that is up can't be emptied, or a partition of `partitions` can't move, because a
    partition has no leader from which it could be copied.
    """
    layout = Layout(state, sizes, disks, moves_again=request.queue)
    if request.partitions:
        moves = _explicit_moves(state, sizes, request.partitions, layout)
        named = [state.partitions[one.partition_id] for one in request.partitions]
        notes = [note for keyspace in state.keyspaces.values() for note in _lacking(state, keyspace, named, layout)]
        minimum = sum(set(move.replicas) != set(move.target_replicas) for move in moves)
        targets: Sequence[str] = ()
    else:
        wishes = _wishes(state, request)
        targets = wishes.targets
        moves, minimum, notes = _evening_moves(state, sizes, _selected(state, request.keyspaces), layout, wishes)
        notes = [*_low_disks(targets, disks), *notes]
    plan = Plan(
        cluster_id=state.cluster.id,
        table_version=state.version,
        created_ms=now_ms,
        moves=moves,
        nodes=_balance(layout, targets),
        minimum_moves=minimum,
        notes=notes,
        reason=request.reason,
        rate_limit=request.rate_limit,
        queued=request.queue,
    )
    plan.digest = plan_digest(plan)
    return plan


# Wishes


def _wishes(state: State, request: PlanReassignRequest) -> Wishes:
    live = sorted(n.id for n in state.nodes.values() if n.state == NodeState.NODE_STATE_LIVE)
    for node in (*request.to, *request.drain, *request.weights):
        if node not in state.nodes:
            raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {node}", node=node)
    for node in request.to:
        if node not in live:
            raise MinkaError(Code.NOT_ENOUGH_NODES, f"node {node} is not LIVE, so nothing can go there", node=node)
    for node, weight in request.weights.items():
        if not isfinite(weight) or weight <= 0:
            raise MinkaError(Code.INVALID_ARGUMENT, f"weight {weight:g} of {node}: it must be above 0; see also drain")
    targets = [node for node in (sorted(set(request.to)) or live) if node not in request.drain]
    if not targets:
        raise MinkaError(Code.NOT_ENOUGH_NODES, "no node is left to take anything" if live else "no node is LIVE")
    weights = {node.id: float(node.weight or 1) for node in state.nodes.values()} | dict(request.weights)
    down = frozenset(node.id for node in state.nodes.values() if not is_up(node))
    if not request.drain or request.to:
        return Wishes(targets, weights, down=down)
    left_alone = state.nodes.keys() - {*targets, *request.drain}
    return Wishes(targets, weights, gently=True, left_alone=left_alone, down=down)


def _selected(state: State, names: Sequence[str]) -> Iterable[Keyspace]:
    if not names:
        return list(state.keyspaces.values())
    found = {name: state.keyspace_named(name) for name in names}
    for name, keyspace in found.items():
        if keyspace is None:
            raise MinkaError(Code.UNKNOWN_KEYSPACE, f"there is no keyspace {name}", keyspace=name)
    return [keyspace for keyspace in found.values() if keyspace is not None]


def _low_disks(targets: Sequence[str], disks: Mapping[str, DiskSpace]) -> list[str]:
    return [f"nothing goes to {n}: its disk is low" for n in targets if n in disks and disks[n].is_low]


# Rebalance out


def _evening_moves(
    state: State, sizes: Mapping[int, int], keyspaces: Iterable[Keyspace], layout: Layout, wishes: Wishes
) -> tuple[list[Move], int, list[str]]:
    moves: list[Move] = []
    notes: list[str] = []
    minimum = 0
    by_keyspace: defaultdict[int, list[Partition]] = defaultdict(list)
    for row in state.partitions.values():
        by_keyspace[row.keyspace_id].append(row)
    for keyspace in keyspaces:
        mine = by_keyspace[keyspace.id]
        rows = [p for p in mine if p.id not in layout.moving]
        notes += _left_alone(keyspace, Counter(layout.moving[p.id] for p in mine if p.id in layout.moving))
        rebalance = Rebalance(state, keyspace, mine, layout, wishes)
        rebalance.run()
        minimum += rebalance.minimum
        notes += rebalance.notes
        if not wishes.gently:
            notes += _lacking(state, keyspace, mine, layout)
        reordered = []
        if keyspace.replicas > 1 and not wishes.gently:
            orders = {p.id: layout.replicas[p.id] for p in rows if has_leader(p)}
            reordered = spread_leaders(orders, wishes.targets, wishes.weights)
        moves += _in_order(state, sizes, layout, rebalance.steps, reordered)
    return moves, minimum, notes


def _left_alone(keyspace: Keyspace, by_operation: Mapping[int, int]) -> list[str]:
    return [
        f"{count} partitions of {keyspace.name} are left alone: operation {operation_id} moves them"
        for operation_id, count in by_operation.items()
    ]


def _lacking(state: State, keyspace: Keyspace, rows: Iterable[Partition], layout: Layout) -> list[str]:
    """A note about the partitions that, after the plan, have fewer replicas than their keyspace. A plan adds a replica
    only if somebody asks for it, and without this note nobody would.
    """
    mine = (row for row in rows if row.keyspace_id == keyspace.id)
    names = [partition_name(state.keyspaces, p) for p in mine if len(layout.replicas[p.id]) < keyspace.replicas]
    if not names:
        return []
    have = f"{some_names(names)} {'has' if len(names) == 1 else 'have'} fewer replicas"
    than = f"than the {keyspace.replicas} of keyspace {keyspace.name}"
    return [f"after this plan, {have} {than}; only a plan that names all replicas of a partition adds one"]


def _in_order(
    state: State, sizes: Mapping[int, int], layout: Layout, steps: Sequence[Step], reordered: Sequence[int]
) -> list[Move]:
    """A move for each step. A partition's last move also gives its replicas their final order. Moves that only change
    an order come last.
    """
    last = {step.partition_id: i for i, step in enumerate(steps)}
    orders: defaultdict[int, list[str]] = defaultdict(list)
    moves = []
    for i, step in enumerate(steps):
        partition = state.partitions[step.partition_id]
        before = orders[partition.id] or layout.before[partition.id]
        after = [step.target if node == step.source else node for node in before]
        if last[partition.id] == i:
            after = list(layout.replicas[partition.id])
        orders[partition.id] = after
        move = _move(state, sizes, partition, before, after, step.reason)
        move.source, move.target = step.source, step.target
        moves.append(move)
    for partition_id in reordered:
        if partition_id not in last:
            partition = state.partitions[partition_id]
            after = layout.replicas[partition_id]
            reason = f"{after[0]} is to lead instead of {layout.before[partition_id][0]}; no data moves"
            moves.append(_move(state, {}, partition, layout.before[partition_id], after, reason))
    return moves


def _move(
    state: State,
    sizes: Mapping[int, int],
    partition: Partition,
    before: Sequence[str],
    after: Sequence[str],
    reason: str,
) -> Move:
    return Move(
        partition_id=partition.id,
        partition=partition_name(state.keyspaces, partition),
        partition_epoch=partition.partition_epoch,
        bytes=sizes.get(partition.id, 0),
        reason=reason,
        replicas=before,
        target_replicas=after,
    )


# Exactly as asked


def _explicit_moves(
    state: State, sizes: Mapping[int, int], wanted: Sequence[AssignedReplicas], layout: Layout
) -> list[Move]:
    moves = []
    seen: set[int] = set()
    for assigned in wanted:
        partition = state.partitions.get(assigned.partition_id)
        if partition is None:
            raise MinkaError(Code.UNKNOWN_PARTITION, f"partition {assigned.partition_id} does not exist")
        name, after = partition_name(state.keyspaces, partition), list(assigned.replicas)
        if partition.id in seen:
            raise MinkaError(Code.INVALID_ARGUMENT, f"{name} is named twice")
        seen.add(partition.id)
        if (by := layout.moving.get(partition.id)) is not None:
            raise MinkaError(Code.OPERATION_RUNNING, f"operation {by} moves {name}", operation=str(by))
        before = layout.before[partition.id]
        if after == before:
            continue
        if not has_leader(partition):
            raise unplannable(state, partition)
        _check_wanted(state, partition, name, after)
        added = [node for node in after if node not in before]
        gone = [node for node in before if node not in after]
        move = _move(state, sizes, partition, before, after, "asked for")
        move.bytes *= len(added)
        if len(added) == len(gone) == 1:
            move.source, move.target = gone[0], added[0]
        moves.append(move)
        for node in added:
            _check_disk(layout, name, node, sizes.get(partition.id, 0))
        layout.replicas[partition.id] = after
        layout.bytes.update(dict.fromkeys(added, sizes.get(partition.id, 0)))
        layout.bytes.subtract(dict.fromkeys(gone, sizes.get(partition.id, 0)))
    return moves


def _check_wanted(state: State, partition: Partition, name: str, replicas: Sequence[str]) -> None:
    keyspace, problem = state.keyspaces[partition.keyspace_id], ""
    if len(set(replicas)) != len(replicas):
        problem = f"{name}: {', '.join(replicas)}: a node can have only one replica of it"
    elif not replicas:
        problem = f"{name} needs one replica or more"
    elif len(replicas) < keyspace.min_insync:
        needed = f"{keyspace.min_insync} replicas or more (min_insync of keyspace {keyspace.name})"
        problem = f"{name}: {', '.join(replicas)}: it needs {needed}"
    if problem:
        raise MinkaError(Code.INVALID_ARGUMENT, problem)
    for node in replicas:
        row = state.nodes.get(node)
        if row is None:
            raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {node}", node=node)
        if node not in partition.replicas and row.state != NodeState.NODE_STATE_LIVE:
            raise MinkaError(Code.NOT_ENOUGH_NODES, f"node {node} is not LIVE, so nothing can go there", node=node)


def _check_disk(layout: Layout, name: str, node: str, size: int) -> None:
    if not layout.has_room(node, size):
        text = f"{name} can't go to {node}: its disk is low, or would be with {size:,} bytes more"
        raise MinkaError(Code.DISK_LOW, text, node=node)
    layout.taken[node] += size


# What each node has before and after


def _balance(layout: Layout, targets: Sequence[str]) -> list[NodeBalance]:
    leads_before = Counter(nodes[0] for nodes in layout.before.values())
    leads_after = Counter(nodes[0] for nodes in layout.replicas.values())
    after = Counter(node for nodes in layout.replicas.values() for node in nodes)
    nodes = sorted({*targets, *layout.totals_before, *after})
    return [
        NodeBalance(
            node=n,
            partitions_before=layout.totals_before[n],
            partitions_after=after[n],
            bytes_before=layout.bytes_before[n],
            bytes_after=layout.bytes[n],
            leaders_before=leads_before[n],
            leaders_after=leads_after[n],
        )
        for n in nodes
    ]
