"""By this name PySpark finds the data source `minka` where nobody has registered it."""

from minka.spark.source import MinkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
