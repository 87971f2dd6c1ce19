"""Applies `minkad.rpc.field_rules` to requests. The rules of a type are collected when its first request comes."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from minka.errors import Code, MinkaError
from minkad.rpc.field_rules import COUNTS, REQUIRED, RULES, WRAPPERS, Rule, any_value

_SHOWN: Final = 200  # characters of the faulty value
_REMEMBERED: Final = 4096  # valid texts by rule; the names of nodes, for example, come again and again

_Check = Callable[[Message], str]


def check(message: Message) -> None:
    """Raises INVALID_ARGUMENT. Its text names the field, which people know as an argument."""
    if problem := check_of(message.DESCRIPTOR)(message):
        raise MinkaError(Code.INVALID_ARGUMENT, problem[:_SHOWN].removeprefix("."))


def check_sender(message: Message, node_id: str | None) -> None:
    """Raises INVALID_ARGUMENT if the message names a sender other than `node_id`."""
    claimed = getattr(message, "node_id", None)
    if claimed is not None and claimed != node_id:
        raise MinkaError(Code.INVALID_ARGUMENT, "a node speaks for another one: node_id is not minka-node")


@cache
def check_of(descriptor: Descriptor) -> _Check:
    """The function that returns the fault of a message of this type; "" for a valid message. Raises LookupError for a
    type with a field that has no rule.
    """
    checks = [found for one in descriptor.fields if (found := _check_of_field(descriptor, one)) is not None]

    def all_of(message: Message) -> str:
        for one in checks:
            if problem := one(message):
                return problem
        return ""

    return all_of


def _check_of_field(descriptor: Descriptor, one: FieldDescriptor) -> _Check | None:
    """The check of one field; None if every value is allowed."""
    full, name = f"{descriptor.name}.{one.name}", one.name
    rule = _rule_of(full, one)
    if one.is_repeated:
        type_of = one.message_type
        find = _in_map(type_of) if type_of is not None and type_of.GetOptions().map_entry else _in_list(rule)
        most = COUNTS[full] if full in COUNTS else COUNTS[name]
        return lambda message: _problem_of_many(getattr(message, name), name, most, find)
    missing = f".{name}: is missing" if full in REQUIRED else ""
    if one.message_type is not None:
        path = "" if full in WRAPPERS else f".{name}"

        def nested(message: Message) -> str:
            if not message.HasField(name):
                return missing
            problem = rule(getattr(message, name))
            return f"{path}{problem}" if problem else ""

        return nested
    if rule is any_value:
        return None
    is_never_absent = one.enum_type is not None and full in RULES

    def single(message: Message) -> str:
        value = getattr(message, name)
        if not value and not is_never_absent:
            return missing
        problem = rule(value)
        return f".{name}: {problem}" if problem else ""

    return single


def _rule_of(full: str, one: FieldDescriptor) -> Rule:
    if one.message_type is not None:
        if one.message_type.GetOptions().map_entry:
            return any_value
        return check_of(one.message_type)
    if one.enum_type is not None:
        if full in RULES:
            return RULES[full]
        known = one.enum_type.values_by_number
        return lambda value: "" if value in known else f"{value} is not a known value"
    rule = RULES[full] if full in RULES else RULES[one.name]
    return _remembering(rule) if one.type == FieldDescriptor.TYPE_STRING else rule


@cache
def _remembering(rule: Rule) -> Rule:
    seen: dict[str, str] = {}

    def remembered(value: str) -> str:
        problem = seen.get(value)
        if problem is None:
            problem = rule(value)
            if len(seen) < _REMEMBERED and len(value) <= _SHOWN and not problem:
                seen[value] = problem
        return problem

    return remembered


def _in_list(rule: Rule) -> Rule | None:
    if rule is any_value:
        return None

    def find(values: Any) -> str:
        for place, value in enumerate(values):
            if problem := rule(value):
                return f"[{place}]{problem}" if problem.startswith(".") else f"[{place}]: {problem}"
        return ""

    return find


def _in_map(entry: Descriptor) -> Rule:
    key, value = (_rule_of(f"{entry.name}.{part.name}", part) for part in entry.fields)

    def find(pairs: Any) -> str:
        for place, (name, given) in enumerate(pairs.items()):
            if problem := key(name):
                return f"[{place}]: {problem}"
            if problem := value(given):
                return f"[{name}]: {problem}"
        return ""

    return find


def _problem_of_many(values: Any, name: str, most: int, find: Rule | None) -> str:
    if not values:
        return ""
    if len(values) > most:
        return f".{name}: there must be {most} at most, not {len(values)}"
    problem = find(values) if find is not None else ""
    return f".{name}{problem}" if problem else ""
