"""Periodic work doesn't look at partitions in which nothing happens."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from minkad.core.replication.leadership import Leader
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.replication.changing import sizing
from minkad.replication.sending import replication_sender
from tests.integration.replication.harness import cluster
from tests.integration.replication.node import led, until
from tests.integration.replication.replicas import three


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Counter[str]:
    """Count the calls of a method from now on."""
    calls: Counter[str] = Counter()
    method = getattr(owner, name)

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return method(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, count)
    return calls


async def test_a_leadership_is_checked_only_after_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, Leader, "check")
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=0.08)) as c:
        athens, *_ = await three(c)
        unsettled = athens.manager.node.shared.unsettled
        for value in (b"1", b"2"):
            await until(lambda: not unsettled)
            before = calls["check"]
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert calls["check"] == before
            await athens.put(1, {b"a": value})
            await until(lambda was=before: calls["check"] > was)  # type: ignore[misc]


async def test_each_partition_hears_only_once_that_a_node_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a follower is away, the leader marks the follower as disconnected in each partition only once. After a
    later failed attempt to connect, the leader marks the follower again only in few partitions: those in the first
    frame that this attempt would have sent.
    """
    monkeypatch.setattr(replication_sender, "_FRAME_APPENDS", 2)
    calls = counted(monkeypatch, Leader, "disconnected")
    partitions, tries = 40, 5
    async with cluster(tmp_path) as c:
        athens, *_, cyrene = await three(c, *range(1, partitions + 1))
        leaders = [led(athens, id_) for id_ in range(1, partitions + 1)]
        await until(lambda: all(leader.progress["cyrene"].is_aligned for leader in leaders))
        calls.clear()
        sender = athens.manager.senders._senders["cyrene"]
        first = sender._connection
        await cyrene.kill()
        await until(lambda: sender._connection >= first + tries)
        assert partitions <= calls["disconnected"] <= partitions + 2 * (sender._connection - first)


async def test_a_size_is_checked_soon_after_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "_INTERVAL_S", 0.01)
    monkeypatch.setattr(sizing, "_ROUND", 10_000)
    looked: list[int] = []
    check = sizing.SizeCheck._check

    async def note(self: sizing.SizeCheck, replica: Any) -> None:
        looked.append(replica.id)
        await check(self, replica)

    monkeypatch.setattr(sizing.SizeCheck, "_check", note)
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", *range(1, 9))
        for id_ in range(1, 9):
            await athens.put(id_, {b"k": b"v"})
        changed = athens.manager.figures.to_measure
        await until(lambda: not changed)
        looked.clear()
        await athens.put(5, {b"k": b"w"})
        await until(lambda: 5 in looked and not changed)
        assert Counter(looked)[5] <= 3
        looked.clear()
        await until(lambda: len(looked) >= 8)  # a later round looks at each partition
        assert len(set(looked)) == 8
