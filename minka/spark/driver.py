"""Starts Spark's own process (the driver's JVM) on the right Java, with its output in a file."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import STDOUT
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from minka.errors import Code, MinkaError
from minka.spark.java import cache_dir, find_java

LOGS_KEPT: Final = 20

_log_file: Path | None = None


def log_file() -> Path | None:
    """The path of the log of the last Spark process that this process has started; None if it has started none."""
    return _log_file


def start(
    master: str, app_name: str, settings: Mapping[str, str], environment: Mapping[str, str | None]
) -> SparkSession:
    """Start a session. If there is no process of Spark yet, start one, which ends when this process ends. Spark's
    process and its tasks get this process's environment, with the changes in `environment`: a variable that is None
    there is not set.

    Raises MinkaError: JAVA_MISSING, SPARK_FAILED.
    """
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(app_name)
    for name, value in settings.items():
        conf.set(name, value)
    with _set({**find_java().environment(), **environment}):
        try:
            # When a session is stopped, its process goes on. The next session uses that process.
            gateway = _launched(conf) if SparkContext._gateway is None else None
            return SparkSession(SparkContext(conf=conf, gateway=gateway))
        except (PySparkException, Py4JError, OSError) as error:
            _end_process()
            why = str(error).strip().splitlines()[:1]
            raise MinkaError(Code.SPARK_FAILED, f"Spark doesn't start: {''.join(why)}; its log: {_log_file}") from error


def _launched(conf: SparkConf) -> Any:
    global _log_file
    _log_file = _new_log()
    with _log_file.open("wb") as log:
        return launch_gateway(conf, {"stdout": log, "stderr": STDOUT})  # type: ignore[no-untyped-call]


def _end_process() -> None:
    """End Spark's process, so that the next session starts another one."""
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is not None:
        process = gateway.proc
        gateway.shutdown()
        process.stdin.close()  # Spark's process ends when its stdin is closed
        process.wait()


@contextmanager
def _set(environment: Mapping[str, str | None]) -> Iterator[None]:
    """Set these environment variables while the body of `with` runs; a variable that is None is unset."""
    before = {name: os.environ.get(name) for name in environment}
    _put(environment)
    try:
        yield
    finally:
        _put(before)


def _put(environment: Mapping[str, str | None]) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _new_log() -> Path:
    try:
        folder = cache_dir() / "spark-logs"
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.iterdir(), key=os.path.getmtime)[: 1 - LOGS_KEPT]:
            path.unlink(missing_ok=True)
        descriptor, name = tempfile.mkstemp(".log", "", folder)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        descriptor, name = tempfile.mkstemp(".log", "minka-spark-")
    os.close(descriptor)
    return Path(name)
