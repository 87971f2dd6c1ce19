"""Logging to stderr: lines for people, or one JSON object a line for machines.

Modules log with the standard library, a sentence and its specifics apart: `log.info("became active controller",
extra={"term": term})`. The specifics become `term=7` or a JSON member. The field `node` is the node that logs; other
nodes have fields for their parts: `source`, `target`, `peer`.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

FORMATS = ("human", "json")

# The fields of every record; all other fields came from `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OWN = frozenset({"ts", "level", "node", "logger", "msg", "exception"})
_MAX_TEXT = 8192
# syslog priorities, as systemd reads them at the start of a line (sd-daemon(3)).
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))
# Libraries whose informational lines don't help an operator.
_QUIET = ("aiohttp", "asyncio", "grpc")


def setup(level: str, format: str, node: str, *, stream: TextIO | None = None) -> None:  # noqa: A002  # as its key
    """Send all log lines to `stream` (stderr), replacing the setup of an earlier call.

    `level` and `format` are the values of log.level and log.format; `node` is this node's id.
    """
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    journal = _is_journal(stream, os.environ)
    handler.addFilter(_without_mistakes(Seldom(logging.getLogger("minkad.process.logs"))))
    handler.setFormatter(_JsonFormatter(node) if format == "json" else _HumanFormatter(node, journal))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.captureWarnings(True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


class Seldom:
    """Logs lines that others can cause at will: each line at most once in `period_s`, with the number left out."""

    def __init__(self, logger: logging.Logger, period_s: float = 10.0) -> None:
        self._logger = logger
        self._period_s = period_s
        self._said: dict[str, tuple[float, int]] = {}  # by line: when it was written, and the number left out since

    def log(self, level: int, line: str, *, with_traceback: bool = False, **specifics: object) -> None:
        """Write the line, or count it. Put variable parts into the specifics, so that there are few lines."""
        now = time.monotonic()
        at, left_out = self._said.get(line, (float("-inf"), 0))
        if now - at < self._period_s:
            self._said[line] = at, left_out + 1
            return
        self._said[line] = now, 0
        extra = {**specifics, "left_out": left_out} if left_out else specifics
        self._logger.log(level, line, extra=extra, exc_info=with_traceback)


def _without_mistakes(seldom: Seldom) -> Callable[[logging.LogRecord], bool]:
    """A filter for the lines and tracebacks that libraries write when somebody sends an invalid request."""

    def is_kept(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else record.msg
        is_http = record.name == "aiohttp.server" and 400 <= getattr(error, "code", 0) < 500
        # A method name that isn't UTF-8 ends gRPC's server: see minkad.rpc.server.
        is_grpc = record.name in ("asyncio", "grpc._cython.cygrpc") and isinstance(error, UnicodeDecodeError)
        if is_http or is_grpc:
            seldom.log(logging.INFO, "a connection sent an invalid request", reason=repr(error)[:200])
        return not (is_http or is_grpc)

    return is_kept


def _is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """True if the stream goes to systemd's journal, which names its device and inode (systemd.exec(5))."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _specifics(record: logging.LogRecord) -> dict[str, Any]:
    """The caller's `extra`. A name that is also a field of ours gets an underscore, so that no field occurs twice."""
    return {f"{key}_" if key in _OWN else key: value for key, value in vars(record).items() if key not in _STANDARD}


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text)} characters)"


def _level(record: logging.LogRecord) -> str:
    return record.levelname.lower()


class _JsonFormatter(logging.Formatter):
    """One object a line: ts (RFC 3339, UTC), level, node, logger, msg, then the specifics."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        line: dict[str, Any] = {
            "ts": when.replace("+00:00", "Z"),
            "level": _level(record),
            "node": self._node,
            "logger": record.name,
            "msg": _cut(record.getMessage()),
        }
        line.update((key, _json_value(value)) for key, value in _specifics(record).items())
        if record.exc_info:
            line["exception"] = _cut(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, allow_nan=False)


def _json_value(value: object) -> object:
    """Numbers, booleans, lists and null unchanged; anything else as the text that a person would see."""
    if isinstance(value, list | tuple):
        return [_json_value(one) for one in value]
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and abs(value) < float("inf"):
        return value
    return _cut(str(value))


class _HumanFormatter(logging.Formatter):
    """`12:34:56.789 INFO    athens coordinator: sentence key=value`; in the journal, which has the time, priorities
    instead.
    """

    def __init__(self, node: str, journal: bool) -> None:
        super().__init__()
        self._node = node
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {key}={_human_value(value)}" for key, value in _specifics(record).items())
        name = record.name.removeprefix("minkad.")
        sentence = _one_line(_cut(record.getMessage()))
        line = f"{record.levelname:<7} {self._node} {name}: {sentence}{pairs}"
        if not self._journal:
            when = datetime.fromtimestamp(record.created).astimezone()
            line = f"{when:%H:%M:%S}.{int(record.msecs):03} {line}"
        if record.exc_info:
            line += "\n" + _cut(self.formatException(record.exc_info))
        if not self._journal:
            return line
        priority = next(priority for least, priority in _PRIORITIES if record.levelno >= least)
        return "\n".join(f"<{priority}>{part}" for part in line.split("\n"))


def _one_line(text: str) -> str:
    """The text with escaped control characters: foreign text can neither forge a line nor control a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _human_value(value: object) -> str:
    text = _cut(", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
    if not text or any(c in ' ="' or not c.isprintable() for c in text):
        return json.dumps(text, ensure_ascii=not text.isprintable())
    return text
