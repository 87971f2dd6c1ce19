"""Leaderships go back to the first assigned replicas (Kafka Controller Internals: onPreferredReplicaElection)."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import Blocker
from minka.v1.cluster_pb2 import ElectLeadersOperation, Operation, Partition
from minka.v1.records_pb2 import Record
from minkad.core.controller.operation_kind import Begins, Due, End, OperationKind, Touch, Touched
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.rows import partitions_changed
from minkad.core.controller.selectors import Live, preferred_leader, preferred_replica_partition_leader_selector
from minkad.core.state import Placed, State, partition_name


@dataclass(frozen=True, slots=True)
class ElectLeaders(Begins):
    """A person wants the preferred leaders of these partitions to lead."""

    partitions: Sequence[int]
    requested_by: str
    reason: str
    queue: bool = False

    def operation(self, state: State) -> Operation | None:
        """An operation on the partitions whose preferred leader can lead but doesn't; None if there are none."""
        partitions = due(state, self.partitions)
        if not partitions:
            return None
        election = ElectLeadersOperation(partitions=partitions)
        return Operation(requested_by=self.requested_by, reason=self.reason, elect_leaders=election)


def due(state: State, partitions: Collection[int]) -> list[int]:
    """The ids of the partitions whose preferred leader can lead but doesn't."""
    live = Live.of(state)
    return [p.id for p in _named(state, partitions) if preferred_successor(p, live)]


class Elections(OperationKind):
    """Affected partitions → OnlinePartition, by the preferred replica selector."""

    def touches(self, state: State, operation: Operation) -> list[Touched]:
        """The leaderships of its partitions, except those that were merged into others since."""
        return [(Touch.LEADS, partition.id) for partition in _affected(state, operation)]

    def leaderships(self, state: State, operation: Operation, live: Live) -> Iterator[Due | None]:
        """The partitions that have yet to get their preferred leader."""
        for id_ in () if operation.cancelled else operation.elect_leaders.partitions:
            row = state.partitions.get(id_)
            successor = None if row is None else preferred_successor(row, live)
            yield None if row is None or successor is None else (row, successor)

    def cancelled(self, state: State, operation: Operation, but: Collection[Placed], now_ms: int) -> list[Record]:
        """The present leaders stay."""
        waiting = (p for p in _affected(state, operation) if p.successor and Placed.partition(p.id) not in but)
        return partitions_changed(PartitionChange(p).keep_leader().row() for p in waiting)

    def end(self, state: State, operation: Operation, live: Live) -> End | None:
        """The operation ends when no leadership is left to move."""
        if any(self.leaderships(state, operation, live)):
            return None
        partitions = _affected(state, operation)
        done = sum(p.leader == preferred_leader(p) for p in partitions)
        return End(f"{done} of {len(partitions)} preferred leaders lead")


def _affected(state: State, operation: Operation) -> list[Partition]:
    return [state.partitions[p] for p in operation.elect_leaders.partitions if p in state.partitions]


def preferred_successor(partition: Partition, live: Live) -> str | None:
    """The preferred leader, if it can lead but doesn't. A partition that is being reassigned is left alone."""
    if not partition.leader or partition.target_replicas:
        return None
    selection = preferred_replica_partition_leader_selector(partition, live)
    return selection.leader if selection is not None and selection.leader != partition.leader else None


def chosen(state: State, keyspaces: Collection[str], partitions: Collection[int]) -> list[int]:
    """The ids that a request names. Raises UNKNOWN_KEYSPACE, UNKNOWN_PARTITION."""
    for name in keyspaces:
        if state.keyspace_named(name) is None:
            raise MinkaError(Code.UNKNOWN_KEYSPACE, f"there is no keyspace {name}", keyspace=name)
    rows = _named(state, partitions) if partitions else state.partitions.values()
    return [p.id for p in rows if not keyspaces or state.keyspaces[p.keyspace_id].name in keyspaces]


def skipped(state: State, partitions: Collection[int]) -> list[Blocker]:
    """The partitions that aren't led by their preferred leader, and the reasons why it can't lead."""
    live = Live.of(state)
    found = []
    for partition in _named(state, partitions):
        preferred = preferred_leader(partition)
        if partition.leader == preferred or preferred_successor(partition, live):
            continue
        blocker = Blocker(partition_id=partition.id, partition=partition_name(state.keyspaces, partition))
        blocker.reason = _why_not(partition, preferred, live)
        if preferred not in live.up:
            blocker.remedy = f"start {preferred}"
        found.append(blocker)
    return found


def _why_not(partition: Partition, preferred: str, live: Live) -> str:
    if partition.target_replicas:
        return "it is being reassigned"
    if not partition.leader:
        return "it is OFFLINE"
    if preferred not in live.up:
        return f"{preferred}, its preferred leader, is not LIVE"
    if preferred in live.draining:
        return f"{preferred}, its preferred leader, is being drained"
    return f"{preferred}, its preferred leader, is not in sync"


def _named(state: State, partitions: Iterable[int]) -> list[Partition]:
    rows = []
    for partition_id in partitions:
        row = state.partitions.get(partition_id)
        if row is None:
            raise MinkaError(Code.UNKNOWN_PARTITION, f"partition {partition_id} does not exist")
        rows.append(row)
    return rows
