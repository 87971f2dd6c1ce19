"""Facts about a load's source that can be known before its rows are read: its size, and a fingerprint that tells it
apart from other sources.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from minka.errors import Code, MinkaError
from minka.spark.pairs import UNREADABLE
from minka.v1.loads_pb2 import Load

_FINGERPRINT: Final = "fingerprint"
_DIFFERENCES: Final = {
    "options": "other options",
    "source": "another source, or one that has changed since",
}
_SIDE_FILE: Final = re.compile(r"part-[^/]*\.json")
_SIDE_COLUMNS: Final = frozenset({"problem", UNREADABLE, "key_base64", "value_base64"})


def bytes_of(source: DataFrame) -> int:
    """The bytes of the files from which the source is read; 0 if they aren't known. They are known only if the source
    has all rows of the files, unchanged. In other cases Spark only estimates: for a join the product of both sides, for
    a filter the whole input.
    """
    from pyspark.sql.utils import is_remote

    if is_remote():
        return 0
    plan = source._jdf.queryExecution().optimizedPlan()
    if not plan.children().isEmpty():
        return 0
    size = int(str(plan.stats().sizeInBytes()))
    return size if size < 1 << 60 else 0


def fingerprint(source: DataFrame, options: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """The marks that tell two loads apart: a digest of the options, and a digest of the source. The digest of the
    source covers the schema, and the names, sizes and times of the files at `path`. Without a path it covers only the
    schema, and the names of the files that the data frame reads, if any.
    """
    files = _files(source.sparkSession, path) if path else sorted(source.inputFiles())
    return {"options": _digest([options]), "source": _digest([source.schema.jsonValue(), *files])}


def noted(document: Mapping[str, Any], marks: Mapping[str, str]) -> str:
    """The text for the load's row: the document with the fingerprint, as JSON."""
    return json.dumps({**document, _FINGERPRINT: marks}, separators=(",", ":"))


def without_fingerprint(document: dict[str, Any]) -> dict[str, Any]:
    """The document that was given to `noted`."""
    return {name: value for name, value in document.items() if name != _FINGERPRINT}


def refuse_another(found: Load, marks: Mapping[str, str]) -> None:
    """Raise LOAD_EXISTS if the load was begun with another fingerprint. This accepts a load that another program began
    without a fingerprint.
    """
    try:
        before = json.loads(found.job)[_FINGERPRINT]
    except (ValueError, TypeError, KeyError):
        return
    others = [text for name, text in _DIFFERENCES.items() if before.get(name) != marks[name]]
    if others:
        text = f"load {found.id} was begun with {' and '.join(others)}; these rows need another id"
        raise MinkaError(Code.LOAD_EXISTS, text)


def refuse_foreign(spark: SparkSession, folder: str) -> None:
    """Raise INVALID_ARGUMENT if the folder has other files than those with a load's bad rows: a load replaces them
    all.
    """
    reader = spark.read.option("recursiveFileLookup", "true")
    try:
        paths = [row.path for row in reader.format("binaryFile").load(folder).select("path").collect()]
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return
        raise
    if not paths:
        return
    first = reader.text(folder).first()
    are_named = all(_SIDE_FILE.fullmatch(path.rpartition("/")[2]) for path in paths)
    if not are_named or (first is not None and not _is_bad_row(first[0])):
        text = f"{folder} has other files than those with a load's bad rows; a load would replace them"
        raise MinkaError(Code.INVALID_ARGUMENT, text)


def _is_bad_row(line: str) -> bool:
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return isinstance(row, dict) and "problem" in row and row.keys() <= _SIDE_COLUMNS


def _files(spark: SparkSession, path: str) -> Iterable[Any]:
    """List the files that Spark would read at the path, each with its size and time. Their contents aren't read."""
    listed = spark.read.format("binaryFile").load(path)
    columns = ("path", "length", F.unix_micros("modificationTime"))
    return sorted([*row] for row in listed.select(*columns).collect())


def _digest(parts: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return found.hexdigest()[:32]
