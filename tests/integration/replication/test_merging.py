"""Merges on the nodes: one partition gets the data of another one, while clients write, nodes die and answers
are lost.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError, newer_rows
from minka.v1.cluster_pb2 import Durability, Partition
from minka.v1.coordinator_pb2 import FinishMergeRequest
from minka.wire import kv_frames
from minkad.core.replication.gate import Gate
from minkad.core.replication.replica import Replica as ReplicaCore
from minkad.core.replication.replica_state import Role
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.storage.data_database import DataDatabase
from minkad.storage.size_estimate import Size
from tests.integration.replication.halves import KEY, LOWER, NODES, ROWS, UPPER, scanned
from tests.integration.replication.harness import cluster
from tests.integration.replication.merges import GENERATION, bound, merged, two
from tests.integration.replication.node import Refused, TestNode, until


async def has_all(node: TestNode, leader: TestNode) -> None:
    await until(lambda: node.replica(1).state.applied == leader.replica(1).log.end)


def check_stale(refused: Refused) -> None:
    assert refused.error.code is Code.STALE_GENERATION


async def assert_has(node: TestNode, rows: dict[bytes, bytes | None]) -> None:
    there = {key: value for key, value in rows.items() if value is not None}
    assert await node.get(1, *rows, generation=GENERATION) == list(rows.values())
    assert await scanned(node, 1, GENERATION) == sorted(there)
    (counted,) = await node.manager.inventory.count_keys([1])
    assert counted.keys == len(there)


async def test_the_merged_partition_serves_the_rows_of_both(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await two(c)
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await merged(c)
        await assert_has(athens, ROWS)
        await until(lambda: not (athens.path / "partitions" / "2").exists())
        with pytest.raises(Refused) as refusal:
            await athens.get(2, b"0700")
        assert refusal.value.error.code is Code.STALE_GENERATION
        assert [row.id for row in newer_rows(refusal.value.error)] == [1]
        await athens.stop()
        await athens.start()
        with pytest.raises(Refused) as refusal:
            await athens.put(2, {b"0700": b"late"})
        assert refusal.value.error.code is Code.STALE_GENERATION
        assert [row.id for row in newer_rows(refusal.value.error)] in ([], [1]), "the node may not have been told yet"


async def test_refusals_name_the_remaining_partition(tmp_path: Path) -> None:
    """After merges, the refusal of an outdated request names the partition that has the key now: even if a partition
    was merged two times, or was split before.
    """

    async def refusal_of(node: TestNode, partition_id: int) -> tuple[Code, list[int]]:
        with pytest.raises(Refused) as refusal:
            await node.get(partition_id, b"0900", generation=1)
        return refusal.value.error.code, [row.id for row in newer_rows(refusal.value.error)]

    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await two(c)
        c.split(2, b"0800")
        await c.tell_all(2, 3)
        await until(lambda: not c.rows[3].splitting)
        c.merge(2, 3)
        await c.tell_all(2, 3)
        await until(lambda: 3 in c.gone and not c.rows[2].merge_from)
        assert await refusal_of(athens, 2) == (Code.STALE_GENERATION, [2])
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await until(lambda: 2 in c.gone)
        for partition_id in (1, 2, 3):
            assert await refusal_of(athens, partition_id) == (Code.STALE_GENERATION, [1])


async def test_a_partition_that_is_merged_while_it_is_counted_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await two(c)
        count = DataDatabase.count

        async def late(data: DataDatabase, wanted: KeyRange) -> Size:
            monkeypatch.undo()
            c.merge(1, 2)
            await c.tell_all(1, 2)
            await merged(c)
            await until(lambda: 2 not in athens.manager.replicas)
            return await count(data, wanted)

        monkeypatch.setattr(DataDatabase, "count", late)
        assert await athens.manager.inventory.count_keys([2]) == []
        (counted,) = await athens.manager.inventory.count_keys([1])
        assert (counted.keys, counted.generation, counted.leader) == (len(ROWS), GENERATION, True)


async def test_an_empty_partition_is_merged(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1, 2)
        await bound(c)
        await athens.put(1, LOWER)
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await merged(c)
        await assert_has(athens, LOWER)


async def test_keys_that_a_split_left_behind_do_not_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split, delete keys of the upper half, and merge. The lower half's data isn't trimmed, so it still has these keys;
    they must not return.
    """
    monkeypatch.setattr(ReplicaCore, "is_to_be_trimmed", False)
    async with cluster(tmp_path) as c:
        nodes = await c.add(*NODES)
        await c.create("athens", 1, followers=NODES[1:])
        athens = nodes[0]
        await athens.put(1, ROWS)
        c.split(1, KEY)
        await c.tell_all(1, 2)
        await until(lambda: not c.rows[2].splitting)
        gone = dict.fromkeys(list(UPPER)[::2])
        await athens.put(2, gone, generation=2)
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await merged(c)
        rows = {key: value for key, value in ROWS.items() if key not in gone}
        assert await scanned(athens, 1, 3) == sorted(rows)
        for node in nodes:
            await has_all(node, athens)
            (counted,) = await node.manager.inventory.count_keys([1])
            assert counted.keys == len(rows)


async def test_a_merge_while_clients_write(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        nodes = await c.add(*NODES)
        await two(c, NODES[1:])
        athens, expected = nodes[0], dict(ROWS)
        stop = asyncio.Event()

        async def write(number: int) -> None:
            rng = random.Random(number)
            mine = [key for key in ROWS if int(key) % 4 == number]
            while not stop.is_set():
                key = rng.choice(mine)
                value = rng.choice([None, b"%d" % rng.randrange(1000)])
                try:
                    await athens.put(1 if key < KEY else 2, {key: value}, 1)
                except Refused as refused:
                    check_stale(refused)
                    await athens.put(1, {key: value}, GENERATION)
                expected[key] = value

        async def read() -> None:
            while not stop.is_set():
                await asyncio.sleep(0.0005)  # reads don't let other tasks run, and the log's thread needs the GIL
                try:
                    await athens.get(2, b"0700")
                except Refused as refused:
                    check_stale(refused)
                    await athens.get(1, b"0700", generation=GENERATION)

        tasks = [asyncio.create_task(write(number)) for number in range(4)] + [asyncio.create_task(read())]
        await until(lambda: athens.replica(2).log.end > 50)
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await merged(c)
        end = athens.replica().log.end
        await until(lambda: athens.replica().log.end > end + 50)
        stop.set()
        await asyncio.gather(*tasks)
        await assert_has(athens, expected)
        for node in nodes[1:]:
            await has_all(node, athens)
            there = {key: value for key, value in expected.items() if value is not None}
            (counted,) = await node.manager.inventory.count_keys([1])
            assert counted.keys == len(there)


async def test_the_log_keeps_entries_that_are_not_copied_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await two(c)
        go_on, page = asyncio.Event(), DataDatabase.stored_page

        def later(data: DataDatabase, *args: Any, **named: Any) -> tuple[list[bytes], list[bytes], bool]:
            return page(data, *args, **named) if go_on.is_set() or data is not right else ([], [], False)

        right = athens.replica(2).data
        monkeypatch.setattr(DataDatabase, "stored_page", later)
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await until(lambda: bool(athens.replica(2).state.retention.readers))
        for number in range(5):
            await athens.put(2, {b"0700": b"%d" % number, b"080%d" % number: None})
            await athens.manager.flusher.flush(athens.replica(2))
        go_on.set()
        await merged(c)
        await assert_has(athens, {**ROWS, b"0700": b"4", **{b"080%d" % number: None for number in range(5)}})


async def test_rows_are_durable_in_the_merged_partition_before_the_old_copy_is_deleted(tmp_path: Path) -> None:
    """Before the merged partition is deleted, its rows are on the disks of the remaining partition. So a power cut
    can't lose old writes, even with `async` durability.
    """
    async with cluster(tmp_path, settings=ReplicationSettings(lag_timeout=30)) as c:
        c.keyspace.durability = Durability.DURABILITY_ASYNC
        athens, byzantium, _ = await c.add(*NODES)
        await two(c, NODES[1:])
        stands_still: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sync = byzantium.log_db.sync
        byzantium.log_db.sync = lambda: stands_still  # type: ignore[method-assign]
        try:
            c.merge(1, 2)
            await athens.tell(c.rows[1], c.rows[2])
            await until(lambda: athens.replica(2).state.gate.state is Gate.FROZEN or 2 in c.gone)
            # The merge is given up, since byzantium's sync takes too long.
            await until(lambda: athens.replica(2).state.gate.state is not Gate.FROZEN or 2 in c.gone)
            assert 2 not in c.gone
            await athens.put(2, {b"0700": b"new"})
        finally:
            byzantium.log_db.sync = sync  # type: ignore[method-assign]
            await sync()
            stands_still.set_result(None)
        await merged(c)
        await assert_has(athens, {**ROWS, b"0700": b"new"})


async def test_a_merge_whose_answers_are_lost(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await two(c)
        c.before_finish_merge = [MinkaError(Code.UNREACHABLE, "the request was lost") for _ in range(2)]
        c.after_finish_merge = [MinkaError(Code.OUTCOME_UNKNOWN, "the answer was lost") for _ in range(2)]
        c.merge(1, 2)
        await c.tell_all(1, 2)
        write = asyncio.create_task(athens.put(2, {b"0700": b"late"}))
        await merged(c)
        try:
            await write
            late: bytes | None = b"late"
        except Refused as refused:
            check_stale(refused)
            late = ROWS[b"0700"]
        await assert_has(athens, {**ROWS, b"0700": late})


async def test_writes_wait_while_the_outcome_of_the_merge_is_unknown(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await two(c)
        c.before_finish_merge = [MinkaError(Code.NO_CONTROLLER, "no active controller yet")] * 10_000
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await until(lambda: len(c.before_finish_merge) < 10_000)
        assert await athens.get(2, b"0700") == [ROWS[b"0700"]]
        with pytest.raises(Refused) as refusal:
            await athens.put(2, {b"0700": b"late"}, timeout_ms=300)
        assert refusal.value.error.code is Code.DEADLINE_EXCEEDED
        await athens.put(1, {b"0100": b"new"})
        c.before_finish_merge.clear()
        await merged(c)
        await assert_has(athens, {**ROWS, b"0100": b"new"})


async def test_a_cancelled_merge(tmp_path: Path) -> None:
    """New rows cancel the merge: writes continue, and all replicas remove the copied keys."""
    async with cluster(tmp_path) as c:
        nodes = await c.add(*NODES)
        await two(c, NODES[1:])
        athens = nodes[0]
        c.before_finish_merge = [MinkaError(Code.NO_CONTROLLER, "no active controller yet")] * 10_000
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await until(lambda: len(c.before_finish_merge) < 10_000)
        c.change(1, lambda row: row.ClearField("merge_from"))
        c.change(2, lambda row: row.ClearField("merge_into"))
        await c.tell_all(1, 2)
        await athens.put(2, {b"0700": b"late"})
        c.before_finish_merge.clear()
        await until(lambda: not athens.replica(1).state.trim.has_foreign)
        for node in nodes:
            await has_all(node, athens)
            assert len(node.replica(1).data.page(b"", b"", False, 10_000, 1 << 30)[0]) == len(LOWER)
        assert 2 not in c.gone


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_new_leader_removes_the_rows_of_a_cancelled_merge(tmp_path: Path, restarts: bool) -> None:
    """The new leader doesn't hear that the merge began or was cancelled, but its log has the copied rows. The new
    leader removes these rows, even if it was restarted and didn't read this part of its log again.
    """
    async with cluster(tmp_path) as c:
        nodes = await c.add(*NODES)
        await two(c, NODES[1:])
        athens, byzantium, cyrene = nodes
        c.before_finish_merge = [MinkaError(Code.NO_CONTROLLER, "no active controller yet")] * 10_000
        c.merge(1, 2)
        await athens.tell(c.rows[1], c.rows[2])
        await until(lambda: len(c.before_finish_merge) < 10_000)
        await has_all(byzantium, athens)
        await athens.kill()
        if restarts:
            await byzantium.manager.flusher.flush(byzantium.replica(1))
            await byzantium.kill()
            await byzantium.start()
            c.dead.discard("byzantium")
        c.change(1, lambda row: row.ClearField("merge_from"))
        c.change(2, lambda row: row.ClearField("merge_into"))
        for id_ in (1, 2):
            c.elect(id_, "byzantium", without=["athens"])
        await c.tell_all(1, 2)
        await until(lambda: byzantium.replica(1).state.is_ready and not byzantium.replica(1).state.trim.has_foreign)
        for node in (byzantium, cyrene):
            await has_all(node, byzantium)
            assert len(node.replica(1).data.page(b"", b"", False, 10_000, 1 << 30)[0]) == len(LOWER)


@pytest.mark.parametrize("place", ["copy", "freeze", "finish"])
async def test_the_leader_dies_during_a_merge(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader dies during a merge; the new leader, whose data has the rows copied so far, begins the merge again."""
    async with cluster(tmp_path) as c:
        nodes = await c.add(*NODES)
        await two(c, NODES[1:])
        athens, byzantium = nodes[0], nodes[1]
        reached = asyncio.Event()
        executor = athens.manager.executor
        pass_on, finish = executor.reached, executor.call_finish_merge

        def note(at: str) -> None:
            pass_on(at)
            if at == f"merge.{place}":
                reached.set()

        async def note_finish(request: FinishMergeRequest) -> list[Partition]:
            reached.set()
            return await finish(request)

        monkeypatch.setattr(executor, "reached", note)
        if place == "finish":
            monkeypatch.setattr(executor, "call_finish_merge", note_finish)
        c.before_finish_merge = [MinkaError(Code.NO_CONTROLLER, "no active controller yet")] * 10_000
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await reached.wait()
        await athens.kill()
        for id_ in (1, 2):
            c.elect(id_, "byzantium", without=["athens"])
        c.before_finish_merge = [MinkaError(Code.STALE_EPOCH, "the test refuses to end a merge")] * 10_000
        await c.tell_all(1, 2)
        await byzantium.put(2, {b"0700": None})
        c.before_finish_merge.clear()
        await merged(c, *nodes[1:])
        rows = {**ROWS, b"0700": None}
        await until(lambda: byzantium.replica(1).state.is_ready)
        await assert_has(byzantium, rows)
        await athens.start()
        c.dead.discard("athens")
        await athens.tell(c.rows[1], c.gone[2])
        await until(lambda: athens.replica(1).state.applied == byzantium.replica(1).log.end)
        (counted,) = await athens.manager.inventory.count_keys([1])
        assert counted.keys == len(rows) - 1
        assert 2 not in athens.manager.replicas


async def test_the_rows_after_a_merge_may_arrive_one_after_the_other(tmp_path: Path) -> None:
    """The rows after the merge arrive before the controller's answer. When the node has the remaining partition's row,
    the other partition serves nothing.
    """
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await two(c)
        c.after_finish_merge = [MinkaError(Code.OUTCOME_UNKNOWN, "the answer was lost")] * 10_000
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await until(lambda: 2 in c.gone)
        await athens.tell(c.rows[1])
        assert athens.replica(2).state.role is Role.IDLE
        await athens.put(1, {b"0700": b"new"}, GENERATION)
        with pytest.raises(Refused) as refusal:
            await athens.get(2, b"0700", generation=1, timeout_ms=300)
        assert refusal.value.error.code in (Code.STALE_GENERATION, Code.DEADLINE_EXCEEDED)
        c.after_finish_merge.clear()
        await athens.tell(c.gone[2])
        await merged(c)
        await assert_has(athens, {**ROWS, b"0700": b"new"})


async def test_stale_reads_are_refused_before_a_follower_has_the_copied_rows(tmp_path: Path) -> None:
    """A follower that has the new row, but not the copied data, refuses stale reads. If the follower answered, the
    copied keys would seem to be missing.
    """
    async with cluster(tmp_path) as c:
        nodes = await c.add(*NODES)
        await two(c, NODES[1:])
        athens, cyrene = nodes[0], nodes[2]
        cyrene.manager.node.mark_begun(cyrene.replica(1), 0.0)  # it applies no more entries
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await until(lambda: 2 in c.gone)
        await cyrene.tell(c.rows[1])
        with pytest.raises(Refused) as refusal:
            await cyrene.get_stale(1, b"0700", generation=GENERATION)
        assert refusal.value.error.code is Code.AGE_UNKNOWN
        cyrene.manager.node.mark_ended(cyrene.replica(1), cyrene.replica(1).data, 0.0, is_passed=True)

        async def answer() -> kv_frames.StaleResult | None:
            try:
                return await cyrene.get_stale(1, b"0700", generation=GENERATION)
            except Refused:
                return None

        while (found := await answer()) is None:
            await asyncio.wait([cyrene.manager.waits.changed(1)], timeout=0.05)
        assert found.values == [ROWS[b"0700"]]
        assert await athens.get(1, b"0700", generation=GENERATION) == [ROWS[b"0700"]]


async def test_a_replica_that_gets_a_checkpoint_during_a_merge(tmp_path: Path) -> None:
    """A new replica gets a checkpoint during the copy, and the remaining rows from the log."""
    async with cluster(tmp_path) as c:
        nodes = await c.add(*NODES)
        await two(c, NODES[1:2])
        athens, cyrene = nodes[0], nodes[2]
        c.before_finish_merge = [MinkaError(Code.NO_CONTROLLER, "no active controller yet")] * 10_000
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await until(lambda: len(c.before_finish_merge) < 10_000)
        await athens.manager.flusher.flush(athens.replica(1))
        await athens.manager.flusher.flush(athens.replica(1))

        def add(row: Partition) -> None:
            row.replicas.append("cyrene")

        c.change(1, add)
        await c.tell_all(1)
        c.before_finish_merge.clear()
        await merged(c, *nodes[:2])
        await until(lambda: cyrene.replica(1).state.applied == athens.replica(1).log.end)
        (counted,) = await cyrene.manager.inventory.count_keys([1])
        assert counted.keys == len(ROWS)
