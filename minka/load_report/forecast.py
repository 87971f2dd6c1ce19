"""Forecasts the time when a node will be full, if its trend stays. The method is Theil and Sen's: the trend is the
median of the slopes between all pairs of points. Outliers hardly change the trend if they are less than 29 % of the
points (P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, JASA 63, 1968). The same paper gives
the interval in which the true slope lies with a probability of 95 %.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from minka.load_report.analysis import NodePoint

HOUR_MS: Final = 3_600_000
_LEAST_POINTS: Final = 6
_MAX_POINTS: Final = 400  # 400 points give about 80,000 pairs
_Z: Final = 1.96  # the number of standard deviations for a probability of 95 %
_FARTHEST: Final = 10  # a forecast looks ahead at most this many times the length of the history


@dataclass(frozen=True, slots=True)
class Trend:
    """A change per millisecond, and the bounds of its 95 % interval."""

    slope: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class FullForecast:
    """A forecast of the time when a node is full. Times are in Unix milliseconds."""

    node: str
    at_ms: int  # the time of the last point of the history
    room: int  # the bytes that the node can still take
    bytes_per_day: float | None  # the change of `room`
    low_bytes_per_day: float | None  # the lower end of the range in which the change lies with a probability of 95 %
    high_bytes_per_day: float | None  # the upper end of the same range of 95 %
    full_ms: int | None  # None: no end is in sight
    earliest_ms: int | None
    latest_ms: int | None  # None: the node may never be full
    hours: int  # the length of the history on which the forecast is based
    said: str  # the forecast in words


def theil_sen(points: Sequence[tuple[float, float]]) -> Trend:
    """The trend of two or more points (time, value) at different times."""
    slopes = sorted(
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for number, earlier in enumerate(points)
        for later in points[number + 1 :]
        if later[0] != earlier[0]
    )
    n, pairs = len(points), len(slopes)
    spread = _Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((pairs - spread) / 2))
    high = min(pairs - 1, math.ceil((pairs + spread) / 2))
    return Trend(median(slopes), slopes[low], slopes[high])


def forecasts(points: Iterable[NodePoint]) -> list[FullForecast]:
    """One forecast for each node. `points` are in the order of time."""
    by_node: defaultdict[str, list[NodePoint]] = defaultdict(list)
    for point in points:
        by_node[point.node].append(point)
    return [_forecast(node, by_node[node]) for node in sorted(by_node)]


def _forecast(node: str, points: Sequence[NodePoint]) -> FullForecast:
    at_ms, room = points[-1].at_ms, points[-1].room
    lowest = _hourly_minima(points)
    hours = round((lowest[-1][0] - lowest[0][0]) / HOUR_MS) + 1
    if room == 0:
        return FullForecast(node, at_ms, 0, None, None, None, at_ms, at_ms, at_ms, hours, "it has no room")
    if len(lowest) < _LEAST_POINTS:
        said = f"not known: {_LEAST_POINTS} hours of history are needed, there are {len(lowest)}"
        return FullForecast(node, at_ms, room, None, None, None, None, None, None, hours, said)
    trend = theil_sen(lowest)
    full, earliest, latest, said = _end(lowest, trend, hours)
    rate, low, high = (slope * 24 * HOUR_MS for slope in (trend.slope, trend.low, trend.high))
    return FullForecast(node, at_ms, room, rate, low, high, full, earliest, latest, hours, said)


def _end(
    lowest: Sequence[tuple[float, float]], trend: Trend, hours: int
) -> tuple[int | None, int | None, int | None, str]:
    """The time when the room will be used up, the earliest and the latest possible time, and a sentence about these
    times.
    """
    last_ms, last = lowest[-1]
    horizon_ms = _FARTHEST * (last_ms - lowest[0][0])
    unseen = f"not in sight within {_length(horizon_ms)}: "
    if trend.high >= 0:
        return None, None, None, f"{unseen}it isn't certain that its room shrinks"
    full, earliest, latest = (-last / slope for slope in (trend.slope, trend.low, trend.high))
    if full > horizon_ms:
        return None, None, None, f"{unseen}at this rate the end is farther away"
    said = f"in {_length(full)}; with 95 % between {_length(earliest)} and {_length(latest)}, "
    said += f"if the trend of the last {hours} hours goes on"
    return round(last_ms + full), round(last_ms + earliest), round(last_ms + latest), said


def _hourly_minima(points: Sequence[NodePoint]) -> list[tuple[float, float]]:
    """The least room in each hour, so that temporary files (of a compaction, of a checkpoint) count with their largest
    size. In a long history, each point stands for several hours.
    """
    hours = (points[-1].at_ms - points[0].at_ms) // HOUR_MS + 1
    length = HOUR_MS * -(-hours // _MAX_POINTS)
    lowest: dict[int, int] = {}
    for point in points:
        start = point.at_ms - point.at_ms % length
        lowest[start] = min(lowest.get(start, point.room), point.room)
    return [(float(start), float(room)) for start, room in sorted(lowest.items())]


def _length(ms: float) -> str:
    hours = ms / HOUR_MS
    return f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:,.0f} days"
