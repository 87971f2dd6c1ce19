"""Writes a keyspace into files: all of it, or the changes since an earlier export."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from minka.bulk.change_feed import ChangeClient
from minka.contexts import given_or_resolved
from minka.engine.arguments import items
from minka.errors import Code, MinkaError
from minka.spark.column_layout import CHANGE, OFFSET, PARTITION
from minka.spark.inputs import FileFormat, check_format
from minka.spark.parquet import ParquetFiles, local_folder
from minka.spark.progress import OnProgress, running
from minka.spark.report import Report, timestamp
from minka.spark.source import MinkaDataSource
from minka.tls import Tls

# By default Spark would trim white space. With these options a null becomes an empty field, and empty text becomes "".
_CSV: Final = {
    "header": "true",
    "escape": '"',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}
_OF_CHANGES = f"{CHANGE} string, {PARTITION} int, {OFFSET} long"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport(Report):
    """The result of `export`. `bytes` counts keys and values; it is 0 if `export` was given a schema."""

    job: ClassVar[str] = "export"

    destination: str
    file_format: str
    since: Mapping[str, int] | None = None
    versions: Mapping[str, int]  # the files have all writes up to this offset of the log; by partition id, as text


def export(
    spark: SparkSession,
    keyspace: str,
    destination: str,
    *,
    endpoints: Sequence[str] | None = None,
    context: str | None = None,
    file_format: FileFormat = "parquet",
    schema: str = "",
    key_columns: Sequence[str] = (),
    since: Mapping[str, int] | None = None,
    overwrite: bool = False,
    tls: Tls | None = None,
    timeout: float = 60.0,
    on_progress: OnProgress | None = None,
) -> ExportReport:
    """Write a keyspace's rows as files into the folder `destination`. Each partition is as it was at one offset.

    Without a `schema` (DDL) rows have the columns key and value, in Parquet as bytes, in other formats as text. With
    `key_columns`, keys are decoded into these columns of the schema, and values into the others; the data source has
    the option `keyColumns` for this. If `since` has the `versions` of an earlier export's report, this writes the
    changes after that export instead of the rows. Changes also have the columns _change ("put" or "delete"), _partition
    and _offset, and are in order within each partition; the same change may be in two successive exports. `timeout` is
    the most seconds that a partition may be without a leader that answers.

    Raises MinkaError: INVALID_ARGUMENT for arguments that aren't valid, for an unknown format, or for a folder that
    exists while `overwrite` is False; UNKNOWN_KEYSPACE; CHANGES_GONE; SPARK_FAILED.
    """
    check_format(file_format)
    items(key_columns, "names of columns")
    endpoints, tls = given_or_resolved(endpoints, tls, context)
    with running("export", spark, ["look", "read and write"], on_progress) as job:
        with job.stage("look"), ChangeClient(endpoints, tls=tls, timeout=timeout) as client:
            # The positions are read before the rows. A write between the two is in this export, and the next export of
            # changes has it, too.
            positions = client.positions(client.keyspace(keyspace))
            versions = {str(one.partition_id): one.end_offset for one in positions.values()}
        source = MinkaDataSource(_options(endpoints, keyspace, key_columns, since, tls, timeout))
        columns = _schema(schema, file_format, since, key_columns)
        sized = [name for name in ("key", "value") if not schema and name in columns.names]
        with job.stage("read and write") as stage:
            if file_format == "parquet" and (folder := local_folder(spark, destination)):
                files = ParquetFiles.of(folder, to_arrow_schema(columns, timezone="UTC"), sized, overwrite=overwrite)
                stage.rows, stage.bytes = files.write(spark, source.reader(columns))
            else:
                stage.rows, stage.bytes = _write(spark, source, columns, sized, destination, file_format, overwrite)
    return ExportReport(
        keyspace=keyspace,
        started=timestamp(job.started),
        seconds=round(job.seconds, 3),
        rows=stage.rows,
        bytes=stage.bytes,
        stages=job.reports,
        destination=destination,
        file_format=file_format,
        since=since,
        versions=versions,
    )


def _write(
    spark: SparkSession,
    source: MinkaDataSource,
    columns: StructType,
    sized: Sequence[str],
    destination: str,
    file_format: FileFormat,
    overwrite: bool,
) -> tuple[int, int]:
    """Let Spark write the files; returns the number of rows and of bytes."""
    counted = Observation()
    size = [F.sum(F.octet_length(name)) for name in sized]
    total = sum(size[1:], size[0]) if size else F.lit(0)
    frame = spark.read.format("minka").schema(columns).options(**source.options).load()
    observed = frame.observe(counted, F.count(F.lit(1)).alias("rows"), F.coalesce(total, F.lit(0)).alias("bytes"))
    writer = observed.write.mode("overwrite" if overwrite else "error")
    if file_format == "csv":
        writer = writer.options(**_CSV)
    writer.format(file_format).save(destination)
    return counted.get["rows"], counted.get["bytes"]


def _schema(
    given: str, file_format: FileFormat, since: Mapping[str, int] | None, key_columns: Sequence[str]
) -> StructType:
    kind = "binary" if file_format == "parquet" else "string"
    text = given or f"key {kind}, value {kind}"
    schema = StructType.fromDDL(text if since is None else f"{text}, {_OF_CHANGES}")
    assert isinstance(schema, StructType), "of a table's columns"
    if missing := [name for name in key_columns if name not in schema.names]:
        raise MinkaError(Code.INVALID_ARGUMENT, f"the schema has no column {missing[0]!r} for the key")
    return schema


def _options(
    endpoints: Sequence[str],
    keyspace: str,
    key_columns: Sequence[str],
    since: Mapping[str, int] | None,
    tls: Tls | None,
    timeout: float,
) -> dict[str, str]:
    options = {"endpoints": ",".join(endpoints), "keyspace": keyspace, "timeout": f"{max(1, round(timeout))}"}
    if key_columns:
        options["keyColumns"] = ",".join(key_columns)
    if since is not None:
        options["changesSince"] = json.dumps(since)
    if tls is not None:
        options |= {"tlsCa": str(tls.ca), "tlsCert": str(tls.cert), "tlsKey": str(tls.key)}
    return options
