"""Lets tasks write Parquet files with Arrow, without Spark's writer. So Arrow's columns stay columns. Spark's writer
would get each row in another process, and divide the row into columns again. This module is used only if the session
and the folder are on this machine; in all other cases Spark writes the files.
"""

import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.utils import is_remote

from minka.errors import Code, MinkaError
from minka.spark.inputs import absolute

_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024  # the most data in Arrow's columns that a task has in memory


def local_folder(spark: SparkSession, path: str) -> Path | None:
    """The folder as a local path; None if it isn't in this machine's file system, or tasks run on other machines."""
    if is_remote() or not str(spark.sparkContext.master).startswith("local"):
        return None
    url = urlsplit(absolute(spark, path))
    return Path(unquote(url.path)) if url.scheme == "file" else None


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """The files of one job, in one folder. They have hidden names until all of them are complete."""

    folder: Path
    name: str  # part of the files' names, unique to this job
    schema: pa.Schema
    sized: tuple[str, ...]  # the columns whose bytes are counted

    @classmethod
    def of(cls, folder: Path, schema: pa.Schema, sized: Sequence[str], *, overwrite: bool) -> "ParquetFiles":
        """The files of a new job. Raises INVALID_ARGUMENT if the folder exists and `overwrite` is False."""
        if folder.exists() and not overwrite:
            text = f"{folder} already exists: allow overwriting, or choose another folder"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        return cls(folder, uuid.uuid4().hex, schema, tuple(sized))

    def write(self, spark: SparkSession, reader: DataSourceReader) -> tuple[int, int]:
        """Write all rows of the reader; returns the number of rows and of bytes. Once all new files are complete, the
        folder's former content is removed. Raises INVALID_ARGUMENT if the folder can't be written.
        """
        parts = list(reader.partitions())
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                tasks = spark.sparkContext.parallelize(parts, len(parts))
                written = tasks.map(partial(self._write_part, reader)).collect()
                self._show([hidden for hidden, _, _ in written if hidden])
            finally:
                for left in self.folder.glob(f".{self.name}*"):
                    left.unlink()
                if not any(self.folder.iterdir()):
                    self.folder.rmdir()
        except OSError as error:
            raise MinkaError(Code.INVALID_ARGUMENT, f"{self.folder}: {error}") from error
        return sum(rows for _, rows, _ in written), sum(size for _, _, size in written)

    def _write_part(self, reader: DataSourceReader, part: InputPartition) -> tuple[str, int, int]:
        """Write a task's file, under a name that no other attempt of the task uses. Returns the name ("" if there are
        no rows), and the number of rows and of bytes.
        """
        path = self.folder / f".{self.name}-{uuid.uuid4().hex}"
        rows = size = 0
        writer = None
        for group in _row_groups(reader.read(part)):
            writer = writer or pq.ParquetWriter(path, group.schema)
            writer.write_table(group)
            rows += group.num_rows
            size += sum(pc.sum(pc.binary_length(group.column(name))).as_py() or 0 for name in self.sized)
        if writer is None:
            return "", 0, 0
        writer.close()
        return path.name, rows, size

    def _show(self, hidden: Sequence[str]) -> None:
        if not hidden:  # without rows, an empty file must name the columns
            pq.write_table(self.schema.empty_table(), self.folder / f".{self.name}")
            hidden = [f".{self.name}"]
        replaced = [one for one in self.folder.iterdir() if not one.name.startswith(f".{self.name}")]
        for number, name in enumerate(hidden):
            (self.folder / name).rename(self.folder / f"part-{number:05}-{self.name}.snappy.parquet")
        for old in replaced:
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        (self.folder / "_SUCCESS").touch()


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)
