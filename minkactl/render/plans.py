"""Shows a plan on a terminal: the moves by their reasons, in a pager if they are many; then their sums."""

import os
from collections.abc import Iterator, Sequence
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from minkactl import units
from minkactl.pages import Listing, Row
from minkactl.render.tables import stacked, table
from minkactl.render.terminal import console
from minkactl.render.terminal import show as print_

ROOM_FOR_A_QUESTION: Final = 4  # lines


def show(document: Row, moves: Listing, summary: str, *, wide: bool, pager: bool) -> None:
    """The moves, with `pager` in one if they don't fit on the screen; then the nodes before and after, and the summary,
    which thus stay in sight.
    """
    first, last = moves_by_reason(document, moves, wide), result(document, summary)
    if pager and _height(first) + _height(last) + ROOM_FOR_A_QUESTION > console().height:
        _paged(first)
        print_(Group("", last))
    else:
        print_(stacked([first, last]))


def _height(renderable: RenderableType) -> int:
    """The number of lines that it takes on the terminal."""
    return len(console().render_lines(renderable, pad=False))


def _paged(renderable: RenderableType) -> None:
    """Show the text through $PAGER, else less; an empty PAGER means no pager, as for git."""
    if os.environ.get("PAGER", "less") == "":
        print_(renderable)
        return
    os.environ.setdefault("LESS", "FRX")  # as git does: colours, and what was read stays on the terminal
    target = console()
    with target.capture() as captured:
        target.print(renderable)
    click.echo_via_pager(captured.get().rstrip("\n"))


def moves_by_reason(document: Row, moves: Listing, wide: bool) -> RenderableType:
    """Every move; those with the same reason are shown together. With `wide` there is a line for each."""
    splits = [part for split in document["splits"] for part in _split(split)]
    if wide or not moves.rows:
        return Group(*splits, table(moves, wide))
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for move in document["moves"]:
        groups.setdefault((move["reason"], move["source"], move["target"]), []).append(move)
    return Group(*splits, *(part for group in groups.values() for part in _moves_alike(group)))


def _split(split: Row) -> Iterator[RenderableType]:
    """The keys at which a partition is split, and why."""
    where = f"   {len(split['keys']) + 1} parts, {units.size(split['bytes'])}"
    yield Text.assemble((f"Split {split['partition']}", "bold"), (where, "dim"))
    yield Padding(Text(split["reason"]), (0, 0, 0, 2), expand=False)
    yield Padding(Text("  ".join(split["keys"]), style="cyan"), (0, 0, 0, 2), expand=False)


def _moves_alike(moves: Sequence[Row]) -> Iterator[RenderableType]:
    """Moves that have their way and their reason in common: from where to where, how many, why, and which."""
    first, total = moves[0], sum(move["bytes"] for move in moves)
    if first["duty"]:
        yield from _duties_alike(moves)
        return
    way = f"{first['source']} → {first['target']}" if first["source"] else "Replicas as listed"
    amount = f"{units.counted(len(moves), 'move')}, {units.size(total)}"
    if not first["source"] and set(first["replicas"]) == set(first["target_replicas"]):
        way, amount = "Order of replicas", units.counted(len(moves), "partition")
    yield Text.assemble((way, "bold"), (f"   {amount}", "dim"))
    yield Padding(Text(first["reason"]), (0, 0, 0, 2), expand=False)
    names = "  ".join(move["partition"] for move in moves)
    if way == "Replicas as listed":
        names = "\n".join(f"{one['partition']}  {_replicas(one)}" for one in moves)
    yield Padding(Text(names, style="cyan"), (0, 0, 0, 2), expand=False)


def _duties_alike(moves: Sequence[Row]) -> Iterator[RenderableType]:
    amount = f"{units.counted(len(moves), 'move')}, weight {sum(move['weight'] for move in moves):,}"
    yield Text.assemble((f"{moves[0]['source'] or 'nowhere'} → {moves[0]['target']}", "bold"), (f"   {amount}", "dim"))
    yield Padding(Text(moves[0]["reason"]), (0, 0, 0, 2), expand=False)
    yield Padding(Text("  ".join(move["partition"] for move in moves), style="cyan"), (0, 0, 0, 2), expand=False)


def _replicas(move: Row) -> str:
    return f"{', '.join(move['replicas'])} → {', '.join(move['target_replicas'])}"


def result(document: Row, summary: str) -> RenderableType:
    """Each node or shard before and after, what could not be evened out, and the sum of it."""
    balance = _shards(document["shards"]) if document["pallet"] else _nodes(document["nodes"])
    notes = [Text.assemble(("! ", "bold yellow"), note) for note in document["notes"]]
    return stacked([balance, *([Group(*notes)] if notes else []), Text(summary, style="bold")])


def _shards(shards: Sequence[Row]) -> Table:
    balance = _before_and_after("SHARD", "DUTIES", "", "WEIGHT", "CAPACITY")
    for shard in shards:
        balance.add_row(
            shard["shard"],
            *_counts(shard["duties_before"], shard["duties_after"]),
            f"{shard['weight_before']:,} → {shard['weight_after']:,}",
            "-" if shard["capacity"] is None else f"{shard['capacity']:,}",
        )
    return balance


def _nodes(nodes: Sequence[Row]) -> Table:
    balance = _before_and_after("NODE", "PARTITIONS", "", "DATA")
    for node in nodes:
        balance.add_row(
            node["node"],
            *_counts(node["partitions_before"], node["partitions_after"]),
            f"{units.size(node['bytes_before'])} → {units.size(node['bytes_after'])}",
        )
    return balance


def _before_and_after(name: str, *titles: str) -> Table:
    balance = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    balance.add_column(name)
    for title in titles:
        balance.add_column(title, justify="right")
    return balance


def _counts(before: int, after: int) -> tuple[str, Text]:
    """Both numbers, and by how much they differ."""
    difference = Text(f"{after - before:+,}" if after != before else "", "green" if after > before else "yellow")
    return f"{before:,} → {after:,}", difference
