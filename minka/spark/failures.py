"""Turns Spark's errors into a MinkaError of one line, with the cause and the path of Spark's log."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException, PySparkException
from pyspark.logger import PySparkLogger

from minka.errors import Code, MinkaError
from minka.spark.driver import log_file

# Matches the last line of the traceback of a MinkaError, in a task or in the Python process of the planner. The error
# may be of a subclass of MinkaError, in any module of Minka.
_OURS = re.compile(r"^\s*minka(?:\.\w+)+: ([A-Z_]+): (.+)$", re.MULTILINE)


@contextmanager
def spark_failures() -> Iterator[None]:
    """Turn an error of Spark in the body of `with` into a MinkaError.

    If a MinkaError ended a task, this raises the same error. If Spark refused the request, for example since a path or
    a column doesn't exist, this raises INVALID_ARGUMENT; in all other cases SPARK_FAILED.
    """
    try:
        with _quiet():
            yield
    except (PySparkException, Py4JError) as error:
        raise _minka_error(error) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep PySpark from writing each error to stderr as JSON, in addition to raising it."""
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
    """The error in one line: the first line that isn't blank, and the last line of any Python traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    head = lines[0] if lines else "Spark says nothing"
    python = [line for line in lines[1:] if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return f"{head} {python[-1]}" if "Traceback" in text and python else head
