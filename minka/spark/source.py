"""The data source: `spark.read.format("minka")` and `df.write.format("minka")`."""

import sys
from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from minka.errors import Code, MinkaError
from minka.spark.layout import DEFAULT_SCHEMA, Layout
from minka.spark.options import SourceOptions
from minka.spark.reader import FilteringReader, SnapshotReader
from minka.spark.stream_reader import ChangeReader, ChangeStreamReader
from minka.spark.writer import KeyspaceStreamWriter, KeyspaceWriter


class MinkaDataSource(DataSource):
    """One keyspace of a cluster. See docs/pipeline.md for the options and what rows are like."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = SourceOptions.of(options)

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "minka"

    def schema(self) -> str:
        """What rows are like if no schema is given."""
        if self._options.key_columns:
            text = 'with the option keyColumns the types of the columns are needed: .schema("a INT, b STRING, …")'
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        return DEFAULT_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """For a query."""
        layout = Layout.of(schema, self._options)
        if self._options.changes_since is not None:
            return ChangeReader(self._options, layout)
        layout.check_no_changes()
        # PySpark (4.1 to 4.3) says nowhere else that the session has push-down switched off, which it has by default,
        # and then fails a query whose reader could do it.
        can_push = sys._getframe(1).f_locals.get("enable_pushdown", True)
        return (FilteringReader if can_push else SnapshotReader)(self._options, layout)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`. Raises INVALID_ARGUMENT for the mode overwrite: a keyspace isn't replaced by a write."""
        if overwrite:
            text = 'mode "overwrite" is not possible; "append" sets the values of the keys that are written'
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        return KeyspaceWriter(self._options, Layout.of(schema, self._options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`: changes."""
        return ChangeStreamReader(self._options, Layout.of(schema, self._options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For `df.writeStream`. A batch that is repeated writes the same again. Raises INVALID_ARGUMENT for the output
        mode complete, which would replace the keyspace.
        """
        if overwrite:
            raise MinkaError(Code.INVALID_ARGUMENT, 'output mode "complete" is not possible; use "append" or "update"')
        return KeyspaceStreamWriter(self._options, Layout.of(schema, self._options))

    def __reduce__(self) -> tuple[Any, ...]:
        """By its options."""
        return type(self), (dict(self.options),)
