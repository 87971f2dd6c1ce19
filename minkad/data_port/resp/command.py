"""The description of a command: its arguments, its keys, the commands that it waits for, and the function that carries
it out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from minkad.data_port.resp.replies import RespError
from minkad.data_port.resp.slots import Slot

if TYPE_CHECKING:
    from minkad.data_port.resp.connection import RespConnection

Words = list[bytes]

MANY: Final = 1_000_000
"""Most words of commands with any number of keys: no limit, since the parser takes fewer."""

_NAME_BYTES: Final = 64
_INTEGER_BYTES: Final = 20
_FLOAT_BYTES: Final = 5 * 1024  # as in Redis
Run = Callable[["RespConnection", Words], bytes | Slot]


class Kind(Enum):
    """What a command waits for: earlier commands of its connection."""

    READ = "for its writes"
    WRITE = "for its reads"
    ANY = "for nothing"
    ALONE = "for everything"


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `arity` is the number of words with the name, and -3 means at least 3 words. Of the words from
    `first` to `last` (-1: the last word), each `step`th one is a key; if `first` is 0, the command has no keys. `tips`
    are those of Redis: how a client of a cluster asks several nodes.
    """

    name: str
    arity: int
    run: Run
    kind: Kind
    flags: tuple[str, ...]
    summary: str
    first: int = 0
    last: int = 0
    step: int = 0
    since: str = "1.0.0"
    group: str = "string"
    tips: tuple[str, ...] = ()
    most: int = 64  # words, where `arity` is below zero

    def check(self, words: Words) -> None:
        """Raises RespError for the wrong number of arguments."""
        if len(words) != self.arity if self.arity > 0 else not -self.arity <= len(words) <= self.most:
            raise wrong_number(self.name, self._limit() if self.last == -1 and len(words) > self.most else "")

    def keys(self, words: Sequence[bytes]) -> list[bytes]:
        """The keys among the words."""
        if not self.first:
            return []
        end = self.last + 1 if self.last >= 0 else len(words) + self.last + 1
        return list(words[self.first : end : self.step])

    def _limit(self) -> str:
        return f": at most {(self.most - self.first) // self.step} keys"


def wrong_number(name: str, limit: str = "") -> RespError:
    """The error for the wrong number of arguments. `limit`: the most that the command takes, if there are more."""
    return RespError(f"ERR wrong number of arguments for '{name.lower()}' command{limit}")


def syntax_error() -> RespError:
    """The error for options that don't exist or don't go together."""
    return RespError("ERR syntax error")


def upper(word: bytes) -> bytes:
    """The name of a command or an option, in capitals; b"" if the word is too long for a name."""
    return word.upper() if len(word) <= _NAME_BYTES else b""


def integer_of(word: bytes) -> int:
    """A signed 64-bit number, written as Redis writes it. Raises RespError."""
    if len(word) > _INTEGER_BYTES:
        raise not_an_integer()
    try:
        number = int(word)
    except ValueError:
        raise not_an_integer() from None
    if not -(2**63) <= number < 2**63 or str(number).encode() != word:
        raise not_an_integer()
    return number


def cursor_of(word: bytes) -> int:
    """An unsigned 64-bit number. Raises RespError."""
    if not word.isdigit() or len(word) > _INTEGER_BYTES or int(word) >= 2**64:
        raise RespError("ERR invalid cursor")
    return int(word)


def float_of(word: bytes) -> float:
    """A number with a point, or infinity. Raises RespError."""
    if len(word) > _FLOAT_BYTES or word != word.strip() or b"_" in word:
        raise not_a_float()
    try:
        number = float(word)
    except ValueError:
        raise not_a_float() from None
    if number != number:
        raise not_a_float()
    return number


def not_an_integer() -> RespError:
    """The error for a word that isn't a signed 64-bit number. Each call makes a new exception, since an exception that
    is raised again keeps the frames of all earlier times.
    """
    return RespError("ERR value is not an integer or out of range")


def not_a_float() -> RespError:
    """The error for a word that isn't a number with a point."""
    return RespError("ERR value is not a valid float")
