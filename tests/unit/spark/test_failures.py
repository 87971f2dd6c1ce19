"""If a task of a job fails, the job's caller gets the task's error."""

import traceback

import pytest
from pyspark.errors import PySparkException

from minka.engine.batch_error import BatchError, Failure
from minka.errors import Code, MinkaError
from minka.spark.failures import spark_failures

OFFLINE = MinkaError(Code.PARTITION_OFFLINE, "partition 7 has no leader")


@pytest.mark.parametrize(
    "raised", [OFFLINE, BatchError([Failure((b"k",), "athens", "athens:7400", OFFLINE)], 3)], ids=["one", "batch"]
)
def test_the_error_that_ended_a_task_is_raised(raised: MinkaError) -> None:
    told = "".join(traceback.format_exception(raised))  # a task's Python reports the error to the JVM as this text
    with pytest.raises(MinkaError) as caught, spark_failures():
        raise PySparkException(f"Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times:\n{told}")
    assert (caught.value.code, caught.value.message) == (raised.code, raised.message)


def test_another_error_is_sparks() -> None:
    with pytest.raises(MinkaError) as caught, spark_failures():
        raise PySparkException("Job aborted:\nValueError: PARTITION_OFFLINE: not ours")
    assert caught.value.code is Code.SPARK_FAILED
