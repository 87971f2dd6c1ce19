"""Makes the messages of requests from callers' arguments. The error for a value of a wrong type, or out of range, names
the argument.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from minka.engine.arguments import invalid, utf8, whole_number
from minka.engine.grpc_calls import clipped

_Message = TypeVar("_Message", bound=Message)

_KINDS: Final[Mapping[int, tuple[type, ...]]] = {
    FieldDescriptor.TYPE_STRING: (str,),
    FieldDescriptor.TYPE_BYTES: (bytes,),
    FieldDescriptor.TYPE_BOOL: (bool,),
    FieldDescriptor.TYPE_DOUBLE: (float, int),
}
_RANGES: Final[Mapping[int, range]] = {
    FieldDescriptor.TYPE_INT32: range(-(1 << 31), 1 << 31),
    FieldDescriptor.TYPE_INT64: range(-(1 << 63), 1 << 63),
    FieldDescriptor.TYPE_UINT32: range(1 << 32),
    FieldDescriptor.TYPE_UINT64: range(1 << 64),
}


def made(kind: type[_Message], /, *, called: Mapping[str, str] | None = None, **fields: Any) -> _Message:
    """The message with these fields, whose values are a caller's arguments. If an argument has another name than its
    field, `called` maps the field to that name. Raises INVALID_ARGUMENT. A str or bytes in place of a list is refused,
    since its characters would count as items.
    """
    names = called or {}
    descriptor = kind.DESCRIPTOR
    return kind(
        **{
            field: _checked(descriptor.fields_by_name[field], given, names.get(field, field))
            for field, given in fields.items()
        }
    )


def _checked(field: Any, given: Any, name: str) -> Any:
    if given is None and field.has_presence:
        return None
    if not field.is_repeated:
        return _checked_one(field, given, name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _checked_mapping(field, given, name)
    if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__iter__"):
        raise invalid(f"{name} is {clipped(repr(given))}, not a list of {_kind_name(field)}")
    return [_checked_one(field, one, f"one of {name}") for one in given]


def _checked_mapping(field: Any, given: Any, name: str) -> dict[Any, Any]:
    key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
    if not isinstance(given, Mapping):
        kinds = f"from {_kind_name(key)} to {_kind_name(value)}"
        raise invalid(f"{name} is {clipped(repr(given))}, not a mapping {kinds}")
    return {
        _checked_one(key, one, f"a key of {name}"): _checked_one(value, other, f"a value of {name}")
        for one, other in given.items()
    }


def _checked_one(field: Any, given: Any, name: str) -> Any:
    allowed = _RANGES.get(field.type)
    if allowed is not None:
        return checked_whole(given, name, allowed)
    kinds = _KINDS.get(field.type, (object,))
    if not isinstance(given, kinds) or (isinstance(given, bool) and float in kinds):
        raise invalid(f"{name} is {clipped(repr(given))}, not {_kind_name(field)}")
    return utf8(given, name).decode() if isinstance(given, str) else given


def checked_whole(given: Any, name: str, allowed: range) -> int:
    """The whole number that a caller gave as the argument `name`, if it is in the range. Raises INVALID_ARGUMENT."""
    number = whole_number(given)
    if number is None:
        raise invalid(f"{name} is {clipped(repr(given))}, not int")
    if number not in allowed:
        raise invalid(f"{name} is {clipped(repr(given))}, not from {allowed.start:,} to {allowed.stop - 1:,}")
    return number


def _kind_name(field: Any) -> str:
    if field.type in _RANGES:
        return "int"
    kinds = _KINDS.get(field.type)
    return str(kinds[0].__name__ if kinds else field.message_type.name)
