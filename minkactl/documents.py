"""Records of the library as the documents of `-o json`, in the shape of `minka.engine.documents`."""

from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, get_args

from minka.cluster.key_ranges import key_text
from minka.engine.messages import unix_ms


def record_document(record: Any) -> dict[str, Any]:
    """A record of `minka.admin` as JSON values, with the names that `to_document` gives those of its message."""
    document: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if datetime in (field.type, *get_args(field.type)):
            document[f"{field.name}_ms"] = unix_ms(value)
        else:
            document[field.name] = _plain(value)
    return document


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return key_text(value)
    if isinstance(value, str):  # a Word, too
        return str(value)
    return record_document(value) if is_dataclass(value) else value
