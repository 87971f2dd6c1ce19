"""The end of a graceful change of leader: the old leader takes no more writes, and the new one has all writes."""

from minka.errors import Code, MinkaError, with_rows
from minka.v1.coordinator_pb2 import HandOverRequest, HandOverResponse
from minkad.core.controller.decision import Steps
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.rows import partitions_changed
from minkad.core.state import State, is_up, partition_name


def hand_over(state: State, request: HandOverRequest, now_ms: int) -> Steps[HandOverResponse]:
    """Let the row's `successor` lead at a new leader_epoch. Raises UNKNOWN_PARTITION, and STALE_EPOCH with the row."""
    partition = state.partitions.get(request.partition_id)
    if partition is None:
        raise MinkaError(Code.UNKNOWN_PARTITION, f"partition {request.partition_id} does not exist")
    if partition.leader == request.target:  # a repeated request: the answer to the first was lost
        return HandOverResponse(partition=partition)
    if (
        partition.partition_epoch != request.partition_epoch
        or partition.leader != request.node_id
        or partition.successor != request.target
        or not is_up(state.nodes.get(request.target))
    ):
        name = partition_name(state.keyspaces, partition)
        text = (
            f"{name}: {request.node_id} can't hand over to {request.target} at epoch {request.partition_epoch}; the "
            f"epoch is {partition.partition_epoch}, the leader {partition.leader or 'none'} and its successor "
            f"{partition.successor or 'none'}"
        )
        raise with_rows(MinkaError(Code.STALE_EPOCH, text), [partition])
    row = PartitionChange(partition).hand_over_to(request.target).row()
    yield partitions_changed([row])
    return HandOverResponse(partition=row)
