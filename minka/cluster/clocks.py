"""Whose clock is off: nodes and minkactl judge it alike."""

from collections.abc import Collection
from typing import Final

OFF_MS: Final = 1000  # a clock that differs by more from those of most nodes is off
_FEWEST: Final = 3  # of two clocks that differ, nobody can say which one is right


def of_most(clocks_ms: Collection[int], nodes_up: int) -> int | None:
    """The time by the clocks of most nodes, in milliseconds; None if fewer than three are known, or most of the nodes
    that are up don't agree: those whose clocks aren't known yet may be the ones that are right. `clocks_ms`: what each
    node's clock shows, or how far each is ahead of the same clock.
    """
    if len(clocks_ms) < _FEWEST:
        return None
    median = sorted(clocks_ms)[(len(clocks_ms) - 1) // 2]
    agreeing = sum(abs(one - median) <= OFF_MS for one in clocks_ms)
    return median if 2 * agreeing > max(nodes_up, len(clocks_ms)) else None
