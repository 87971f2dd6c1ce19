"""The process off which Spark forks its Python workers. It has imported what each of them would: a second or two of
processor time. Spark's own imports nothing, because a library might start threads, which a fork loses; these start
none but jemalloc's, which jemalloc itself starts again.
"""

from importlib import import_module

from pyspark.daemon import manager

_IMPORTED = (
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
    manager()
