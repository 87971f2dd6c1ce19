"""Changes of in-sync sets, at the leaders' request, by compare-and-set (KIP-497: AlterPartition, formerly AlterIsr)."""

from collections.abc import Iterable

from minka.cluster.in_sync import has_everything
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import AlterIsrRequest, AlterIsrResponse, IsrChange, IsrResult
from minka.v1.records_pb2 import Record
from minkad.core.controller.decision import Steps
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.rows import ROWS_A_RECORD, partitions_changed
from minkad.core.controller.selectors import Live, Selection, offline_partition_leader_selector
from minkad.core.state import State, is_up, other_half, slices


def alter_isr(state: State, request: AlterIsrRequest, now_ms: int) -> Steps[AlterIsrResponse]:
    """Record the changes that `isr_refusal` doesn't refuse; the answer has a result and the row for each change. A
    leader whose copy can't be used proposes a set without itself: then a replica of the set is elected. If unclean
    elections are allowed, the set may consist of replicas that aren't in sync. Raises NOT_REGISTERED.
    """
    check_caller(state, request.node_id)
    refusals: list[Code | None] = []
    for changes in slices(request.changes, ROWS_A_RECORD):
        found = [isr_refusal(state, request.node_id, change) for change in changes]
        accepted = [change for change, refusal in zip(changes, found, strict=True) if refusal is None]
        refusals += found
        yield _changed(state, accepted)
    return AlterIsrResponse(
        results=[
            IsrResult(
                partition_id=change.partition_id,
                partition=state.partitions.get(change.partition_id),
                error=refusal.name if refusal else "",
            )
            for change, refusal in zip(request.changes, refusals, strict=True)
        ]
    )


def _changed(state: State, changes: Iterable[IsrChange]) -> list[Record]:
    rows: dict[int, Partition] = {}
    for change in changes:
        if change.partition_id not in rows:
            # Also record an unchanged set: since the partition_epoch grows, no older request can succeed after this.
            partition = state.partitions[change.partition_id]
            rows[partition.id] = _with_isr(state, partition, change)
            if partition.splitting and not _is_unclean(state, partition, change):
                other = state.partitions[other_half(partition)]
                rows[other.id] = _with_isr(state, other, change)
    return partitions_changed(rows.values())


def isr_refusal(state: State, node_id: str, change: IsrChange) -> Code | None:
    """The code by which the node's change is refused; None if it may make the change."""
    partition = state.partitions.get(change.partition_id)
    if partition is None:
        return Code.UNKNOWN_PARTITION
    if partition.leader != node_id:
        return Code.NOT_LEADER
    if (partition.leader_epoch, partition.partition_epoch) != (change.leader_epoch, change.partition_epoch):
        return Code.STALE_EPOCH
    if not change.isr or len(set(change.isr)) != len(change.isr):
        return Code.INVALID_ARGUMENT
    joining = set(change.isr) - set(partition.isr)
    if not set(change.eligible) <= set(has_everything(partition)) - set(change.isr):
        return Code.INVALID_ARGUMENT
    if node_id not in change.isr:
        if joining and not _is_unclean(state, partition, change):
            return Code.INVALID_ARGUMENT
        return None if _successor(state, partition, change) else Code.INELIGIBLE_REPLICA
    if joining and partition.splitting and not partition.split_to:
        return Code.INELIGIBLE_REPLICA  # only the parent's leader knows which nodes can make the child: see splits.py
    may_join = {n for n in partition.replicas if n not in partition.removing_replicas and is_up(state.nodes.get(n))}
    return Code.INELIGIBLE_REPLICA if joining - may_join else None


def check_caller(state: State, node_id: str) -> None:
    """Raises NOT_REGISTERED unless the node is up."""
    if not is_up(state.nodes.get(node_id)):
        raise MinkaError(Code.NOT_REGISTERED, f"node {node_id} has to register", node=node_id)


def _successor(state: State, partition: Partition, change: IsrChange) -> Selection | None:
    """The next leader if the leader leaves the set because its copy can't be used; None if there is none."""
    live = Live.of(state).without(partition.leader)
    row = Partition()
    row.CopyFrom(partition)
    row.ClearField("eligible")
    if _is_unclean(state, partition, change):
        return offline_partition_leader_selector(row, live.only(change.isr), allow_unclean=True)
    row.isr[:] = change.isr
    return offline_partition_leader_selector(row, live, allow_unclean=False)


def _is_unclean(state: State, partition: Partition, change: IsrChange) -> bool:
    """True if the change is an allowed unclean election: its leader can't lead, and nobody else is in sync."""
    is_allowed = state.keyspaces[partition.keyspace_id].unclean_election
    return is_allowed and not set(change.isr) & set(partition.isr)


def _with_isr(state: State, partition: Partition, change: IsrChange) -> Partition:
    row = PartitionChange(partition).keep_eligible(_eligible(state, partition, change))
    if partition.leader not in change.isr and (selection := _successor(state, partition, change)) is not None:
        return row.elect(selection).row()
    return row.set_isr(change.isr).row()


def _eligible(state: State, partition: Partition, change: IsrChange) -> list[str]:
    """The nodes outside of the new set that stay eligible (KIP-966). There are none if the set takes writes, since
    these are committed without the eligible nodes; nor during a split, since both halves would need the nodes.
    """
    takes_writes = len(change.isr) >= state.keyspaces[partition.keyspace_id].min_insync
    return [] if takes_writes or partition.splitting else list(change.eligible)
