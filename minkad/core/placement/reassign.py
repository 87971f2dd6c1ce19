"""The fewest moves that even out the partitions (Fixed Partitions: "Moving partitions to newly added members")."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import Move, NodeBalance, Plan
from minka.v1.cluster_pb2 import Keyspace, NodeState, OperationKind, Partition, PartitionState
from minkad.core.placement.plan import plan_digest, refuse_if_running
from minkad.core.state import State, partition_name


def plan_reassign(
    state: State, sizes: Mapping[int, int], to: Sequence[str], keyspaces: Sequence[str], now_ms: int
) -> Plan:
    """Within each keyspace: max − min ≤ 1 over the nodes of `to`, with the fewest moves that do it.

    `sizes` are bytes by partition id. `to` empty: all LIVE nodes; `keyspaces` empty: all. A node that is not in `to`
    gives up all it has. Where several partitions could go, the bytes decide: what makes the nodes more even goes.
    Raises OPERATION_RUNNING, UNKNOWN_NODE, NOT_ENOUGH_NODES, UNKNOWN_KEYSPACE, or PARTITION_OFFLINE when a
    partition has no leader to copy it from.
    """
    refuse_if_running(state)
    targets = _targets(state, to)
    planner = _Planner(state, sizes, targets)
    for keyspace in _selected(state, keyspaces):
        planner.even_out(keyspace)
    plan = Plan(
        kind=OperationKind.OPERATION_KIND_REASSIGN,
        cluster_id=state.cluster.id,
        table_version=state.version,
        created_ms=now_ms,
        moves=planner.moves,
        nodes=planner.balance(),
        minimum_moves=planner.minimum_moves,
    )
    plan.digest = plan_digest(plan)
    return plan


def fewest_moves(counts: Mapping[str, int], targets: Sequence[str]) -> int:
    """How many partitions have to leave their node, whatever the plan, until max − min ≤ 1 over the targets."""
    total = sum(counts.values())
    floor, with_one_more = divmod(total, len(targets))
    ranked = sorted((counts.get(t, 0) for t in targets), reverse=True)
    kept = sum(min(count, floor + (1 if i < with_one_more else 0)) for i, count in enumerate(ranked))
    return total - kept


def _targets(state: State, to: Sequence[str]) -> list[str]:
    live = sorted(n.id for n in state.nodes.values() if n.state == NodeState.NODE_STATE_LIVE)
    for node in to:
        if node not in state.nodes:
            raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {node}", node=node)
        if node not in live:
            raise MinkaError(Code.NOT_ENOUGH_NODES, f"node {node} is not LIVE, so nothing can go there", node=node)
    if not live:
        raise MinkaError(Code.NOT_ENOUGH_NODES, "no node is LIVE")
    return sorted(set(to)) or live


def _selected(state: State, names: Sequence[str]) -> Iterable[Keyspace]:
    if not names:
        return list(state.keyspaces.values())
    found = {name: state.keyspace_named(name) for name in names}
    for name, keyspace in found.items():
        if keyspace is None:
            raise MinkaError(Code.UNKNOWN_KEYSPACE, f"there is no keyspace {name}", keyspace=name)
    return [keyspace for keyspace in found.values() if keyspace is not None]


@dataclass(frozen=True, slots=True)
class _Quota:
    """How many partitions of a keyspace a node has, and is to have."""

    before: int
    after: int


class _Planner:
    """Collects moves keyspace by keyspace, so that the nodes' totals and bytes even out across them."""

    def __init__(self, state: State, sizes: Mapping[int, int], targets: Sequence[str]) -> None:
        self.state = state
        self.sizes = sizes
        self.targets = targets
        self.moves: list[Move] = []
        self.minimum_moves = 0
        self._before = _count(state.partitions.values())
        self._after = Counter(self._before)
        self._bytes_before = Counter[str]()
        for p in state.partitions.values():
            for node in _holders(p):
                self._bytes_before[node] += sizes.get(p.id, 0)
        self._bytes_after = Counter(self._bytes_before)

    def even_out(self, keyspace: Keyspace) -> None:
        partitions = [p for p in self.state.partitions.values() if p.keyspace_id == keyspace.id]
        _refuse_unplannable(self.state, partitions)
        counts = _count(partitions)
        self.minimum_moves += fewest_moves(counts, self.targets)
        quotas = self._quotas(counts)
        surplus = [p for node, quota in quotas.items() for p in self._surplus(node, quota, partitions)]
        room = {node: quota.after - quota.before for node, quota in quotas.items() if quota.after > quota.before}
        for partition, source in sorted(surplus, key=lambda s: (-self.sizes.get(s[0].id, 0), s[0].id)):
            target = self._target(partition, room)
            room[target] -= 1
            self._move(partition, source, target, quotas)

    def _quotas(self, counts: Mapping[str, int]) -> dict[str, _Quota]:
        """The nodes that have most keep one more, so that fewest move; among equals the one with least in total."""
        floor, with_one_more = divmod(sum(counts.values()), len(self.targets))
        ranked = sorted(self.targets, key=lambda n: (-counts.get(n, 0), self._after[n], n))
        quotas = {
            node: _Quota(counts.get(node, 0), floor + (1 if i < with_one_more else 0)) for i, node in enumerate(ranked)
        }
        return quotas | {node: _Quota(count, 0) for node, count in counts.items() if node not in quotas}

    def _surplus(self, node: str, quota: _Quota, partitions: Iterable[Partition]) -> list[tuple[Partition, str]]:
        """What leaves an overloaded node: the partitions nearest to the mean size, so that its bytes shrink in step."""
        excess = max(0, quota.before - quota.after)
        mine = [p for p in partitions if node in _holders(p)]
        mean = sum(self.sizes.get(p.id, 0) for p in mine) / max(1, len(mine))
        mine.sort(key=lambda p: (abs(self.sizes.get(p.id, 0) - mean), -p.id))
        return [(p, node) for p in mine[:excess]]

    def _target(self, partition: Partition, room: Mapping[str, int]) -> str:
        """Where there is room: the node with the fewest bytes, then the fewest partitions."""
        free = [
            n for n, left in room.items() if left > 0 and n not in (*partition.replicas, *partition.removing_replicas)
        ]
        if not free:
            name = partition_name(self.state.keyspaces, partition)
            raise MinkaError(
                Code.OPERATION_RUNNING, f"{name}: its former node is still deleting its copy; try again in a moment"
            )
        return min(free, key=lambda n: (self._bytes_after[n], self._after[n], n))

    def _move(self, partition: Partition, source: str, target: str, quotas: Mapping[str, _Quota]) -> None:
        size = self.sizes.get(partition.id, 0)
        quota = quotas[source]
        keyspace = self.state.keyspaces[partition.keyspace_id].name
        leaves = "is not among the chosen nodes" if source not in self.targets else f"is to have {quota.after}"
        reason = (
            f"{source} has {quota.before} partitions of {keyspace} and {leaves}; "
            f"{target} has {quotas[target].before} and is to have {quotas[target].after}"
        )
        self.moves.append(
            Move(
                partition_id=partition.id,
                partition=partition_name(self.state.keyspaces, partition),
                source=source,
                target=target,
                partition_epoch=partition.partition_epoch,
                bytes=size,
                reason=reason,
            )
        )
        self._after.update({source: -1, target: 1})
        self._bytes_after.update({source: -size, target: size})

    def balance(self) -> list[NodeBalance]:
        nodes = sorted({*self.targets, *(n for n, count in self._before.items() if count)})
        return [
            NodeBalance(
                node=n,
                partitions_before=self._before[n],
                partitions_after=self._after[n],
                bytes_before=self._bytes_before[n],
                bytes_after=self._bytes_after[n],
            )
            for n in nodes
        ]


def _holders(partition: Partition) -> list[str]:
    return [r for r in partition.replicas if r not in partition.adding_replicas]


def _count(partitions: Iterable[Partition]) -> Counter[str]:
    return Counter(node for p in partitions for node in _holders(p))


def _refuse_unplannable(state: State, partitions: Iterable[Partition]) -> None:
    """A partition without its leader can't be copied, and one that is being assigned has not settled."""
    for partition in partitions:
        if partition.state != PartitionState.PARTITION_STATE_ONLINE:
            name = partition_name(state.keyspaces, partition)
            where = f"its data is on {', '.join(partition.isr)}"
            raise MinkaError(Code.PARTITION_OFFLINE, f"{name} is not ONLINE, so it can't be planned for; {where}")
