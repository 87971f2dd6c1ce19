"""Chooses the preferred leader of each partition, so that every node leads its share."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence

from minkad.core.placement.quotas import even_quotas


def spread_leaders(replicas: dict[int, list[str]], targets: Sequence[str], weights: Mapping[str, float]) -> list[int]:
    """Give each node its share of the leaderships. Changes the lists of `replicas` (by partition id, the preferred
    leader first), as few of them as possible, and returns the ids of the changed partitions.

    Leaderships go from a node that leads too many partitions to a node that leads too few, along the shortest chain.
    Say that a leads too many, c leads too few, and no partition has replicas on both: then b takes over a partition
    from a, and c takes over another partition from b.
    """
    leads = Counter(nodes[0] for nodes in replicas.values())
    quotas = dict.fromkeys(leads, 0) | even_quotas(leads, targets, weights, len(replicas), Counter())
    changed: dict[int, None] = {}
    while any(leads[node] > quota for node, quota in quotas.items()):
        chains = list(_Chains(replicas, leads, quotas).shortest())
        if not chains:
            break
        changed |= dict.fromkeys(id_ for chain in chains for id_ in chain)
    return list(changed)


class _Chains:
    """One round of Dinic's algorithm: one pass over the partitions finds all chains of the shortest present length."""

    def __init__(self, replicas: dict[int, list[str]], leads: Counter[str], quotas: Mapping[str, int]) -> None:
        self._replicas = replicas
        self._leads = leads
        self._quotas = quotas
        by_leader: defaultdict[str, list[int]] = defaultdict(list)
        leaders_beside: defaultdict[str, dict[str, None]] = defaultdict(dict)  # by follower: the leaders
        for id_, nodes in replicas.items():
            by_leader[nodes[0]].append(id_)
            for node in nodes[1:]:
                leaders_beside[node][nodes[0]] = None
        self._distance = self._distances(leaders_beside)  # a node without a way to the end isn't in it
        self._left = {node: iter(ids) for node, ids in by_leader.items()}

    def _distances(self, leaders_beside: Mapping[str, Mapping[str, None]]) -> dict[str, int]:
        """For each node, the length of the shortest chain to a node that leads too few partitions."""
        distance = {node: 0 for node in sorted(self._quotas) if self._leads[node] < self._quotas[node]}
        queue = deque(distance)
        while queue:
            node = queue.popleft()
            for leader in leaders_beside.get(node, ()):
                if leader not in distance:
                    distance[leader] = distance[node] + 1
                    queue.append(leader)
        return distance

    def shortest(self) -> Iterator[list[int]]:
        """Change the leaders along the shortest chains. Yields the partitions of each chain."""
        for source in sorted(self._quotas):
            while self._leads[source] > self._quotas[source] and (chain := self._from(source)):
                self._leads[source] -= 1
                self._leads[chain[-1][1]] += 1
                for id_, leader in chain:
                    self._replicas[id_].remove(leader)
                    self._replicas[id_].insert(0, leader)
                yield [id_ for id_, _ in chain]

    def _from(self, source: str) -> list[tuple[int, str]]:
        """A chain of partitions and their new leaders; [] without one. All calls look at a partition at most once."""
        chain: list[tuple[int, str]] = []
        node = source
        while self._distance.get(node) != 0:
            step = self._step(node)
            if step is not None:
                chain.append(step)
            elif not chain:
                return []
            else:
                del self._distance[node]  # no way on from here
                chain.pop()
            node = chain[-1][1] if chain else source
        return chain

    def _step(self, node: str) -> tuple[int, str] | None:
        """The node's next partition that brings the chain nearer to its end."""
        wanted = self._distance.get(node, 0) - 1
        for id_ in self._left.get(node, ()):
            for other in self._replicas[id_][1:]:
                if self._distance.get(other) == wanted and (wanted or self._leads[other] < self._quotas[other]):
                    return id_, other
        return None
