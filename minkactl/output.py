"""How a command's result reaches stdout: a table for a person, tab-separated lines for a pipe, JSON, YAML or names.

A result is a `Page`: one document of plain JSON values, and the columns that show it. Only a table on a terminal
needs rich, which `minkactl.render` imports.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from minkactl import units

if TYPE_CHECKING:
    from rich.console import RenderableType

Row = Mapping[str, Any]  # one JSON object
TABLES = ("table", "wide")
FORMATS = (*TABLES, "json", "yaml", "name")


class Kind(Enum):
    """What a column holds: how it is aligned, formatted for people, and formatted for a pipe."""

    TEXT = auto()
    STATE = auto()
    NUMBER = auto()
    BYTES = auto()
    MILLISECONDS = auto()  # a duration
    TIME = auto()  # Unix milliseconds
    KEY = auto()  # of a bound; a terminal shows the beginning and the end of a long one
    PERCENT = auto()  # a terminal draws it as a bar if there is room


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, the row's key, its kind, and whether only `-o wide` shows it."""

    title: str
    key: str
    kind: Kind = Kind.TEXT
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows of one noun. `empty` is what a person reads when there are none."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    empty: str = ""

    def shown(self, wide: bool) -> list[Column]:
        """The columns that this width has."""
        return [column for column in self.columns if wide or not column.wide]


@dataclass(frozen=True, slots=True)
class Page:
    """A command's result. `draw(wide)` makes what a terminal shows; without it, the listings as tables."""

    document: Any
    listings: Sequence[Listing]
    names: Sequence[str] = ()
    draw: "Callable[[bool], RenderableType] | None" = field(default=None, compare=False)


def plain(value: Any, kind: Kind = Kind.TEXT) -> str:
    """A cell for a pipe: exact, never abbreviated, on one line; "-" for nothing."""
    if value is None or value == "" or value == []:
        return "-"
    if isinstance(value, (list, tuple)):
        return ",".join(plain(item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if kind is Kind.TIME:
        return units.timestamp(value) if value else "-"
    text = str(value)
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\r", "\\r").replace("\n", "\\n")


def flatten(value: Any, name: str = "") -> Iterator[Row]:
    """A nested document as rows of field and value, with dotted names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flatten(inner, f"{name}.{key}" if name else key)
    else:
        yield {"field": name, "value": value}


def fields(document: Any) -> Listing:
    """The listing of a document that isn't a table by itself."""
    return Listing((Column("FIELD", "field"), Column("VALUE", "value")), list(flatten(document)))


def tsv(listing: Listing, wide: bool) -> list[str]:
    """The header line and a line for each row."""
    columns = listing.shown(wide)
    lines = ["\t".join(column.title for column in columns)]
    lines += ["\t".join(plain(row.get(column.key), column.kind) for column in columns) for row in listing.rows]
    return lines


def as_json(document: Any, indent: int | None = 2) -> str:
    """JSON, with text as it is."""
    return json.dumps(document, indent=indent, ensure_ascii=False)


def as_yaml(document: Any) -> str:
    """YAML in the document's own order, without the last newline."""
    import yaml

    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=2**20)).rstrip("\n")


def is_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout.isatty()


def lines_of(page: Page, form: str) -> list[str]:
    """The page in any format but a table for a terminal."""
    if form == "json":
        return [as_json(page.document)]
    if form == "yaml":
        return [as_yaml(page.document)]
    if form == "name":
        return list(page.names)
    lines = []
    for index, listing in enumerate(page.listings):
        lines += [""] * (index > 0) + tsv(listing, form == "wide")
    return lines


def emit(page: Page, form: str) -> None:
    """Print the page to stdout in the format asked for (one of `FORMATS`)."""
    if form in TABLES and is_terminal():
        from minkactl import render

        render.show(render.drawn(page, form == "wide"))
        return
    for line in lines_of(page, form):
        print(line)


def note(text: str) -> None:
    """Tell the person something that isn't data."""
    if text:
        print(text, file=sys.stderr, flush=True)
