"""The cluster on one page, and its problems."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from minkactl import units
from minkactl.pages import Listing, Row
from minkactl.render.tables import MARKS, NOTHING, record, stacked, table


def status(document: Row, tables: Sequence[Listing], wide: bool) -> RenderableType:
    """The cluster on one page: health first, then the coordinator and what is under way, then these tables."""
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
    return stacked([Group(head, *problems(found)), record(facts), *(table(one, wide) for one in tables)])


def nodes(found: Sequence[Row], listing: Listing, wide: bool) -> RenderableType:
    """The problems of the nodes, then their table."""
    told = [Group(*problems(found))] if found else []
    return stacked([*told, *([table(listing, wide)] if listing.rows or not found else [])])


def problems(found: Sequence[Row]) -> Iterator[RenderableType]:
    """Each problem as a sentence, then what to type next, and what else can be done. No command is wrapped."""
    for problem in found:
        lines = Table.grid(padding=(0, 1))
        lines.add_column()
        lines.add_column(overflow="fold")
        mark, style = MARKS[problem["severity"]]
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
    """The numbers of duties and of attached ones, and the shards by state."""
    text = Text(
        f"{duties['duties']:,} in {units.counted(duties['pallets'], 'pallet')}, {duties['attached']:,} attached"
    )
    if duties["nowhere"]:
        text.append(f", {duties['nowhere']:,} nowhere", "bold red")
    if duties["quarantined"]:
        text.append(f", {duties['quarantined']:,} quarantined (minkactl duties --quarantined)", "yellow")
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
