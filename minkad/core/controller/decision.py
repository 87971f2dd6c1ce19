"""A decision of the controller: the records that follow from a command, and the command's answer."""

from collections.abc import Generator, Iterable, Iterator
from typing import Generic, TypeVar

from google.protobuf.message import Message

from minka.v1.records_pb2 import Record

T = TypeVar("T")


class OwnCommand:
    """A command that isn't a request: the controller acts automatically, adds facts that only it knows to a request, or
    begins an operation.
    """

    __slots__ = ()


Command = OwnCommand | Message
"""A wanted change, to be decided. A request is a command itself if the decision needs nothing else. `decide.py` lists
all commands.
"""

Steps = Generator[list[Record], None, T]
"""Yields the records of a decision piece by piece, and returns the answer to the command. A piece takes at most a few
milliseconds, and all of its records are committed, or none; a piece without records was only a check. The caller
applies each piece to the state before it asks for the next piece, and decides no other command in between. A refusal
(MinkaError) is raised before the first record.
"""


class Decision(Generic[T]):
    """The records that follow from a command, in pieces, and the command's answer (Kafka: ControllerResult). There are
    no records if there is nothing to change: every command can be repeated.
    """

    answer: T  # set when all pieces are applied

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
