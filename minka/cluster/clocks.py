"""Finds clocks that are wrong. Nodes and minkactl both use this."""

from collections.abc import Collection
from typing import Final

OFF_MS: Final = 1000  # a clock is wrong if it differs by more than this from the clocks of most nodes
_FEWEST: Final = 3  # if only two clocks differ, nobody can say which one is right


def of_most(clocks_ms: Collection[int], nodes_up: int) -> int | None:
    """The time by the clocks of most nodes, in milliseconds. None if fewer than three clocks are known, or if the
    clocks of at most half of the nodes that are up agree: the other clocks may then be right. `clocks_ms` has either
    the time of each clock, or how far each clock is ahead of one common clock; the result is of the same kind.
    """
    if len(clocks_ms) < _FEWEST:
        return None
    median = sorted(clocks_ms)[(len(clocks_ms) - 1) // 2]
    agreeing = sum(abs(one - median) <= OFF_MS for one in clocks_ms)
    return median if 2 * agreeing > max(nodes_up, len(clocks_ms)) else None
