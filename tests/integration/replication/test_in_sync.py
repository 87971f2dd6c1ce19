"""The in-sync set: a follower that lags leaves the set, and returns when it has caught up. Writes wait for all replicas
in the set, and are refused when there are too few.
"""

import asyncio
import time
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import AlterIsrRequest, AlterIsrResponse
from minkad.core.replication.messages import Append
from minkad.core.replication.progress import Progress
from minkad.core.replication.settings import ReplicationSettings
from tests.integration.replication.harness import cluster
from tests.integration.replication.node import Refused, led, until
from tests.integration.replication.replicas import cut_off, same_everywhere, three
from tests.integration.replication.writers import Watch, Writers


async def test_who_lags_leaves_and_returns(tmp_path: Path) -> None:
    """Writes wait for a follower that lags, at most as long as the setting says. Once it has caught up, they wait for
    it again.
    """
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=0.3)) as c:
        athens, byzantium, cyrene = await three(c)
        await athens.put(1, {b"a": b"1"})
        committer = cyrene.manager.committer
        sync, held = committer.sync, asyncio.Event()
        committer.sync = lambda replica, *, to_disk: held.set()  # type: ignore[method-assign] # it takes no time for its disk
        await athens.put(1, {b"b": b"2"})
        assert held.is_set()
        assert c.rows[1].isr == ["athens", "byzantium"]
        await athens.put(1, {b"c": b"3"})
        assert athens.replica().high_watermark == 3
        committer.sync = sync  # type: ignore[method-assign]
        await athens.put(1, {b"d": b"4"})
        await same_everywhere(c)
        assert cyrene.replica().log.end == 4
        assert byzantium.replica().applied == 4


async def test_who_lacks_something_does_not_join(tmp_path: Path) -> None:
    """Even a replica that lacks little can't join: the entries that it lacks are acknowledged already."""
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=30.0, longest_backoff=0.05)) as c:
        athens, _, cyrene = await three(c)
        leader = led(athens)
        await until(lambda: leader.progress["cyrene"].is_aligned)
        c.change(1, lambda row: row.isr.remove("cyrene"))
        cyrene.manager.mute = True
        c.dead.add("cyrene")
        await c.tell_all(1)
        await athens.put(1, {b"a": b"1"})
        c.dead.clear()

        def is_joining() -> bool:
            leader.progressed(time.monotonic())
            return leader.progress["cyrene"] in leader.counted

        await until(is_joining)
        assert leader.proposed is None
        writing = asyncio.create_task(athens.put(1, {b"b": b"2"}))
        await until(lambda: cyrene.replica().durable == 2)
        assert not writing.done()
        cyrene.manager.mute = False
        follower = cyrene.replica().follower
        assert follower is not None
        follower.stored()
        await writing
        await same_everywhere(c)


async def test_who_has_yet_to_truncate_its_log_does_not_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader was elected uncleanly, without some of this replica's entries; these must not return if the replica is
    elected.
    """
    take, lets_go = Progress.next_append, asyncio.Event()

    def take_later(progress: Progress, limit: int) -> Append | None:
        return None if progress.is_replicating and not lets_go.is_set() else take(progress, limit)

    async with cluster(tmp_path) as c:
        athens, byzantium, _ = await three(c)
        c.dead |= {"byzantium", "cyrene"}
        c.change(1, lambda row: row.isr.__delitem__(slice(1, None)))
        cut_off(athens)
        await c.tell_all(1)
        await athens.put(1, {b"a": b"1"})
        c.dead -= {"byzantium", "cyrene"}
        monkeypatch.setattr(Progress, "next_append", take_later)
        c.elect(1, "byzantium")
        c.change(1, lambda row: row.isr.__setitem__(slice(None), ["byzantium"]))
        await c.tell_all(1)
        leader = led(byzantium)
        await until(lambda: leader.progress["athens"].is_replicating)
        leader.progressed(time.monotonic())
        assert leader.proposed is None
        lets_go.set()
        leader.appended()
        await same_everywhere(c)
        assert athens.replica().log.end == 0


async def test_under_load_a_replica_returns(tmp_path: Path) -> None:
    """Although writes continue, there is a moment at which the replica has all acknowledged ones."""
    async with cluster(tmp_path) as c:
        await three(c)
        writers, watch = Writers(c, 12), Watch(c)
        for name in ("cyrene", "byzantium"):
            await c.nodes[name].kill()
            await c.fail(name)
            await writers.more(200)
            await c.nodes[name].start()
            await c.back(name)
            await until(lambda: len(c.rows[1].isr) == 3)
            await writers.more(50)
        await writers.stop()
        await watch.stop()
        assert not writers.unknown
        await same_everywhere(c)


async def test_what_the_leader_tells_of_its_followers(tmp_path: Path) -> None:
    """The leader reports how far its followers lag, and each change of an in-sync set."""
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=2.0)) as c:
        athens, byzantium, cyrene = await three(c)
        await athens.put(1, {b"a": b"1"})
        counted = athens.telemetry
        assert athens.manager.follower_lags() == {"byzantium": (0, 0.0), "cyrene": (0, 0.0)}
        assert (counted.isr_shrinks, counted.isr_expands) == (0, 0)
        await cyrene.kill()
        writing = asyncio.create_task(athens.put(1, {b"b": b"2"}))
        await until(lambda: athens.manager.follower_lags()["cyrene"][1] > c.settings.lag_timeout / 2)
        lags = athens.manager.follower_lags()
        assert (lags["cyrene"][0], lags["byzantium"][0]) == (1, 0)
        await writing
        assert (counted.isr_shrinks, counted.isr_expands) == (1, 0)
        await cyrene.start()
        await c.back("cyrene")
        await until(lambda: counted.isr_expands == 1)
        await until(lambda: athens.manager.follower_lags()["cyrene"] == (0, 0.0))
        assert counted.isr_shrinks == 1
        assert byzantium.manager.follower_lags() == {}


async def test_with_too_few_in_sync_writes_are_refused(tmp_path: Path) -> None:
    """The refusal has a code of its own, and nothing is written. Reads go on; writes are accepted again when a replica
    is back.
    """
    async with cluster(tmp_path) as c:
        c.keyspace.min_insync = 2
        athens, byzantium, cyrene = await three(c)
        await athens.put(1, {b"a": b"1"})
        for node in (byzantium, cyrene):
            await node.kill()
            await c.fail(node.id)
        await until(lambda: athens.replica().row.isr == ["athens"])
        with pytest.raises(Refused) as caught:
            await athens.put(1, {b"a": b"2"})
        assert caught.value.error.code is Code.NOT_ENOUGH_REPLICAS
        assert caught.value.error.partitions == (c.rows[1],)
        assert await athens.get(1, b"a") == [b"1"]
        assert athens.replica().log.end == 1
        await byzantium.start()
        await c.back("byzantium")
        await until(lambda: len(c.rows[1].isr) == 2)
        await until(lambda: athens.replica().row == c.rows[1])
        await athens.put(1, {b"a": b"3"})


async def test_who_is_gone_is_taken_out_by_the_leader_as_soon_as_the_table_says_so(tmp_path: Path) -> None:
    """The leader doesn't wait until the replica lags, and takes it out of all partitions with one request."""
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=600.0)) as c:
        athens, _, cyrene = await c.add("athens", "byzantium", "cyrene")
        await c.create("athens", 1, 2, followers=["byzantium", "cyrene"])
        await until(lambda: all(list(c.rows[i].isr) == ["athens", "byzantium", "cyrene"] for i in (1, 2)))
        await cyrene.kill()
        writing = asyncio.create_task(athens.put(1, {b"a": b"1"}))
        await until(lambda: athens.replica().log.end == 1)
        asked = c.requests
        assert not writing.done()
        await c.fail("cyrene")
        await writing
        assert all(list(c.rows[i].isr) == ["athens", "byzantium"] for i in (1, 2))
        assert c.requests == asked + 1
        await c.fail("athens")
        await until(lambda: all(list(c.rows[i].isr) == ["byzantium"] for i in (1, 2)))


async def test_what_was_under_way_is_not_acknowledged_by_too_few(tmp_path: Path) -> None:
    """The in-sync set shrank while the write waited: the write stays unseen until there are enough replicas again."""
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=60.0, longest_backoff=0.05)) as c:
        c.keyspace.min_insync = 2
        athens, byzantium, cyrene = await three(c)
        mend = cut_off(athens)
        writing = asyncio.create_task(athens.put(1, {b"a": b"1"}, timeout_ms=30_000))
        await until(lambda: athens.replica().durable == 1)
        await c.fail("byzantium")
        await c.fail("cyrene")
        await until(lambda: athens.replica().row.isr == ["athens"])
        with pytest.raises(Refused, match="NOT_ENOUGH_REPLICAS"):
            await athens.put(1, {b"a": b"2"})
        assert await athens.get(1, b"a") == [None]
        assert not writing.done()
        c.dead.clear()
        mend()
        await writing
        assert len(c.rows[1].isr) >= 2
        assert await athens.get(1, b"a") == [b"1"]
        await same_everywhere(c)
        assert {node.replica().durable for node in (byzantium, cyrene)} == {1}


@pytest.mark.parametrize("lost", ["the request", "the answer"])
async def test_an_unknown_outcome_counts_the_larger_set(tmp_path: Path, lost: str) -> None:
    """A write waits for each replica that may be in sync, until the outcome is known."""
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=0.2)) as c:
        athens, _, cyrene = await three(c)
        await athens.put(1, {b"a": b"1"})
        errors = [MinkaError(Code.UNREACHABLE, "lost")] * 3
        if lost == "the request":
            c.before_alter_isr = errors
        else:
            c.after_alter_isr = errors[:1]
            c.tell_later = lambda *_: None  # type: ignore[method-assign]
        await cyrene.stop()
        writing = asyncio.create_task(athens.put(1, {b"b": b"2"}))
        await until(lambda: not (c.before_alter_isr or c.after_alter_isr))
        await writing
        assert athens.replica().row.isr == ["athens", "byzantium"]
        await cyrene.start()
        await cyrene.tell(c.rows[1])
        await until(lambda: athens.replica().high_watermark == cyrene.replica().durable == 2)


async def test_a_refused_change_is_tried_again_later(tmp_path: Path) -> None:
    """Writes don't wait for the change."""
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=0.2, longest_backoff=0.1)) as c:
        athens, _, cyrene = await three(c)
        await c.fail("cyrene")  # by the table; the node itself goes on
        for i in range(50):
            await athens.put(1, {b"%d" % i: b"1"})
        assert c.rows[1].isr == ["athens", "byzantium"]
        c.dead.clear()
        await same_everywhere(c)
        assert cyrene.replica().log.end == 50


async def test_an_answer_that_comes_after_the_leadership(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a change of the set is too late, and changes nothing; the node goes on."""
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=0.2)) as c:
        athens, byzantium, cyrene = await three(c)
        answer, asked, may_answer = c.alter_isr, asyncio.Event(), asyncio.Event()

        async def late(request: AlterIsrRequest) -> AlterIsrResponse:
            asked.set()
            await may_answer.wait()
            return await answer(request)

        monkeypatch.setattr(c, "alter_isr", late)
        await cyrene.stop()
        await asyncio.wait_for(asked.wait(), 5)
        c.elect(1, "byzantium")
        await c.tell_all(1)
        may_answer.set()
        await until(lambda: c.rows[1].isr == ["athens", "byzantium"])
        await byzantium.put(1, {b"a": b"1"})
        assert athens.log_db.error is None
        assert athens.replica().durable == 1
