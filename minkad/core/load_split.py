"""Finds the key at which to split a partition that is too busy. It best halves the latest operations, and the fewest
scans cross it, as in CockroachDB's load-based splitting (pkg/kv/kvserver/split: the unweighted finder).
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from minka.cluster.key_ranges import KeyRange, readable

# An operation: its key twice, or the start and end of a scan ("": no bound). Equal spans all count.
Span = tuple[bytes, bytes]

MIN_SPANS: Final = 100
MAX_SHARE: Final = 0.75  # of the load; with more in one half a split doesn't help
MAX_CROSSED: Final = 0.5  # of the load; scans that cross the key would be asked of both halves
_SHOWN_CHARACTERS: Final = 60


class Cut(NamedTuple):
    """A key, and the shares of the load only below it, only from it on, and on both sides."""

    key: bytes
    below: float
    above: float
    crossed: float

    @property
    def larger(self) -> float:
        """The share of the busier half; scans that cross the key count half for each."""
        return max(self.below, self.above) + self.crossed / 2

    @property
    def helps(self) -> bool:
        """True if each half has clearly less to do than the whole."""
        return self.larger <= MAX_SHARE and self.crossed <= MAX_CROSSED


@dataclass(frozen=True, slots=True)
class NoCut:
    """The reason why no key is proposed, as the end of a sentence; "": too little is known yet."""

    reason: str


def best_cut(spans: Collection[Span], bounds: KeyRange) -> Cut | NoCut:
    """The key at which to split the partition with these bounds: a sampled one, after its start and before its end."""
    inside = [span for span in spans if _is_inside(span, bounds)]
    if len(inside) < MIN_SPANS:
        return NoCut("")
    cuts = _cuts(inside, bounds)
    best = min([cut for cut in cuts if cut.helps] or cuts, key=_badness, default=None)
    return best if best is not None and best.helps else NoCut(_reason(inside, best))


def _is_inside(span: Span, bounds: KeyRange) -> bool:
    return bounds.contains(span[0]) if _is_key(span) else KeyRange(*span).overlaps(bounds)


def _is_key(span: Span) -> bool:
    return span[0] == span[1] and bool(span[0])


def _cuts(spans: list[Span], bounds: KeyRange) -> list[Cut]:
    """One for each key at which a span begins, inside of the bounds."""
    starts = sorted(span[0] for span in spans)
    keys = sorted(span[0] for span in spans if _is_key(span))
    ends = sorted(span[1] for span in spans if not _is_key(span) and span[1])
    cuts = []
    for key in dict.fromkeys(starts):
        if key > bounds.start and bounds.contains(key):
            below = bisect_left(keys, key) + bisect_right(ends, key)
            above = len(starts) - bisect_left(starts, key)
            whole = len(spans)
            cuts.append(Cut(key, below / whole, above / whole, (whole - below - above) / whole))
    return cuts


def _badness(cut: Cut) -> tuple[float, bytes]:
    return cut.crossed + abs(cut.below - cut.above), cut.key


def _reason(spans: list[Span], best: Cut | None) -> str:
    ((span, count),) = Counter(spans).most_common(1)
    if _is_key(span) and count > len(spans) / 2:
        return f"one key, {_shown(span[0])}, has {_percent(count / len(spans))} of its load"
    if best is None or len({start for start, _ in spans}) == 1:
        return f"no key divides its load: all of it begins at {_shown(spans[0][0])}"
    if best.crossed > MAX_CROSSED:
        return f"no key divides its load: {_percent(best.crossed)} of it are scans across the best one"
    return f"no key divides its load: at the best one, {_percent(best.larger)} of it stay together"


def _shown(key: bytes) -> str:
    text = readable(key)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _percent(share: float) -> str:
    return f"{share:.0%}"
