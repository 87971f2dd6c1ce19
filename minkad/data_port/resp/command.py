"""What is known of each command: its arguments, its keys, what it may overtake, and what carries it out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from minkad.data_port.resp.replies import RespError
from minkad.data_port.resp.slots import Slot

if TYPE_CHECKING:
    from minkad.data_port.resp.connection import RespConnection

Words = list[bytes]
Run = Callable[["RespConnection", Words], bytes | Slot]


class Kind(Enum):
    """What a command waits for, of the same connection."""

    READ = "for its writes"
    WRITE = "for its reads"
    ANY = "for nothing"
    ALONE = "for everything"


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `arity` counts the name; below zero it is the least number. Keys are at the places `first` to `last`
    (below zero: from the end), every `step`; 0 means that there are none. `tips` are
    those of Redis: how a client of a cluster asks several nodes.
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

    def check(self, words: Words) -> None:
        """Raises RespError for the wrong number of arguments."""
        if len(words) != self.arity if self.arity > 0 else len(words) < -self.arity:
            raise wrong_number(self.name)

    def keys(self, words: Sequence[bytes]) -> list[bytes]:
        """The keys among the words."""
        if not self.first:
            return []
        end = self.last + 1 if self.last >= 0 else len(words) + self.last + 1
        return list(words[self.first : end : self.step])


def wrong_number(name: str) -> RespError:
    """The error for the wrong number of arguments."""
    return RespError(f"ERR wrong number of arguments for '{name.lower()}' command")


def syntax_error() -> RespError:
    """The error for options that don't exist or don't go together."""
    return RespError("ERR syntax error")


def integer_of(word: bytes) -> int:
    """A number of 64 bits with sign, written as Redis writes it. Raises RespError."""
    try:
        number = int(word)
    except ValueError:
        raise NOT_AN_INTEGER from None
    if not -(2**63) <= number < 2**63 or str(number).encode() != word:
        raise NOT_AN_INTEGER
    return number


NOT_AN_INTEGER = RespError("ERR value is not an integer or out of range")
NOT_A_FLOAT = RespError("ERR value is not a valid float")
