"""Operations on keys, whose effects depend on the present value. The leader decides them in the order of the log, and
considers entries that it hasn't applied yet.
"""

import asyncio
from pathlib import Path

import pytest

from minka.errors import Code
from minka.wire import kv_frames
from minka.wire.key_operations import (
    Add,
    Append,
    Expire,
    If,
    Lifetime,
    Operation,
    Outcome,
    Refusal,
    Set,
    SetAllIfAbsent,
    Versioned,
)
from minka.wire.stored_values import version_at
from minkad.replication.applying.hosted_replica import HostedReplica, Pending
from tests.integration.replication.halves import KEY, begin, ended
from tests.integration.replication.harness import cluster
from tests.integration.replication.held_syncs import held_syncs
from tests.integration.replication.merges import merged, two
from tests.integration.replication.node import Refused, TestNode, until
from tests.integration.replication.replicas import led_by, same_everywhere, three

MIB = 1024 * 1024


async def begun(node: TestNode, *operations: Operation) -> "asyncio.Task[list[Outcome]]":
    """Begin operations. When this function returns, the leader has decided them, and has appended their changes to the
    log, but may not have applied these changes.
    """
    task = asyncio.create_task(node.operate(1, *operations))
    await asyncio.sleep(0)
    return task


async def version_of(node: TestNode, key: bytes, partition_id: int = 1, generation: int = 1) -> int:
    (found,) = await node.versions(partition_id, key, generation=generation)
    assert found is not None
    return found.version


async def test_all_concurrent_increments_count(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens, *_ = await three(c)
        tasks = [await begun(athens, Add(b"n", 1), Add(b"n", 1)) for _ in range(200)]
        numbers = [outcome.number for task in tasks for outcome in await task]
        assert numbers == list(range(1, 401))
        assert await athens.get(1, b"n") == [b"400"]
        await same_everywhere(c)


async def test_operations_are_decided_by_entries_that_are_not_applied_yet(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, {b"gone": b"x", b"k": b"old"})
        with held_syncs(athens, lambda: True) as held:
            plain = asyncio.create_task(athens.put(1, {b"k": b"new", b"gone": None}))
            await asyncio.sleep(0)
            changing = await begun(athens, Append(b"k", b"er"), Set(b"gone", b"back", If.ABSENT))
            failing = await begun(athens, Set(b"k", b"!", If.ABSENT, wants_value=True))
            await until(lambda: athens.replica().log.end == 3)
            assert athens.replica().state.applied == 1
            assert not failing.done(), "the entry because of which it fails is not durable yet"
            await held.release()
        await plain
        ((longer, back), (failed,)) = await changing, await failing
        assert (longer.number, back.done) == (5, True)
        assert failed == Outcome(False, longer.version, value=b"newer")
        assert await athens.get(1, b"k", b"gone") == [b"newer", b"back"]


async def test_an_operation_sees_all_of_a_large_write_that_is_half_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        seen: list[asyncio.Task[list[Outcome]]] = []
        apply_slice = HostedReplica._apply_slice

        def sliced(replica: HostedReplica, write: kv_frames.WriteBody, max_keys: int) -> list[Pending]:
            applied = apply_slice(replica, write, max_keys)
            if not applied:
                seen.append(asyncio.get_running_loop().create_task(athens.operate(1, Append(b"09999", b"!"))))
            return applied

        monkeypatch.setattr(HostedReplica, "_apply_slice", sliced)
        monkeypatch.setattr("minkad.replication.applying.committer._APPLY_SECONDS", 0.0)
        await athens.put(1, {b"%05d" % number: b"v" for number in range(10_000)})
        outcomes = [outcome for task in seen for outcome in await task]
        assert [outcome.number for outcome in outcomes] == list(range(2, len(seen) + 2))
        assert len(seen) == 4
        assert await version_of(athens, b"00000") == await version_of(athens, b"09998") == version_at(1)


async def test_versions_change_with_each_write_and_survive_a_crash(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens, byzantium, _ = await three(c)
        assert await athens.versions(1, b"k") == [None]
        await athens.put(1, {b"k": b"1", b"other": b"1"})
        first = await version_of(athens, b"k")
        ((second),) = await athens.operate(1, Set(b"k", b"2", If.VERSION, version=first))
        assert second.done
        assert second.version == await version_of(athens, b"k") != first
        assert await version_of(athens, b"other") == first
        assert await athens.operate(1, Set(b"k", b"3", If.VERSION, version=first)) == [Outcome(False, second.version)]
        await athens.operate(1, Set(b"k", None))
        (again,) = await athens.operate(1, Set(b"k", b"1", If.VERSION, version=0))
        assert again.done
        assert len({first, second.version, again.version}) == 3
        await athens.replica().data.flush()
        await athens.kill()
        c.elect(1, "byzantium")
        await c.tell_all(1)
        await led_by(c, byzantium)
        await athens.start()
        await c.tell_all(1)
        assert await byzantium.versions(1, b"k") == [Versioned(b"1", again.version)]
        await same_everywhere(c)
        assert athens.replica().data.stored([b"k"]) == byzantium.replica().data.stored([b"k"])


async def test_acknowledged_increments_survive_a_crash(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        acknowledged = [await begun(athens, Add(b"n", 1)) for _ in range(20)]
        await asyncio.wait(acknowledged)
        open_ = [await begun(athens, Add(b"n", 1)) for _ in range(20)]
        await athens.kill()
        await asyncio.gather(*open_, return_exceptions=True)
        await athens.start()
        c.elect(1, "athens")
        await c.tell_all(1)
        (counted,) = await athens.operate(1, Add(b"n", 0))
        assert 20 <= counted.number <= 40
        assert await athens.get(1, b"n") == [b"%d" % counted.number]


async def test_no_version_is_used_twice_before_and_after_a_merge(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await two(c)
        key = b"0700"
        assert key >= KEY
        seen = []
        for number in range(40):
            await athens.put(2, {key: b"%d" % number})
            seen.append(await version_of(athens, key, 2))
        (last,) = await athens.operate(2, Expire(key, Lifetime.FOR, 10**9))
        await athens.put(2, {b"0701": b"x"})
        await athens.operate(2, Set(b"0701", None))
        kept = await athens.versions(2, key)
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await merged(c)
        assert await athens.versions(1, key, generation=2) == kept
        assert kept[0] is not None
        assert kept[0].version == last.version
        for number in range(80):
            await athens.put(1, {key: b"%d" % number, b"0701": b"y"}, generation=2)
            seen.append(await version_of(athens, key, 1, 2))
            assert await version_of(athens, b"0701", 1, 2) == seen[-1]
        assert len(set(seen)) == len(seen)
        assert min(seen[40:]) > last.version


async def test_versions_are_right_while_copied_rows_of_a_merge_are_not_applied(tmp_path: Path) -> None:
    """Writes during a merge get higher versions than the copied rows, even before these rows are applied."""
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await two(c)
        for number in range(40):
            await athens.put(2, {b"0700": b"%d" % number})
        before = athens.replica().log.end
        with held_syncs(athens, lambda: True) as held:
            c.merge(1, 2)
            telling = asyncio.create_task(c.tell_all(1, 2))
            await until(lambda: athens.replica().log.end == before + 3)  # the merge's first entry, and two pages
            plain = asyncio.create_task(athens.put(1, {b"0100": b"plain"}))
            await asyncio.sleep(0)
            changing = await begun(athens, Set(b"0200", b"changed"))
            failing = await begun(athens, Set(b"0100", b"!", If.ABSENT))
            assert athens.replica().state.applied == before
            await held.release()
        await telling
        await plain
        ((changed,), (failed,)) = await changing, await failing
        await merged(c)
        last = await version_of(athens, b"0700", 1, 2)
        versions = [await version_of(athens, key, 1, 2) for key in (b"0100", b"0200")]
        assert [failed.version, changed.version] == versions
        assert last < versions[0] < versions[1]


async def test_a_split_keeps_versions_and_later_ones_are_higher(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, {b"0100": b"a", b"0700": b"b"})
        before = [await version_of(athens, key) for key in (b"0100", b"0700")]
        await begin(c)
        await ended(c)
        after = [await version_of(athens, key, id_, 2) for key, id_ in ((b"0100", 1), (b"0700", 2))]
        assert after == before
        for id_, key in ((1, b"0100"), (2, b"0700")):
            (written,) = await athens.operate(id_, Set(key, b"c", If.VERSION, version=before[0]), generation=2)
            assert written.version > before[0]


async def test_an_operation_waits_for_a_load_whose_mark_is_in_the_log(tmp_path: Path) -> None:
    """Before the leader has taken the load in, it doesn't know the load's rows, so it decides no operation."""
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, {b"a": b"1"})
        replica = athens.replica()
        replica.decidable_at = replica.log.end + 1
        operation = await begun(athens, Add(b"n", 1))
        await athens.get(1, b"a")
        assert not operation.done()
        assert replica.log.end == 1
        await athens.put(1, {b"a": b"2"})
        assert await operation == [Outcome(True, version_at(3), 1)]


async def test_an_operation_sets_all_of_several_keys_or_none(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        first = await begun(athens, SetAllIfAbsent([b"a", b"b"], [b"1", b"2"]))
        second = await begun(athens, SetAllIfAbsent([b"c", b"b"], [b"3", b"4"]))
        assert [one.done for one in [*await first, *await second]] == [True, False]
        assert await athens.get(1, b"a", b"b", b"c") == [b"1", b"2", None]


async def test_an_append_beyond_the_size_limit_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        half = b"v" * (8 * MIB)
        (first,) = await athens.operate(1, Set(b"k", half))
        (second,) = await athens.operate(1, Append(b"k", half))
        (third,) = await athens.operate(1, Append(b"k", b"v"))
        assert (first.done, second.number, third.refusal) == (True, 16 * MIB, Refusal.TOO_LARGE)
        with pytest.raises(Refused) as refused:
            await athens.operate(1, *[Append(b"%d" % number, half) for number in range(3)], Set(b"x", half))
        assert refused.value.error.code is Code.TOO_LARGE
        large = Set(b"k", b"w", If.ABSENT, wants_value=True)
        with pytest.raises(Refused) as refused:
            await athens.operate(1, Set(b"other", b"1"), large, large)
        assert refused.value.error.code is Code.TOO_LARGE
        assert await athens.get(1, b"other") == [None], "nothing was done"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", Code.INVALID_ARGUMENT),
        (kv_frames.encode([]), Code.INVALID_ARGUMENT),
        (kv_frames.encode([Set(b"", b"v")]), Code.INVALID_ARGUMENT),
        (kv_frames.encode([Set(b"k" * 70_000, b"v")]), Code.TOO_LARGE),
        (kv_frames.encode([Append(b"k", b"v" * (16 * MIB + 1))]), Code.TOO_LARGE),
        (kv_frames.encode([SetAllIfAbsent([b"k"], [])]), Code.INVALID_ARGUMENT),
        (kv_frames.encode([[99, b"k"]]), Code.INVALID_ARGUMENT),
        (kv_frames.encode([[0, b"k", b"v", 99]]), Code.INVALID_ARGUMENT),
        (kv_frames.encode([Add(b"k", 1)] * 10_001), Code.INVALID_ARGUMENT),
    ],
)
async def test_bad_operations_are_refused(tmp_path: Path, body: bytes, code: Code) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        with pytest.raises(Refused) as refused:
            await athens.ask(kv_frames.Op.OPERATE, 1, 1, body)
        assert refused.value.error.code is code
        stored = kv_frames.encode(kv_frames.StoredWrite([b"k"], [b"no head"], 2**61))
        with pytest.raises(Refused, match="INVALID_ARGUMENT"):
            await athens.ask(kv_frames.Op.WRITE, 1, 1, stored)
        assert athens.replica().log.end == 0
