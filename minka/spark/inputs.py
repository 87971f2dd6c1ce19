"""Files that Spark reads as the source of a job."""

from pathlib import PurePosixPath
from typing import Final, Literal, cast, get_args

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from minka.errors import Code, MinkaError
from minka.spark.failures import spark_failures
from minka.spark.pairs import UNREADABLE

FileFormat = Literal["parquet", "csv", "json"]
FORMATS: Final = get_args(FileFormat)


def read_files(spark: SparkSession, path: str, file_format: FileFormat | None = None, schema: str = "") -> DataFrame:
    """Read a file or a folder of files: Parquet, CSV whose first line has the names, or JSON with an object a line. If
    no format is given, the end of the name says it. `schema` is DDL, such as "day DATE, number INT".

    Without a schema all columns of CSV are text, and those of JSON are as Spark finds them. A line that can't be read,
    or doesn't fit the schema, becomes a row with its text in the column UNREADABLE. Raises MinkaError(INVALID_ARGUMENT)
    if the format isn't known or the path can't be read.
    """
    file_format = file_format or _format_of(path)
    reader = spark.read
    with spark_failures():
        if file_format == "parquet":
            return (reader.schema(schema) if schema else reader).parquet(path)
        reader = reader.options(mode="PERMISSIVE", columnNameOfCorruptRecord=UNREADABLE)
        if file_format == "csv":
            reader = reader.options(header="true", enforceSchema="false", multiLine="true", escape='"')
        if schema:
            return reader.schema(_with_unreadable(schema)).format(file_format).load(path)
        return reader.format(file_format).load(path)


def absolute(spark: SparkSession, path: str) -> str:
    """The path with its scheme and folder, so that a process in another folder finds the same. With Spark Connect the
    path is the server's, and is left as it is.
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
    text = f"{path}: its name doesn't say what format it has; there are {', '.join(FORMATS)}"
    raise MinkaError(Code.INVALID_ARGUMENT, text)


def _with_unreadable(schema: str) -> StructType:
    given = StructType.fromDDL(schema)
    assert isinstance(given, StructType), "of a table's columns"
    return StructType([*given.fields, StructField(UNREADABLE, StringType())])
