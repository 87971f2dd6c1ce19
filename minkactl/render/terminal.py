"""The terminal: its console, its characters, and a place on it that is drawn again and again."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.segment import SegmentLines
from rich.text import Text

from minkactl.strip import ASCII, UNICODE, Signs

MAX_WIDTH: Final = 10_000


def console() -> Console:
    """The console of stdout, without markup and highlighting, so that text is printed as it is."""
    return Console(highlight=False, markup=False, emoji=False)


@cache
def signs() -> Signs:
    """The characters that stdout can show."""
    return ASCII if console().options.ascii_only else UNICODE


def show(renderable: RenderableType) -> None:
    """Print it once. What can't be made as narrow as the terminal is printed wider, and not cut off."""
    target = console()
    target.width = max(target.width, _needed(renderable))
    target.print(renderable)


def _needed(renderable: RenderableType) -> int:
    """The least width that it needs, in cells."""
    target = console()
    return Measurement.get(target, target.options.update(max_width=MAX_WIDTH), renderable).minimum


class Screen:
    """A place on the terminal that is drawn again and again."""

    def __init__(self, live: Live, way_out: str) -> None:
        self._live = live
        self._way_out = way_out

    def draw(self, renderable: RenderableType) -> None:
        """Replace the content. If it is higher than the terminal, say how many lines are missing, and `way_out`."""
        self._live.update(self._as_high_as_the_terminal(renderable), refresh=True)

    def _as_high_as_the_terminal(self, renderable: RenderableType) -> RenderableType:
        target = self._live.console
        room = target.height - 1  # the cursor's line
        lines = target.render_lines(renderable, pad=False)
        if len(lines) <= room:
            return renderable
        kept = max(room - 1, 1)
        text = f"… {len(lines) - kept:,} of {len(lines):,} lines don't fit: make the terminal higher{self._way_out}"
        return Group(SegmentLines(lines[:kept], new_lines=True), Text(text, style="yellow", no_wrap=True))

    def say(self, text: str) -> None:
        """Print a line above the place."""
        self._live.console.print(Text(text, style="yellow"))


@contextmanager
def screen(way_out: str) -> Iterator[Screen]:
    """A Screen, which keeps its last content when it ends. `way_out`: the other way to see content that doesn't fit on
    it.
    """
    with Live(console=console(), auto_refresh=False, vertical_overflow="ellipsis") as live:
        yield Screen(live, way_out)
