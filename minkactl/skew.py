"""Finds out whether replicas or leaders are spread so unevenly that it should be changed, and by which command."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from minka.v1.admin_pb2 import GetStatusResponse, KeyspaceCounts
from minka.v1.cluster_pb2 import Keyspace, Node, NodeState

SHARE: Final = 0.3  # of what a node should have: a smaller difference isn't a problem
AT_LEAST: Final = 4  # nor is a difference of this many partitions, or fewer
REASSIGN: Final = "minkactl reassign"
ELECT: Final = "minkactl elect-leaders --preferred"


def skews(status: GetStatusResponse) -> Iterator[tuple[str, str]]:
    """The uneven counts, and the commands that even them; nothing while something else has to be done first."""
    summary, nodes = status.summary, list(status.table.nodes)
    live = [node for node in nodes if node.state == NodeState.NODE_STATE_LIVE]
    settled = not summary.reassigned and sum(one.online for one in summary.keyspaces) == summary.partitions
    if len(live) < max(len(nodes), 2) or not settled or status.running:
        return
    slack = max(AT_LEAST, len(status.table.keyspaces))  # each keyspace is evened separately
    replicas = {node.node_id: node.movable for node in summary.nodes}
    leaders = {node.node_id: node.leads for node in summary.nodes}
    preferred = {node.node_id: node.preferred for node in summary.nodes}
    whole = _Spread(replicas, leaders, preferred, {node.node_id: node.leads_if_elected for node in summary.nodes})
    if (found := whole.skew(live, slack)) is not None:
        yield f"{found[0]} a node", found[1]
        return
    # The sum over all keyspaces may be even while some keyspaces aren't. Where load is evened, counts may be uneven.
    counts = {one.keyspace_id: one for one in summary.keyspaces}
    for keyspace in status.table.keyspaces:
        if keyspace.max_ops or not counts[keyspace.id].shares:
            continue
        if (found := _of_keyspace(keyspace, counts[keyspace.id], nodes).skew(live, AT_LEAST)) is not None:
            yield f"{found[0]} a node in {keyspace.name}", f"{found[1]} --keyspace {keyspace.name}"


def _of_keyspace(keyspace: Keyspace, counts: KeyspaceCounts, nodes: Sequence[Node]) -> "_Spread":
    shares = {node.id: share for node, share in zip(nodes, counts.shares, strict=True)}
    everywhere = keyspace.replicas >= len(nodes)
    return _Spread(
        {node: 0 if everywhere else share.replicas for node, share in shares.items()},
        {node: share.leads for node, share in shares.items()},
        {node: share.preferred for node, share in shares.items()},
        {node: share.leads_if_elected for node, share in shares.items()},
    )


@dataclass(frozen=True, slots=True)
class _Spread:
    """Partitions by node: replicas that can be elsewhere, leaders, and the leaders of a preferred election."""

    replicas: Mapping[str, int]
    leaders: Mapping[str, int]
    preferred: Mapping[str, int]
    elected: Mapping[str, int]

    def skew(self, live: Sequence[Node], slack: int) -> tuple[str, str] | None:
        """The uneven counts, and the command that evens them."""
        if is_skewed(self.replicas, live, slack):
            return f"replicas are spread unevenly: {_span(self.replicas, live)}", REASSIGN
        if not is_skewed(self.leaders, live, slack):
            return None
        text = f"leaders are spread unevenly: {_span(self.leaders, live)}"
        if not is_skewed(self.elected, live, slack):
            return text, ELECT
        return (text, REASSIGN) if is_skewed(self.preferred, live, slack) else None


def is_skewed(counts: Mapping[str, int], nodes: Sequence[Node], slack: int) -> bool:
    """True if a node has much more or much less than its share by weight.

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
