"""The Spark session in which jobs run: by default on this machine, or on another master, or with Spark Connect."""

import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

import minka
from minka.errors import Code, MinkaError
from minka.spark import driver
from minka.spark.failures import spark_failures

CONNECT_PORT: Final = 15002
CONNECT_TIMEOUT_S: Final = 10.0
TRIES: Final = 4  # the most tries of a task, as on a cluster; by default Spark's local mode tries once
CHECKED_TASKS: Final = 16

_GIB: Final = 1 << 30

_ANYWHERE: Final = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
}
_OWN_DRIVER: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # By default the JVM doesn't compile large methods. Spark makes a large method of a deep expression, such as the
    # encoding of a key of many columns.
    "spark.driver.extraJavaOptions": "-XX:-DontCompileHugeMethods",
    "spark.executor.extraJavaOptions": "-XX:-DontCompileHugeMethods",
}
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.heartbeatInterval": "1s",  # also the time between a running task's reports of its rows
    "spark.python.unix.domain.socket.enabled": "true",  # TCP's delayed acknowledgements add 40 ms to each task
}


def session(
    master: str | None = None,
    remote: str | None = None,
    *,
    app_name: str = "minka",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the session that is active in this process, or start one if there is none.

    `master` is the URL of a master (default: `local[*]`, this machine's processors), and `remote` the URL of a Spark
    Connect server, sc://host:port. `conf` is Spark's configuration, which takes precedence over the settings made here.
    Start the session before you open a client of Minka: starting Spark forks this process, which is risky once gRPC has
    threads.

    Spark on this machine uses the machine's Java (17 or newer) or that of `minka-client[spark]`, runs its tasks on this
    Python, and logs to `log_file()`. If tasks run on other machines, minka must be installed on these; this function
    checks that.

    Raises MinkaError: INVALID_ARGUMENT; JAVA_MISSING; SPARK_FAILED if Spark doesn't start or can't be reached, or if
    its tasks have another version of minka, or none.
    """
    if master and remote:
        raise MinkaError(Code.INVALID_ARGUMENT, "give a session's master or remote, not both")
    conf, address = dict(conf or {}), _address(remote) if remote else None
    active = SparkSession.getActiveSession()
    if active is not None:
        return _reused(active, master, remote, conf)
    if remote and address:
        return _connected(remote, address, app_name, _ANYWHERE | conf)
    master = master or "local[*]"
    settings = _ANYWHERE | _OWN_DRIVER | conf
    if master.partition("[")[0] == "local":
        # The environment may name a Spark and a Python for a cluster. Tasks on this machine need the Spark and the
        # Python of this process instead.
        environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(Path(pyspark.__file__).parent)}
        return driver.start(_with_retries(master), app_name, _LOCAL | _memory() | settings, environment)
    spark = driver.start(master, app_name, settings, {})
    _check_executors(spark, master)
    return spark


def _reused(active: SparkSession, master: str | None, remote: str | None, conf: Mapping[str, str]) -> SparkSession:
    running = active.conf.get("spark.master", None)
    if remote or (master and running not in (master, _with_retries(master))):
        text = f"this process has a session already, of {running}: stop it first, or don't ask for another one"
        raise MinkaError(Code.INVALID_ARGUMENT, text)
    for name, value in conf.items():
        active.conf.set(name, value)
    return active


def _with_retries(master: str) -> str:
    """Let Spark try tasks several times: local[2] becomes local[2,4], for at most 4 tries."""
    threads = master.removeprefix("local").strip("[]") or "1"
    return master if "," in threads else f"local[{threads},{TRIES}]"


def _memory() -> dict[str, str]:
    """The setting of the driver's memory: a quarter of the machine's, but at least 1 and at most 8 GiB (Spark's
    default is 1 GiB).
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"spark.driver.memory": f"{min(max(memory // 4, _GIB), 8 * _GIB) >> 20}m"}


def _connected(remote: str, address: tuple[str, int], app_name: str, conf: Mapping[str, str]) -> SparkSession:
    try:
        # Without this check, Spark's client would try to connect for ten minutes.
        socket.create_connection(address, CONNECT_TIMEOUT_S).close()
    except OSError as error:
        text = f"no Spark Connect server answers at {address[0]}:{address[1]}: {error}"
        raise MinkaError(Code.SPARK_FAILED, text) from error
    with spark_failures():
        builder = SparkSession.builder.remote(remote).appName(app_name)
        for name, value in conf.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        _check_executors(spark, remote)
    return spark


def _address(remote: str) -> tuple[str, int]:
    """The host and the port in sc://host:port/;parameters. Raises INVALID_ARGUMENT."""
    parts = urlsplit(remote)
    try:
        port = CONNECT_PORT if parts.port is None else parts.port
    except ValueError:  # not a number
        port = 0
    if parts.scheme != "sc" or not parts.hostname or not port:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{remote!r} isn't a Spark Connect server: sc://host:port")
    return parts.hostname, port


def _check_executors(spark: SparkSession, where: str) -> None:
    """Raise SPARK_FAILED if tasks can't import minka, or import another version than this one."""
    try:
        with spark_failures():
            asked = spark.range(0, CHECKED_TASKS, 1, CHECKED_TASKS).mapInArrow(_own_version, "version string")
            versions = {row.version for row in asked.distinct().collect()}
    except MinkaError as error:
        text = f"the tasks of {where} can't run minka: {error.message}; {_HELPS}"
        raise MinkaError(Code.SPARK_FAILED, text) from error
    if versions != {minka.__version__}:
        text = (
            f"the tasks of {where} have minka {', '.join(sorted(versions))}, and this is {minka.__version__}; {_HELPS}"
        )
        raise MinkaError(Code.SPARK_FAILED, text)


_HELPS: Final = 'its machines need minka[spark] of this version: docs/pipeline.md, "Spark elsewhere", says how'


def _own_version(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the version of minka that this task has. The task fails if it can't import this module."""
    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"version": [minka.__version__]})
