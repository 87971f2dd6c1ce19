"""Prints a command's result to stdout: a table for a person, tab-separated lines for a pipe, JSON, YAML or names.

Only a table on a terminal needs rich, which `minkactl.render` imports.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from minkactl.pages import Column, Listing, Page, Row, plain

TABLES = ("table", "wide")
FORMATS = (*TABLES, "json", "yaml", "name")


def tsv(listing: Listing, wide: bool) -> list[str]:
    """The header line and a line for each row."""
    columns = listing.shown(wide)
    lines = ["\t".join(column.title for column in columns)]
    lines += ["\t".join(plain(row.get(column.key), column.kind) for column in columns) for row in listing.rows]
    return lines


def as_json(document: Any, indent: int | None = 2) -> str:
    """The document as JSON; text that isn't ASCII is not escaped."""
    return json.dumps(document, indent=indent, ensure_ascii=False)


def as_yaml(document: Any) -> str:
    """The document as YAML, in its own order, without the last newline."""
    import yaml

    # The dumper that is written in C, if there is one, takes a tenth of the time.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=2**20)).rstrip("\n")


def is_terminal() -> bool:
    """True if a person reads stdout."""
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
    """Print the page to stdout in the format asked for (one of `FORMATS`), and its notes to stderr."""
    if form in TABLES and is_terminal():
        from minkactl.render import tables, terminal

        terminal.show(tables.drawn(page, form == "wide"))
    else:
        for line in lines_of(page, form):
            print(line)
    note(page.left_out)
    note(page.unconfirmed)


def emit_rows(pages: Iterable[Sequence[Row]], columns: Sequence[Column], form: str) -> None:
    """Print rows to a pipe as they come, in the format asked for: the output is the same as if they had come together.
    Each row has a name.
    """
    if form in TABLES:
        print(tsv(Listing(columns, ()), form == "wide")[0])
    printed = False
    for rows in pages:
        if form == "json":
            # The rows without the brackets and the line breaks within them.
            print(",\n" if printed else "[\n", as_json(rows)[2:-2], sep="", end="")
        elif form == "yaml":
            print(as_yaml(rows))
        elif form == "name":
            print("\n".join(row["name"] for row in rows))
        else:
            print("\n".join(tsv(Listing(columns, rows), form == "wide")[1:]))
        if not printed:
            sys.stdout.flush()
        printed = True
    if form == "json":
        print("\n]" if printed else "[]")
    elif form == "yaml" and not printed:
        print("[]")


def note(text: str) -> None:
    """Tell the person something that isn't data, on stderr."""
    if text:
        print(text, file=sys.stderr, flush=True)
