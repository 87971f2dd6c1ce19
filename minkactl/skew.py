"""Finds out whether replicas or leaders are spread so unevenly that it should be changed, and by which command."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from minka.v1.admin_pb2 import GetStatusResponse
from minka.v1.cluster_pb2 import Node, NodeState, Partition, PartitionState

SHARE: Final = 0.3  # of what a node should have: a smaller difference is no problem
AT_LEAST: Final = 4  # nor is a difference of so few partitions
REASSIGN: Final = "minkactl reassign"
ELECT: Final = "minkactl elect-leaders --preferred"


def skews(status: GetStatusResponse) -> Iterator[tuple[str, str]]:
    """What is uneven, and the command that evens it; nothing while something else has to be done first."""
    partitions, nodes = status.table.partitions, list(status.table.nodes)
    live = [node for node in nodes if node.state == NodeState.NODE_STATE_LIVE]
    settled = all(p.state == PartitionState.PARTITION_STATE_ONLINE and not p.target_replicas for p in partitions)
    if len(live) < max(len(nodes), 2) or not settled or status.running:
        return
    slack = max(AT_LEAST, len(status.table.keyspaces))  # each keyspace is evened by itself
    everywhere = {keyspace.id for keyspace in status.table.keyspaces if keyspace.replicas >= len(live)}
    movable = [partition for partition in partitions if partition.keyspace_id not in everywhere]
    replicas = Counter(node for partition in movable for node in partition.replicas)
    leaders = Counter(partition.leader for partition in partitions)
    preferred = Counter(partition.replicas[0] for partition in partitions)
    if is_skewed(replicas, live, slack):
        yield f"replicas are spread unevenly: {_span(replicas, live)} a node", REASSIGN
    elif is_skewed(leaders, live, slack):
        elected = Counter(_leader_after_election(partition) for partition in partitions)
        if not is_skewed(elected, live, slack):
            yield f"leaders are spread unevenly: {_span(leaders, live)} a node", ELECT
        elif is_skewed(preferred, live, slack):
            yield f"leaders are spread unevenly: {_span(leaders, live)} a node", REASSIGN


def is_skewed(counts: Mapping[str, int], nodes: Sequence[Node], slack: int) -> bool:
    """Whether a node has much more or much less than its share by weight.

    Nodes are compared within their zone: how much a zone has follows from its number of nodes and the replicas.
    """
    for zone in {node.zone for node in nodes}:
        members = [node for node in nodes if node.zone == zone]
        total = sum(counts[node.id] for node in members)
        weights = sum(node.weight or 1 for node in members)
        for node in members:
            share = total * (node.weight or 1) / weights
            if abs(counts[node.id] - share) > max(slack, SHARE * share):
                return True
    return False


def _leader_after_election(partition: Partition) -> str:
    preferred = partition.replicas[0]
    return preferred if preferred in partition.isr else partition.leader


def _span(counts: Mapping[str, int], nodes: Sequence[Node]) -> str:
    """A text such as: 4 (cyrene) to 60 (athens)."""
    ordered = sorted(nodes, key=lambda node: counts[node.id])
    least, most = ordered[0].id, ordered[-1].id
    return f"{counts[least]:,} ({least}) to {counts[most]:,} ({most})"
