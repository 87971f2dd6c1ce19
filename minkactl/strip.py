"""Numbers drawn with characters: a strip of parts in proportion, the ticks beneath it, bars. Pure, without colours."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from unicodedata import combining, east_asian_width

LABEL_ROWS: Final = 3


@dataclass(frozen=True, slots=True)
class Signs:
    """The characters that a terminal can show."""

    fill: str
    shades: str  # from none to full
    hot: str
    tick: str  # its label follows it
    tick_behind: str  # its label is before it
    stem: str
    bar: str
    track: str
    beyond: str
    gap: str  # what stands for the middle of a long key


UNICODE: Final = Signs("─", " ░▒▓█", "▲", "└", "┘", "│", "█", "░", "▶", "…")
ASCII: Final = Signs("-", " .:*#", "^", "`", "'", "|", "#", ".", ">", "..")


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbours that the strip shows as one thing: those from `first` on and before `end`, in `cells` cells."""

    first: int
    end: int
    start: int  # its first cell
    cells: int


def layout(weights: Sequence[int], width: int) -> list[Run]:
    """The parts of a strip of `width` cells (1 or more), in order: each as wide as its weight says, one cell at least.

    If there are more parts than cells, light neighbours share one. Without any weight all weigh the same.
    """
    if not any(weights):
        weights = [1] * len(weights)
    bounds = _shared(weights, width)
    sums = [sum(weights[first:end]) for first, end in pairwise(bounds)]
    runs, start = [], 0
    for (first, end), cells in zip(pairwise(bounds), _widths(sums, width), strict=True):
        runs.append(Run(first, end, start, cells))
        start += cells
    return runs


def _shared(weights: Sequence[int], most: int) -> list[int]:
    """The place at which each of at most `most` runs of neighbours begins, and the end."""
    if len(weights) <= most:
        return list(range(len(weights) + 1))
    limit = -(-sum(weights) // most)
    while len(bounds := list(_filled(weights, limit))) > most + 1:
        limit += limit // 4 + 1
    return bounds


def _filled(weights: Sequence[int], limit: int) -> Iterator[int]:
    """The places at which runs begin, and the end, if each takes neighbours until it would weigh more than `limit`."""
    yield 0
    held = 0
    for place, weight in enumerate(weights):
        if place and held + weight > limit:
            yield place
            held = 0
        held += weight
    yield len(weights)


def _widths(weights: Sequence[int], total: int) -> list[int]:
    """Whole numbers, 1 or more, in proportion to the weights; their sum is `total`, if there are not more of them.

    Those whose share is less than 1 get 1, and the others share the rest. They are rounded by where they end, so that
    each lies where it should.
    """
    if not any(weights):
        weights = [1] * len(weights)
    found = [1] * len(weights)
    rest, room, whole = list(range(len(weights))), total, sum(weights)
    while small := {place for place in rest if weights[place] * room < whole}:
        rest = [place for place in rest if place not in small]
        room -= len(small)
        whole -= sum(weights[place] for place in small)
    before = 0
    for place in rest:
        after = before + weights[place] * room
        found[place] = after // whole - before // whole
        before = after
    return found


def clipped(text: str, most: int, gap: str = UNICODE.gap) -> str:
    """The beginning and the end of a text, at most `most` characters, which must be more than `gap` has."""
    if len(text) <= most:
        return text
    kept = most - len(gap)
    return text[: kept - kept // 2] + gap + text[len(text) - kept // 2 :]


def ticks(labels: Sequence[tuple[int, str]], width: int, signs: Signs) -> list[str]:
    """Lines beneath a strip that name cells: `labels` are columns and texts, the most important first. Those for which
    there is no room in `LABEL_ROWS` lines are left out.
    """
    rows: list[dict[int, str]] = [{} for _ in range(LABEL_ROWS)]  # texts by their first cell
    for column, text in labels:
        long = cells_of(text)
        fits = column + 1 + long <= width
        start = column if fits else column - long
        for place, row in enumerate(rows):
            if start >= 0 and _is_free(row, start, start + long + 1):
                row[start] = signs.tick + text if fits else text + signs.tick_behind
                for above in rows[:place]:
                    above[column] = signs.stem
                break
            if not _is_free(row, column, column + 1):
                break  # its stem can't pass
    return [_line(row) for row in rows if row]


def cells_of(text: str) -> int:
    """The number of cells that a text takes on a terminal: a wide character takes two, a combining one none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def _is_free(row: dict[int, str], start: int, end: int) -> bool:
    """True if these cells of the line and their neighbours are free."""
    return all(end < at or at + cells_of(text) < start for at, text in row.items())


def _line(row: dict[int, str]) -> str:
    line, end = "", 0
    for start, text in sorted(row.items()):
        line += " " * (start - end) + text
        end = start + cells_of(text)
    return line


def bar(percent: int, width: int, signs: Signs) -> tuple[str, str]:
    """The full part and the empty one, of `width` characters together; beyond 100 % it ends with another character."""
    if percent > 100:
        return signs.bar * (width - 1) + signs.beyond, ""
    full = min(width, max(width * percent // 100, percent > 0))
    return signs.bar * full, signs.track * (width - full)


def shade(value: int, top: int, signs: Signs) -> str:
    """The character for `value` as a part of `top`: the first for nothing, then by quarters."""
    if value <= 0 or top <= 0:
        return signs.shades[0]
    return signs.shades[min(4, -(-4 * value // top))]
