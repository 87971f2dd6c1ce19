"""How many replicas each node is to have, and how much weight each shard."""

import heapq
import math
from collections.abc import Mapping, Sequence


def level_shares(
    total: float, weights: Mapping[str, float], floors: Mapping[str, float], ceilings: Mapping[str, float]
) -> dict[str, float]:
    """For each its share of the total by its weight, but no less than its floor and no more than its ceiling.

    The others share by their weights what a floor or a ceiling takes or leaves. A floor counts before a ceiling.
    """
    shares = dict.fromkeys(weights, 0.0)
    open_ = list(weights)
    while open_:
        whole = sum(weights[name] for name in open_)
        wanted = {name: max(0.0, total) * weights[name] / whole if whole else 0.0 for name in open_}
        shares |= {n: max(min(wanted[n], ceilings.get(n, math.inf)), floors.get(n, 0.0)) for n in open_}
        excess = sum(shares[n] - wanted[n] for n in open_)
        # What floors add takes from the others, so that ceilings may no longer concern these; and the other way round.
        bound = [n for n in open_ if (shares[n] > wanted[n] if excess > 0 else shares[n] < wanted[n])]
        if not bound:
            bound = open_ if not excess else [n for n in open_ if shares[n] != wanted[n]]
        total -= sum(shares[n] for n in bound)
        open_ = [n for n in open_ if n not in bound]
    return shares


def even_quotas(
    counts: Mapping[str, int],
    targets: Sequence[str],
    weights: Mapping[str, float],
    limit: int,
    totals: Mapping[str, int],
) -> dict[str, int]:
    """For each target its share, by its weight, of all that there is, rounded up or down.

    No node gets more than `limit`. Shares are rounded up first for nodes that have more anyway, so that the fewest
    replicas move; then for those that lose most if it is rounded down, those that have most, and those with the least
    of `totals`, which also counts what is not evened out here.
    """
    left = sum(counts.values())
    shares = level_shares(left, {n: weights.get(n, 1.0) for n in targets}, {}, dict.fromkeys(targets, limit))
    quotas = {node: int(shares[node] + 1e-9) for node in targets}
    ranked = sorted(
        (node for node in targets if quotas[node] < limit),
        key=lambda n: (counts.get(n, 0) <= quotas[n], quotas[n] - shares[n], -counts.get(n, 0), totals[n], n),
    )
    for node in ranked[: left - sum(quotas.values())]:
        quotas[node] += 1
    return quotas


def filled_quotas(
    counts: Mapping[str, int],
    targets: Sequence[str],
    weights: Mapping[str, float],
    limit: int,
    totals: Mapping[str, int],
) -> dict[str, int]:
    """As `even_quotas`, but no target gives up anything: what others have goes to the target that has least."""
    quotas = {node: counts.get(node, 0) for node in targets}
    left = sum(count for node, count in counts.items() if node not in quotas)
    weight = {node: weights.get(node, 1.0) for node in targets}
    heap = [(quotas[n] / weight[n], totals[n], n) for n in targets if quotas[n] < limit and weight[n] > 0]
    heapq.heapify(heap)
    while left and heap:
        _, total, node = heapq.heappop(heap)
        quotas[node] += 1
        left -= 1
        if quotas[node] < limit:
            heapq.heappush(heap, (quotas[node] / weight[node], total, node))
    return quotas
