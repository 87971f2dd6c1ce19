"""The process off which Spark forks its Python workers. It has imported what each of them would: a second or two of
processor time. Spark's own imports nothing, because a library might start threads, which a fork loses; these start
none but jemalloc's, which jemalloc itself starts again.
"""

import gc
import sys
from importlib import import_module

# Spark puts its own pyspark.zip into the path. Each worker would read the zip's directory twenty times, for half a
# second, since Spark drops the caches of all importers; the installed PySpark is the same.
sys.path[:] = [path for path in sys.path if not path.endswith(("pyspark.zip", "-src.zip"))]

_IMPORTED = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pandas",
    "grpc.experimental",
    "uvloop",
    "minka.spark.load_task",
    "minka.spark.source",
)

for module in _IMPORTED:
    import_module(module)

if __name__ == "__main__":
    # A worker collects after each task: it needn't look at what is imported, and copy those pages.
    gc.collect()
    gc.freeze()
    import_module("pyspark.daemon").manager()
