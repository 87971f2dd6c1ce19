"""Writes and reads at one node: their routing, waiting, limits and refusals."""

import asyncio
import time
from pathlib import Path

import pytest

from minka.cluster.key_ranges import MAX_KEY_BYTES
from minka.errors import Code, MinkaError, error_from_proto, newer_rows
from minka.v1.errors_pb2 import Error
from minka.wire import kv_frames
from minka.wire.data_port import Hello, Purpose
from minkad.process.memory import Memory
from minkad.replication.manager import StorageSettings
from tests.integration.replication.harness import Cluster, cluster
from tests.integration.replication.node import Refused, TestNode, share

MIB = 1024 * 1024


async def started(c: Cluster, *partition_ids: int) -> TestNode:
    """Start a node, and create these partitions on it."""
    (athens,) = await c.add("athens")
    await c.create("athens", *partition_ids)
    return athens


async def refusal(
    node: TestNode, op: kv_frames.Op, body: bytes, generation: int = 1, timeout_ms: int = 300
) -> MinkaError:
    """Send a group for partition 1, which must be refused; returns the error."""
    with pytest.raises(Refused) as caught:
        await node.ask(op, 1, generation, body, timeout_ms)
    return caught.value.error


def write(*pairs: tuple[bytes, bytes | None]) -> bytes:
    """Encode the body of a write."""
    return kv_frames.encode(kv_frames.WriteBody([key for key, _ in pairs], [value for _, value in pairs]))


async def test_reads_return_written_values(tmp_path: Path) -> None:
    """Reads return values, and None for missing and deleted keys, for few keys and for many."""
    async with cluster(tmp_path) as c:
        athens = await started(c, 1)
        await athens.put(1, {b"a": b"1", b"b": b"2"})
        await athens.put(1, {b"b": None, b"c": b"3", b"empty": b""})
        assert await athens.get(1, b"a", b"b", b"c", b"d", b"empty") == [b"1", None, b"3", None, b""]
        many = {b"%d" % i: b"v%d" % i for i in range(500)}
        await athens.put(1, many)
        assert await athens.get(1, *many, b"x") == [*many.values(), None]


async def test_a_frame_for_many_partitions(tmp_path: Path) -> None:
    """A frame's answer has the groups' results in the order of the groups. One refusal doesn't affect the others."""
    async with cluster(tmp_path) as c:
        athens = await started(c, 1, 2, 3)
        groups = [kv_frames.Group(kv_frames.Op.WRITE, id_, 1, write((b"k", b"%d" % id_))) for id_ in (1, 2, 3)]
        groups.insert(1, kv_frames.Group(kv_frames.Op.WRITE, 2, 0, write((b"k", b"old route"))))
        results = await athens.answer(groups, share())
        assert [result.error is None for result in results] == [True, False, True, True]
        read = [kv_frames.Group(kv_frames.Op.READ, id_, 1, kv_frames.encode([b"k"])) for id_ in (3, 1, 2)]
        bodies = [result.body for result in await athens.answer(read, share())]
        assert [kv_frames.decode_values(body) for body in bodies if body] == [[b"3"], [b"1"], [b"2"]]
        assert await athens.answer([], share()) == []


@pytest.mark.parametrize(("others", "refused"), [(0, 0), (36 * MIB, 1)])
async def test_a_frame_does_not_wait_for_its_own_answers(tmp_path: Path, others: int, refused: int) -> None:
    """The node sends all answers of a frame together. If the answer to a group doesn't fit into the memory, the node
    refuses this group immediately. If the group waited for room instead, the frame's other answers, which take the
    room, would wait for the group.
    """
    async with cluster(tmp_path) as c:
        athens = await started(c, 1, 2, 3)
        for id_ in (1, 2, 3):
            await athens.put(id_, {b"k": b"v" * 8 * MIB})
        memory = Memory((256 if not others else 64) * MIB, time.monotonic)
        memory.share().take(others)
        groups = [kv_frames.Group(kv_frames.Op.READ, id_, 1, kv_frames.encode([b"k"])) for id_ in (1, 2, 3)]
        async with asyncio.timeout(5):
            results = await athens.answer(groups, memory.share(), 60_000)
        errors = [error_from_proto(Error.FromString(result.error)) for result in results if result.error]
        assert [error.code for error in errors] == [Code.OVERLOADED] * refused
        assert results[0].error is None


async def test_writes_of_one_turn_share_a_sync(tmp_path: Path) -> None:
    """Writes to several partitions, in several frames of one turn, share a sync."""
    async with cluster(tmp_path) as c:
        athens = await started(c, *range(1, 9))
        before = athens.telemetry.log_sync.count
        await asyncio.gather(*(athens.put(1 + i % 8, {b"%d" % i: b""}) for i in range(64)))
        assert athens.telemetry.log_sync.count - before <= 2


@pytest.mark.parametrize(
    ("op", "body", "code"),
    [
        (kv_frames.Op.WRITE, b"", Code.INVALID_ARGUMENT),
        (kv_frames.Op.WRITE, b"\xc1", Code.INVALID_ARGUMENT),
        (kv_frames.Op.WRITE, kv_frames.encode([[b"a"], ["text"]]), Code.INVALID_ARGUMENT),
        (kv_frames.Op.WRITE, kv_frames.encode([[b"a", b"b"], [b"1"]]), Code.INVALID_ARGUMENT),
        (kv_frames.Op.WRITE, kv_frames.encode([[], []]), Code.INVALID_ARGUMENT),
        (kv_frames.Op.WRITE, write((b"", b"1")), Code.INVALID_ARGUMENT),
        (kv_frames.Op.WRITE, write((b"k" * (MAX_KEY_BYTES + 1), b"1")), Code.TOO_LARGE),
        (kv_frames.Op.WRITE, write((b"k", b"v" * (kv_frames.MAX_VALUE_BYTES + 1))), Code.TOO_LARGE),
        (kv_frames.Op.WRITE, write(*((b"%d" % i, b"v" * 15 * MIB) for i in range(3))), Code.TOO_LARGE),
        (kv_frames.Op.READ, b"\xc1", Code.INVALID_ARGUMENT),
        (kv_frames.Op.READ, kv_frames.encode([b"a", b""]), Code.INVALID_ARGUMENT),
        (kv_frames.Op.READ, kv_frames.encode([b"k" * (MAX_KEY_BYTES + 1)]), Code.TOO_LARGE),
        (7, kv_frames.encode([b"a"]), Code.INVALID_ARGUMENT),
    ],
    ids=lambda value: value.name if isinstance(value, Code) else "",
)
async def test_malformed_requests_are_refused_and_do_nothing(
    tmp_path: Path, op: kv_frames.Op, body: bytes, code: Code
) -> None:
    """A refused request appends nothing to the log."""
    async with cluster(tmp_path) as c:
        athens = await started(c, 1)
        assert (await refusal(athens, op, body)).code is code
        assert athens.manager.stats(changed_only=False)[0].log_end_offset == 0


async def test_the_largest_key_and_value_are_accepted(tmp_path: Path) -> None:
    """The node accepts a key and a value of exactly the largest size, and a batch of many keys."""
    async with cluster(tmp_path) as c:
        athens = await started(c, 1)
        key, value = b"k" * MAX_KEY_BYTES, b"v" * kv_frames.MAX_VALUE_BYTES
        await athens.put(1, {key: value})
        assert await athens.get(1, key) == [value]
        many: dict[bytes, bytes | None] = {b"%06d" % i: b"%d" % i for i in range(100_000)}
        await athens.put(1, many, timeout_ms=20_000)
        assert await athens.get(1, b"000000", b"099999") == [b"0", b"99999"]
        assert await athens.count() == {1: 100_001}


async def test_without_clearance_nothing_is_served(tmp_path: Path) -> None:
    """A node without clearance refuses reads and writes, and does none of the refused writes."""
    async with cluster(tmp_path) as c:
        athens = await started(c, 1)
        await athens.put(1, {b"a": b"1"})
        athens.clearance = False
        assert (await refusal(athens, kv_frames.Op.READ, kv_frames.encode([b"a"]))).code is Code.NO_CLEARANCE
        assert (await refusal(athens, kv_frames.Op.WRITE, write((b"a", b"2")))).code is Code.NO_CLEARANCE
        athens.clearance = True
        assert await athens.get(1, b"a") == [b"1"]


async def test_a_write_under_way_is_acknowledged_even_without_clearance(tmp_path: Path) -> None:
    """A write that began before the clearance ended is acknowledged: all replicas in sync have it, so any later leader
    has it, too. New writes are refused.
    """
    async with cluster(tmp_path) as c:
        athens = await started(c, 1)
        writing = asyncio.create_task(athens.put(1, {b"a": b"1"}))
        await asyncio.sleep(0)  # the write is appended, but not durable
        athens.clearance = False
        await writing
        assert (await refusal(athens, kv_frames.Op.WRITE, write((b"a", b"2")))).code is Code.NO_CLEARANCE


async def test_an_older_generation_is_refused_with_the_row(tmp_path: Path) -> None:
    """The refusal of an older generation contains the new row, so the client can continue."""
    async with cluster(tmp_path) as c:
        athens = await started(c, 1)
        error = await refusal(athens, kv_frames.Op.READ, kv_frames.encode([b"a"]), generation=0)
        assert error.code is Code.STALE_GENERATION
        assert newer_rows(error) == (c.rows[1],)


async def test_a_newer_generation_waits_until_the_node_knows_it(tmp_path: Path) -> None:
    """A client may hear of a new generation before the node does; its request waits until the node knows the row."""
    async with cluster(tmp_path) as c:
        athens = await started(c, 1)
        row = c.change(1, lambda row: setattr(row, "generation", 2))
        early = asyncio.create_task(athens.put(1, {b"a": b"1"}, generation=2))
        assert (await refusal(athens, kv_frames.Op.READ, kv_frames.encode([b"a"]), 3)).code is Code.DEADLINE_EXCEEDED
        assert not early.done()
        await athens.tell(row)
        await early
        assert await athens.get(1, b"a", generation=2) == [b"1"]


async def test_a_request_for_an_unknown_partition_waits(tmp_path: Path) -> None:
    """A request for an unknown partition waits. The node serves it when it hears of the partition, or refuses it at its
    deadline.
    """
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        early = asyncio.create_task(athens.put(1, {b"a": b"1"}))
        assert (await refusal(athens, kv_frames.Op.READ, kv_frames.encode([b"a"]))).code is Code.PARTITION_NOT_HERE
        await c.create("athens", 1)
        await early


async def test_a_node_that_does_not_lead_names_the_leader(tmp_path: Path) -> None:
    """Followers name the leader; so do nodes that deleted their replica. A partition without a leader is offline."""
    async with cluster(tmp_path) as c:
        athens, ephesus = await c.add("athens", "ephesus")
        await c.create("athens", 1)
        await ephesus.tell(c.add_target(1, "ephesus"))
        error = await refusal(ephesus, kv_frames.Op.READ, kv_frames.encode([b"a"]))
        assert (error.code, error.details["leader"]) == (Code.NOT_LEADER, "athens")
        await ephesus.tell(c.cancel(1, "ephesus"))
        error = await refusal(ephesus, kv_frames.Op.READ, kv_frames.encode([b"a"]))
        assert (error.code, newer_rows(error)) == (Code.NOT_LEADER, (c.rows[1],))
        offline = c.change(1, lambda row: setattr(row, "leader", ""))
        await athens.tell(offline)
        assert (await refusal(athens, kv_frames.Op.READ, kv_frames.encode([b"a"]))).code is Code.PARTITION_OFFLINE


async def test_too_many_pending_bytes_are_refused(tmp_path: Path) -> None:
    """A write that exceeds the limit of pending bytes is refused, and no part of it is done; earlier writes are
    done.
    """
    async with cluster(tmp_path, storage=StorageSettings(max_pending=MIB)) as c:
        athens = await started(c, 1)
        half = {b"k": b"v" * (MIB // 2)}
        first, second = asyncio.create_task(athens.put(1, half)), asyncio.create_task(athens.put(1, half))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="OVERLOADED"):
            await second
        await first
        await athens.put(1, half)


async def test_an_older_controller_is_refused_and_an_older_row_is_ignored(tmp_path: Path) -> None:
    """The node refuses rows of an older controller. It ignores an older row, and answers with the epoch of its
    own row.
    """
    async with cluster(tmp_path) as c:
        athens = await started(c, 1)
        old = c.rows[1]
        new = c.change(1, lambda row: setattr(row, "generation", 5))
        await athens.tell(new, term=3)
        with pytest.raises(MinkaError, match="NOT_CONTROLLER"):
            await athens.tell(old, term=2)
        response = await athens.tell(old, term=3)
        assert response.hosted_ids == [1]
        assert response.hosted_epochs == [new.partition_epoch]
        await athens.put(1, {b"a": b"1"}, generation=5)


async def test_stats_of_all_or_of_changed_partitions(tmp_path: Path) -> None:
    """The node reports all partitions that it leads, or only those that have changed."""
    async with cluster(tmp_path) as c:
        athens = await started(c, 1, 2)
        assert {stats.partition_id for stats in athens.manager.stats(changed_only=True)} == {1, 2}
        assert athens.manager.stats(changed_only=True) == []
        await athens.put(2, {b"key": b"value", b"k": b"v"})
        (stats,) = athens.manager.stats(changed_only=True)
        assert (stats.partition_id, stats.keys, stats.log_end_offset, stats.applied_offset) == (2, 2, 1, 1)
        assert 10 <= stats.bytes <= 100
        assert len(athens.manager.stats(changed_only=False)) == 2


async def test_flushing_trims_the_log(tmp_path: Path) -> None:
    """Flushes during writes trim the log, and lose no row."""
    storage = StorageSettings(flush=MIB // 4)
    async with cluster(tmp_path, storage=storage) as c:
        athens = await started(c, 1)
        for i in range(40):
            await athens.put(1, {b"%d-%d" % (i, j): b"v" * 1000 for j in range(50)})
        assert (await athens.count())[1] == 2000
    entries = log_entries(tmp_path / "athens")
    assert len(entries) == 0  # `close` has flushed all entries


def log_entries(path: Path) -> list[tuple[bytes, bytes]]:
    """The entries of partition logs on disk."""
    from minkad.storage.log_database import LogDatabase

    db = LogDatabase.open(path / "log")
    try:
        return db.scan(b"p", b"q")
    finally:
        db.close()


async def test_1024_partitions_on_four_nodes(tmp_path: Path) -> None:
    """Empty partitions create no database."""
    async with cluster(tmp_path) as c:
        names = ["athens", "byzantium", "cyrene", "ephesus"]
        await c.add(*names)
        await asyncio.gather(*(c.create(name, *range(i, 1024, 4)) for i, name in enumerate(names)))
        assert not any((tmp_path / name / "partitions").exists() for name in names)
        await c.nodes["cyrene"].put(1022, {b"a": b"1"})


async def test_a_stream_with_many_frames_under_way(tmp_path: Path) -> None:
    """A client can send many frames before the answers arrive. A frame that isn't a valid request ends the
    connection.
    """
    async with cluster(tmp_path) as c:
        await started(c, 1)
        stream = await c.connect("athens", Hello(Purpose.KV, "", ""))
        answers = stream.messages()
        for i in range(200):
            group = kv_frames.Group(kv_frames.Op.WRITE, 1, 1, write((b"%d" % i, b"x")))
            stream.connection.send(kv_frames.encode(kv_frames.Request(i, 5000, [group])))
        answered = {kv_frames.decode_response(await anext(answers)).id for _ in range(200)}
        assert answered == set(range(200))
        stream.connection.send(b"\xc1")
        with pytest.raises(MinkaError) as caught:
            await anext(answers)
        assert caught.value.code is Code.INVALID_ARGUMENT


async def test_a_drain_answers_requests_that_have_begun_and_refuses_the_others(tmp_path: Path) -> None:
    """A drain answers all requests that have begun, and refuses waiting and later ones: no client gets an unknown
    outcome.
    """
    async with cluster(tmp_path) as c:
        athens = await started(c, 1, 2)
        athens.manager.replicas[2].state.gate.close()
        waiting = asyncio.create_task(athens.ask(kv_frames.Op.WRITE, 2, 1, write((b"waits", b"1"))))
        begun = [asyncio.create_task(athens.put(1, {b"%d" % i: b"x"})) for i in range(50)]
        await asyncio.sleep(0)
        assert athens.manager.committer.pending_bytes > 0
        await athens.manager.drain()
        assert athens.manager.committer.pending_bytes == 0
        await asyncio.gather(*begun)
        with pytest.raises(Refused) as caught:
            await waiting
        assert caught.value.error.code is Code.SHUTTING_DOWN
        assert (await refusal(athens, kv_frames.Op.WRITE, write((b"k", b"v")))).code is Code.SHUTTING_DOWN
