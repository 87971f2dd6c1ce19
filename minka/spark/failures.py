"""Turns Spark's errors into a MinkaError of one line, with the cause and the path of Spark's log."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException, PySparkException
from pyspark.logger import PySparkLogger

from minka.errors import Code, MinkaError
from minka.spark.driver import log_file

# The last line of a traceback, of a task or of a planner's Python, that ended with a MinkaError.
# Its subclasses are in several modules of Minka.
_OURS = re.compile(r"^\s*minka(?:\.\w+)+: ([A-Z_]+): (.+)$", re.MULTILINE)


@contextmanager
def spark_failures() -> Iterator[None]:
    """Turn an error that Spark raises within into a MinkaError.

    If a MinkaError ended a task, that error is raised; INVALID_ARGUMENT if Spark refused the request, for example for a
    path or a column that doesn't exist; else SPARK_FAILED.
    """
    try:
        with _quiet():
            yield
    except (PySparkException, Py4JError) as error:
        raise _minka_error(error) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep PySpark from writing errors that it raises to stderr, too, as lines of JSON."""
    loggers = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("DataFrame", "SQL")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _minka_error(error: Exception) -> MinkaError:
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    ours = _OURS.search(text)
    if ours is not None and ours[1] in Code.__members__:
        return MinkaError(Code[ours[1]], ours[2])
    if isinstance(error, (AnalysisException, IllegalArgumentException, ParseException)):
        return MinkaError(Code.INVALID_ARGUMENT, re.sub(r" SQLSTATE: \w+;?$", "", _sentence(text)))
    log = log_file()
    return MinkaError(Code.SPARK_FAILED, _sentence(text) + (f"; Spark's log: {log}" if log else ""))


def _sentence(text: str) -> str:
    """The first line that isn't blank, and the last line of a Python traceback if there is one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    head = lines[0] if lines else "Spark says nothing"
    python = [line for line in lines[1:] if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return f"{head} {python[-1]}" if "Traceback" in text and python else head
