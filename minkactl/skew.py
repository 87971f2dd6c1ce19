"""Finds out whether replicas or leaders are spread so unevenly that it should be changed, and by which command."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from minka.v1.admin_pb2 import GetStatusResponse
from minka.v1.cluster_pb2 import Node, NodeState

SHARE: Final = 0.3  # of what a node should have: a smaller difference is no problem
AT_LEAST: Final = 4  # nor is a difference of so few partitions
REASSIGN: Final = "minkactl reassign"
ELECT: Final = "minkactl elect-leaders --preferred"


def skews(status: GetStatusResponse) -> Iterator[tuple[str, str]]:
    """What is uneven, and the command that evens it; nothing while something else has to be done first."""
    summary, nodes = status.summary, list(status.table.nodes)
    live = [node for node in nodes if node.state == NodeState.NODE_STATE_LIVE]
    settled = not summary.reassigned and sum(one.online for one in summary.keyspaces) == summary.partitions
    if len(live) < max(len(nodes), 2) or not settled or status.running:
        return
    slack = max(AT_LEAST, len(status.table.keyspaces))  # each keyspace is evened by itself
    replicas = {node.node_id: node.movable for node in summary.nodes}
    leaders = {node.node_id: node.leads for node in summary.nodes}
    preferred = {node.node_id: node.preferred for node in summary.nodes}
    if is_skewed(replicas, live, slack):
        yield f"replicas are spread unevenly: {_span(replicas, live)} a node", REASSIGN
    elif is_skewed(leaders, live, slack):
        elected = {node.node_id: node.leads_if_elected for node in summary.nodes}
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


def _span(counts: Mapping[str, int], nodes: Sequence[Node]) -> str:
    """A text such as: 4 (cyrene) to 60 (athens)."""
    ordered = sorted(nodes, key=lambda node: counts[node.id])
    least, most = ordered[0].id, ordered[-1].id
    return f"{counts[least]:,} ({least}) to {counts[most]:,} ({most})"
