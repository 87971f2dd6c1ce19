"""The partitions of a keyspace by ranges, for commands."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minka.v1.admin_pb2 import GetStatusResponse, PartitionFilter
    from minka.v1.cluster_pb2 import Partition


def of_keyspace(name: str) -> "PartitionFilter":
    """The filter for this keyspace's partitions, for `Control.partitions`."""
    from minka.v1.admin_pb2 import PartitionFilter

    return PartitionFilter(keyspace=name)


def rows_by_range(status: "GetStatusResponse", keyspace: str) -> "list[Partition]":
    """The keyspace's partitions in the order of their keys. Raises UNKNOWN_KEYSPACE, NOT_BY_RANGES."""
    from minka.cluster.key_ranges import is_by_ranges
    from minka.errors import Code, MinkaError
    from minkactl.range_views import keyspace_named

    row = keyspace_named(status, keyspace)
    if not is_by_ranges(row):
        raise MinkaError(Code.NOT_BY_RANGES, f"keyspace {keyspace} is not partitioned by ranges")
    rows = [one for one in status.table.partitions if one.keyspace_id == row.id]
    return sorted(rows, key=lambda one: one.start_key)


def row_named(rows: "list[Partition]", keyspace: str, asked: str) -> "Partition":
    """The partition authors/7 of `rows`, for "authors/7" and for "7": the id is the same, in a keyspace by ranges.

    Raises UNKNOWN_PARTITION.
    """
    from minka.errors import Code, MinkaError
    from minkactl.suggest import did_you_mean

    for row in rows:
        if asked in (f"{keyspace}/{row.slot}", str(row.slot)):
            return row
    hint = did_you_mean(asked, [f"{keyspace}/{row.slot}" for row in rows])
    raise MinkaError(Code.UNKNOWN_PARTITION, f"{keyspace} has no partition {asked!r}{hint}")
