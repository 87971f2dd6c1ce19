"""Checks that a keyspace has exactly the rows of a source, on every replica, and narrows differences down to keys.

The same digest (minka.digest) is computed in Spark over the source's rows of each partition, and at the nodes over a
snapshot of each replica. If they differ, digests of buckets of keys, by the keys' hashes, show which buckets differ,
and the keys in these are compared.
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

from minka.client import Client
from minka.digest import Digest
from minka.errors import Code, MinkaError
from minka.ranges import ALL_KEYS, KeyRange, readable
from minka.snapshots import SnapshotClient
from minka.spark.batches import binary_columns
from minka.spark.digest import digest_columns, digest_of_row
from minka.spark.pairs import PairColumns, pairs_of, problem_of
from minka.spark.partitioning import place_column
from minka.spark.progress import Job, OnProgress, running
from minka.spark.report import Report, timestamp
from minka.spark.task_process import spare_the_collector
from minka.spark.writer import write_batches
from minka.tls import Tls
from minka.v1.cluster_pb2 import Keyspace, Partition
from minka.v1.snapshots_pb2 import PartitionSnapshot, SnapshotDigest

BUCKETS: Final = 1024
_AT_ONCE: Final = 4  # partitions whose digests are asked for at the same time
_LISTED: Final = 1000
_COMPARED: Final = "key binary, kind string"
Kind = Literal["missing", "different", "extra"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key that the keyspace lacks ("missing"), has with another value ("different"), or has but the source hasn't
    ("extra").
    """

    key: str
    kind: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDifference:
    """A replica that differs from its partition's leader at the same version: something is broken."""

    partition: int
    node: str
    keys: tuple[str, ...]  # the first thousand


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport(Report):
    """What `verify` found. `rows` and `bytes` are the source's."""

    job: ClassVar[str] = "verify"

    keyspace_rows: int
    partitions: int
    partitions_different: tuple[int, ...] = ()
    missing: int = 0
    different: int = 0
    extra: int = 0
    differences: tuple[Difference, ...] = ()  # the first thousand
    replicas: int = 0  # how many were read
    replicas_different: tuple[ReplicaDifference, ...] = ()
    repaired: int = 0  # how many rows were written

    is_same: bool  # nothing differs, or all that did was written


def verify(
    spark: SparkSession,
    source: DataFrame,
    endpoints: Sequence[str],
    keyspace: str,
    columns: PairColumns,
    *,
    last_by: str = "",
    repair: bool = False,
    tls: Tls | None = None,
    timeout: float = 60.0,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Compare a keyspace with the data frame from which it was loaded; `last_by` is as for the load. Rows that can't be
    in a keyspace are left out. With `repair`, rows that are missing or different are put; keys that the source doesn't
    have stay. A repair that broke off goes on when it is run again. What clients write meanwhile shows up as a
    difference. `timeout` is how many seconds a partition may be without a leader that answers.

    Raises MinkaError: INVALID_ARGUMENT, UNKNOWN_KEYSPACE, SPARK_FAILED, and what `SnapshotClient` raises.
    """
    with (
        SnapshotClient(endpoints, tls=tls, timeout=timeout) as client,
        running("verify", spark, ["read source", "read keyspace", "compare"], on_progress) as job,
    ):
        found = client.keyspace(keyspace)
        run = _Run(client, tuple(endpoints), tls, timeout, found, client.partitions(found), repair)
        return run.all(job, source, columns, last_by)


@dataclass(slots=True)
class _Replicas:
    """The snapshots of one partition (several if it was split), and the digest of each of its replicas."""

    snapshots: list[PartitionSnapshot]
    digests: dict[str, Digest] = field(default_factory=dict)


class _Run:
    """One run of a verification."""

    def __init__(
        self,
        client: SnapshotClient,
        endpoints: tuple[str, ...],
        tls: Tls | None,
        timeout: float,
        keyspace: Keyspace,
        partitions: list[Partition],
        repair: bool,
    ) -> None:
        self._client = client
        self._endpoints = endpoints
        self._tls = tls
        self._timeout = timeout
        self._keyspace = keyspace
        self._partitions = partitions
        self._repair = repair

    def all(self, job: Job, source: DataFrame, columns: PairColumns, last_by: str) -> VerifyReport:
        """Run every stage; returns the report."""
        placed = self._placed(source, columns, last_by)
        with job.stage("read source") as stage:
            by_place = {
                row.place: digest_of_row(row)
                for row in placed.groupBy("place").agg(*digest_columns(*_pair())).collect()
            }
            total = sum(by_place.values(), Digest())
            stage.rows, stage.bytes = total.rows, total.bytes
        with job.stage("read keyspace", rows_total=total.rows) as stage, ThreadPoolExecutor(_AT_ONCE) as pool:
            replicas: list[_Replicas] = []
            for found in pool.map(self._read_replicas, self._partitions):
                replicas.append(found)
                stage.rows = sum(_leaders(one).rows for one in replicas)
        try:
            with job.stage("compare"):
                places = [p for p, one in enumerate(replicas) if _leaders(one) != by_place.get(p, Digest())]
                counts, listed = self._compare(placed, places, replicas)
                broken = [one for place, each in enumerate(replicas) for one in self._broken(place, each)]
        finally:
            for one in replicas:
                for snapshot in one.snapshots:
                    self._client.release(snapshot)
        repaired = counts["missing"] + counts["different"] if self._repair else 0
        return VerifyReport(
            keyspace=self._keyspace.name,
            started=timestamp(job.started),
            seconds=round(job.seconds, 3),
            rows=total.rows,
            bytes=total.bytes,
            stages=job.reports,
            keyspace_rows=sum(_leaders(one).rows for one in replicas),
            partitions=len(self._partitions),
            partitions_different=tuple(self._partitions[place].id for place in places),
            missing=counts["missing"],
            different=counts["different"],
            extra=counts["extra"],
            differences=tuple(listed),
            replicas=sum(len(one.digests) for one in replicas),
            replicas_different=tuple(broken),
            repaired=repaired,
            is_same=counts["missing"] + counts["different"] == repaired and not counts["extra"] and not broken,
        )

    def _placed(self, source: DataFrame, columns: PairColumns, last_by: str) -> DataFrame:
        by = [F.col(last_by).alias("_by")] if last_by else []
        pairs = pairs_of(source, columns, *by)
        good = pairs.where(problem_of(pairs).isNull())
        if by:
            newest = Window.partitionBy("key").orderBy(F.col("_by").desc(), F.col("value"))
            good = good.withColumn("_rank", F.row_number().over(newest)).where("_rank = 1")
        place = place_column(F.col("key"), self._keyspace, self._partitions)
        return good.select(place.alias("place"), "key", "value")

    def _read_replicas(self, row: Partition) -> _Replicas:
        """The digest of each replica, all at the same offset. A replica whose node is away is not read."""
        range_ = KeyRange(row.start_key, row.end_key)
        with SnapshotClient(self._endpoints, tls=self._tls, timeout=self._timeout) as client:
            client.keyspace(self._keyspace.name)
            found = _Replicas(list(client.open(self._keyspace, row.id, range_)))
            for snapshot in found.snapshots:
                for node in snapshot.nodes:
                    try:
                        digest = _sum(client.digest(snapshot, node, range_))
                    except MinkaError:
                        if node == snapshot.nodes[0]:
                            raise
                        continue
                    found.digests[node] = found.digests.get(node, Digest()) + digest
        return found

    def _compare(
        self, placed: DataFrame, places: list[int], replicas: list[_Replicas]
    ) -> tuple[dict[str, int], list[Difference]]:
        """How many keys differ in these partitions, by kind, and the first of them."""
        counts: dict[str, int] = defaultdict(int)
        if not places:
            return counts, []
        buckets = self._different_buckets(placed, places, replicas)
        # A partition needs a task even if the source has no row for it, so each gets a row without a key.
        session = placed.sparkSession
        markers = session.createDataFrame([(place,) for place in places], "place int")
        wanted = F.col("place").isin(places) & _in_buckets(buckets)
        rows = placed.where(wanted).unionByName(markers, allowMissingColumns=True)
        task = _Compare(
            self._endpoints,
            self._tls,
            self._timeout,
            self._keyspace.name,
            {place: tuple(one.SerializeToString() for one in replicas[place].snapshots) for place in places},
            {place: tuple(sorted(buckets[place])) for place in places},
            {place: KeyRange(self._partitions[place].start_key, self._partitions[place].end_key) for place in places},
            self._repair,
        )
        sorted_ = rows.repartitionById(len(self._partitions), "place").sortWithinPartitions("key")
        found = sorted_.mapInArrow(task.run, f"place int, {_COMPARED}").persist()
        try:
            for row in found.groupBy("kind").count().collect():
                counts[row.kind] = row["count"]
            listed = [
                Difference(key=readable(bytes(row.key)), kind=row.kind, partition=self._partitions[row.place].id)
                for row in found.orderBy("key").limit(_LISTED).collect()
            ]
        finally:
            found.unpersist()
        return counts, listed

    def _different_buckets(
        self, placed: DataFrame, places: list[int], replicas: list[_Replicas]
    ) -> dict[int, set[int]]:
        in_source: dict[tuple[int, int], Digest] = {}
        of_places = placed.where(F.col("place").isin(places)).withColumn("bucket", _bucket())
        for row in of_places.groupBy("place", "bucket").agg(*digest_columns(*_pair())).collect():
            in_source[row.place, row.bucket] = digest_of_row(row)
        different: dict[int, set[int]] = {}
        for place in places:
            there: dict[int, Digest] = {}
            for snapshot in replicas[place].snapshots:
                range_ = KeyRange(snapshot.start_key, snapshot.end_key)
                for one in self._client.digest(snapshot, snapshot.nodes[0], range_, BUCKETS).buckets:
                    there[one.bucket] = there.get(one.bucket, Digest()) + Digest(one.rows, one.bytes, one.xor, one.sum)
            different[place] = {
                bucket
                for bucket in range(BUCKETS)
                if there.get(bucket, Digest()) != in_source.get((place, bucket), Digest())
            }
        return different

    def _broken(self, place: int, replicas: _Replicas) -> Iterator[ReplicaDifference]:
        leader = _leaders(replicas)
        for node, digest in replicas.digests.items():
            if digest != leader:
                keys = [key for snapshot in replicas.snapshots for key in self._keys_between(snapshot, node)]
                row = self._partitions[place]
                yield ReplicaDifference(partition=row.id, node=node, keys=tuple(keys[:_LISTED]))

    def _keys_between(self, snapshot: PartitionSnapshot, node: str) -> list[str]:
        """The keys that differ between the leader's replica and another node's."""
        both = [
            {one.bucket: one for one in self._client.digest(snapshot, each, ALL_KEYS, BUCKETS).buckets}
            for each in (snapshot.nodes[0], node)
        ]
        buckets = [bucket for bucket in range(BUCKETS) if both[0].get(bucket) != both[1].get(bucket)]
        hashes = [
            dict(_hashes(self._client, _only(snapshot, each), ALL_KEYS, buckets)) for each in (snapshot.nodes[0], node)
        ]
        return [readable(key) for key in sorted({key for key, _ in hashes[0].items() ^ hashes[1].items()})]


@dataclass(frozen=True, slots=True)
class _Compare:
    """What a task compares: the rows of a partition, in the order of their keys, with its snapshot."""

    endpoints: tuple[str, ...]
    tls: Tls | None
    timeout: float
    keyspace: str
    snapshots: dict[int, tuple[bytes, ...]]
    buckets: dict[int, tuple[int, ...]]
    ranges: dict[int, KeyRange]
    repair: bool

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The keys that differ. For a repair, their rows are written before they are given back."""
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
                        continue  # the row without a key, by which each partition has a task
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
            yield from _hashes(client, snapshot, self.ranges[place], self.buckets[place])

    def _write(self, repairs: dict[bytes, bytes]) -> None:
        with Client(self.endpoints, keyspace=self.keyspace, timeout=self.timeout, tls=self.tls) as client:
            write_batches(client, [dict(repairs)] if repairs else [], self.timeout)


def _pair() -> tuple[Column, Column]:
    return F.col("key"), F.col("value")


def _bucket() -> Column:
    """The bucket of a key, by its hash, as the nodes compute it for digests."""
    # To Spark the hash is a signed number, whose last bits are the same.
    return F.xxhash64("key").bitwiseAND(F.lit(BUCKETS - 1)).cast("int")


def _in_buckets(buckets: dict[int, set[int]]) -> Column:
    found = F.lit(False)
    for place, some in buckets.items():
        if len(some) == BUCKETS:
            found = found | (F.col("place") == place)
        elif some:
            found = found | ((F.col("place") == place) & _bucket().isin(sorted(some)))
    return found


def _sum(digest: SnapshotDigest) -> Digest:
    return sum((Digest(one.rows, one.bytes, one.xor, one.sum) for one in digest.buckets), Digest())


def _leaders(replicas: _Replicas) -> Digest:
    """The digest of the whole partition, as the leaders of the snapshots have it. Raises STALE_GENERATION if they are
    different nodes.
    """
    leaders = {snapshot.nodes[0] for snapshot in replicas.snapshots}
    if len(leaders) == 1:
        return replicas.digests[leaders.pop()]
    text = "a partition was split meanwhile, and its parts have different leaders"
    raise MinkaError(Code.STALE_GENERATION, text)


def _only(snapshot: PartitionSnapshot, node: str) -> PartitionSnapshot:
    """The snapshot, so that it is read from this node and no other."""
    one = PartitionSnapshot()
    one.CopyFrom(snapshot)
    del one.nodes[:]
    one.nodes.append(node)
    return one


def _hashes(
    client: SnapshotClient, snapshot: PartitionSnapshot, wanted: KeyRange, buckets: Sequence[int]
) -> Iterator[tuple[bytes, int]]:
    """The keys in the buckets, in order, each with the hash of its pair."""
    if not buckets:
        return
    within = KeyRange(snapshot.start_key, snapshot.end_key).clip(wanted)
    for batch in client.read(snapshot, within, buckets=buckets, of_buckets=BUCKETS):
        buffers = [None, pa.py_buffer(batch.key_offsets), pa.py_buffer(batch.keys)]
        keys = pa.Array.from_buffers(pa.binary(), batch.rows, buffers).to_pylist()
        for row, key in enumerate(keys):
            yield key, int.from_bytes(batch.values[8 * row : 8 * row + 8], "big")


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
