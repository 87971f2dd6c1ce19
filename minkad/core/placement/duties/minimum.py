"""The lower bound of a plan's moves."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence


def fewest_moves(
    had_to_go: Sequence[int],
    movable: Iterable[tuple[str, int]],
    used: Mapping[str, int],
    settled: Mapping[str, tuple[float, float]],
) -> int:
    """No fewer bring each shard between its two amounts, besides those of what had to go.

    `had_to_go`: the sizes of these. `movable`: the shards and sizes of what else can be moved. `used`: by shard,
    without what had to go. A shard with too much gives its heaviest ones; one with too little gets the heaviest of all.
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
            come += int(-(-(low - used[shard]) // greatest))
    return max(len(had_to_go) + leave, come)
