"""Partitions with three replicas: an acknowledged write is on all replicas in sync. It is never lost, even if nodes die
at any time.
"""

import asyncio
import random
from pathlib import Path

import pytest

from minka.v1.cluster_pb2 import Durability
from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.peer_messages import Append
from minkad.replication.manager import StorageSettings
from tests.integration.replication.harness import cluster
from tests.integration.replication.node import until
from tests.integration.replication.replicas import NAMES, same_everywhere, three
from tests.integration.replication.writers import Watch, Writers

MIB = 1024 * 1024


async def test_an_acknowledged_write_is_on_all_replicas_in_sync(tmp_path: Path) -> None:
    """When a write is acknowledged, the logs of all replicas in sync have it durably. The replicas apply it when they
    hear that it is committed.
    """
    async with cluster(tmp_path) as c:
        nodes = await three(c)
        for i in range(20):
            await nodes[0].put(1, {b"%d" % i: b"x" * 100})
            assert [node.replica().state.durable for node in nodes] == [i + 1] * 3
        await same_everywhere(c)
        assert [node.replica().state.high_watermark for node in nodes] == [20] * 3
        assert [keys for node in nodes for keys in (await node.count()).values()] == [20] * 3


async def test_writes_to_many_partitions_share_frames_and_syncs(tmp_path: Path) -> None:
    """Concurrent writes to many partitions share few frames, and each node needs few syncs for them."""
    ids = range(1, 25)
    async with cluster(tmp_path) as c:
        nodes = await three(c, *ids)
        await asyncio.gather(*(nodes[0].put(id_, {b"a": b"1"}) for id_ in ids))
        before = [node.telemetry.log_sync.count for node in nodes]
        await asyncio.gather(*(nodes[0].put(id_, {b"b": b"2"}) for id_ in ids))
        after = [node.telemetry.log_sync.count for node in nodes]
        assert all(end - start <= 6 for start, end in zip(before, after, strict=True)), (before, after)
        for id_ in ids:
            await same_everywhere(c, id_)


@pytest.mark.seeds(4)
async def test_nodes_die_while_clients_write(tmp_path: Path, seed: int) -> None:
    """Leaders and followers die one after the other: no acknowledged write is lost, no watermark goes back, and in the
    end all logs are equal.
    """
    rng = random.Random(seed)
    storage = StorageSettings(flush=rng.choice((20_000, MIB)))
    async with cluster(tmp_path, storage=storage) as c:
        await three(c)
        writers, watch = Writers(c), Watch(c)
        for _ in range(5):
            await writers.more(rng.randrange(1, 60))
            victim = c.nodes[c.rows[1].leader if rng.random() < 0.6 else rng.choice(NAMES)]
            await victim.kill()
            await c.fail(victim.id)
            await writers.more(rng.randrange(1, 40))
            await victim.start()
            await c.back(victim.id)
            await until(lambda: len(c.rows[1].isr) == 3)
        await writers.stop()
        await watch.stop()
        await same_everywhere(c)
        for node in c.nodes.values():
            await c.tell_all(*[c.elect(1, node.id).id])
            await writers.check(node)
        assert len(writers.acknowledged) > 50


@pytest.mark.seeds(2)
async def test_all_nodes_die_at_once(tmp_path: Path, seed: int) -> None:
    """After all nodes have died, each replica of the in-sync set can lead, and has every acknowledged write."""
    rng = random.Random(seed)
    async with cluster(tmp_path) as c:
        nodes = await three(c)
        writers = Writers(c)
        for _ in range(3):
            await writers.more(30)
            for node in nodes:
                await node.kill()
            for node in nodes:
                await node.start()
            c.elect(1, rng.choice(c.rows[1].isr))
            await c.tell_all(1)
        await writers.more(10)
        await writers.stop()
        await same_everywhere(c)
        await writers.check(c.nodes[c.rows[1].leader])


@pytest.mark.seeds(2)
async def test_async_writes_survive_kill_9(tmp_path: Path, seed: int) -> None:
    """With `async` durability, writes don't wait for a sync; yet kill -9 of all nodes loses no acknowledged write."""
    rng = random.Random(seed)
    async with cluster(tmp_path, storage=StorageSettings(flush=20_000)) as c:
        c.keyspace.durability = Durability.DURABILITY_ASYNC
        nodes = await three(c)
        writers = Writers(c)
        await writers.more(200)
        syncs = nodes[0].telemetry.log_sync.count
        await writers.more(200)
        assert nodes[0].telemetry.log_sync.count - syncs < 100
        for node in nodes:
            await node.kill()
        for node in nodes:
            await node.start()
        c.elect(1, rng.choice(c.rows[1].isr))
        await c.tell_all(1)
        await writers.more(10)
        await writers.stop()
        await same_everywhere(c)
        await writers.check(c.nodes[c.rows[1].leader])


async def test_an_unexpected_error_is_logged_and_the_stream_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After an unexpected error, the leader logs the error and begins the stream again. If the stream ended silently,
    the followers would no longer get entries, and nobody would know why.
    """
    take = Progress.next_append
    failed: list[str] = []

    def once(progress: Progress, limit: int) -> Append | None:
        if not failed:
            failed.append(progress.node_id)
            raise KeyError(1)
        return take(progress, limit)

    async with cluster(tmp_path) as c:
        athens, *_ = await three(c)
        monkeypatch.setattr(Progress, "next_append", once)
        await athens.put(1, {b"a": b"1"})
        assert failed
        await same_everywhere(c)
    assert [record.exc_text for record in caplog.records if record.exc_text and "KeyError: 1" in record.exc_text]
