"""Follows a keyspace for a streaming query: its puts and deletes, in the order of each partition.

An offset of the stream holds one offset for each partition. The task that reads a partition also reads the partitions
that were split off from it afterwards, so that the changes of each key stay in order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from minka.bulk.change_feed import ChangeClient
from minka.errors import Code, MinkaError
from minka.spark.column_layout import Layout
from minka.spark.source_options import SourceOptions
from minka.spark.task_process import spare_the_collector
from minka.v1.cluster_pb2 import Partition

_Offset = dict[str, Any]


class Segment(NamedTuple):
    """The changes of a partition after the offset `after` of its log, up to and including the offset `until`."""

    partition_id: int
    after: int
    until: int


@dataclass(eq=False)
class Lineage(InputPartition):
    """The partitions that one task reads, in this order. Each partition but the first was split off from an earlier one
    in the list.
    """

    segments: tuple[Segment, ...]


class ChangeStreamReader(DataSourceStreamReader):
    """Reads changes. PySpark makes one reader for a query, and one in each task. An offset of the stream is a dict:
    "offsets" has an offset for each partition, and "begins" has an entry for each partition that was split off after
    the stream's previous offset: the offset at which its log begins.
    """

    def __init__(self, options: SourceOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def initialOffset(self) -> _Offset:
        """The offset at which the stream begins, by the option startingOffsets. Raises the errors of ChangeClient."""
        with self._client() as client:
            keyspace = client.keyspace(self._options.keyspace)
            found = client.positions(keyspace).values()
            is_earliest = self._options.starting_offsets == "earliest"
            offsets = {str(one.partition_id): one.base_offset if is_earliest else one.end_offset for one in found}
            return {"offsets": offsets, "begins": {}}

    def latestOffset(self, start: _Offset, limit: Any) -> _Offset:  # `limit` isn't used
        """The ends of the partitions' logs. Raises CHANGES_GONE if changes after `start` are no longer kept."""
        with self._client() as client:
            keyspace = client.keyspace(self._options.keyspace)
            ends = {id_: one.end_offset for id_, one in client.positions(keyspace).items()}
            known = {int(id_): offset for id_, offset in start["offsets"].items()}
            rows = {row.id: row for row in client.partitions(keyspace)}
            if merged := sorted(known.keys() - rows.keys()):
                text = f"partition {merged[0]} was merged into another one; its changes that were not read are gone"
                raise MinkaError(Code.CHANGES_GONE, text)
            begins: dict[int, int] = {}
            for id_ in sorted(rows.keys() - known.keys()):
                self._find_begin(client, rows, id_, known, begins)
            # A leader that has just been elected may know a lower end than the former leader did, or none. The stream's
            # offset must not go back, so the greatest known offset counts.
            offsets = {str(id_): max(ends[id_], known.get(id_, 0), begins.get(id_, 0)) for id_ in rows}
            return {"offsets": offsets, "begins": {str(id_): offset for id_, offset in begins.items()}}

    def _find_begin(
        self,
        client: ChangeClient,
        rows: dict[int, Partition],
        id_: int,
        known: dict[int, int],
        begins: dict[int, int],
    ) -> int:
        """The offset at which the log of a new partition begins. If its parent is new, too, this first finds the offset
        at which the parent's log begins.
        """
        if id_ in known or id_ in begins:
            return known[id_] if id_ in known else begins[id_]
        parent = rows[id_].split_from
        if parent not in rows:
            text = f"partition {id_} is new, but the partition from which it was split off is gone"
            raise MinkaError(Code.CHANGES_GONE, text)
        begins[id_] = client.child_at(parent, self._find_begin(client, rows, parent, known, begins), id_)
        return begins[id_]

    def partitions(self, start: _Offset, end: _Offset) -> Sequence[InputPartition]:
        """The inputs of a batch's tasks."""
        segments: dict[int, Segment] = {}
        for id_, until in end["offsets"].items():
            after = start["offsets"].get(id_, end["begins"].get(id_))
            segments[int(id_)] = Segment(int(id_), after, until)
        families: dict[int, list[Segment]] = {}
        with self._client() as client:
            parents = self._parents(client) if end["begins"] else {}
        for id_ in sorted(segments):  # a child's id is greater than its parent's
            root = id_
            while str(root) in end["begins"]:
                root = parents[root]
            families.setdefault(root, []).append(segments[id_])
        wanted = [[one for one in family if one.after < one.until] for family in families.values()]
        return [Lineage(tuple(family)) for family in wanted if family]

    def _parents(self, client: ChangeClient) -> dict[int, int]:
        keyspace = client.keyspace(self._options.keyspace)
        return {row.id: row.split_from for row in client.partitions(keyspace)}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the changes of a task's input."""
        spare_the_collector()
        assert isinstance(partition, Lineage), partition
        with self._client() as client:
            client.keyspace(self._options.keyspace)
            for one in partition.segments:
                for batch in client.read(one.partition_id, one.after, one.until):
                    if batch.offsets:
                        yield self._layout.batch_of_changes(batch, one.partition_id)

    def _client(self) -> ChangeClient:
        options = self._options
        return ChangeClient(options.endpoints, tls=options.tls, timeout=options.timeout)


class ChangeReader(DataSourceReader):
    """Reads the changes from given offsets up to now, for a query that isn't a stream."""

    def __init__(self, options: SourceOptions, layout: Layout) -> None:
        self._since: _Offset = {"offsets": dict(options.changes_since or {}), "begins": {}}
        self._stream = ChangeStreamReader(options, layout)

    def partitions(self) -> Sequence[InputPartition]:
        """The inputs of the tasks, as `ChangeStreamReader` makes them. Raises CHANGES_GONE."""
        now = self._stream.latestOffset(self._since, None)
        return [*self._stream.partitions(self._since, now)] or [Lineage(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the changes of a task's input."""
        return self._stream.read(partition)
