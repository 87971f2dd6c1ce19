"""Conditions, versions, counters and lifetimes in `minka.AsyncClient`, against the servers of `conftest.py`."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from minka.engine import operate, stream
from minka.engine.batch_error import BatchError
from minka.engine.operate import VersionedValue, Written
from minka.errors import Code, Conflict, InvalidArgument, MinkaError, OutcomeUnknown
from minka.wire import kv_frames
from minka.wire.key_operations import (
    MAX_OPERATIONS,
    Add,
    Expire,
    If,
    Lifetime,
    OnlyIf,
    Operation,
    Set,
    decode_operations,
)
from minka.wire.stored_values import LOAD_VERSIONS
from minkad.replication.serving.bodies import checked_operations, checked_read
from tests.unit.client.asking import Make, client_of, until


def _operations(node: Any) -> list[list[Operation]]:
    """Return the operations that came to a node: one list for each group of a frame."""
    groups = [group for frame in node.frames for group in frame.groups if group.op == kv_frames.Op.OPERATE]
    return [decode_operations(group.body) for group in groups]


async def test_conditional_writes(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster) as client:
        first = await client.put("key", b"1", if_absent=True)
        assert first
        assert await client.get_versioned("key") == VersionedValue(b"1", first.version, None)
        again = await client.put("key", b"2", if_absent=True)
        assert not again
        assert again == Written(False, first.version)
        second = await client.put("key", b"2", if_version=first.version)
        assert second.done
        assert second.version != first.version
        assert not await client.put("key", b"3", if_version=first.version)
        assert await client.put("key", b"3", if_value=b"2")
        assert not await client.put("key", b"4", if_value=b"2")
        assert await client.get("key") == b"3"
        assert not await client.delete("key", if_value=b"2")
        assert not await client.delete("key", if_version=second.version)
        assert await client.delete("key", if_value=b"3") == Written(True, 0)
        assert await client.get_versioned("key") is None
        assert await client.put("key", b"", if_version=0), "an absent key has version 0"


async def test_the_operations_that_are_sent(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        await client.put("k", b"v", if_value=b"", ttl=1.5)
        await client.put("k", b"v", ttl=timedelta(minutes=1))
        await client.delete("k", if_version=LOAD_VERSIONS + 7)
        await client.increment("n", -3)
        await client.expire("k", 0.0001)
        await client.persist("k")
        assert [one for (one,) in _operations(cluster.nodes["athens"])] == [
            Set(b"k", b"v", If.VALUE, b"", 0, Lifetime.FOR, 1500),
            Set(b"k", b"v", lifetime=Lifetime.FOR, ms=60_000),
            Set(b"k", None, If.VERSION, b"", LOAD_VERSIONS + 7),
            Add(b"n", -3),
            Expire(b"k", Lifetime.FOR, 1),
            Expire(b"k", Lifetime.UNLIMITED, condition=OnlyIf.LIMITED),
        ]


async def test_writes_without_options_are_sent_as_plain_writes(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        athens = cluster.nodes["athens"]
        assert await client.put("key", b"v", timeout=5) is None  # type: ignore[func-returns-value]
        assert await client.delete("key") is None  # type: ignore[func-returns-value]
        await client.put_many({"a": b"1"})
        assert {group.op for frame in athens.frames for group in frame.groups} == {kv_frames.Op.WRITE}


async def test_increments(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster) as client:
        assert await client.increment("n") == 1
        assert await client.increment(b"n", by=41) == 42
        assert await client.increment("n", -2) == 40
        assert await client.get("n") == b"40"
        await client.put("text", b"EWR-IAH")
        with pytest.raises(Conflict, match=r"NOT_A_NUMBER: key text at \w+ \(.*\): its value isn't") as caught:
            await client.increment("text")
        assert not caught.value.code.info.retriable
        details = caught.value.details
        assert cluster.nodes[details["node"]].address == details["address"]


async def test_lifetimes(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        athens = cluster.nodes["athens"]
        athens.now_ms = round(time.time() * 1000)
        assert await client.put("key", b"v", ttl=60)
        found = await client.get_versioned("key")
        assert found is not None
        assert found.expires_at == (athens.now_ms + 60_000) / 1000
        assert 0 < (await client.ttl("key") or 0) <= 60
        assert await client.persist("key")
        assert not await client.persist("key")
        assert await client.ttl("key") == math.inf
        assert await client.expire("key", timedelta(hours=1))
        assert 60 < (await client.ttl("key") or 0) <= 3600
        athens.now_ms = 1  # by this node's clock, it is 1970
        assert await client.expire("key", 1)
        assert await client.ttl("key") == 0
        assert not await client.expire("nothing", 1)
        assert await client.ttl("nothing") is None


async def test_batches(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster) as client:
        pairs = {f"key-{n}": b"%d" % n for n in range(100)}
        await client.put_many(pairs, ttl=5)
        assert set(cluster.nodes["athens"].expires_ms.values()) == {5000}
        found = await client.get_many_versioned([*pairs, "nothing"])
        assert {key: one.value for key, one in found.items()} == pairs
        assert {one.expires_at for one in found.values()} == {5.0}
        assert len({one.version for one in found.values()}) == 100
        assert await client.get_many_versioned([]) == {}
        await client.put_many({}, ttl=5)


async def test_operations_made_in_one_turn_travel_in_one_frame(data_cluster: Make) -> None:
    """The client sends one frame for several callers. Each caller gets the outcome of its own operation."""
    async with data_cluster("athens", partitions=2) as cluster, client_of(cluster) as client:
        await client.get("connect first")
        athens = cluster.nodes["athens"]
        athens.frames.clear()
        sums = await asyncio.gather(*(client.increment(cluster.key_of(n % 2), 1 + n % 2) for n in range(100)))
        assert sums == [(1 + n % 2) * (1 + n // 2) for n in range(100)]
        (frame,) = athens.frames
        assert len(frame.groups) == 2
        athens.frames.clear()
        found = await asyncio.gather(*(client.get_versioned(cluster.key_of(n % 2)) for n in range(10)))
        assert [one and one.value for one in found] == [b"50", b"100"] * 5
        assert len(athens.frames) == 1


async def test_a_large_operation_travels_alone(data_cluster: Make) -> None:
    """If the client sent the large operation together with others, their group would be too large for the node."""
    async with data_cluster("athens", partitions=1) as cluster, client_of(cluster) as client:
        await client.get("connect first")
        large = b"v" * (kv_frames.MAX_BODY_BYTES // 2 - 1000)
        writing = [client.put(b"key-%d" % n, b"v" * 1000, ttl=9) for n in range(500)]
        done = await asyncio.gather(*writing, client.put("large", large, if_value=large), *(client.increment(b"n"),))
        assert not done[500]
        groups = _operations(cluster.nodes["athens"])
        assert [len(group) for group in groups if isinstance(group[0], Set) and group[0].key == b"large"] == [1]
        assert sum(map(len, groups)) == 502


async def test_the_largest_conditional_write_is_within_the_limit_of_a_node(data_cluster: Make) -> None:
    """The limit is below that of a body, since the body has the rest of the operation, too."""
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        await client.get("connect first")
        athens = cluster.nodes["athens"]
        athens.frames.clear()
        half = b"v" * kv_frames.MAX_VALUE_BYTES
        rest = kv_frames.MAX_BODY_BYTES - operate.OPERATION_BYTES - len(half) - len("key")
        assert not await client.put("key", half, if_value=half[:rest], ttl=10**12)
        ((group,),) = (frame.groups for frame in athens.frames)
        assert len(checked_operations(group.body)) == 1
        with pytest.raises(InvalidArgument, match="TOO_LARGE"):
            await client.put("key", half, if_value=half[: rest + 1], ttl=10**12)
        assert len(athens.frames) == 1, "the refused write was not sent"


async def test_a_large_read_travels_in_pieces(data_cluster: Make) -> None:
    """In one body, the keys and their lengths would be over the limit of a body."""
    async with data_cluster("athens", partitions=1) as cluster, client_of(cluster) as client:
        await client.get("connect first")
        athens = cluster.nodes["athens"]
        athens.frames.clear()
        filler = kv_frames.MAX_BODY_BYTES // 512 - 3
        keys = [b"%03d" % number + b"k" * filler for number in range(512)]
        athens.data[keys[7]] = b"v"
        assert await client.get_many(keys, timeout=30) == {keys[7]: b"v"}
        bodies = [group.body for frame in athens.frames for group in frame.groups]
        assert sum(len(checked_read(body)) for body in bodies) == 512


async def test_a_large_batch_travels_in_pieces(data_cluster: Make) -> None:
    async with data_cluster("athens", partitions=1) as cluster, client_of(cluster) as client:
        pairs = {b"%d" % n: b"" for n in range(MAX_OPERATIONS + 1)}
        await client.put_many(pairs, ttl=9, timeout=30)
        assert cluster.data == pairs
        groups = _operations(cluster.nodes["athens"])
        assert max(map(len, groups)) <= 2 * (1024 * 1024) / operate.OPERATION_BYTES < MAX_OPERATIONS
        assert all(one.ms == 9000 for group in groups for one in group if isinstance(one, Set))


async def test_a_refused_increment_goes_to_the_new_leader_and_counts_once(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster) as client:
        key = cluster.key_of(0)
        assert await client.increment(key) == 1
        cluster.lead(0, "byzantium")
        assert await client.increment(key) == 2
        refusals = iter([MinkaError(Code.NOT_ENOUGH_REPLICAS, "one is missing"), MinkaError(Code.OVERLOADED, "busy")])
        cluster.nodes["byzantium"].refuse = lambda group: next(refusals, None)
        assert await client.increment(key) == 3
        assert next(refusals, None) is None


@pytest.mark.parametrize("what", ["increment", "put", "delete", "expire", "put_many"])
async def test_an_operation_is_not_repeated_after_a_broken_stream(data_cluster: Make, what: str) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        athens = cluster.nodes["athens"]
        await client.put("key", b"1")
        athens.frames.clear()
        athens.ends_stream = True
        reading = asyncio.create_task(client.get_versioned("key"))
        calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "increment": lambda: client.increment("key"),
            "put": lambda: client.put("key", b"2", if_value=b"1"),
            "delete": lambda: client.delete("key", if_value=b"1"),
            "expire": lambda: client.expire("key", 9),
            "put_many": lambda: client.put_many({"key": b"2", "other": b"2"}, ttl=9),
        }
        with pytest.raises(OutcomeUnknown) as caught:
            await calls[what]()
        assert caught.value.code is Code.OUTCOME_UNKNOWN
        if what == "put_many":
            assert isinstance(caught.value, BatchError)
        athens.ends_stream = False
        found = await reading
        assert found is not None, "a read is repeated"
        assert found.value == b"1"
        await client.get("key")
        keys = [one.key for group in _operations(athens) for one in group if isinstance(one, Set | Add | Expire)]
        assert len(keys) == len(set(keys)) >= 1


async def test_the_caller_gets_the_unknown_outcome_that_a_node_reports(data_cluster: Make) -> None:
    """A leader reports an unknown outcome if it has appended the operation, but then lost its leadership."""
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        cluster.nodes["athens"].refuse = lambda group: MinkaError(Code.OUTCOME_UNKNOWN, "another node leads by now")
        with pytest.raises(OutcomeUnknown, match="OUTCOME_UNKNOWN: key n at athens"):
            await client.increment("n")
        assert len(cluster.nodes["athens"].frames) == 1


async def test_the_outcome_of_an_operation_without_an_answer_is_unknown(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        await client.increment("n")
        cluster.nodes["athens"].go_on.clear()
        with pytest.raises(OutcomeUnknown, match=r"DEADLINE_EXCEEDED.*the write may or may not have been done"):
            await client.increment("n", timeout=0.5)
        cluster.nodes["athens"].go_on.set()
        assert await client.increment("n") == 3


async def test_the_outcome_of_an_operation_at_a_silent_node_is_unknown_once_another_node_leads(
    data_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new leader gets the reads and the next operation, but the client doesn't send the first operation again."""
    monkeypatch.setattr(stream, "QUIET_S", 0.05)
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster, timeout=8) as client:
        key, athens, byzantium = cluster.key_of(0), cluster.nodes["athens"], cluster.nodes["byzantium"]
        assert await client.increment(key) == 1
        frames, given = len(athens.frames), byzantium.tables_given
        athens.go_on.clear()
        adding, reading = asyncio.create_task(client.increment(key)), asyncio.create_task(client.get_versioned(key))
        await until(lambda: len(athens.frames) == frames + 2 and byzantium.tables_given > given)
        cluster.lead(0, "byzantium", told=["byzantium"])
        with pytest.raises(OutcomeUnknown, match="is silent, and no longer leads the partition"):
            await adding
        found = await reading
        assert found is not None
        assert found.value == b"1"
        assert await client.increment(key) == 2
        assert [len(group) for group in _operations(byzantium)] == [1]
        assert await client._core.refresh_soon() is None, "the table is still fetched"


async def test_closing_ends_an_operation_under_way(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster:
        client = client_of(cluster)
        await client.increment("n")
        cluster.nodes["athens"].go_on.clear()
        frames = len(cluster.nodes["athens"].frames)
        adding = asyncio.create_task(client.increment("n"))
        await until(lambda: len(cluster.nodes["athens"].frames) > frames)
        await client.close()
        with pytest.raises(MinkaError, match=r"OUTCOME_UNKNOWN.*the client was closed"):
            await adding


async def test_a_split_divides_a_batch(range_cluster: Make) -> None:
    async with range_cluster("athens", "byzantium") as cluster, client_of(cluster) as client:
        pairs = {b"a%d" % n: b"v" for n in range(10)} | {b"z%d" % n: b"w" for n in range(10)}
        await client.put_many(pairs, ttl=9)
        cluster.split(b"m", "byzantium")
        await client.put_many(pairs, ttl=9)
        assert cluster.data == pairs
        assert set(cluster.nodes["byzantium"].writes.values()) == {1}
        assert await client.increment("zz") == 1


async def test_a_malformed_answer_of_a_node(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        await client.increment("n")
        for outcomes in ([], [1], [[True, 1], [True, 1]]):
            results = [kv_frames.GroupResult(None, kv_frames.encode(outcomes))]
            cluster.nodes["athens"].nonsense = lambda request, results=results: kv_frames.encode(
                kv_frames.Response(request.id, results)
            )
            with pytest.raises(MinkaError, match=r"OUTCOME_UNKNOWN.*INTERNAL"):
                await client.increment("n")
            with pytest.raises(MinkaError, match="INTERNAL"):
                await client.get_versioned("n")


async def test_limits_are_checked_before_anything_is_sent(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        large, half = b"v" * (kv_frames.MAX_VALUE_BYTES + 1), b"v" * kv_frames.MAX_VALUE_BYTES
        for call in (
            client.put("key", large, ttl=1),
            client.put("key", b"v", if_value=large),
            client.put("key", half, if_value=half),
            client.delete("key", if_value=large),
            client.put_many({"key": large}, ttl=1),
            client.increment(b"k" * 65537),
        ):
            with pytest.raises(InvalidArgument, match="TOO_LARGE"):
                await call
        why = "the key, the value and if_value together have 33554435 bytes; 33554176 is the limit"
        with pytest.raises(InvalidArgument, match=why):
            await client.put("key", half, if_value=half)
        bad: list[Any] = [
            client.put("key", b"v", if_absent=True, if_version=1),  # type: ignore[call-overload]
            client.put("key", b"v", if_value=b"v", if_version=1),  # type: ignore[call-overload]
            client.delete("key", if_value=b"v", if_version=1),  # type: ignore[call-overload]
            client.put("key", b"v", if_value="v"),  # type: ignore[call-overload]
            client.put("key", b"v", if_value=None),  # type: ignore[call-overload]
            client.delete("key", if_value=None),  # type: ignore[call-overload]
            client.put("key", b"v", if_version=-1),
            client.put("key", b"v", if_version=2**63),
            client.put("key", b"v", if_version=True),
            client.put("key", "v", if_absent=True),  # type: ignore[call-overload]
            client.put("", b"v", if_absent=True),
            *(client.put("key", b"v", ttl=ttl) for ttl in (0, -1, math.nan, math.inf, timedelta(0), 10**12 + 1)),
            client.put("key", b"v", ttl="1"),  # type: ignore[call-overload]
            client.put("key", b"v", ttl=True),
            client.increment("key", True),
            client.put_many({"key": b"v"}, ttl=0),
            client.expire("key", 0),
            client.increment("key", 2**63),
            client.increment("key", -(2**63) - 1),
            client.increment("key", 1.5),  # type: ignore[arg-type]
            client.increment(""),
        ]
        for call in bad:
            with pytest.raises(ValueError, match="INVALID_ARGUMENT"):
                await call
        assert cluster.nodes["athens"].frames == []


async def test_an_expected_value_of_none_does_not_count_as_no_condition(data_cluster: Make) -> None:
    """A caller that has read no value, and expects none, must not overwrite or remove the value that is there now."""
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        await client.put("key", b"somebody else's")
        expected: Any = None
        for call in (client.put("key", b"mine", if_value=expected), client.delete("key", if_value=expected)):
            with pytest.raises(
                InvalidArgument, match=r"if_value is None; .* for a key without a value is if_version=0"
            ):
                await call
        assert await client.get("key") == b"somebody else's"
