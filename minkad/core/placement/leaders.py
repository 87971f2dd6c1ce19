"""Chooses which replica is the preferred leader of each partition, so that every node leads its share."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence

from minkad.core.placement.quotas import even_quotas


def spread_leaders(replicas: dict[int, list[str]], targets: Sequence[str], weights: Mapping[str, float]) -> list[int]:
    """Change the order of the replicas of as few partitions as possible, and return the ids of those. `replicas`: by
    partition id, the preferred leader first; its lists are changed.

    Leadership goes from a node that has too much to one that has too little along the shortest chain of partitions that
    both have.
    """
    leads = Counter(nodes[0] for nodes in replicas.values())
    quotas = dict.fromkeys(leads, 0) | even_quotas(leads, targets, weights, len(replicas), Counter())
    changed: dict[int, None] = {}
    for source in sorted(quotas):
        while leads[source] > quotas[source]:
            chain = _chain(replicas, source, {n for n, quota in quotas.items() if leads[n] < quota})
            if not chain:
                break
            for partition_id, leader in chain:
                nodes = replicas[partition_id]
                leads.update({nodes[0]: -1, leader: 1})
                nodes.remove(leader)
                nodes.insert(0, leader)
                changed[partition_id] = None
    return list(changed)


def _chain(replicas: Mapping[int, list[str]], source: str, wanting: set[str]) -> list[tuple[int, str]]:
    """A chain of partitions and their new leaders, from the source to one of `wanting`; empty if there is none."""
    by_leader: defaultdict[str, list[int]] = defaultdict(list)
    for partition_id, nodes in replicas.items():
        by_leader[nodes[0]].append(partition_id)
    came_from: dict[str, tuple[str, int]] = {source: ("", 0)}
    queue = deque([source])
    while queue:
        node = queue.popleft()
        for partition_id in by_leader[node]:
            for other in replicas[partition_id][1:]:
                if other in came_from:
                    continue
                came_from[other] = (node, partition_id)
                if other in wanting:
                    return _walked_back(came_from, other)
                queue.append(other)
    return []


def _walked_back(came_from: Mapping[str, tuple[str, int]], end: str) -> list[tuple[int, str]]:
    chain = []
    before, partition_id = came_from[end]
    while before:
        chain.append((partition_id, end))
        end = before
        before, partition_id = came_from[end]
    return chain
