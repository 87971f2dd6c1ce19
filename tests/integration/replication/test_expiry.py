"""No client sees an expired key. Its removal goes through the log, so all replicas agree."""

import asyncio
from pathlib import Path

import pytest

from minka.errors import Code
from minka.wire import kv_frames
from minka.wire.key_operations import Expire, Lifetime, Set
from minkad.core.replication.gate import Gate
from minkad.replication.serving import expiries, expiring
from tests.integration.replication.harness import cluster
from tests.integration.replication.merges import merged, two
from tests.integration.replication.node import Refused, TestNode, until
from tests.integration.replication.replicas import led_by, same_everywhere, three

TTL_MS = 100


async def put_for(node: TestNode, *keys: bytes, partition_id: int = 1, ms: int = TTL_MS) -> None:
    await node.operate(partition_id, *(Set(key, b"v", lifetime=Lifetime.FOR, ms=ms) for key in keys))


def has(node: TestNode, key: bytes) -> bool:
    """True if the node's data has the key, expired or not."""
    return node.replica().data.stored([key]) != [None]


@pytest.fixture
def no_background_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the node from removing expired keys in the background."""
    monkeypatch.setattr(expiring.Expiring, "_step", lambda self, _: asyncio.sleep(0))


@pytest.mark.usefixtures("no_background_removal")
async def test_a_read_after_the_expiry_removes_the_key_for_all_later_reads(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens, byzantium, _ = await three(c)
        await put_for(athens, b"k")
        athens.unix_ms += TTL_MS - 1
        assert await athens.get(1, b"k") == [b"v"]
        athens.unix_ms += 1
        assert await athens.get(1, b"k") == [None]
        await same_everywhere(c)
        assert not has(byzantium, b"k")
        await byzantium.tell(c.succeed(1, "byzantium"))
        await c.tell_all(1)
        await led_by(c, byzantium)
        assert byzantium.unix_ms < athens.unix_ms, "by byzantium's clock the key hasn't expired"
        assert await byzantium.get(1, b"k") == [None]


@pytest.mark.usefixtures("no_background_removal")
async def test_no_kind_of_read_shows_an_expired_key(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens, byzantium, _ = await three(c)
        keys = [b"%02d" % number for number in range(90)]  # more keys than the node reads at once
        await put_for(athens, *keys[::2])
        await athens.put(1, dict.fromkeys(keys[1::2], b"w"))
        await same_everywhere(c)
        athens.unix_ms = byzantium.unix_ms = athens.unix_ms + TTL_MS
        assert (await byzantium.get_stale(1, *keys[:4])).values == [None, b"w"] * 2
        assert athens.manager.requests.read_now(1, 1, [keys[0]]) is None, "the node has to remove the expired key first"
        assert athens.manager.requests.read_now(1, 1, [keys[1]]) == [b"w"]
        assert await athens.versions(1, keys[0]) == [None]
        body = kv_frames.encode(kv_frames.ScanBody(b"", b"", False, 10, 1000))
        page = kv_frames.decode_page(await athens.ask(kv_frames.Op.SCAN, 1, 1, body))
        assert page.keys == keys[1:20:2]
        assert await athens.get(1, *keys) == [None, b"w"] * 45
        assert [outcome.done for outcome in await athens.operate(1, Expire(keys[2], Lifetime.UNLIMITED))] == [False]
        await same_everywhere(c)


@pytest.mark.usefixtures("no_background_removal")
async def test_concurrent_reads_of_an_expired_key_remove_it_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await put_for(athens, b"k")
        athens.unix_ms += TTL_MS
        assert await asyncio.gather(*(athens.get(1, b"k") for _ in range(50))) == [[None]] * 50
        assert athens.replica().log.end == 2


@pytest.mark.usefixtures("no_background_removal")
async def test_a_read_is_refused_if_the_removal_would_be_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens, *_ = await three(c)
        await put_for(athens, b"k")
        c.keyspace.min_insync = 4
        athens.replica().state.learn_keyspace()
        assert await athens.get(1, b"k") == [b"v"]
        athens.unix_ms += TTL_MS
        with pytest.raises(Refused) as refused:
            await athens.get(1, b"k")
        assert refused.value.error.code is Code.NOT_ENOUGH_REPLICAS


@pytest.mark.usefixtures("no_background_removal")
async def test_a_read_waits_while_the_removal_must_wait(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await put_for(athens, b"k")
        athens.unix_ms += TTL_MS
        gate = athens.replica().state.gate
        gate.freeze()
        reading = asyncio.create_task(athens.get(1, b"k"))
        await athens.get(1, b"other")
        assert gate.state is not Gate.OPEN
        assert not reading.done()
        gate.thaw()
        assert await reading == [None]


async def test_an_expired_key_is_removed_even_if_nobody_reads_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens, byzantium, _ = await three(c)
        await put_for(athens, b"a", b"b")
        await athens.operate(1, Expire(b"b", Lifetime.UNLIMITED))
        await put_for(athens, b"later", ms=10**9)
        athens.unix_ms += TTL_MS
        await until(lambda: not has(athens, b"a") and not has(byzantium, b"a"))
        await same_everywhere(c)
        assert has(byzantium, b"b")
        assert has(byzantium, b"later")


async def test_removals_for_which_nobody_waits_leave_no_writes_under_way(tmp_path: Path) -> None:
    """A node refuses writes when too many bytes of writes are under way."""
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await put_for(athens, *(b"%d" % number for number in range(20)))
        athens.unix_ms += TTL_MS
        await until(lambda: not any(has(athens, b"%d" % number) for number in range(20)))
        assert athens.manager.committer.pending_bytes == 0


async def test_nothing_is_removed_before_the_clock_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiring, "_UNCHECKED_SECONDS", 0.001)
    monkeypatch.setattr(expiring, "LOOK_SECONDS", 0.1)
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await put_for(athens, b"k")
        await athens.stop()
        athens.unix_ms += TTL_MS
        athens.clock_is_checked, athens.clock_questions = False, 0
        await athens.start()
        c.elect(1, "athens")
        await c.tell_all(1)
        await athens.put(1, {b"other": b"w"})
        asked = athens.clock_questions
        await until(lambda: athens.clock_questions > asked + 3)
        assert has(athens, b"k")
        athens.clock_is_checked = True
        await until(lambda: not has(athens, b"k"))


@pytest.mark.parametrize("how", ["restart", "kill", "another leader"])
async def test_the_next_leader_finds_the_keys_that_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(expiring, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(expiring, "_PAGE_ROWS", 7)
    async with cluster(tmp_path) as c:
        athens, byzantium, _ = await three(c)
        keys = [b"%03d" % number for number in range(50)]
        await put_for(athens, *keys[::2])
        await athens.put(1, dict.fromkeys(keys[1::2], b"v"))
        await athens.replica().data.flush()
        leader = athens
        if how == "another leader":
            leader = byzantium
            await athens.tell(c.succeed(1, "byzantium"))
            await c.tell_all(1)
            await led_by(c, byzantium)
        else:
            await (athens.kill() if how == "kill" else athens.stop())
            await athens.start()
            c.elect(1, "athens")
            await c.tell_all(1)
            assert await athens.get(1, keys[0]) == [b"v"]
        leader.unix_ms += TTL_MS
        await until(lambda: not any(has(leader, key) for key in keys[::2]))
        assert all(has(leader, key) for key in keys[1::2])
        await same_everywhere(c)


async def test_more_keys_expire_than_the_node_remembers_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiries, "_MAX_KNOWN", 5)
    monkeypatch.setattr(expiries, "_REMOVED_AT_ONCE", 3)
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        keys = [b"%03d" % number for number in range(60)]
        await put_for(athens, *keys)
        athens.unix_ms += TTL_MS
        await until(lambda: not any(has(athens, key) for key in keys))


async def test_a_merge_keeps_expiry_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiring, "LOOK_SECONDS", 0.1)
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await two(c)
        await put_for(athens, b"0700", partition_id=2)
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await merged(c)
        assert await athens.get(1, b"0700", generation=2) == [b"v"]
        athens.unix_ms += TTL_MS
        await until(lambda: not has(athens, b"0700"))
