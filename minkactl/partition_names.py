"""Finding a partition by what a person types: flights/6, as the tables show it, or its id."""

from collections.abc import Sequence

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import PartitionFilter
from minka.v1.cluster_pb2 import Partition, PartitionTable
from minkactl.suggest import did_you_mean


def find_partition(table: PartitionTable, asked: str) -> Partition:
    """The partition of this name, or, if it can mean nothing else, of this number.

    Raises MinkaError: UNKNOWN_PARTITION, and INVALID_ARGUMENT for a number that can mean several.
    """
    names = _names(table)
    named = [row for row in table.partitions if names[row.id] == asked]
    if not named and asked.isdecimal():
        named = [row for row in table.partitions if int(asked) in (row.id, row.slot)]
    if len(named) > 1:
        raise MinkaError(Code.INVALID_ARGUMENT, _ambiguity(asked, [(row, names[row.id]) for row in named]))
    if not named:
        raise MinkaError(Code.UNKNOWN_PARTITION, f"no partition {asked!r}{did_you_mean(asked, names.values())}")
    return named[0]


def selections(asked: str) -> list[PartitionFilter]:
    """The filters that select every partition that `find_partition` could mean."""
    keyspace, _, slot = asked.rpartition("/")
    if not slot.isdecimal() or not slot.isascii() or int(slot) >= 1 << 32:
        return []
    if keyspace:
        return [PartitionFilter(keyspace=keyspace, slots=[int(slot)])]
    return [PartitionFilter(ids=[int(slot)]), PartitionFilter(slots=[int(slot)])]


def partition_with_id(table: PartitionTable, partition_id: int) -> Partition:
    """The partition with this id. Raises MinkaError(UNKNOWN_PARTITION)."""
    found = next((row for row in table.partitions if row.id == partition_id), None)
    if found is None:
        raise MinkaError(Code.UNKNOWN_PARTITION, f"no partition has the id {partition_id}")
    return found


def _names(table: PartitionTable) -> dict[int, str]:
    keyspaces = {one.id: one.name for one in table.keyspaces}
    return {row.id: f"{keyspaces[row.keyspace_id]}/{row.slot}" for row in table.partitions}


def _ambiguity(asked: str, named: Sequence[tuple[Partition, str]]) -> str:
    """The sentence for a number that can mean several partitions: by id, and by slot."""
    by_id = next((name for row, name in named if row.id == int(asked)), "")
    others = [name for row, name in named if row.id != int(asked)]
    shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    first = f"the id of {by_id} and the slot of {shown}" if by_id else f"the slot of {shown}"
    ways = f"{by_id or others[0]}, or --id {asked}" if by_id else others[0]
    return f"{asked} can mean more than one partition: it is {first}; write its name, as in {ways}"
