"""Places duties that are nowhere or have to leave: each goes to the open shard with the lowest key of a balancer."""

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from minkad.core.duties.placement.duty_layout import DutyLayout
from minkad.core.duties.placement.snapshot import PlacedDuty

# The shard with the lowest key gets the next duty. A key grows with the shard's amount; no two shards have equal keys.
Key = Callable[[str], tuple[Any, ...]]


def heaviest_first(duty: PlacedDuty) -> tuple[int, int, int]:
    """The sort key for the smallest differences: by weight, the heaviest first; of equal duties, the oldest first."""
    return (-duty.weight, duty.created_ms, duty.number)


def oldest_first(duty: PlacedDuty) -> tuple[int, int]:
    """The sort key by creation: the oldest first."""
    return (duty.created_ms, duty.number)


def place_waiting(
    layout: DutyLayout, order: Callable[[PlacedDuty], tuple[int, ...]], by_size: Key, by_count: Key
) -> bool:
    """Place the waiting duties. Returns True if any was placed. Duties of size 0 are placed by `by_count`: they don't
    change a shard's amount, so by `by_size` one shard would get all of them.
    """
    before = len(layout.waiting)
    waiting, size = sorted(layout.waiting, key=order), layout.measure.size
    sized = [duty for duty in waiting if size(duty)]
    layout.waiting = _Queue(layout, by_size, sized).place(sized)
    rest = [duty for duty in waiting if not size(duty)]
    layout.waiting += _Queue(layout, by_count, rest).place(rest)
    return len(layout.waiting) < before


class _Queue:
    """A heap of the open shards, the lowest key on top. An entry is outdated once its shard has another key."""

    def __init__(self, layout: DutyLayout, key: Key, duties: Iterable[PlacedDuty]) -> None:
        self._layout = layout
        self._key = key
        self._keys = {name: key(name) for name in layout.open}
        self._heap = [(k, name) for name, k in self._keys.items()]
        heapq.heapify(self._heap)
        self._least = min(map(layout.measure.size, duties), default=0)  # the size of the smallest duty
        self._most_free = float("inf")  # no duty of a greater size fits anywhere

    def place(self, duties: Iterable[PlacedDuty]) -> list[PlacedDuty]:
        """Place duties. Returns the duties for which there is no place."""
        left = []
        for duty in duties:
            target = self._pinned(duty) if duty.only_on else self._first(duty)
            if target is None:
                left.append(duty)
                continue
            self._layout.place(duty, target)
            key = self._key(target)
            if key != self._keys[target]:
                self._keys[target] = key
                heapq.heappush(self._heap, (key, target))
        return left

    def _pinned(self, duty: PlacedDuty) -> str | None:
        return duty.only_on if self._layout.fits(duty, duty.only_on) else None

    def _first(self, duty: PlacedDuty) -> str | None:
        layout, heap, aside = self._layout, self._heap, []
        if layout.measure.size(duty) > self._most_free:
            return None
        found = None
        while heap:
            entry = heap[0]
            if entry[0] is not self._keys[entry[1]]:
                heapq.heappop(heap)
            elif layout.fits(duty, entry[1]):
                found = entry[1]
                break
            elif layout.free(heapq.heappop(heap)[1]) >= self._least:  # else no duty will fit there
                aside.append(entry)
        if found is None:
            self._most_free = max((layout.free(name) for _, name in aside), default=-1.0)
        for entry in aside:
            heapq.heappush(heap, entry)
        return found
