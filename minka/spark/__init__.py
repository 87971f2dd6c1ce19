"""Minka on Spark: the data source `minka`, and jobs over whole keyspaces. Needs `pip install "minka[spark]"`."""

from importlib.util import find_spec

from minka.errors import Code, MinkaError

_missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
if _missing:
    raise MinkaError(Code.SPARK_MISSING, f"not installed: {', '.join(_missing)}")
