"""Reading the configuration: a YAML file and the environment in, a checked `Config` out.

`load` reports all mistakes at once, each as `FILE:LINE: KEY: what is wrong`, so that they can be corrected together.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import yaml

from minka.errors import Code, MinkaError
from minkad.config.cross_checks import RULES
from minkad.config.schema import DEFAULT, KEYS, SECTIONS, Config, Key
from minkad.config.yaml_values import ListOf, Refused

_PREFIX = "MINKAD_"
_MAX_FILE_BYTES = 1 << 20


def load(path: Path, environ: Mapping[str, str]) -> Config:
    """The configuration in `path`, overridden by the MINKAD_… variables of `environ`.

    Raises MinkaError INVALID_CONFIG with one line for each mistake, in the order of the file's lines.
    """
    loader = _Loader(path)
    loader.read_file()
    loader.read_environment(environ)
    config = loader.build()
    if loader.mistakes:
        lines = [line for _, line in sorted(loader.mistakes, key=lambda mistake: mistake[0])]
        raise MinkaError(Code.INVALID_CONFIG, "\n".join(lines))
    return config


def variable(key: str) -> str:
    """The environment variable that overrides a dotted key."""
    return _PREFIX + key.replace(".", "_").upper()


_BY_VARIABLE = {variable(name): key for name, key in KEYS.items()}


class _Loader:
    """Gathers values, their origins and the mistakes among them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mistakes: list[tuple[int, str]] = []
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.wrong: set[str] = set()

    def read_file(self) -> None:
        """Take the values of the file. Raises MinkaError at once if it can't be read as YAML."""
        root = _compose(self.path)
        if root is None:
            return
        if not isinstance(root, yaml.MappingNode):
            self._mistake(root, "must be a mapping of sections, such as `node:`")
            return
        for name, key_node, value_node in self._entries(root, ""):
            if name in SECTIONS:
                self._read_section(name, value_node)
            elif name in KEYS:
                self._read_value(KEYS[name], key_node, value_node)
            else:
                self._mistake(key_node, f"{name}: unknown key{_suggestion(name)}")

    def _read_section(self, section: str, node: yaml.Node) -> None:
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
            return  # every line of it is commented out
        if not isinstance(node, yaml.MappingNode):
            self._mistake(node, f"{section}: must be a mapping of keys")
            return
        for name, key_node, value_node in self._entries(node, f"{section}."):
            if name in KEYS:
                self._read_value(KEYS[name], key_node, value_node)
            else:
                self._mistake(key_node, f"{name}: unknown key{_suggestion(name)}")

    def _entries(self, mapping: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        lines: dict[str, int] = {}
        for key_node, value_node in mapping.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._mistake(key_node, "a key must be a word")
                continue
            name = prefix + key_node.value
            if name in lines:
                self._mistake(key_node, f"{name}: given twice, first in line {lines[name]}")
                continue
            lines[name] = key_node.start_mark.line + 1
            yield name, key_node, value_node

    def _read_value(self, key: Key, key_node: yaml.Node, node: yaml.Node) -> None:
        self.origins[key.name] = f"{self.path}:{key_node.start_mark.line + 1}"
        try:
            self.values[key.name] = key.parser(node)
        except Refused as refused:
            self.wrong.add(key.name)
            for where, problem in refused.mistakes:
                self._mistake(where, f"{key.name}: {problem}")

    def read_environment(self, environ: Mapping[str, str]) -> None:
        """Take the values of the MINKAD_… variables, which override the file's."""
        for name in sorted(environ):
            if not name.startswith(_PREFIX) or _is_orchestrators(name):
                continue
            key = _BY_VARIABLE.get(name)
            if key is None:
                close = difflib.get_close_matches(name, _BY_VARIABLE, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                self.mistakes.append((_AFTER_FILE, f"{name}: unknown variable{hint}"))
                continue
            self._read_variable(name, key, environ[name])

    def _read_variable(self, name: str, key: Key, value: str) -> None:
        self.origins[key.name] = name
        try:
            self.values[key.name] = key.parser(_environment_node(key, value))
        except Refused as refused:
            self.wrong.add(key.name)
            for _, problem in refused.mistakes:
                self.mistakes.append((_AFTER_FILE, f"{name}: {key.name}: {problem}"))

    def build(self) -> Config:
        """The configuration. Use it only if no mistake was found."""
        for name, key in KEYS.items():
            if name not in self.origins and key.default is MISSING:
                self.wrong.add(name)
                problem = f"{name}: required, here or as {variable(name)}"
                self.mistakes.append((_AFTER_FILE, f"{self.path}: {problem}"))
            self.origins.setdefault(name, DEFAULT)
        good = {name: value for name, value in self.values.items() if name not in self.wrong}
        config = _assemble(good, self.origins)
        for keys, problem_of in RULES:
            broken = None if self.wrong.intersection(keys) else problem_of(config)
            if broken:
                self._mistake_of(keys, broken)
        return config

    def _mistake_of(self, keys: tuple[str, ...], problem: str) -> None:
        """Blame the first of the keys that somebody set: a default alone is never a mistake."""
        key = next((key for key in keys if self.origins[key] != DEFAULT), keys[0])
        origin = str(self.path) if self.origins[key] == DEFAULT else self.origins[key]
        line = origin.removeprefix(f"{self.path}:")
        self.mistakes.append((int(line) if line.isdecimal() else _AFTER_FILE, f"{origin}: {keys[0]}: {problem}"))

    def _mistake(self, node: yaml.Node, problem: str) -> None:
        line = node.start_mark.line + 1
        self.mistakes.append((line, f"{self.path}:{line}: {problem}"))


_AFTER_FILE = 1 << 30
"""The line number for mistakes without a line in the file, which sorts them last."""


def _compose(path: Path) -> yaml.Node | None:
    """The file as YAML nodes, which know their lines; None for an empty one."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise MinkaError(Code.INVALID_CONFIG, f"{path}: {error.strerror}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise MinkaError(Code.INVALID_CONFIG, f"{path}: larger than 1 MiB")
    try:
        root: yaml.Node | None = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise MinkaError(Code.INVALID_CONFIG, f"{path}{line}: not YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        line_number = content[: error.position].count(b"\n") + 1
        raise MinkaError(Code.INVALID_CONFIG, f"{path}:{line_number}: not text: {error.reason}") from error
    except RecursionError as error:
        raise MinkaError(Code.INVALID_CONFIG, f"{path}: nested too deeply") from error
    return root


def _environment_node(key: Key, value: str) -> yaml.Node:
    """A variable's value as the node of the same text in the file."""
    mark = yaml.Mark(variable(key.name), 0, 0, 0, None, 0)
    bare = yaml.ScalarNode("tag:yaml.org,2002:str", value, mark, mark)
    if not isinstance(key.parser, ListOf):
        return bare
    try:
        node: yaml.Node | None = yaml.compose(value, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        detail = error.problem if isinstance(error, yaml.MarkedYAMLError) else type(error).__name__
        raise Refused((bare, f"not YAML: {detail}")) from error
    return bare if node is None else node


def _is_orchestrators(name: str) -> bool:
    """True for variables that Kubernetes sets in every container of a namespace with a service named minkad."""
    return name == "MINKAD_PORT" or name.startswith(("MINKAD_PORT_", "MINKAD_SERVICE_"))


def _suggestion(name: str) -> str:
    leaf = name.rpartition(".")[2]
    elsewhere = [key for key in KEYS if key.rpartition(".")[2] == leaf]
    close = elsewhere or difflib.get_close_matches(name, [*KEYS, *SECTIONS], n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _assemble(values: Mapping[str, Any], origins: Mapping[str, str]) -> Config:
    """A Config of the values, with defaults for the others. None stands for a missing required value, which has been
    noted as a mistake.
    """

    def value(name: str) -> Any:
        default = KEYS[name].default
        return values.get(name, None if default is MISSING else default)

    parts: dict[str, Any] = {name: value(name) for name in KEYS if "." not in name}
    for section, kind in SECTIONS.items():
        prefix = f"{section}."
        parts[section] = kind(**{name.removeprefix(prefix): value(name) for name in KEYS if name.startswith(prefix)})
    return Config(**parts, origins=dict(origins))
