"""minkactl split."""

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
    from minka.admin import Admin
    from minka.v1.admin_pb2 import GetStatusResponse

SPLIT_COLUMNS = (
    Column("PARTITION", "name"),
    Column("ID", "id", Kind.NUMBER),
    Column("LEADER", "leader"),
    Column("DATA", "bytes", Kind.BYTES),
    Column("SPLIT AT", "key"),
    Column("LOWER", "lower"),
    Column("UPPER", "upper"),
)


@options.command()
@click.argument("keyspace", shell_complete=complete_keyspace)
@click.option(
    "--at", "at", metavar="KEYS", help="Let partitions begin at these keys, separated by commas; 0x… and @FILE too."
)
@click.option(
    "--partition", metavar="NAME", shell_complete=complete_partition, help="Split this one evenly: authors/7, or 7."
)
@click.option(
    "--into", "parts", type=click.IntRange(2, 1000), metavar="N",
    help="The number of parts, of about the same bytes; default 2. Without --partition: of the keyspace's only one.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be split, and stop.")
@options.queue
@click.option("--reason", default="", metavar="TEXT", help="The reason, which is kept with the operation.")
@options.common(watch=False)
@options.pass_session
def split(
    session: Session,
    keyspace: str,
    at: str | None,
    partition: str | None,
    parts: int | None,
    dry_run: bool,
    queue: bool,
    reason: str,
) -> Exit:
    """Split partitions of a keyspace by ranges, and watch it. No data is copied; clients go on meanwhile.

    The lower half stays the partition, the upper half is a new one on the same nodes: minkactl reassign evens out.

    Examples:
      minkactl split authors --at m,t --dry-run
      minkactl split authors --partition authors/7
      minkactl split authors --into 16 --reason "before the import"
    """
    if (at is None) == (partition is None and parts is None):
        raise click.UsageError("give --at, or --partition or --into", click.get_current_context())
    from minkactl.keys import parse_keys
    from minkactl.survey import unconfirmed

    given = parse_keys(at) if at is not None else None
    with session.admin() as admin:
        status = admin.control.partitions(of_keyspace(keyspace)).whole()
        keys = given if given is not None else _even_keys(admin, status, keyspace, partition, parts or 2)
        rows = _splits(status, keyspace, keys)
        if dry_run or not rows:
            listing = Listing(SPLIT_COLUMNS, rows)
            page = Page(rows, [listing], [row["name"] for row in rows], unconfirmed=unconfirmed(status))
            emit(page, session.output)
            note("Nothing was changed (--dry-run)." if rows else "A partition begins at each of these keys already.")
            return page.exit
        operation = admin.split(keyspace, keys, reason=reason, queue=queue)
        if operation is None:
            note("A partition begins at each of these keys already.")
            return Exit.OK
        note_begun(operation)
        return watch_operation(session, admin.control, operation.id)


def _even_keys(
    admin: "Admin", status: "GetStatusResponse", keyspace: str, partition: str | None, parts: int
) -> list[bytes]:
    """The keys that the partition's leader proposes. Raises UNKNOWN_PARTITION, PARTITION_OFFLINE."""
    rows = rows_by_range(status, keyspace)
    if partition is None and len(rows) > 1:
        raise click.UsageError(
            f"{keyspace} has {len(rows)} partitions: say which with --partition", click.get_current_context()
        )
    row = rows[0] if partition is None else row_named(rows, keyspace, partition)
    return admin.split_keys(row.id, parts)


def _splits(status: "GetStatusResponse", keyspace: str, keys: list[bytes]) -> list[dict[str, Any]]:
    """The planned splits: a row for each new partition."""
    from minka.cluster.key_ranges import KeyRange, check_split_points, key_text
    from minkactl.views import replica_stats

    stats, found = replica_stats(status), []
    check_split_points(keys)
    for row in rows_by_range(status, keyspace):
        range_ = KeyRange(row.start_key, row.end_key)
        inside = sorted(key for key in keys if range_.contains(key) and key != range_.start)
        if not inside:
            continue
        bounds = [range_.start, *inside, range_.end]
        for place, key in enumerate(inside):
            found.append(
                {
                    "name": f"{keyspace}/{row.slot}",
                    "id": row.id,
                    "leader": row.leader or None,
                    "bytes": stats[row.id].bytes if row.id in stats else None,
                    "key": key_text(key),
                    "lower": str(KeyRange(bounds[place], key)),
                    "upper": str(KeyRange(key, bounds[place + 2])),
                }
            )
    return found
