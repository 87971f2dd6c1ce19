"""The partitions that a person asks for, in their order, some rows at a time."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from minka.cluster.in_sync import is_under_min_insync, missing_in_sync
from minka.cluster.key_ranges import is_by_ranges
from minka.v1.admin_pb2 import MatchingCount, PartitionFilter
from minka.v1.cluster_pb2 import Partition, PartitionState
from minkad.core.state import ROWS_A_PIECE, State, slices

_Test = Callable[[Partition], bool]


class PartitionList:
    """The rows that match, as of its creation: first the partitions of keyspaces by hash in the order of their ids,
    then those by ranges, keyspace by keyspace, in the order of their keys.
    """

    def __init__(self, state: State, wanted: PartitionFilter, limit: int) -> None:
        """At most `limit` rows are listed, the others only counted; 0: no limit."""
        self._by_ranges = {one.id for one in state.keyspaces.values() if is_by_ranges(one)}
        self._candidates = _candidates(state, wanted)
        self._tests = list(_tests(state, wanted))
        self._left = limit or len(state.partitions)
        self._counts: Counter[tuple[int, PartitionState.ValueType]] = Counter()  # by keyspace and state

    def pieces(self) -> Iterator[Sequence[Partition]]:
        """The rows in pieces; a piece takes a millisecond or two, and may be empty."""
        later: defaultdict[int, list[Partition]] = defaultdict(list)
        for some in slices(self._candidates, ROWS_A_PIECE):
            fits = [row for row in some if all(test(row) for test in self._tests)]
            self._counts.update((row.keyspace_id, row.state) for row in fits)
            yield self._within_limit([row for row in fits if row.keyspace_id not in self._by_ranges])
            for row in fits:
                if row.keyspace_id in self._by_ranges:
                    later[row.keyspace_id].append(row)
        for _, rows in sorted(later.items()):
            rows.sort(key=lambda row: row.start_key)
            for ordered in slices(rows, ROWS_A_PIECE):
                yield self._within_limit(ordered)

    def counts(self) -> list[MatchingCount]:
        """The numbers of matching rows, once all pieces were taken."""
        return [
            MatchingCount(keyspace_id=keyspace, state=state, partitions=count)
            for (keyspace, state), count in sorted(self._counts.items())
        ]

    def _within_limit(self, rows: Sequence[Partition]) -> Sequence[Partition]:
        listed = rows[: self._left]
        self._left -= len(listed)
        return listed


def _candidates(state: State, wanted: PartitionFilter) -> Iterator[Partition]:
    rows = state.partitions
    if wanted.ids:
        return rows.decoded(sorted(set(wanted.ids)))
    if wanted.node:
        return rows.decoded(sorted(rows.copies.get(wanted.node, ())))
    if wanted.keyspace and (keyspace := state.keyspace_named(wanted.keyspace)) is not None:
        return rows.decoded(rows.of_keyspace.get(keyspace.id, ()))
    return rows.decoded()


def _tests(state: State, wanted: PartitionFilter) -> Iterator[_Test]:
    """The tests that a matching row passes."""
    if state.incomplete:
        incomplete = frozenset(state.incomplete)
        yield lambda row: row.keyspace_id not in incomplete
    if wanted.keyspace:
        keyspace = state.keyspace_named(wanted.keyspace)
        yield lambda row: keyspace is not None and row.keyspace_id == keyspace.id
    if wanted.slots:
        slots = frozenset(wanted.slots)
        yield lambda row: row.slot in slots
    if wanted.node:
        node = wanted.node
        yield lambda row: node in row.replicas or (wanted.with_removing and node in row.removing_replicas)
    if wanted.state:
        yield lambda row: row.state == wanted.state
    if wanted.under_replicated:
        yield lambda row: missing_in_sync(row) > 0
    if wanted.under_min_insync:
        yield lambda row: is_under_min_insync(row, state.keyspaces[row.keyspace_id])
