"""Shards over their limits: a shard's capacity has shrunk, or its duties have become heavier."""

from collections.abc import Callable, Iterable

from minkad.core.duties.placement.duty_layout import DutyLayout
from minkad.core.duties.placement.snapshot import PlacedDuty

Targets = Callable[[], Iterable[str]]  # the open shards, the preferred one first


def relieve(layout: DutyLayout, targets: Targets) -> bool:
    """Move duties away from shards that are over their limits, with few moves. Returns True if any was moved."""
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
    """Note, in `crowded`, the fewest duties without which no shard would be over its limit. They stay where they are:
    it is better that a duty runs on a crowded shard than that it doesn't run.
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
    """A duty to move, and its target: the first target where a duty fits. The duty is the lightest that brings the
    source within its limit, or, if this one doesn't fit, the heaviest that fits.
    """
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
