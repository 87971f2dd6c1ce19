"""The last events of a replica, for reports of bugs (dask: the story of a task)."""

from collections import deque
from typing import Final, NamedTuple

_MOST: Final = 48  # at most this many are remembered of one replica


class Happened(NamedTuple):
    """An event, or an instruction that followed from an event."""

    at: float  # by the node's clock, in seconds
    what: str
    times: int  # the number of times in a row; `at` and the offsets are those of the last time
    leader_epoch: int
    applied: int
    high_watermark: int
    durable: int
    end: int


class Story:
    """The last events of one replica. It takes no memory until the first event."""

    __slots__ = ("_lately",)

    def __init__(self) -> None:
        self._lately: deque[Happened] | None = None

    def add(self, happened: Happened) -> None:
        """Remember an event. Equal events in a row take one place together."""
        if self._lately is None:
            self._lately = deque(maxlen=_MOST)
        elif self._lately[-1].what == happened.what:
            happened = happened._replace(times=self._lately.pop().times + 1)
        self._lately.append(happened)

    def all(self) -> list[Happened]:
        """The oldest first."""
        return list(self._lately or ())
