"""Leaderships begin, are handed over and end. No acknowledged write is lost, and entries that only the former leader
has are removed.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.wire import kv_frames
from minkad.core.replication.peer_messages import Append, Entry
from minkad.core.replication.replica_state import Role
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.replication.sending.peer_frames import Frame, decode_answer, encode
from tests.integration.replication.harness import cluster
from tests.integration.replication.node import Refused, until
from tests.integration.replication.replicas import cut_off, led_by, same_everywhere, three, until_fresh
from tests.integration.replication.writers import Watch, Writers


async def test_a_new_leader_answers_reads_only_when_its_log_is_committed(tmp_path: Path) -> None:
    """A new leader has entries that may be acknowledged. It answers no read until these entries are committed."""
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=30.0)) as c:
        athens, byzantium, cyrene = await three(c)
        cyrene.manager.mute = True
        writing = asyncio.create_task(athens.put(1, {b"a": b"1"}))
        await until(lambda: byzantium.replica().state.durable == cyrene.replica().state.durable == 1)
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


async def test_leadership_changes_lose_no_write(tmp_path: Path) -> None:
    """Planned changes of the leader lose no write, and no write has an unknown outcome."""
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
        assert sum(len(node.write_pauses) for node in nodes) >= 6


async def test_the_leader_dies_while_it_hands_over(tmp_path: Path) -> None:
    """If the leader dies while it hands over, another leader is elected, and no write is lost."""
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


async def test_a_restarted_node_does_not_lead_at_its_former_epoch(tmp_path: Path) -> None:
    """A restarted leader refuses to lead at its former leader_epoch, since other nodes may have entries of this epoch
    that it lacks.
    """
    async with cluster(tmp_path) as c:
        athens, *_ = await three(c)
        await athens.put(1, {b"a": b"1"})
        await athens.kill()
        await athens.start()
        assert len((await athens.tell(c.rows[1])).failed) == 1
        assert athens.replica().state.role is Role.IDLE
        c.elect(1, "athens")
        await c.tell_all(1)
        await athens.put(1, {b"a": b"2"})


# Diverging logs


async def test_a_log_that_diverged_is_truncated(tmp_path: Path) -> None:
    """The former leader has entries that no other node has; they were never acknowledged. It truncates them, and the
    new leader's entries take their place.
    """
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=30.0)) as c:
        athens, byzantium, _ = await three(c)
        await athens.put(1, {b"a": b"1"})
        cut_off(athens)
        doomed = [asyncio.create_task(athens.put(1, {b"doomed %d" % i: b"x"})) for i in range(5)]
        await until(lambda: athens.replica().state.durable == 6)
        assert await athens.get(1, b"doomed 0") == [None]  # the write isn't committed
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


async def test_logs_that_diverge_in_several_epochs_become_equal(tmp_path: Path) -> None:
    """Each leader appends entries that reach no other node, so the logs diverge in several epochs (KIP-279)."""
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=30.0)) as c:
        nodes = await three(c)
        await nodes[0].put(1, {b"start": b"1"})
        for round_ in range(9):
            leader = nodes[round_ % 3]
            c.elect(1, leader.id)
            await leader.tell(c.rows[1])
            mend = cut_off(leader)
            # The leader accepts no writes until its followers have answered, so the test appends to its log directly.
            body = kv_frames.encode(kv_frames.WriteBody([b"round %d" % round_], [b"x"]))
            for _ in range(round_ % 4):
                leader.manager.node.append(leader.replica(), body)
            replica = leader.replica()
            while replica.state.durable < replica.log.end:
                await leader.log_db.sync()
            mend()
        c.elect(1, "byzantium")
        await c.tell_all(1)
        await nodes[1].put(1, {b"end": b"1"})
        await same_everywhere(c)
        assert await nodes[1].get(1, b"start", b"end") == [b"1", b"1"]


async def test_a_log_is_truncated_where_the_leader_resumes(tmp_path: Path) -> None:
    """On a new stream, the leader may resume at an offset before the end of the follower's log: the follower truncates
    its log there. It refuses entries after a gap.
    """
    async with cluster(tmp_path) as c:
        (ephesus,) = await c.add("ephesus")
        c.rows[1] = Partition(id=1, replicas=["athens"], leader="athens", leader_epoch=1, partition_epoch=1)
        await ephesus.tell(c.add_target(1, "ephesus"))
        bodies = [kv_frames.encode(kv_frames.WriteBody([b"%d" % i], [b"x"])) for i in range(1, 7)]

        async def frames(prev: int, last: int) -> AsyncIterator[bytes]:
            entries = [Entry(1, body) for body in bodies[prev:last]]
            yield encode(Frame([Append(1, 1, 0, 0, 0, [], True)], [], None))
            yield encode(Frame([Append(1, 1, prev, 0, 0, entries, False, True)], [], None))
            await until(lambda: replica.state.durable >= last)

        replica = ephesus.manager.replicas[1]
        for prev, last in ((0, 3), (1, 3), (2, 5), (0, 6), (6, 6), (4, 4)):
            answers = [decode_answer(frame) async for frame in ephesus.manager.follow(frames(prev, last))]
            assert answers[-1].acks[-1].offset >= last
            assert replica.log.end == last
        assert [entry.body for entry in replica.log.read(1, 4, 10_000)] == bodies[:4]
        with pytest.raises(MinkaError, match="appends after 5"):
            async for _ in ephesus.manager.follow(frames(5, 5)):
                pass


async def test_replicas_take_over_the_data_of_an_unclean_leader(tmp_path: Path) -> None:
    """After an unclean election, writes that the new leader lacks are lost. The other replicas take over the new
    leader's data.
    """
    async with cluster(tmp_path) as c:
        athens, byzantium, cyrene = await three(c)
        await athens.put(1, {b"a": b"1"})
        await cyrene.kill()
        await c.fail("cyrene")
        await athens.put(1, {b"b": b"2"})
        await until(lambda: byzantium.replica().state.applied == 2)
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
