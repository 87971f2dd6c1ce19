"""The process off which Spark forks its Python workers. It has imported what each of them would: a second of processor
time. Spark's own imports nothing, because a library might start threads, which a fork loses; these start none.
"""

import pyspark.sql.worker.commit_data_source_write
import pyspark.sql.worker.create_data_source
import pyspark.sql.worker.data_source_pushdown_filters
import pyspark.sql.worker.lookup_data_sources
import pyspark.sql.worker.plan_data_source_read
import pyspark.sql.worker.write_into_data_source
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import minka.spark.load_task
import minka.spark.source  # noqa: F401

if __name__ == "__main__":
    manager()
