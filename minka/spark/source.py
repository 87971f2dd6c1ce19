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
from minka.spark.column_layout import DEFAULT_SCHEMA, Layout
from minka.spark.reader import FilteringReader, SnapshotReader
from minka.spark.source_options import SourceOptions
from minka.spark.stream_reader import ChangeReader, ChangeStreamReader
from minka.spark.writer import KeyspaceStreamWriter, KeyspaceWriter


class MinkaDataSource(DataSource):
    """A keyspace as a data source of Spark. `minka.spark` lists its options; docs/pipeline.md describes its rows."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = SourceOptions.of(options)

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "minka"

    def schema(self) -> str:
        """The default schema. Raises INVALID_ARGUMENT if the option keyColumns is set: key columns need a schema."""
        if self._options.key_columns:
            text = 'the option keyColumns needs the types of the columns: .schema("a INT, b STRING, …")'
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        return DEFAULT_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader for a query. Raises INVALID_ARGUMENT for a schema that doesn't fit the options."""
        layout = Layout.of(schema, self._options)
        if self._options.changes_since is not None:
            return ChangeReader(self._options, layout)
        layout.check_no_changes()
        # Push-down of filters is off in a session by default. If push-down is off, PySpark (4.1 to 4.3) refuses a query
        # whose reader has pushFilters. Only this variable of the function that calls `reader` tells whether push-down
        # is on.
        can_push = sys._getframe(1).f_locals.get("enable_pushdown", True)
        return (FilteringReader if can_push else SnapshotReader)(self._options, layout)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer for `df.write`. Raises INVALID_ARGUMENT for the mode overwrite: no write replaces a keyspace."""
        if overwrite:
            text = 'mode "overwrite" is not possible; "append" sets the values of the keys that are written'
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        return KeyspaceWriter(self._options, Layout.of(schema, self._options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader for `spark.readStream`, which reads changes. Raises INVALID_ARGUMENT as `reader` does."""
        return ChangeStreamReader(self._options, Layout.of(schema, self._options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer for `df.writeStream`. If Spark repeats a batch, the same rows are written again. Raises
        INVALID_ARGUMENT for the output mode complete, which would replace the keyspace.
        """
        if overwrite:
            raise MinkaError(Code.INVALID_ARGUMENT, 'output mode "complete" is not possible; use "append" or "update"')
        return KeyspaceStreamWriter(self._options, Layout.of(schema, self._options))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the options, from which the source is made again."""
        return type(self), (dict(self.options),)
