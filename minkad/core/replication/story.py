"""What happened to a replica lately, as dask's workers tell the story of a task."""

from collections import deque
from typing import Final, NamedTuple

_MOST: Final = 48  # things that are remembered of one replica


class Happened(NamedTuple):
    """An event, or an instruction that followed from it."""

    at: float  # by the node's clock, in seconds
    what: str
    times: int  # in a row; the offsets are those after the last time
    leader_epoch: int
    applied: int
    high_watermark: int
    durable: int
    end: int


class Story:
    """The last things that happened to one replica. It takes no memory until the first."""

    __slots__ = ("_lately",)

    def __init__(self) -> None:
        self._lately: deque[Happened] | None = None

    def add(self, happened: Happened) -> None:
        """Remember it. The same thing several times in a row takes one place."""
        if self._lately is None:
            self._lately = deque(maxlen=_MOST)
        elif self._lately[-1].what == happened.what:
            happened = happened._replace(times=self._lately.pop().times + 1)
        self._lately.append(happened)

    def all(self) -> list[Happened]:
        """The oldest first."""
        return list(self._lately or ())
