"""Shares: the number of replicas for each node, and the weight for each shard."""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class ZoneLimits(NamedTuple):
    """The least and the greatest number of a keyspace's replicas in a zone, for a plan that puts no further replica of
    a partition into a zone where the partition has one. `zones`: by node.
    """

    zones: Mapping[str, str]
    least: int
    most: int


def level_shares(
    total: float, weights: Mapping[str, float], floors: Mapping[str, float], ceilings: Mapping[str, float]
) -> dict[str, float]:
    """The total, divided by the weights: each name gets at least its floor and at most its ceiling. If a floor is above
    its ceiling, the floor counts.

    Names without a bound share the rest by their weights. With a total of 12, equal weights, and a ceiling of 2 for a,
    the shares of a, b and c are 2, 5 and 5.
    """
    shares = dict.fromkeys(weights, 0.0)
    open_ = list(weights)
    while open_:
        whole = sum(weights[name] for name in open_)
        wanted = {name: max(0.0, total) * weights[name] / whole if whole else 0.0 for name in open_}
        shares |= {n: max(min(wanted[n], ceilings.get(n, math.inf)), floors.get(n, 0.0)) for n in open_}
        excess = sum(shares[n] - wanted[n] for n in open_)
        # A floor leaves less to the others, which may then stay below their ceilings; a ceiling leaves more to them. So
        # only the kind of bound that changes the sum more is settled in this round.
        bound = [n for n in open_ if (shares[n] > wanted[n] if excess > 0 else shares[n] < wanted[n])]
        if not bound:
            bound = open_ if not excess else [n for n in open_ if shares[n] != wanted[n]]
        total -= sum(shares[n] for n in bound)
        settled = set(bound)
        open_ = [n for n in open_ if n not in settled]
    return shares


def even_quotas(
    counts: Mapping[str, int],
    targets: Sequence[str],
    weights: Mapping[str, float],
    limit: int,
    totals: Mapping[str, int],
    zone_limits: ZoneLimits | None = None,
) -> dict[str, int]:
    """The share of all replicas for each target, by its weight, rounded up or down.

    Each node gets at most `limit`, and each zone a number within its limits. A share that is a whole number is rounded
    up only if the zones' limits leave no other way. Other shares are rounded up in this order: of nodes that
    have more replicas than the share rounded down, so that the fewest replicas move; of nodes that lose most by
    rounding down; of nodes with the most replicas; of nodes with the least `totals`, which count all keyspaces.
    """
    left = sum(counts.values())
    shares = _shares(left, {n: weights.get(n, 1.0) for n in targets}, limit, zone_limits)
    quotas = {node: int(shares[node] + 1e-9) for node in targets}
    lost = {node: max(0.0, shares[node] - quotas[node]) for node in targets}  # by rounding down
    ranked = sorted(
        (node for node in targets if quotas[node] < limit),
        key=lambda n: (lost[n] <= 1e-9, counts.get(n, 0) <= quotas[n], -lost[n], -counts.get(n, 0), totals[n], n),
    )
    left -= sum(quotas.values())
    bounds = _Zones(zone_limits, quotas)
    # First each zone gets its least number; the rest goes to any zone that may have more.
    for least in (True, False):
        for node in ranked:
            if left > 0 and quotas[node] == int(shares[node] + 1e-9) and bounds.may_have_more(node, least=least):
                quotas[node] += 1
                bounds.add(node)
                left -= 1
    return quotas


def _shares(total: int, weights: Mapping[str, float], limit: int, zone_limits: ZoneLimits | None) -> dict[str, float]:
    if zone_limits is None:
        return level_shares(total, weights, {}, dict.fromkeys(weights, limit))
    members: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for node, weight in weights.items():
        members[zone_limits.zones[node]][node] = weight
    of_zones = level_shares(
        total,
        {zone: sum(nodes.values()) for zone, nodes in members.items()},
        {zone: min(zone_limits.least, limit * len(nodes)) for zone, nodes in members.items()},
        {zone: min(zone_limits.most, limit * len(nodes)) for zone, nodes in members.items()},
    )
    shares: dict[str, float] = {}
    for zone, nodes in members.items():
        shares |= level_shares(of_zones[zone], nodes, {}, dict.fromkeys(nodes, limit))
    return shares


class _Zones:
    """The number of replicas that each zone has got so far, while nodes get their quotas."""

    def __init__(self, limits: ZoneLimits | None, quotas: Mapping[str, int]) -> None:
        self._limits = limits
        self._counts = Counter[str]()
        if limits is not None:
            for node, quota in quotas.items():
                self._counts[limits.zones[node]] += quota

    def may_have_more(self, node: str, *, least: bool = False) -> bool:
        """True if the node's zone may get another replica; with `least`, True if it must get another one."""
        if self._limits is None:
            return not least
        return self._counts[self._limits.zones[node]] < (self._limits.least if least else self._limits.most)

    def add(self, node: str) -> None:
        """Count one more replica on the node."""
        if self._limits is not None:
            self._counts[self._limits.zones[node]] += 1


def filled_quotas(
    counts: Mapping[str, int],
    targets: Sequence[str],
    weights: Mapping[str, float],
    limit: int,
    totals: Mapping[str, int],
    zone_limits: ZoneLimits | None = None,
) -> dict[str, int]:
    """Like `even_quotas`, but targets only gain: each further replica goes to the one with the least for its weight."""
    quotas = {node: counts.get(node, 0) for node in targets}
    left = sum(count for node, count in counts.items() if node not in quotas)
    weight = {node: weights.get(node, 1.0) for node in targets}
    heap = [(quotas[n] / weight[n], totals[n], n) for n in targets if quotas[n] < limit and weight[n] > 0]
    heapq.heapify(heap)
    bounds = _Zones(zone_limits, quotas)
    while left and heap:
        _, total, node = heapq.heappop(heap)
        if not bounds.may_have_more(node):
            continue
        quotas[node] += 1
        bounds.add(node)
        left -= 1
        if quotas[node] < limit:
            heapq.heappush(heap, (quotas[node] / weight[node], total, node))
    return quotas
