"""Merges of neighbours in a keyspace by ranges: the left partition remains, and gets the range of the right partition,
which is removed.

The leader of the left partition copies the right partition's data through its own log, so the data reaches the replicas
as all writes do. For this, one node has to lead both partitions. So first both get a replica on one node (by a
migration, if needed). Then this node gets both leaderships. Then both rows say that they are being merged. In the end
the leader reports that it has copied everything. If the leader is lost before, the next leader begins to copy again.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minka.cluster.key_ranges import check_different, readable
from minka.errors import Code, MinkaError, with_rows
from minka.v1.admin_pb2 import Blocker, MergeRequest
from minka.v1.cluster_pb2 import (
    Keyspace,
    MergeOperation,
    Migration,
    MigrationState,
    Operation,
    Partition,
    PartitionState,
)
from minka.v1.coordinator_pb2 import FinishMergeRequest, FinishMergeResponse
from minka.v1.records_pb2 import PartitionsMerged, Record
from minkad.core.controller.decision import Steps
from minkad.core.controller.operation_kind import Beginning, Begins, End, OperationKind, Touch, Touched, Usage
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.rows import migration_in_state, operation_with, partitions_changed
from minkad.core.controller.selectors import Live
from minkad.core.controller.splits import MAX_KEYS, keyspace_by_ranges, obstacle
from minkad.core.state import MIGRATIONS_ENDED, Placed, State, partition_name, replace

MERGES_AT_ONCE = 4  # in the cluster: each copies a partition


class Pair(NamedTuple):
    """Two neighbours, in the order of their keys."""

    left: Partition
    right: Partition


@dataclass(frozen=True, slots=True)
class Merge(Begins):
    """A person wants each partition that begins at one of these keys to be merged into the partition before it.
    `sizes`: bytes by partition id.
    """

    keyspace: str
    keys: Sequence[bytes]
    requested_by: str
    reason: str
    sizes: Mapping[int, int]
    automatic: bool = False  # the controller merges automatically
    queue: bool = False

    @classmethod
    def of(cls, request: MergeRequest, sizes: Mapping[int, int]) -> "Merge":
        """The command that a person gives by the request."""
        return cls(request.keyspace, request.keys, request.requested_by, request.reason, sizes, queue=request.queue)

    def operation(self, state: State) -> Operation:
        """The operation. Raises what `pairs_at` does, DUPLICATE_SPLIT_POINT, and MERGE_REFUSED if a partition would be
        too large.
        """
        keyspace = keyspace_by_ranges(state, self.keyspace)
        check_different(self.keys)
        pairs = pairs_at(state, keyspace, self.keys)
        _refuse_large(keyspace, pairs, self)
        return Operation(
            requested_by=self.requested_by,
            automatic=self.automatic,
            reason=self.reason,
            merge=MergeOperation(keyspace_id=keyspace.id, keys=[pair.right.start_key for pair in pairs]),
        )


def pairs_at(state: State, keyspace: Keyspace, keys: Sequence[bytes]) -> list[Pair]:
    """The neighbours at these bounds, which are different, in order. Raises NO_BOUND, INVALID_ARGUMENT."""
    if not 1 <= len(keys) <= MAX_KEYS:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{len(keys)} keys: 1 to {MAX_KEYS} are possible")
    found = []
    for key in sorted(keys):
        pair = state.partitions.pair_at(keyspace.id, key)
        if pair is None:
            text = f"no partition of {keyspace.name} begins at {readable(key)}, after another one"
            raise MinkaError(Code.NO_BOUND, text)
        found.append(Pair(*pair))
    return found


def _refuse_large(keyspace: Keyspace, pairs: list[Pair], command: Merge) -> None:
    """Raises MERGE_REFUSED if a merged partition would be split again at once."""
    if not keyspace.max_bytes:
        return
    total, end = 0, b""
    for left, right in pairs:
        if left.start_key != end or not total:
            total = command.sizes.get(left.id, 0)
        total, end = total + command.sizes.get(right.id, 0), right.start_key
        if total > keyspace.max_bytes:
            text = f"the partition that ends at {readable(right.end_key)} would have {total} bytes, and max_bytes is "
            raise MinkaError(Code.MERGE_REFUSED, text + f"{keyspace.max_bytes}: it would be split again")


def _bring_together(pairs: Iterable[Pair]) -> Iterator[Migration]:
    """A migration for each pair without a common node: one replica of the right one goes to the leader of the left
    one.
    """
    first: dict[int, Partition] = {}  # by partition: the one into which it is merged at last
    for left, right in pairs:
        into = first[right.id] = first.get(left.id, left)
        if set(into.replicas) & set(right.replicas):
            continue
        source, target = right.replicas[-1], into.leader or into.replicas[0]
        yield Migration(
            partition_id=right.id,
            source=source,
            target=target,
            state=MigrationState.MIGRATION_STATE_PENDING,
            reason=f"to be merged into partition {into.id}",
            target_replicas=replace(right.replicas, source, target),
        )


# While it runs


class Merges(OperationKind):
    """Neighbours in a keyspace by ranges become one partition."""

    def told(self, state: State, operation: Operation) -> str:
        """The command's name, and the keyspace's."""
        return f"merge {state.keyspaces[operation.merge.keyspace_id].name}"

    def begin(self, state: State, operation: Operation, usage: Usage, now_ms: int) -> Steps[Beginning]:
        """Bring neighbours without a common node together."""
        yield from ()
        return Beginning(list(_bring_together(_pairs(state, operation))))

    def touches(self, state: State, operation: Operation) -> Iterator[Touched]:
        """The ranges of the keyspace, and both partitions of each pair that has to be brought together."""
        yield Touch.CUTS, operation.merge.keyspace_id
        for left, right in _pairs(state, operation):
            things = Placed.partition(left.id), Placed.partition(right.id)
            if state.moving.get(things[1]) == operation.id or not set(left.replicas) & set(right.replicas):
                yield from ((Touch.MOVES, thing) for thing in things)

    def next_steps(self, state: State, operation: Operation) -> list[Record]:
        """Bring the leaderships of each pair together, then begin its merge."""
        if operation.cancelled:
            return []
        rows: dict[int, Partition] = {}
        live, moving = Live.of(state), _to_be_moved(state, operation)
        free = MERGES_AT_ONCE - len(state.partitions.merging)
        for pair in _pairs(state, operation):
            left, right = pair
            is_begun = left.merge_from == right.id
            if {left.id, right.id} & (rows.keys() | moving) or (not is_begun and free <= 0):
                continue
            if _obstacle(state, pair, live) is not None:
                continue
            if left.leader != right.leader:
                rows.update((row.id, row) for row in _under_one_leader(pair, live))
            elif not is_begun and not operation.paused:
                free -= 1
                rows.update((row.id, row) for row in _begin(pair))
        return partitions_changed(rows.values())

    def blockers(self, state: State, operation: Operation) -> list[Blocker]:
        """The reasons why the merges wait."""
        found, moving, live = [], _to_be_moved(state, operation), Live.of(state)
        for pair in _pairs(state, operation):
            if pair.right.id in moving or (reason := _obstacle(state, pair, live)) is None:
                continue
            name = partition_name(state.keyspaces, pair.right)
            text = f"to be merged at {readable(pair.right.start_key)}: {reason}"
            remedy = f"minkactl operations cancel {operation.id}"
            found.append(Blocker(partition_id=pair.right.id, partition=name, reason=text, remedy=remedy))
        return found

    def cancelled(self, state: State, operation: Operation, but: Collection[Placed], now_ms: int) -> list[Record]:
        """Give up the merges that have begun; their leaders remove the copied data."""
        rows = []
        for left, right in _pairs(state, operation):
            if left.merge_from == right.id:
                rows += [PartitionChange(row).give_up_merge().row() for row in (left, right)]
        return partitions_changed(rows)

    def end(self, state: State, operation: Operation, live: Live) -> End | None:
        """The operation ends when all pairs are merged. Pairs without a node in common don't keep it from ending, once
        their migrations have failed.
        """
        merge = operation.merge
        if not operation.cancelled:
            moving = _to_be_moved(state, operation)
            for left, right in _pairs(state, operation):
                if right.id in moving or set(left.replicas) & set(right.replicas):
                    return None
        return End(f"{merge.merged} of {merge.merged + len(merge.keys)} merged", failed=bool(merge.keys))


def _pairs(state: State, operation: Operation) -> Iterator[Pair]:
    for key in operation.merge.keys:
        if (pair := state.partitions.pair_at(operation.merge.keyspace_id, key)) is not None:
            yield Pair(*pair)


def _to_be_moved(state: State, operation: Operation) -> set[int]:
    migrations = state.migrations[operation.id].values()
    return {m.partition_id for m in migrations if m.state not in MIGRATIONS_ENDED}


def _obstacle(state: State, pair: Pair, live: Live) -> str | None:
    """The reason why the two can't be merged now, or their leaderships can't be brought together; None if they can."""
    left, right = pair
    for row in pair:
        name = partition_name(state.keyspaces, row)
        is_begun = left.merge_from == right.id
        if not is_begun and (row.merge_from or row.merge_into):
            return f"{name} is being merged with another one"
        if not is_begun and Placed.partition(row.id) in state.under_way:
            return f"{name}: it is being reassigned"
        if (reason := obstacle(state, row, ignore_merge=is_begun)) is not None:
            return f"{name}: {reason}"
    if left.leader != right.leader and not _under_one_leader(pair, live):
        return f"{left.leader} and {right.leader} lead them, and no node has both in sync"
    return None


def _under_one_leader(pair: Pair, live: Live) -> list[Partition]:
    """The rows, with successors, by which one node is to lead both; empty if no node can."""
    left, right = pair
    common = [node for node in left.isr if node in right.isr]
    leaders = [node for node in (left.leader, right.leader) if node in common]
    leader = live.first([*leaders, *common])
    if leader is None:
        return []
    return [PartitionChange(row).appoint(leader).row() for row in pair if row.leader != leader]


def _begin(pair: Pair) -> list[Partition]:
    left, right = pair
    return [PartitionChange(left).merge_from(right.id).row(), PartitionChange(right).merge_into(left.id).row()]


# The end


def finish(state: State, request: FinishMergeRequest, now_ms: int) -> Steps[FinishMergeResponse]:
    """Record that the left partition has the range of the right one, unless this is recorded already. The answer has
    the row of the partition that remains, and the last row of the other one.

    Raises UNKNOWN_PARTITION, and NOT_LEADER and STALE_EPOCH with the rows. Both rows have to be as the leader knew
    them: then the right partition has taken no writes since the leader closed its write gate.
    """
    left, right = state.partitions.get(request.partition_id), state.partitions.get(request.merged_id)
    if left is None:
        raise MinkaError(Code.UNKNOWN_PARTITION, f"partition {request.partition_id} does not exist")
    if right is None:
        if request.merged_id in state.tombstones or request.merged_id < state.next_partition_id:
            return FinishMergeResponse(partitions=rows_after(state, request))
        raise MinkaError(Code.UNKNOWN_PARTITION, f"partition {request.merged_id} does not exist")
    rows = [left, right]
    if left.leader != request.node_id or right.leader != request.node_id:
        text = f"partitions {left.id} and {right.id} are led by {left.leader or '-'} and {right.leader or '-'}"
        raise with_rows(MinkaError(Code.NOT_LEADER, text), rows)
    epochs = (left.partition_epoch, right.partition_epoch)
    is_known = epochs == (request.partition_epoch, request.merged_epoch)
    if not is_known or (left.merge_from, right.merge_into) != (right.id, left.id):
        text = f"partitions {left.id} and {right.id} are at epochs {epochs[0]} and {epochs[1]}"
        raise with_rows(MinkaError(Code.STALE_EPOCH, text), rows)
    yield [_merged(left, right), *_progress(state, right), *_no_moves(state, right, left.id, now_ms)]
    return FinishMergeResponse(partitions=rows_after(state, request))


def _merged(left: Partition, right: Partition) -> Record:
    generation = max(left.generation, right.generation) + 1
    remaining = PartitionChange(left).grow_to(right.end_key, generation).row()
    gone = PartitionChange(right).become_part(generation).row()
    return Record(partitions_merged=PartitionsMerged(remaining=remaining, gone=gone))


def _progress(state: State, right: Partition) -> list[Record]:
    def change(row: Operation) -> None:
        row.merge.keys.remove(right.start_key)
        row.merge.merged += 1

    return [
        Record(operation_changed=operation_with(operation, change))
        for operation in state.running_operations()
        if not operation.cancelled
        and operation.merge.keyspace_id == right.keyspace_id
        and right.start_key in operation.merge.keys
    ]


def _no_moves(state: State, right: Partition, into: int, now_ms: int) -> list[Record]:
    """Cancel the migrations of the right partition that have not begun."""
    reason = f"it was merged into partition {into}"
    cancelled = MigrationState.MIGRATION_STATE_CANCELLED
    return [
        migration_in_state(migration, cancelled, now_ms, reason)
        for operation in state.unended_operations()
        for migration in state.migrations[operation.id].values()
        if migration.partition_id == right.id and migration.state == MigrationState.MIGRATION_STATE_PENDING
    ]


def rows_after(state: State, request: FinishMergeRequest) -> list[Partition]:
    """The row of the remaining partition, and the last row of the one that is gone."""
    gone = state.tombstones.get(request.merged_id) or Partition(
        id=request.merged_id,
        partition_epoch=request.merged_epoch + 1,
        generation=state.partitions[request.partition_id].generation,
        merge_into=request.partition_id,
        removing_replicas=[request.node_id],
        state=PartitionState.PARTITION_STATE_OFFLINE,
    )
    return [state.partitions[request.partition_id], gone]
