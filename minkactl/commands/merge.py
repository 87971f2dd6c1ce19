"""minkactl merge."""

from typing import TYPE_CHECKING, Any

import click

from minkactl import options
from minkactl.commands.migrations import note_begun, watch_operation
from minkactl.completion import complete_keyspace, complete_partition
from minkactl.exits import Exit
from minkactl.output import emit, note
from minkactl.pages import Column, Kind, Listing, Page
from minkactl.ranges import of_keyspace, row_named, rows_by_range
from minkactl.session import Session

if TYPE_CHECKING:
    from minka.v1.admin_pb2 import GetStatusResponse

MERGE_COLUMNS = (
    Column("PARTITION", "name"),
    Column("ID", "id", Kind.NUMBER),
    Column("DATA", "bytes", Kind.BYTES),
    Column("INTO", "into"),
    Column("DATA THERE", "into_bytes", Kind.BYTES),
    Column("BOUND", "key"),
    Column("RANGE BEHIND", "range"),
)


@options.command()
@click.argument("keyspace", shell_complete=complete_keyspace)
@click.option("--at", "at", metavar="KEYS", help="Take away these bounds, separated by commas; 0x… and @FILE too.")
@click.option(
    "--partition",
    metavar="NAME",
    shell_complete=complete_partition,
    help="Give it the range to its right, too: authors/7, or 7.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be merged, and stop.")
@options.queue
@click.option("--reason", default="", metavar="TEXT", help="The reason, which is kept with the operation.")
@options.common(watch=False)
@options.pass_session
def merge(
    session: Session, keyspace: str, at: str | None, partition: str | None, dry_run: bool, queue: bool, reason: str
) -> Exit:
    """Merge neighbours in a keyspace by ranges, and watch it. It undoes a split.

    The lower one remains. The upper one's data is copied into it; writes to the upper one wait for a moment at the end.

    Examples:
      minkactl merge authors --at m --dry-run
      minkactl merge authors --at m,t
      minkactl merge authors --partition authors/7 --reason "the import is over"
    """
    if (at is None) == (partition is None):
        raise click.UsageError("give either --at or --partition", click.get_current_context())
    from minkactl.keys import parse_keys
    from minkactl.survey import unconfirmed

    given = parse_keys(at) if at is not None else None
    with session.admin() as admin:
        status = admin.control.partitions(of_keyspace(keyspace)).whole()
        keys = given if given is not None else [_end_of(status, keyspace, partition or "")]
        rows = _merges(status, keyspace, keys)
        if dry_run:
            listing = Listing(MERGE_COLUMNS, rows)
            page = Page(rows, [listing], [row["name"] for row in rows], unconfirmed=unconfirmed(status))
            emit(page, session.output)
            note("Nothing was changed (--dry-run).")
            return page.exit
        operation = admin.merge(keyspace, keys, reason=reason, queue=queue)
        note_begun(operation)
        return watch_operation(session, admin.control, operation.id)


def _end_of(status: "GetStatusResponse", keyspace: str, partition: str) -> bytes:
    """The key at which the partition ends. Raises UNKNOWN_PARTITION, and NO_BOUND for the last one."""
    from minka.errors import Code, MinkaError

    row = row_named(rows_by_range(status, keyspace), keyspace, partition)
    if not row.end_key:
        raise MinkaError(Code.NO_BOUND, f"no partition of {keyspace} is right of {keyspace}/{row.slot}")
    return row.end_key


def _merges(status: "GetStatusResponse", keyspace: str, keys: list[bytes]) -> list[dict[str, Any]]:
    """The planned merges: a row for each partition that would go away. Raises NO_BOUND, DUPLICATE_SPLIT_POINT."""
    from minka.cluster.key_ranges import KeyRange, check_different, key_text, readable
    from minka.errors import Code, MinkaError
    from minkactl.views import replica_stats

    rows, stats, found = rows_by_range(status, keyspace), replica_stats(status), []
    places = {row.start_key: place for place, row in enumerate(rows) if place}
    remains = rows[0]
    check_different(keys)
    for key in sorted(keys):
        if key not in places:
            raise MinkaError(Code.NO_BOUND, f"no partition of {keyspace} begins at {readable(key)}, after another one")
        before, row = rows[places[key] - 1], rows[places[key]]
        if before.start_key not in keys:
            remains = before
        found.append(
            {
                "name": f"{keyspace}/{row.slot}",
                "id": row.id,
                "bytes": stats[row.id].bytes if row.id in stats else None,
                "into": f"{keyspace}/{remains.slot}",
                "into_bytes": stats[remains.id].bytes if remains.id in stats else None,
                "key": key_text(key),
                "range": str(KeyRange(row.start_key, row.end_key)),
            }
        )
    return found
