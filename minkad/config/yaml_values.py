"""Parsers of configuration values: a YAML node in, a checked value out, or `Refused` with every mistake in it.

Text is taken as written, whatever YAML 1.1 would make of it (`zone: no` is the text "no", not false), and a number is
decimal digits, so every value means what it looks like.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from minka.cluster.name_rules import node_id_problem
from minkad.config.addresses import address_problem, is_wildcard

Parser = Callable[[yaml.Node], Any]

_TEXT = re.compile(r"[!-~]{0,63}")
_INTEGER = re.compile(r"-?(0|[1-9](_?[0-9]){0,24})")
_MAX_LIST = 1000


class Refused(Exception):
    """A value that its key doesn't accept: each mistake with its YAML node."""

    def __init__(self, *mistakes: tuple[yaml.Node, str]) -> None:
        super().__init__(*mistakes)
        self.mistakes = mistakes


@dataclass(frozen=True, slots=True)
class Peer:
    """One of the nodes that found the cluster."""

    id: str
    address: str

    def __str__(self) -> str:
        return f"{{id: {self.id}, address: {flow_text(self.address)}}}"


def flow_text(text: str) -> str:
    """The text as YAML takes it inside a list: an address that begins with a bracket needs quotes."""
    return f'"{text}"' if text.startswith("[") or not text else text


def _scalar(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        kind = "list" if isinstance(node, yaml.SequenceNode) else "mapping"
        raise Refused((node, f"must be one value, not a {kind}"))
    # An unquoted empty value, `~` or `null`: most likely an unfinished line.
    if node.style is None and node.tag == "tag:yaml.org,2002:null":
        raise Refused((node, "has no value; remove the line to use the default"))
    return str(node.value)


def _cut(value: str) -> str:
    return value if len(value) <= 80 else value[:77] + "..."


def text(node: yaml.Node) -> str:
    """At most 63 printable ASCII characters without blanks."""
    value = _scalar(node)
    if not _TEXT.fullmatch(value):
        raise Refused((node, f"must be up to 63 printable ASCII characters without blanks, not {_cut(value)!r}"))
    return value


def identifier(node: yaml.Node) -> str:
    """A name like a DNS host's, which stays readable in a log, a path and a metric."""
    value = _scalar(node)
    if problem := node_id_problem(value):
        raise Refused((node, f"{problem}, not {_cut(value)!r}"))
    return value


@dataclass(frozen=True, slots=True)
class Integer:
    """A parser of whole numbers from `least` to `most`."""

    least: int
    most: int

    def __call__(self, node: yaml.Node) -> int:
        value = _scalar(node)
        quoted = isinstance(node, yaml.ScalarNode) and node.style is not None
        if quoted or not _INTEGER.fullmatch(value) or not self.least <= int(value) <= self.most:
            shown = f'"{_cut(value)}"' if quoted else _cut(value)
            raise Refused((node, f"must be a whole number from {self.least} to {self.most}, not {shown}"))
        return int(value)


def choice(*allowed: str) -> Parser:
    """A parser of one word from a short list."""

    def parse(node: yaml.Node) -> str:
        value = _scalar(node)
        if value not in allowed:
            raise Refused((node, f"must be one of {', '.join(allowed)}, not {_cut(value)!r}"))
        return value

    return parse


def absolute_path(node: yaml.Node) -> Path:
    """A path with the same meaning wherever the daemon was started."""
    value = _scalar(node)
    if not value.startswith("/") or "\0" in value:
        raise Refused((node, f"must be an absolute path, not {_cut(value)!r}"))
    return Path(value)


def optional_absolute_path(node: yaml.Node) -> str:
    """An absolute path, or "" for none."""
    return "" if _scalar(node) == "" else str(absolute_path(node))


def address(node: yaml.Node) -> str:
    """`host:port`, where the host is a DNS name, an IPv4 address, or an IPv6 address in brackets."""
    value = _scalar(node)
    problem = address_problem(value)
    if problem:
        raise Refused((node, f"must be host:port or [IPv6]:port, not {_cut(value)!r}: {problem}"))
    return value


def optional_address(node: yaml.Node) -> str:
    """An address, or "" for none."""
    return "" if _scalar(node) == "" else address(node)


def peer_address(node: yaml.Node) -> str:
    """An address that others dial."""
    value = address(node)
    if is_wildcard(value):
        raise Refused((node, f"must be an address that other nodes can dial, not {_cut(value)!r}"))
    return value


def optional_peer_address(node: yaml.Node) -> str:
    """An address that others dial, or "" for none."""
    return "" if _scalar(node) == "" else peer_address(node)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A parser of lists with at most 1,000 elements."""

    item: Parser

    def __call__(self, node: yaml.Node) -> tuple[Any, ...]:
        if not isinstance(node, yaml.SequenceNode):
            raise Refused((node, "must be a list; an empty one is []"))
        if len(node.value) > _MAX_LIST:
            raise Refused((node, f"must have at most {_MAX_LIST} items, not {len(node.value)}"))
        values, mistakes = [], []
        for position, child in enumerate(node.value, 1):
            try:
                values.append(self.item(child))
            except Refused as refused:
                mistakes += [(where, f"item {position}: {problem}") for where, problem in refused.mistakes]
        if mistakes:
            raise Refused(*mistakes)
        return tuple(values)


def peer(node: yaml.Node) -> Peer:
    """A mapping of exactly `id` and `address`."""
    if not isinstance(node, yaml.MappingNode):
        raise Refused((node, "must be {id: NODE, address: HOST:PORT}"))
    parsers = {"id": identifier, "address": peer_address}
    values: dict[str, str] = {}
    mistakes: list[tuple[yaml.Node, str]] = []
    for key, child in node.value:
        name = str(key.value)
        if name not in parsers or name in values:
            problem = "given twice" if name in values else "unknown key; an item has id and address"
            mistakes.append((key, f"{name}: {problem}"))
            continue
        values[name] = ""
        try:
            values[name] = parsers[name](child)
        except Refused as refused:
            mistakes += [(where, f"{name}: {problem}") for where, problem in refused.mistakes]
    mistakes += [(node, f"{name}: missing") for name in parsers if name not in values]
    if mistakes:
        raise Refused(*mistakes)
    return Peer(values["id"], values["address"])
