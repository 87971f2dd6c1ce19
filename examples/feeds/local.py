"""A feed server and workers as processes of this machine, and the polls that the server has seen."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from examples.feeds.items import Items
from minka.duties import Client, changes

PALLET: Final = "feeds"
QUIET_S: Final = 2.5  # without a poll for this long, a feed counts as polled by nobody
_STOP_TIMEOUT_S: Final = 40.0


@dataclass(frozen=True)
class Poll:
    """A worker's polls of one feed with one fencing token. `first` and `last` are the times of the first and the last
    poll, in seconds of the server's clock.
    """

    worker: str
    epoch: int
    first: float
    last: float


@dataclass(frozen=True)
class Polls:
    """The polls that the feed server has seen. `feeds`: by feed, its `Poll`s in the order in which they began, one for
    each worker and fencing token.
    """

    now: float
    published: int  # the number of items that the server has published
    out_of_turn: int  # polls with a smaller fencing token than an earlier poll of the feed
    feeds: list[list[Poll]]

    def since(self, moment: float) -> list[set[str]]:
        """For each feed, the workers that have polled it after this moment."""
        return [{poll.worker for poll in polls if poll.last > moment} for polls in self.feeds]

    def current(self) -> list[str]:
        """For each feed, the worker that polls it now, "" if none does."""
        last = [polls[-1] if polls else None for polls in self.feeds]
        return [poll.worker if poll is not None and poll.last > self.now - QUIET_S else "" for poll in last]

    def count(self) -> Counter[str]:
        """The number of feeds that each worker polls now."""
        return Counter(self.current())

    def orphans(self, gone: str) -> list[int]:
        """The feeds that this worker, which is gone, was the last to poll."""
        return [number for number, polls in enumerate(self.feeds) if polls and polls[-1].worker == gone]

    def resumed(self, gone: str) -> float:
        """The server's time at which the last of this worker's former feeds was polled by another worker."""
        return max(
            (last.first for polls in self.feeds for former, last in pairwise(polls) if former.worker == gone), default=0
        )


def weight(number: int) -> int:
    """The cost of a poll of a feed."""
    return 5 + number % 20


class LocalFeeds:
    """The feed server, the processes of the workers by name, and the file of items. `close`, or the end of the `with`,
    ends the processes.
    """

    def __init__(self, endpoints: Sequence[str], directory: Path, feeds: int) -> None:
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.feeds: Final = feeds
        self._endpoints = list(endpoints)
        self.directory = directory
        self.items: Final = Items(directory / "items.sqlite")
        self._server = subprocess.Popen(
            [sys.executable, "-m", "examples.feeds.server", "--feeds", str(feeds)], stdout=subprocess.PIPE
        )
        assert self._server.stdout is not None, "it was started with a pipe"
        self.url: Final = self._server.stdout.readline().decode().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        for process in (*self.workers.values(), self._server):
            process.kill()
            process.wait()
        if self._server.stdout is not None:
            self._server.stdout.close()
        self.items.close()

    def create_duties(self) -> None:
        """Create a pallet, and a duty for each feed: its payload is the feed's URL, its weight the cost of a poll."""
        with Client(self._endpoints, timeout=20.0) as duties:
            if PALLET not in {found.pallet.id for found in duties.pallets()}:
                duties.create_pallet(PALLET)
            made = [
                changes.create(PALLET, f"feed-{number:03}", f"{self.url}/feeds/{number}", weight=weight(number))
                for number in range(self.feeds)
            ]
            for first in range(0, len(made), 1000):
                duties.change(made[first : first + 1000])

    def start(self, *names: str) -> None:
        """Start workers; their output goes to NAME.log."""
        for name in names:
            command = [sys.executable, "-m", "examples.feeds.worker", "--name", name]
            command += ["--endpoints", ",".join(self._endpoints), "--items", str(self.directory / "items.sqlite")]
            with (self.directory / f"{name}.log").open("ab") as log:
                self.workers[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self, name: str) -> None:
        """Kill a worker with SIGKILL, and wait until it is gone."""
        os.kill(self.workers[name].pid, signal.SIGKILL)
        self.workers.pop(name).wait()

    def stop(self, name: str) -> int:
        """Send SIGTERM to a worker, and wait until it has ended; returns its exit status."""
        process = self.workers.pop(name)
        process.terminate()
        return process.wait(_STOP_TIMEOUT_S)

    def polls(self) -> Polls:
        """The polls that the server has seen so far."""
        with urllib.request.urlopen(f"{self.url}/polls", timeout=5.0) as response:
            seen = json.load(response)
        feeds = [[Poll(*poll) for poll in polls] for polls in seen.pop("feeds")]
        return Polls(**seen, feeds=feeds)
