"""Shows on stderr how far a Spark job is: on a terminal its stages are drawn in place, else there are a few lines."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from minkactl import units
from minkactl.job_facts import facts
from minkactl.output import note

if TYPE_CHECKING:
    from minka.spark.progress import OnProgress, Progress

LINES_EVERY_S: Final = 10.0


@contextmanager
def shown(quiet: bool) -> "Iterator[OnProgress | None]":
    """The function to which a job tells its progress; None if nobody wants to see it."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        from minkactl.render.jobs import drawn

        with drawn() as view:
            yield view
    else:
        yield Lines()


class Lines:
    """Prints a line when a stage ends, and one every ten seconds while it runs."""

    def __init__(self) -> None:
        self._next = time.monotonic() + LINES_EVERY_S

    def __call__(self, progress: "Progress") -> None:
        """Print the line that is due, if one is."""
        if progress.is_over or time.monotonic() >= self._next:
            self._next = time.monotonic() + LINES_EVERY_S
            state = f"done in {units.duration(progress.seconds)}" if progress.is_over else "runs"
            note(f"{progress.number}/{progress.stages} {progress.stage}: {', '.join([state, *facts(progress)])}")
