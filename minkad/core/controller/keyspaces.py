"""Keyspaces and the first assignment of their partitions (Fixed Partitions, Patterns of Distributed Systems)."""

import re
from typing import Final

from minka.errors import Code, MinkaError
from minka.hashing import HASH_FUNCTIONS
from minka.v1.cluster_pb2 import Keyspace, Node, NodeState, Partition, PartitionState
from minka.v1.records_pb2 import KeyspaceCreated, Record
from minkad.core.controller.commands import CreateKeyspace
from minkad.core.state import State

MAX_PARTITIONS: Final = 16384
MAX_PARTITIONS_IN_CLUSTER: Final = 65536
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def live_nodes(state: State) -> list[Node]:
    """The LIVE nodes, by id."""
    return sorted((n for n in state.nodes.values() if n.state == NodeState.NODE_STATE_LIVE), key=lambda n: n.id)


def create(state: State, command: CreateKeyspace, now_ms: int) -> list[Record]:
    """The keyspace exists and each of its partitions is ASSIGNED, round-robin."""
    _check_arguments(state, command)
    nodes = live_nodes(state)
    if len(nodes) < state.cluster.min_nodes:
        raise MinkaError(
            Code.NOT_ENOUGH_NODES,
            f"no partition is assigned before {state.cluster.min_nodes} nodes are LIVE; {len(nodes)} are",
            live=str(len(nodes)),
            needed=str(state.cluster.min_nodes),
        )
    keyspace = Keyspace(
        id=state.next_keyspace_id,
        name=command.name,
        partition_count=command.partition_count,
        hash=command.hash,
        replicas=command.replicas,
        created_ms=now_ms,
    )
    partitions = [
        _assigned(state.next_partition_id + slot, keyspace.id, slot, nodes[slot % len(nodes)].id)
        for slot in range(command.partition_count)
    ]
    return [Record(keyspace_created=KeyspaceCreated(keyspace=keyspace, partitions=partitions))]


def _check_arguments(state: State, command: CreateKeyspace) -> None:
    if not _NAME.fullmatch(command.name):
        raise MinkaError(
            Code.INVALID_ARGUMENT,
            f"keyspace name {command.name!r}: 1 to 63 of a-z, 0-9, _ and -, beginning with a letter",
        )
    if not 1 <= command.partition_count <= MAX_PARTITIONS:
        raise MinkaError(
            Code.INVALID_ARGUMENT, f"{command.partition_count} partitions: 1 to {MAX_PARTITIONS} are possible"
        )
    if len(state.partitions) + command.partition_count > MAX_PARTITIONS_IN_CLUSTER:
        raise MinkaError(
            Code.INVALID_ARGUMENT,
            f"{command.partition_count} partitions more would make it over {MAX_PARTITIONS_IN_CLUSTER} in the cluster",
        )
    if command.hash not in HASH_FUNCTIONS:
        raise MinkaError(Code.INVALID_ARGUMENT, f"hash function {command.hash} is not known")
    if command.replicas != 1:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{command.replicas} replicas: this version keeps 1")
    if state.keyspace_named(command.name) is not None:
        raise MinkaError(Code.KEYSPACE_EXISTS, f"keyspace {command.name} exists already", keyspace=command.name)


def _assigned(partition_id: int, keyspace_id: int, slot: int, node: str) -> Partition:
    return Partition(
        id=partition_id,
        keyspace_id=keyspace_id,
        slot=slot,
        replicas=[node],
        isr=[node],
        leader=node,
        leader_epoch=1,
        partition_epoch=1,
        generation=1,
        state=PartitionState.PARTITION_STATE_ASSIGNED,
    )
