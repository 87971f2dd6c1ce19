"""The Python processes in which Spark runs tasks."""

import functools
import gc


@functools.cache
def spare_the_collector() -> None:
    """PySpark collects garbage after each task, through all modules that were imported: 30 ms, and a task of a small
    partition takes less. What is there at the first task is left out from then on.
    """
    gc.freeze()
