"""Changes of partitions when a node goes or comes, and when a new controller begins (Kafka Controller Internals:
onBrokerFailure, onBrokerStartup, onControllerFailover).
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain

from minka.cluster.in_sync import eligible_replicas
from minka.v1.cluster_pb2 import Durability, Partition, PartitionState
from minka.v1.records_pb2 import Record
from minkad.core.controller.decision import OwnCommand, Steps, one_by_one
from minkad.core.controller.partition_change import PartitionChange, election
from minkad.core.controller.rows import in_pieces
from minkad.core.controller.selectors import (
    Live,
    Selection,
    new_partition_leader_selector,
    offline_partition_leader_selector,
)
from minkad.core.state import State


def on_node_failure(state: State, node_ids: Collection[str]) -> Iterator[Record]:
    """1. Partitions that have lost their leader → OfflinePartition. 2. They → OnlinePartition, by the offline selector.
    3. Each replica on the nodes → OfflineReplica. All three steps make one new row for each partition.

    The isr stays as it is, since each of its members has everything. Its leader takes absent nodes out of the isr when
    this helps (`isr.alter_isr`). A leader that has failed can't do so, even if nobody has noticed the failure yet, so
    the other members stay electable. If an eligible replica has to lead, all eligible replicas join the isr again.
    """
    live, partitions = Live.of(state).without(*node_ids), state.partitions
    concerned = dict.fromkeys(id_ for node in node_ids for id_ in partitions.led.get(node, ())) | partitions.yielding
    return in_pieces(row for id_ in concerned for row in _without_nodes(state, partitions[id_], node_ids, live))


def _without_nodes(state: State, partition: Partition, node_ids: Collection[str], live: Live) -> list[Partition]:
    if partition.leader in node_ids:
        return election(partition, offline_selection(state, partition, live))
    if partition.successor in node_ids:
        return [PartitionChange(partition).keep_leader().row()]
    return []


def on_process_end(state: State, node_id: str) -> Iterator[Record]:
    """Another process replaces a node's process, perhaps before anybody has noticed the end of the old one. Other
    replicas in sync lead its partitions; if there are none, nobody leads until the new process has registered. In an
    `async` keyspace, the old process may have lost writes that were only in memory. So there the replica leaves the isr
    until it has caught up; and since the partition_epoch grows, requests that rely on the old process are refused.
    """
    live, led = Live.of(state), state.partitions.led.get(node_id, {})
    others = (id_ for id_ in list(_volatile_on(state, node_id)) if id_ not in led)
    rows = (state.partitions[id_] for id_ in chain(list(led), others))
    return in_pieces(row for p in rows for row in _restarted(state, p, node_id, live))


def _volatile_on(state: State, node_id: str) -> Iterator[int]:
    """The partitions of `async` keyspaces of which the node has a copy."""
    copies = state.partitions.copies.get(node_id, {})
    for keyspace in state.keyspaces.values():
        if keyspace.durability == Durability.DURABILITY_ASYNC:
            yield from (id_ for id_ in state.partitions.of_keyspace.get(keyspace.id, ()) if id_ in copies)


def on_node_startup(state: State, node_id: str) -> Iterator[Record]:
    """2. Replicas on the node → OnlineReplica: the node is sent their rows, since its own row changes. 3. Partitions in
    OfflinePartition and NewPartition → OnlinePartition. Reassignments go on from the rows (4.).
    """
    before = Live.of(state)
    live = Live(before.up | {node_id}, before.draining - {node_id})
    copies = state.partitions.copies.get(node_id, {})
    leaderless = [id_ for id_ in state.partitions.leaderless if id_ in copies]
    return in_pieces(row for id_ in leaderless for row in _brought_online(state, state.partitions[id_], live))


def _restarted(state: State, partition: Partition, node_id: str, live: Live) -> list[Partition]:
    volatile = state.keyspaces[partition.keyspace_id].durability == Durability.DURABILITY_ASYNC
    if partition.leader == node_id:
        others = offline_partition_leader_selector(partition, live.without(node_id), allow_unclean=False)
        if others is not None:
            isr = tuple(node for node in others.isr if node != node_id or not volatile)
            others = Selection(others.leader, isr)
        return election(partition, others)
    if volatile and node_id in (partition.replicas if partition.leader else eligible_replicas(partition)):
        return [PartitionChange(partition).leave_isr(node_id).row()]
    return []


@dataclass(frozen=True, slots=True)
class ControllerFailover(OwnCommand):
    """A new active controller goes on with the work of its predecessor."""


def on_controller_failover(state: State, command: ControllerFailover, now_ms: int) -> Steps[None]:
    """Each OfflinePartition and NewPartition → OnlinePartition, if a replica can lead; so does each partition whose
    leader isn't up, if the last controller didn't get to it. Reassignments, preferred elections and drains go on from
    the rows.
    """
    live = Live.of(state)
    down = [node for node in state.partitions.led if node not in live.up]
    led = (p for node in down for p in state.led_by(node))
    left = (row for p in led for row in election(p, offline_selection(state, p, live)))
    leaderless = (state.partitions[id_] for id_ in list(state.partitions.leaderless))
    yield from one_by_one(in_pieces(chain(left, (row for p in leaderless for row in _brought_online(state, p, live)))))


def _brought_online(state: State, partition: Partition, live: Live) -> list[Partition]:
    selection = offline_selection(state, partition, live)
    return [] if selection is None else election(partition, selection)


def offline_selection(state: State, partition: Partition, live: Live) -> Selection | None:
    """The new leader of a partition that has none, or whose leader is not in `live`; None if no replica can lead."""
    if partition.state == PartitionState.PARTITION_STATE_NEW:
        return new_partition_leader_selector(partition, live)
    allow_unclean = state.keyspaces[partition.keyspace_id].unclean_election
    return offline_partition_leader_selector(partition, live, allow_unclean=allow_unclean)
