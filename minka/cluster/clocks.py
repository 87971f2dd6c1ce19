"""Finds the clocks that are off, alike for nodes and minkactl."""

from collections.abc import Collection
from typing import Final

OFF_MS: Final = 1000  # a clock that differs by more from those of most nodes is off
_FEWEST: Final = 3  # of two clocks that differ, nobody can say which one is right


def of_most(clocks_ms: Collection[int], nodes_up: int) -> int | None:
    """The time by the clocks of most nodes, in milliseconds; None if fewer than three are known, or most of the nodes
    that are up don't agree: unknown clocks may be the right ones. `clocks_ms`: the time of each node's clock, or by how
    much each is ahead of one common clock.
    """
    if len(clocks_ms) < _FEWEST:
        return None
    median = sorted(clocks_ms)[(len(clocks_ms) - 1) // 2]
    agreeing = sum(abs(one - median) <= OFF_MS for one in clocks_ms)
    return median if 2 * agreeing > max(nodes_up, len(clocks_ms)) else None
