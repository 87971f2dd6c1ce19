"""Checks that a keyspace has exactly the rows of a source, on every replica, and narrows differences down to keys.

Spark computes a digest (`minka.bulk`) of the source's rows for each partition, and the nodes compute the same digest of
a snapshot of each replica. If the two differ, the keys are divided into buckets by their hashes, and the digests of the
buckets show which buckets differ. Only the keys in these buckets are compared.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from minka.bulk.row_digest import Digest
from minka.bulk.snapshot_reads import SnapshotClient
from minka.client import Client
from minka.cluster.key_ranges import KeyRange, readable
from minka.contexts import given_or_resolved
from minka.errors import MinkaError
from minka.spark.arrow_lists import binary_columns
from minka.spark.digesting import digest_columns, digest_of_row
from minka.spark.held_snapshots import HeldSnapshots
from minka.spark.pairs import PairColumns, column_of, pairs_of, problem_of
from minka.spark.partitioning import place_column
from minka.spark.progress import Job, OnProgress, running
from minka.spark.replicas import BUCKETS, Replicas, hashes_of, keys_between, read_replicas
from minka.spark.report import Report, timestamp
from minka.spark.task_process import spare_the_collector
from minka.spark.writer import write_batches
from minka.tls import Tls
from minka.v1.cluster_pb2 import Keyspace, Partition
from minka.v1.snapshots_pb2 import PartitionSnapshot

_AT_ONCE: Final = 4  # the number of partitions whose digests are computed at the same time
# Partitions are read in groups of this size. Partitions that differ are compared once there are this many of them;
# until then their snapshots stay open. So the snapshots of at most twice as many partitions are open.
_GROUP: Final = 64
_LISTED: Final = 1000
_COMPARED: Final = "key binary, kind string"
Kind = Literal["missing", "different", "extra"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key that the keyspace lacks ("missing"), that has another value in the keyspace ("different"), or that the
    source lacks ("extra").
    """

    key: str  # text, or 0x and hex
    kind: str
    partition: int  # its id


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDifference:
    """A replica that differs from its partition's leader at the same version, or that is too damaged to be read.
    Neither should ever happen.
    """

    partition: int
    node: str
    keys: tuple[str, ...]  # the first thousand
    error: str = ""  # why the replica or its keys couldn't be read


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadReplica:
    """A replica that was not read, since its node is away or the replica isn't in sync."""

    partition: int
    node: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport(Report):
    """The result of `verify`. `rows` and `bytes` count the source."""

    job: ClassVar[str] = "verify"

    keyspace_rows: int
    partitions: int
    partitions_different: tuple[int, ...] = ()  # ids
    missing: int = 0  # keys that only the source has
    different: int = 0
    extra: int = 0  # keys that only the keyspace has
    differences: tuple[Difference, ...] = ()  # the first thousand
    replicas: int = 0  # the number that was read
    replicas_different: tuple[ReplicaDifference, ...] = ()
    replicas_unread: tuple[UnreadReplica, ...] = ()
    repaired: int = 0  # the number of rows that were written

    is_same: bool  # every replica was read, and no key differs, except keys that the repair has written


def verify(
    spark: SparkSession,
    source: DataFrame,
    keyspace: str,
    columns: PairColumns,
    *,
    endpoints: Sequence[str] | None = None,
    context: str | None = None,
    last_by: str = "",
    repair: bool = False,
    tls: Tls | None = None,
    timeout: float = 60.0,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Compare a keyspace with the data frame from which it was loaded. `last_by` must be the same as for the load. Rows
    that can't be in a keyspace are left out. With `repair`, rows that are missing or different are put; keys that the
    source doesn't have stay. If a repair breaks off, run it again. Writes by clients during the comparison show up as
    differences. `timeout` is the most seconds that a partition may be without a leader that answers.

    Raises MinkaError: INVALID_ARGUMENT, UNKNOWN_KEYSPACE, SPARK_FAILED, and UNREACHABLE or PARTITION_OFFLINE if a
    partition is longer than `timeout` without a leader that answers.
    """
    endpoints, tls = given_or_resolved(endpoints, tls, context)
    with (
        SnapshotClient(endpoints, tls=tls, timeout=timeout) as client,
        HeldSnapshots(endpoints, tls=tls) as held,
        running("verify", spark, ["read source", "compare"], on_progress) as job,
    ):
        found = client.keyspace(keyspace)
        run = _Run(client, held, tuple(endpoints), tls, timeout, found, client.partitions(found), repair)
        return run.all(job, source, columns, last_by)


@dataclass(slots=True)
class _Findings:
    """Collects the results for the partitions that have been compared."""

    rows: int = 0  # the number of rows in the keyspace
    replicas: int = 0
    places: list[int] = field(default_factory=list)  # the places of partitions that differ from the source
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # the number of differing keys, by kind
    listed: list[tuple[bytes, str, int]] = field(default_factory=list)  # key, kind, partition
    broken: list[ReplicaDifference] = field(default_factory=list)
    unread: list[UnreadReplica] = field(default_factory=list)


class _Run:
    """One run of a verification."""

    def __init__(
        self,
        client: SnapshotClient,
        held: HeldSnapshots,
        endpoints: tuple[str, ...],
        tls: Tls | None,
        timeout: float,
        keyspace: Keyspace,
        partitions: list[Partition],
        repair: bool,
    ) -> None:
        self._client = client
        self._held = held
        self._endpoints = endpoints
        self._tls = tls
        self._timeout = timeout
        self._keyspace = keyspace
        self._partitions = partitions
        self._repair = repair
        self._in_source: dict[int, Digest] = {}  # by place
        self._found = _Findings()

    def all(self, job: Job, source: DataFrame, columns: PairColumns, last_by: str) -> VerifyReport:
        """Run all stages of the verification; returns the report."""
        placed = self._placed(source, columns, last_by)
        with job.stage("read source") as stage:
            for row in placed.groupBy("place").agg(*digest_columns(*_pair())).collect():
                self._in_source[row.place] = digest_of_row(row)
            total = sum(self._in_source.values(), Digest())
            stage.rows, stage.bytes = total.rows, total.bytes
        with job.stage("compare", rows_total=total.rows) as stage, ThreadPoolExecutor(_AT_ONCE) as pool:
            kept: dict[int, list[Replicas]] = {}
            for start in range(0, len(self._partitions), _GROUP):
                places = range(len(self._partitions))[start : start + _GROUP]
                for place, replicas in zip(places, pool.map(self._read, places), strict=True):
                    self._count(replicas)
                    stage.rows = self._found.rows
                    if self._differs(place, replicas):
                        kept[place] = replicas
                if len(kept) >= _GROUP:
                    self._compare(placed, kept)
                    kept = {}
            self._compare(placed, kept)
        return self._report(job, total)

    def _report(self, job: Job, total: Digest) -> VerifyReport:
        found, counts = self._found, self._found.counts
        repaired = counts["missing"] + counts["different"] if self._repair else 0
        is_all_written = counts["missing"] + counts["different"] == repaired and not counts["extra"]
        return VerifyReport(
            keyspace=self._keyspace.name,
            started=timestamp(job.started),
            seconds=round(job.seconds, 3),
            rows=total.rows,
            bytes=total.bytes,
            stages=job.reports,
            keyspace_rows=found.rows,
            partitions=len(self._partitions),
            partitions_different=tuple(self._partitions[place].id for place in found.places),
            missing=counts["missing"],
            different=counts["different"],
            extra=counts["extra"],
            differences=tuple(
                Difference(key=readable(key), kind=kind, partition=partition)
                for key, kind, partition in sorted(found.listed)[:_LISTED]
            ),
            replicas=found.replicas,
            replicas_different=tuple(found.broken),
            replicas_unread=tuple(found.unread),
            repaired=repaired,
            is_same=is_all_written and not found.broken and not found.unread,
        )

    def _placed(self, source: DataFrame, columns: PairColumns, last_by: str) -> DataFrame:
        by = [column_of(source, last_by).alias("_by")] if last_by else []
        pairs = pairs_of(source, columns, *by)
        good = pairs.where(problem_of(pairs).isNull())
        if by:
            newest = Window.partitionBy("key").orderBy(F.col("_by").desc(), F.col("value"))
            good = good.withColumn("_rank", F.row_number().over(newest)).where("_rank = 1")
        place = place_column(F.col("key"), self._keyspace, self._partitions)
        return good.select(place.alias("place"), "key", "value")

    def _read(self, place: int) -> list[Replicas]:
        """Read the replicas of a partition, or of the partitions into which it was split meanwhile. If they differ from
        the source or from each other, their snapshots stay open, since their keys must be compared.
        """
        row = self._partitions[place]
        range_ = KeyRange(row.start_key, row.end_key)
        with SnapshotClient(self._endpoints, tls=self._tls, timeout=self._timeout) as client:
            client.keyspace(self._keyspace.name)
            found: list[Replicas] = []
            for snapshot in client.open(self._keyspace, row.id, range_):
                self._held.hold(snapshot)
                found.append(read_replicas(client, client.partitions(self._keyspace), snapshot, range_))
            if not self._differs(place, found):
                self._release(client, found)
        return found

    def _release(self, client: SnapshotClient, replicas: list[Replicas]) -> None:
        for one in replicas:
            self._held.release(client, one.snapshot)

    def _differs(self, place: int, replicas: list[Replicas]) -> bool:
        return self._differs_from_source(place, replicas) or any(one.different for one in replicas)

    def _differs_from_source(self, place: int, replicas: list[Replicas]) -> bool:
        return sum((one.first for one in replicas), Digest()) != self._in_source.get(place, Digest())

    def _count(self, replicas: list[Replicas]) -> None:
        found = self._found
        for one in replicas:
            partition = one.snapshot.partition_id
            found.rows += one.first.rows
            found.replicas += len(one.digests)
            for node, error in one.damaged.items():
                found.broken.append(ReplicaDifference(partition=partition, node=node, keys=(), error=error))
            for node, error in one.unread.items():
                found.unread.append(UnreadReplica(partition=partition, node=node, error=error))

    def _compare(self, placed: DataFrame, kept: dict[int, list[Replicas]]) -> None:
        """Find the keys that differ in the partitions of `kept`, and release their snapshots."""
        places = [place for place, replicas in kept.items() if self._differs_from_source(place, replicas)]
        if places:
            self._found.places += places
            self._compare_with_source(placed, places, kept)
        for replicas in kept.values():
            self._found.broken += [different for one in replicas for different in self._broken(one)]
            self._release(self._client, replicas)

    def _compare_with_source(self, placed: DataFrame, places: list[int], replicas: dict[int, list[Replicas]]) -> None:
        """Count the keys that differ in these partitions, by kind, and list the first of them."""
        buckets = self._different_buckets(placed, places, replicas)
        # Each partition needs a task, even if the source has no row for it. So each partition gets a row without a key.
        session = placed.sparkSession
        markers = session.createDataFrame([(place,) for place in places], "place int")
        wanted = F.col("place").isin(places) & _in_buckets(buckets)
        rows = placed.where(wanted).unionByName(markers, allowMissingColumns=True)
        task = _Compare(
            self._endpoints,
            self._tls,
            self._timeout,
            self._keyspace.name,
            {place: tuple(one.snapshot.SerializeToString() for one in replicas[place]) for place in places},
            {place: tuple(sorted(buckets[place])) for place in places},
            {place: KeyRange(self._partitions[place].start_key, self._partitions[place].end_key) for place in places},
            self._repair,
        )
        number = F.array_position(F.lit(places), F.col("place")).cast("int") - 1
        sorted_ = rows.repartitionById(len(places), number).sortWithinPartitions("key")
        found = sorted_.mapInArrow(task.run, f"place int, {_COMPARED}").persist()
        try:
            for row in found.groupBy("kind").count().collect():
                self._found.counts[row.kind] += row["count"]
            for row in found.orderBy("key").limit(_LISTED).collect():
                self._found.listed.append((bytes(row.key), row.kind, self._partitions[row.place].id))
        finally:
            found.unpersist()

    def _different_buckets(
        self, placed: DataFrame, places: list[int], replicas: dict[int, list[Replicas]]
    ) -> dict[int, set[int]]:
        in_source: dict[tuple[int, int], Digest] = {}
        of_places = placed.where(F.col("place").isin(places)).withColumn("bucket", _bucket())
        for row in of_places.groupBy("place", "bucket").agg(*digest_columns(*_pair())).collect():
            in_source[row.place, row.bucket] = digest_of_row(row)
        different: dict[int, set[int]] = {}
        for place in places:
            there: dict[int, Digest] = {}
            for snapshot in (one.snapshot for one in replicas[place]):
                range_ = KeyRange(snapshot.start_key, snapshot.end_key)
                for one in self._client.digest(snapshot, snapshot.nodes[0], range_, BUCKETS).buckets:
                    there[one.bucket] = there.get(one.bucket, Digest()) + Digest(one.rows, one.bytes, one.xor, one.sum)
            different[place] = {
                bucket
                for bucket in range(BUCKETS)
                if there.get(bucket, Digest()) != in_source.get((place, bucket), Digest())
            }
        return different

    def _broken(self, replicas: Replicas) -> Iterator[ReplicaDifference]:
        snapshot = replicas.snapshot
        for node in replicas.different:
            keys, error = list[str](), ""
            try:
                keys = keys_between(self._client, snapshot, node)
            except MinkaError as caught:
                error = str(caught)
            yield ReplicaDifference(partition=snapshot.partition_id, node=node, keys=tuple(keys[:_LISTED]), error=error)


@dataclass(frozen=True, slots=True)
class _Compare:
    """The work of a task: it compares a partition's rows, in the order of their keys, with the partition's snapshot."""

    endpoints: tuple[str, ...]
    tls: Tls | None
    timeout: float
    keyspace: str
    snapshots: dict[int, tuple[bytes, ...]]
    buckets: dict[int, tuple[int, ...]]
    ranges: dict[int, KeyRange]
    repair: bool

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the keys that differ. With `repair`, first put the rows of these keys."""
        spare_the_collector()
        first = next(batches, None)
        if first is None:
            return
        place = first.column(0)[0].as_py()
        with SnapshotClient(self.endpoints, tls=self.tls, timeout=self.timeout) as client:
            client.keyspace(self.keyspace)
            there = self._there(client, place)
            found: list[tuple[bytes, Kind]] = []
            repairs: dict[bytes, bytes] = {}
            ahead = next(there, None)
            for batch in _chained(first, batches):
                for key, value in zip(*binary_columns(batch, 1, 2), strict=True):
                    if key is None:
                        continue  # this partition's row without a key
                    while ahead is not None and ahead[0] < key:
                        found.append((ahead[0], "extra"))
                        ahead = next(there, None)
                    if ahead is not None and ahead[0] == key:
                        if ahead[1] != Digest.of([(key, value)]).xor:
                            found.append((key, "different"))
                            repairs[key] = value
                        ahead = next(there, None)
                    else:
                        found.append((key, "missing"))
                        repairs[key] = value
                if self.repair:
                    self._write(repairs)
                repairs = {}
                yield _differences(place, found)
                found = []
            found += [(key, "extra") for key, _ in _rest(ahead, there)]
        yield _differences(place, found)

    def _there(self, client: SnapshotClient, place: int) -> Iterator[tuple[bytes, int]]:
        for data in self.snapshots[place]:
            snapshot = PartitionSnapshot.FromString(data)
            yield from hashes_of(client, snapshot, self.ranges[place], self.buckets[place])

    def _write(self, repairs: dict[bytes, bytes]) -> None:
        with Client(self.endpoints, keyspace=self.keyspace, timeout=self.timeout, tls=self.tls) as client:
            write_batches(client, [dict(repairs)] if repairs else [], self.timeout)


def _pair() -> tuple[Column, Column]:
    return F.col("key"), F.col("value")


def _bucket() -> Column:
    """The expression for a key's bucket, which nodes compute in the same way for digests."""
    # For Spark the hash is a signed number, for nodes an unsigned one; the last bits of both are the same.
    return F.xxhash64("key").bitwiseAND(F.lit(BUCKETS - 1)).cast("int")


def _in_buckets(buckets: dict[int, set[int]]) -> Column:
    found = F.lit(False)
    for place, some in buckets.items():
        if len(some) == BUCKETS:
            found = found | (F.col("place") == place)
        elif some:
            found = found | ((F.col("place") == place) & _bucket().isin(sorted(some)))
    return found


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _rest(ahead: Any, there: Iterator[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    if ahead is not None:
        yield ahead
        yield from there


def _differences(place: int, found: list[tuple[bytes, Kind]]) -> pa.RecordBatch:
    columns = [
        pa.array([place] * len(found), pa.int32()),
        pa.array([key for key, _ in found], pa.binary()),
        pa.array([kind for _, kind in found], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, ["place", "key", "kind"])
