"""What a terminal shows of a running Spark job: a line with a bar for each stage."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from minkactl.job_facts import facts
from minkactl.strip import ASCII, UNICODE, bar

if TYPE_CHECKING:
    from minka.spark.progress import Progress

BAR: Final = 20  # cells


class View:
    """The stages that have begun."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._stages: dict[int, Progress] = {}

    def __call__(self, progress: "Progress") -> None:
        """Draw it where it was."""
        self._stages[progress.number] = progress
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column()
        for number in sorted(self._stages):
            table.add_row(*self._row(self._stages[number]))
        self._live.update(table, refresh=True)

    def _row(self, progress: "Progress") -> tuple[Text, Text, Text]:
        fraction = progress.fraction
        signs = ASCII if self._live.console.options.ascii_only else UNICODE
        full, rest = bar(round(100 * (fraction or 0)), BAR, signs)
        drawn = Text().append(full, style="green").append(rest, style="dim")
        if fraction is not None:
            drawn.append(f" {100 * fraction:3.0f} %")
        return Text(f"{progress.number}/{progress.stages} {progress.stage}"), drawn, Text(", ".join(facts(progress)))


@contextmanager
def drawn() -> Iterator[View]:
    """A view on stderr, whose last content stays."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        yield View(live)
