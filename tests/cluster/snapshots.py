"""Helpers that read all rows of a snapshot."""

from array import array
from collections.abc import Iterator

from minka.bulk.snapshot_reads import SnapshotClient
from minka.cluster.key_ranges import ALL_KEYS, KeyRange
from minka.v1.snapshots_pb2 import PartitionSnapshot, RowBatch


def pairs(batch: RowBatch) -> Iterator[tuple[bytes, bytes]]:
    ends = array("i", batch.key_offsets), array("i", batch.value_offsets)
    for row in range(batch.rows):
        key, value = (
            column[ends_[row] : ends_[row + 1]] for column, ends_ in zip((batch.keys, batch.values), ends, strict=True)
        )
        yield key, value


def read_all(reader: SnapshotClient, snapshot: PartitionSnapshot, wanted: KeyRange = ALL_KEYS) -> dict[bytes, bytes]:
    return {key: value for batch in reader.read(snapshot, wanted) for key, value in pairs(batch)}
