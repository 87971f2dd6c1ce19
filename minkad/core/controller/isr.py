"""The in-sync sets: their leaders change them, by compare-and-set (KIP-497: AlterPartition, formerly AlterIsr)."""

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import IsrChange
from minka.v1.records_pb2 import Record
from minkad.core.controller.commands import AlterIsr
from minkad.core.controller.rows import changed, partitions_changed
from minkad.core.state import State, is_up, other_half


def alter_isr(state: State, command: AlterIsr) -> list[Record]:
    """The new sets of those changes that `isr_refusal` does not refuse; the others change nothing."""
    rows: dict[int, Partition] = {}
    for change in command.changes:
        if change.partition_id not in rows and isr_refusal(state, command.node_id, change) is None:
            # The same set again is a change, too: behind it no older request can succeed any more.
            partition = state.partitions[change.partition_id]
            rows[partition.id] = _with_isr(partition, change)
            if partition.splitting:
                other = state.partitions[other_half(partition)]
                rows[other.id] = _with_isr(other, change)
    return partitions_changed(rows.values())


def isr_refusal(state: State, node_id: str, change: IsrChange) -> Code | None:
    """Why the node may not make this change. Each partition stands for itself."""
    partition = state.partitions.get(change.partition_id)
    if partition is None:
        return Code.UNKNOWN_PARTITION
    if partition.leader != node_id:
        return Code.NOT_LEADER
    if (partition.leader_epoch, partition.partition_epoch) != (change.leader_epoch, change.partition_epoch):
        return Code.STALE_EPOCH
    if node_id not in change.isr or len(set(change.isr)) != len(change.isr):
        return Code.INVALID_ARGUMENT
    joining = set(change.isr) - set(partition.isr)
    if joining and partition.splitting and not partition.split_to:
        return Code.INELIGIBLE_REPLICA  # the other half's leader knows who can make this one: see splits.py
    eligible = {n for n in partition.replicas if n not in partition.removing_replicas and is_up(state.nodes.get(n))}
    return Code.INELIGIBLE_REPLICA if joining - eligible else None


def check_caller(state: State, node_id: str) -> None:
    """Only nodes that are up may ask: NOT_REGISTERED."""
    if not is_up(state.nodes.get(node_id)):
        raise MinkaError(Code.NOT_REGISTERED, f"node {node_id} has to register", node=node_id)


def _with_isr(partition: Partition, change: IsrChange) -> Partition:
    def alter(row: Partition) -> None:
        row.isr[:] = change.isr
        row.adding_replicas[:] = [node for node in row.adding_replicas if node not in change.isr]
        if row.successor not in row.isr:
            row.successor = ""

    return changed(partition, alter)
