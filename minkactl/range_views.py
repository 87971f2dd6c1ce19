"""The partitions of a keyspace by ranges as rows: bounds, size and load beside their limits, and which are hot."""

from dataclasses import replace
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import GetStatusResponse
from minka.v1.cluster_pb2 import Keyspace
from minkactl.pages import Column, Kind, Row
from minkactl.views import PARTITION_COLUMNS, partition_rows

HOT: Final = 2  # times the mean of the keyspace
MIN_HOT_OPS: Final = 10  # below it, being above the mean says nothing

_FIRST: Final = (
    Column("ID", "id", Kind.NUMBER),
    Column("START", "start", Kind.KEY),
    Column("END", "end", Kind.KEY),
    Column("STATE", "state", Kind.STATE),
    Column("LEADER", "leader"),
    Column("KEYS", "keys", Kind.NUMBER),
    Column("DATA", "bytes", Kind.BYTES),
)
_LAST: Final = (
    Column("OPS/S", "ops", Kind.NUMBER),
    Column("HOT", "hot"),
    Column("NOTE", "remark"),
)
DRAWN: Final = ("start", "end", "remark")  # the fields of rows that only people see
_SHOWN: Final = ("note", "range", *(column.key for column in (*_FIRST, *_LAST)))
_WIDE: Final = tuple(replace(column, wide=True) for column in PARTITION_COLUMNS if column.key not in _SHOWN)


def range_columns(keyspace: Keyspace) -> list[Column]:
    """The columns for `range_rows`; with `-o wide`, also those of any partition."""
    percent = Column("% OF MAX" if keyspace.max_bytes else "% OF LARGEST", "percent", Kind.PERCENT)
    return [*_FIRST, percent, *_LAST, *_WIDE]


def keyspace_named(status: GetStatusResponse, name: str) -> Keyspace:
    """The keyspace's row. Raises UNKNOWN_KEYSPACE."""
    found = next((one for one in status.table.keyspaces if one.name == name), None)
    if found is None:
        raise MinkaError(Code.UNKNOWN_KEYSPACE, f"no keyspace {name!r}")
    return found


def range_rows(status: GetStatusResponse, keyspace: Keyspace) -> list[Row]:
    """The rows of a keyspace's partitions in the order of their keys, with the drawn fields.

    `percent` is the size in percent of `max_bytes`, or of the largest partition if there is no limit; `hot` says why a
    partition is hot, "" if it isn't; `remark` is the note, and what is under way.
    """
    rows = [row for row in partition_rows(status) if row["keyspace"] == keyspace.name]
    whole = keyspace.max_bytes or max((row["bytes"] or 0 for row in rows), default=0)
    loads = [row["ops"] for row in rows if row["ops"] is not None]
    mean = sum(loads) / len(loads) if loads else 0.0
    return [
        {
            **row,
            "start": row["start_key"] or '""',
            "end": row["end_key"] or '""',
            "percent": round(100 * row["bytes"] / whole) if whole and row["bytes"] is not None else None,
            "hot": hot(row["ops"] or 0, keyspace.max_ops, mean),
            "remark": "; ".join(filter(None, (row.get("note", ""), under_way(row, keyspace.name)))),
        }
        for row in rows
    ]


def hot(ops: int, max_ops: int, mean: float) -> str:
    """Why a range with `ops` keys a second is hot; "" if it isn't. `mean` is that of the keyspace's partitions."""
    if max_ops and ops > max_ops:
        return f"above max_ops ({max_ops:,})"
    if ops >= MIN_HOT_OPS and ops > HOT * mean:
        return f"above {HOT} times the mean ({mean:,.0f})"
    return ""


def under_way(row: Row, keyspace: str) -> str:
    """The change of the partition that is under way, for people; "" if nothing is."""
    if row["merge_into"]:
        return f"becomes part of {keyspace}/{row['merge_into']}"
    if row["merge_from"]:
        return f"takes in {keyspace}/{row['merge_from']}"
    if row["splitting"]:
        return "is being split"
    if row["successor"]:
        return f"its leadership goes to {row['successor']}"
    return "is being reassigned" if row["target_replicas"] else ""
