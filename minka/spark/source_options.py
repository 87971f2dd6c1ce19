"""The options of `format("minka")`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, Literal, Self, cast, get_args

from minka.contexts import given_or_resolved
from minka.errors import Code, MinkaError
from minka.tls import Tls

MIB: Final = 1024 * 1024
KeyFormat = Literal["binary", "text", "columns"]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one use of the data source; `minka.spark` lists them. The names may be in upper or lower case,
    like those of Spark's own options.
    """

    endpoints: tuple[str, ...]
    keyspace: str
    key_columns: tuple[str, ...] = ()  # (): the column `key`
    key_format: KeyFormat = "binary"
    split_bytes: int = 256 * MIB  # several tasks read a partition of more than twice this many bytes; 0: one task
    delete_column: str = ""
    batch_bytes: int = 2 * MIB  # the bytes of keys and values in one write
    timeout: float = 60.0  # seconds for which a partition may have no leader that answers
    changes_since: Mapping[str, int] | None = None  # None: read rows; else read the changes after these offsets
    starting_offsets: Literal["earliest", "latest"] = "latest"
    tls: Tls | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Read the options that Spark passes on. Raises INVALID_ARGUMENT for an option that is missing, unknown or not
        valid.
        """
        known = {name.lower(): name for name in _NAMES}
        options = {known.get(name.lower(), name): value for name, value in given.items()}
        if unknown := {name for name in options if name not in _NAMES and name.lower() not in _SPARKS_OWN}:
            text = f"option {min(unknown)!r} isn't one of {', '.join(_NAMES)}"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        if "keyspace" not in options:
            raise MinkaError(Code.INVALID_ARGUMENT, "option 'keyspace' is missing: .option(\"keyspace\", …)")
        endpoints, tls = given_or_resolved(
            _listed(options["endpoints"]) if "endpoints" in options else None, _tls(options)
        )
        key_columns = _listed(options.get("keyColumns", ""))
        return cls(
            endpoints=tuple(endpoints),
            keyspace=options["keyspace"],
            key_columns=key_columns,
            key_format=_key_format(options.get("keyFormat", ""), key_columns),
            split_bytes=_number(options, "splitBytes", 256 * MIB, 0),
            delete_column=options.get("deleteColumn", ""),
            batch_bytes=_number(options, "batchBytes", 2 * MIB, 1),
            timeout=float(_number(options, "timeout", 60, 1)),
            changes_since=_offsets(options["changesSince"]) if "changesSince" in options else None,
            starting_offsets=_starting(options.get("startingOffsets", "latest")),
            tls=tls,
        )


_NAMES: Final = (
    *("endpoints", "keyspace", "keyColumns", "keyFormat", "splitBytes", "deleteColumn", "batchBytes", "timeout"),
    *("startingOffsets", "changesSince", "tlsCa", "tlsCert", "tlsKey"),
)
_SPARKS_OWN: Final = ("checkpointlocation",)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _key_format(given: str, key_columns: tuple[str, ...]) -> KeyFormat:
    """The key's format. If none is given, the format is `columns` if key columns are named; else the type of the column
    `key` decides.
    """
    if not given:
        return "columns" if key_columns else "binary"
    if given not in get_args(KeyFormat):
        text = f"option 'keyFormat' is {given!r}, not one of {', '.join(get_args(KeyFormat))}"
        raise MinkaError(Code.INVALID_ARGUMENT, text)
    if given == "columns" and not key_columns:
        raise MinkaError(Code.INVALID_ARGUMENT, "option 'keyFormat' is 'columns', but 'keyColumns' names no column")
    if given != "columns" and len(key_columns) > 1:
        text = f"a key of {len(key_columns)} columns can't have keyFormat {given!r}; 'columns' keeps their order"
        raise MinkaError(Code.INVALID_ARGUMENT, text)
    return cast("KeyFormat", given)


def _starting(given: str) -> Literal["earliest", "latest"]:
    if given not in ("earliest", "latest"):
        raise MinkaError(Code.INVALID_ARGUMENT, f"option 'startingOffsets' is {given!r}, not earliest or latest")
    return cast('Literal["earliest", "latest"]', given)


def _offsets(text: str) -> dict[str, int]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(type(one) is int and one >= 0 for one in found.values()):
        text = f"option 'changesSince' is {text[:100]!r}, not JSON with an offset for each partition"
        raise MinkaError(Code.INVALID_ARGUMENT, text)
    return found


def _number(options: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise MinkaError(Code.INVALID_ARGUMENT, f"option {name!r} is {text!r}, not a whole number from {least} on")
    return int(text)


def _tls(options: Mapping[str, str]) -> Tls | None:
    paths = {field.name: options.get(f"tls{field.name.capitalize()}", "") for field in fields(Tls)}
    if not any(paths.values()):
        return None
    if missing := [name for name, path in paths.items() if not path]:
        text = f"option 'tls{missing[0].capitalize()}' is missing: tlsCa, tlsCert and tlsKey go together"
        raise MinkaError(Code.INVALID_ARGUMENT, text)
    return Tls(**paths)
