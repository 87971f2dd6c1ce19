"""Minka on Spark: the data source "minka", and jobs over whole keyspaces. Needs `pip install "minka-client[spark]"`.

The data source needn't be registered, and reads each partition as it is at one moment:

    spark = minka.spark.session()
    cluster = {"endpoints": "athens:7400,byzantium:7400", "keyspace": "flights"}
    pairs = spark.read.format("minka").options(**cluster).load()  # key binary, value binary
    rows = (
        spark.read.format("minka")
        .schema("day DATE, number INT, dest STRING, delay DOUBLE")  # in the formats of `minka.rows`
        .options(**cluster, keyColumns="day,number")  # the other columns are in the value
        .load()
    )
    rows.where("day = DATE '2013-01-01'").show()  # a filter on key columns reads only the keys that it allows
    rows.write.format("minka").options(**cluster, keyColumns="day,number").mode("append").save()
    changes = spark.readStream.format("minka").options(**cluster).load()  # the query needs a checkpointLocation

Jobs are functions that work in parallel on the whole keyspace and return a report. Without `endpoints`, a job works on
the cluster of `context`, or on the one that `minka.connect` would find:

    options = LoadOptions(columns=PairColumns(("day", "number")))  # the columns of the key
    frame = read_files(spark, "flights.csv", schema="day DATE, number INT, dest STRING, delay DOUBLE")
    print(load(spark, frame, "flights", options, endpoints=["athens:7400"]).rows)
    print(verify(spark, frame, "flights", options.columns, endpoints=["athens:7400"]).is_same)

`.schema("key STRING, value STRING")` reads text, and `.schema("key BINARY")` reads only keys. The only mode of writing
is "append" (for streams also "update"). This mode sets the values of the rows' keys, and repeats batches that failed.
Any other mode is refused. If changes are read, the schema may also have `_change STRING` ("put" or "delete"),
`_partition INT` and `_offset LONG`.

Jobs raise `MinkaError`. Errors of the data source reach your program only as Spark's own errors, whose text has Minka's
code and message: `pyspark.errors.AnalysisException` for a wrong option, schema, mode or keyspace;
`StreamingQueryException` for a stream; another `PySparkException` if a task has failed. So catch `PySparkException`
around `load`, `save` and actions.

| option | default | |
|---|---|---|
| `endpoints` | those of `minka.connect` | host:port of some of the nodes, separated by commas |
| `keyspace` | required | the keyspace's name |
| `keyColumns` | `key` | the columns of the key, separated by commas (for `export`: `key_columns=["day", "number"]`) |
| `keyFormat` | by the schema | `columns`: `encode_key` of `keyColumns`; `text`, `binary`: one column as it is |
| `timeout` | 60 | seconds for which a partition may be without a leader that answers |
| `splitBytes` | 268435456 | reading: several tasks read a partition of more than twice this many bytes; 0: one task |
| `changesSince` | | reading: `ExportReport.versions` as JSON; the query gets the changes since that export |
| `batchBytes` | 2097152 | writing: bytes of keys and values in one batch |
| `deleteColumn` | | writing: a boolean column; where it is true, the key is removed |
| `startingOffsets` | latest | streams: where the first query begins, `latest` or `earliest` |
| `tlsCa`, `tlsCert`, `tlsKey` | | paths of PEM files, for a cluster with TLS |
"""

from minka.errors import Code, MinkaError

try:
    from minka.load_report.analysis import Imbalance
    from minka.load_report.forecast import FullForecast
    from minka.load_report.proposals import Proposals, ProposedMove, ProposedSplit
    from minka.spark.digesting import DigestReport, digest
    from minka.spark.driver import log_file
    from minka.spark.exporting import ExportReport, export
    from minka.spark.filling import FileLoad, LoadOptions, LoadReport, load, load_files, resume
    from minka.spark.inputs import read_files
    from minka.spark.load_analysis import ClusterLoadReport, HotPartition, load_report
    from minka.spark.lookups import lookup
    from minka.spark.pairs import PairColumns
    from minka.spark.progress import OnProgress, Progress
    from minka.spark.report import Report, StageReport
    from minka.spark.spark_sessions import session
    from minka.spark.split_planning import ExpectedRange, SplitsReport, splits
    from minka.spark.verifying import Difference, ReplicaDifference, UnreadReplica, VerifyReport, verify
except ModuleNotFoundError as error:
    package = str(error.name).partition(".")[0]
    if package in ("numpy", "pandas", "py4j", "pyarrow", "pyspark"):
        raise MinkaError(Code.SPARK_MISSING, f"{package} isn't installed") from error
    raise

__all__ = [
    "ClusterLoadReport",
    "Difference",
    "DigestReport",
    "ExpectedRange",
    "ExportReport",
    "FileLoad",
    "FullForecast",
    "HotPartition",
    "Imbalance",
    "LoadOptions",
    "LoadReport",
    "OnProgress",
    "PairColumns",
    "Progress",
    "Proposals",
    "ProposedMove",
    "ProposedSplit",
    "ReplicaDifference",
    "Report",
    "SplitsReport",
    "StageReport",
    "UnreadReplica",
    "VerifyReport",
    "digest",
    "export",
    "load",
    "load_files",
    "load_report",
    "log_file",
    "lookup",
    "read_files",
    "resume",
    "session",
    "splits",
    "verify",
]
