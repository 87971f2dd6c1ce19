r"""The format of data-driven test files: a directive line, its input, `----`, and the expected output.

    command arg key=value key=(a, b)
    input
    ----
    output

The output ends at a blank line. Output that contains blank lines begins after two lines `----`, and ends before two
more such lines. `#` begins a comment line. A directive line that ends in `\` continues on the next line.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SEPARATOR = "----"


class FormatError(Exception):
    """The file doesn't have this format; the text says where."""


@dataclass(frozen=True, slots=True)
class Arg:
    """`key`, `key=value` or `key=(value, value)`."""

    key: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One directive with its expected output."""

    line: int  # the line of the directive
    command: str
    args: tuple[Arg, ...]
    input: str
    expected: tuple[str, ...]
    expected_line: int  # the first line of the output

    def values(self, key: str) -> tuple[str, ...]:
        """The values of all arguments with this key."""
        return tuple(value for arg in self.args if arg.key == key for value in arg.values)

    def positional(self) -> list[str]:
        """The arguments without values."""
        return [arg.key for arg in self.args if not arg.values]


def parse_directive(text: str) -> tuple[str, tuple[Arg, ...]]:
    """Return (command, arguments). Raises FormatError."""
    command, _, rest = text.strip().partition(" ")
    args = []
    rest = rest.strip()
    while rest:
        arg, rest = _parse_arg(rest)
        args.append(arg)
        rest = rest.strip()
    return command, tuple(args)


def _parse_arg(text: str) -> tuple[Arg, str]:
    end = next((position for position, char in enumerate(text) if char in " ="), len(text))
    key, rest = text[:end], text[end:]
    if not key:
        raise FormatError(f"an argument has no name: {text}")
    if not rest.startswith("="):
        return Arg(key), rest
    rest = rest[1:]
    if rest.startswith("("):
        inner, rest = _parenthesized(rest)
        return Arg(key, tuple(_split_values(inner))), rest
    value, _, rest = rest.partition(" ")
    return Arg(key, (value,)), rest


def _parenthesized(text: str) -> tuple[str, str]:
    """Return the text within the first pair of parentheses, and the text after this pair."""
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[1:position], text[position + 1 :]
    raise FormatError(f"a parenthesis isn't closed: {text}")


def _split_values(text: str) -> Iterator[str]:
    """Split at commas and spaces, except within inner parentheses."""
    depth, start = 0, 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0 and char in ", ":
            if text[start:position].strip():
                yield text[start:position].strip()
            start = position + 1
    if text[start:].strip() or not text:
        yield text[start:].strip()


def read_cases(path: Path) -> Iterator[Case]:
    """Yield the cases of a file, in order. Raises FormatError."""
    lines = path.read_text(encoding="utf-8").split("\n")
    position = 0
    while position < len(lines):
        start = position
        text = lines[position].strip()
        position += 1
        if not text or text.startswith("#"):
            continue
        while text.endswith("\\") and position < len(lines):
            text = text[:-1] + " " + lines[position].strip()
            position += 1
        try:
            command, args = parse_directive(text)
        except FormatError as error:
            raise FormatError(f"{path}:{start + 1}: {error}") from error
        try:
            end = lines.index(SEPARATOR, position)
        except ValueError:
            raise FormatError(f"{path}:{start + 1}: there is no {SEPARATOR} after the directive") from None
        given = "\n".join(lines[position:end]).strip()
        first, expected, position = _read_expected(lines, end + 1)
        yield Case(start + 1, command, args, given, tuple(expected), first + 1)


def _read_expected(lines: list[str], position: int) -> tuple[int, list[str], int]:
    """Return (the position of the first line, the lines, the position after the last line)."""
    if position < len(lines) and lines[position] == SEPARATOR:
        start = end = position + 1
        while end < len(lines) and lines[end : end + 2] != [SEPARATOR, SEPARATOR]:
            end += 1
        return start, lines[start:end], end + 2
    end = position
    while end < len(lines) and lines[end].strip():
        end += 1
    return position, lines[position:end], end
