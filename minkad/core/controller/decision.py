"""A decision of the controller: the records that follow from a command, and the command's answer."""

from collections.abc import Generator, Iterable, Iterator
from typing import Generic, TypeVar

from google.protobuf.message import Message

from minka.v1.records_pb2 import Record

T = TypeVar("T")


class OwnCommand:
    """A command that isn't a request: the controller takes the initiative, adds to a request what it alone knows, or
    begins an operation.
    """

    __slots__ = ()


Command = OwnCommand | Message
"""Something to be decided. A request that says everything is a command itself. `decide.py` lists all commands."""

Steps = Generator[list[Record], None, T]
"""Yields the records of a decision piece by piece, and returns the answer to the command. A piece takes a few
milliseconds at most, and is recorded as a whole; a piece without records was only a check. Each piece has to be applied
to the state before the next is asked for, and no other command may be decided in between. A refusal (MinkaError) comes
before the first record.
"""


class Decision(Generic[T]):
    """The records that follow from a command, in pieces, whether they belong together, and the command's answer
    (Kafka: ControllerResult). No records: there is nothing to change, since every command can be repeated.
    """

    answer: T  # once all pieces are applied

    def __init__(self, steps: Steps[T], *, is_atomic: bool) -> None:
        """`is_atomic`: either all pieces are committed, or none. Otherwise each may be committed alone: a new
        controller can go on from the state after any piece.
        """
        self._steps = steps
        self.is_atomic = is_atomic

    def __iter__(self) -> Iterator[list[Record]]:
        self.answer = yield from self._steps


def one_by_one(records: Iterable[Record]) -> Steps[None]:
    """Each record is a piece."""
    for record in records:
        yield [record]
