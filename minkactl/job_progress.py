"""How far a Spark job is, on stderr: its stages drawn in their place on a terminal, else lines, few of them."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from minkactl import units
from minkactl.output import note

if TYPE_CHECKING:
    from minka.spark.progress import OnProgress, Progress

LINES_EVERY_S: Final = 10.0


@contextmanager
def shown(quiet: bool) -> "Iterator[OnProgress | None]":
    """What a job's progress is told to; None for nobody."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        from minkactl.job_view import drawn

        with drawn() as view:
            yield view
    else:
        yield Lines()


class Lines:
    """A line when a stage ends, and one every ten seconds while it runs."""

    def __init__(self) -> None:
        self._next = time.monotonic() + LINES_EVERY_S

    def __call__(self, progress: "Progress") -> None:
        """Hear of it."""
        if progress.is_over or time.monotonic() >= self._next:
            self._next = time.monotonic() + LINES_EVERY_S
            state = f"done in {units.duration(progress.seconds)}" if progress.is_over else "runs"
            note(f"{progress.number}/{progress.stages} {progress.stage}: {', '.join([state, *facts(progress)])}")


def facts(progress: "Progress") -> list[str]:
    """What is known of a stage: tasks, rows, bytes and rate, and how long it still takes while it runs."""
    found = []
    if progress.tasks and not progress.is_over:
        found.append(f"{progress.tasks_done:,} of {units.counted(progress.tasks, 'task')}")
    if progress.rows is not None:
        found.append(units.counted(progress.rows, "row"))
    if progress.bytes is not None:
        found.append(units.size(progress.bytes))
    rows_per_s, bytes_per_s = rates(progress)
    if rows_per_s:
        found.append(f"{rows_per_s:,.0f} rows/s")
    if bytes_per_s:
        found.append(units.rate(bytes_per_s))
    if progress.eta_s is not None and progress.eta_s >= 1:
        found.append(f"about {units.duration(progress.eta_s)} left")
    if progress.blocker:
        found.append(f"waits: {progress.blocker}")
    return found


def rates(progress: "Progress") -> tuple[float | None, float | None]:
    """Rows and bytes a second: as they are now, and of a stage that is over as they were on the whole."""
    if not progress.is_over:
        return progress.rows_per_s, progress.bytes_per_s
    seconds = max(progress.seconds, 0.001)
    return (
        None if progress.rows is None else progress.rows / seconds,
        None if progress.bytes is None else progress.bytes / seconds,
    )
