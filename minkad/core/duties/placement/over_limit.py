"""Shards over their limit: their capacity shrank, or their duties became heavier."""

from collections.abc import Callable, Iterable

from minkad.core.duties.placement.duty_layout import DutyLayout
from minkad.core.duties.placement.snapshot import PlacedDuty

Targets = Callable[[], Iterable[str]]  # the open shards, the preferred one first


def relieve(layout: DutyLayout, targets: Targets) -> bool:
    """Move duties off shards that have too much, with few moves. Returns True if any was moved."""
    moved = False
    for source in layout.open:
        while layout.free(source) < 0:
            found = _surplus(layout, source, targets)
            if found is None:
                break
            layout.move(found[0], source, found[1])
            moved = True
    return moved


def note_crowded(layout: DutyLayout) -> None:
    """Note the fewest duties without which no shard would have too much. They stay where they are: better a duty that
    runs on a crowded shard than one that doesn't run.
    """
    for source in layout.open:
        excess, pool = -layout.free(source), layout.pools[source]
        while excess > 0:
            duty = pool.lightest(source, at_least=excess) or pool.heaviest(source, excess, at_least=1)
            if duty is None:
                break
            size = layout.measure.size(duty)
            pool.remove(duty, size)
            layout.crowded.append(duty)
            excess -= size


def _surplus(layout: DutyLayout, source: str, targets: Targets) -> tuple[PlacedDuty, str] | None:
    """The lightest duty that is enough, or the heaviest that fits, and the first target where it fits."""
    pool, excess = layout.pools[source], -layout.free(source)
    for target in targets():
        free = layout.free(target)
        if target != source and free > 0:
            duty = pool.lightest(target, at_least=excess)
            if duty is None or layout.measure.size(duty) > free:
                duty = pool.heaviest(target, free, at_least=1)
            if duty is not None:
                return duty, target
    return None
