"""How many replicas each node is to have."""

import heapq
from collections.abc import Mapping, Sequence


def even_quotas(
    counts: Mapping[str, int],
    targets: Sequence[str],
    weights: Mapping[str, float],
    limit: int,
    totals: Mapping[str, int],
) -> dict[str, int]:
    """For each target its share of all that there is by its weight, rounded to differ by less than one from it.

    No node gets more than `limit`. Who has more keeps the odd one, so that the fewest move; then who has least of
    `totals`, which counts beyond what is evened out here.
    """
    left = sum(counts.values())
    quotas = dict.fromkeys(targets, 0)
    open_ = list(targets)
    while left and open_:
        whole = sum(weights.get(node, 1.0) for node in open_)
        shares = {node: left * weights.get(node, 1.0) / whole for node in open_}
        over = [node for node in open_ if shares[node] >= limit]
        if over:  # as many as there can be; the others share the rest
            for node in over:
                quotas[node] = limit
                left -= limit
                open_.remove(node)
            continue
        for node in open_:
            quotas[node] = int(shares[node] + 1e-9)
        odd = left - sum(quotas[node] for node in open_)
        ranked = sorted(
            open_,
            key=lambda n: (counts.get(n, 0) <= quotas[n], quotas[n] - shares[n], -counts.get(n, 0), totals[n], n),
        )
        for node in ranked[:odd]:
            quotas[node] += 1
        break
    return quotas


def filled_quotas(
    counts: Mapping[str, int],
    targets: Sequence[str],
    weights: Mapping[str, float],
    limit: int,
    totals: Mapping[str, int],
) -> dict[str, int]:
    """As `even_quotas`, where nobody of the targets gives up anything: what others have goes to who has least."""
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
