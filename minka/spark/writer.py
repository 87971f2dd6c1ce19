"""Writes a data frame's rows into a keyspace, in batches. At most two batches are under way at the same time."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from minka.client import Client
from minka.engine.retry import delay_s
from minka.errors import Code, MinkaError, OutcomeUnknown, Unavailable
from minka.spark.column_layout import Layout
from minka.spark.source_options import SourceOptions
from minka.spark.task_process import spare_the_collector

_IN_FLIGHT: Final = 2
_RNG: Final = Random()
Pairs = dict[bytes, bytes | None]


@dataclass
class Written(WriterCommitMessage):
    """The numbers of puts, deletes and bytes that a task has written."""

    puts: int
    deletes: int
    bytes: int


class _Writing:
    """Sets the values of the rows' keys. With a delete column, it removes the keys of rows in which that column is
    true. There is no transaction: rows of a failed task stay written, and the repeated task writes the same rows again.
    """

    def __init__(self, options: SourceOptions, layout: Layout) -> None:
        if not layout.value_fields and not layout.delete_column:
            raise MinkaError(Code.INVALID_ARGUMENT, "the data frame has no column for the value")
        self._options = options
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task; if a key comes twice, the last row counts. Raises INVALID_ARGUMENT for a row that
        can't be in a keyspace, and the client's error if a partition takes no writes for as long as the option
        `timeout` says.
        """
        spare_the_collector()
        options = self._options
        done = Written(0, 0, 0)
        with Client(options.endpoints, keyspace=options.keyspace, timeout=options.timeout, tls=options.tls) as client:
            write_batches(client, self._batches(iterator, done), options.timeout)
        return done

    def _batches(self, iterator: Iterator[pa.RecordBatch], done: Written) -> Iterator[Pairs]:
        """Divide the rows into batches of about `batchBytes`. If a key is in several rows of a batch, only the last one
        counts.
        """
        pairs: Pairs = {}
        size = 0
        for batch in iterator:
            keys = self._layout.keys_of(batch).to_pylist()
            for key, value in zip(keys, self._layout.values_of(batch), strict=True):
                pairs[key] = value
                size += len(key) + len(value or b"")
                done.deletes += value is None
                if size >= self._options.batch_bytes:
                    yield pairs
                    done.bytes += size
                    pairs, size = {}, 0
            done.puts += batch.num_rows
        done.puts -= done.deletes
        done.bytes += size
        if pairs:
            yield pairs


class KeyspaceWriter(_Writing, DataSourceArrowWriter):
    """The writer for `df.write`."""


class KeyspaceStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """The writer for `df.writeStream`."""


def write_batches(client: Client, batches: Iterable[Pairs], timeout: float) -> None:
    """Write the batches, two at a time. If a batch fails for `timeout` seconds, raise the client's error."""
    with ThreadPoolExecutor(_IN_FLIGHT, "minka-write") as threads:
        under_way: deque[tuple[Future[None], Pairs]] = deque()
        for pairs in batches:
            # If a batch under way has one of these keys, wait for that batch first, so that the newest value is written
            # last.
            while len(under_way) == _IN_FLIGHT or any(not sent.keys().isdisjoint(pairs) for _, sent in under_way):
                under_way.popleft()[0].result()
            under_way.append((threads.submit(_write, client, pairs, timeout), pairs))
        for sent, _ in under_way:
            sent.result()


def _write(client: Client, pairs: Pairs, timeout: float) -> None:
    """Write a batch. After an error that may pass, or if the outcome isn't known, write the batch again, for `timeout`
    seconds: writing it twice does no harm. Raises the error of the last try.
    """
    puts = {key: value for key, value in pairs.items() if value is not None}
    deletes = [key for key, value in pairs.items() if value is None]
    until, tries = time.monotonic() + timeout, 0
    while True:
        try:
            if puts:
                client.put_many(puts)
            if deletes:
                client.delete_many(deletes)
            return
        except (Unavailable, OutcomeUnknown):
            tries += 1
            if time.monotonic() > until:
                raise
            time.sleep(delay_s(tries, _RNG))
