"""Four workers poll two hundred feeds; one is killed, and the others take over: `python -m examples.feeds.run`."""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from examples.feeds.local import LocalFeeds, Polls, weight
from minka.testing.local_cluster import LocalCluster

NAMES: Final = ("worker-1", "worker-2", "worker-3", "worker-4")
VICTIM: Final = "worker-2"
BAR: Final = 30  # the characters of the longest bar
LOOK_S: Final = 0.25
GIVE_UP_S: Final = 60.0


class Show:
    """A table of workers and their feeds. On a terminal it is updated all the time; in other output it is printed only
    at the end of each step of the example.
    """

    def __init__(self, feeds: LocalFeeds) -> None:
        self._feeds = feeds
        self._console = Console()
        self._since = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line that explains the next step."""
        self._console.print(f"\n[bold]{text}", highlight=False, soft_wrap=True)

    def until(self, done: Callable[[Polls], bool], for_s: float = 0.0) -> None:
        """Show the table until `done` is true, and at least for `for_s` seconds. Raises TimeoutError."""
        began = time.monotonic()
        with Live(console=self._console, auto_refresh=False) as live:
            while True:
                polls = self._feeds.polls()
                live.update(self._table(polls), refresh=True)
                if done(polls) and time.monotonic() > began + for_s:
                    break
                if time.monotonic() > began + max(for_s, GIVE_UP_S):
                    raise TimeoutError(f"no success within {GIVE_UP_S:g} s; the logs are in {self._feeds.directory}")
                time.sleep(LOOK_S)

    def _table(self, polls: Polls) -> Table:
        counts, stored = polls.count(), self._feeds.items.count()
        weights = Counter[str]()
        for number, name in enumerate(polls.current()):
            weights[name] += weight(number)
        table = Table(box=None, header_style="bold", pad_edge=False)
        for head in ("worker", "process", "feeds", "weight", "", "items stored"):
            table.add_column(head, justify="left" if head in ("worker", "") else "right")
        for name in NAMES:
            process = self._feeds.workers.get(name)
            bar = "█" * round(BAR * weights[name] / weights.total())
            cells = (str(process.pid) if process else "gone", str(counts[name]), str(weights[name]), bar)
            table.add_row(name, *cells, str(stored.get(name, 0)))
        table.add_row("nobody", "", str(counts[""]), str(weights[""]))
        table.caption = f"{polls.published} items were published. {polls.out_of_turn} polls were out of turn."
        table.caption_justify = "left"
        return table


def tell(cluster: LocalCluster, feeds: LocalFeeds, stay: bool) -> None:
    """Run the steps of the example: start the workers, kill one of them, and start it again."""
    show = Show(feeds)
    show.say(f"Three nodes, {len(NAMES)} workers, {feeds.feeds} feeds at {feeds.url}. In another terminal:")
    print(f"  export MINKA_ENDPOINTS={','.join(cluster.endpoints)}\n  .venv/bin/minkactl shards --watch")
    feeds.start(*NAMES)
    feeds.create_duties()
    show.until(lambda polls: len(polls.count()) == len(NAMES) and "" not in polls.current(), 3.0)
    if stay:
        show.say(f"Kill one (kill -9 {feeds.workers[VICTIM].pid}), and watch. Ctrl-C ends it all.")
        show.until(lambda _: False, float("inf"))
    show.say(f"kill -9 {feeds.workers[VICTIM].pid} ({VICTIM})")
    began = feeds.polls().now
    feeds.kill(VICTIM)
    show.until(lambda polls: "" not in polls.current() and not polls.orphans(VICTIM), 3.0)
    show.say(f"Its feeds were polled again after {feeds.polls().resumed(VICTIM) - began:.1f} s. It is started again:")
    feeds.start(VICTIM)
    show.until(lambda polls: len(polls.count()) == len(NAMES) and "" not in polls.current(), 3.0)


def main() -> None:
    """Run the example. At the end all its processes have ended, and it leaves no file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--feeds", type=int, default=200, help="the number of feeds")
    parser.add_argument("--stay", action="store_true", help="kill nobody, and go on until Ctrl-C")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="minka-feeds-") as directory, LocalCluster(3) as cluster:
        try:
            with LocalFeeds(cluster.endpoints, Path(directory), given.feeds) as feeds:
                tell(cluster, feeds, given.stay)
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
