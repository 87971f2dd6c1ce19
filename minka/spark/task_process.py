"""The Python processes in which Spark runs tasks."""

import functools
import gc


@functools.cache
def spare_the_collector() -> None:
    """Leave all objects that exist at the first task out of later garbage collections. PySpark collects garbage after
    each task. A collection that looks at the objects of all imported modules takes 30 ms, longer than a task for a
    small partition.
    """
    gc.freeze()
