"""Tables of a terminal, and the cells, records and sentences that pages are made of."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from minkactl import units
from minkactl.keys import columns_text
from minkactl.pages import Column, Kind, Listing, Page, Row, plain
from minkactl.render.terminal import console, signs
from minkactl.strip import bar, clipped

STYLES: Final = {
    "live": "green",
    "ok": "green",
    "low": "bold red",
    "online": "green",
    "completed": "green",
    "succeeded": "green",
    "failed": "bold red",
    "offline": "bold red",
    "cancelled": "bold red",
    "stopped": "bold red",
    "left": "dim",
    "pending": "dim",
    "queued": "dim",
    "joining": "yellow",
    "quarantined": "yellow",
    "draining": "yellow",
    "assigned": "yellow",
    "copying": "yellow",
    "running": "yellow",
    "handed_over": "cyan",
    "attached": "green",
    "releasing": "yellow",
    "kept": "yellow",
    "preparing": "cyan",
    "nowhere": "bold red",
    "leaving": "yellow",
    "away": "yellow",
    "gone": "dim",
}
RIGHT: Final = (Kind.NUMBER, Kind.BYTES, Kind.MILLISECONDS, Kind.PERCENT)
# These may take several lines.
PROSE: Final = (
    "note", "reason", "outcome", "blocked_by", "state_reason", "problem", "endpoints", "remark", "hot", "remedy",
)  # fmt: skip
# If there is no room for all columns, these are left out first, then those at the right.
EXPENDABLE: Final = ("generation", "zone", "phase", "by", "served_by")
GAP: Final = 2  # cells between columns
MIN_PROSE: Final = 20  # cells of their column
KEYS: Final = (32, 24, 16, 12)  # characters of a bound: the first for which there is room
BAR: Final = range(6, 31)  # cells
MARKS: Final = {"error": ("✗ ", "bold red"), "warning": ("! ", "bold yellow"), "done": ("✓ ", "green")}
NOTHING: Final = Text("-", style="dim")


def drawn(page: Page, wide: bool) -> RenderableType:
    """A page for a person: drawn by its own function, else its listings as tables."""
    if page.draw is not None:
        return page.draw(wide)
    return stacked(table(listing, wide) for listing in page.listings)


def stacked(parts: Iterable[RenderableType]) -> Group:
    """The parts below each other, with an empty line between them."""
    lines: list[RenderableType] = []
    for part in parts:
        lines += ["", part] if lines else [part]
    return Group(*lines)


def state(name: str) -> Text:
    """A state in its colour."""
    return Text(name.replace("_", " "), style=STYLES.get(name, ""))


def cell(value: Any, kind: Kind, bars: int = 0) -> Text:
    """A value for a person; see `table`."""
    if not _there(value) or (kind is Kind.TIME and not value):
        return NOTHING
    match kind:
        case Kind.STATE:
            return state(value)
        case Kind.NUMBER:
            return Text(units.number(value))
        case Kind.BYTES:
            return Text(units.size(value))
        case Kind.MILLISECONDS:
            return Text(units.duration(value / 1000))
        case Kind.TIME:
            return Text(units.clock(value))
        case Kind.KEY:
            return Text(_bound(value, KEYS[0]))
        case Kind.PERCENT:
            return _bar(value, bars)
        case Kind.TEXT:
            return Text(", ".join(map(str, value)) if isinstance(value, list) else plain(value))


def _grid(columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> Table:
    grid = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
    for place, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if column.kind in RIGHT else "left"
        prose = column.key in PROSE
        # rich would take the longest word as the width that a column needs, even if the column must not be wrapped.
        needs = _needs(column, (row[place] for row in rows))
        least = min(needs, MIN_PROSE) if prose else needs
        grid.add_column(column.title, justify=justify, no_wrap=not prose, overflow="fold", min_width=least)
    for row in rows:
        grid.add_row(*row)
    return grid


def _needs(column: Column, cells: Iterable[Text]) -> int:
    """The width of the column if nothing is wrapped."""
    return max(len(column.title), *(one.cell_len for one in cells), 0)


def _there(value: Any) -> bool:
    return value is not None and value != "" and value != []


def table(listing: Listing, wide: bool = False) -> RenderableType:
    """A listing in columns, without those that no row has; the sentence that says so when there is no row.

    Nothing is wrapped within a word: if the terminal has no room for all columns, some are left out, and named; with
    `wide` they are shown below, after the first column again.
    """
    if not listing.rows and listing.empty:
        return Text(listing.empty, style="dim")
    columns = _with_values(listing, wide)
    if wide:
        return stacked(_grid_of(listing, block) for block in _blocks(listing, columns))
    shown = _most_important(listing, columns)
    if len(shown) == len(columns):
        return _grid_of(listing, columns)
    titles = ", ".join(one.title for one in columns if one not in shown)
    note = f"No room for {titles} in {console().width} columns; -o wide shows all."
    return Group(_grid_of(listing, shown), Text(note, style="dim"))


def noted(shown: RenderableType, text: str) -> Group:
    """Something, and beneath it a sentence about it."""
    return stacked([shown, Text(text)])


def _grid_of(listing: Listing, columns: Sequence[Column], bars: int = 0) -> Table:
    """The table of these columns. With `bars`, percentages are drawn as bars of `bars` cells."""
    return _grid(columns, [[_cell_of(row, one, bars) for one in columns] for row in listing.rows])


def _least(listing: Listing, column: Column) -> int:
    """The least width of the column: prose may be wrapped, but not within a word."""
    cells = [_cell_of(row, column, 0) for row in listing.rows]
    if column.key not in PROSE:
        return _needs(column, cells)
    words = (len(word) for one in cells for word in one.plain.split())
    return min(_needs(column, cells), max(MIN_PROSE, len(column.title), *words, 0))


def _most_important(listing: Listing, columns: Sequence[Column]) -> list[Column]:
    """As many columns as fit beside each other. The first column, and prose, are never left out."""
    shown, least = list(columns), {one: _least(listing, one) for one in columns}
    rank = {one: (one.key in EXPENDABLE, place) for place, one in enumerate(columns)}
    while sum(least[one] + GAP for one in shown) - GAP > console().width:
        candidates = [one for one in shown[1:] if one.key not in PROSE]
        if not candidates:
            break
        shown.remove(max(candidates, key=rank.__getitem__))
    return shown


def _blocks(listing: Listing, columns: Sequence[Column]) -> Iterator[list[Column]]:
    """All columns, in as many tables as the width asks for; each begins with the first one."""
    first, block, room = columns[0], [columns[0]], 0
    for column in columns[1:]:
        needed = _least(listing, column) + GAP
        if len(block) > 1 and needed > room:
            yield block
            block = [first]
        if len(block) == 1:
            room = console().width - _least(listing, first)
        block.append(column)
        room -= needed
    yield block


def _with_values(listing: Listing, wide: bool) -> list[Column]:
    """The columns that are shown: with `wide`, those too that no row has."""
    return [one for one in listing.shown(wide) if wide or any(_there(row.get(one.key)) for row in listing.rows)]


def _cell_of(row: Row, column: Column, bars: int) -> Text:
    if column.kind is Kind.STATE and row.get("remembered_state"):
        return Text(f"was {row['remembered_state']}".replace("_", " "), style="yellow")
    text = cell(row.get(column.key), column.kind, bars)
    hot = column.key == "ops" and row.get("hot")
    return Text.assemble((f"{signs().hot} {text.plain}", "bold red")) if hot else text


def ranges(listing: Listing, wide: bool) -> RenderableType:
    """The ranges of a keyspace with a bar each; the notes on them are beneath. A narrow terminal has shorter bounds,
    then no number of keys, then no bars. States are shown only if one isn't online.
    """
    if wide or not listing.rows:
        return table(listing, wide)
    fine = all(row["state"] == "online" for row in listing.rows)
    left_out = ("hot", "remark", *(("state",) if fine else ()))
    columns = [one for one in _with_values(listing, wide) if one.key not in left_out]
    drawn, room = listing, -1
    needs = {one.key: _needs(one, (_cell_of(row, one, BAR.start) for row in listing.rows)) for one in columns}
    for keys, most in itertools.product((True, False), KEYS):
        shown = [one for one in columns if keys or one.key != "keys"]
        drawn = replace(listing, columns=shown, rows=[_with_short_bounds(row, most) for row in listing.rows])
        bounds = [one for one in columns if one.kind is Kind.KEY]
        needs |= {one.key: _needs(one, (Text(row[one.key]) for row in drawn.rows)) for one in bounds}
        room = console().width - sum(needs[one.key] + GAP for one in shown) + GAP
        if room >= 0:
            break
    notes = [note for row in listing.rows for note in _notes(row)]
    bars = min(BAR.start + room, BAR.stop - 1) if room >= 0 else 0
    return stacked([_grid_of(drawn, drawn.columns, bars), *([Text("\n").join(notes)] if notes else [])])


def loads(listing: Listing, wide: bool) -> RenderableType:
    """A table whose percentages are bars, as long as there is room for."""
    if wide or not listing.rows:
        return table(listing, wide)
    columns = _most_important(listing, _with_values(listing, wide))
    used = sum(_needs(one, (_cell_of(row, one, 0) for row in listing.rows)) + GAP for one in columns) - GAP
    room = console().width - used
    return _grid_of(listing, columns, min(room, BAR.stop - 1) if room >= BAR.start else 0)


def _with_short_bounds(row: Row, most: int) -> Row:
    return {**row, **{bound: _bound(row[bound], most) for bound in ("start", "end")}}


def _bound(key: str, most: int) -> str:
    return clipped(columns_text(key), most, signs().gap)


def _notes(row: Row) -> Iterator[Text]:
    """The notes on a range."""
    if row["hot"]:
        text = f" has {row['ops']:,} ops/s, {row['hot']}"
        yield Text.assemble((f"{signs().hot} ", "bold red"), (row["name"], "bold"), text)
    if row["remark"]:
        yield Text.assemble(("! ", "bold yellow"), (row["name"], "bold"), f" {row['remark']}")


def _bar(percent: int, width: int) -> Text:
    """A bar for a percentage, with the number; only the number if the width is 0."""
    style = "bold red" if percent > 100 else "cyan"
    full, rest = bar(percent, width, signs()) if width else ("", "")
    return Text.assemble((full, style), (rest, "dim"), (f" {percent:>4,} %", style if percent > 100 else ""))


def record(pairs: Sequence[tuple[str, RenderableType]]) -> Table:
    """Names and values, one pair a line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, value)
    return grid


def facts(pairs: Sequence[tuple[str, str]]) -> Table:
    """Names and texts, one pair a line."""
    return record([(name, Text(text)) for name, text in pairs])


def sentences(rows: Sequence[Row]) -> Table:
    """The sentences about a thing, by subject; each subject is named once."""
    subjects = [row["about"] for row in rows]
    titles = [name.capitalize() if name not in subjects[:place] else "" for place, name in enumerate(subjects)]
    return record([(title, Text(row["sentence"])) for title, row in zip(titles, rows, strict=True)])
