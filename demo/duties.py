"""The last act of the demo: a pallet of duties on three workers, one of which is killed."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from demo.story import chapter, minkactl, say
from examples.feeds.local import PALLET, LocalFeeds, Polls
from minka.duties import Client
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster

WORKERS: Final = ("fetcher-1", "fetcher-2", "fetcher-3")
VICTIM: Final = "fetcher-2"
FEEDS: Final = 60
GIVE_UP_S: Final = 30.0


def tell(cluster: LocalCluster) -> None:
    """Run the act on this cluster."""
    with (
        tempfile.TemporaryDirectory(prefix="minka-demo-") as directory,
        LocalFeeds(cluster.endpoints, Path(directory), FEEDS) as feeds,
    ):
        with chapter("The other half: work of your own. Three processes poll feeds, each feed is a duty"):
            feeds.start(*WORKERS)
            for name, process in feeds.workers.items():
                say(f"  {name}  (process {process.pid}, python -m examples.feeds.worker)")
            minkactl(cluster, "pallet", "create", PALLET)
            wait_live(cluster)
            feeds.create_duties()
            say(f"  {FEEDS} duties are created, each with the URL of a feed; the feed server says which polls it")
            wait(feeds, lambda polls: {*polls.current()} == {*WORKERS})
            minkactl(cluster, "pallets")
            minkactl(cluster, "shards")
        with chapter(f"kill -9 {feeds.workers[VICTIM].pid}: {VICTIM} is gone"):
            killed = feeds.polls()
            feeds.kill(VICTIM)
            say(f"  it polled {killed.count()[VICTIM]} feeds. Others get them when its last clearance must be over:")
            say("  3.6 s after its last heartbeat (shards.failure_timeout_ms)")
            taken = wait(feeds, lambda polls: not polls.orphans(VICTIM))
            say(f"  all of them are polled again, {taken.resumed(VICTIM) - killed.now:.1f} s after it was killed")
            minkactl(cluster, "shards")
            prove(feeds, taken.now)


def wait_live(cluster: LocalCluster) -> None:
    """Wait until the cluster knows the workers. Raises MinkaError if that takes too long."""
    deadline = time.monotonic() + GIVE_UP_S
    with Client(cluster.endpoints) as client:
        while len(client.shards().shards) < len(WORKERS):
            if time.monotonic() > deadline:
                raise MinkaError(Code.INTERNAL, f"not all workers are shards after {GIVE_UP_S:g} s")
            time.sleep(0.05)


def wait(feeds: LocalFeeds, done: Callable[[Polls], bool]) -> Polls:
    """Wait until `done` returns True for the polls. Raises MinkaError if that takes too long."""
    deadline = time.monotonic() + GIVE_UP_S
    while not done(polls := feeds.polls()):
        if time.monotonic() > deadline:
            raise MinkaError(Code.INTERNAL, f"after {GIVE_UP_S:g} s the feeds are polled by {dict(polls.count())}")
        time.sleep(0.05)
    return polls


def prove(feeds: LocalFeeds, since: float) -> None:
    """Check that since `since` only one worker polled each feed, and that no poll was ever out of turn. Raises
    MinkaError if not.
    """
    seen = wait(feeds, lambda polls: all(polls.since(since)))
    several = [f"feed {number} by {some}" for number, some in enumerate(seen.since(since)) if len(some) > 1]
    if several or seen.out_of_turn:
        raise MinkaError(Code.INTERNAL, f"{seen.out_of_turn} polls were out of turn; polled by several: {several}")
    shares = ", ".join(f"{name} {count}" for name, count in sorted(seen.count().items()))
    say(f"  the feed server: each of the {len(seen.feeds)} feeds is polled by one process ({shares}),")
    say("  and no process ever polled a feed after another one had got it (by the fencing tokens)")
