"""The process from which Spark forks its Python workers. It imports the modules that each worker would import, which
saves every worker a second or two of processor time. Spark's own daemon imports nothing, because a library might start
threads, which a fork loses. The modules here start no threads but those of jemalloc, which jemalloc starts again.
"""

import gc
import sys
from importlib import import_module

# Spark puts its own pyspark.zip into the path, and drops the caches of all importers. So each worker would read the
# directory of the zip twenty times, which takes half a second. The installed PySpark has the same modules.
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
    # A worker collects garbage after each task. It skips the frozen imports: a look at these objects would copy their
    # memory pages.
    gc.collect()
    gc.freeze()
    import_module("pyspark.daemon").manager()
