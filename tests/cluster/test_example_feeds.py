"""The example of duties does what its README says: workers are killed, and each feed is polled by one living worker."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from examples.feeds.items import Items, StaleToken
from examples.feeds.local import LocalFeeds, Polls
from minka.testing.local_cluster import LocalCluster
from tests.cluster.cluster import QUICK, eventually
from tests.cluster.shards import QUICK_SHARDS

FEEDS = 60


@pytest.fixture
def feeds(tmp_path: Path) -> Iterator[LocalFeeds]:
    config = {**QUICK, "shards": QUICK_SHARDS}
    with LocalCluster(3, config=config) as cluster, LocalFeeds(cluster.endpoints, tmp_path, FEEDS) as feeds:
        feeds.create_duties()
        yield feeds


def settled(feeds: LocalFeeds) -> Polls:
    """Wait until exactly one worker polls each feed, and each living worker polls some feeds. If a feed moves
    meanwhile, begin to wait again. Returns the polls.
    """
    begun = feeds.polls().now

    def probe() -> Polls | None:
        nonlocal begun
        polls = feeds.polls()
        since = polls.since(begun)
        if not all(since):
            return None
        if all(len(some) == 1 for some in since) and set().union(*since) == set(feeds.workers):
            return polls
        begun = polls.now
        return None

    return eventually("each feed is polled by one living worker", probe)


def stored_by(feeds: LocalFeeds) -> set[str]:
    """Return the workers that have stored items."""
    return {worker for _, worker in feeds.items.all().values()}


def test_each_feed_is_polled_by_one_living_worker_after_others_were_killed(feeds: LocalFeeds) -> None:
    feeds.start("one", "two", "three")
    eventually("each has stored something", lambda: stored_by(feeds) == {"one", "two", "three"})
    before = settled(feeds)
    feeds.kill("two")
    after = settled(feeds)
    assert {*after.current()} == {"one", "three"}

    assert feeds.stop("three") == 0
    last = settled(feeds)
    assert {*last.current()} == {"one"}
    for polls in last.feeds:
        for earlier, later in pairwise(polls):
            assert earlier.epoch < later.epoch, f"{earlier}, then {later}"
    assert last.out_of_turn == 0

    eventually("all items that were published before are stored", lambda: len(feeds.items.all()) >= last.published)
    assert stored_by(feeds) == {"one", "two", "three"}
    for feed, polls in enumerate(before.feeds):  # writes of the killed worker that arrive only now are refused
        if polls[-1].worker == "two":
            with pytest.raises(StaleToken):
                feeds.items.add(f"feed-{feed:03}", polls[-1].epoch, "two", {"late": "too late"})


def test_items_are_stored_once_and_refused_from_who_has_lost_the_feed(tmp_path: Path) -> None:
    first, second = (Items(tmp_path / "items.sqlite") for _ in range(2))
    assert first.add("a", 5, "one", {"1": "x", "2": "y"}) == 2
    assert second.add("a", 7, "two", {"1": "x", "2": "y", "3": "z"}) == 1
    for items in ({"4": "new"}, {"3": "z"}):
        with pytest.raises(StaleToken):
            first.add("a", 5, "one", items)
    assert first.add("b", 6, "one", {"1": "x"}) == 1
    assert second.all() == {
        ("a", "1"): (5, "one"),
        ("a", "2"): (5, "one"),
        ("a", "3"): (7, "two"),
        ("b", "1"): (6, "one"),
    }
    first.close()
    second.close()
