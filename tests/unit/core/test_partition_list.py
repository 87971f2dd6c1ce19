"""The answer to ListPartitions: its filters, its order, and the number of rows in each of its pieces."""

from typing import Any

import pytest

from minka.v1.admin_pb2 import PartitionFilter
from minka.v1.cluster_pb2 import Keyspace, Partition, Partitioning, PartitionState
from minkad.core.partition_list import PartitionList
from minkad.core.state import ROWS_A_PIECE, State

ONLINE, OFFLINE = PartitionState.PARTITION_STATE_ONLINE, PartitionState.PARTITION_STATE_OFFLINE


@pytest.fixture
def state() -> State:
    """Two keyspaces: flights by hash, and authors by ranges, in which partitions with greater ids have smaller keys."""
    found = State()
    ranges = Partitioning.PARTITIONING_RANGES
    found.keyspaces[1] = Keyspace(id=1, name="authors", replicas=2, partitioning=ranges)
    found.keyspaces[2] = Keyspace(id=2, name="flights", replicas=2, partition_count=3, min_insync=2)
    for id_, start in ((1, b"x"), (2, b"m"), (3, b"")):
        found.partitions.put(row(id_, 1, start_key=start))
    for slot in range(3):
        found.partitions.put(row(4 + slot, 2, slot=slot))
    return found


def row(id_: int, keyspace: int, **more: Any) -> Partition:
    fields = {"replicas": "ab", "isr": "ab", "leader": "a", "state": ONLINE, **more}
    return Partition(id=id_, keyspace_id=keyspace, **fields)


def listed(table: State, **wanted: Any) -> list[int]:
    return [one.id for some in PartitionList(table, PartitionFilter(**wanted), 0).pieces() for one in some]


def test_partitions_are_sorted_by_keyspace_and_then_by_key(state: State) -> None:
    assert listed(state) == [4, 5, 6, 3, 2, 1]


def test_filters(state: State) -> None:
    state.partitions.put(row(5, 2, slot=1, replicas="bc", isr="b", leader="b", state=OFFLINE, removing_replicas="d"))
    assert listed(state, keyspace="authors") == [3, 2, 1]
    assert listed(state, keyspace="nothing") == []
    assert listed(state, keyspace="flights", slots=[2, 0]) == [4, 6]
    assert listed(state, node="c") == listed(state, state=OFFLINE) == listed(state, under_replicated=True) == [5]
    assert listed(state, under_min_insync=True) == [5]
    assert listed(state, node="d") == []
    assert listed(state, node="d", with_removing=True) == [5]
    assert listed(state, ids=[6, 9, 2]) == [6, 2]
    assert listed(state, ids=[6, 2], keyspace="authors") == [2]


def test_a_keyspace_that_is_being_created_is_left_out(state: State) -> None:
    state.incomplete.add(2)
    assert listed(state) == [3, 2, 1]


def test_partitions_beyond_the_limit_are_counted(state: State) -> None:
    found = PartitionList(state, PartitionFilter(), 4)
    assert [one.id for some in found.pieces() for one in some] == [4, 5, 6, 3]
    assert [(one.keyspace_id, one.state, one.partitions) for one in found.counts()] == [(1, ONLINE, 3), (2, ONLINE, 3)]


def test_the_first_rows_do_not_wait_for_the_last(state: State) -> None:
    for slot in range(3, 4000):
        state.partitions.put(row(100 + slot, 2, slot=slot))
    pieces = PartitionList(state, PartitionFilter(keyspace="flights"), 0).pieces()
    sizes = [len(next(pieces)) for _ in range(3)]
    assert sizes == [ROWS_A_PIECE, ROWS_A_PIECE, ROWS_A_PIECE]


def test_the_list_shows_the_table_as_it_was_at_the_start(state: State) -> None:
    pieces = PartitionList(state, PartitionFilter(), 0).pieces()
    first = [one.id for one in next(pieces)]
    state.partitions.put(row(3, 1, start_key=b"", leader="b"))
    del state.partitions[2]
    assert [*first, *(one.id for some in pieces for one in some)] == [4, 5, 6, 3, 2, 1]
