"""Keyspaces and the first assignment of their partitions (Fixed Partitions and Key-Range Partitions, Patterns of
Distributed Systems).
"""

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from minka.errors import Code, MinkaError
from minka.hashing import HASH_FUNCTIONS
from minka.ranges import ranges_at
from minka.v1.cluster_pb2 import Durability, Keyspace, Node, NodeState, Partition, Partitioning, PartitionState
from minka.v1.records_pb2 import KeyspaceCreated, Record
from minkad.core.controller.commands import CreateKeyspace
from minkad.core.controller.rows import changed, elect, partitions_changed
from minkad.core.controller.selectors import Live, new_partition_leader_selector
from minkad.core.placement.assign import assign_replicas
from minkad.core.state import State

MAX_PARTITIONS: Final = 16384
MAX_PARTITIONS_IN_CLUSTER: Final = 65536
MAX_REPLICAS: Final = 9
DEFAULT_REPLICAS: Final = 3  # where the cluster has as many nodes
LEAST_MAX_BYTES: Final = 64 * 1024  # a keyspace by ranges is not to fall into dust
LEAST_MAX_OPS: Final = 100  # the same; and with fewer a second there is too little to tell by where to split
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def live_nodes(state: State) -> list[Node]:
    """The LIVE nodes, by id."""
    return sorted((n for n in state.nodes.values() if n.state == NodeState.NODE_STATE_LIVE), key=lambda n: n.id)


def create(state: State, command: CreateKeyspace, now_ms: int) -> list[Record]:
    """The keyspace exists and each of its partitions has replicas and a leader (onNewTopicCreation)."""
    ranges = None if command.split_points is None else ranges_at(command.split_points)
    count = command.partition_count if ranges is None else len(ranges)
    _check_arguments(state, command, count)
    nodes = live_nodes(state)
    replicas = command.replicas or default_replicas(state)
    min_insync = command.min_insync or default_min_insync(replicas)
    if len(nodes) < state.cluster.min_nodes:
        raise MinkaError(
            Code.NOT_ENOUGH_NODES,
            f"no partition is assigned before {state.cluster.min_nodes} nodes are LIVE; {len(nodes)} are",
            live=str(len(nodes)),
            needed=str(state.cluster.min_nodes),
        )
    _check_replicas(len(nodes), replicas, min_insync)
    keyspace = Keyspace(
        id=state.next_keyspace_id,
        name=command.name,
        replicas=replicas,
        created_ms=now_ms,
        min_insync=min_insync,
        durability=command.durability or Durability.DURABILITY_SYNC,
        unclean_election=command.unclean_election,
    )
    if ranges is None:
        keyspace.partitioning = Partitioning.PARTITIONING_HASH
        keyspace.partition_count, keyspace.hash = count, command.hash
    else:
        keyspace.partitioning = Partitioning.PARTITIONING_RANGES
        keyspace.max_bytes, keyspace.max_ops = command.max_bytes, command.max_ops
    partitions = []
    for slot, placed in enumerate(assign_replicas(nodes, count, replicas)):
        partition = _new_partition(state.next_partition_id + slot, keyspace.id, slot, placed)
        if ranges is not None:
            partition.slot = partition.id
            partition.start_key, partition.end_key = ranges[slot]
            partition.keeps_start = bool(partition.start_key)
        partitions.append(partition)
    created = KeyspaceCreated(keyspace=keyspace, partitions=partitions)
    return [Record(keyspace_created=created), *on_new_partition_creation(partitions, Live.of(state))]


def default_replicas(state: State) -> int:
    """3 in a cluster of three nodes or more, LIVE or not: one that is down for a while shall not leave a keyspace with
    one replica for good. Of two nodes neither decides anything without the other, so a second replica would not keep a
    partition online.
    """
    return DEFAULT_REPLICAS if len(state.nodes) >= DEFAULT_REPLICAS else 1


def default_min_insync(replicas: int) -> int:
    """A majority of three replicas and more; 1 of two, which would otherwise take no write without one of them."""
    return replicas // 2 + 1 if replicas > 2 else 1


def on_new_partition_creation(partitions: Iterable[Partition], live: Live) -> list[Record]:
    """New partitions, which are in NewPartition and their replicas in NewReplica, → OnlinePartition, and their
    replicas → OnlineReplica. One whose replicas are all down stays as it is until one is up.
    """
    rows = []
    for partition in partitions:
        selection = new_partition_leader_selector(partition, live)
        if selection is not None:
            rows.append(changed(partition, partial(elect, selection=selection)))
    return partitions_changed(rows)


def _check_arguments(state: State, command: CreateKeyspace, partition_count: int) -> None:
    if not _NAME.fullmatch(command.name):
        raise MinkaError(
            Code.INVALID_ARGUMENT,
            f"keyspace name {command.name!r}: 1 to 63 of a-z, 0-9, _ and -, beginning with a letter",
        )
    if not 1 <= partition_count <= MAX_PARTITIONS:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{partition_count} partitions: 1 to {MAX_PARTITIONS} are possible")
    check_room(state, partition_count)
    if command.split_points is None and command.hash not in HASH_FUNCTIONS:
        raise MinkaError(Code.INVALID_ARGUMENT, f"hash function {command.hash} is not known")
    limits = (("max_bytes", command.max_bytes, LEAST_MAX_BYTES), ("max_ops", command.max_ops, LEAST_MAX_OPS))
    for name, limit, least in limits:
        if limit and (command.split_points is None or limit < least):
            text = f"{name} {limit}: {least} at least, and only of a keyspace by ranges"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
    if state.keyspace_named(command.name) is not None:
        raise MinkaError(Code.KEYSPACE_EXISTS, f"keyspace {command.name} exists already", keyspace=command.name)


def check_room(state: State, partitions: int) -> None:
    """INVALID_ARGUMENT unless the cluster may have so many partitions more."""
    if len(state.partitions) + partitions > MAX_PARTITIONS_IN_CLUSTER:
        raise MinkaError(
            Code.INVALID_ARGUMENT,
            f"{partitions} partitions more would make it over {MAX_PARTITIONS_IN_CLUSTER} in the cluster",
        )


def _check_replicas(live: int, replicas: int, min_insync: int) -> None:
    if not 1 <= replicas <= MAX_REPLICAS:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{replicas} replicas: 1 to {MAX_REPLICAS} are possible")
    if not 1 <= min_insync <= replicas:
        raise MinkaError(
            Code.INVALID_ARGUMENT,
            f"{min_insync} replicas in sync at least: 1 to {replicas}, the replicas, are possible",
        )
    if live < replicas:
        raise MinkaError(
            Code.NOT_ENOUGH_NODES,
            f"{replicas} replicas need as many nodes; {live} are LIVE",
            live=str(live),
            needed=str(replicas),
        )


def _new_partition(partition_id: int, keyspace_id: int, slot: int, replicas: Sequence[str]) -> Partition:
    """NonExistentPartition → NewPartition."""
    return Partition(
        id=partition_id,
        keyspace_id=keyspace_id,
        slot=slot,
        replicas=replicas,
        partition_epoch=1,
        generation=1,
        state=PartitionState.PARTITION_STATE_NEW,
    )
