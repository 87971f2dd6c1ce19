"""A follower that lags leaves the in-sync set, and returns when it has caught up. Writes wait for all replicas in the
set, and are refused when the set has too few.
"""

import asyncio
import time
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError, newer_rows
from minka.v1.coordinator_pb2 import AlterIsrRequest, AlterIsrResponse
from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.peer_messages import Append
from minkad.core.replication.replication_settings import ReplicationSettings
from tests.integration.replication.harness import cluster
from tests.integration.replication.node import Refused, led, until
from tests.integration.replication.replicas import cut_off, same_everywhere, three
from tests.integration.replication.writers import Watch, Writers


async def test_a_lagging_follower_leaves_the_set_and_returns(tmp_path: Path) -> None:
    """Writes wait for a follower that lags, but at most `lag_timeout`. When the follower has caught up, writes wait for
    it again.
    """
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=0.3)) as c:
        athens, byzantium, cyrene = await three(c)
        await athens.put(1, {b"a": b"1"})
        committer = cyrene.manager.committer
        sync, held = committer.sync, asyncio.Event()
        committer.sync = lambda replica, *, on_disk: held.set()  # type: ignore[method-assign] # nothing is synced
        await athens.put(1, {b"b": b"2"})
        assert held.is_set()
        assert c.rows[1].isr == ["athens", "byzantium"]
        await athens.put(1, {b"c": b"3"})
        assert athens.replica().state.high_watermark == 3
        committer.sync = sync  # type: ignore[method-assign]
        await athens.put(1, {b"d": b"4"})
        await same_everywhere(c)
        assert cyrene.replica().log.end == 4
        assert byzantium.replica().state.applied == 4


async def test_a_replica_that_lacks_an_entry_does_not_join(tmp_path: Path) -> None:
    """A replica that lacks even one entry can't join: clients may have the acknowledgement of this entry."""
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
        await until(lambda: cyrene.replica().state.durable == 2)
        assert not writing.done()
        cyrene.manager.mute = False
        follower = cyrene.replica().state.follower
        assert follower is not None
        follower.stored()
        cyrene.manager.node.tick(1, 0.0)
        await writing
        await same_everywhere(c)


async def test_a_replica_joins_only_when_it_has_truncated_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an unclean election, this replica has entries that its leader lacks. Until it has truncated them, it may
    not join: if it were elected, these entries would return.
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
        byzantium.manager.node.tick(1, 0.0)
        await same_everywhere(c)
        assert athens.replica().log.end == 0


async def test_a_replica_returns_while_clients_write(tmp_path: Path) -> None:
    """A restarted replica joins the in-sync set again, although clients write all the time."""
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


async def test_the_leader_reports_lags_and_changes_of_the_set(tmp_path: Path) -> None:
    """The leader reports the lags of its followers, and counts the changes of in-sync sets."""
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=2.0)) as c:
        athens, byzantium, cyrene = await three(c)
        await athens.put(1, {b"a": b"1"})
        counted = athens.telemetry
        assert athens.manager.reporting.follower_lags() == {"byzantium": (0, 0.0), "cyrene": (0, 0.0)}
        assert (counted.isr_shrinks, counted.isr_expands) == (0, 0)
        await cyrene.kill()
        writing = asyncio.create_task(athens.put(1, {b"b": b"2"}))
        await until(lambda: athens.manager.reporting.follower_lags()["cyrene"][1] > c.settings.lag_timeout / 2)
        lags = athens.manager.reporting.follower_lags()
        assert (lags["cyrene"][0], lags["byzantium"][0]) == (1, 0)
        await writing
        assert (counted.isr_shrinks, counted.isr_expands) == (1, 0)
        await cyrene.start()
        await c.back("cyrene")
        await until(lambda: counted.isr_expands == 1)
        await until(lambda: athens.manager.reporting.follower_lags()["cyrene"] == (0, 0.0))
        assert counted.isr_shrinks == 1
        assert byzantium.manager.reporting.follower_lags() == {}


async def test_writes_are_refused_when_too_few_are_in_sync(tmp_path: Path) -> None:
    """With too few replicas in sync, the leader refuses writes and still answers reads. It accepts writes again when a
    replica is back.
    """
    async with cluster(tmp_path) as c:
        c.keyspace.min_insync = 2
        athens, byzantium, cyrene = await three(c)
        await athens.put(1, {b"a": b"1"})
        for node in (byzantium, cyrene):
            await node.kill()
            await c.fail(node.id)
        await until(lambda: athens.replica().state.row.isr == ["athens"])
        with pytest.raises(Refused) as caught:
            await athens.put(1, {b"a": b"2"})
        assert caught.value.error.code is Code.NOT_ENOUGH_REPLICAS
        assert newer_rows(caught.value.error) == (c.rows[1],)
        assert await athens.get(1, b"a") == [b"1"]
        assert athens.replica().log.end == 1
        await byzantium.start()
        await c.back("byzantium")
        await until(lambda: len(c.rows[1].isr) == 2)
        await until(lambda: athens.replica().state.row == c.rows[1])
        await athens.put(1, {b"a": b"3"})


async def test_the_leader_takes_out_a_failed_node_at_once(tmp_path: Path) -> None:
    """When the table says that a node has failed, the leader takes it out of all in-sync sets with one request. The
    leader doesn't wait for `lag_timeout`.
    """
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


async def test_a_waiting_write_is_not_acknowledged_by_too_few_replicas(tmp_path: Path) -> None:
    """The in-sync set shrinks while a write waits: reads don't see the write until enough replicas are in sync
    again.
    """
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=60.0, longest_backoff=0.05)) as c:
        c.keyspace.min_insync = 2
        athens, byzantium, cyrene = await three(c)
        mend = cut_off(athens)
        writing = asyncio.create_task(athens.put(1, {b"a": b"1"}, timeout_ms=30_000))
        await until(lambda: athens.replica().state.durable == 1)
        await c.fail("byzantium")
        await c.fail("cyrene")
        await until(lambda: athens.replica().state.row.isr == ["athens"])
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
        assert {node.replica().state.durable for node in (byzantium, cyrene)} == {1}


@pytest.mark.parametrize("lost", ["the request", "the answer"])
async def test_while_a_change_is_unknown_writes_wait_for_the_larger_set(tmp_path: Path, lost: str) -> None:
    """As long as the outcome of a change is unknown, a write waits for each replica that may be in sync."""
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=0.2)) as c:
        athens, _, cyrene = await three(c)
        await athens.put(1, {b"a": b"1"})
        errors = [MinkaError(Code.UNREACHABLE, "the request or its answer was lost")] * 3
        if lost == "the request":
            c.before_alter_isr = errors
        else:
            c.after_alter_isr = errors[:1]
            c.tell_later = lambda *_: None  # type: ignore[method-assign]
        await cyrene.stop()
        writing = asyncio.create_task(athens.put(1, {b"b": b"2"}))
        await until(lambda: not (c.before_alter_isr or c.after_alter_isr))
        await writing
        assert athens.replica().state.row.isr == ["athens", "byzantium"]
        await cyrene.start()
        await cyrene.tell(c.rows[1])
        await until(lambda: athens.replica().state.high_watermark == cyrene.replica().state.durable == 2)


async def test_a_refused_change_of_the_set_is_requested_again_later(tmp_path: Path) -> None:
    """The controller refuses to let a replica join; writes continue, and the leader asks again later."""
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=0.2, longest_backoff=0.1)) as c:
        athens, _, cyrene = await three(c)
        await c.fail("cyrene")  # only in the table: the node still runs
        for i in range(50):
            await athens.put(1, {b"%d" % i: b"1"})
        assert c.rows[1].isr == ["athens", "byzantium"]
        c.dead.clear()
        await same_everywhere(c)
        assert cyrene.replica().log.end == 50


async def test_an_answer_after_the_end_of_the_leadership_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller answers a request to change the in-sync set only when the leader that sent it no longer leads. The
    answer changes nothing.
    """
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
        assert athens.replica().state.durable == 1
