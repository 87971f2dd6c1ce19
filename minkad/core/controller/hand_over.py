"""The end of a graceful change of leader: the old leader takes no more writes, and the new one has all writes."""

from minka.errors import Code, MinkaError, with_rows
from minka.v1.records_pb2 import Record
from minkad.core.controller.commands import HandOver
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.rows import partitions_changed
from minkad.core.state import State, is_up, partition_name


def hand_over(state: State, command: HandOver) -> list[Record]:
    """Let the row's `successor` lead at a new leader_epoch. Raises UNKNOWN_PARTITION, and STALE_EPOCH with the row."""
    partition = state.partitions.get(command.partition_id)
    if partition is None:
        raise MinkaError(Code.UNKNOWN_PARTITION, f"partition {command.partition_id} does not exist")
    if partition.leader == command.target:
        return []  # a repeated request: the answer to the first was lost
    if (
        partition.partition_epoch != command.partition_epoch
        or partition.leader != command.node_id
        or partition.successor != command.target
        or not is_up(state.nodes.get(command.target))
    ):
        name = partition_name(state.keyspaces, partition)
        text = (
            f"{name}: {command.node_id} can't hand over to {command.target} at epoch {command.partition_epoch}; the "
            f"epoch is {partition.partition_epoch}, the leader {partition.leader or 'none'} and its successor "
            f"{partition.successor or 'none'}"
        )
        raise with_rows(MinkaError(Code.STALE_EPOCH, text), [partition])
    return partitions_changed([PartitionChange(partition).hand_over_to(command.target).row()])
