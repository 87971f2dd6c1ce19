"""Reads from any replica, with a bound on the age of the data."""

import asyncio
from pathlib import Path

import pytest

from minka.errors import Code
from tests.integration.replication.harness import cluster
from tests.integration.replication.node import Refused, until
from tests.integration.replication.replicas import applied, three, until_fresh


async def test_each_replica_answers_stale_reads(tmp_path: Path) -> None:
    """Each replica answers with a bound on the age of its data. The age grows while the leader is gone."""
    async with cluster(tmp_path) as c:
        nodes = await three(c)
        athens, byzantium, cyrene = nodes
        many = {b"%d" % i: b"v%d" % i for i in range(200)}
        await athens.put(1, {b"a": b"1", **many})
        for node in nodes:
            await applied(node, 1)
            for keys in ([b"a", b"b"], [*many]):
                await until_fresh(node, 400)
                read = await node.get_stale(1, *keys)
                assert read.values == [{b"a": b"1", **many}.get(key) for key in keys]
        assert (await athens.get_stale(1, b"a")).age_ms == 0
        await athens.kill()
        cyrene.clearance = False
        ages = []
        for _ in range(3):
            ages.append((await cyrene.get_stale(1, b"a")).age_ms)
            await asyncio.sleep(0.05)
        assert ages[2] >= ages[0] + 100
        await c.fail("athens")
        await until(lambda: byzantium.replica().state.is_ready)
        await byzantium.put(1, {b"a": b"2"})
        await until(lambda: cyrene.replica().state.applied == 2)
        assert (await cyrene.get_stale(1, b"a")).values == [b"2"]
        await cyrene.kill()
        await cyrene.start()
        with pytest.raises(Refused) as caught:
            await cyrene.get_stale(1, b"a")
        assert caught.value.error.code is Code.AGE_UNKNOWN


async def test_a_follower_hears_the_age_of_its_data_with_entries(tmp_path: Path) -> None:
    """An idle follower seldom hears how old its data is. But when it gets entries, it hears the age with them."""
    async with cluster(tmp_path) as c:
        athens, _, cyrene = await three(c)
        await athens.put(1, {b"a": b"1"})
        await until(lambda: 0.6 < cyrene.manager.routing.age(cyrene.replica()) < 2)
        await athens.put(1, {b"a": b"2"})
        await until_fresh(cyrene, 200)


async def test_a_leader_without_clearance_does_not_make_followers_fresh(tmp_path: Path) -> None:
    """A leader without clearance still sends frames, but they don't make followers' data fresh: another node may have
    newer writes.
    """
    async with cluster(tmp_path) as c:
        athens, _, cyrene = await three(c)
        await athens.put(1, {b"a": b"1"})
        await until_fresh(cyrene, 1000)
        athens.clearance = False
        await until(lambda: cyrene.manager.routing.age(cyrene.replica()) > 1.5)


async def test_the_age_of_a_stale_read_is_a_bound(tmp_path: Path) -> None:
    """A follower returns a counter's value that isn't older than the age in the answer."""
    async with cluster(tmp_path) as c:
        athens, _, cyrene = await three(c)
        loop, history, done = asyncio.get_running_loop(), [(0.0, 0)], False

        async def count() -> None:
            while not done:
                await athens.put(1, {b"a": b"%d" % (history[-1][1] + 1)})
                history.append((loop.time(), history[-1][1] + 1))

        counting = asyncio.create_task(count())
        await until(lambda: len(history) > 10)
        await until_fresh(cyrene, 1000)
        for i in range(200):
            if i % 50 == 25:  # for a while, the follower applies nothing
                cyrene.manager.node.mark_begun(cyrene.replica(), 0.0)
            if i % 50 == 35:
                cyrene.manager.node.mark_ended(cyrene.replica(), cyrene.replica().data, 0.0, is_passed=True)
            await asyncio.sleep(0.005)
            now = loop.time()
            read = await cyrene.get_stale(1, b"a")
            newest = max(number for at, number in history if at <= now - read.age_ms / 1000)
            assert int(read.values[0] or b"0") >= newest
        done = True
        await counting


async def test_a_leader_whose_clearance_has_ended_counts_the_age_from_its_end(tmp_path: Path) -> None:
    """The former leader has every acknowledged write, and no other node can have led while it had clearance. So it can
    answer stale reads even if all other replicas are gone.
    """
    async with cluster(tmp_path) as c:
        athens, byzantium, cyrene = await three(c)
        await athens.put(1, {b"a": b"1"})
        await byzantium.kill()
        await cyrene.kill()
        athens.clearance = False
        ended = asyncio.get_running_loop().time()
        await asyncio.sleep(0.05)
        read = await athens.get_stale(1, b"a")
        passed = asyncio.get_running_loop().time() - ended
        assert read.values == [b"1"]
        assert 50 <= read.age_ms <= passed * 1000 + 2
        assert athens.manager.reporting.stale_reads() == 1
        athens.manager.stop_leading()  # as if the controller had counted this process as dead
        later = await athens.get_stale(1, b"a")
        assert later.values == [b"1"]
        assert later.age_ms >= read.age_ms
