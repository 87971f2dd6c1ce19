"""Minka on Spark: the data source `minka`, and jobs over whole keyspaces. Needs `pip install "minka[spark]"`."""

from minka.errors import Code, MinkaError

try:
    from minka.spark.digest import digest
    from minka.spark.progress import OnProgress, Progress
    from minka.spark.report import Report
    from minka.spark.session import session
except ModuleNotFoundError as error:
    package = str(error.name).partition(".")[0]
    if package in ("numpy", "pandas", "py4j", "pyarrow", "pyspark"):
        raise MinkaError(Code.SPARK_MISSING, f"{package} isn't installed") from error
    raise

__all__ = ["OnProgress", "Progress", "Report", "digest", "session"]
