"""Brings a partition table up to date by its changes."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from minka.v1.cluster_pb2 import PartitionTable, TableChanges

_Row = TypeVar("_Row")


def with_changes(table: PartitionTable, changes: TableChanges) -> PartitionTable:
    """The table at `changes.version`, made from the table at `changes.since`."""
    assert table.version == changes.since, f"the changes are since version {changes.since}, not {table.version}"
    return PartitionTable(
        cluster=table.cluster,
        version=changes.version,
        nodes=_merged(table.nodes, changes.nodes, changes.removed_nodes, lambda row: row.id),
        keyspaces=_merged(table.keyspaces, changes.keyspaces, (), lambda row: row.id),
        partitions=_merged(table.partitions, changes.partitions, changes.gone_partitions, lambda row: row.id),
        next_partition_id=changes.next_partition_id,
    )


def _merged(
    old: Iterable[_Row], new: Iterable[_Row], gone: Iterable[object], id_of: Callable[[_Row], object]
) -> Iterable[_Row]:
    rows = {id_of(row): row for row in old} | {id_of(row): row for row in new}
    for id_ in gone:
        rows.pop(id_, None)
    return rows.values()
