"""Partitions as callers give them: a `Partition`, its name "flights/7", or its id."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from minka.admin.cluster_rows import Partition
from minka.admin.control import Control
from minka.engine.arguments import invalid
from minka.engine.grpc_calls import clipped
from minka.engine.requests import checked_whole
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import PartitionFilter

# Not a union: a `Mapping` with a union as the type of its keys would refuse a `dict[str, …]`.
AnyPartition = TypeVar("AnyPartition", Partition, str, int)
_IDS: Final = range(1 << 32)


def partition_id(control: Control, given: Partition | str | int) -> int:
    """The partition's id. Raises INVALID_ARGUMENT, and UNKNOWN_PARTITION for a name that no partition has."""
    return partition_ids(control, [given])[0]


def partition_ids(control: Control, given: Sequence[Any]) -> list[int]:
    """The ids of the partitions, in the order given. For each keyspace whose partitions are given by name, this makes
    one call to the cluster. Raises the same errors as `partition_id`.
    """
    if isinstance(given, str | bytes) or not hasattr(given, "__iter__"):
        raise invalid(f"partitions is {clipped(repr(given))}, not a list of partitions")
    wanted = list(given)
    named = _ids_of_names(control, [one for one in wanted if isinstance(one, str)])
    return [named[one] if isinstance(one, str) else _id_of(one) for one in wanted]


def _id_of(given: Any) -> int:
    return given.id if isinstance(given, Partition) else checked_whole(given, "a partition", _IDS)


def _ids_of_names(control: Control, names: list[str]) -> dict[str, int]:
    slots = defaultdict[str, dict[int, str]](dict)
    for name in names:
        keyspace, _, slot = name.rpartition("/")
        if not keyspace or not slot.isdecimal() or not slot.isascii() or int(slot) not in _IDS:
            raise invalid(f"{clipped(repr(name))} isn't a partition's name, such as flights/7")
        slots[keyspace][int(slot)] = name
    found = dict[str, int]()
    for keyspace, asked in slots.items():
        listed = control.partitions(PartitionFilter(keyspace=keyspace, slots=list(asked))).whole()
        found |= {asked[row.slot]: row.id for row in listed.table.partitions if row.slot in asked}
    if unknown := [name for name in names if name not in found]:
        raise MinkaError(Code.UNKNOWN_PARTITION, f"there is no partition {unknown[0]}")
    return found
