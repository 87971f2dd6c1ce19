"""The invariant of keyspaces by ranges: their partitions cover all keys, with no gap and no overlap."""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from minka.cluster.key_ranges import KeyRange
from minka.v1.cluster_pb2 import Partition


def range_of(row: Partition) -> KeyRange:
    """The keys of the partition."""
    return KeyRange(row.start_key, row.end_key)


def other_half(row: Partition) -> int:
    """While the partition is in a split, the id of the other half; else 0. `split_to` is set in the parent alone."""
    return (row.split_to or row.split_from) if row.splitting else 0


def check_ranges(rows: Iterable[Partition]) -> None:
    """Assert that the rows of a keyspace cover each key once."""
    ranges = sorted(range_of(row) for row in rows)
    assert ranges, "no partition"
    assert ranges[0].start == b"", ranges[0]
    assert ranges[-1].end == b"", ranges[-1]
    for before, after in pairwise(ranges):
        assert before.end == after.start != b"", (before, after)


def check_split(old: Partition, parent: Partition, child: Partition) -> None:
    """Assert that parent and child together have each key of `old` once, so the keyspace still has all keys."""
    assert parent.start_key == old.start_key, (old, parent, child)
    assert parent.end_key == child.start_key, (old, parent, child)
    assert child.end_key == old.end_key, (old, parent, child)
    assert old.start_key < child.start_key, (old, parent, child)
    assert not old.end_key or child.start_key < old.end_key, (old, parent, child)
    assert not old.splitting, (old, parent, child)
    assert parent.splitting, (old, parent, child)
    assert child.splitting, (old, parent, child)
    assert (parent.split_to, child.split_from, child.split_to) == (child.id, parent.id, 0), (old, parent, child)
    assert child.keyspace_id == old.keyspace_id == parent.keyspace_id, (old, parent, child)
    assert parent.generation == child.generation > old.generation, (old, parent, child)
    assert parent.leader_epoch == old.leader_epoch, (old, parent, child)
    assert list(parent.replicas) == list(child.replicas), (old, parent, child)
    check_halves({parent.id: parent, child.id: child}, parent)


def check_halves(partitions: Mapping[int, Partition], row: Partition) -> None:
    """Assert that both halves of a split have equal leaders, leader_epochs and in-sync sets."""
    if not row.splitting:
        return
    other = partitions[other_half(row)]
    assert other.splitting, (row, other)
    assert other_half(other) == row.id, (row, other)
    assert (other.leader, other.leader_epoch) == (row.leader, row.leader_epoch), (row, other)
    assert set(other.isr) == set(row.isr), (row, other)


def check_neighbours(partitions: Mapping[int, Partition], row: Partition) -> None:
    """Assert that a merge is between neighbours, and that both rows name each other."""
    if row.merge_from:
        other = partitions[row.merge_from]
        assert (other.merge_into, other.start_key) == (row.id, row.end_key), (row, other)
        assert row.end_key, (row, other)
    if row.merge_into:
        assert partitions[row.merge_into].merge_from == row.id, row


def check_merge(left: Partition, right: Partition, remaining: Partition, gone: Partition) -> None:
    """Assert that `remaining` has each key of `left` and `right`, so the keyspace still has all keys."""
    rows = (left, right, remaining, gone)
    assert (left.merge_from, right.merge_into) == (right.id, left.id), rows
    assert left.end_key == right.start_key != b"", rows
    assert (remaining.start_key, remaining.end_key) == (left.start_key, right.end_key), rows
    assert left.leader == right.leader == remaining.leader, rows
    assert remaining.leader_epoch > left.leader_epoch, rows
    assert remaining.generation == gone.generation > max(left.generation, right.generation), rows
    assert remaining.merge_from == remaining.merge_into == 0, rows
    assert gone.partition_epoch == right.partition_epoch + 1, rows
    assert gone.merge_into == remaining.id, rows
    assert not gone.replicas, rows
    assert set(gone.removing_replicas) == {*right.replicas, *right.removing_replicas}, rows
