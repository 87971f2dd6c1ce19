"""Partitions that aren't served although their state doesn't show it, and those that no unclean election can save."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from minka.cluster.in_sync import eligible_replicas, has_everything, is_sole, kept_replicas
from minka.v1.admin_pb2 import DamagedLeader, Unserved, UnservedOnNode
from minka.v1.cluster_pb2 import Node, Partition, PartitionState
from minka.v1.coordinator_pb2 import DamagedReplica
from minkad.core.state import is_up

MAX_LEADERS: Final = 100  # damaged leaders that are named; all are counted


def has_copy(row: Partition, nodes: Mapping[str, Node], damaged: Collection[str] = ()) -> bool:
    """True if a node that is up has a copy that may lead; copies on the nodes `damaged` may not."""
    return any(is_up(nodes.get(node)) and node not in damaged for node in kept_replicas(row))


class UnservedCounts:
    """Adds up rows, a few at a time. `damaged`: the copies that are known to be damaged."""

    def __init__(self, nodes: Mapping[str, Node], damaged: Iterable[DamagedReplica]) -> None:
        self._nodes = nodes
        self._unusable: defaultdict[int, set[str]] = defaultdict(set)  # by partition: the nodes with damaged copies
        for one in damaged:
            self._unusable[one.partition_id].add(one.node_id)
        self._found = Unserved()
        self._damaged: set[int] = set()
        self._by_node: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def offline(self, row: Partition) -> None:
        """Count a partition that nobody leads."""
        unusable = self._unusable.get(row.id, ())
        if row.state == PartitionState.PARTITION_STATE_OFFLINE and not has_copy(row, self._nodes, unusable):
            self._found.without_copy += 1
            whole = has_everything(row)
            for node in row.replicas:
                if is_sole(node, whole):
                    self._by_node[node]["without_copy"] += 1

    def damaged(self, one: DamagedReplica, row: Partition | None, name: str) -> None:
        """Count a damaged copy, if it is the leader's."""
        if row is None or row.leader != one.node_id:
            return
        self._damaged.add(row.id)
        counts = self._by_node[one.node_id]
        counts["damaged"] += 1
        counts["damaged_online"] += row.state == PartitionState.PARTITION_STATE_ONLINE
        if len(self._found.leaders) < MAX_LEADERS:
            unusable = self._unusable[row.id]
            self._found.leaders.append(
                DamagedLeader(
                    partition_id=row.id,
                    partition=name,
                    node_id=one.node_id,
                    reason=one.reason,
                    is_alone=list(row.isr) == [row.leader],
                    others=[node for node in kept_replicas(row) if node not in unusable],
                    eligible=[node for node in eligible_replicas(row) if node not in unusable],
                )
            )

    def unconfirmed(self, leaders: Mapping[tuple[int, int], str], lasting: Collection[tuple[int, int]]) -> None:
        """Count the partitions whose leaders, by partition and leader_epoch, have not confirmed for long. Partitions
        with damaged leaders were counted before.
        """
        waiting = [one for one in lasting if one in leaders and one[0] not in self._damaged]
        self._found.unconfirmed = len(waiting)
        self._found.unconfirmed_by[:] = sorted({leaders[one] for one in waiting})

    def message(self) -> Unserved:
        """All that was counted."""
        self._found.damaged = len(self._damaged)
        self._found.nodes.extend(_on_nodes(sorted(self._by_node.items())))
        return self._found


def _on_nodes(counts: Iterable[tuple[str, Mapping[str, int]]]) -> Iterable[UnservedOnNode]:
    return (UnservedOnNode(node_id=node, **of_node) for node, of_node in counts)
