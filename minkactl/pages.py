"""A command's result: one document of plain JSON values, and the columns that show it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from minkactl import units
from minkactl.exits import Exit

if TYPE_CHECKING:
    from rich.console import RenderableType

Row = Mapping[str, Any]  # one JSON object


class Kind(Enum):
    """The kind of a column's values: it says how they are aligned, formatted for people, and formatted for a pipe."""

    TEXT = auto()
    STATE = auto()
    NUMBER = auto()
    BYTES = auto()
    MILLISECONDS = auto()  # a duration
    TIME = auto()  # Unix milliseconds
    KEY = auto()  # a bound; a terminal shows the beginning and the end of a long one
    PERCENT = auto()  # a terminal draws it as a bar where there is room


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, the row's key, its kind, and whether only `-o wide` shows it."""

    title: str
    key: str
    kind: Kind = Kind.TEXT
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows of one noun. `empty` is the text for people when there are none."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    empty: str = ""

    def shown(self, wide: bool) -> list[Column]:
        """The columns that this width has."""
        return [column for column in self.columns if wide or not column.wide]


@dataclass(frozen=True, slots=True)
class Page:
    """A command's result. `draw(wide)` draws it for a terminal; without it the listings are tables. `unconfirmed` is a
    sentence if the page isn't from an active controller that a quorum has confirmed; `left_out` is a sentence if rows
    are left out.
    """

    document: Any
    listings: Sequence[Listing]
    names: Sequence[str] = ()
    draw: "Callable[[bool], RenderableType] | None" = field(default=None, compare=False)
    unconfirmed: str = ""
    left_out: str = ""

    @property
    def exit(self) -> Exit:
        """The exit status of a command that only shows this."""
        return Exit.UNHEALTHY if self.unconfirmed else Exit.OK


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
    """The listing of a document that isn't a table: a row for each field."""
    return Listing((Column("FIELD", "field"), Column("VALUE", "value")), list(flatten(document)))
