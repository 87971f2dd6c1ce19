"""minkactl kv."""

import base64
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from minkactl import options, units
from minkactl.completion import complete_keyspace
from minkactl.keys import parse_key, text_or_hex
from minkactl.output import TABLES, emit, is_terminal, note
from minkactl.pages import Column, Kind, Listing, Page
from minkactl.session import Session
from minkactl.watch import show

if TYPE_CHECKING:
    from minka.admin.control import Control
    from minka.async_client import AsyncKeyspace
    from minka.engine.operate import Written
    from minkactl.load import Loaded

T = TypeVar("T")

MAX_VALUE_BYTES = 16 * 1024 * 1024
LOADED_COLUMNS = (
    Column("KEYSPACE", "keyspace"),
    Column("ROWS", "rows", Kind.NUMBER),
    Column("DATA", "bytes", Kind.BYTES),
    Column("TOOK", "took_ms", Kind.MILLISECONDS),
    Column("ROWS A SECOND", "rows_per_second", Kind.NUMBER),
)
VALUE_COLUMNS = (
    Column("KEY", "key"),
    Column("VERSION", "version", Kind.NUMBER),
    Column("EXPIRES", "expires_ms", Kind.TIME),
    Column("VALUE", "value"),
)
COUNT_COLUMNS = (
    Column("NODE", "node"),
    Column("PARTITIONS", "partitions", Kind.NUMBER),
    Column("KEYS", "keys", Kind.NUMBER),
    Column("DATA", "bytes", Kind.BYTES),
)
PARTITION_COUNT_COLUMNS = (
    Column("PARTITION", "name"),
    Column("NODE", "node"),
    Column("KEYS", "keys", Kind.NUMBER),
    Column("DATA", "bytes", Kind.BYTES),
)

IF_VALUE = click.option("--if-value", metavar="VALUE", help="Only if the key has this value.")
IF_VERSION = click.option(
    "--if-version",
    type=click.IntRange(0, options.MAX_64),
    metavar="N",
    help="Only if the key has this version (kv get -o wide); 0: no value.",
)


@options.group()
def kv() -> None:
    """Put, get, delete, increment, scan, load and count keys.

    Keys and values are bytes; typed text is taken as UTF-8, and a key that begins with 0x as hex.
    """


def _with_keyspace(session: Session, name: str, use: "Callable[[AsyncKeyspace], Awaitable[T]]") -> T:
    """Run `use` with a client's handle on the keyspace. Raises MinkaError."""
    import asyncio

    endpoints = session.endpoints()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as in session.py
    from minka.async_client import AsyncClient

    async def run() -> T:
        async with AsyncClient(endpoints.addresses, timeout=session.request_timeout_s, tls=endpoints.tls) as client:
            return await use(client.keyspace(name))

    return asyncio.run(run())


@kv.command()
@click.argument("keyspace", shell_complete=complete_keyspace)
@click.argument("key")
@click.argument("value", required=False)
@click.option("--file", type=click.File("rb"), metavar="FILE", help='Take the value from a file ("-": stdin).')
@click.option("--if-absent", is_flag=True, help="Only if the key has no value.")
@IF_VALUE
@IF_VERSION
@click.option("--ttl", type=options.TimeToLive(), metavar="TIME", help="The key expires after this time: 30s, 90m, 7d.")
@options.common(output=False)
@options.pass_session
def put(
    session: Session,
    keyspace: str,
    key: str,
    value: str | None,
    file: BinaryIO | None,
    if_absent: bool,
    if_value: str | None,
    if_version: int | None,
    ttl: timedelta | None,
) -> None:
    """Set the value of a key; durable when the command ends with status 0. If a condition is given that doesn't hold,
    nothing is done, and the status is 1.

    Examples:
      minkactl kv put flights greeting hello
      minkactl kv put flights logo --file logo.png
      minkactl kv put flights lock $HOSTNAME --if-absent --ttl 30s
    """
    if (value is None) == (file is None):
        raise click.UsageError("give a VALUE or --file, one of them", click.get_current_context())
    content = file.read(MAX_VALUE_BYTES + 1) if file is not None else os.fsencode(value or "")
    condition = _condition(if_absent, if_value, if_version)
    write = _write(key, lambda handle: handle.put(parse_key(key), content, **condition, ttl=ttl))
    _with_keyspace(session, keyspace, write)


def _condition(if_absent: bool, if_value: str | None, if_version: int | None) -> dict[str, Any]:
    """The condition as the client takes it. Raises UsageError for more than one."""
    value = None if if_value is None else os.fsencode(if_value)
    given = {"if_absent": if_absent or None, "if_value": value, "if_version": if_version}
    condition = {name: one for name, one in given.items() if one is not None}
    if len(condition) > 1:
        text = "give one of --if-absent, --if-value and --if-version"
        raise click.UsageError(text, click.get_current_context())
    return condition


def _write(
    key: str, ask: "Callable[[AsyncKeyspace], Awaitable[Written | None]]"
) -> "Callable[[AsyncKeyspace], Awaitable[None]]":
    """A function that asks for a write, and raises CONDITION_FAILED if it was not done."""

    async def run(handle: "AsyncKeyspace") -> None:
        written = await ask(handle)
        if written is not None and not written:
            from minka.errors import Code, MinkaError

            there = f"has version {written.version}" if written.version else "has no value"
            raise MinkaError(Code.CONDITION_FAILED, f"key {key!r} {there}; nothing was done")

    return run


@kv.command()
@click.argument("keyspace", shell_complete=complete_keyspace)
@click.argument("key")
@options.common(watch=False)
@options.pass_session
def get(session: Session, keyspace: str, key: str) -> None:
    """Print the value of a key, byte for byte. Exit status 1 when it has none. With -o wide, json or yaml also its
    version, for --if-version, and when it expires.
    """
    found = _with_keyspace(session, keyspace, lambda handle: handle.get_versioned(parse_key(key)))
    if found is None:
        from minka.errors import Code, MinkaError

        raise MinkaError(Code.UNKNOWN_KEY, f"no key {key!r} in {keyspace}")
    value = found.value
    if session.output == "table":
        sys.stdout.buffer.write(value + b"\n" if is_terminal() and not value.endswith(b"\n") else value)
        sys.stdout.buffer.flush()
        return
    expires_ms = None if found.expires_at is None else round(found.expires_at * 1000)
    about = {"version": found.version, "expires_ms": expires_ms}
    document = {"keyspace": keyspace, "key": key, **_readable(value), **about}
    row = {"key": key, "value": text_or_hex(value), **about}
    emit(Page(document, [Listing(VALUE_COLUMNS, [row])], [key]), session.output)


def _readable(value: bytes) -> dict[str, str]:
    """The value as text if it is text, else in base64."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


@kv.command()
@click.argument("keyspace", shell_complete=complete_keyspace)
@click.argument("keys", metavar="KEY…", nargs=-1, required=True)
@IF_VALUE
@IF_VERSION
@options.common(output=False)
@options.pass_session
def delete(
    session: Session, keyspace: str, keys: tuple[str, ...], if_value: str | None, if_version: int | None
) -> None:
    """Remove keys; those that aren't there count as removed. A condition is for one key; if it doesn't hold, nothing is
    done, and the status is 1.
    """
    condition = _condition(False, if_value, if_version)
    if not condition:
        _with_keyspace(session, keyspace, lambda handle: handle.delete_many(map(parse_key, keys)))
        return
    if len(keys) > 1:
        raise click.UsageError("a condition is for one KEY", click.get_current_context())
    (key,) = keys
    _with_keyspace(session, keyspace, _write(key, lambda handle: handle.delete(parse_key(key), **condition)))


@kv.command()
@click.argument("keyspace", shell_complete=complete_keyspace)
@click.argument("key")
@click.option(
    "--by",
    type=click.IntRange(-(2**63), 2**63 - 1),
    default=1,
    show_default=True,
    metavar="N",
    help="How much to add; it may be negative.",
)
@options.common(watch=False)
@options.pass_session
def increment(session: Session, keyspace: str, key: str, by: int) -> None:
    """Add to the number that is the key's value, and print the sum; a key without a value counts as 0.

    After an error that says that the outcome is unknown, it may have been added: read the key before you repeat it.

    Examples:
      minkactl kv increment flights visits
      minkactl kv increment flights seats --by -3
    """
    number = _with_keyspace(session, keyspace, lambda handle: handle.increment(parse_key(key), by))
    if session.output in TABLES:
        click.echo(number)
        return
    emit(Page({"keyspace": keyspace, "key": key, "number": number}, [], [key]), session.output)


@kv.command()
@click.argument("keyspace", shell_complete=complete_keyspace)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--key",
    "key_columns",
    type=options.Names(),
    required=True,
    metavar="COLUMNS",
    help='The columns that make the key, separated by commas; their values are joined by "/".',
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "tsv", "jsonl"]),
    help="Default: by the file's name.",
)
@options.common(watch=False)
@options.pass_session
def load(session: Session, keyspace: str, file: str, key_columns: tuple[str, ...], form: str | None) -> None:
    """Put every row of a CSV, TSV or JSON Lines file ("-": stdin; .gz is unpacked): its value is the row as JSON.

    Each batch is durable before the next ones follow. After a failure the load can be repeated as a whole: the same
    rows give the same keys. If a key comes twice, the last row counts.

    Examples:
      minkactl kv load flights flights.csv --key year,month,day,carrier,flight,origin
      zcat events.gz | minkactl kv load events - --format jsonl --key id
    """
    from minkactl.load import format_of, open_rows
    from minkactl.load import load as load_pairs

    if form is None and file == "-":
        raise click.UsageError("stdin has no name that says its format: use --format", click.get_current_context())
    pairs = open_rows(file, form or format_of(file), key_columns)
    progress = Progress()
    try:
        loaded = _with_keyspace(session, keyspace, lambda handle: load_pairs(handle, pairs, progress))
    finally:
        progress.end()
    row = {
        "keyspace": keyspace,
        "rows": loaded.rows,
        "bytes": loaded.bytes,
        "took_ms": round(loaded.seconds * 1000),
        "rows_per_second": round(loaded.rows / loaded.seconds) if loaded.seconds else 0,
    }
    emit(Page(row, [Listing(LOADED_COLUMNS, [row])], [keyspace]), session.output)


class Progress:
    """Shows on stderr how far a load is: on a terminal in one line that changes, else with a line every ten seconds."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._next = time.monotonic() + (0 if self._live else 10)
        self._last: Loaded | None = None

    def __call__(self, loaded: "Loaded") -> None:
        """Show how far the load is."""
        self._last = loaded
        if time.monotonic() >= self._next:
            self._say("\r" if self._live else "", "\x1b[K" if self._live else "\n")
            self._next = time.monotonic() + (0.1 if self._live else 10)

    def _say(self, before: str, after: str) -> None:
        last = self._last
        if last is not None and last.seconds:
            speed = f"{units.number(round(last.rows / last.seconds))} rows/s, {units.rate(last.bytes / last.seconds)}"
            text = f"{units.counted(last.rows, 'row')}, {units.size(last.bytes)} at {speed}"
            print(f"{before}{text}{after}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Show the last line, also of a load that broke off."""
        self._say("\r" if self._live else "", "\x1b[K\n" if self._live else "\n")


@kv.command()
@click.argument("keyspace", shell_complete=complete_keyspace)
@click.argument("start", default="")
@click.argument("end", default="")
@click.option("--limit", type=click.IntRange(1, options.MAX_32), metavar="N", help="At most N pairs.")
@click.option("--reverse", is_flag=True, help="From the end down.")
@click.option("--keys-only", is_flag=True, help="Without the values.")
@options.common(watch=False)
@options.pass_session
def scan(
    session: Session, keyspace: str, start: str, end: str, limit: int | None, reverse: bool, keys_only: bool
) -> None:
    """Print the pairs of a keyspace by ranges from START on and before END, in the order of their keys.

    A line is the key, a tab, the value; anything but plain text is 0x and hex. With -o json it is an object.

    Examples:
      minkactl kv scan authors
      minkactl kv scan authors a c
      minkactl kv scan authors --reverse --limit 10 --keys-only
    """
    from minka.cluster.key_ranges import key_text

    bounds = parse_key(start), parse_key(end)

    async def run(handle: "AsyncKeyspace") -> None:
        left = limit
        async for page in handle.scan_pages(*bounds, limit=limit and limit + 1, reverse=reverse):
            lines = []
            for key, value in page[:left]:
                if session.output in ("json", "yaml"):
                    document = {"key": key_text(key)} | ({} if keys_only else _readable(value))
                    dash = "- " if session.output == "yaml" else ""
                    lines.append(f"{dash}{json.dumps(document, ensure_ascii=False)}")
                else:
                    plain = keys_only or session.output == "name"
                    lines.append(key_text(key) if plain else f"{key_text(key)}\t{text_or_hex(value)}")
            if lines:
                click.echo("\n".join(lines))
            if left is not None:
                left -= len(lines)
            if len(lines) < len(page):
                note(f"Only the first {limit:,} pairs are shown, and there are more.")

    _with_keyspace(session, keyspace, run)


@kv.command()
@click.argument("keyspace", shell_complete=complete_keyspace)
@options.common()
@options.pass_session
def count(session: Session, keyspace: str) -> None:
    """Count the keys of a keyspace exactly, by reading every partition at its leader; -o wide shows each."""

    def fetch(control: "Control") -> Page:
        return _count_page(session, control, keyspace)

    show(session, fetch)


def _count_page(session: Session, control: "Control", keyspace: str) -> Page:
    from minkactl.counting import counted

    partitions = counted(control, keyspace, session.request_timeout_s)
    nodes: dict[str, dict[str, Any]] = {}
    for row in partitions:
        node = nodes.setdefault(row["node"], {"node": row["node"], "partitions": 0, "keys": 0, "bytes": 0})
        node["partitions"] += 1
        node["keys"] += row["keys"]
        node["bytes"] += row["bytes"]
    rows = sorted(nodes.values(), key=lambda node: str(node["node"]))
    total = {"node": "total", **{key: sum(node[key] for node in rows) for key in ("partitions", "keys", "bytes")}}
    document = {"keyspace": keyspace, **{key: total[key] for key in ("keys", "bytes")}, "nodes": rows}
    listings = [Listing(COUNT_COLUMNS, [*rows, total])]
    if session.output == "wide":
        listings.append(Listing(PARTITION_COUNT_COLUMNS, partitions))
    return Page(document | {"partitions": partitions}, listings, [keyspace])
