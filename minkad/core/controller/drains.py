"""Drains: a node is relieved of its work gracefully (Kafka Controller Internals: shutdownBroker).

A node that is DRAINING still serves. Its leaderships go to other replicas in sync (step 1, `schedule`). When the node
says that it has stopped, the partitions that it still leads get other leaders (steps 2 and 3,
`node_events.on_node_failure`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final

from minka.cluster.in_sync import has_everything
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import Blocker, DrainNodeRequest, Plan, PlanReassignRequest
from minka.v1.cluster_pb2 import DrainOperation, Keyspace, Migration, Node, NodeState, Operation, Partition
from minka.v1.coordinator_pb2 import ControlledShutdownRequest, DiskSpace
from minka.v1.records_pb2 import Record
from minkad.core.controller.decision import Steps
from minkad.core.controller.operation_kind import (
    Beginning,
    Begins,
    Due,
    End,
    OperationKind,
    Touch,
    Touched,
    Usage,
)
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.reassigns import migrations_of
from minkad.core.controller.rows import ROWS_A_STEP, node_in_state, partitions_changed
from minkad.core.controller.selectors import Live, controlled_shutdown_leader_selector
from minkad.core.placement.reassign import plan_reassign
from minkad.core.state import Placed, State, is_up, partition_name, slices
from minkad.core.unserved import has_copy

_MAX_NAMED: Final = 8
_LIVE, _DRAINING = NodeState.NODE_STATE_LIVE, NodeState.NODE_STATE_DRAINING


def controlled_shutdown(state: State, request: ControlledShutdownRequest, now_ms: int) -> Steps[None]:
    """The process is about to stop: the node is DRAINING until it leaves or registers again."""
    node = state.nodes.get(request.node_id)
    if node is not None and node.state == _LIVE and node.incarnation == request.incarnation:
        yield [node_in_state(node, _DRAINING, "is about to stop", now_ms)]


def leaderships_to_move(state: State, node_id: str, live: Live) -> Iterator[Due | None]:
    """For each partition that the node leads: the partition with its next leader, or None if no other node can lead
    it.
    """
    for id_ in list(state.partitions.led.get(node_id, ())):
        row = state.partitions.get(id_)
        is_led = row is not None and row.leader == node_id
        selection = controlled_shutdown_leader_selector(row, live, (node_id,)) if row is not None and is_led else None
        yield None if row is None or selection is None else (row, selection.leader)


def running_drain(state: State, node_id: str) -> Operation | None:
    """The operation that drains the node; None if none does."""
    return next((o for o in state.running_operations() if o.HasField("drain") and o.drain.node == node_id), None)


def undrained(state: State, node_id: str, now_ms: int, but: Collection[Placed] = ()) -> list[Record]:
    """The records by which a node stays after all, and keeps its leaderships, except of the partitions in `but`."""
    node = state.nodes.get(node_id)
    if node is None or node.state != _DRAINING:
        return []
    kept = (
        PartitionChange(p).keep_leader().row()
        for p in map(state.partitions.__getitem__, state.partitions.yielding)
        if p.leader == node_id and not p.target_replicas and Placed.partition(p.id) not in but
    )
    return [node_in_state(node, _LIVE, "stays after all", now_ms), *partitions_changed(kept)]


def blockers(state: State, node_id: str) -> Iterator[list[Blocker]]:
    """The shards and partitions that would be hurt if the node stopped now, in pieces of ROWS_A_STEP partitions. If
    there are none, the node is safe to stop.
    """
    yield list(_shard_blockers(state, node_id))
    for rows in slices(state.partitions_on(node_id), ROWS_A_STEP):
        yield list(_partition_blockers(state, rows, node_id))


def shards_on(state: State, node_id: str) -> Iterator[tuple[str, int]]:
    """The shards on the node's machine that have duties, and their number, without synthetic ones."""
    for name, shard in sorted(state.duties.shards.items()):
        held = sum(load.duties for load in state.duties.loads.get(name, {}).values())
        if shard.node == node_id and held:
            yield name, held


def _shard_blockers(state: State, node_id: str) -> Iterator[Blocker]:
    node = state.nodes.get(node_id)
    if node is None or not node.emptied:
        return
    for name, held in shards_on(state, node_id):
        if stays := _why_they_stay(state, name):
            yield Blocker(reason=f"shard {name} on it has {held} duties: {stays}", remedy=f"minkactl shards {name}")
        else:
            yield Blocker(reason=f"shard {name} on it has {held} duties, which go elsewhere in a moment")


def _why_they_stay(state: State, shard: str) -> str:
    held = [state.duties.duties[number] for number in state.duties.on_shard.get(shard, ())]
    if stationary := sum(row.stationary for row in held):
        return f"{stationary} are stationary, and stay until they end or the shard stops"
    return "" if state.duties.releasing.get(shard) else "no other shard has room for them"


def _blockers(state: State, rows: Iterable[Partition], node_id: str) -> Iterator[Blocker]:
    yield from _shard_blockers(state, node_id)
    yield from _partition_blockers(state, rows, node_id)


def _partition_blockers(state: State, rows: Iterable[Partition], node_id: str) -> Iterator[Blocker]:
    live, ways_out = Live.of(state).without(node_id), _WaysOut.of(state, node_id)
    for row in rows:
        if node_id in row.isr:
            for reason, remedy in _hurt(state, row, node_id, live, ways_out):
                name = partition_name(state.keyspaces, row)
                yield Blocker(partition_id=row.id, partition=name, reason=reason, remedy=remedy)


def _is_safe(state: State, node_id: str) -> bool:
    """True if there are no `blockers`. Look first at the partitions that the node leads: they block the longest."""
    rows = chain(state.led_by(node_id), state.partitions_on(node_id))
    return next(_blockers(state, rows, node_id), None) is None


@dataclass(frozen=True, slots=True)
class _WaysOut:
    """Commands that move replicas away from a node. They need as many other nodes as the keyspace has replicas."""

    node_id: str
    targets: int  # other nodes that are LIVE, or are down and still have copies
    most_replicas: int  # of any keyspace

    @classmethod
    def of(cls, state: State, node_id: str) -> "_WaysOut":
        others = (node for node in state.nodes.values() if node.id != node_id)
        targets = sum(n.state == _LIVE or (not is_up(n) and bool(state.partitions.copies.get(n.id))) for n in others)
        return cls(node_id, targets, max((one.replicas for one in state.keyspaces.values()), default=0))

    def remedy(self, keyspace: Keyspace) -> str:
        """The command; "" if there are too few nodes."""
        if self.most_replicas <= self.targets:
            return f"minkactl drain {self.node_id} --decommission"
        if keyspace.replicas <= self.targets:
            return f"minkactl reassign --keyspace {keyspace.name} --drain {self.node_id}"
        return ""


def _hurt(state: State, partition: Partition, node_id: str, live: Live, ways_out: _WaysOut) -> list[tuple[str, str]]:
    others = [node for node in partition.isr if node in live.up]
    keyspace = state.keyspaces[partition.keyspace_id]
    missing = [r for r in partition.replicas if r != node_id and not is_up(state.nodes.get(r))]
    if not others:
        remedy = f"start {missing[0]}" if missing else ways_out.remedy(keyspace)
        return [("no other replica is in sync: it would be OFFLINE", remedy)]
    if len(others) < keyspace.min_insync:
        remedy = f"start {missing[0]}" if missing else ""
        return [(f"{len(others)} of {keyspace.min_insync} would be in sync: its writes would be refused", remedy)]
    if partition.leader == node_id:
        if partition.successor:
            return [(f"{node_id} leads it; leadership goes to {partition.successor} in a moment", "")]
        if state.nodes[node_id].state == _DRAINING:
            return [(f"{node_id} leads it; leadership goes in a moment", "")]
        return [(f"{node_id} leads it, and nobody drains {node_id}", f"minkactl drain {node_id}")]
    return []


@dataclass(frozen=True, slots=True)
class DrainNode(Begins):
    """A person wants a node to lead nothing, and with `decommission` to have nothing. `sizes`: by partition id. `plan`
    says where the node's replicas go. Since planning takes long, the plan is made before the command has its turn. It
    is used only if it still holds.
    """

    node_id: str
    decommission: bool
    requested_by: str
    reason: str
    sizes: Mapping[int, int]
    rate_limit: int = 0
    disks: Mapping[str, DiskSpace] = field(default_factory=dict)
    queue: bool = False
    plan: Plan | None = None

    @classmethod
    def of(cls, request: DrainNodeRequest, usage: Usage) -> "DrainNode":
        """The command that a person gives by the request."""
        return cls(
            request.node,
            request.decommission,
            request.requested_by,
            request.reason,
            usage.sizes,
            request.rate_limit,
            usage.disks,
            request.queue,
            usage.plan,
        )

    @property
    def usage(self) -> Usage:
        """The nodes' reports, by which it is planned where the node's replicas go."""
        return Usage(self.sizes, self.disks, self.plan)

    def operation(self, state: State) -> Operation:
        """Raises UNKNOWN_NODE, and INVALID_ARGUMENT if there is nothing to drain."""
        node = _node(state, self.node_id)
        if not is_up(node) and not self.decommission:
            why = f" ({node.state_reason})" if node.state_reason else ""
            text = f"{node.id} is not LIVE{why}, so it leads nothing: there is nothing to drain"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        return Operation(
            requested_by=self.requested_by,
            reason=self.reason,
            rate_limit=self.rate_limit,
            drain=DrainOperation(node=node.id, decommission=self.decommission),
        )


class Drains(OperationKind):
    """The node stops leading, and with `decommission` all its replicas move to other nodes."""

    def told(self, state: State, operation: Operation) -> str:
        """The command's name, and the node's."""
        flag = " --decommission" if operation.drain.decommission else ""
        return f"drain {operation.drain.node}{flag}"

    def begin(self, state: State, operation: Operation, usage: Usage, now_ms: int) -> Steps[Beginning]:
        """The node is DRAINING from now on. For a decommission, plan where its replicas go."""
        drain = operation.drain
        node = _node(state, drain.node)
        migrations: list[Migration] = []
        if drain.decommission:
            plan = usage.plan
            if plan is None or not (yield from _still_holds(state, plan, drain.node)):
                plan = plan_reassign(state, usage.sizes, PlanReassignRequest(drain=[drain.node]), now_ms, usage.disks)
            if not plan.moves and next(_left_behind(state, drain.node), None) is not None:
                raise _nothing_moves(state, drain.node, plan)
            drain.plan_digest = plan.digest
            for some in slices(migrations_of(plan), ROWS_A_STEP):
                migrations += some
                yield []
        leaves: list[Record] = []
        if is_up(node) and not node.emptied:
            leaves = [node_in_state(node, _DRAINING, "is being drained", now_ms, emptied=True)]
        return Beginning(migrations, leaves)

    def touches(self, state: State, operation: Operation) -> list[Touched]:
        """No other operation may drain the node."""
        return [(Touch.DRAINS, operation.drain.node)]

    def blockers(self, state: State, operation: Operation) -> Iterator[Blocker]:
        """The things that would be hurt if the node stopped now. Of a decommission: the replicas that other operations
        move off the node, and the replicas that nobody moves, since no node can take them.
        """
        node = operation.drain.node
        if operation.drain.decommission:
            return chain(_moved_by_others(state, operation), _stays(state, node))
        return _blockers(state, state.partitions_on(node), node)

    def cancelled(self, state: State, operation: Operation, but: Collection[Placed], now_ms: int) -> list[Record]:
        """The node stays in service."""
        return undrained(state, operation.drain.node, now_ms, but)

    def end(self, state: State, operation: Operation, live: Live) -> End | None:
        """The drain ends when the node is safe to stop, or can no longer be drained."""
        drain = operation.drain
        node = state.nodes.get(drain.node)
        if operation.cancelled:
            return End(f"{drain.node} stays")
        if node is None:
            return End(f"{drain.node} was removed")
        if drain.decommission:
            return _decommissioned(state, node)
        if node.state == NodeState.NODE_STATE_FAILED:
            return End(f"{node.id} failed: {node.state_reason}", failed=True)
        if node.state != _DRAINING:
            return End(f"{node.id} {node.state_reason}")
        return End(f"{node.id} is safe to stop") if _is_safe(state, node.id) else None


def _still_holds(state: State, plan: Plan, node_id: str) -> Steps[bool]:
    """True if the partitions that the plan moves haven't changed, and each replica that it leaves on the node is moved
    by another operation. On a node that is down, the plan may leave replicas that no node could take: no new replicas
    have come to this node since.
    """
    for number, move in enumerate(plan.moves):
        if number % ROWS_A_STEP == 0:
            yield []
        row = state.partitions.get(move.partition_id)
        if row is None or row.partition_epoch != move.partition_epoch:
            return False
        target = state.nodes.get(move.target)
        if target is None or target.state != NodeState.NODE_STATE_LIVE:
            return False
    planned = {Placed.partition(move.partition_id) for move in plan.moves}
    if not planned.isdisjoint(state.moving):
        return False
    if not is_up(state.nodes.get(node_id)):
        return True
    for rows in slices(state.partitions_on(node_id), ROWS_A_STEP):
        yield []
        held = (Placed.partition(row.id) for row in rows if node_id in row.replicas)
        if any(thing not in planned and thing not in state.moving for thing in held):
            return False
    return True


def _moved_by_others(state: State, operation: Operation) -> Iterator[Blocker]:
    node = operation.drain.node
    if all(other.id == operation.id for other in state.moving_operations()):
        return
    for row in state.partitions_on(node):
        by = state.moving.get(Placed.partition(row.id), operation.id)
        if node in row.replicas and by != operation.id:
            name = partition_name(state.keyspaces, row)
            remedy = f"minkactl operations show {by}"
            yield Blocker(partition_id=row.id, partition=name, reason=f"operation {by} moves it", remedy=remedy)


def _left_behind(state: State, node_id: str) -> Iterator[Partition]:
    """The partitions whose replica stays on the node: no operation moves it."""
    rows = (p for p in state.partitions_on(node_id) if node_id in p.replicas)
    return (row for row in rows if Placed.partition(row.id) not in state.moving)


def _nothing_moves(state: State, node_id: str, plan: Plan) -> MinkaError:
    """The refusal of a decommission that couldn't move anything."""
    if any(row.leader for row in _left_behind(state, node_id)):
        return MinkaError(Code.NOT_ENOUGH_NODES, "; ".join(plan.notes), node=node_id)
    return MinkaError(Code.NO_SOURCE, _all_that_stays(state, node_id), node=node_id)


def _stays(state: State, node_id: str) -> Iterator[Blocker]:
    """The replicas that nobody moves off the node, why, and the remedies."""
    live = {node.id for node in state.nodes.values() if node.state == _LIVE}
    for row in _left_behind(state, node_id):
        name, have = partition_name(state.keyspaces, row), has_everything(row)
        reason = "each LIVE node has a replica of it" if live <= {*row.replicas} else "no node has room for it"
        remedy = "let a node join, then drain again"
        if not row.leader and have:
            reason = f"it is OFFLINE, and its data is on {', '.join(have)}"
            last_resort = f"minkactl elect-leaders --unclean --partition {name}"
            if not has_copy(row, state.nodes):
                last_resort = (
                    "no node that is up has another copy (docs/operations.md, When all replicas in sync are lost)"
                )
            remedy = f"start {' or '.join(have)}; if that data is lost for good: {last_resort}"
        yield Blocker(partition_id=row.id, partition=name, reason=f"it stays on {node_id}: {reason}", remedy=remedy)


def _all_that_stays(state: State, node_id: str) -> str:
    held = sum(node_id in row.replicas for row in state.partitions_on(node_id))
    named = list(islice(_stays(state, node_id), _MAX_NAMED))
    more = f", and {held - len(named)} more" if held > len(named) else ""
    which = ", ".join(blocker.partition for blocker in named)
    return f"{node_id} still holds {held} partitions ({which}{more}): {named[0].reason}; {named[0].remedy}"


def _decommissioned(state: State, node: Node) -> End | None:
    held = [p.id for p in state.partitions_on(node.id) if node.id in p.replicas]
    if any(Placed.partition(partition_id) in state.moving for partition_id in held):
        return None  # another operation moves it, to a node that isn't being drained
    if held:
        return End(_all_that_stays(state, node.id), failed=True)
    if is_up(node) and any(state.partitions_on(node.id)):
        return None  # it is still deleting its copies
    return End(f"{node.id} holds nothing and is safe to stop")


def _node(state: State, node_id: str) -> Node:
    node = state.nodes.get(node_id)
    if node is None:
        raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {node_id}", node=node_id)
    return node
