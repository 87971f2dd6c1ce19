"""The partitions of a keyspace by ranges, for commands."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minka.v1.admin_pb2 import GetStatusResponse
    from minka.v1.cluster_pb2 import Partition


def rows_by_range(status: "GetStatusResponse", keyspace: str) -> "list[Partition]":
    """In the order of their keys. Raises UNKNOWN_KEYSPACE, NOT_BY_RANGES."""
    from minka.errors import Code, MinkaError
    from minkactl.range_views import is_by_ranges, keyspace_named

    row = keyspace_named(status, keyspace)
    if not is_by_ranges(row):
        raise MinkaError(Code.NOT_BY_RANGES, f"keyspace {keyspace} is not partitioned by ranges")
    rows = [one for one in status.table.partitions if one.keyspace_id == row.id]
    return sorted(rows, key=lambda one: one.start_key)
