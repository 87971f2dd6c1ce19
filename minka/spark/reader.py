"""Reads a keyspace for a query. One task reads a partition, or several tasks if it is large. Each partition is read as
it was at one offset of its log.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from minka.admin.control import Control
from minka.bulk.snapshot_reads import SnapshotClient
from minka.client import Client
from minka.cluster.key_ranges import KeyRange
from minka.cluster.routing_table import RoutingTable
from minka.spark.column_layout import Layout
from minka.spark.predicates import WantedKeys, wanted_keys
from minka.spark.source_options import SourceOptions
from minka.spark.task_process import spare_the_collector
from minka.v1.cluster_pb2 import Keyspace, Partition
from minka.v1.snapshots_pb2 import PartitionSnapshot

_KEYS_A_TASK: Final = 100_000
_KEYS_AT_ONCE: Final = 1000


@dataclass(eq=False)
class PartitionPart(InputPartition):
    """Keys of a partition, in a range. The task reads `snapshot`, or a new snapshot if `snapshot` is b""."""

    partition_id: int
    wanted: KeyRange
    snapshot: bytes = b""


@dataclass
class SingleKeys(InputPartition):
    """Keys of one partition. The task gets them one by one, without a scan."""

    keys: tuple[bytes, ...]


class NoRows(InputPartition):
    """The only input if there is nothing to read, since PySpark makes at least one task."""


class SnapshotReader(DataSourceReader):
    """Reads a whole keyspace. PySpark makes one reader where it plans the query, and one in each task."""

    def __init__(self, options: SourceOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._wanted = WantedKeys()

    def partitions(self) -> Sequence[InputPartition]:
        """The inputs of the tasks. Raises UNKNOWN_KEYSPACE, and the errors of Control and SnapshotClient."""
        found = [] if self._wanted.is_nothing else self._single_keys() if self._wanted.keys else self._parts()
        return found or [NoRows(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task's input, in the order of their keys."""
        spare_the_collector()
        match partition:
            case PartitionPart():
                return self._read_part(partition)
            case SingleKeys():
                return self._read_keys(partition.keys)
            case _:
                return iter(())

    def _parts(self) -> list[InputPartition]:
        options = self._options
        with SnapshotClient(options.endpoints, tls=options.tls, timeout=options.timeout) as client:
            keyspace = client.keyspace(options.keyspace)
            sizes = self._sizes()
            found: list[InputPartition] = []
            for row in client.partitions(keyspace):
                range_ = KeyRange(row.start_key, row.end_key)
                if not range_.overlaps(self._wanted.range):
                    continue
                wanted = range_.clip(self._wanted.range)
                if options.split_bytes and sizes.get(row.id, 0) > 2 * options.split_bytes:
                    found += self._cut(client, keyspace, row, wanted)
                else:
                    found.append(PartitionPart(row.id, wanted))
            return found

    def _sizes(self) -> dict[int, int]:
        """An estimate of the bytes of each partition, by the partition's id, as its leader last reported it."""
        with Control(self._options.endpoints, self._options.timeout, tls=self._options.tls) as control:
            return {stats.partition_id: stats.bytes for stats in control.status().replicas}

    def _cut(
        self, client: SnapshotClient, keyspace: Keyspace, row: Partition, wanted: KeyRange
    ) -> Iterator[PartitionPart]:
        for snapshot in client.open(keyspace, row.id, wanted, self._options.split_bytes):
            within = KeyRange(snapshot.start_key, snapshot.end_key).clip(wanted)
            cuts = [cut for cut in snapshot.cuts if within.start < cut and within.contains(cut)]
            for start, end in pairwise((within.start, *cuts, within.end)):
                yield PartitionPart(row.id, KeyRange(start, end), snapshot.SerializeToString())

    def _single_keys(self) -> list[InputPartition]:
        """The inputs for tasks that get single keys. Each has keys of one partition, so that its task asks one node."""
        options, table = self._options, RoutingTable()
        with Control(options.endpoints, options.timeout, tls=options.tls) as control:
            table.replace(control.table())
        buckets = table.keyspace(options.keyspace).key_buckets(self._wanted.keys or ())
        return [
            SingleKeys(tuple(keys[start : start + _KEYS_A_TASK]))
            for _, keys in buckets
            for start in range(0, len(keys), _KEYS_A_TASK)
        ]

    def _read_part(self, part: PartitionPart) -> Iterator[pa.RecordBatch]:
        options = self._options
        with SnapshotClient(options.endpoints, tls=options.tls, timeout=options.timeout) as client:
            keyspace = client.keyspace(options.keyspace)
            if part.snapshot:
                yield from self._read_snapshot(client, PartitionSnapshot.FromString(part.snapshot), part.wanted)
                return
            for snapshot in client.open(keyspace, part.partition_id, part.wanted):
                try:
                    yield from self._read_snapshot(client, snapshot, part.wanted)
                finally:
                    client.release(snapshot)

    def _read_snapshot(
        self, client: SnapshotClient, snapshot: PartitionSnapshot, wanted: KeyRange
    ) -> Iterator[pa.RecordBatch]:
        within = KeyRange(snapshot.start_key, snapshot.end_key)
        if not within.overlaps(wanted):
            return
        for rows in client.read(snapshot, within.clip(wanted), keys_only=not self._layout.value_fields):
            yield self._layout.batch_of(rows)

    def _read_keys(self, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        options = self._options
        with Client(options.endpoints, keyspace=options.keyspace, timeout=options.timeout, tls=options.tls) as client:
            for start in range(0, len(keys), _KEYS_AT_ONCE):
                found = client.get_many(keys[start : start + _KEYS_AT_ONCE])
                if found:
                    yield self._layout.batch_of_pairs(sorted(found.items()))


class FilteringReader(SnapshotReader):
    """Reads only keys that the query's filters allow. Spark then applies all filters to the rows."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters, and give all of them back to Spark: see `DataSourceReader.pushFilters`."""
        self._wanted = wanted_keys(filters, self._layout.key_fields, self._layout.key_format)
        return filters
