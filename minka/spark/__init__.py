"""Minka on Spark: the data source `minka`, and jobs over whole keyspaces. Needs `pip install "minka[spark]"`."""

from minka.errors import Code, MinkaError

try:
    from minka.spark.digesting import digest
    from minka.spark.exporting import export
    from minka.spark.inputs import read_files
    from minka.spark.load_analysis import load_report
    from minka.spark.loading import FileLoad, LoadOptions, load, load_files, resume
    from minka.spark.lookups import lookup
    from minka.spark.pairs import PairColumns
    from minka.spark.progress import OnProgress, Progress
    from minka.spark.report import Report
    from minka.spark.sessions import session
    from minka.spark.split_planning import splits
    from minka.spark.verifying import verify
except ModuleNotFoundError as error:
    package = str(error.name).partition(".")[0]
    if package in ("numpy", "pandas", "py4j", "pyarrow", "pyspark"):
        raise MinkaError(Code.SPARK_MISSING, f"{package} isn't installed") from error
    raise

__all__ = [
    "FileLoad",
    "LoadOptions",
    "OnProgress",
    "PairColumns",
    "Progress",
    "Report",
    "digest",
    "export",
    "load",
    "load_files",
    "load_report",
    "lookup",
    "read_files",
    "resume",
    "session",
    "splits",
    "verify",
]
