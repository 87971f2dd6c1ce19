"""Three replicas: what is acknowledged is on all that are in sync, and stays, whoever dies when."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from minka import wire
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Durability
from minka.v1.coordinator_pb2 import AlterIsrRequest, AlterIsrResponse, ReplicaOutcome
from minkad.shard.context import ReplicationSettings
from minkad.shard.manager import StorageSettings
from minkad.shard.replica import Replica, Role
from tests.integration.shard.harness import Cluster, Refused, TestNode, cluster, until

MIB = 1024 * 1024
NAMES = ("athens", "byzantium", "cyrene")
# Refusals of a node that did nothing: the writer goes elsewhere.
ELSEWHERE = (Code.STALE_GENERATION, Code.NOT_LEADER, Code.NO_CLEARANCE, Code.PARTITION_OFFLINE, Code.UNKNOWN_PARTITION)


async def three(c: Cluster, *partition_ids: int) -> list[TestNode]:
    """Partitions with three replicas each, led by athens."""
    nodes = await c.add(*NAMES)
    await c.create("athens", *(partition_ids or (1,)), followers=NAMES[1:])
    return nodes


async def same_everywhere(c: Cluster, partition_id: int = 1) -> None:
    """All replicas are in sync, with the same log, and have applied it."""
    row = c.rows[partition_id]
    await until(lambda: set(c.rows[partition_id].isr) == set(row.replicas))
    replicas = [c.nodes[node].replica(partition_id) for node in row.replicas]
    await until(lambda: len({replica.applied for replica in replicas}) == 1)
    assert {replica.log.end for replica in replicas} == {replicas[0].applied}
    start = max(replica.log.base for replica in replicas) + 1
    end = replicas[0].log.end
    if start <= end:
        logs = [[(e.leader_epoch, e.body) for e in replica.log.read(start, end, 1 << 30)] for replica in replicas]
        assert logs[0] == logs[1] == logs[-1]


async def led_by(c: Cluster, node: TestNode) -> None:
    """The controller's table says so."""
    await until(lambda: c.rows[1].leader == node.id)


async def applied(node: TestNode, offset: int) -> None:
    """So much is visible there."""
    await until(lambda: node.replica().applied == offset)


class Watch:
    """Looks all the time that no high watermark and nothing applied goes back while a process lives."""

    def __init__(self, c: Cluster) -> None:
        self._c = c
        self._seen: dict[Replica, tuple[int, int]] = {}
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            for node in self._c.nodes.values():
                for replica in node.manager._replicas.values() if node.running else ():
                    now = (replica.high_watermark, replica.applied)
                    before = self._seen.get(replica, (0, 0))
                    assert now[0] >= before[0], f"{node.id}: {replica} was at {before}"
                    assert now[1] >= before[1], f"{node.id}: {replica} was at {before}"
                    self._seen[replica] = now
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """Raises what it saw."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


class Writers:
    """Go on while nodes die; each key is written once, so that the sum shows what was lost."""

    def __init__(self, c: Cluster, count: int = 6, partition_id: int = 1) -> None:
        self.c = c
        self.partition_id = partition_id
        self.acknowledged: dict[bytes, bytes] = {}
        self.unknown: dict[bytes, bytes] = {}
        self.refused: list[MinkaError] = []
        self._stop = False
        self._tasks = [asyncio.create_task(self._write(random.Random(number), number)) for number in range(count)]

    async def stop(self) -> None:
        """And wait for the last."""
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def more(self, count: int = 50) -> None:
        """Until so many more were acknowledged."""
        goal = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= goal)

    async def _write(self, rng: random.Random, number: int) -> None:
        count = 0
        while not self._stop:
            count += 1
            await self._put(b"%d/%d" % (number, count), rng.randbytes(rng.choice((10, 300))))

    async def _put(self, key: bytes, value: bytes) -> None:
        while True:
            row = self.c.rows[self.partition_id]
            node = self.c.nodes.get(row.leader)
            await asyncio.sleep(0)
            if node is None or not node.running:
                await asyncio.sleep(0.002)
                continue
            try:
                await node.put(self.partition_id, {key: value}, row.generation, 3000)
                self.acknowledged[key] = value
                return
            except Refused as refused:
                self.refused.append(refused.error)
                if refused.error.code not in ELSEWHERE:
                    self.unknown[key] = value
                    return

    async def check(self, node: TestNode) -> None:
        """Nothing that was acknowledged is lost, and nothing is there that nobody wrote."""
        row = self.c.rows[self.partition_id]
        expected = {**self.acknowledged, **self.unknown}
        found = dict(zip(expected, await node.get(row.id, *expected, generation=row.generation), strict=True))
        lost = [key for key in self.acknowledged if found[key] != self.acknowledged[key]]
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} are lost, such as {lost[0]!r}"
        assert all(found[key] in (None, self.unknown[key]) for key in self.unknown)


def test_an_acknowledged_write_is_on_all_that_are_in_sync(tmp_path: Path) -> None:
    """Durably; and they apply it when they hear that it is committed."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            nodes = await three(c)
            for i in range(20):
                await nodes[0].put(1, {b"%d" % i: b"x" * 100})
                assert [node.replica().durable for node in nodes] == [i + 1] * 3
            await same_everywhere(c)
            assert [node.replica().high_watermark for node in nodes] == [20] * 3
            assert [keys for node in nodes for keys in (await node.count()).values()] == [20] * 3

    asyncio.run(scenario())


def test_a_frame_carries_many_partitions(tmp_path: Path) -> None:
    """Writes at the same time cost one sync at each node, and few frames."""
    ids = range(1, 25)

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            nodes = await three(c, *ids)
            await asyncio.gather(*(nodes[0].put(id_, {b"a": b"1"}) for id_ in ids))
            before = [node.log_db.counters.syncs for node in nodes]
            await asyncio.gather(*(nodes[0].put(id_, {b"b": b"2"}) for id_ in ids))
            after = [node.log_db.counters.syncs for node in nodes]
            assert all(end - start <= 6 for start, end in zip(before, after, strict=True)), (before, after)
            for id_ in ids:
                await same_everywhere(c, id_)

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(4))
def test_nodes_die_under_load(tmp_path: Path, seed: int) -> None:
    """Leaders and followers, one after the other: nothing acknowledged is lost, no watermark goes back, all logs end
    up the same.
    """

    async def scenario() -> None:
        rng = random.Random(seed)
        storage = StorageSettings(block_cache=MIB, flush=rng.choice((20_000, MIB)))
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

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(2))
def test_all_nodes_die_at_once(tmp_path: Path, seed: int) -> None:
    """A power cut: whoever of the in-sync set leads next has everything that was acknowledged."""

    async def scenario() -> None:
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

    asyncio.run(scenario())


def cut_off(node: TestNode) -> Callable[[], None]:
    """Nothing that the node appends gets to others, until the function that is the answer is called."""
    for feed in node.manager._feeds.values():
        feed._collect = lambda: None  # type: ignore[method-assign]

    def mend() -> None:
        for feed in node.manager._feeds.values():
            feed.__dict__.pop("_collect", None)
            feed.wake()

    return mend


def test_a_log_that_parted_is_cut(tmp_path: Path) -> None:
    """What the old leader alone has was never acknowledged, and goes; what came after takes its place."""

    async def scenario() -> None:
        async with cluster(tmp_path, ReplicationSettings(lag_timeout=30.0)) as c:
            athens, byzantium, _ = await three(c)
            await athens.put(1, {b"a": b"1"})
            cut_off(athens)
            doomed = [asyncio.create_task(athens.put(1, {b"doomed %d" % i: b"x"})) for i in range(5)]
            await until(lambda: athens.replica().durable == 6)
            assert await athens.get(1, b"doomed 0") == [None]  # it isn't committed
            c.elect(1, "byzantium")
            await byzantium.tell(c.rows[1])
            await c.nodes["cyrene"].tell(c.rows[1])
            await athens.tell(c.rows[1])
            for result in await asyncio.gather(*doomed, return_exceptions=True):
                assert isinstance(result, Refused)
                assert result.error.code is Code.OUTCOME_UNKNOWN
            for i in range(3):
                await byzantium.put(1, {b"b%d" % i: b"2"})
            await same_everywhere(c)
            assert athens.replica().log.end == 4
            assert athens.replica().log.lineage()[-1] == (2, 2)
            assert await byzantium.get(1, b"a", b"b0", b"doomed 0") == [b"1", b"2", None]
            assert (await athens.count())[1] == 4

    asyncio.run(scenario())


def test_leaders_that_change_fast(tmp_path: Path) -> None:
    """Each appends something that gets nowhere: the logs part again and again (KIP-279)."""

    async def scenario() -> None:
        async with cluster(tmp_path, ReplicationSettings(lag_timeout=30.0)) as c:
            nodes = await three(c)
            await nodes[0].put(1, {b"start": b"1"})
            for round_ in range(9):
                leader = nodes[round_ % 3]
                c.elect(1, leader.id)
                await leader.tell(c.rows[1])
                mend = cut_off(leader)
                # It does not serve before it has heard its followers; so straight into its log.
                body = wire.encode(wire.WriteBody([b"round %d" % round_], [b"x"]))
                for _ in range(round_ % 4):
                    leader.replica().log.append(leader.replica().row.leader_epoch, body)
                    leader.manager._committer.staged(leader.replica())
                replica = leader.replica()
                while replica.durable < replica.log.end:
                    await leader.log_db.sync()
                mend()
            c.elect(1, "byzantium")
            await c.tell_all(1)
            await nodes[1].put(1, {b"end": b"1"})
            await same_everywhere(c)
            assert await nodes[1].get(1, b"start", b"end") == [b"1", b"1"]

    asyncio.run(scenario())


def test_a_new_leader_waits_until_all_before_it_is_committed(tmp_path: Path) -> None:
    """It has what may have been acknowledged, and must not let anybody read around it."""

    async def scenario() -> None:
        async with cluster(tmp_path, ReplicationSettings(lag_timeout=30.0)) as c:
            athens, byzantium, cyrene = await three(c)
            cyrene.manager._following.durable = lambda replica: None  # type: ignore[method-assign] # it acknowledges nothing
            writing = asyncio.create_task(athens.put(1, {b"a": b"1"}))
            await until(lambda: byzantium.replica().durable == cyrene.replica().durable == 1)
            assert not writing.done()
            await cyrene.stop()
            c.elect(1, "byzantium")
            await athens.tell(c.rows[1])
            await asyncio.gather(writing, return_exceptions=True)
            await athens.stop()
            await byzantium.tell(c.rows[1])
            with pytest.raises(Refused, match="in-sync set") as caught:
                await byzantium.get(1, b"a", timeout_ms=200)
            assert caught.value.error.code is Code.DEADLINE_EXCEEDED
            await cyrene.start()
            await athens.start()
            await c.tell_all(1)
            assert await byzantium.get(1, b"a") == [b"1"]

    asyncio.run(scenario())


def test_who_lags_leaves_and_returns(tmp_path: Path) -> None:
    """Writes wait for it no longer than the setting says; when it has caught up, they do again."""

    async def scenario() -> None:
        async with cluster(tmp_path, ReplicationSettings(lag_timeout=0.3)) as c:
            athens, byzantium, cyrene = await three(c)
            await athens.put(1, {b"a": b"1"})
            committer = cyrene.manager._committer
            staged, held = committer.staged, asyncio.Event()
            committer.staged = lambda replica: held.set()  # type: ignore[method-assign] # it takes no time for its disk
            await athens.put(1, {b"b": b"2"})
            assert held.is_set()
            assert c.rows[1].isr == ["athens", "byzantium"]
            await athens.put(1, {b"c": b"3"})
            assert athens.replica().high_watermark == 3
            committer.staged = staged  # type: ignore[method-assign]
            await athens.put(1, {b"d": b"4"})
            await same_everywhere(c)
            assert cyrene.replica().log.end == 4
            assert byzantium.replica().applied == 4

    asyncio.run(scenario())


def test_who_lacks_something_does_not_join(tmp_path: Path) -> None:
    """Not even with little to go: what it lacks is acknowledged already."""

    async def scenario() -> None:
        async with cluster(tmp_path, ReplicationSettings(lag_timeout=30.0)) as c:
            athens, _, cyrene = await three(c)
            c.change(1, lambda row: row.isr.remove("cyrene"))
            following = cyrene.manager._following
            acknowledge = following.durable
            following.durable = lambda replica: None  # type: ignore[method-assign]
            c.dead.add("cyrene")
            await c.tell_all(1)
            await athens.put(1, {b"a": b"1"})
            c.dead.clear()
            leadership = athens.manager._leaderships[1]
            leadership._held.clear()
            leadership.look()
            assert leadership._joining == {"cyrene"}
            assert leadership.proposed is None
            writing = asyncio.create_task(athens.put(1, {b"b": b"2"}))
            await until(lambda: cyrene.replica().durable == 2)
            assert not writing.done()
            following.durable = acknowledge  # type: ignore[method-assign]
            following.durable(cyrene.replica())
            await writing
            await same_everywhere(c)

    asyncio.run(scenario())


def test_under_load_a_replica_returns(tmp_path: Path) -> None:
    """There is a moment at which it has all that is acknowledged, although more comes all the time."""

    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_what_the_leader_tells_of_its_followers(tmp_path: Path) -> None:
    """How far they are behind, and each change of an in-sync set."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
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

    asyncio.run(scenario())


def test_with_too_few_in_sync_writes_are_refused(tmp_path: Path) -> None:
    """By name, and nothing is done; reads go on; and it ends when a replica is back."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            c.keyspace.min_insync = 2
            athens, byzantium, cyrene = await three(c)
            await athens.put(1, {b"a": b"1"})
            for node in (byzantium, cyrene):
                await node.kill()
                await c.fail(node.id)
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

    asyncio.run(scenario())


def test_what_was_under_way_is_not_acknowledged_by_too_few(tmp_path: Path) -> None:
    """The in-sync set shrank behind its back: the write waits, unseen, until there are enough again."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            c.keyspace.min_insync = 2
            athens, byzantium, cyrene = await three(c)
            mend = cut_off(athens)
            writing = asyncio.create_task(athens.put(1, {b"a": b"1"}))
            await until(lambda: athens.replica().durable == 1)
            await c.fail("byzantium")
            await c.fail("cyrene")
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

    asyncio.run(scenario())


@pytest.mark.parametrize("lost", ["the request", "the answer"])
def test_an_unknown_outcome_counts_the_larger_set(tmp_path: Path, lost: str) -> None:
    """A write waits for whoever may be in sync, until that is known."""

    async def scenario() -> None:
        async with cluster(tmp_path, ReplicationSettings(lag_timeout=0.2)) as c:
            athens, _, cyrene = await three(c)
            await athens.put(1, {b"a": b"1"})
            errors = [MinkaError(Code.UNREACHABLE, "lost")] * 3
            if lost == "the request":
                c.before_alter_isr = errors
            else:
                c.after_alter_isr = errors[:1]
                c._tell_later = lambda *_: None  # type: ignore[method-assign]
            await cyrene.stop()
            writing = asyncio.create_task(athens.put(1, {b"b": b"2"}))
            await until(lambda: not (c.before_alter_isr or c.after_alter_isr))
            await writing
            assert athens.replica().row.isr == ["athens", "byzantium"]
            await cyrene.start()
            await cyrene.tell(c.rows[1])
            await until(lambda: athens.replica().high_watermark == cyrene.replica().durable == 2)

    asyncio.run(scenario())


def test_a_refused_change_is_tried_again_later(tmp_path: Path) -> None:
    """And does not hold up writes."""

    async def scenario() -> None:
        async with cluster(tmp_path, ReplicationSettings(lag_timeout=0.2, longest_backoff=0.1)) as c:
            athens, _, cyrene = await three(c)
            await c.fail("cyrene")  # for the controller; the node itself goes on
            for i in range(50):
                await athens.put(1, {b"%d" % i: b"1"})
            assert c.rows[1].isr == ["athens", "byzantium"]
            c.dead.clear()
            await same_everywhere(c)
            assert cyrene.replica().log.end == 50

    asyncio.run(scenario())


def test_leadership_goes_round_under_load(tmp_path: Path) -> None:
    """A planned change loses no write and leaves none unknown."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            nodes = await three(c)
            writers, watch = Writers(c), Watch(c)
            for round_ in range(6):
                await writers.more(20)
                successor = nodes[(round_ + 1) % 3]
                row = c.succeed(1, successor.id)
                await c.nodes[row.leader].tell(row)
                await led_by(c, successor)
            await writers.more(20)
            await writers.stop()
            await watch.stop()
            assert not writers.unknown
            await same_everywhere(c)
            await writers.check(nodes[0])
            assert sum(len(node.fences) for node in nodes) >= 6

    asyncio.run(scenario())


def test_the_leader_dies_while_it_hands_over(tmp_path: Path) -> None:
    """An ordinary election; nothing is lost."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, byzantium, _ = await three(c)
            writers = Writers(c)
            await writers.more(20)
            c.hold_hand_over()
            await athens.tell(c.succeed(1, "byzantium"))
            await until(lambda: len(c.hand_overs) >= 2)
            await athens.kill()
            c.before_hand_over.clear()
            await c.fail("athens")
            await writers.more(20)
            await athens.start()
            await c.back("athens")
            await writers.stop()
            await same_everywhere(c)
            await writers.check(byzantium)

    asyncio.run(scenario())


def test_stale_reads(tmp_path: Path) -> None:
    """From any replica, with a bound of their age that grows when the leader is gone."""

    async def scenario() -> None:
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
            await until(lambda: byzantium.replica().is_ready)
            await byzantium.put(1, {b"a": b"2"})
            await until(lambda: cyrene.replica().applied == 2)
            assert (await cyrene.get_stale(1, b"a")).values == [b"2"]
            await cyrene.kill()
            await cyrene.start()
            with pytest.raises(Refused) as caught:
                await cyrene.get_stale(1, b"a")
            assert caught.value.error.code is Code.AGE_UNKNOWN

    asyncio.run(scenario())


async def until_fresh(node: TestNode, age_ms: int) -> None:
    """It says that it is no older."""
    deadline = asyncio.get_running_loop().time() + 5
    while True:
        with contextlib.suppress(Refused):
            if (await node.get_stale(1, b"a")).age_ms <= age_ms:
                return
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


def test_the_age_of_a_stale_read_is_a_bound(tmp_path: Path) -> None:
    """A counter: what a follower answers was the newest at most so long ago."""

    async def scenario() -> None:
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
            advance = cyrene.manager._committer.advance
            for i in range(200):
                if i % 50 == 25:  # for a while it doesn't apply
                    cyrene.manager._committer.advance = lambda replica: None  # type: ignore[method-assign]
                if i % 50 == 35:
                    cyrene.manager._committer.advance = advance  # type: ignore[method-assign]
                await asyncio.sleep(0.005)
                now = loop.time()
                read = await cyrene.get_stale(1, b"a")
                newest = max(number for at, number in history if at <= now - read.age_ms / 1000)
                assert int(read.values[0] or b"0") >= newest
            done = True
            await counting

    asyncio.run(scenario())


def test_a_replica_is_added_and_removed_under_load(tmp_path: Path) -> None:
    """By checkpoint and log into the in-sync set; and nothing of it is left."""

    async def scenario() -> None:
        storage = StorageSettings(block_cache=MIB, flush=50_000)
        async with cluster(tmp_path, ReplicationSettings(log_only_bytes=1000), storage) as c:
            nodes = await three(c)
            (ephesus,) = await c.add("ephesus")
            writers = Writers(c)
            await writers.more(300)
            c.add_replica(1, "ephesus")
            await c.tell_all(1)
            await until(lambda: "ephesus" in c.rows[1].isr and not c.rows[1].adding_replicas)
            await writers.more(50)
            c.remove_replica(1, "cyrene")
            await c.tell_all(1)
            (result,) = (await nodes[2].tell(c.rows[1])).results
            assert result.outcome == ReplicaOutcome.REPLICA_OUTCOME_DELETED
            assert await nodes[2].count() == {}
            await writers.more(50)
            await writers.stop()
            assert not writers.unknown
            await same_everywhere(c)
            assert "cyrene/partitions/1" not in c.folders()
            await c.fail("athens")
            await c.fail("byzantium")
            assert c.rows[1].leader == "ephesus"
            await writers.check(ephesus)

    asyncio.run(scenario())


def test_a_broken_transfer_is_resumed(tmp_path: Path) -> None:
    """Whole files that came do not come again."""

    async def scenario() -> None:
        storage = StorageSettings(block_cache=MIB, flush=100_000)
        async with cluster(tmp_path, ReplicationSettings(chunk_bytes=10_000), storage) as c:
            athens, ephesus = await c.add("athens", "ephesus")
            await c.create("athens", 1)
            rng = random.Random(1)
            rows: dict[bytes, bytes | None] = {}
            for i in range(3):  # a file each; with four they would be merged
                rows.update({b"%d/%d" % (i, j): rng.randbytes(1000) for j in range(800)})
                await athens.put(1, {key: rows[key] for key in list(rows)[-800:]})
                await until(lambda: not athens.replica().flushing)
            sizes: list[int] = []
            ship = athens.links.ship

            async def broken(node_id: str, messages: AsyncIterator[bytes]) -> bytes:
                sizes.append(0)

                async def counted() -> AsyncIterator[bytes]:
                    async for message in messages:
                        if len(sizes) == 1 and sizes[0] > 1_900_000:
                            raise MinkaError(Code.UNREACHABLE, "broke")
                        yield message
                        sizes[-1] += len(message)

                return await ship(node_id, counted())

            athens.links.ship = broken  # type: ignore[method-assign]
            c.add_replica(1, "ephesus")
            await c.tell_all(1)
            await same_everywhere(c)
            assert sizes[0] > 1_900_000
            assert sum(sizes[1:]) < 1_700_000
            assert c.folders() == {"athens/partitions/1", "ephesus/partitions/1"}
            await c.fail("athens")
            assert await ephesus.get(1, *rows) == list(rows.values())

    asyncio.run(scenario())


def test_a_leader_that_was_not_in_sync(tmp_path: Path) -> None:
    """What it lacks is lost, as the keyspace allows; others throw their copies away for its."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, byzantium, cyrene = await three(c)
            await athens.put(1, {b"a": b"1"})
            await cyrene.kill()
            await c.fail("cyrene")
            await athens.put(1, {b"b": b"2"})
            await until(lambda: byzantium.replica().applied == 2)
            for node in (athens, byzantium):
                await node.kill()
            await cyrene.start()
            c.change(1, lambda row: row.isr.__setitem__(slice(None), ["cyrene"]))
            c.dead.clear()
            c.elect(1, "cyrene")
            await c.tell_all(1)
            await cyrene.put(1, {b"c": b"3"})
            for node in (athens, byzantium):
                await node.start()
            await c.tell_all(1)
            await same_everywhere(c)
            assert await cyrene.get(1, b"a", b"b", b"c") == [b"1", None, b"3"]
            for node in (athens, byzantium):
                await until_fresh(node, 1000)
                assert (await node.get_stale(1, b"a", b"b", b"c")).values == [b"1", None, b"3"]

    asyncio.run(scenario())


def test_nobody_leads_again_at_an_epoch_of_an_earlier_life(tmp_path: Path) -> None:
    """What it wrote then may be elsewhere and not here."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, *_ = await three(c)
            await athens.put(1, {b"a": b"1"})
            await athens.kill()
            await athens.start()
            (result,) = (await athens.tell(c.rows[1])).results
            assert result.outcome == ReplicaOutcome.REPLICA_OUTCOME_FAILED
            assert athens.replica().role is Role.IDLE
            c.elect(1, "athens")
            await c.tell_all(1)
            await athens.put(1, {b"a": b"2"})

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(2))
def test_async_survives_the_end_of_processes(tmp_path: Path, seed: int) -> None:
    """Nobody waits for a disk, and what was acknowledged is there after kill -9 of all."""

    async def scenario() -> None:
        rng = random.Random(seed)
        async with cluster(tmp_path, storage=StorageSettings(block_cache=MIB, flush=20_000)) as c:
            c.keyspace.durability = Durability.DURABILITY_ASYNC
            nodes = await three(c)
            writers = Writers(c)
            await writers.more(200)
            syncs = nodes[0].log_db.counters.syncs
            await writers.more(200)
            assert nodes[0].log_db.counters.syncs - syncs < 100
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

    asyncio.run(scenario())


def test_an_answer_that_comes_after_the_leadership(tmp_path: Path) -> None:
    """Changes nothing, and the node goes on."""

    async def scenario() -> None:
        async with cluster(tmp_path, ReplicationSettings(lag_timeout=0.2)) as c:
            athens, byzantium, cyrene = await three(c)
            answer, asked, may_answer = athens.manager._in_sync._alter_isr, asyncio.Event(), asyncio.Event()

            async def late(request: AlterIsrRequest) -> AlterIsrResponse:
                asked.set()
                await may_answer.wait()
                return await answer(request)

            athens.manager._in_sync._alter_isr = late
            await cyrene.stop()
            await asyncio.wait_for(asked.wait(), 5)
            c.elect(1, "byzantium")
            await c.tell_all(1)
            may_answer.set()
            await until(lambda: c.rows[1].isr == ["athens", "byzantium"])
            await byzantium.put(1, {b"a": b"1"})
            assert athens.log_db.error is None
            assert athens.replica().durable == 1

    asyncio.run(scenario())
