"""A loss that a person accepts: a replica that may lack acknowledged writes leads (KIP-460: UNCLEAN elections)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError, with_rows
from minka.v1.cluster_pb2 import Partition, PartitionState
from minkad.core.controller.decision import OwnCommand, Steps
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.rows import partitions_changed
from minkad.core.controller.selectors import Selection
from minkad.core.state import State, is_up, other_half, partition_name

_NOT_LIVE: Final = "it is not LIVE"


@dataclass(frozen=True, slots=True)
class ElectUnclean(OwnCommand):
    """A person accepts the loss if this node leads a partition that nobody else can lead. `partition_epoch`: of the row
    that the person saw. `damaged`: the nodes that have reported their copies of it as damaged.
    """

    partition_id: int
    partition_epoch: int
    node_id: str
    damaged: Collection[str] = ()


def elect_unclean(state: State, command: ElectUnclean, now_ms: int) -> Steps[None]:
    """Let the node lead the partition, alone in the isr, even if its keyspace doesn't allow unclean elections.

    Raises UNKNOWN_PARTITION; STALE_EPOCH if the row has changed since the person saw it; LEADER_EXISTS unless the
    partition is OFFLINE, or its leader's copy is damaged and no other replica is in sync; INELIGIBLE_REPLICA if the
    node isn't up, or has no whole copy by the row, or has reported its copy as damaged.
    """
    partition = state.partitions.get(command.partition_id)
    if partition is None:
        raise MinkaError(Code.UNKNOWN_PARTITION, f"partition {command.partition_id} does not exist")
    name = partition_name(state.keyspaces, partition)
    if partition.state != PartitionState.PARTITION_STATE_OFFLINE and not _serves_nothing(partition, command):
        who = f"{partition.leader} leads it" if partition.leader else "it has never had a leader"
        raise MinkaError(Code.LEADER_EXISTS, f"{name} needs no unclean election: {who}")
    if partition.partition_epoch != command.partition_epoch:
        text = f"{name} is at epoch {partition.partition_epoch}, the request is for {command.partition_epoch}"
        raise with_rows(MinkaError(Code.STALE_EPOCH, text), [partition])
    if (reason := _why_not(state, partition, command)) is not None:
        first = "Start that node, or name one" if reason == _NOT_LIVE else "Name a node"
        remedy = f"{first} with a whole copy that is LIVE."
        raise MinkaError(Code.INELIGIBLE_REPLICA, f"{command.node_id} can't lead {name}: {reason}", remedy=remedy)
    rows = [partition]
    if partition.splitting:
        rows.append(state.partitions[other_half(partition)])
    selection = Selection(command.node_id, (command.node_id,), unclean=True)
    yield partitions_changed(PartitionChange(row).elect(selection).row() for row in rows)


def _serves_nothing(partition: Partition, command: ElectUnclean) -> bool:
    """True if the leader's copy is damaged, and no other replica is in sync that could take over the leadership."""
    return partition.leader in command.damaged and list(partition.isr) == [partition.leader]


def _why_not(state: State, partition: Partition, command: ElectUnclean) -> str | None:
    node_id = command.node_id
    if node_id not in partition.replicas or node_id in partition.removing_replicas:
        return "it has no replica of it"
    if node_id in partition.adding_replicas:
        return "its copy isn't whole yet"
    if node_id in command.damaged:
        return "its copy is damaged"
    return None if is_up(state.nodes.get(node_id)) else _NOT_LIVE
