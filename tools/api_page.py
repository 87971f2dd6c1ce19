"""Write docs/api.md: every public name of the library, with its signature, types and docstring, after the text of
tools/api_opening.md. This fails if a public function, method or field uses a type of Minka that isn't on the page.

python tools/api_page.py writes the page python tools/api_page.py --check fails if the page isn't what the code says
"""

import argparse
import ast
import dataclasses
import importlib
import inspect
import io
import itertools
import re
import ssl
import sys
import textwrap
import tokenize
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import minka
import minka.duties
from minka.errors import Code, kind_of

PAGE: Final = Path(__file__).parent.parent / "docs" / "api.md"
OPENING: Final = Path(__file__).parent / "api_opening.md"
MODULES: Final = (
    "minka",
    "minka.duties",
    "minka.duties.changes",
    "minka.admin",
    "minka.rows",
    "minka.spark",
    "minka.testing",
    "minka.testing.fixtures",
)
_WIDTH: Final = 110
# A class, and the class that has the same methods: the page describes the methods only there.
_TWINS: Final[dict[type, type]] = {
    minka.AsyncKeyspace: minka.AsyncClient,
    minka.Client: minka.AsyncClient,
    minka.Keyspace: minka.AsyncClient,
    minka.duties.Client: minka.duties.AsyncClient,
}
# Members that only Minka's own packages need, and that aren't public.
_INSIDE: Final = ("Admin.control", "Plan.message", "LocalNode.network", "LocalNode.process")
_FOR_TYPING: Final = {"Path": Path, "ssl": ssl}  # that modules import for the type checker alone


class _Page:
    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}  # by module and name; only names that no earlier module has
        self._names: dict[int, str] = {}  # by the value's id
        for name in MODULES:
            module = importlib.import_module(name)
            entries = self.entries[name] = {}
            for public in sorted(_public(module), key=str.lower):
                value = getattr(module, public)
                if id(value) not in self._names and not isinstance(value, ModuleType):
                    self._names[id(value)] = public
                    entries[public] = value
        every = [pair for entries in self.entries.values() for pair in entries.items()]
        self._aliases = {_plain(repr(value)): name for name, value in every if typing.get_origin(value) is not None}
        self._unlisted: dict[str, str] = {}  # what should be told and can't be, and where it is

    def text(self) -> str:
        """The whole page, in Markdown. Raises LookupError if a type that it names isn't on it."""
        parts = [OPENING.read_text("utf-8")]
        for module, entries in self.entries.items():
            parts += [f"## {module}\n", inspect.getdoc(sys.modules[module]) or "", ""]
            for name, value in entries.items():
                parts += [f"### {module}.{name}\n", *self._entry(name, value)]
        if self._unlisted:
            lines = [f"{what}, of {where}" for what, where in self._unlisted.items()]
            raise LookupError("not public, or not declared: " + "; ".join(lines))
        return "\n".join([*parts, *_codes()]).rstrip() + "\n"

    def _entry(self, name: str, value: Any) -> Iterator[str]:
        if marker := getattr(value, "_fixture_function_marker", None):
            function = value._get_wrapped_function()
            given = self._type(self._hints(function, name)["return"]).removeprefix("Iterator[").removesuffix("]")
            yield from (
                f"    {name}: {given}  # a fixture, scope: {marker.scope}\n",
                inspect.getdoc(function) or "",
                "",
            )
        elif inspect.isclass(value):
            yield from self._class(name, value)
        elif inspect.isroutine(value):
            yield from (*self._call(name, value, name), inspect.getdoc(value) or "", "")
        else:
            yield from (f"    {name} = {_plain(repr(value))}\n", _docstring_of_alias(name), "")

    def _class(self, name: str, kind: type[Any]) -> Iterator[str]:
        is_record = dataclasses.is_dataclass(kind) or issubclass(kind, Enum | BaseException | tuple)
        if not is_record and not _is_not_constructed(kind):
            yield from self._call(name, kind.__init__, name)
        yield from (inspect.getdoc(kind) or "", "")
        if issubclass(kind, BaseException):
            yield f"Its bases: {', '.join(f'`{base.__name__}`' for base in kind.__bases__)}.\n"
        if hasattr(kind, "__enter__") or hasattr(kind, "__aenter__"):
            yield f"It is a context manager: `{'async ' * hasattr(kind, '__aenter__')}with {name}(…) as …:`.\n"
        if kind is Code:
            yield "Its members are in the [table](#error-codes) at the end of this page.\n"
        else:
            yield from self._fields(name, kind)
        twin = _TWINS.get(kind)
        shared = [one for one, _ in _members(name, kind) if twin is not None and hasattr(twin, one)]
        for member, function in _members(name, kind):
            where = f"{name}.{member}"
            if isinstance(function, property):
                returned = self._type(self._hints(function.fget, where)["return"])
                yield f"**{member}** (`{returned}`): {inspect.getdoc(function) or ''}\n"
            elif member not in shared:
                yield from (f"**{member}**\n", *self._call(member, function, where), inspect.getdoc(function) or "", "")
        if twin is not None:
            how = "" if name.startswith("Async") else ", without `async` and `await`"
            told = f"Its methods are those of `{twin.__name__}`{how}: {', '.join(f'`{one}`' for one in shared)}."
            yield textwrap.fill(told, _WIDTH) + "\n"

    def _fields(self, name: str, kind: type[Any]) -> Iterator[str]:
        """The fields of a class or the members of an enum, each with its line in the source and the comment there."""
        lines: list[str] = []
        for parent in reversed(kind.__mro__):
            if parent is kind or id(parent) not in self._names:
                lines += self._own_fields(name, parent) if parent.__module__.startswith("minka.") else ()
            elif inspect.get_annotations(parent) and inspect.get_annotations(kind):
                lines.append(f"    # the fields of {self._names[id(parent)]}, and:")
        if dataclasses.is_dataclass(kind) and any(one.kw_only for one in dataclasses.fields(kind)):
            lines.insert(0, "    # by name only:")
        yield from (*lines, *([""] if lines else []))

    def _own_fields(self, name: str, kind: type[Any]) -> Iterator[str]:
        source = inspect.cleandoc("\n" + inspect.getsource(kind))
        comments = {
            token.start[0]: f"  {token.string}"
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        (tree,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
        declared = inspect.get_annotations(kind)
        for attribute in _set_when_made(tree):
            if attribute not in declared and not hasattr(kind, attribute) and f"{name}.{attribute}" not in _INSIDE:
                self._unlisted[f"the attribute {attribute}"] = name
        for node in tree.body:
            comment = comments.get(getattr(node, "end_lineno", None) or 0, "")
            if isinstance(node, ast.Assign) and issubclass(kind, Enum):
                yield f"    {ast.unparse(node)}{comment}"
            elif isinstance(node, ast.AnnAssign):
                field = ast.unparse(node.target)
                if field.startswith("_") or f"{name}.{field}" in _INSIDE:
                    continue
                hint = self._hints(kind, f"{name}.{field}", field)[field]
                said = ast.literal_eval(text) if (text := ast.unparse(node.annotation))[0] in "'\"" else text
                shown = self._type(hint) if "Literal" in str(hint) else said.removeprefix("Final[")
                shown = shown.removesuffix("]") if said.startswith("Final[") else shown
                yield f"    {field}: {shown}{_default(node.value)}{comment}"

    def _call(self, name: str, function: Any, where: str) -> Iterator[str]:
        """The call, as it is written, without `self`; a line for each argument if it is long. Of a function with
        overloads all of them.
        """
        overloads = typing.get_overloads(function) or [function]
        yield "\n".join("\n".join(self._one_call(name, one, where)) for one in overloads) + "\n"

    def _one_call(self, name: str, function: Any, where: str) -> Iterator[str]:
        self._hints(function, where)
        signature = inspect.signature(function)
        taken = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
        arguments = [self._shown(str(one)).replace("= Ellipsis", "= ...") for one in taken]
        kinds = [one.kind for one in taken]
        if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
            arguments.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
        returned = signature.return_annotation
        is_made = name[0].isupper() or returned is inspect.Signature.empty
        end = "" if is_made else f" -> {self._type(returned)}"
        prefix = "async " if inspect.iscoroutinefunction(function) else ""
        line = f"    {prefix}{name}({', '.join(arguments)}){end}"
        if len(line) <= _WIDTH:
            yield line
            return
        yield f"    {prefix}{name}("
        yield from (f"        {argument}," for argument in arguments)
        yield f"    ){end}"

    def _hints(self, value: Any, where: str, only: str = "") -> dict[str, Any]:
        """The types in the value's annotations, resolved. Types of Minka that aren't on the page go to `_unlisted`."""
        hints = typing.get_type_hints(value, localns=_FOR_TYPING)
        for name, hint in hints.items():
            for kind in _minka_types(hint) if only in ("", name) else ():
                if id(kind) not in self._names:
                    self._unlisted[f"{kind.__module__}.{kind.__name__}"] = where
        return hints

    def _type(self, hint: Any) -> str:
        return self._shown(inspect.formatannotation(hint))

    def _shown(self, text: str) -> str:
        text = _plain(text)
        for whole, name in self._aliases.items():
            text = text.replace(whole, name)
        return text


def _public(module: ModuleType) -> list[str]:
    names = getattr(module, "__all__", None)
    if names is not None:
        return [name for name in names if not name.startswith("__")]
    return [name for name, value in vars(module).items() if hasattr(value, "_fixture_function_marker")]


def _members(name: str, kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """The names and functions of the public methods and properties of a class and its private bases."""
    seen = set()
    for parent in kind.__mro__:
        if parent is kind or parent.__name__.startswith("_"):
            for member, value in vars(parent).items():
                function = inspect.unwrap(getattr(value, "__func__", value))
                is_method = inspect.isfunction(function) and not issubclass(kind, Enum)
                is_public = member[0] != "_" and f"{name}.{member}" not in _INSIDE
                if is_public and member not in seen and (is_method or isinstance(function, property)):
                    seen.add(member)
                    yield member, function


def _set_when_made(tree: ast.ClassDef) -> Iterator[str]:
    """The public attributes that the constructor sets."""
    for method in tree.body:
        for node in ast.walk(method) if isinstance(method, ast.FunctionDef) and method.name == "__init__" else ():
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
                    yield target.attr


def _minka_types(hint: Any) -> Iterator[type]:
    for part in hint if isinstance(hint, list) else typing.get_args(hint):
        yield from _minka_types(part)
    if isinstance(hint, type) and hint.__module__.partition(".")[0] == "minka":
        yield hint


def _is_not_constructed(kind: type[Any]) -> bool:
    """True if users don't call the class: its constructor takes something private, or the class is a protocol."""
    hints = list(inspect.signature(kind.__init__).parameters.values())
    is_protocol = hints[-1].kind is inspect.Parameter.VAR_KEYWORD
    return is_protocol or any(getattr(one.annotation, "__module__", "").startswith("minka.engine") for one in hints)


def _plain(text: str) -> str:
    """The text of types without the names of their modules and without quotes around types."""
    text = re.sub(r"<([\w.]+): [^>]*>", r"\1", text)  # the default of an argument that is an enum
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z_])", "", text)
    text = text.replace("~AnyKey", "bytes | str").replace("~AnyPartition", "Partition | str | int")
    text = re.sub(r"Optional\[(Literal\[[^]]*\])\]", r"\1 | None", text)
    return text if "Literal" in text else re.sub(r"(?<!= )'([^']+)'", r"\1", text)


def _default(value: ast.expr | None) -> str:
    """The default of a field as ` = …`; of a call of `field` only its default or its factory."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        given = {one.arg: ast.unparse(one.value) for one in value.keywords}
        text = given.get("default", f"{given['default_factory']}()" if "default_factory" in given else "")
    else:
        text = ast.unparse(value) if value is not None else ""
    return f" = {'...' if text.startswith('_') else text}" if text else ""


def _docstring_of_alias(name: str) -> str:
    """The docstring below the definition of an alias."""
    for module in [one for path, one in sys.modules.items() if path.startswith("minka.")]:
        body = ast.parse(inspect.getsource(module)).body if getattr(module, "__file__", None) else []
        for node, below in itertools.pairwise(body):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(one, ast.Name) and one.id == name for one in targets) and isinstance(below, ast.Expr):
                return inspect.cleandoc(ast.literal_eval(below.value))
    return ""


def _codes() -> Iterator[str]:
    yield "## Error codes\n"
    yield "| code | class | what it means | what helps | repeat? |"
    yield "|---|---|---|---|---|"
    for code in Code:
        info = code.info
        cells = (code.name, kind_of(code).__name__, info.meaning, info.remedy, "yes" if info.retriable else "no")
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> int:
    """Write or check the page. Returns the exit status: 0, or 1 if a type or the check fails."""
    parser = argparse.ArgumentParser(description="Write docs/api.md.")
    parser.add_argument("--check", action="store_true", help="fail if the page isn't what the code says")
    is_check = parser.parse_args().check
    try:
        text = _Page().text()
    except LookupError as error:
        print(error, file=sys.stderr)
        return 1
    if not is_check:
        PAGE.write_text(text, "utf-8")
    elif PAGE.read_text("utf-8") != text:
        print("docs/api.md isn't what the code says: run make api", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
