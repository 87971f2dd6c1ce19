"""Reads files with Spark, as the source of a job."""

from functools import reduce
from operator import or_
from pathlib import PurePosixPath
from typing import Final, Literal, cast, get_args

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from minka.errors import Code, MinkaError
from minka.spark.failures import spark_failures
from minka.spark.pairs import UNREADABLE

FileFormat = Literal["parquet", "csv", "json"]
FORMATS: Final = get_args(FileFormat)

# Spark reads a field as null if it is empty or equals nullValue. With the default nullValue, which is "", a quoted ""
# would be null, too. So nullValue is set to these two code points, which aren't characters.
_NULL: Final = "\ufffe\uffff"
_REPLACED: Final = "\ufffd"  # Java's replacement for bytes that aren't UTF-8
_CSV: Final = {
    "header": "true",
    "enforceSchema": "false",
    "multiLine": "true",
    "escape": '"',
    "nullValue": _NULL,
}


def read_files(spark: SparkSession, path: str, file_format: FileFormat | None = None, schema: str = "") -> DataFrame:
    """Read a file or a folder of files: Parquet, CSV whose first line has the names, or JSON with one object in each
    line. By default the format follows from the end of the name. `schema` is DDL, such as "day DATE, number INT".

    Without a schema all columns of CSV are text, and Spark infers the types of JSON's columns. A line that can't be
    read, isn't UTF-8 or doesn't fit the schema becomes a row with the line's text in the column `_unreadable`. So does
    a line of CSV with the character U+FFFD, since Java puts this character in place of bytes that aren't UTF-8.

    Raises MinkaError(INVALID_ARGUMENT) if the format isn't known or the path can't be read.
    """
    file_format = check_format(file_format) if file_format else _format_of(path)
    reader = spark.read
    with spark_failures():
        if file_format == "parquet":
            return (reader.schema(schema) if schema else reader).parquet(path)
        reader = reader.options(mode="PERMISSIVE", columnNameOfCorruptRecord=UNREADABLE)
        if file_format == "json":
            return (reader.schema(_with_unreadable(_parsed(schema))) if schema else reader).json(path)
        reader = reader.options(**_CSV)
        wanted = _with_unreadable(_parsed(schema) if schema else _header(reader.csv(path), path))
        return _without_replaced_bytes(reader.schema(wanted).csv(path))


def check_format(file_format: str) -> FileFormat:
    """Return the format if it is one of FORMATS, else raise MinkaError(INVALID_ARGUMENT)."""
    if file_format not in FORMATS:
        raise MinkaError(Code.INVALID_ARGUMENT, f"the format {file_format!r} isn't one of {', '.join(FORMATS)}")
    return cast("FileFormat", file_format)


def absolute(spark: SparkSession, path: str) -> str:
    """Make the path absolute and add its scheme, so that a process in another folder finds the same file. With Spark
    Connect, the path is for the server's file system, so this returns the path unchanged.
    """
    from pyspark.sql.utils import is_remote

    if is_remote():
        return path
    with spark_failures():
        assert spark._jvm is not None, "the driver is here"
        found = spark._jvm.org.apache.hadoop.fs.Path(path)
        return str(found.getFileSystem(spark._jsc.hadoopConfiguration()).makeQualified(found).toString())


def _format_of(path: str) -> FileFormat:
    for suffix in reversed(PurePosixPath(path.rstrip("/")).suffixes):
        if (found := suffix[1:].lower()) in FORMATS:
            return cast("FileFormat", found)
    text = f"{path}: the name's ending isn't a known format; the formats are {', '.join(FORMATS)}"
    raise MinkaError(Code.INVALID_ARGUMENT, text)


def _parsed(schema: str) -> StructType:
    given = StructType.fromDDL(schema)
    assert isinstance(given, StructType), "of a table's columns"
    return given


def _header(found: DataFrame, path: str) -> StructType:
    for name in found.columns:
        if _REPLACED in name:
            raise MinkaError(Code.INVALID_ARGUMENT, f"{path}: the name of the column {name!r} isn't UTF-8")
    return found.schema


def _with_unreadable(schema: StructType) -> StructType:
    return StructType([*schema.fields, StructField(UNREADABLE, StringType())]) if schema.fields else schema


def _without_replaced_bytes(frame: DataFrame) -> DataFrame:
    """Mark a row as unreadable if Java has replaced bytes in it, and leave the other rows as they are."""
    fields = [field for field in frame.schema.fields if field.name != UNREADABLE]
    texts = [
        F.col(f"`{field.name.replace('`', '``')}`").cast("string")
        for field in fields
        if isinstance(field.dataType, StringType | BinaryType)
    ]
    if not texts:
        return frame
    is_replaced = reduce(or_, (F.contains(text, F.lit(_REPLACED)) for text in texts))
    return frame.withColumn(UNREADABLE, F.coalesce(UNREADABLE, F.when(is_replaced, F.concat_ws(",", *texts))))
