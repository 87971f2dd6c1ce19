"""Splits on the nodes: each replica creates the same new partition from its data, whatever fails during the split."""

import asyncio
import itertools
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError, newer_rows
from minka.wire import kv_frames
from minkad.core.replication.replica_state import Applying, Role
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.replication.applying.hosted_replica import HostedReplica, Pending
from minkad.replication.sending import replication_sender
from tests.integration.replication.halves import (
    KEY,
    LOWER,
    NODES,
    ROWS,
    UPPER,
    assert_halves,
    begin,
    elect_both,
    ended,
    scanned,
)
from tests.integration.replication.harness import cluster
from tests.integration.replication.held_syncs import begins_later, held_syncs
from tests.integration.replication.node import Refused, until
from tests.integration.replication.replicas import three


async def test_each_half_serves_only_its_own_keys(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        parent, child = await begin(c)
        await ended(c)
        await assert_halves(athens)
        with pytest.raises(Refused) as refusal:
            await athens.get(1, b"0700", generation=1)
        assert refusal.value.error.code is Code.STALE_GENERATION
        assert [row.id for row in newer_rows(refusal.value.error)] == [parent.id, child.id]
        body = kv_frames.encode(kv_frames.ScanBody(b"0700", b"0800", False, 10, 1000))
        for op, id_, content in [
            (kv_frames.Op.READ, 1, kv_frames.encode([b"0599", KEY])),
            (kv_frames.Op.READ, 2, kv_frames.encode([b"0599"])),
            (kv_frames.Op.READ_STALE, 1, kv_frames.encode([KEY])),
            (kv_frames.Op.WRITE, 1, kv_frames.encode(kv_frames.WriteBody([KEY], [b"x"]))),
            (kv_frames.Op.WRITE, 2, kv_frames.encode(kv_frames.WriteBody([b"0700", b"0100"], [b"x", b"y"]))),
            (kv_frames.Op.SCAN, 1, body),
        ]:
            with pytest.raises(Refused) as refusal:
                await athens.ask(op, id_, 2, content)
            assert refusal.value.error.code is Code.KEY_OUT_OF_RANGE
        await athens.put(1, {b"0000": b"new", b"0001": None}, generation=2)
        await athens.put(2, {b"9": b"last", KEY: None}, generation=2)
        lower = {key: value for key, value in (LOWER | {b"0000": b"new"}).items() if key != b"0001"}
        upper = {key: value for key, value in (UPPER | {b"9": b"last"}).items() if key != KEY}
        await assert_halves(athens, lower, upper)
        assert await athens.count() == {1: len(lower), 2: len(upper)}


@pytest.mark.parametrize("durability", [1, 2])
async def test_every_replica_creates_the_child(tmp_path: Path, durability: int) -> None:
    async with cluster(tmp_path) as c:
        c.keyspace.durability = durability  # type: ignore[assignment]  # an enum by its number
        athens, *others = await c.add(*NODES)
        await c.create("athens", 1, followers=NODES[1:])
        await athens.put(1, ROWS)
        await begin(c)
        await ended(c)
        assert all(node.replica(2).state.is_made for node in c.nodes.values())
        await athens.put(2, {b"9": b"last"}, generation=2)
        await assert_halves(athens, upper=UPPER | {b"9": b"last"})
        assert len({(node.replica(2).log.base, node.replica(2).log.epoch_at(node.replica(2).log.base)) for node in
                    c.nodes.values()}) == 1  # fmt: skip
        for node in others:
            await until(lambda node=node: node.replica(2).state.applied == athens.replica(2).state.applied)  # type: ignore[misc]
            await until(lambda node=node: node.manager.routing.age(node.replica(2)) < 60)  # type: ignore[misc]
            assert (await node.get_stale(2, b"9", b"0999", generation=2)).values == [b"last", ROWS[b"0999"]]
        await athens.kill()
        await c.fail("athens")
        assert c.rows[1].leader == c.rows[2].leader == "byzantium"
        await assert_halves(others[0], upper=UPPER | {b"9": b"last"})
    assert not list(tmp_path.glob("*/splitting/*"))


async def test_followers_hear_at_once_that_the_marker_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_WATERMARK_S", "_BEAT_S"):  # so that no other frame has the watermark
        monkeypatch.setattr(replication_sender, name, 3600.0)
    async with cluster(tmp_path) as c:
        athens, *_ = await three(c)
        await athens.put(1, ROWS)
        await begin(c)
        await ended(c)
        assert all(node.replica(2).state.is_made for node in c.nodes.values())
        assert sorted(c.rows[2].isr) == sorted(NODES)


async def test_writes_continue_during_a_split(tmp_path: Path) -> None:
    """Clients hear of the split by refusals, and continue to write; no acknowledged write is lost."""
    async with cluster(tmp_path) as c:
        athens, *_ = await c.add(*NODES)
        await c.create("athens", 1, followers=NODES[1:])
        acknowledged: dict[bytes, bytes | None] = {}
        stop = False

        async def write(number: int) -> None:
            partition, generation = {False: 1, True: 1}, {False: 1, True: 1}
            for i in itertools.count():
                if stop:
                    return
                key = b"%04d" % ((i * 7 + number * 131) % 1000)
                half = key >= KEY
                value = b"%d/%d" % (number, i)
                try:
                    await athens.put(partition[half], {key + b"/%d" % number: value}, generation[half])
                    acknowledged[key + b"/%d" % number] = value
                except Refused as refusal:
                    if refusal.error.code is not Code.STALE_GENERATION:
                        raise
                    for row in newer_rows(refusal.error):
                        partition[row.start_key == KEY], generation[row.start_key == KEY] = row.id, row.generation

        writers = [asyncio.create_task(write(number)) for number in range(8)]
        await until(lambda: len(acknowledged) > 500)
        await begin(c)
        await ended(c)
        before = len(acknowledged)
        await until(lambda: len(acknowledged) > before + 200)
        stop = True
        await asyncio.gather(*writers)
        lower = {key: value for key, value in acknowledged.items() if key < KEY}
        upper = {key: value for key, value in acknowledged.items() if key >= KEY}
        await assert_halves(athens, lower, upper)


async def test_an_empty_partition_is_split(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens, *_ = await c.add(*NODES)
        await c.create("athens", 1, followers=NODES[1:])
        await begin(c)
        await ended(c)
        await assert_halves(athens, {}, {})
        await athens.put(2, {b"9": b"last"}, generation=2)
        await assert_halves(athens, {}, {b"9": b"last"})


async def test_several_splits_one_after_the_other(tmp_path: Path) -> None:
    """The first partition and new partitions are split again. After a restart, the node serves all of them."""
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        for parent, key in [(1, b"0500"), (1, b"0200"), (2, b"0800"), (1, b"0100")]:
            _, child = await begin(c, key, parent)
            await ended(c, child.id)
        assert await athens.count() == {1: 100, 2: 300, 3: 300, 4: 200, 5: 100}
        await athens.stop()
        await athens.start()
        for row in list(c.rows.values()):
            c.elect(row.id, "athens")
        await c.tell_all(*c.rows)
        for row in c.rows.values():
            keys = [key for key in ROWS if key >= row.start_key and (not row.end_key or key < row.end_key)]
            assert await scanned(athens, row.id, row.generation) == keys


async def test_a_follower_waits_at_the_marker_for_the_row(tmp_path: Path) -> None:
    """The marker arrives before the child's row. The follower waits at the marker, and its stale reads report a growing
    age.
    """
    async with cluster(tmp_path, settings=ReplicationSettings(lag_timeout=30)) as c:
        athens, byzantium = await c.add("athens", "byzantium")
        await c.create("athens", 1, followers=["byzantium"])
        await athens.put(1, ROWS)
        await until(lambda: byzantium.replica().state.applied == athens.replica().state.applied)
        await until(lambda: byzantium.manager.routing.age(byzantium.replica()) < 1)
        parent, child = c.split(1, KEY)
        await athens.tell(parent, child)
        await until(lambda: byzantium.replica().state.applying is Applying.AT_MARK)
        assert 2 not in byzantium.manager.replicas
        await athens.put(1, {b"0": b"first"}, generation=2)
        assert byzantium.replica().state.applied < athens.replica().state.applied
        ages = []
        for _ in range(3):
            ages.append((await byzantium.get_stale(1, b"0700")).age_ms)
            await until(lambda: byzantium.manager.routing.age(byzantium.replica()) * 1000 > ages[-1] + 100)
        await byzantium.tell(parent)  # byzantium gets the child's row later
        await until(lambda: byzantium.replica(2).state.is_made)
        assert c.rows[2].splitting
        await byzantium.tell(child)
        await ended(c)
        await assert_halves(athens, LOWER | {b"0": b"first"})


async def test_a_child_is_idle_until_the_beginning_of_its_log_is_durable(tmp_path: Path) -> None:
    """While the log's disk hangs, the child's row arrives again. The controller must not hear that the child exists: a
    power cut would leave its data without the beginning of its log.
    """
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        with held_syncs(athens, lambda: begins_later(athens, 2)) as syncs:
            parent, child = c.split(1, KEY)
            telling = [asyncio.create_task(athens.tell(parent, child))]
            await until(lambda: bool(syncs.held))
            held = len(syncs.held)
            telling.append(asyncio.create_task(athens.tell(child)))
            await until(lambda: len(syncs.held) > held)  # the row has to be durable, too
            role = athens.replica(2).state.role
            await syncs.release()
        await asyncio.gather(*telling)
        assert role is Role.IDLE
        await ended(c)
        await assert_halves(athens)


async def test_a_replica_that_was_away_gets_a_copy(tmp_path: Path) -> None:
    """A replica that gets the marker after the end of the split creates no child, and gets a copy from the leader."""
    async with cluster(tmp_path) as c:
        athens, _, cyrene = await c.add(*NODES)
        await c.create("athens", 1, followers=NODES[1:])
        await athens.put(1, ROWS)
        await cyrene.kill()
        await c.fail("cyrene")
        await begin(c)
        await ended(c)
        upper = UPPER | {b"9": b"last"}
        await athens.put(2, {b"9": b"last"}, generation=2)
        await cyrene.start()
        await c.back("cyrene")
        await until(lambda: all("cyrene" in c.rows[id_].isr for id_ in (1, 2)))
        for node in ("athens", "byzantium"):
            await c.nodes[node].kill()
            c.dead.add(node)
        elect_both(c, "cyrene", without=("athens", "byzantium"))
        await c.tell_all(1, 2)
        await assert_halves(cyrene, upper=upper)
        assert (await cyrene.count())[2] == len(upper)


async def test_replicas_may_join_before_the_marker_is_committed(tmp_path: Path) -> None:
    """Before the marker is committed, replicas may join the in-sync set. If they had to wait for the end of the split,
    the split and the replicas would wait for each other.
    """
    async with cluster(tmp_path) as c:
        c.keyspace.min_insync = 2
        athens, byzantium, cyrene = await c.add(*NODES)
        await c.create("athens", 1, followers=NODES[1:])
        await athens.put(1, ROWS)
        for node in (byzantium, cyrene):
            await node.kill()
        c.split(1, KEY)
        for id_ in (1, 2):
            c.change(id_, lambda row: row.isr.__setitem__(slice(None), ["athens"]))
        await c.tell_all(1, 2)
        await until(lambda: athens.replica(1).log.end > athens.replica(1).state.applied)
        assert not athens.replica(2).state.is_made
        for node in (byzantium, cyrene):
            await node.start()
        await c.tell_all(1, 2)
        await ended(c)
        await until(lambda: all(len(c.rows[id_].isr) == 3 for id_ in (1, 2)))
        await assert_halves(athens)


async def test_no_replica_joins_between_the_marker_and_the_end_of_the_split(tmp_path: Path) -> None:
    """A replica that got its data after the marker lacks the other half, so it may join only after the split."""
    async with cluster(tmp_path) as c:
        athens, byzantium, cyrene = await c.add(*NODES)
        await c.create("athens", 1, followers=NODES[1:])
        await athens.put(1, ROWS)
        await cyrene.kill()
        await c.fail("cyrene")
        c.before_finish_split = [MinkaError(Code.NO_CONTROLLER, "no active controller yet")] * 10_000
        await begin(c)
        await until(lambda: byzantium.replica(2).state.is_made and athens.replica(2).state.is_made)
        await cyrene.start()
        await c.back("cyrene")
        await until(lambda: cyrene.replica(1).state.applied == athens.replica(1).log.end)
        await athens.put(1, {b"0": b"last"}, generation=2)
        await until(lambda: cyrene.replica(1).state.applied == athens.replica(1).log.end)
        assert not any("cyrene" in change.isr for change in c.isr_changes)
        c.before_finish_split.clear()
        await until(lambda: all("cyrene" in c.rows[id_].isr for id_ in (1, 2)))
        await assert_halves(athens, LOWER | {b"0": b"last"})


def has_write(replica: HostedReplica) -> bool:
    """True if a write of a client waits to be applied. Marks for trimming don't count."""
    return any(isinstance(one.write, kv_frames.WriteBody) for one in replica.pending)


async def test_a_replica_that_may_have_joined_one_half_counts_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the leader creates the child, it proposes to let a replica join the in-sync set; the controller records
    the new set later. The replica counts for both halves: a write to the child waits for the replica, too.
    """

    async def attach(parent: HostedReplica, child: HostedReplica, entry: Pending) -> None:
        await until(lambda: parent.state.leader is not None and parent.state.leader.proposed is not None)
        await attached(parent, child, entry)

    async with cluster(tmp_path, settings=ReplicationSettings(lag_timeout=30.0)) as c:
        athens, byzantium = await c.add(*NODES[:2])
        await c.create("athens", 1, followers=NODES[1:2])
        await byzantium.kill()
        await c.fail("byzantium")
        await until(lambda: list(c.rows[1].isr) == ["athens"])
        c.before_alter_isr = [MinkaError(Code.NO_CONTROLLER, "no active controller yet")] * 10_000
        await byzantium.start()
        await c.back("byzantium")
        await athens.put(1, ROWS)
        asked = c.requests
        await until(lambda: c.requests > asked)
        c.before_finish_split = [MinkaError(Code.NO_CONTROLLER, "no active controller yet")] * 10_000  # no split ends
        attached = athens.manager.splitting.attach
        monkeypatch.setattr(athens.manager.splitting, "attach", attach)
        await begin(c)
        await until(lambda: athens.replica(2).state.is_made and byzantium.replica(2).state.is_made)
        await byzantium.kill()
        writing = asyncio.create_task(athens.put(2, {b"9": b"last"}, generation=2, timeout_ms=30_000))
        await until(
            lambda: has_write(athens.replica(2)) and athens.replica(2).state.durable == athens.replica(2).log.end
        )
        assert athens.replica(2).state.high_watermark < athens.replica(2).log.end
        c.before_alter_isr.clear()
        await until(lambda: "byzantium" in c.rows[2].isr)
        c.before_finish_split.clear()
        assert not writing.done()
        await byzantium.start()
        await c.tell_all(1, 2)
        await writing
        await ended(c)
        await assert_halves(athens, upper=UPPER | {b"9": b"last"})
