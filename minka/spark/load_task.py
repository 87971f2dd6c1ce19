"""The tasks of a load. Each task gets all rows of one partition, in the order of their keys. In the mode "ingest" it
writes the rows to a file, and uploads the file to the spools of the partition's nodes. In the mode "put" it puts the
rows into the keyspace in batches.
"""

import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from minka.bulk.bulk_loads import LoadClient, LoadTarget
from minka.bulk.snapshot_reads import SnapshotClient
from minka.bulk.sst_files import SstWriter
from minka.client import Client
from minka.cluster.key_ranges import readable
from minka.errors import Code, MinkaError
from minka.spark.arrow_lists import binary_columns
from minka.spark.task_process import spare_the_collector
from minka.spark.writer import write_batches
from minka.tls import Tls
from minka.v1.cluster_pb2 import Keyspace
from minka.v1.loads_pb2 import Load, LoadState

OnConflict = Literal["error", "replace", "keep"]
TASK_SCHEMA: Final = "place int, file binary, rows long, bytes long, repeated long, kept long"
_SHOWN: Final = 80
_PUT_BYTES: Final = 2 * 1024 * 1024
_Batch = tuple[list[bytes], list[bytes]]


@dataclass(frozen=True, slots=True)
class LoadTask:
    """The work of a task, which is the same for all partitions, and can be pickled. Its rows are (place, key, value),
    sorted by key. If several rows have the same key, the first one counts; with `refuses_repeated` such rows are
    refused.
    """

    endpoints: tuple[str, ...]
    tls: Tls | None
    timeout: float
    keyspace: bytes
    load: bytes
    targets: tuple[LoadTarget, ...]  # target number i is for the rows of place i
    on_conflict: OnConflict
    refuses_repeated: bool

    def ingest(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows to a file and upload it. Yields a row that names the file for the commit."""
        spare_the_collector()
        load = Load.FromString(self.load)
        self._check_goes_on(load)
        rows = _Rows(self, batches)
        place = rows.place
        if place is None:
            return
        target = self.targets[place]
        # The name is random. Spark's number of the attempt would not be unique: a new driver begins at 0 again.
        name = f"p{target.partition_id}-{uuid.uuid4().hex[:12]}"
        with tempfile.TemporaryDirectory(prefix="minka-load-", dir=_scratch()) as folder, self._client() as client:
            try:
                writer = SstWriter(Path(folder) / "part.sst")
                for keys, values in rows:
                    writer.put_many(keys, values)
                written = writer.finish()
                file = b""
                if written is not None:
                    uploaded = client.upload(load, target, written, name)
                    file = uploaded.SerializeToString()
            except MinkaError as error:
                self._give_up(client, load, error)
                raise
        yield rows.result(file)

    def put(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Put the rows. If the keyspace already has a row's key with the same value, the row counts as put: an earlier
        attempt may have put it.
        """
        spare_the_collector()
        rows = _Rows(self, batches, compares=True)
        if rows.place is None:
            return
        name = Keyspace.FromString(self.keyspace).name
        with Client(self.endpoints, keyspace=name, timeout=self.timeout, tls=self.tls) as client:
            write_batches(client, (dict(zip(*both, strict=True)) for both in _smaller(rows)), self.timeout)
        yield rows.result(b"")

    def _check_goes_on(self, load: Load) -> None:
        """If Spark repeats this task, check that the load has not been aborted. Raises LOAD_ENDED."""
        context = TaskContext.get()
        if context is None or not context.attemptNumber():
            return
        with self._client() as client:
            (now,) = client.describe(load.id).loads
        if now.state == LoadState.LOAD_STATE_ABORTED:
            raise MinkaError(Code.LOAD_ENDED, f"load {load.id} is over: {now.outcome}")

    def _give_up(self, client: LoadClient, load: Load, error: MinkaError) -> None:
        """Abort the load at once for an error that would come again, so that Spark doesn't repeat the task."""
        if error.code in (Code.DUPLICATE_KEY, Code.KEY_EXISTS, Code.DISK_FULL):
            client.abort(load.id, requested_by="the load itself", reason=str(error)[:500])

    def _client(self) -> LoadClient:
        return LoadClient(self.endpoints, tls=self.tls, timeout=self.timeout)


class _Rows:
    """The rows that a task has to write, in batches. Rows are left out if their key came before or is in the keyspace;
    all rows are counted. If `compares` is true, a row counts as written if the keyspace already has its key with the
    same value.
    """

    def __init__(self, task: LoadTask, batches: Iterator[pa.RecordBatch], *, compares: bool = False) -> None:
        self._task = task
        self._compares = compares
        self._first = next(batches, None)
        self._batches = batches
        self._last: bytes | None = None
        self.place: int | None = None if self._first is None else self._first.column(0)[0].as_py()
        self._rows = self._bytes = self._repeated = self._kept = 0

    def __iter__(self) -> Iterator[_Batch]:
        existing = None
        if self._task.on_conflict != "replace":
            assert self.place is not None
            existing = _Existing(self._task, self._task.targets[self.place], with_values=self._compares)
        batch = self._first
        while batch is not None:
            self._check_place(batch)
            keys, values = binary_columns(batch, 1, 2)
            keys, values = self._without_repeated(keys, values)
            if existing is not None and keys:
                keys, values = self._without_existing(existing, keys, values)
            if keys:
                self._count(keys, values)
                yield keys, values
            batch = next(self._batches, None)

    def _count(self, keys: list[bytes], values: list[bytes]) -> None:
        self._rows += len(keys)
        self._bytes += sum(map(len, keys)) + sum(map(len, values))

    def _check_place(self, batch: pa.RecordBatch) -> None:
        """Check that all rows belong to this task's partition: clients would look for any other row in another
        partition. Raises INTERNAL.
        """
        places = pc.min_max(batch.column(0)).as_py()
        if batch.column(0).null_count or (places["min"], places["max"]) != (self.place, self.place):
            raise MinkaError(Code.INTERNAL, f"rows of several partitions came to the task of place {self.place}")

    def result(self, file: bytes) -> pa.RecordBatch:
        """The result of the task: a row of TASK_SCHEMA."""
        columns = (self.place, file, self._rows, self._bytes, self._repeated, self._kept)
        kinds = (pa.int32(), pa.binary(), pa.int64(), pa.int64(), pa.int64(), pa.int64())
        names = ("place", "file", "rows", "bytes", "repeated", "kept")
        arrays = [pa.array([value], kind) for value, kind in zip(columns, kinds, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, list(names))

    def _without_repeated(self, keys: list[bytes], values: list[bytes]) -> _Batch:
        """Leave out rows whose key came before. Raises DUPLICATE_KEY if such rows are refused."""
        last, self._last = self._last, keys[-1]
        if keys[0] != last and len(set(keys)) == len(keys):
            return keys, values
        fresh: list[int] = []
        for place, key in enumerate(keys):
            if key != last:
                fresh.append(place)
            elif self._task.refuses_repeated:
                raise MinkaError(Code.DUPLICATE_KEY, f"the key {_shown(key)} comes more than once in the source")
            last = key
        self._repeated += len(keys) - len(fresh)
        return [keys[place] for place in fresh], [values[place] for place in fresh]

    def _without_existing(self, existing: "_Existing", keys: list[bytes], values: list[bytes]) -> _Batch:
        """Leave out rows whose key the keyspace has. Raises KEY_EXISTS if such rows are refused."""
        there = existing.among(keys)
        if not there:
            return keys, values
        pairs = [*zip(keys, values, strict=True)]
        if self._compares:
            own = [(key, value) for key, value in pairs if there.get(key) == value]
            self._count([key for key, _ in own], [value for _, value in own])
            others = there.keys() - {key for key, _ in own}
        else:
            others = {*there}
        if others and self._task.on_conflict == "error":
            raise MinkaError(Code.KEY_EXISTS, f"the key {_shown(min(others))} is in the keyspace already")
        self._kept += len(others)
        fresh = [(key, value) for key, value in pairs if key not in there]
        return [key for key, _ in fresh], [value for _, value in fresh]


class _Existing:
    """The rows that a partition has already. A task reads them together with the source's rows, both in the order of
    keys.
    """

    def __init__(self, task: LoadTask, target: LoadTarget, *, with_values: bool) -> None:
        self._batches = self._read(task, target, with_values)
        self._ahead = next(self._batches, {})

    def among(self, keys: list[bytes]) -> dict[bytes, bytes]:
        """The given keys that the partition has, each with its value. If values aren't read, each value is b"". The
        keys of each call must be greater than all keys of the call before.
        """
        found: dict[bytes, bytes] = {}
        wanted = set(keys)
        while self._ahead and next(iter(self._ahead)) <= keys[-1]:
            found.update((key, self._ahead[key]) for key in wanted.intersection(self._ahead))
            if next(reversed(self._ahead)) > keys[-1]:
                break
            self._ahead = next(self._batches, {})
        return found

    @staticmethod
    def _read(task: LoadTask, target: LoadTarget, with_values: bool) -> Iterator[dict[bytes, bytes]]:
        with SnapshotClient(task.endpoints, tls=task.tls, timeout=task.timeout) as client:
            keyspace = client.keyspace(Keyspace.FromString(task.keyspace).name)
            for snapshot in client.open(keyspace, target.partition_id, target.range):
                try:
                    for batch in client.read(snapshot, target.range, keys_only=not with_values):
                        keys = _binaries(batch.rows, batch.key_offsets, batch.keys)
                        if with_values:
                            yield dict(zip(keys, _binaries(batch.rows, batch.value_offsets, batch.values), strict=True))
                        else:
                            yield dict.fromkeys(keys, b"")
                finally:
                    client.release(snapshot)


def _binaries(rows: int, offsets: bytes, content: bytes) -> list[bytes]:
    found: list[bytes] = pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    ).to_pylist()
    return found


def _smaller(batches: Iterable[_Batch]) -> Iterator[_Batch]:
    """Divide the batches into smaller ones of about 2 MiB."""
    for keys, values in batches:
        size = start = 0
        for place, (key, value) in enumerate(zip(keys, values, strict=True), 1):
            size += len(key) + len(value)
            if size >= _PUT_BYTES or place == len(keys):
                yield keys[start:place], values[start:place]
                size, start = 0, place


def _scratch() -> str | None:
    """Spark's folder for temporary files (spark.local.dir). Spark removes the files that killed tasks leave there."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None


def _shown(key: bytes) -> str:
    text = readable(key)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
