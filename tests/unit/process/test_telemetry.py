"""The histograms among the node's metrics."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minkad.process.telemetry import LATENCY_BOUNDS, PAUSE_BOUNDS, Histogram

seconds = st.floats(min_value=0, max_value=10)


@given(st.lists(st.tuples(seconds, st.integers(1, 1000))))
def test_a_histogram_counts_each_value_below_its_bounds(values: list[tuple[float, int]]) -> None:
    histogram = Histogram(LATENCY_BOUNDS)
    for value, times in values:
        histogram.observe(value, times)
    for position, bound in enumerate(LATENCY_BOUNDS):
        expected = sum(times for value, times in values if value <= bound)
        assert sum(histogram.counts[: position + 1]) == expected
    assert histogram.count == sum(times for _, times in values)
    assert histogram.total == pytest.approx(sum(value * times for value, times in values))


def test_bounds_must_rise() -> None:
    with pytest.raises(AssertionError):
        Histogram((0.1, 0.1))


def test_a_histogram_has_a_bound_at_the_goal_for_write_pauses() -> None:
    assert PAUSE_BOUNDS[bisect_left(PAUSE_BOUNDS, 0.02)] == 0.02, "its counts show exactly the pauses up to 20 ms"
