"""The key at which a partition that is too busy is split, chosen by a sample of its requests."""

from bisect import bisect_right
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.cluster.key_ranges import ALL_KEYS, KeyRange
from minkad.core.load_split import MAX_SHARE, MIN_SPANS, Cut, NoCut, Span, best_cut

KEYS = [b"%04d" % i for i in range(1000)]


def points(*keys: bytes) -> list[Span]:
    return [(key, key) for key in keys]


def zipf(rng: Random, keys: list[bytes], exponent: float = 1.0) -> list[bytes]:
    """Draw keys at random by Zipf's law: with exponent 1, the n-th key is drawn 1/n as often as the first."""
    cumulative = list(accumulate(1 / (rank + 1) ** exponent for rank in range(len(keys))))
    return [keys[bisect_right(cumulative, rng.random() * cumulative[-1])] for _ in keys]


def cut(spans: list[Span], bounds: KeyRange = ALL_KEYS) -> Cut:
    found = best_cut(spans, bounds)
    assert isinstance(found, Cut), found
    return found


def refusal(spans: list[Span], bounds: KeyRange = ALL_KEYS) -> str:
    found = best_cut(spans, bounds)
    assert isinstance(found, NoCut), found
    return found.reason


def test_even_load_is_halved() -> None:
    found = cut(points(*KEYS))
    assert found == Cut(b"0500", 0.5, 0.5, 0.0)


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.2])
@pytest.mark.parametrize("in_order", [True, False])
def test_popular_keys(exponent: float, in_order: bool) -> None:
    """The halves' loads differ by at most the load of the most popular key, even if popular keys are adjacent."""
    rng = Random(1)
    keys = KEYS if in_order else rng.sample(KEYS, len(KEYS))
    asked = zipf(rng, keys, exponent)
    found = cut(points(*asked))
    most = asked.count(keys[0]) / len(asked)
    assert abs(found.below - found.above) <= most, "the error is at most the most popular key's share"
    assert abs(found.below - sum(key < found.key for key in asked) / len(asked)) < 1e-9


def test_a_partition_with_one_hot_key_is_not_split() -> None:
    assert refusal(points(*KEYS[:100], *[b"hot"] * 900)) == "one key, hot, has 90% of its load"
    assert refusal(points(b"a", *[b"k" * 500] * 999)) == f"one key, {'k' * 60}…, has 100% of its load"
    assert refusal(points(*[b"\xff\xfe"] * 200)) == "one key, 0xfffe, has 100% of its load"


def test_a_hot_key_at_an_end_is_separated_from_the_other_keys() -> None:
    assert cut(points(*KEYS[:400], *[b"z"] * 600)).key == b"z"
    assert cut(points(*[b"0"] * 600, *KEYS[:400])).key == b"0000"


def test_scans_that_cross_every_key_prevent_a_split() -> None:
    scans = [(b"0000", b"1000")] * 950
    assert refusal([*points(*KEYS[:50]), *scans]) == "no key divides its load: 95% of it are scans across the best one"


def test_the_cut_is_at_the_key_that_the_fewest_scans_cross() -> None:
    """Many scans cross the middle key, so the cut is at the first key after these scans."""
    scans = [*[(b"0300", b"0520")] * 200, *[(b"0800", b"0900")] * 200]
    found = cut([*points(*KEYS), *scans])
    assert found == Cut(b"0520", 720 / 1400, 680 / 1400, 0.0)
    both_sides = [(KEYS[i], KEYS[i + 100]) for i in range(0, 900, 100)] * 20
    found = cut(both_sides)
    assert found.key in {start for start, _ in both_sides}
    assert found.crossed == 0.0


def test_a_queue_that_is_read_at_its_head_is_not_split() -> None:
    assert refusal([(b"", b"0010")] * 500) == 'no key divides its load: all of it begins at ""'
    assert refusal([(b"0003", b"")] * 500) == "no key divides its load: all of it begins at 0003"
    text = "no key divides its load: at the best one, 91% of it stay together"
    assert refusal([*points(*[b"0005"] * 50), *[(b"0100", b"0110")] * 500]) == text


def test_too_few_requests_give_no_cut() -> None:
    assert refusal(points(*KEYS[: MIN_SPANS - 1])) == ""
    assert refusal(points(*KEYS), KeyRange(b"x", b"")) == "", "requests outside of the range don't count"


keys = st.binary(min_size=1, max_size=3)
point = keys.map(lambda key: (key, key))
scan = st.tuples(st.binary(max_size=3), st.binary(max_size=3)).filter(lambda span: not span[1] or span[0] < span[1])
bound = st.tuples(st.binary(max_size=2), st.binary(max_size=2)).filter(lambda b: not b[1] or b[0] < b[1])


def is_key(span: Span) -> bool:
    return span[0] == span[1] != b""


def side(span: Span, key: bytes) -> str:
    if span[0] >= key:
        return "above"
    return "below" if is_key(span) or (span[1] and span[1] <= key) else "crossed"


@given(st.lists(point | scan, min_size=1, max_size=60), bound)
def test_a_cut_has_the_shares_that_it_states(few: list[Span], bounds: tuple[bytes, bytes]) -> None:
    """The cut is a sampled key inside the range. It states three shares of the range's load: the loads below and above
    the cut, and the load of the scans that cross the cut.
    """
    range_, spans = KeyRange(*bounds), few * MIN_SPANS
    inside = [s for s in spans if (range_.contains(s[0]) if is_key(s) else KeyRange(*s).overlaps(range_))]
    found = best_cut(spans, range_)
    if isinstance(found, NoCut):
        assert bool(found.reason) == (len(inside) >= MIN_SPANS)
        return
    assert found.key > range_.start
    assert range_.contains(found.key)
    assert found.key in {start for start, _ in inside}
    sides = [side(span, found.key) for span in inside]
    shares = [sides.count(name) / len(sides) for name in ("below", "above", "crossed")]
    assert shares == pytest.approx([found.below, found.above, found.crossed])
    assert found.helps
    badness = found.crossed + abs(found.below - found.above)
    for key in {start for start, _ in inside if start > range_.start and range_.contains(start)}:
        sides = [side(span, key) for span in inside]
        below, above, crossed = (sides.count(name) / len(sides) for name in ("below", "above", "crossed"))
        if Cut(key, below, above, crossed).helps:
            assert badness <= crossed + abs(below - above) + 1e-9


@given(st.lists(keys, min_size=1, max_size=60))
def test_without_scans_only_one_hot_key_prevents_a_split(few: list[bytes]) -> None:
    spans = points(*few) * MIN_SPANS
    found = best_cut(spans, ALL_KEYS)
    hottest = max(few.count(key) for key in few) / len(few)
    if isinstance(found, NoCut):
        assert hottest > 0.5
        assert found.reason.startswith("one key")
    elif hottest <= 0.5:
        assert max(found.below, found.above) <= MAX_SHARE
