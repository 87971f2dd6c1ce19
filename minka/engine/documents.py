"""Protobuf messages as plain documents. A document has every field, under its name in the proto. Values of enums are
in lower case without their prefix ("live" for NODE_STATE_LIVE); keys are in the form in which people type them.

minkactl prints these documents with `-o json`. A plan's document can be read back as the same plan.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from minka.cluster.key_ranges import key_of_text, key_text
from minka.engine.messages import number, word
from minka.errors import Code, MinkaError

if TYPE_CHECKING:
    from google._upb import _message as _upb

M = TypeVar("M", bound=Message)


def to_document(message: Message) -> dict[str, Any]:
    """The message as JSON values, all fields in the order of the proto; None for an optional value that is missing."""
    document: dict[str, Any] = {}
    for name, may_lack, is_repeated, convert in _fields(message.DESCRIPTOR):
        value = getattr(message, name)
        if is_repeated:
            document[name] = [convert(item) for item in value] if convert is not None else value[:]
        elif may_lack and not message.HasField(name):
            document[name] = None
        else:
            document[name] = convert(value) if convert is not None else value
    return document


@cache
def _fields(descriptor: Descriptor) -> list[tuple[str, bool, bool, Callable[[Any], Any] | None]]:
    """For each field: its name, True if it is optional, True if it is repeated, and the function that makes JSON of its
    value (None if the value is JSON already). Cached, since a table has many messages of one kind.
    """
    return [
        (one.name, one.has_presence and one.message_type is None, one.is_repeated, _converter(one))
        for one in descriptor.fields
    ]


def _converter(field: "FieldDescriptor | _upb.FieldDescriptor") -> Callable[[Any], Any] | None:
    if field.message_type is not None:
        return to_document
    if field.enum_type is not None:
        enum = field.enum_type
        return cache(lambda number: word(enum, number))
    return key_text if field.type == FieldDescriptor.TYPE_BYTES else None


def from_document(document: object, message: M) -> M:
    """Fill an empty message from a document that `to_document` made.

    Raises MinkaError(INVALID_ARGUMENT) for a field that the message doesn't have or a value of the wrong type.
    """
    if not isinstance(document, dict):
        raise MinkaError(Code.INVALID_ARGUMENT, f"a {message.DESCRIPTOR.name} must be an object, not {document!r:.60}")
    for name, value in document.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise MinkaError(Code.INVALID_ARGUMENT, f"a {message.DESCRIPTOR.name} has no field {name!r:.60}")
        if value is not None:
            _set(message, field, value)
    return message


def _key(text: object) -> bytes:
    """The inverse of `key_text`. Raises ValueError, and TypeError for anything but str."""
    if not isinstance(text, str):
        raise TypeError("no text")
    return key_of_text(text)


def _number(enum: "EnumDescriptor | _upb.EnumDescriptor", name: object) -> int:
    try:
        return number(enum, str(name))
    except KeyError:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{name!r} isn't a value of {enum.name}") from None


def _set(message: Message, field: "FieldDescriptor | _upb.FieldDescriptor", value: Any) -> None:
    try:
        if field.is_repeated and field.message_type is not None:
            for item in value:
                from_document(item, getattr(message, field.name).add())
        elif field.is_repeated and field.type == FieldDescriptor.TYPE_BYTES:
            getattr(message, field.name).extend([_key(text) for text in value])
        elif field.is_repeated:
            getattr(message, field.name).extend(value)
        elif field.message_type is not None:
            from_document(value, getattr(message, field.name))
        else:
            setattr(message, field.name, _number(field.enum_type, value) if field.enum_type else value)
    except MinkaError:  # the error of an inner message, which is more exact
        raise
    except (TypeError, ValueError) as error:
        raise MinkaError(
            Code.INVALID_ARGUMENT, f"{message.DESCRIPTOR.name}.{field.name} can't be {value!r:.60}"
        ) from error
