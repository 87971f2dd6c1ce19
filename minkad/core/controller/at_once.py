"""Any number of records that are committed together or not at all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from minka.v1.records_pb2 import Record

ROWS_A_STEP: Final = 250  # moves or migrations; they take a few milliseconds to check or to change


@dataclass(frozen=True, slots=True)
class AtOnce:
    """The records of one Raft entry, piece by piece. Each piece has to be applied before the next is asked for; a piece
    without records was only a check. A refusal comes before the first record. No other command may be decided in
    between.
    """

    pieces: Iterator[Sequence[Record]]

    def __iter__(self) -> Iterator[Record]:
        for piece in self.pieces:
            yield from piece
