"""Checks callers' arguments before anything is done with them. Each function raises MinkaError(INVALID_ARGUMENT), which
says what was given and what is allowed.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from operator import index
from typing import Any, Final, SupportsIndex, TypeGuard, TypeVar

from minka.engine.grpc_calls import clipped
from minka.errors import Code, MinkaError

_Item = TypeVar("_Item")

MAX_SECONDS: Final = 10**12  # over 30,000 years: longer than any timeout needs to be


def invalid(message: str) -> MinkaError:
    """The error for a caller's argument."""
    return MinkaError(Code.INVALID_ARGUMENT, message)


def is_number(given: Any) -> TypeGuard[float]:
    """True for an int or a float. A bool is an int in Python, but here it isn't a number: `timeout=True` is a mistake,
    not one second.
    """
    return isinstance(given, int | float) and not isinstance(given, bool)


def whole_number(given: Any) -> int | None:
    """The int that `given` is or stands for, as numpy's integers do; None for anything else, a bool included."""
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        with contextlib.suppress(TypeError):  # numpy's arrays have `__index__`, which raises this
            return index(given)
    return None


def checked_timeout(seconds: Any, name: str = "timeout") -> float:
    """Return the argument `name`, a positive time in seconds. Times up to `MAX_SECONDS` fit into messages to nodes."""
    if not is_number(seconds) or not 0 < seconds <= MAX_SECONDS:
        raise invalid(f"{name}={clipped(repr(seconds))} isn't a positive time in seconds, up to {MAX_SECONDS:,}")
    return seconds


def items(given: Iterable[_Item], wanted: str) -> Iterator[_Item]:
    """The items of a caller's argument. A str or bytes is refused, since its characters would count as items."""
    if not isinstance(given, str | bytes):
        with contextlib.suppress(TypeError):
            return iter(given)
    raise invalid(f"{wanted} are wanted, not {type(given).__name__}")


def checked_text(given: Any, what: str, problem_of: Callable[[str], str]) -> str:
    """Return `given` if it is a str in which `problem_of` finds no problem. `what` is its name in an error."""
    if not isinstance(given, str):
        raise invalid(f"{what} is {type(given).__name__}, not str")
    utf8(given, what)
    if problem := problem_of(given):
        raise invalid(f"{what} {problem}: {clipped(repr(given))}")
    return given


def utf8(text: str, what: str) -> bytes:
    """The UTF-8 form of the text. `what` is the text's name in an error."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise invalid(f"{what} {text[:40]!r} isn't UTF-8 text: {error.reason}") from None
