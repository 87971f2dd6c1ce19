"""`minka.AsyncClient` against real gRPC servers. Each has its own partition table, and fails as the test says."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from minka.async_client import AsyncClient
from minka.cluster.key_ranges import MAX_KEY_BYTES
from minka.engine import lane, stream
from minka.engine.batch_error import BatchError
from minka.errors import Code, InvalidArgument, MinkaError
from minka.v1.cluster_pb2 import NodeState
from minka.wire import kv_frames
from tests.unit.client.asking import BadCalls, Make, client_of, until


async def test_get_returns_the_value_that_was_put_until_it_is_deleted(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster) as client:
        await client.put("UA1545", b"EWR-IAH")
        assert await client.get(b"UA1545") == b"EWR-IAH"
        await client.delete("UA1545")
        assert await client.get("UA1545") is None
        await client.put("empty", b"")
        assert await client.get("empty") == b""


async def test_stale_reads_go_to_any_replica(data_cluster: Make) -> None:
    """A stale read works without a leader, goes to another replica if one can't answer, and states the data's age."""
    async with data_cluster("athens", "byzantium", "cyrene", partitions=1) as cluster, client_of(cluster) as client:
        await client.put("key", b"value")
        for age, node in enumerate(cluster.nodes.values()):
            node.age_ms = 100 * age
        read = [await client.get_stale("key") for _ in range(50)]
        assert {value for value, _ in read} == {b"value"}
        assert {age for _, age in read} == {0.0, 0.1, 0.2}
        cluster.nodes["athens"].refuse = lambda _: MinkaError(Code.AGE_UNKNOWN, "the node has just started")
        await cluster.nodes["byzantium"].stop()
        cluster.lead(0, "")
        assert {(await client.get_stale("key")).age for _ in range(10)} == {0.2}
        assert await client.get_stale("nothing") == (None, 0.2)


async def test_batches(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster) as client:
        pairs = {b"key-%d" % n: b"value-%d" % n for n in range(100)}
        await client.put_many(pairs)
        assert cluster.data == pairs
        assert await client.get_many([*pairs, b"other", b"key-0"]) == pairs
        await client.delete_many([f"key-{n}" for n in range(10, 100)])
        assert await client.get_many(["key-9", "key-10"]) == {"key-9": b"value-9"}
        twice: list[tuple[bytes | str, bytes]] = [("twice", b"first"), (b"twice", b"last")]
        await client.put_many(twice)
        assert await client.get("twice") == b"last"
        await client.put_many({})
        await client.delete_many([])
        assert await client.get_many([]) == {}


async def test_a_batch_goes_to_each_node_once(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium", "cyrene", partitions=30) as cluster, client_of(cluster) as client:
        await client.put_many({b"key-%d" % n: b"" for n in range(500)})
        for node in cluster.nodes.values():
            (frame,) = node.frames
            assert len(frame.groups) == len({group.partition_id for group in frame.groups}) == 10


async def test_calls_made_at_the_same_time_travel_in_one_frame(data_cluster: Make) -> None:
    async with data_cluster("athens", partitions=3) as cluster, client_of(cluster) as client:
        await client.get("connect first")
        frames = cluster.nodes["athens"].frames
        frames.clear()
        await asyncio.gather(*(client.put(b"key-%d" % n, b"v%d" % n) for n in range(300)))
        assert len(frames) == 1
        assert len(frames[0].groups) == 3
        frames.clear()
        values = await asyncio.gather(*(client.get(b"key-%d" % n) for n in range(300)))
        assert values == [b"v%d" % n for n in range(300)]
        assert len(frames) == 1


async def test_frames_under_way_are_bounded(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster) as client:
        athens, bound = cluster.nodes["athens"], lane.MAX_FRAMES_UNDER_WAY
        athens.go_on.clear()
        tasks = []
        for n in range(40):
            tasks.append(asyncio.create_task(client.put(cluster.key_of(0, n), b"v")))
            if n < bound:
                await until(lambda: len(athens.frames) == len(tasks))
            await client.get(cluster.key_of(1))  # the put is sent before the answer comes
        assert len(athens.frames) == bound
        tasks[-1].cancel()
        athens.go_on.set()
        await asyncio.gather(*tasks[:-1])
        assert len(athens.frames) < 2 * bound
        assert cluster.data == {cluster.key_of(0, n): b"v" for n in range(39)}, "a cancelled put is not sent"


async def test_reads_do_not_wait_for_writes(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        athens = cluster.nodes["athens"]
        await client.put("key", b"v")
        athens.holds_writes = asyncio.Event()
        writing = [asyncio.create_task(client.put(b"key-%d" % n, b"w")) for n in range(100)]
        await until(lambda: len(athens.frames) > 1)
        assert await client.get("key") == b"v"
        assert not any(task.done() for task in writing)
        athens.holds_writes.set()
        await asyncio.gather(*writing)


async def test_calls_for_a_dead_nodes_partition_reach_its_new_leader(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium", "cyrene") as cluster, client_of(cluster) as client:
        await client.put(cluster.key_of(0), b"old")
        await cluster.nodes["athens"].stop()
        with pytest.raises(MinkaError):  # the client doesn't know yet that athens is dead, so the outcome is unknown
            await client.put(cluster.key_of(0), b"old", timeout=0.5)
        reading = asyncio.create_task(client.get(cluster.key_of(0)))
        writing = asyncio.create_task(client.put(cluster.key_of(0, 1), b"new"))
        given = cluster.nodes["cyrene"].tables_given
        await until(lambda: cluster.nodes["cyrene"].tables_given > given + 2)
        assert not reading.done()
        assert not writing.done()
        cluster.lead(0, "cyrene")
        assert await reading == b"old"
        await writing
        assert cluster.nodes["cyrene"].writes[cluster.key_of(0, 1)] == 1


async def test_the_remedy_for_a_dead_leader_does_not_blame_the_endpoints(data_cluster: Make) -> None:
    """Here no node takes the dead leader's place, as after the loss of a majority of the voters."""
    async with data_cluster("athens", "byzantium", partitions=2) as cluster, client_of(cluster) as client:
        keys = [cluster.key_of(0), cluster.key_of(0, 1)]
        await client.get_many(keys)
        await cluster.nodes["athens"].stop()
        calls = (
            client.get(keys[0], timeout=0.5),
            client.put(keys[0], b"v", timeout=0.5),
            client.get_many(keys, timeout=0.5),
        )
        for call in calls:
            with pytest.raises(MinkaError, match=r"UNREACHABLE.* at athens") as caught:
                await call
            assert "endpoints" not in caught.value.remedy
            assert "minkactl status" in caught.value.remedy


async def test_after_a_broken_stream_reads_are_repeated_and_writes_are_not(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        key, athens = cluster.key_of(0), cluster.nodes["athens"]
        await client.put(key, b"v")
        athens.frames.clear()
        athens.ends_stream = True
        reading = asyncio.create_task(client.get(key))
        with pytest.raises(MinkaError) as caught:
            await client.put(key, b"other")
        assert caught.value.code is Code.OUTCOME_UNKNOWN
        assert f"at athens ({athens.address})" in caught.value.message
        assert caught.value.details["node"] == "athens"
        athens.ends_stream = False
        assert await reading == b"v"
        writes = [group for frame in athens.frames for group in frame.groups if group.op == kv_frames.Op.WRITE]
        assert len(writes) == 1


async def test_a_call_ends_at_its_deadline(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster, timeout=0.5) as client:
        await client.put("key", b"v")
        cluster.nodes["athens"].go_on.clear()
        for call in (client.put("key", b"w"), client.get("key")):
            start = time.monotonic()
            with pytest.raises(MinkaError, match=r"DEADLINE_EXCEEDED: key key at athens .*no answer within 0.5 s"):
                await call
            assert time.monotonic() - start > 0.45
        assert 0 < cluster.nodes["athens"].frames[-1].timeout_ms <= 500
        cluster.nodes["athens"].go_on.set()
        assert await client.get("key", timeout=5) == b"w"


async def test_calls_wait_for_an_offline_partition(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        await client.put(cluster.key_of(1), b"v")
        cluster.lead(0, "")
        cluster.nodes["athens"].refuse = lambda group: (
            MinkaError(Code.NO_CLEARANCE, "no clearance yet") if group.partition_id == 0 else None
        )
        with pytest.raises(MinkaError, match=r"PARTITION_OFFLINE: .*no leader; given up after \d+ tries within 0.5 s"):
            await client.put(cluster.key_of(0), b"v", timeout=0.5)
        writing = asyncio.create_task(client.put(cluster.key_of(0), b"v"))
        await asyncio.sleep(0)
        cluster.nodes["athens"].refuse = lambda group: None
        cluster.lead(0, "athens")
        await writing


async def test_a_refused_write_is_not_repeated_shortly_before_its_deadline(data_cluster: Make) -> None:
    """The answer to a late repetition could miss the deadline. The client would then have to report an unknown outcome,
    although until then it knows that no node has done the write.
    """
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        await client.get("key")
        athens = cluster.nodes["athens"]
        athens.refuse = lambda _: MinkaError(Code.NOT_ENOUGH_REPLICAS, "one of two is in sync")
        first = len(athens.frames)
        refusals = await asyncio.gather(
            *(client.put(f"key-{i}", b"v", timeout=1) for i in range(40)), return_exceptions=True
        )
        assert {refusal.code for refusal in refusals if isinstance(refusal, MinkaError)} == {Code.NOT_ENOUGH_REPLICAS}
        assert min(frame.timeout_ms for frame in athens.frames[first:]) > 50


async def test_the_error_of_a_batch_names_keys_node_and_reason(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster) as client:
        cluster.nodes["byzantium"].refuse = lambda group: (
            MinkaError(Code.STORAGE_FAILED, "the disk is full") if group.partition_id == 3 else None
        )
        pairs = {b"key-%d" % n: b"v" for n in range(60)}
        with pytest.raises(BatchError) as caught:
            await client.put_many(pairs)
        (failure,) = caught.value.failures
        failed = {key for key in pairs if key not in cluster.data}
        assert set(failure.keys) == failed
        assert failed
        assert failure.node == "byzantium"
        assert caught.value.code is failure.error.code is Code.STORAGE_FAILED
        for text in (f"{len(failed)} of 60 keys failed", "at byzantium (127.0.0.1:", "the disk is full"):
            assert text in caught.value.message


async def test_the_error_of_a_batch_is_bounded(data_cluster: Make) -> None:
    async with data_cluster("athens", partitions=100) as cluster, client_of(cluster) as client:
        cluster.nodes["athens"].refuse = lambda group: MinkaError(Code.STORAGE_FAILED, "no " * 10_000)
        with pytest.raises(BatchError) as caught:
            await client.put_many({b"k" * 1000 + b"%d" % n: b"v" for n in range(1000)})
        assert len(caught.value.failures) == 100
        assert len(str(caught.value)) < 2000


async def test_limits_are_checked_before_anything_is_sent(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        large = b"v" * (kv_frames.MAX_VALUE_BYTES + 1)
        third = b"v" * (kv_frames.MAX_BODY_BYTES // 3)
        for call in (
            client.put("key", large),
            client.put_many({"key": large}),
            client.put_many({"a": third, "b": third, "c": third}),
            client.put(b"k" * (MAX_KEY_BYTES + 1), b"v"),
            client.get(b"k" * (MAX_KEY_BYTES + 1)),
            client.get_many([b"k" * (MAX_KEY_BYTES + 1)]),
        ):
            with pytest.raises(MinkaError, match="TOO_LARGE"):
                await call
        for bad in (
            client.put("key", "text"),  # type: ignore[call-overload]  # the mistake under test
            client.put_many({"key": 5}),  # type: ignore[arg-type]
            client.get(5),  # type: ignore[arg-type]
            client.get_many([5]),  # type: ignore[type-var]
            client.get("key", timeout=0),
            client.get("key", timeout=True),
            client.get(""),
            client.get("\ud800"),
            client.put_many({"": b"v"}),
        ):
            with pytest.raises(MinkaError, match="INVALID_ARGUMENT"):
                await bad
        assert cluster.nodes["athens"].frames == []


async def test_invalid_arguments_are_refused_before_anything_is_sent(data_cluster: Make, bad_calls: BadCalls) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        await client.put_many({"abc": b"1", "a": b"2", "d": b"3"})
        frames = len(cluster.nodes["athens"].frames)
        for call, why in bad_calls:
            with pytest.raises(InvalidArgument, match=why) as caught:
                await call(client)
            assert caught.value.code is Code.INVALID_ARGUMENT
        assert len(cluster.nodes["athens"].frames) == frames
        for bad in ("5", timedelta(seconds=1), 0, 1e300, None, True):
            with pytest.raises(InvalidArgument, match="isn't a positive time in seconds"):
                AsyncClient(cluster.endpoints, timeout=bad)  # type: ignore[arg-type]  # the mistake under test
            with pytest.raises(InvalidArgument, match="isn't a positive time in seconds"):
                AsyncClient(cluster.endpoints, refresh_interval=bad)  # type: ignore[arg-type]
        for limit in (0, "5", 1.5, True):
            with pytest.raises(InvalidArgument, match="limit="):
                client.scan(limit=limit)  # type: ignore[arg-type]


async def test_an_error_in_the_callers_iterator_reaches_the_caller(data_cluster: Make) -> None:
    def broken() -> Iterator[Any]:
        yield ("key", b"v")
        raise ValueError("no more")

    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        for call in (client.put_many(broken()), client.get_many(broken()), client.delete_many(broken())):
            with pytest.raises(ValueError, match=r"^no more$"):
                await call


async def test_a_large_batch_travels_in_pieces(data_cluster: Make) -> None:
    async with data_cluster("athens", partitions=2) as cluster, client_of(cluster) as client:
        pairs = {b"key-%d" % n: b"%d" % n * 20_000 for n in range(200)}
        await client.put_many(pairs, timeout=20)
        assert cluster.data == pairs
        sizes = [sum(len(group.body) for group in frame.groups) for frame in cluster.nodes["athens"].frames]
        assert max(sizes) < 2 * lane.FRAME_BYTES
        assert await client.get_many(pairs, timeout=20) == pairs


async def test_a_read_that_is_too_large_for_one_answer_is_halved(data_cluster: Make) -> None:
    async with data_cluster("athens", partitions=1) as cluster, client_of(cluster) as client:
        pairs = {b"key-%d" % n: b"v" * 100 for n in range(64)}
        await client.put_many(pairs)
        cluster.nodes["athens"].largest_read = 1000
        assert await client.get_many(pairs) == pairs
        # The reads in one frame are too large for one answer, but each single read is small enough: the client gets all
        # values.
        assert await asyncio.gather(*(client.get(key) for key in pairs)) == list(pairs.values())
        cluster.nodes["athens"].largest_read = 99
        with pytest.raises(MinkaError, match="TOO_LARGE"):
            await client.get("key-0")


async def test_a_full_queue_refuses_and_the_client_tries_again(
    data_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "MAX_QUEUED_BYTES", 1000)
    async with data_cluster("athens", partitions=1) as cluster, client_of(cluster) as client:
        await asyncio.gather(*(client.put(b"key-%d" % n, b"v" * 100) for n in range(100)))
        assert len(cluster.data) == 100
        assert max(len(frame.groups[0].body) for frame in cluster.nodes["athens"].frames) < 2000


async def test_a_read_at_a_silent_node_is_answered_by_the_new_leader(
    data_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "QUIET_S", 0.05)
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster, timeout=8) as client:
        await client.put(cluster.key_of(0), b"v")
        athens, byzantium = cluster.nodes["athens"], cluster.nodes["byzantium"]
        asked, given = athens.tables_asked, byzantium.tables_given
        athens.go_on.clear()
        reading = asyncio.create_task(client.get(cluster.key_of(0)))
        await until(lambda: byzantium.tables_given > given + 4)
        assert not reading.done()
        assert athens.tables_asked == asked, "the client asks other nodes than the silent one for the table"
        cluster.lead(0, "byzantium", told=["byzantium"])
        assert await reading == b"v"


async def test_the_outcome_of_a_write_at_a_silent_node_is_unknown_once_another_node_leads(
    data_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new leader gets only the writes that were never sent to the silent node, and the later ones."""
    monkeypatch.setattr(stream, "QUIET_S", 0.05)
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster, timeout=8) as client:
        await client.put(cluster.key_of(0), b"v")
        athens, byzantium = cluster.nodes["athens"], cluster.nodes["byzantium"]
        given = byzantium.tables_given
        athens.go_on.clear()
        writing = []
        for number in range(lane.MAX_FRAMES_UNDER_WAY + 1):
            writing.append(asyncio.create_task(client.put(cluster.key_of(0), b"w%d" % number)))
            await asyncio.sleep(0)
            await asyncio.sleep(0.005)
        await until(lambda: byzantium.tables_given > given + 4)
        assert not any(task.done() for task in writing)
        cluster.lead(0, "byzantium", told=["byzantium"])
        outcomes = await asyncio.gather(*writing, return_exceptions=True)
        assert {str(outcome).split(":")[0] for outcome in outcomes[:-1]} == {"OUTCOME_UNKNOWN"}
        assert outcomes[-1] is None, "the last put was never sent"
        await client.put(cluster.key_of(0), b"x")
        assert await client.get(cluster.key_of(0)) == b"x"


async def test_a_write_waits_for_the_answer_of_a_node_that_is_only_busy(
    data_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Athens is silent now, and byzantium leads. But the table says that athens is LIVE, so athens will answer."""
    monkeypatch.setattr(stream, "QUIET_S", 0.05)
    async with data_cluster("athens", "byzantium") as cluster:
        athens, byzantium = cluster.nodes["athens"], cluster.nodes["byzantium"]
        for node in byzantium.table.nodes:
            node.state = NodeState.NODE_STATE_LIVE
        athens.table.CopyFrom(byzantium.table)
        async with client_of(cluster, timeout=8) as client:
            await client.put(cluster.key_of(0), b"v")
            athens.go_on.clear()
            writing = asyncio.create_task(client.put(cluster.key_of(0), b"w"))
            cluster.lead(0, "byzantium", told=["byzantium"])
            given = byzantium.tables_given
            await until(lambda: byzantium.tables_given > given + 4)
            assert not writing.done()
            athens.go_on.set()
            await writing


async def test_a_node_that_never_answers_is_given_up(data_cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "QUIET_S", 0.05)
    monkeypatch.setattr(stream, "OVERDUE_S", 0.1)
    async with data_cluster("athens") as cluster, client_of(cluster, timeout=0.5) as client:
        await client.put("key", b"v")
        athens = cluster.nodes["athens"]
        athens.go_on.clear()
        with pytest.raises(MinkaError, match="DEADLINE_EXCEEDED"):
            await client.put("key", b"w")
        writing = asyncio.create_task(client.put("key", b"x", timeout=10))
        # The first put's deadline passed long ago, so the client gives up the stream. The second put is on this stream,
        # too.
        with pytest.raises(MinkaError, match=r"OUTCOME_UNKNOWN.*connected but answers nothing"):
            await writing
        athens.go_on.set()
        await client.put("key", b"y", timeout=5)


async def test_closing_the_client_ends_its_calls(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium") as cluster:
        client = client_of(cluster)
        await client.put("key", b"v")
        for node in cluster.nodes.values():
            node.go_on.clear()
        reading, writing = asyncio.create_task(client.get("key")), asyncio.create_task(client.put("key", b"w"))
        frames = [node.frames for node in cluster.nodes.values()]
        await until(lambda: sum(len(frame.groups) for some in frames for frame in some) == 3)
        await client.close()
        with pytest.raises(MinkaError, match=r"UNREACHABLE.*the client was closed") as closed:
            await reading
        assert "endpoints" not in closed.value.remedy
        with pytest.raises(MinkaError, match=r"OUTCOME_UNKNOWN.*the client was closed"):
            await writing
        with pytest.raises(MinkaError, match="INVALID_ARGUMENT: the client is closed"):
            await client.get("key")
        assert [task for task in asyncio.all_tasks() if task.get_name().startswith("minka")] == []


async def test_a_malformed_answer_ends_the_stream(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        await client.put("key", b"v")
        ok = kv_frames.GroupResult(None, None)
        answers: list[Callable[[kv_frames.Request], bytes]] = [
            lambda request: b"\xc1",
            lambda request: kv_frames.encode(kv_frames.Response(request.id + 1, [ok])),
            lambda request: kv_frames.encode(kv_frames.Response(request.id, [])),
            lambda request: kv_frames.encode(kv_frames.Response(request.id, [ok, ok])),
        ]
        for nonsense in answers:
            cluster.nodes["athens"].nonsense = nonsense
            with pytest.raises(MinkaError, match="INTERNAL"):
                await client.get("key")
            with pytest.raises(MinkaError, match=r"OUTCOME_UNKNOWN.*INTERNAL"):
                await client.put("key", b"w")
        for values in ([], [b"v", b"w"]):
            results = [kv_frames.GroupResult(None, kv_frames.encode(values))]
            cluster.nodes["athens"].nonsense = lambda request, results=results: kv_frames.encode(
                kv_frames.Response(request.id, results)
            )
            with pytest.raises(MinkaError, match=r"INTERNAL.*don't fit the keys that were asked for"):
                await client.get("key")
        cluster.nodes["athens"].nonsense = None
        assert await client.get("key") == b"w"


async def test_cancelling_one_call_does_not_disturb_the_others(data_cluster: Make) -> None:
    async with data_cluster("athens", partitions=1) as cluster, client_of(cluster) as client:
        await client.put("key", b"v")
        cluster.nodes["athens"].go_on.clear()
        tasks = [asyncio.create_task(client.get("key")) for _ in range(3)]
        await until(lambda: len(cluster.nodes["athens"].frames) == 2)
        tasks[1].cancel()
        cluster.nodes["athens"].go_on.set()
        assert await tasks[0] == await tasks[2] == b"v"
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]


async def test_connections_to_nodes_that_have_gone_are_closed(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium") as cluster:
        athens, byzantium = cluster.nodes["athens"], cluster.nodes["byzantium"]
        async with AsyncClient([athens.address], keyspace="flights", refresh_interval=0.02) as client:
            await client.put_many({b"key-%d" % n: b"v" for n in range(20)})
            assert byzantium.streams == 1
            for partition_id in (1, 3, 5):
                cluster.lead(partition_id, "athens")
            for node in (athens, byzantium):
                del node.table.nodes[1]
                node.table.version += 1
            await until(lambda: byzantium.streams == 0)
            assert athens.streams == 1
            await client.put_many({b"key-%d" % n: b"v" for n in range(20)})


def test_a_client_belongs_to_one_event_loop(free_address: Callable[[], str]) -> None:
    client = AsyncClient([free_address()], keyspace="flights")
    for error in ("UNREACHABLE", "INVALID_ARGUMENT: the client belongs to another event loop"):
        with pytest.raises(MinkaError, match=error):
            asyncio.run(client.get("key"))


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # transports stay open when their loop is closed
def test_a_client_can_be_closed_after_its_event_loop(cluster: Any) -> None:
    client = client_of(cluster)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(client.put("key", b"v"))
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT: the client belongs to another event loop: close it there"):
        asyncio.run(client.close())
    assert loop.run_until_complete(client.get("key")) == b"v"
    loop.close()
    asyncio.run(client.close())
    asyncio.run(client.close())
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT: the client is closed"):
        asyncio.run(client.get("key"))
    gc.collect()  # collect the transports while their warning is ignored
