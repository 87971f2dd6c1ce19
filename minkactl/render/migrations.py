"""An operation under way: its migrations, and what they wait for."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from minkactl import units
from minkactl.pages import Kind, Row
from minkactl.render.tables import MARKS, NOTHING, cell, stacked, state
from minkactl.render.terminal import console

MAX_STUCK: Final = 8
ROOM_FOR_BARS: Final = 112  # columns of the terminal


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
    if rows and whole["migrations"] > min(room, len(rows)):
        all_of_them = f"minkactl migrations --operation {operation['id']}"
        parts[1] = Group(parts[1], Text(f"… and {_the_others(whole, rows[:room])}   see: {all_of_them}", style="dim"))
    if stuck:
        parts.append(Text("\n").join(stuck))
    return stacked(parts)


def _the_others(whole: Row, shown: Sequence[Row]) -> str:
    """A text such as: 9,900 more (9,000 pending, 900 completed)."""
    left = Counter[str](whole["by_state"]) - Counter[str](row["state"] for row in shown)
    states = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in left.items())
    return f"{left.total():,} more ({states})"


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
    """The source and the target; all the replicas if more than one changes, or only their order."""
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
        Text.assemble(MARKS[mark], (_first_of(names), "bold"), f" {reason}")
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
