"""Reads messages of the protos into the library's own dataclasses.

A field of a dataclass has the name of the message's field, and its type says how it is read: a `datetime` named `since`
from the message's `since_ms`, a `Word` from an enum, a tuple from a repeated field, a dataclass from an inner message.
A field of the type `… | None` is None if the message's field is absent or, for a field that isn't `optional` in the
protos, if it is 0 or empty. The caller gives the fields that the message doesn't have.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from minka.engine.arguments import invalid
from minka.engine.grpc_calls import clipped

_Record = TypeVar("_Record")
_Read = Callable[[Any], Any]  # reads the value of one field from the message

_SCALARS: Final = (str, bytes, bool, int, float)


class Word(StrEnum):
    """An enum of the protos: BALANCER_KIND_ROUND_ROBIN is `BalancerKind.ROUND_ROBIN`, and "round_robin". A member that
    only newer versions know reads as UNKNOWN.
    """

    @classmethod
    def _missing_(cls, value: object) -> "Word":
        found: Word = cls.__members__["UNKNOWN"]
        return found


def read(kind: type[_Record], message: Message, /, **given: Any) -> _Record:
    """The message as a record of this dataclass; `given` are the fields that aren't in the message."""
    return kind(**given, **{name: get(message) for name, get in _readers(kind, frozenset(given))})  # type: ignore[arg-type]


def read_all(kind: type[_Record], messages: typing.Iterable[Message]) -> tuple[_Record, ...]:
    """The messages as records of this dataclass."""
    return tuple(read(kind, message) for message in messages)


@functools.cache
def _readers(kind: type[Any], given: frozenset[str]) -> tuple[tuple[str, _Read], ...]:
    return tuple(_fields_read(kind, given))


def _fields_read(kind: type[Any], given: frozenset[str]) -> Iterator[tuple[str, _Read]]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.name in given:
            continue
        hint, is_optional = _without_none(hints[field.name])
        name = f"{field.name}_ms" if hint is datetime else field.name
        yield field.name, _reader(name, hint, is_optional, field)


def _reader(name: str, hint: Any, is_optional: bool, field: "dataclasses.Field[Any]") -> _Read:
    if hint is datetime:
        return lambda message: moment(getattr(message, name)) if getattr(message, name) or not is_optional else None
    if typing.get_origin(hint) is tuple:
        read_one = _element(typing.get_args(hint)[0])
        return lambda message: tuple(map(read_one, getattr(message, name)))
    if isinstance(hint, type) and issubclass(hint, Word):
        return functools.partial(_word, name, hint, field.default)
    read_one = _element(hint)
    if is_optional:
        return lambda message: read_one(getattr(message, name)) if _has(message, name) else None
    return lambda message: read_one(getattr(message, name))


def _has(message: Message, name: str) -> bool:
    has_presence = message.DESCRIPTOR.fields_by_name[name].has_presence
    return message.HasField(name) if has_presence else bool(getattr(message, name))


def _element(hint: Any) -> _Read:
    if hint in _SCALARS:
        return hint  # type: ignore[no-any-return]
    assert dataclasses.is_dataclass(hint), f"{hint} can't be read from a message"
    return functools.partial(read, hint)  # type: ignore[arg-type]


def _word(name: str, kind: type[Word], default: Any, message: Message) -> Any:
    number = getattr(message, name)
    if not number and default is not dataclasses.MISSING:
        return default
    return kind(word(message.DESCRIPTOR.fields_by_name[name].enum_type, number))


def word(enum: Any, number: int) -> str:
    """The word for a number of this enum, by its descriptor: "round_robin" for BALANCER_KIND_ROUND_ROBIN; "unknown" for
    a number that this version doesn't know.
    """
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    found = enum.values_by_number.get(number)
    return "unknown" if found is None else found.name.removeprefix(prefix).lower()


def number(enum: Any, text: str) -> int:
    """The number for a word of this enum; `word` is the inverse. Raises KeyError for an unknown word."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return int(enum.values_by_name[prefix + text.upper()].number)


def checked_number(enum: Any, words: type[Word], given: Any, name: str) -> Any:
    """The enum's number for a word that a caller gave as the argument `name`. Raises MinkaError(INVALID_ARGUMENT)."""
    known = words(given)
    if known.value == "unknown":
        allowed = ", ".join(one for one in words if one.value != "unknown")
        raise invalid(f"{name} is {clipped(repr(given))}, not one of {allowed}")
    return number(enum.DESCRIPTOR, known)


def moment(unix_ms: int) -> datetime:
    """The moment, in UTC, `unix_ms` milliseconds after the Unix epoch."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC)


def unix_ms(moment: datetime | None) -> int:
    """The milliseconds from the Unix epoch to this moment; 0 for None. `moment` is the inverse."""
    return 0 if moment is None else round(moment.timestamp() * 1000)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        rest = [one for one in typing.get_args(hint) if one is not type(None)]
        assert len(rest) == 1, f"{hint} has more than one type besides None"
        return rest[0], True
    return hint, False
