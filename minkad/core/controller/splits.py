"""Splits of partitions of keyspaces by ranges (Key-Range Partitions, Patterns of Distributed Systems).

One record makes two rows of one: the parent keeps its id and the lower half, the child is new and has the upper half,
on the same nodes and with the same leader. As soon as the leader knows the rows, it serves the halves separately. It
serves the child when it has made the child from the parent's data. Until the whole in-sync set has made the child, both
rows are `splitting`: one node leads both halves, and neither half is moved. When the parent's leader has made the
child, no node can join the in-sync set: from a later copy of the parent, it couldn't make the child.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from minka.cluster.in_sync import has_everything
from minka.cluster.key_ranges import check_split_points, is_by_ranges, readable
from minka.errors import Code, MinkaError, with_rows
from minka.v1.admin_pb2 import Blocker, SplitRequest
from minka.v1.cluster_pb2 import Keyspace, Operation, Partition, PartitionState, SplitOperation
from minka.v1.coordinator_pb2 import (
    FinishSplitRequest,
    FinishSplitResponse,
    ProposeSplitRequest,
    ProposeSplitResponse,
)
from minka.v1.records_pb2 import PartitionSplit, Record
from minkad.core.controller.decision import Steps
from minkad.core.controller.keyspaces import check_room
from minkad.core.controller.operation_kind import Begins, End, OperationKind, Touch, Touched
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.rows import operation_with, partitions_changed
from minkad.core.controller.selectors import Live
from minkad.core.state import State, other_half, partition_name, range_of

MAX_KEYS = 1000  # in one operation
SPLITS_AT_ONCE = 16  # in the cluster
MAX_PARTITIONS_A_NODE = 5000  # replicas; partitions on a node with this many aren't split automatically

_HAS_LEADER = (PartitionState.PARTITION_STATE_ASSIGNED, PartitionState.PARTITION_STATE_ONLINE)


@dataclass(frozen=True, slots=True)
class Split(Begins):
    """A person wants new partitions to begin at these keys of a keyspace by ranges."""

    keyspace: str
    keys: Sequence[bytes]
    requested_by: str
    reason: str
    queue: bool = False

    @classmethod
    def of(cls, request: SplitRequest) -> "Split":
        """The command that a person gives by the request."""
        return cls(request.keyspace, request.keys, request.requested_by, request.reason, request.queue)

    def operation(self, state: State) -> Operation | None:
        """An operation that splits at `new_keys`; None if there are none. Raises what `new_keys` does."""
        keys = new_keys(state, self)
        if not keys:
            return None
        split = SplitOperation(keyspace_id=keyspace_by_ranges(state, self.keyspace).id, keys=keys)
        return Operation(requested_by=self.requested_by, reason=self.reason, split=split)


def new_keys(state: State, command: Split) -> list[bytes]:
    """The command's keys at which no partition begins yet, in order.

    Raises UNKNOWN_KEYSPACE, NOT_BY_RANGES, EMPTY_SPLIT_POINT, DUPLICATE_SPLIT_POINT, TOO_LARGE, INVALID_ARGUMENT.
    """
    keyspace = keyspace_by_ranges(state, command.keyspace)
    if not 1 <= len(command.keys) <= MAX_KEYS:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{len(command.keys)} keys: 1 to {MAX_KEYS} are possible")
    check_split_points(command.keys)
    keys = sorted(key for key in command.keys if state.partitions.at(keyspace.id, key).start_key != key)
    check_room(state, len(keys))
    return keys


def keyspace_by_ranges(state: State, name: str) -> Keyspace:
    """The keyspace of this name. Raises UNKNOWN_KEYSPACE, NOT_BY_RANGES."""
    keyspace = state.keyspace_named(name)
    if keyspace is None:
        raise MinkaError(Code.UNKNOWN_KEYSPACE, f"there is no keyspace {name}", keyspace=name)
    if not is_by_ranges(keyspace):
        raise MinkaError(Code.NOT_BY_RANGES, f"keyspace {keyspace.name} is not partitioned by ranges")
    return keyspace


class Splits(OperationKind):
    """Partitions of a keyspace by ranges are split at keys."""

    shifts_load = False

    def told(self, state: State, operation: Operation) -> str:
        """The command's name, and the keyspace's."""
        return f"split {state.keyspaces[operation.split.keyspace_id].name}"

    def touches(self, state: State, operation: Operation) -> list[Touched]:
        """The ranges of the keyspace."""
        return [(Touch.CUTS, operation.split.keyspace_id)]

    def next_steps(self, state: State, operation: Operation) -> list[Record]:
        """The splits that can be made now. A partition can have only one split at a time. If it is to be split at the
        keys b, d and f, it is first split at d; then its halves can be split at the same time.
        """
        split = operation.split
        if not split.keys or operation.paused or operation.cancelled:
            return []
        records: list[Record] = []
        by_partition: dict[int, list[bytes]] = {}
        for key in split.keys:
            by_partition.setdefault(state.partitions.at(split.keyspace_id, key).id, []).append(key)
        free = _free(state)
        done: list[bytes] = []
        made: list[int] = []
        for partition_id, keys in by_partition.items():
            row = state.partitions[partition_id]
            done += [key for key in keys if key == row.start_key]
            inside = [key for key in keys if key != row.start_key]
            if not inside or len(made) >= free or obstacle(state, row) is not None:
                continue
            key = inside[len(inside) // 2]
            records.append(split_at(row, key, state.next_partition_id + len(made), keeps_start=True))
            done.append(key)
            made.append(state.next_partition_id + len(made))
        return [*records, _with_progress(operation, done, made)] if done else records

    def blockers(self, state: State, operation: Operation) -> list[Blocker]:
        """The reasons why the splits wait."""
        found = []
        for key in operation.split.keys:
            row = state.partitions.at(operation.split.keyspace_id, key)
            if (reason := obstacle(state, row)) is not None:
                name = partition_name(state.keyspaces, row)
                text = f"to be split at {readable(key)}: {reason}"
                remedy = f"minkactl operations cancel {operation.id}"
                found.append(Blocker(partition_id=row.id, partition=name, reason=text, remedy=remedy))
        return found

    def end(self, state: State, operation: Operation, live: Live) -> End | None:
        """The operation ends when all splits are done; if it is cancelled, as soon as the splits that have begun are
        done.
        """
        split = operation.split
        made = (state.partitions.get(id_) for id_ in split.partitions)
        if any(row is not None and row.splitting for row in made):
            return None
        if split.keys and not operation.cancelled:
            return None
        return End(f"{len(split.partitions)} of {len(split.partitions) + len(split.keys)} new partitions made")


def propose(state: State, request: ProposeSplitRequest, now_ms: int) -> Steps[ProposeSplitResponse]:
    """Make the split that a leader asks for, unless it is made already. If the split can't be made at once, it is
    refused, and the leader asks again later. The answer has the rows of both halves; the split may have ended by then.

    Raises UNKNOWN_PARTITION, NOT_LEADER and STALE_GENERATION with the row, INVALID_ARGUMENT, SPLIT_REFUSED.
    """
    row = state.partitions.get(request.partition_id)
    if row is None:
        raise MinkaError(Code.UNKNOWN_PARTITION, f"partition {request.partition_id} does not exist")
    name = partition_name(state.keyspaces, row)
    if row.leader != request.node_id:
        raise with_rows(MinkaError(Code.NOT_LEADER, f"{name} is led by {row.leader or 'nobody'}"), [row])
    if row.end_key == request.key and row.generation == request.generation + 1:
        return ProposeSplitResponse(partitions=_rows(state, row.id, row.split_to))
    if row.generation != request.generation:
        text = f"{name} is at generation {row.generation}, the proposal is for {request.generation}"
        raise with_rows(MinkaError(Code.STALE_GENERATION, text), [row])
    by_ranges = is_by_ranges(state.keyspaces[row.keyspace_id])
    if not by_ranges or request.key == row.start_key or not range_of(row).contains(request.key):
        raise MinkaError(Code.INVALID_ARGUMENT, f"{name} can't be split at {readable(request.key)}")
    found = next(chain(obstacles(state, row), caps(state, row)), None)
    if found is not None:
        raise MinkaError(Code.SPLIT_REFUSED, f"{name} can't be split: {found.reason}")
    check_room(state, 1)
    child_id = state.next_partition_id
    yield [split_at(row, request.key, child_id)]
    return ProposeSplitResponse(partitions=_rows(state, row.id, child_id))


def _rows(state: State, *ids: int) -> list[Partition]:
    """Those of the partitions that exist."""
    return [row for row in map(state.partitions.get, ids) if row is not None]


def _free(state: State) -> int:
    """The number of additional splits that may begin."""
    return max(0, SPLITS_AT_ONCE - len(state.partitions.splitting) // 2)


def split_at(row: Partition, key: bytes, child_id: int, *, keeps_start: bool = False) -> Record:
    """The record that splits a partition, which has no `obstacle`, at a key inside of its range. `keeps_start`: a
    person chose the key.
    """
    child = Partition(
        id=child_id,
        keyspace_id=row.keyspace_id,
        slot=child_id,
        replicas=row.replicas,
        isr=row.isr,
        leader=row.leader,
        leader_epoch=row.leader_epoch,
        partition_epoch=1,
        generation=row.generation + 1,
        state=PartitionState.PARTITION_STATE_ASSIGNED,
        start_key=key,
        end_key=row.end_key,
        split_from=row.id,
        splitting=True,
        keeps_start=keeps_start,
    )
    parent = PartitionChange(row).split_at(key, child_id).row()
    return Record(partition_split=PartitionSplit(parent=parent, child=child))


class Obstacle(NamedTuple):
    """A reason why something can't be done now, and the remedy."""

    reason: str
    remedy: str


def obstacle(state: State, row: Partition, *, ignore_merge: bool = False) -> str | None:
    """The reason of the first of `obstacles`; None if there is none."""
    found = next(obstacles(state, row, ignore_merge=ignore_merge), None)
    return found.reason if found is not None else None


def obstacles(state: State, row: Partition, *, ignore_merge: bool = False) -> Iterator[Obstacle]:
    """The reasons why a partition can't be split or merged now. `ignore_merge`: its merge may be under way."""
    keyspace = state.keyspaces[row.keyspace_id]
    watch = f"minkactl partitions --keyspace {keyspace.name} --watch"
    missing = [node for node in row.replicas if node not in row.isr]
    if row.splitting:
        yield Obstacle("it is being split already", watch)
    if (load := state.loads.taken_in(row.keyspace_id)) is not None:
        yield Obstacle(f"load {load.id} is being taken in", f"minkactl loads show {load.id}")
    if not ignore_merge and (row.merge_from or row.merge_into):
        yield Obstacle("it is being merged", watch)
    if row.state not in _HAS_LEADER:
        yield Obstacle("it has no leader", f"start {' or '.join(has_everything(row) or row.replicas)}")
    if row.target_replicas:
        yield Obstacle("it is being reassigned", "minkactl operations")
    if row.successor:
        yield Obstacle(f"its leadership goes to {row.successor}", "minkactl operations")
    if len(row.isr) < keyspace.min_insync:
        yield Obstacle(f"{len(row.isr)} of {keyspace.min_insync} replicas are in sync", f"start {', '.join(missing)}")


def caps(state: State, row: Partition) -> Iterator[Obstacle]:
    """The limits on splits that a leader proposes; splits that a person asks for don't have these limits."""
    if not _free(state):
        yield Obstacle(f"{SPLITS_AT_ONCE} splits are under way, the most at a time", "minkactl operations")
    for node in row.replicas:
        if len(state.partitions.copies.get(node, ())) >= MAX_PARTITIONS_A_NODE:
            text = f"{node} has {MAX_PARTITIONS_A_NODE:,} partitions, and no more are made automatically"
            yield Obstacle(text, "add a node, and: minkactl reassign")


def finish(state: State, request: FinishSplitRequest, now_ms: int) -> Steps[FinishSplitResponse]:
    """End a split: both halves are partitions like any other. The answer has their rows; the parent may be gone by
    then. Raises UNKNOWN_PARTITION, and STALE_EPOCH with the row.
    """
    child = state.partitions.get(request.partition_id)
    if child is None:
        raise MinkaError(Code.UNKNOWN_PARTITION, f"partition {request.partition_id} does not exist")
    if not child.splitting or child.split_to:
        return FinishSplitResponse(partitions=_rows(state, child.split_from, child.id))
    if (child.leader, child.leader_epoch) != (request.node_id, request.leader_epoch):
        name = partition_name(state.keyspaces, child)
        text = f"{name} is led by {child.leader or 'nobody'} at leader_epoch {child.leader_epoch}"
        raise with_rows(MinkaError(Code.STALE_EPOCH, text), [child])
    if child.partition_epoch != request.partition_epoch:  # its leader may not know the present in-sync set yet
        text = f"partition {child.id} is at epoch {child.partition_epoch}, its leader knows {request.partition_epoch}"
        raise with_rows(MinkaError(Code.STALE_EPOCH, text), [child])
    halves = (state.partitions[other_half(child)], child)
    yield partitions_changed(PartitionChange(row).end_split().row() for row in halves)
    return FinishSplitResponse(partitions=_rows(state, child.split_from, child.id))


def _with_progress(operation: Operation, done: list[bytes], made: list[int]) -> Record:
    def change(row: Operation) -> None:
        row.split.keys[:] = [key for key in row.split.keys if key not in done]
        row.split.partitions.extend(made)

    return Record(operation_changed=operation_with(operation, change))
