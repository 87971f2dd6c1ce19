"""How far a Spark job is, on stderr: its stages drawn in their place on a terminal, else lines, few of them."""

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
    """What a job's progress is told to; None for nobody."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        from minkactl.render.jobs import drawn

        with drawn() as view:
            yield view
    else:
        yield Lines()


class Lines:
    """A line when a stage ends, and one every ten seconds while it runs."""

    def __init__(self) -> None:
        self._next = time.monotonic() + LINES_EVERY_S

    def __call__(self, progress: "Progress") -> None:
        """Print the line that is due, if one is."""
        if progress.is_over or time.monotonic() >= self._next:
            self._next = time.monotonic() + LINES_EVERY_S
            state = f"done in {units.duration(progress.seconds)}" if progress.is_over else "runs"
            note(f"{progress.number}/{progress.stages} {progress.stage}: {', '.join([state, *facts(progress)])}")
