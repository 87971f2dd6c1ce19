"""PySpark finds the data source `minka` by the name of this package, so nobody has to register it."""

from minka.spark.source import MinkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
