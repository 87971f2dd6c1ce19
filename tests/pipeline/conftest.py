"""The Spark session and the cluster that the tests of this folder share."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyspark.sql import SparkSession

from minka.spark import session
from minka.testing.local_cluster import LocalCluster
from tests.cluster.cluster import CALM

TIMEOUT_S = 180  # the first test of a run also starts Spark, which takes ten seconds on an idle machine
HERE = Path(__file__).parent

# This Spark is small and starts quickly. Tests of speed, and tests with much data, are in benchmarks/ instead.
CONF = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.daemon.module": "tests.pipeline.worker_daemon",
}
# With these options for every JVM that a test starts, the start of Spark takes 8 s of processor time instead of 19. The
# last option leaves out the verification of byte code.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the time limit of the tests in this folder."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the tests write to folders of their own. Spark's logs, and the JAVA_HOME that Minka makes for Spark, go
    to a cache of the tests instead of the user's cache. Files that a killed JVM leaves are in a folder that is removed
    at the end; the path of this folder is short, since sockets are in it.
    """
    with (
        TemporaryDirectory(prefix="minka-spark-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SPARK_SUBMIT_OPTS", f"{JVM_OPTIONS} -Djava.io.tmpdir={folder}")
        # With these settings, the libraries that Python workers import start no threads. A fork would lose such
        # threads.
        patch.setenv("ARROW_DEFAULT_MEMORY_POOL", "system")
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        patch.setenv("SPARK_LAUNCHER_OPTS", JVM_OPTIONS)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def spark(_environment: None) -> Iterator[SparkSession]:
    """The session of Spark that all tests of this process share."""
    started = session("local[2]", app_name="minka's tests", conf=CONF)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def cluster(spark: SparkSession) -> Iterator[LocalCluster]:
    """Three daemons for the tests of one file. The fixture requests `spark`, so that Spark starts before gRPC has
    threads in this process.
    """
    with LocalCluster(3, config=CALM) as cluster:
        yield cluster
