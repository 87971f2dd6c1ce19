"""The reasons why a duty moves, or can't move, as sentences for people."""

from collections.abc import Mapping, Sequence
from typing import Final

from minkad.core.duties.placement.snapshot import PlacedDuty, ShardRoom

_NAMED: Final = 3  # a sentence names at most this many shards, and counts the others

Totals = tuple[Mapping[str, int], Mapping[str, int]]  # the number of duties, and their weight, by shard


class Reasons:
    """Makes each sentence once for all duties to which it applies. `limits`: numbers of duties if `by_count`, else
    weights.
    """

    def __init__(
        self,
        shards: Mapping[str, ShardRoom],
        before: Totals,
        after: Totals,
        limits: Mapping[str, float],
        by_count: bool,
    ) -> None:
        self._shards = shards
        self._before, self._after = before[not by_count], after[not by_count]
        self._limits = limits
        self._by_count = by_count
        self._moves: dict[tuple[str, str, str], str] = {}
        self._waiting: dict[tuple[int, frozenset[str], str], str] = {}

    def of_move(self, duty: PlacedDuty, target: str, had_to_go: bool) -> str:
        """The reason why the duty goes, and why to this target."""
        if duty.only_on == target:
            return _pinned_to(target)
        cause = self._cause(duty) if had_to_go and duty.shard else ""
        key = (cause, duty.shard, target)
        if key not in self._moves:
            self._moves[key] = self._sentence(cause, duty.shard, target)
        return self._moves[key]

    def _sentence(self, cause: str, source: str, target: str) -> str:
        """The sentence must make sense later, too: people read it while the duty is on the target."""
        if not source:
            change = f"from {self._amount(self._before[target])} to {self._after[target]:,}"
            return f"the balancer chose {target}, which goes {change}"
        return f"{cause or self._excess(source)}; {self._change(target)}"

    def of_waiting(self, duty: PlacedDuty) -> str:
        """The reason why no shard takes the duty."""
        key = (self._size(duty), duty.not_on, duty.only_on)
        if key not in self._waiting:
            self._waiting[key] = self._pinned(duty) if duty.only_on else self._nowhere(duty)
        return self._waiting[key]

    def of_crowded(self, duty: PlacedDuty, shard: str) -> str:
        """The reason why the duty should leave the shard, and why it doesn't."""
        return (
            f"{shard} has {self._amount(self._after[shard])} and may have {self._limit(shard)}; {self.of_waiting(duty)}"
        )

    def _cause(self, duty: PlacedDuty) -> str:
        """The reason why the duty can't stay."""
        name = duty.shard
        closed = self._closed(name)
        if closed:
            return closed
        return f"it is quarantined on {name}" if name in duty.not_on else _pinned_to(duty.only_on)

    def _closed(self, name: str) -> str:
        """The reason why the shard takes no duties at all; "" if it takes some."""
        shard = self._shards.get(name)
        if shard is None:
            return f"{name} is gone"
        if not shard.accepts:
            return f"{name} {shard.why or 'takes no duties now'}"
        return "" if shard.capacity != 0 else f"{name} states capacity 0"

    def _excess(self, name: str) -> str:
        if self._before[name] > self._limits[name]:
            return f"{name} has {self._amount(self._before[name])} and may have {self._limit(name)}"
        return self._change(name)

    def _change(self, name: str) -> str:
        return f"{name} has {self._amount(self._before[name])} and is to have {self._after[name]:,}"

    def _pinned(self, duty: PlacedDuty) -> str:
        name = duty.only_on
        why = self._closed(name) or (f"it is quarantined on {name}" if name in duty.not_on else "")
        return f"{_pinned_to(name)}, and {why or self._no_room([name], duty)}"

    def _nowhere(self, duty: PlacedDuty) -> str:
        if not self._shards:
            return "there is no shard"
        closed = [closed for name in self._shards if (closed := self._closed(name))]
        quarantined = [name for name in self._shards if name in duty.not_on and not self._closed(name)]
        full = [name for name in self._shards if name not in duty.not_on and not self._closed(name)]
        reasons = [self._no_room(full, duty)] if full else []
        reasons += [f"it is quarantined on {_listed(quarantined)}"] if quarantined else []
        reasons += [_listed(closed)] if closed else []
        return f"no shard can take it: {'; '.join(reasons)}"

    def _no_room(self, names: Sequence[str], duty: PlacedDuty) -> str:
        roomiest = max(names, key=lambda name: (self._free(name), name))
        most = f"{self._free(roomiest):,.0f} of {self._limit(roomiest)}"
        has = f"{_listed(names)} {'has' if len(names) == 1 else 'have'} no room for {self._amount(self._size(duty))}"
        return f"{has} ({most} free{'' if len(names) == 1 else f' at most, on {roomiest}'})"

    def _free(self, name: str) -> float:
        return max(0.0, self._limits[name] - self._after[name])

    def _limit(self, name: str) -> str:
        return f"{self._limits[name]:,.0f}"

    def _size(self, duty: PlacedDuty) -> int:
        return 1 if self._by_count else duty.weight

    def _amount(self, size: int) -> str:
        if self._by_count:
            return "1 duty" if size == 1 else f"{size:,} duties"
        return f"weight {size:,}"


def _pinned_to(shard: str) -> str:
    return f"it is pinned to {shard}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    if more > 0:
        return f"{', '.join(names[:_NAMED])} and {more:,} more"
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]
