"""The report as one page, without network access or scripts, for light and dark screens. Each plot is an inline SVG
with a description, and has its figures in a table beside it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from typing import Final

from minka.load_report.analysis import LoadAnalysis
from minka.load_report.forecast import FullForecast
from minka.load_report.proposals import Proposals
from minka.v1.cluster_pb2 import PartitionTable

_WIDTH, _HEIGHT = 860, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 12, 12, 28
_DASHES: Final = (
    "",
    "7 3",
    "2 3",
    "9 3 2 3",
    "1 2",
    "12 4",
    "5 2 1 2",
    "3 6",
)  # so that lines also differ where colours can't be seen
_COLOURS: Final = 8
_MAX_LINES: Final = 8
_MAX_TABLE_ROWS: Final = 48
RING: Final = "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0"
# The possible ends of an axis, each with the number of parts into which it divides the axis. An end is multiplied by a
# power of ten, in the axis's unit.
_ENDS: Final = ((1, 5), (2, 4), (2.5, 5), (5, 5), (10, 5))

_STYLE: Final = """
:root { color-scheme: light dark; --bg: #fff; --text: #1b1f24; --dim: #57606a; --line: #d0d7de;
  --c0: #0550ae; --c1: #b35900; --c2: #116329; --c3: #a40e26; --c4: #6639ba; --c5: #755900; --c6: #1b7c83;
  --c7: #99286e }
@media (prefers-color-scheme: dark) {
  :root { --bg: #0d1117; --text: #e6edf3; --dim: #9da7b1; --line: #3d444d;
  --c0: #79c0ff; --c1: #ffa657; --c2: #7ee787; --c3: #ff7b72; --c4: #d2a8ff; --c5: #e3b341; --c6: #76e3ea;
  --c7: #ff9bce }
}
body { background: var(--bg); color: var(--text); font: 16px/1.5 system-ui, sans-serif; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.5rem } .dim { color: var(--dim) }
figure { margin: 1rem 0; overflow-x: auto } svg { max-width: 100%; height: auto; display: block }
svg text { fill: var(--dim); font-size: 12px } svg .grid { stroke: var(--line); stroke-width: 1 }
svg path { fill: none; stroke-width: 1.8 }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
th:first-child, td:first-child, .text { text-align: left } .wide { overflow-x: auto }
ul.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .9rem }
ul.legend svg { display: inline-block; vertical-align: middle; margin-right: .4rem }
summary { cursor: pointer; color: var(--dim) }
""" + "".join(f".c{n} {{ stroke: var(--c{n}) }}\n" for n in range(_COLOURS))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot: times (Unix milliseconds) and the values at them; None is a gap."""

    name: str
    points: Sequence[tuple[int, float | None]]


def render(
    cluster: str,
    analysis: LoadAnalysis,
    forecasts: Sequence[FullForecast],
    proposals: Proposals,
    name_of: Callable[[int, int], str],
    *,
    missing: Sequence[str] = (),
    plan_file: str = "",
) -> str:
    """The page. `name_of` gives a partition's name by its id and its keyspace's id. `missing` has a sentence for each
    part of the history that could not be read. `plan_file` is the file that has the proposals as a plan.
    """
    span = f"{_time(analysis.from_ms)} to {_time(analysis.to_ms)} UTC, in steps of {_length(analysis.step_ms)}"
    body = [
        f"<h1>Load of {escape(cluster)}</h1>",
        f'<p class="dim">{span}</p>' if analysis.cluster else "<p>There is no history yet.</p>",
        *(f"<p><strong>Missing:</strong> {escape(text)}</p>" for text in missing),
    ]
    if analysis.cluster:
        body += [
            *_proposals(proposals, plan_file),
            *_forecasts(forecasts),
            *_hot(analysis, name_of),
            *_over_time(analysis),
        ]
    title = f"<title>Load of {escape(cluster)}</title>"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{title}<style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"


def names_in(table: PartitionTable) -> Callable[[int, int], str]:
    """A function that gives a partition's name, such as flights/7, by its id and its keyspace's id; for a partition
    that is gone, the name has its id: flights/(gone, id 7).
    """
    keyspaces = {one.id: one.name for one in table.keyspaces}
    slots = {row.id: str(row.slot) for row in table.partitions}
    return lambda id_, keyspace: (
        f"{keyspaces.get(keyspace, f'keyspace {keyspace}')}/{slots.get(id_, f'(gone, id {id_})')}"
    )


# Sections


def _proposals(proposals: Proposals, plan_file: str) -> list[str]:
    parts = ["<h2>Proposed</h2>"]
    rows = [[split.partition, f"split into {split.parts}", split.reason] for split in proposals.splits]
    for move in proposals.moves:
        same = set(move.replicas) == set(move.target_replicas)
        what = "lead at " + move.target_replicas[0] if same else f"{', '.join(move.replicas)} → "
        rows.append([move.partition, what if same else what + ", ".join(move.target_replicas), move.reason])
    if rows:
        parts.append(_table(("Partition", "What", "Why"), rows, text=True))
        if plan_file:
            parts.append(f"<p>Apply exactly this: <code>minkactl apply {escape(plan_file)}</code></p>")
    else:
        parts.append("<p>Nothing: no split and no move would help.</p>")
    return parts + [f"<p>{escape(note)}.</p>" for note in proposals.notes]


def _forecasts(forecasts: Sequence[FullForecast]) -> list[str]:
    rows = [
        [one.node, bytes_text(one.room), "-" if one.bytes_per_day is None else bytes_text(one.bytes_per_day), one.said]
        for one in forecasts
    ]
    return ["<h2>When nodes are full</h2>", _table(("Node", "Room", "Changes a day by", "Full"), rows)]


def _hot(analysis: LoadAnalysis, name_of: Callable[[int, int], str]) -> list[str]:
    rows, names = [], {}
    for one in analysis.hot:
        names[one.partition_id] = name = name_of(one.partition_id, one.keyspace_id)
        rows.append(
            [
                name,
                number_text(one.ops),
                f"{one.of_cluster:.1%}",
                number_text(one.peak.ops),
                f"{one.peak.of_node:.0%} of {one.peak.node}",
                _time(one.peak.at_ms) if one.peak.at_ms else "-",
                _ms(one.read_p99_ms),
                _ms(one.write_p99_ms),
                bytes_text(one.bytes),
            ]
        )
    heads = (
        "Partition",
        "Ops/s",
        "Of cluster",
        "Peak ops/s",
        "Share at peak",
        "Peak at",
        "Read p99",
        "Write p99",
        "Size",
    )
    times = [point.at_ms for point in analysis.cluster]
    lines = []
    for id_, name in list(names.items())[:_MAX_LINES]:
        at: dict[int, float] = {}
        for point in analysis.hot_points:
            if point.partition_id == id_:
                at[point.at_ms] = at.get(point.at_ms, 0.0) + point.ops
        lines.append(Line(name, [(time, at.get(time, 0.0)) for time in times]))
    return [
        "<h2>Hot partitions</h2>",
        _table(heads, rows),
        plot("Operations a second of the busiest partitions", lines, number_text),
    ]


def _over_time(analysis: LoadAnalysis) -> list[str]:
    cluster = analysis.cluster
    nodes = list(dict.fromkeys(point.node for point in analysis.nodes))
    by_node = {node: [point for point in analysis.nodes if point.node == node] for node in sorted(nodes)}
    ops = [
        Line("reads", [(point.at_ms, point.reads) for point in cluster]),
        Line("writes", [(point.at_ms, point.writes) for point in cluster]),
    ]
    latency = [
        Line("reads, p50", [(point.at_ms, point.read_p50_ms) for point in cluster]),
        Line("reads, p99", [(point.at_ms, point.read_p99_ms) for point in cluster]),
        Line("writes, p50", [(point.at_ms, point.write_p50_ms) for point in cluster]),
        Line("writes, p99", [(point.at_ms, point.write_p99_ms) for point in cluster]),
    ]
    moved = [
        Line("read", [(point.at_ms, point.bytes_read) for point in cluster]),
        Line("written", [(point.at_ms, point.bytes_written) for point in cluster]),
    ]
    uneven = [
        Line("operations", [(point.at_ms, point.ops) for point in analysis.imbalance]),
        Line("bytes stored", [(point.at_ms, point.bytes) for point in analysis.imbalance]),
    ]
    return [
        "<h2>The cluster over time</h2>",
        plot("Operations a second", ops, number_text),
        plot("Bytes a second", moved, bytes_text),
        plot("Latency at the nodes, in milliseconds", latency, number_text),
        "<h2>How even the nodes are</h2>",
        plot("The busiest node divided by the mean (1 is even)", uneven, number_text),
        plot("Operations a second, by node", [_of(n, p, lambda o: o.ops) for n, p in by_node.items()], number_text),
        plot(
            "Processors kept busy, by node",
            [_of(n, p, lambda o: o.processors) for n, p in by_node.items()],
            number_text,
        ),
        plot("Room left, by node", [_of(n, p, lambda o: o.room) for n, p in by_node.items()], bytes_text),
    ]


def _of(node: str, points: Sequence[object], value: Callable[..., float]) -> Line:
    return Line(node, [(point.at_ms, value(point)) for point in points])  # type: ignore[attr-defined]


# Plots and tables


def plot(title: str, lines: Sequence[Line], show: Callable[[float], str]) -> str:
    """A figure: a plot of the lines with the greatest values, their legend, and a table of all lines at some times."""
    lines = [line for line in lines if any(value is not None for _, value in line.points)]
    if not lines:
        return f"<h3>{escape(title)}</h3><p>There is nothing to show.</p>"
    shown = sorted(lines, key=lambda line: -_most([line]))[:_MAX_LINES] if len(lines) > _MAX_LINES else lines
    left_out = f'<p class="dim">{len(lines) - len(shown)} more are in the table.</p>' if len(shown) < len(lines) else ""
    legend = "".join(
        f'<li><svg width="34" height="8" aria-hidden="true"><path class="c{n % _COLOURS}" '
        f'stroke-dasharray="{_DASHES[n % len(_DASHES)]}" d="M0 4H34"/></svg>{escape(line.name)}</li>'
        for n, line in enumerate(shown)
    )
    table = f"<details><summary>Figures</summary>{_figures(lines, show)}</details>"
    caption = f"<figcaption><strong>{escape(title)}</strong></figcaption>"
    return f'<figure>{caption}{_svg(title, shown, show)}<ul class="legend">{legend}</ul>{left_out}{table}</figure>'


def _svg(title: str, lines: Sequence[Line], show: Callable[[float], str]) -> str:
    times = [at for line in lines for at, _ in line.points]
    first, last = min(times), max(times)
    top, parts_of_top = _scale(_most(lines), 1024 if show is bytes_text else 1000)
    width = _WIDTH - _LEFT - _RIGHT
    x: Callable[[int], float] = lambda at: _LEFT + width * ((at - first) / (last - first) if last > first else 0.5)  # noqa: E731
    y: Callable[[float], float] = lambda v: _HEIGHT - _BOTTOM - v / top * (_HEIGHT - _TOP - _BOTTOM)  # noqa: E731
    parts = []
    for share in (number / parts_of_top for number in range(parts_of_top + 1)):
        level = y(share * top)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{level:.1f}" y2="{level:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{escape(show(share * top))}</text>')
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")) if last > first else ((0.5, "middle"),):
        at = round(first + share * (last - first))
        parts.append(f'<text x="{x(at):.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{_time(at)}</text>')
    for number, line in enumerate(lines):
        dash = _DASHES[number % len(_DASHES)]
        parts.append(f'<path class="c{number % _COLOURS}" stroke-dasharray="{dash}" d="{_path(line, x, y)}"/>')
    said = "; ".join(f"{line.name} up to {show(_most([line]))}" for line in lines)
    label = f"<title>{escape(title)}</title><desc>{escape(f'{_time(first)} to {_time(last)} UTC: {said}')}</desc>"
    return f'<svg role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}">{label}{"".join(parts)}</svg>'


def _path(line: Line, x: Callable[[int], float], y: Callable[[float], float]) -> str:
    """The line's path; a single point between gaps is a ring, so that it can be seen."""
    parts = []
    for is_gap, run in groupby(line.points, lambda point: point[1] is None):
        places = [f"{x(at):.1f} {y(value):.1f}" for at, value in run if value is not None]
        if not is_gap:
            parts.append("M" + "L".join(places) + (RING if len(places) == 1 else ""))
    return "".join(parts)


def _figures(lines: Sequence[Line], show: Callable[[float], str]) -> str:
    """The table of a plot's figures. It has a row for each time or, if there are many times, for every nth time."""
    times = sorted({at for line in lines for at, _ in line.points})
    step = math.ceil(len(times) / _MAX_TABLE_ROWS)
    values = [dict(line.points) for line in lines]
    rows = []
    for at in times[::step]:
        found = [one.get(at) for one in values]
        rows.append([_time(at), *("-" if value is None else show(value) for value in found)])
    said = f"<p>The table has only one of every {step} steps.</p>" if step > 1 else ""
    return said + _table(("Time (UTC)", *(line.name for line in lines)), rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, text: bool = False) -> str:
    kind = ' class="text"' if text else ""
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name in heads)
    body = "".join("<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


# Scales, and numbers as text


def _most(lines: Iterable[Line]) -> float:
    return max((value for line in lines for _, value in line.points if value is not None), default=0.0)


def _scale(most: float, thousand: int) -> tuple[float, int]:
    """The end of an axis, and the number of its parts, chosen so that the axis has short numbers. `thousand` is the
    factor between two units: 1,000, or 1,024 for bytes.
    """
    if most <= 0:
        return 1.0, 5
    unit = float(thousand) ** math.floor(math.log(most, thousand))
    unit *= 10.0 ** math.floor(math.log10(most / unit))
    return next((unit * times, parts) for times, parts in _ENDS if most <= unit * times * 1.000001)


def number_text(value: float) -> str:
    """A number as text: whole if it is large, else with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.3g}"


def bytes_text(value: float) -> str:
    """A number of bytes in the largest unit in which it is at least 1."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(value) >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,.0f} B"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g} ms"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _length(ms: int) -> str:
    minutes = ms // 60_000
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h"
