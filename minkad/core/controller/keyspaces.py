"""Keyspaces and the first assignment of their partitions (Fixed Partitions and Key-Range Partitions, Patterns of
Distributed Systems).
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from minka.cluster.hashing import HASH_FUNCTIONS, REDIS_SLOTS
from minka.cluster.key_ranges import ranges_at
from minka.cluster.name_rules import keyspace_problem
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import CreateKeyspaceRequest, CreateKeyspaceResponse
from minka.v1.cluster_pb2 import (
    Durability,
    HashFunction,
    Keyspace,
    Node,
    NodeState,
    Partition,
    Partitioning,
    PartitionState,
)
from minka.v1.records_pb2 import KeyspaceCreated, PartitionsCreated, Record
from minkad.core.controller.decision import OwnCommand, Steps
from minkad.core.controller.partition_change import elect
from minkad.core.controller.rows import ROWS_A_RECORD
from minkad.core.controller.selectors import Live, new_partition_leader_selector
from minkad.core.placement.assign import Placement
from minkad.core.state import State, slices
from minkad.core.state.display_names import PAYLOADS_KEYSPACE

MAX_PARTITIONS: Final = 131_072  # of a keyspace; all are in one Raft entry, of some MiB
MAX_PARTITIONS_IN_CLUSTER: Final = 262_144
MAX_REPLICAS: Final = 9
DEFAULT_REPLICAS: Final = 3  # if the cluster has as many nodes
LEAST_MAX_BYTES: Final = 64 * 1024  # a smaller limit would make too many partitions
LEAST_MAX_OPS: Final = 100  # the same; and a sample of fewer operations hardly shows where to split


def live_nodes(state: State) -> list[Node]:
    """The LIVE nodes, by id."""
    return sorted((n for n in state.nodes.values() if n.state == NodeState.NODE_STATE_LIVE), key=lambda n: n.id)


@dataclass(frozen=True, slots=True)
class CreateKeyspace(OwnCommand):
    """A person wants a new keyspace. `replicas` and `min_insync` 0: a default by the size of the cluster.

    `split_points`: the first keys of its ranges; then `partition_count` and `hash` aren't used. `creation` is made
    before the command has its turn, since this takes long.
    """

    name: str
    partition_count: int
    hash: HashFunction.ValueType
    replicas: int = 0
    min_insync: int = 0
    durability: Durability.ValueType = Durability.DURABILITY_SYNC
    unclean_election: bool = False
    split_points: Sequence[bytes] | None = None
    max_bytes: int = 0  # a partition with more is split, in a keyspace by ranges; 0: no limit
    max_ops: int = 0  # the same for operations a second
    max_replicas_per_node: int = 0  # counted over all keyspaces; 0: no limit
    low_disks: Collection[str] = ()  # nodes that get no replica
    creation: "Creation | None" = None

    @classmethod
    def of(cls, request: CreateKeyspaceRequest) -> "CreateKeyspace":
        """The request, without the facts that only the controller knows."""
        return cls(
            request.name,
            request.partition_count,
            request.hash,
            request.replicas,
            request.min_insync,
            request.durability,
            request.unclean_election,
            list(request.ranges.split_points) if request.HasField("ranges") else None,
            request.ranges.max_bytes,
            request.ranges.max_ops,
        )


def create(state: State, command: CreateKeyspace, now_ms: int) -> Steps[CreateKeyspaceResponse]:
    """Create a keyspace; each of its partitions gets replicas and a leader (onNewTopicCreation)."""
    creation = command.creation
    if creation is None:
        creation = Creation(state, command)
        for _ in creation.prepare():
            yield []
    for record in creation.records(state, now_ms):
        yield [record]
    return CreateKeyspaceResponse(keyspace=state.keyspace_named(command.name))


class Creation:
    """A keyspace of any size that is to be created. `prepare` does most of the work and needs no state; `records`
    checks again, since the state may have changed in between.
    """

    def __init__(self, state: State, command: CreateKeyspace) -> None:
        """Raises the refusal of the request."""
        self._command = command
        self._ranges = None if command.split_points is None else ranges_at(command.split_points)
        self._count = command.partition_count if self._ranges is None else len(self._ranges)
        self._replicas = command.replicas or default_replicas(state)
        self._min_insync = command.min_insync or default_min_insync(self._replicas)
        self._nodes = [node for node in live_nodes(state) if node.id not in command.low_disks]
        self._check(state)
        self._rows: list[Partition] = []

    def _check(self, state: State) -> None:
        _check_arguments(state, self._command, self._count)
        live, low = live_nodes(state), self._command.low_disks
        if len(live) < state.cluster.min_nodes:
            raise MinkaError(
                Code.NOT_ENOUGH_NODES,
                f"no partition is assigned before {state.cluster.min_nodes} nodes are LIVE; {len(live)} are",
                live=str(len(live)),
                needed=str(state.cluster.min_nodes),
            )
        _check_replicas([n for n in live if n.id not in low], low, self._replicas, self._min_insync)
        _check_fits(state, self._command, self._count, self._replicas)

    def prepare(self) -> Iterator[None]:
        """Place the replicas and make the rows, a few at each step."""
        placement = Placement(self._nodes, self._count, self._replicas)
        for slot in range(self._count):
            placement.place(slot)
            if slot % ROWS_A_RECORD == 0:
                yield
        placed = placement.even_out()
        for slot, replicas in enumerate(placed):
            row = _new_partition(slot, replicas)
            if self._ranges is not None:
                row.start_key, row.end_key = self._ranges[slot]
                row.keeps_start = bool(row.start_key)
            self._rows.append(row)
            if slot % ROWS_A_RECORD == 0:
                yield

    def records(self, state: State, now_ms: int) -> Iterator[Record]:
        """The records, for one Raft entry, to be applied one by one. The keyspace is complete after the last one.
        Raises the refusal of the request.
        """
        self._check(state)
        live = Live.of(state)
        keyspace = self._keyspace(state.next_keyspace_id, now_ms)
        first_id, number = state.next_partition_id, 0
        for rows in slices(self._rows, ROWS_A_RECORD):
            for row in rows:
                row.id, row.keyspace_id = first_id + number, keyspace.id
                row.slot = row.id if self._ranges is not None else number
                number += 1
                _elect_first(row, live)
            is_last = number == len(self._rows)
            if number <= ROWS_A_RECORD:
                created = KeyspaceCreated(keyspace=keyspace, partitions=rows, more_partitions=not is_last)
                yield Record(keyspace_created=created)
            else:
                yield Record(partitions_created=PartitionsCreated(partitions=rows, complete=is_last))

    def _keyspace(self, id_: int, now_ms: int) -> Keyspace:
        command = self._command
        keyspace = Keyspace(
            id=id_,
            name=command.name,
            replicas=self._replicas,
            created_ms=now_ms,
            min_insync=self._min_insync,
            durability=command.durability or Durability.DURABILITY_SYNC,
            unclean_election=command.unclean_election,
        )
        if self._ranges is None:
            keyspace.partitioning = Partitioning.PARTITIONING_HASH
            keyspace.partition_count, keyspace.hash = self._count, command.hash
        else:
            keyspace.partitioning = Partitioning.PARTITIONING_RANGES
            keyspace.max_bytes, keyspace.max_ops = command.max_bytes, command.max_ops
        return keyspace


def default_replicas(state: State) -> int:
    """The default number of replicas: 3 in a cluster of at least three nodes, else 1. Nodes that aren't LIVE count.
    Otherwise, if one of three nodes were down for a while, a new keyspace would have one replica forever. In a cluster
    of two, neither node can decide anything alone, so a second replica wouldn't keep a partition online.
    """
    return DEFAULT_REPLICAS if len(state.nodes) >= DEFAULT_REPLICAS else 1


def default_min_insync(replicas: int) -> int:
    """A majority: 2 of 3 replicas, 3 of 5. But 1 of 2: otherwise writes would stop while one replica is down."""
    return replicas // 2 + 1 if replicas > 2 else 1


def _check_arguments(state: State, command: CreateKeyspace, partition_count: int) -> None:
    if command.name != PAYLOADS_KEYSPACE and (problem := keyspace_problem(command.name)):
        raise MinkaError(Code.INVALID_ARGUMENT, f"keyspace name {command.name!r}: {problem}")
    if not 1 <= partition_count <= MAX_PARTITIONS:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{partition_count} partitions: 1 to {MAX_PARTITIONS} are possible")
    check_room(state, partition_count)
    if command.split_points is None and command.hash not in HASH_FUNCTIONS:
        raise MinkaError(Code.INVALID_ARGUMENT, f"hash function {command.hash} is not known")
    if command.hash == HashFunction.HASH_FUNCTION_CRC16 and partition_count > REDIS_SLOTS:
        text = f"{partition_count} partitions with CRC16: Redis has {REDIS_SLOTS} slots, so there can be no more"
        raise MinkaError(Code.INVALID_ARGUMENT, text)
    limits = (("max_bytes", command.max_bytes, LEAST_MAX_BYTES), ("max_ops", command.max_ops, LEAST_MAX_OPS))
    for name, limit, least in limits:
        if limit and (command.split_points is None or limit < least):
            text = f"{name} {limit}: at least {least}, and only for a keyspace by ranges"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
    if state.keyspace_named(command.name) is not None:
        raise MinkaError(Code.KEYSPACE_EXISTS, f"keyspace {command.name} exists already", keyspace=command.name)


def check_room(state: State, partitions: int) -> None:
    """Raises INVALID_ARGUMENT if the cluster can't have this number of additional partitions."""
    if len(state.partitions) + partitions > MAX_PARTITIONS_IN_CLUSTER:
        raise MinkaError(
            Code.INVALID_ARGUMENT,
            f"{partitions} more partitions would be too many: the cluster may have {MAX_PARTITIONS_IN_CLUSTER}",
        )


def _check_replicas(nodes: Sequence[Node], low: Collection[str], replicas: int, min_insync: int) -> None:
    if not 1 <= replicas <= MAX_REPLICAS:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{replicas} replicas: 1 to {MAX_REPLICAS} are possible")
    if not 1 <= min_insync <= replicas:
        raise MinkaError(
            Code.INVALID_ARGUMENT,
            f"min_insync {min_insync}: 1 to {replicas}, the number of replicas, are possible",
        )
    if len(nodes) < replicas:
        but = f" and have room: the disks of {', '.join(sorted(low))} are low" if low else ""
        raise MinkaError(
            Code.NOT_ENOUGH_NODES,
            f"{replicas} replicas need as many nodes; {len(nodes)} are LIVE{but}",
            live=str(len(nodes)),
            needed=str(replicas),
        )


def _check_fits(state: State, command: CreateKeyspace, partitions: int, replicas: int) -> None:
    """Raises TOO_MANY_REPLICAS, with the number of partitions that would fit."""
    limit = command.max_replicas_per_node
    nodes = [node for node in live_nodes(state) if node.id not in command.low_disks]
    free = sum(max(0, limit - len(state.partitions.copies.get(node.id, ()))) for node in nodes)
    if limit and partitions * replicas > free:
        raise MinkaError(
            Code.TOO_MANY_REPLICAS,
            f"{partitions} partitions of {replicas} replicas are too many: with at most {limit} replicas a node, "
            f"{len(nodes)} LIVE nodes have room for {free // replicas} such partitions",
            fits=str(free // replicas),
        )


def _new_partition(slot: int, replicas: Sequence[str]) -> Partition:
    """A row for a new partition (NonExistentPartition → NewPartition)."""
    return Partition(
        slot=slot,
        replicas=replicas,
        partition_epoch=1,
        generation=1,
        state=PartitionState.PARTITION_STATE_NEW,
    )


def _elect_first(row: Partition, live: Live) -> None:
    """Elect the first leader (→ OnlinePartition) at once, since the replicas are on nodes that were LIVE a moment ago.
    A partition whose replicas are all down stays as it is until one is up.
    """
    selection = new_partition_leader_selector(row, live)
    if selection is not None:
        elect(row, selection)
