"""Formats the measurements of the world of scale as a table."""

from collections.abc import Mapping, Sequence

from tests.simulation.scale.scenario import IDLE, Measurement


def table(found: Mapping[int, Sequence[Measurement]]) -> str:
    """Return a table with a row for each event and a column for each number of partitions. A cell has four figures: the
    controller's processor time minus the time that an idle controller would use, the number of recorded rows, the
    longest turn, and the time until the partition table was settled.
    """
    heads = "".join(f" | {count:,} partitions" for count in found)
    lines = [f"| event{heads} |", "|---" * (len(found) + 1) + "|"]
    idle = {count: _idle(measured) for count, measured in found.items()}
    for row in zip(*found.values(), strict=False):
        cells = [_cell(one, idle[count]) for count, one in zip(found, row, strict=True)]
        lines.append(f"| {row[0].event} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _idle(measured: Sequence[Measurement]) -> float:
    """The processor time that an idle controller uses, in seconds per second."""
    return next((one.cpu_s / one.watched_s for one in measured if one.event == IDLE), 0.0)


def _cell(one: Measurement, idle: float) -> str:
    took = one.cpu_s if one.event == IDLE else max(0.0, one.cpu_s - idle * one.watched_s)
    ended = f"after {one.virtual_s:.1f} s" if one.ended else f"given up after {one.virtual_s:.0f} s"
    if one.event == IDLE:
        ended = f"{took / one.watched_s:.0%} of a core"
    return f"{took:.2f} s, {one.rows:,} rows, {one.longest_s * 1e3:.0f} ms, {ended}"
