"""Divides rows into pieces, between which the event loop gets its turn."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

R = TypeVar("R")

ROWS_A_PIECE: Final = 250  # rows that take about a millisecond


def slices(rows: Iterable[R], at_most: int) -> Iterator[Sequence[R]]:
    """The rows in their order, up to `at_most` at a time."""
    rest = iter(rows)
    while some := list(islice(rest, at_most)):
        yield some
