"""Counts the rows of the table that the controller visits, and finds the callers that go over all of them."""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from minka.v1.cluster_pb2 import Partition
from minkad.coordinator.active_controller import ActiveController
from minkad.core.state.partitions import Partitions

T = TypeVar("T")

_HERE: Final = (__file__, "<frozen _collections_abc>")
_INNER: Final = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>", "slices")


@dataclass(slots=True)
class Visits:
    """Counters of the visits of rows since the last `reset`."""

    rows: int = 0  # the number of visited rows, single or in walks over the table
    walks: Counter[str] = field(default_factory=Counter)  # by caller: the number of walks over the whole table
    # by caller: the processor time of its walks, in seconds
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def reset(self) -> None:
        """Set all counters to zero."""
        self.rows = 0
        self.walks.clear()
        self.seconds.clear()

    def walk(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, and count this as a walk over the whole table by the caller."""
        where = _caller()
        self.walks[where] += 1
        return self._walk(items, where)

    def _walk(self, items: Iterable[T], where: str) -> Iterator[T]:
        began = time.thread_time()
        try:
            for item in items:
                self.rows += 1
                yield item
        finally:
            self.seconds[where] += time.thread_time() - began


class WatchedRows(Partitions):
    """The rows of a `State`. It counts each visit of a row."""

    def __init__(self, rows: Partitions, visits: Visits) -> None:
        super().__init__()
        for name in Partitions.__slots__:
            setattr(self, name, getattr(rows, name))
        self._rows = rows
        self._visits = visits

    def __getitem__(self, id_: int) -> Partition:
        self._visits.rows += 1
        return super().__getitem__(id_)

    def __iter__(self) -> Iterator[int]:
        return self._visits.walk(super().__iter__())

    def encoded(self) -> Sequence[bytes]:
        """All rows, encoded. This counts as a walk over the whole table."""
        return list(self._visits.walk(super().encoded()))

    def copy(self) -> Any:
        """Return a copy of the rows. Visits of the copy's rows don't count."""
        return self._rows.copy()


def watch(controller: ActiveController) -> Visits:
    """Count from now on the visits of rows in a controller's decided and committed tables; returns the counters."""
    visits = Visits()
    for state in (controller.decided, controller._committed):
        state.partitions = WatchedRows(state.partitions, visits)
    return visits


def _caller() -> str:
    """Describe the function that goes over the rows, and its caller."""
    frame = sys._getframe(2)
    while frame.f_back is not None and (frame.f_code.co_filename in _HERE or frame.f_code.co_name in _INNER):
        frame = frame.f_back
    code = frame.f_code
    path = "/".join(Path(code.co_filename).parts[-3:])
    caller = frame.f_back.f_code.co_qualname if frame.f_back is not None else ""
    return f"{path}:{frame.f_lineno} {code.co_qualname} < {caller}"
