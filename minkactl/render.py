"""What a terminal shows. This file, and plan_view.py for plans, are the only ones that know rich."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Final, Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.segment import SegmentLines
from rich.table import Table
from rich.text import Text

from minka.v1.cluster_pb2 import Keyspace
from minkactl import units
from minkactl.keymap import Canvas, key_map
from minkactl.keys import columns_text
from minkactl.output import Column, Kind, Listing, Page, Row, plain
from minkactl.strip import ASCII, UNICODE, Signs, bar, clipped

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
MAX_STUCK: Final = 8
MAX_WIDTH: Final = 10_000
ROOM_FOR_BARS: Final = 112  # columns of the terminal
# These may take several lines.
PROSE: Final = (
    "note", "reason", "outcome", "blocked_by", "state_reason", "problem", "endpoints", "remark", "hot", "remedy",
)  # fmt: skip
# These are left out first where there is no room for all columns; then those at the right.
EXPENDABLE: Final = ("generation", "zone", "phase", "by", "served_by")
GAP: Final = 2  # cells between columns
MIN_PROSE: Final = 20  # cells of their column
KEYS: Final = (32, 24, 16, 12)  # characters of a bound: the first for which there is room
BAR: Final = range(6, 31)  # cells
NOTHING: Final = Text("-", style="dim")


def console() -> Console:
    """The console of stdout; what is printed is never guessed at (no markup, no highlighting)."""
    return Console(highlight=False, markup=False, emoji=False)


@cache
def signs() -> Signs:
    """The characters that stdout can show."""
    return ASCII if console().options.ascii_only else UNICODE


def show(renderable: RenderableType) -> None:
    """Print it once; what can't be made as narrow as the terminal is wider than it, never cut."""
    target = console()
    target.width = max(target.width, _needed(renderable))
    target.print(renderable)


def _needed(renderable: RenderableType) -> int:
    """How many cells wide it is at least."""
    target = console()
    return Measurement.get(target, target.options.update(max_width=MAX_WIDTH), renderable).minimum


class Screen:
    """A place on the terminal that is drawn again and again."""

    def __init__(self, live: Live, way_out: str) -> None:
        self._live = live
        self._way_out = way_out

    def draw(self, renderable: RenderableType) -> None:
        """Replace what is there. What is below the last line of the terminal is counted, and it is said where it is."""
        self._live.update(self._as_high_as_the_terminal(renderable), refresh=True)

    def _as_high_as_the_terminal(self, renderable: RenderableType) -> RenderableType:
        target = self._live.console
        room = target.height - 1  # the cursor's line
        lines = target.render_lines(renderable, pad=False)
        if len(lines) <= room:
            return renderable
        kept = max(room - 1, 1)
        text = f"… {len(lines) - kept:,} of {len(lines):,} lines don't fit: make the terminal higher{self._way_out}"
        return Group(SegmentLines(lines[:kept], new_lines=True), Text(text, style="yellow", no_wrap=True))

    def say(self, text: str) -> None:
        """Leave a line above it."""
        self._live.console.print(Text(text, style="yellow"))


@contextmanager
def screen(way_out: str) -> Iterator[Screen]:
    """A Screen, which keeps its last content when it ends. `way_out`: how else what doesn't fit on it can be seen."""
    with Live(console=console(), auto_refresh=False, vertical_overflow="ellipsis") as live:
        yield Screen(live, way_out)


def drawn(page: Page, wide: bool) -> RenderableType:
    """A page for a person: as it draws itself, else its listings as tables."""
    if page.draw is not None:
        return page.draw(wide)
    return stacked(table(listing, wide) for listing in page.listings)


def stacked(parts: Iterable[RenderableType]) -> Group:
    """One below another, with an empty line between."""
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
        # rich would take the longest word as what a column needs, also of one that is not to be wrapped.
        needs = _needs(column, (row[place] for row in rows))
        least = min(needs, MIN_PROSE) if prose else needs
        grid.add_column(column.title, justify=justify, no_wrap=not prose, overflow="fold", min_width=least)
    for row in rows:
        grid.add_row(*row)
    return grid


def _needs(column: Column, cells: Iterable[Text]) -> int:
    """How wide it is on one line."""
    return max(len(column.title), *(one.cell_len for one in cells), 0)


def _there(value: Any) -> bool:
    return value is not None and value != "" and value != []


def table(listing: Listing, wide: bool = False) -> RenderableType:
    """A listing in columns, without those that no row has; the sentence that says so when there is no row.

    Nothing is wrapped within a word: where the terminal has no room for all columns, some are left out, and named; with
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


def _grid_of(listing: Listing, columns: Sequence[Column], bars: int = 0) -> Table:
    """With `bars`, percentages are drawn so many cells long."""
    return _grid(columns, [[_cell_of(row, one, bars) for one in columns] for row in listing.rows])


def _least(listing: Listing, column: Column) -> int:
    """How narrow it may be: prose may be wrapped, but not within a word."""
    cells = [_cell_of(row, column, 0) for row in listing.rows]
    if column.key not in PROSE:
        return _needs(column, cells)
    words = (len(word) for one in cells for word in one.plain.split())
    return min(_needs(column, cells), max(MIN_PROSE, len(column.title), *words, 0))


def _most_important(listing: Listing, columns: Sequence[Column]) -> list[Column]:
    """As many as fit beside each other. The first, and what is said in sentences, are never left out."""
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
    """The ranges of a keyspace with a bar each; what there is to say of them is beneath. A narrow terminal has shorter
    bounds, then no number of keys, then no bars. There is no state if it is the one that all should have.
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
    """What there is to say of a range."""
    if row["hot"]:
        text = f" has {row['ops']:,} ops/s, {row['hot']}"
        yield Text.assemble((f"{signs().hot} ", "bold red"), (row["name"], "bold"), text)
    if row["remark"]:
        yield Text.assemble(("! ", "bold yellow"), (row["name"], "bold"), f" {row['remark']}")


def _bar(percent: int, width: int) -> Text:
    """So much of what there may be, with the number; the number alone if the width is 0."""
    style = "bold red" if percent > 100 else "cyan"
    full, rest = bar(percent, width, signs()) if width else ("", "")
    return Text.assemble((full, style), (rest, "dim"), (f" {percent:>4,} %", style if percent > 100 else ""))


def strip(keyspace: Keyspace, nodes: Sequence[str], rows: Sequence[Row]) -> RenderableType:
    """The key space, as wide as the terminal."""
    target = console()
    colours = target.color_system is not None and not target.no_color
    lines = key_map(keyspace, nodes, rows, Canvas(target.width, signs(), colours))
    return Group(*(Text.assemble(*line) for line in lines))


def record(pairs: Sequence[tuple[str, RenderableType]]) -> Table:
    """Names and values, one pair a line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, value)
    return grid


def facts(pairs: Sequence[tuple[str, str]]) -> Table:
    """A name and what there is to say a line."""
    return record([(name, Text(text)) for name, text in pairs])


def sentences(rows: Sequence[Row]) -> Table:
    """What is said about a thing, by subject; each subject is named once."""
    subjects = [row["about"] for row in rows]
    titles = [name.capitalize() if name not in subjects[:place] else "" for place, name in enumerate(subjects)]
    return record([(title, Text(row["sentence"])) for title, row in zip(titles, rows, strict=True)])


_MARKS: Final = {"error": ("✗ ", "bold red"), "warning": ("! ", "bold yellow"), "done": ("✓ ", "green")}


def status(document: Row, nodes: Listing, keyspaces: Listing, wide: bool) -> RenderableType:
    """The cluster on one page: health first, then which nodes decide and hold, what is held, what is under way."""
    cluster, found = document["cluster"], document["problems"]
    head = Text.assemble(
        ("● ", "bold red" if not document["healthy"] else "yellow" if found else "green"),
        (cluster["name"], "bold"),
        _health(document),
        (f"   ({_source(document)} table version {document['table_version']:,})", "dim"),
    )
    if not cluster["id"]:
        return stacked([Group(head, *problems(found)), record([("Voters", _voters(document["coordinator"]))])])
    remembered = document["remembered"]
    facts: list[tuple[str, RenderableType]] = [
        ("Coordinator", _coordinator(document["coordinator"], document["known"])),
        ("Served", _served(document["served"])),
        ("Partitions", _partitions(document["partitions"], remembered)),
        *([("Duties", _duties(document["duties"]))] if _has_duties(document["duties"]) else []),
        ("Balance", _balance(document["balance"])),
        ("Operations", _operations(document["operations"]) if remembered is None else NOTHING),
    ]
    return stacked([Group(head, *problems(found)), record(facts), table(nodes, wide), table(keyspaces, wide)])


def nodes(found: Sequence[Row], listing: Listing, wide: bool) -> RenderableType:
    """What is wrong with them, then the table."""
    told = [Group(*problems(found))] if found else []
    return stacked([*told, *([table(listing, wide)] if listing.rows or not found else [])])


def problems(found: Sequence[Row]) -> Iterator[RenderableType]:
    """Each a sentence, then what to type next, and what else can be done. Commands keep their line."""
    for problem in found:
        lines = Table.grid(padding=(0, 1))
        lines.add_column()
        lines.add_column(overflow="fold")
        mark, style = _MARKS[problem["severity"]]
        lines.add_row(Text(f"  {mark.strip()}", style), Text(problem["problem"]))
        if problem["note"]:
            lines.add_row("", Text(problem["note"], "dim"))
        for place, command in enumerate(problem["next"]):
            lines.add_row("", Text.assemble(("next: " if place == 0 else "      ", "dim"), (command, "bold")))
        if problem["otherwise"]:
            lines.add_row("", Text(problem["otherwise"], "dim"))
        yield lines


def _voters(coordinator: Row) -> Text:
    return Text(", ".join(coordinator["voters"]) or "-")


def _served(served: Row) -> Text:
    if served["unknown"]:
        return Text(served["sentence"], "yellow")
    return Text(served["sentence"], "bold red" if served["not_served"] else "")


def _partitions(states: Row, remembered: Row | None) -> Text:
    counts = ", ".join(f"{number:,} {name}" for name, number in states.items() if number) or "none"
    if remembered is None:
        return Text(counts)
    was = ", ".join(f"{number:,} {name}" for name, number in remembered["partitions"].items() if number)
    until = f" until {units.clock(remembered['until_ms'])}" if remembered["until_ms"] else ""
    return Text(f"not known; {remembered['by']} remembers: {was or 'none'}{until}", "yellow")


def _has_duties(duties: Row | None) -> bool:
    return duties is not None and bool(duties["pallets"] or duties["shards"])


def _duties(duties: Row) -> Text:
    """How many there are, whether somebody has them, and the shards by state."""
    text = Text(
        f"{duties['duties']:,} in {units.counted(duties['pallets'], 'pallet')}, {duties['attached']:,} attached"
    )
    if duties["nowhere"]:
        text.append(f", {duties['nowhere']:,} nowhere", "bold red")
    shards = ", ".join(f"{number:,} {name}" for name, number in duties["shards"].items()) or "none"
    return text.append(f" · shards: {shards}")


def _health(document: Row) -> str:
    if not document["cluster"]["id"]:
        return "the cluster is not founded yet"
    return " is healthy" if document["healthy"] else " is not healthy"


def _source(document: Row) -> str:
    return f"{document['served_by']} remembers" if not document["known"] else f"answered by {document['served_by']},"


def _coordinator(coordinator: Row, known: bool) -> Text:
    controller = coordinator["controller"]
    text = Text.assemble((controller, "bold") if controller else ("no active controller", "bold red"))
    if controller and not known:
        text.append(", not confirmed", "yellow")
    text.append(f" · term {coordinator['term']:,}")
    text.append(f" · committed {coordinator['commit_index']:,}, applied {coordinator['applied_index']:,}")
    text.append(" · voters ").append_text(_voters(coordinator))
    if coordinator["learners"]:
        text.append(f" · learners {', '.join(coordinator['learners'])}")
    return text


def _span(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _balance(balance: Row) -> Text:
    if balance["min_partitions"] is None:
        return NOTHING
    text = _span(f"{balance['min_partitions']:,}", f"{balance['max_partitions']:,}") + " partitions a node"
    if balance["max_bytes"] is not None:
        text += f", {_span(units.size(balance['min_bytes']), units.size(balance['max_bytes']))} a node"
    return Text(text)


def _operations(operations: Sequence[Row]) -> Text:
    if not operations:
        return Text("none running", style="dim")
    return Text("\n").join(
        Text.assemble(
            (f"{operation['kind']} {operation['id']}", "yellow"),
            f" by {operation['by'] or '-'}: {units.counted(operation['migration_count'], 'migration')}",
            (f"   see: minkactl migrations watch {operation['id']}", "dim"),
        )
        for operation in operations
    )


def migrations(document: Row, above: int = 0) -> RenderableType:
    """An operation under way: the whole of it, then as many migrations as there is room for, then what is stuck.

    `above` are the lines that are taken by something else.
    """
    operation, whole, rows = document["operation"], document["progress"], document["migrations"]
    done = f"   {whole['completed']:,} of {units.counted(whole['migrations'], 'migration')} done" if rows else ""
    head = Text.assemble(
        (f"{operation['kind'].replace('_', ' ')} {operation['id']} ", "bold"),
        state(operation["state"]),
        (" (paused)" if operation["paused"] and not operation["finished_ms"] else "", "yellow"),
        done,
        (f", {whole['cancelled']:,} cancelled" if whole["cancelled"] else "", "bold red"),
        f"   {_amount(whole)}" if rows and rows[0].get("duty") is None else "",
        (f", at most {units.rate(operation['rate_limit'])} a node" if operation["rate_limit"] else "", "dim"),
        f"   {units.duration(whole['elapsed_ms'] / 1000)}",
    )
    stuck = [*_stuck(rows), *blocked(document["blockers"])][:MAX_STUCK]
    room = max(console().height - 7 - above - len(stuck), 5)
    parts: list[RenderableType] = [head]
    if rows:
        parts.append(_bars(rows[:room]))
    if len(rows) > room:
        all_of_them = f"minkactl migrations --operation {operation['id']}"
        parts[1] = Group(parts[1], Text(f"… and {len(rows) - room:,} more   see: {all_of_them}", style="dim"))
    if stuck:
        parts.append(Text("\n").join(stuck))
    return stacked(parts)


def blocked(blockers: Sequence[Row]) -> list[Text]:
    """A line for each thing that steps wait for: whose steps, why, and what helps."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for blocker in blockers:
        reasons.setdefault((blocker["reason"], blocker["remedy"]), []).append(blocker["partition"])
    return [
        Text.assemble(
            ("✗ ", "bold red"),
            (_first_of(names), "bold"),
            f" {reason}" if any(names) else reason,
            (f"   helps: {remedy}" if remedy else "", "dim"),
        )
        for (reason, remedy), names in reasons.items()
    ]


def _first_of(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def _bars(rows: Sequence[Row]) -> Table:
    roomy = console().width >= ROOM_FOR_BARS
    grid = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("PARTITION", "FROM → TO", "STATE", *([""] if roomy else []), "DONE", "RATE", "ETA"):
        grid.add_column(title, no_wrap=True)
    for row in rows:
        bar = ProgressBar(total=row["bytes_total"] or 1, completed=row["bytes_done"] or 0, width=16)
        grid.add_row(
            row["partition"],
            _way(row),
            _migration_state(row, roomy),
            *([bar] if roomy else []),
            _done(row, roomy),
            cell(row["rate"] and units.rate(row["rate"]), Kind.TEXT),
            cell(row["eta_ms"], Kind.MILLISECONDS),
        )
    return grid


def _way(row: Row) -> str:
    """From where to where; all the replicas if more than one changes, or their order alone."""
    if row["source"] or row["target"]:
        return f"{row['source']} → {row['target']}"
    return f"{','.join(row['original_replicas'])} → {','.join(row['target_replicas'])}"


def _stuck(rows: Sequence[Row]) -> list[Text]:
    """A line for each reason for which migrations wait or ended otherwise than planned; a cross is for what failed."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["blocked_by"]:
            reasons.setdefault(("error", f"waits: {row['blocked_by']}"), []).append(row["partition"])
        elif row["state"] == "completed":
            if row["left_behind"]:
                reasons.setdefault(("done", row["outcome"]), []).append(row["partition"])
        elif row["outcome"]:
            reasons.setdefault(("error", f"{row['state']}: {row['outcome']}"), []).append(row["partition"])
    return [
        Text.assemble(_MARKS[mark], (_first_of(names), "bold"), f" {reason}")
        for (mark, reason), names in reasons.items()
    ]


def _migration_state(row: Row, roomy: bool) -> Text:
    text = state(row["state"])
    return text.append(f" ({row['phase'].replace('_', ' ')})", "dim") if row["phase"] and roomy else text


def _done(row: Row, roomy: bool) -> Text:
    done, total = row["bytes_done"], row["bytes_total"]
    if total is None:
        return NOTHING
    if roomy:
        return Text(f"{units.size(done)} of {units.size(total)}")
    return Text(f"{min(100 * done // total, 100) if total else 100} %")


def _amount(whole: Row) -> str:
    text = f"{units.size(whole['bytes_done'])} of {units.size(whole['bytes_total'])}"
    if whole["rate"]:
        text += f" at {units.rate(whole['rate'])}"
    if whole["eta_ms"] is not None:
        text += f", {units.duration(whole['eta_ms'] / 1000)} to go"
    return text
