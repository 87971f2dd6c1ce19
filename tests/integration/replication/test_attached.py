"""Before the child of a split has a database of its own, its data is in its parent's database. Even then, clients can
use the child, and its data survives crashes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.wire.key_operations import Lifetime, Set
from minkad.replication.applying.hosted_replica import HostedReplica, meta_key
from minkad.storage.checkpoint import Checkpoint, Incoming
from tests.integration.replication.crashes import crash, restart_from
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
from tests.integration.replication.harness import SOON, Cluster, cluster
from tests.integration.replication.node import TestNode, until
from tests.integration.replication.replicas import applied, three
from tests.unit.storage.crash import crashed_copy


@asynccontextmanager
async def attached(*nodes: TestNode) -> AsyncIterator[None]:
    """Within the block, the children of splits stay attached on these nodes. At the end, wait for their databases."""
    go_on = asyncio.Event()
    with pytest.MonkeyPatch.context() as patch:
        for node in nodes:
            patch.setattr(node.manager.splitting, "take", _later(node.manager.splitting.take, go_on))
        yield
        go_on.set()
        for node in nodes:
            await until(partial(_is_detached, node))


def _later(take: Callable[[HostedReplica, HostedReplica], Awaitable[Checkpoint]], go_on: asyncio.Event) -> object:
    async def taken(parent: HostedReplica, child: HostedReplica) -> Checkpoint:
        await go_on.wait()
        return await take(parent, child)

    return taken


def _is_detached(node: TestNode) -> bool:
    return not node.replica(2).data.is_attached


def has_child(*nodes: TestNode) -> bool:
    """True if all these nodes have made the child."""
    return all(2 in node.manager.replicas and node.replica(2).state.is_made for node in nodes)


def folder(node: TestNode) -> Path:
    return node.path / "partitions" / "2"


@pytest.mark.parametrize("large", [False, True])
async def test_both_halves_are_served(tmp_path: Path, large: bool) -> None:
    """The leader serves both halves, whether the parent's data is only in memory or has a database."""
    async with cluster(tmp_path) as c:
        athens, *others = await three(c)
        rows = {key: value * (50 if large else 1) for key, value in ROWS.items() if value is not None}
        await athens.put(1, rows)
        if large:
            await athens.manager.flusher.flush(athens.replica())
        lower = {key: value for key, value in rows.items() if key < KEY}
        upper = {key: value for key, value in rows.items() if key >= KEY}
        async with attached(*c.nodes.values()):
            await begin(c)
            await until(lambda: has_child(*c.nodes.values()))
            await assert_halves(athens, lower, upper)
            # Make scans hard: some of their pages, of 170 rows each, end within the deleted keys, and the new keys lie
            # between the old ones.
            gone = sorted(upper)[:180]
            new = {key + b"/": b"new" for key in sorted(upper)[100:300:7]} | {b"9": b"last"}
            await athens.put(2, dict.fromkeys(gone), generation=2)
            await athens.put(2, dict(new), generation=2)
            await athens.put(2, {b"0999": b"other"}, generation=2)
            upper = {key: value for key, value in upper.items() if key not in gone} | new | {b"0999": b"other"}
            lower |= {b"0": b"first"}
            await athens.put(1, {b"0": b"first"}, generation=2)
            await assert_halves(athens, lower, upper)
            assert await athens.get(2, *gone, generation=2) == [None] * len(gone)
            assert await athens.get(2, gone[0], b"0999", generation=2) == [None, b"other"]
            versions = await athens.versions(2, *upper, generation=2)
            assert c.rows[2].splitting
            assert not any(folder(node).exists() for node in c.nodes.values())
        await ended(c)
        await assert_halves(athens, lower, upper)
        assert await athens.versions(2, *upper, generation=2) == versions
        assert all(folder(node).exists() for node in c.nodes.values())
        await athens.kill()
        await c.fail("athens")
        await assert_halves(others[0], lower, upper)
        assert await others[0].versions(2, *upper, generation=2) == versions


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("durability", [1, 2])
async def test_an_attached_child_survives_a_crash(tmp_path: Path, durability: int, flushed: bool) -> None:
    """The data of both halves survives a crash, whether the parent's last flush was before or after the split."""
    async with cluster(tmp_path) as c:
        c.keyspace.durability = durability  # type: ignore[assignment]  # an enum by its number
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        await athens.manager.flusher.flush(athens.replica())
        await athens.operate(1, Set(b"0999", b"changed", lifetime=Lifetime.FOR, ms=3_600_000))
        async with attached(athens):
            await begin(c)
            await until(lambda: 2 in athens.manager.replicas and athens.replica(2).state.is_ready)
            await athens.put(2, {b"9": b"last", KEY: None}, generation=2)
            await athens.put(1, {b"0": b"first"}, generation=2)
            versions = await athens.versions(2, *UPPER, generation=2)
            if flushed:
                await athens.manager.flusher.flush(athens.replica())
            left = crashed_copy(athens.path, tmp_path / "left")
        for id_ in (1, 2):
            c.change(id_, lambda row: setattr(row, "splitting", True))
        await restart_from(athens, left)
        upper = {**UPPER, b"9": b"last", b"0999": b"changed"}
        del upper[KEY]
        for crashes_again in (False, True):
            if crashes_again:
                await crash(c, athens)
            elect_both(c, "athens")
            await c.tell_all(1, 2)
            await ended(c)
            await assert_halves(athens, LOWER | {b"0": b"first"}, upper)
            assert await athens.versions(2, *UPPER, generation=2) == versions
            assert athens.replica(2).data.may_expire


async def test_an_attached_child_can_have_a_leader_before_its_parent_has_one(tmp_path: Path) -> None:
    """After a crash, the child has a leader but the parent has none. The parent's data lacks entries of its log; the
    node applies as many of them as the child needs.
    """
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        async with attached(athens):
            await begin(c)
            await until(lambda: has_child(athens) and athens.replica(2).state.is_ready)
            await athens.put(2, {b"9": b"last"}, generation=2)
            left = crashed_copy(athens.path, tmp_path / "left")
        await restart_from(athens, left)
        c.elect(2, "athens")
        await c.tell_all(2)
        upper = UPPER | {b"9": b"last"}
        assert await athens.get(2, *upper, generation=2) == list(upper.values())


async def cyrene_attached(c: Cluster) -> TestNode:
    """Create a partition with rows. Its in-sync set lacks cyrene, so a split won't wait for cyrene's database."""
    _, _, cyrene = await three(c)
    c.dead.add("cyrene")
    c.change(1, lambda row: row.isr.remove("cyrene"))
    await c.tell_all(1)
    await c.nodes["athens"].put(1, ROWS)
    return cyrene


async def cyrene_has_all(c: Cluster, lower: dict[bytes, bytes | None] = LOWER) -> None:
    """Check that cyrene joins the in-sync sets and, as the leader, serves all of the child's rows."""
    c.dead.discard("cyrene")
    ids = [id_ for id_ in (1, 2) if "cyrene" in c.rows[id_].replicas]
    await until(lambda: all("cyrene" in c.rows[id_].isr for id_ in ids))
    for node in NODES[:2]:
        await c.nodes[node].kill()
        c.dead.add(node)
    for id_ in ids:
        c.elect(id_, "cyrene", without=NODES[:2])
    await c.tell_all(*ids)
    cyrene = c.nodes["cyrene"]
    assert await cyrene.get(2, *UPPER, generation=2) == list(UPPER.values())
    assert await scanned(cyrene, 2) == sorted(UPPER)
    if 1 in ids:
        await assert_halves(cyrene, lower)


async def test_the_childs_keys_leave_the_parent_only_when_the_child_has_a_database(tmp_path: Path) -> None:
    async with cluster(tmp_path, SOON) as c:
        cyrene = await cyrene_attached(c)
        athens = c.nodes["athens"]
        async with attached(cyrene):
            await begin(c)
            await ended(c)
            await until(lambda: not athens.replica(1).state.trim.has_foreign)
            await athens.put(1, {b"0": b"first"}, generation=2)
            await until(lambda: cyrene.replica(1).state.high_watermark == athens.replica(1).state.applied)
            assert cyrene.replica(1).data.is_shared(cyrene.replica(1).state.high_watermark)
            assert cyrene.replica(1).state.applied < cyrene.replica(1).state.high_watermark
            assert not any("cyrene" in change.isr for change in c.isr_changes if change.partition_id == 2)
        await applied(cyrene, athens.replica(1).state.applied)
        await cyrene_has_all(c, LOWER | {b"0": b"first"})


async def test_a_parent_is_deleted_only_when_the_child_has_a_database(tmp_path: Path) -> None:
    async with cluster(tmp_path, SOON) as c:
        cyrene = await cyrene_attached(c)
        async with attached(cyrene):
            await begin(c)
            await ended(c)
            row: Partition = c.change(1, lambda row: row.replicas.remove("cyrene"))
            deleting = asyncio.create_task(cyrene.tell(row))
            await until(lambda: 1 in cyrene.manager.deletions)
            child = cyrene.replica(2).data
        assert list((await deleting).deleted_ids) == [1]
        await c.tell_all(1)
        await cyrene_has_all(c)
        assert cyrene.replica(2).data is child, "a checkpoint has replaced the child's data"


async def test_a_restarted_node_deletes_a_parent_that_lacks_its_last_entries(tmp_path: Path) -> None:
    """The node never applies the parent's log up to the split's marker, so it doesn't create the child from the parent:
    the child's leader sends a copy.
    """
    async with cluster(tmp_path, SOON) as c:
        cyrene = await cyrene_attached(c)
        async with attached(cyrene):
            await begin(c)
            await ended(c)
            left = crashed_copy(cyrene.path, tmp_path / "left")
        await restart_from(cyrene, left)
        row = c.change(1, lambda row: row.replicas.remove("cyrene"))
        assert list((await cyrene.tell(row)).deleted_ids) == [1]
        await c.tell_all(1, 2)
        await cyrene_has_all(c)


async def test_a_deleted_child_has_no_meta_again(tmp_path: Path) -> None:
    """The child's row of metadata is removed before the child is detached from its parent. The detachment must not
    write this row again.
    """
    async with cluster(tmp_path) as c:
        athens, *_ = await three(c)
        await athens.put(1, ROWS)
        await begin(c)
        await ended(c)
        child = athens.replica(2)
        row = c.change(2, lambda row: row.replicas.remove("athens"))
        row.isr.remove("athens")
        row.leader = "byzantium"
        assert list((await athens.tell(row)).deleted_ids) == [2]
        await athens.manager.splitting.record(child)
        assert athens.log_db.get(meta_key(2)) is None


async def test_a_deleted_child_leaves_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is deleted before its copy of the parent's data is in its folder; no part of the copy stays."""
    async with cluster(tmp_path) as c:
        cyrene = await cyrene_attached(c)
        monkeypatch.setattr(cyrene.manager.splitting, "put_in_place", _never)
        await begin(c)
        taken = cyrene.path / "splitting" / "2"
        await until(taken.exists)
        row = c.change(2, lambda row: row.replicas.remove("cyrene"))
        assert list((await cyrene.tell(row)).deleted_ids) == [2]
        assert not taken.exists()


async def _never(*_: object) -> None:
    await asyncio.get_running_loop().create_future()


async def test_a_parent_is_replaced_only_when_the_child_has_a_database(tmp_path: Path) -> None:
    """A checkpoint that may lack the child's keys replaces the parent's data only when the child has a database."""
    async with cluster(tmp_path, SOON) as c:
        cyrene = await cyrene_attached(c)
        async with attached(cyrene):
            await begin(c)
            await ended(c)
            before, child = cyrene.replica(1).data, cyrene.replica(2).data
            follower = cyrene.replica(1).state.follower
            assert follower is not None
            follower.needs_checkpoint()
            cyrene.manager.node.tick(1, 0.0)
            await until(lambda: cyrene.replica(1).state.is_receiving)
        await until(lambda: cyrene.replica(1).data is not before)
        await cyrene_has_all(c)
        assert cyrene.replica(2).data is child, "a checkpoint has replaced the child's data"


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_damaged_parent_and_its_child_get_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashes: bool
) -> None:
    """When the parent's data is damaged, both replicas leave the in-sync sets and get checkpoints from their leaders,
    even if the node crashes while the checkpoint replaces the parent's data.
    """
    async with cluster(tmp_path) as c:
        athens, byzantium, _ = await three(c)
        for part in (LOWER, UPPER):  # after two flushes, the log lacks the first entries
            await athens.put(1, part)
            await applied(byzantium, athens.replica().log.end)
            await byzantium.manager.flusher.flush(byzantium.replica())
        replacing: list[int] = []

        async def replace(replica: HostedReplica, incoming: Incoming) -> None:
            if replica.id == 1:
                await byzantium.manager.checkpoint_receiver.clear(replica)
            replacing.append(replica.id)
            await asyncio.Event().wait()

        if crashes:
            monkeypatch.setattr(byzantium.manager.checkpoint_receiver, "replace", replace)
        async with attached(byzantium):
            await begin(c)
            await until(lambda: has_child(byzantium))
            byzantium.replica(1).data.condemn(MinkaError(Code.CORRUPT_DATA, "a block is damaged"))
        if crashes:
            await until(lambda: 1 in replacing)
            await crash(c, byzantium)
            await c.tell_all(1, 2)
        await ended(c)
        await until(lambda: all("byzantium" in c.rows[id_].isr for id_ in (1, 2)))
        for node in ("athens", "cyrene"):
            await c.nodes[node].kill()
            c.dead.add(node)
        elect_both(c, "byzantium", without=("athens", "cyrene"))
        await c.tell_all(1, 2)
        await assert_halves(byzantium)


async def test_a_lost_child_is_not_attached_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint without the child's keys has replaced the parent's data, and the node restarts before the child's
    own checkpoint has arrived. The node must not attach the child to this parent.
    """
    async with cluster(tmp_path, SOON) as c:
        cyrene = await cyrene_attached(c)
        athens = c.nodes["athens"]
        for part in (LOWER, UPPER):  # after two flushes, the log lacks the first entries
            await athens.put(1, part)
            await applied(cyrene, athens.replica().log.end)
            await cyrene.manager.flusher.flush(cyrene.replica())
        received: list[int] = []
        receiver = cyrene.manager.checkpoint_receiver
        replace = receiver.replace

        async def replace_parent(replica: HostedReplica, incoming: Incoming) -> None:
            received.append(replica.id)
            if replica.id == 2:
                await asyncio.Event().wait()
            await replace(replica, incoming)
            received.append(-replica.id)

        monkeypatch.setattr(receiver, "replace", replace_parent)
        async with attached(cyrene):
            await begin(c)
            await ended(c)
            await until(lambda: has_child(cyrene))
            await until(lambda: not athens.replica(1).state.trim.has_foreign)
            cyrene.replica(1).data.condemn(MinkaError(Code.CORRUPT_DATA, "a block is damaged"))
        await until(lambda: {-1, 2} <= set(received))
        await restart_from(cyrene, crashed_copy(cyrene.path, tmp_path / "left"))
        await c.tell_all(1, 2)
        await cyrene_has_all(c)
