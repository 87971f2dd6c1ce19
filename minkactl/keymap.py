"""The key space of a keyspace by ranges as lines of a terminal: a strip with its nodes, one with its load, its bounds,
and the meaning of the letters and marks.
"""

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from minka.v1.cluster_pb2 import Keyspace
from minkactl import units
from minkactl.pages import Row
from minkactl.strip import Run, Signs, cells_of, clipped, layout, shade, ticks

Segment = tuple[str, str]  # text and style
Line = list[Segment]

# Black letters can be read on these. There is no red, since that is the colour of what is hot.
COLOURS: Final = (
    "dodger_blue1", "orange1", "medium_purple1", "green3", "turquoise2", "gold1", "pink1", "dark_sea_green4",
    "sky_blue1", "light_salmon3", "plum1", "chartreuse3",
)  # fmt: skip
LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase + string.digits
NOBODY: Final = "?"
HOT: Final = "bold red"
MAX_LISTED: Final = 8
MAX_LABEL: Final = 24


@dataclass(frozen=True, slots=True)
class Canvas:
    """The surface to draw on: its width in cells, its characters, and whether it shows colours."""

    width: int
    signs: Signs
    colours: bool


def key_map(keyspace: Keyspace, nodes: Sequence[str], rows: Sequence[Row], canvas: Canvas) -> list[Line]:
    """The lines of the map. `rows` are `range_rows`; `nodes` are all of the cluster in the table's order, so that each
    keeps its letter.
    """
    runs = layout([row["bytes"] or 0 for row in rows], canvas.width)
    marks = dict(zip(nodes, letters(nodes), strict=True))
    colours = {node: COLOURS[place % len(COLOURS)] for place, node in enumerate(nodes)}
    top = keyspace.max_ops or max(row["ops"] or 0 for row in rows)
    lines = [_head(keyspace, rows), [], _owners(rows, runs, marks, colours, canvas)]
    if any(row["ops"] for row in rows):
        lines.append(_load(rows, runs, top, canvas.signs))
    lines += [[(text, "")] for text in ticks(_labels(rows, runs, canvas), canvas.width, canvas.signs)]
    lines += [[], *_legend(rows, marks, colours, canvas), *_about(rows, runs, top, canvas.signs)]
    lines += _listed(keyspace.name, rows, canvas.signs)
    return lines


def letters(nodes: Sequence[str]) -> list[str]:
    """A letter for each node: the first of its name that is free, else the next one; beyond 62 nodes "*"."""
    found: list[str] = []
    for node in nodes:
        wanted = [one for one in node.upper() if one in string.ascii_uppercase] + list(LETTERS)
        found.append(next((one for one in wanted if one not in found), "*"))
    return found


def _head(keyspace: Keyspace, rows: Sequence[Row]) -> Line:
    text = f": {units.counted(len(rows), 'range')}"
    if any(row["bytes"] is not None for row in rows):
        text += f", {units.size(_sum(rows, 'bytes'))}, {_sum(rows, 'ops'):,} ops/s"
    limits = [units.size(keyspace.max_bytes)] if keyspace.max_bytes else []
    limits += [f"{keyspace.max_ops:,} ops/s"] if keyspace.max_ops else []
    if limits:
        text += f"; at most {', '.join(limits)} each"
    return [(keyspace.name, "bold"), (text, "")]


def _sum(rows: Iterable[Row], key: str) -> int:
    return sum(row[key] or 0 for row in rows)


def _largest(rows: Sequence[Row], run: Run) -> Row:
    """The row that stands for a run: the largest one."""
    return max(rows[run.first : run.end], key=lambda row: row["bytes"] or 0)


def _owners(
    rows: Sequence[Row], runs: Sequence[Run], marks: dict[str, str], colours: dict[str, str], canvas: Canvas
) -> Line:
    """The strip of nodes, in which each range begins with its leader's letter."""
    line: Line = []
    for run in runs:
        leader = _largest(rows, run)["leader"]
        style = f"black on {colours[leader]}" if leader in colours else f"{HOT} reverse"
        fill = " " if canvas.colours else canvas.signs.fill
        line.append((marks.get(leader, NOBODY) + fill * (run.cells - 1), style))
    return line


def _load(rows: Sequence[Row], runs: Sequence[Run], top: int, signs: Signs) -> Line:
    """The strip of load, in which each range is as dark as it is busy; a hot one has a mark in its middle."""
    line: Line = []
    for run in runs:
        own = rows[run.first : run.end]
        text = shade(max(row["ops"] or 0 for row in own), top, signs) * run.cells
        if any(row["hot"] for row in own):
            middle = run.cells // 2
            line.append((text[:middle] + signs.hot + text[middle + 1 :], HOT))
        else:
            line.append((text, ""))
    return line


def _labels(rows: Sequence[Row], runs: Sequence[Run], canvas: Canvas) -> list[tuple[int, str]]:
    """The ends of the key space, the bounds of hot ranges, then those of the widest ones."""
    last = len(runs) - 1
    hot = [place for place, run in enumerate(runs) if any(row["hot"] for row in rows[run.first : run.end])]
    wide = sorted(range(len(runs)), key=lambda place: -runs[place].cells)
    order = dict.fromkeys([0, *(at for place in hot for at in (place, place + 1) if at <= last), *wide])
    most = max(min(MAX_LABEL, canvas.width // 3), 4)
    found = [(runs[place].start, clipped(rows[runs[place].first]["start"], most, canvas.signs.gap)) for place in order]
    return [found[0], (canvas.width - 1, '""'), *found[1:]]


def _legend(rows: Sequence[Row], marks: dict[str, str], colours: dict[str, str], canvas: Canvas) -> list[Line]:
    """A text on each leader's ranges, as many in a line as there is room for."""
    lines: list[Line] = [[]]
    room = canvas.width
    for node in [*marks, ""]:
        own = [row for row in rows if row["leader"] == node]
        if not own:
            continue
        mark, style = (marks[node], f"black on {colours[node]}") if node else (NOBODY, f"{HOT} reverse")
        text = f" {node or 'no leader'} {units.counted(len(own), 'range')}"
        if any(row["bytes"] is not None for row in own):
            text += f", {units.size(_sum(own, 'bytes'))}, {_sum(own, 'ops'):,} ops/s"
        if lines[-1] and room < cells_of(mark + text):
            lines.append([])
            room = canvas.width
        lines[-1] += [(mark, style), (text + "   ", "")]
        room -= cells_of(mark + text) + 3
    return lines


def _about(rows: Sequence[Row], runs: Sequence[Run], top: int, signs: Signs) -> list[Line]:
    """The lines that explain how to read the strips."""
    width = "as wide as its data" if any(row["bytes"] for row in rows) else "equally wide: no data is known of"
    shared = max(run.end - run.first for run in runs)
    text = f"Each range begins with its node's letter and is {width}"
    if shared > 1:
        text += f"; up to {shared:,} neighbours share a cell, which has the letter of the largest of them, and the "
        text += "load of the busiest"
    if any(row["ops"] for row in rows):
        quarters = " ".join(f"{signs.shades[place]} {top * place // 4:,}" for place in (1, 2, 3, 4))
        text += f". Load, up to: {quarters} ops/s, {signs.hot} hot"
    return [[(text + ".", "dim")]]


def _listed(keyspace: str, rows: Sequence[Row], signs: Signs) -> list[Line]:
    """The hot ranges, the busiest first, and those that have something to say."""
    hot = sorted((row for row in rows if row["hot"]), key=lambda row: -row["ops"])
    noted = [row for row in rows if row["remark"]]
    lines = [
        [(f"{signs.hot} ", HOT), *_named(row, signs), (f" {row['ops']:,} ops/s, {row['hot']}; {_leader(row)}", "")]
        for row in hot[:MAX_LISTED]
    ]
    lines += _more(len(hot) - MAX_LISTED, "hot", keyspace)
    lines += [[("! ", "bold yellow"), *_named(row, signs), (f" {row['remark']}", "")] for row in noted[:MAX_LISTED]]
    lines += _more(len(noted) - MAX_LISTED, "with a note", keyspace)
    if lines:
        first = (hot or noted)[0]["name"]
        lines.append([(f"  see: minkactl partitions explain {first}", "dim")])
    return [[], *lines] if lines else []


def _named(row: Row, signs: Signs) -> Line:
    start, end = (clipped(row[key], MAX_LABEL, signs.gap) for key in ("start", "end"))
    return [(row["name"], "bold"), (f" [{start}, {end})", "")]


def _leader(row: Row) -> str:
    return row["leader"] or "no leader"


def _more(count: int, what: str, keyspace: str) -> list[Line]:
    if count <= 0:
        return []
    return [[(f"  and {count:,} more {what}: minkactl partitions --keyspace {keyspace}", "dim")]]
