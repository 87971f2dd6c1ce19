"""The lower bound of the number of a plan's moves."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

_PRECISION: Final = 1e-6  # up to this share, an amount that is left may be a rounding error


def fewest_moves(
    had_to_go: Sequence[int],
    movable: Iterable[tuple[str, int]],
    used: Mapping[str, int],
    settled: Mapping[str, tuple[float, float]],
) -> int:
    """The least number of moves, those of `had_to_go` included, that can bring each shard between its two amounts of
    `settled` (lowest, highest).

    `had_to_go`: the sizes of the duties that had to go. `movable`: the shards and sizes of the other duties that can be
    moved. `used`: the amount of each shard without the duties that had to go. The bound assumes that a shard with too
    much gives its heaviest duties away, and that a shard with too little gets duties as heavy as the heaviest of all.
    """
    sizes: defaultdict[str, list[int]] = defaultdict(list)
    greatest = max(had_to_go, default=0)
    for shard, size in movable:
        greatest = max(greatest, size)
        if shard in used and used[shard] > settled[shard][1]:
            sizes[shard].append(size)
    leave = come = 0
    for shard, (low, high) in settled.items():
        above = used[shard] - high
        for size in sorted(sizes[shard], reverse=True) if above > 0 else ():
            if above <= 0:
                break
            above -= size
            leave += 1
        if used[shard] < low and greatest:
            come += math.ceil((low - used[shard]) / greatest)
    return max(len(had_to_go) + max(leave, _givers(sum(had_to_go), used, settled)), come)


def _givers(come: int, used: Mapping[str, int], settled: Mapping[str, tuple[float, float]]) -> int:
    """The least number of shards that have to give duties away until all shards, givers too, have their lowest amount.

    `come`: the amount of the duties that had to go, which shards get in any case.
    """
    spare = [used[shard] - low for shard, (low, _) in settled.items()]
    lacking = -sum(amount for amount in spare if amount < 0) - come
    givers = 0
    for amount in sorted(spare, reverse=True):
        if lacking <= _PRECISION * max(1, come) or amount <= 0:
            break
        lacking -= amount
        givers += 1
    return givers
