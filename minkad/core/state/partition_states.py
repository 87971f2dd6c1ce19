"""The states of a partition and the valid transitions (Kafka Controller Internals: PartitionStateChange)."""

from enum import Enum
from typing import Final

from minka.v1.cluster_pb2 import Partition, PartitionState


class PartitionStateName(Enum):
    """The states by Kafka's names. A row that is ASSIGNED or ONLINE is an OnlinePartition: it has an elected leader."""

    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


_S = PartitionStateName

PARTITION_TRANSITIONS: Final[dict[PartitionStateName, frozenset[PartitionStateName]]] = {
    _S.NON_EXISTENT: frozenset({_S.NEW}),
    _S.NEW: frozenset({_S.ONLINE, _S.OFFLINE}),
    _S.ONLINE: frozenset({_S.ONLINE, _S.OFFLINE}),
    _S.OFFLINE: frozenset({_S.ONLINE, _S.NON_EXISTENT}),
}

_OF_ROW: Final[dict[int, PartitionStateName]] = {
    PartitionState.PARTITION_STATE_NEW: _S.NEW,
    PartitionState.PARTITION_STATE_ASSIGNED: _S.ONLINE,
    PartitionState.PARTITION_STATE_ONLINE: _S.ONLINE,
    PartitionState.PARTITION_STATE_OFFLINE: _S.OFFLINE,
}


def partition_state(row: Partition | None) -> PartitionStateName:
    """The state of the partition with this row; None, no row: NonExistentPartition."""
    return _S.NON_EXISTENT if row is None else _OF_ROW[row.state]


def is_valid_partition_change(old: Partition | None, new: Partition | None) -> bool:
    """True if the states of the rows let `new` replace `old`. A row may always stay in its state."""
    before, after = partition_state(old), partition_state(new)
    return before is after or after in PARTITION_TRANSITIONS[before]
