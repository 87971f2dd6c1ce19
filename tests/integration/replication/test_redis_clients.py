"""Redis clients of a node: its table may lag, or another node may lead the partition."""

import asyncio
from itertools import repeat
from pathlib import Path

import pytest

from minka.cluster.hashing import crc16
from minka.v1.cluster_pb2 import HashFunction, Keyspace, Partition
from minka.wire import kv_frames
from minka.wire.key_operations import Add
from minka.wire.kv_frames import Group, GroupResult, Op
from minkad.core.state import State
from minkad.core.state.row_changes import Changed
from minkad.data_port.resp import errands, slot_keys
from minkad.data_port.resp.elsewhere import Elsewhere
from minkad.data_port.resp.errands import Asked
from minkad.replication.applying.partition_log import PartitionLog
from minkad.replication.serving.client_requests import MAX_PAGE_ROWS
from tests.integration.replication.harness import Cluster, cluster
from tests.integration.replication.node import until
from tests.integration.replication.redis_client import RANGES, Client, client, clients, table_of


async def split(c: Cluster, key: bytes) -> None:
    """Split partition 1 at this key."""
    parent, child = c.split(1, key)
    await c.tell_all(parent.id, child.id)
    await until(lambda: not c.rows[child.id].splitting)


async def test_entries_of_a_batch_find_their_partitions_after_a_split(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        async with client(athens, table_of(c, RANGES)) as redis:
            assert await redis.say("SET 9 old", "INCR n") == [b"+OK", b":1"]
            await split(c, b"5")
            said = await redis.say("SET 1 a", "SET 9 b", "INCR 1n", "INCR n", "SET 2 c", "INCR n", "DEL 9 1 0")
            assert said == [b"+OK", b"+OK", b":1", b":2", b"+OK", b":3", b":2"]
            assert await redis.say("SET 1 a", "SET 9 b", "SET 2 c") == [b"+OK"] * 3
            assert await redis.say("EXISTS 1 9 2 0 n") == [b":4"]
        assert await athens.get(1, b"1", b"2", b"1n", generation=2) == [b"a", b"c", b"1"]
        assert await athens.get(2, b"9", b"n", generation=2) == [b"b", b"3"]


async def until_batches_wait_for_both(log: PartitionLog, first: "Client", second: "Client") -> None:
    """Write with both clients until both writes are in one batch. Then the next batch waits for both clients."""
    async with asyncio.timeout(30):
        while True:
            end = log.end
            for said in await asyncio.gather(first.say("SET 1 a"), second.say("SET 9 a")):
                assert said == [b"+OK"]
            if log.end == end + 1:
                return


async def test_writes_wait_for_the_clients_that_were_just_answered(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        log = athens.replica(1).log
        async with clients(athens, table_of(c, RANGES), 3, patience_s=60.0) as (first, second, third):
            await until_batches_wait_for_both(log, first, second)
            end = log.end
            early = asyncio.create_task(first.say("SET 1 b"))
            for _ in range(20):
                assert await third.say("PING") == [b"+PONG"]
            assert (log.end, early.done()) == (end, False), "one of two has come"
            assert await second.say("SET 9 b") == [b"+OK"]
            assert await early == [b"+OK"]
            assert log.end == end + 1, "they are one entry"


async def test_a_write_waits_only_briefly_for_another_client(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        async with clients(athens, table_of(c, RANGES), 2) as (first, second):
            await until_batches_wait_for_both(athens.replica(1).log, first, second)
            assert await first.say("SET 1 b") == [b"+OK"]
            assert first.service.pipes.commit_delay.awaited(2, 0) == 0, "the next batch doesn't wait"


async def test_waiting_writes_find_their_partitions_after_a_split(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        async with clients(athens, table_of(c, RANGES), 2, patience_s=60.0) as (first, second):
            await until_batches_wait_for_both(athens.replica(1).log, first, second)
            waiting = asyncio.create_task(first.say("SET 1 b"))
            await split(c, b"5")
            assert not waiting.done()
            assert await second.say("SET 9 b") == [b"+OK"]
            assert await waiting == [b"+OK"]
            await asyncio.gather(first.say("SET 1 c"), second.say("SET 9 c"))
        assert await athens.get(1, b"1", generation=2) == [b"c"]
        assert await athens.get(2, b"9", generation=2) == [b"c"]


NONSENSE = b"-ERR Protocol error: expected '*' and then '$'\r\n"


@pytest.mark.parametrize(
    ("last", "answered"), [(b"", b""), (b"*1\r\n:1\r\n", NONSENSE), (b"QUIT\r\nPING\r\nSET a 9\r\n", b"+OK\r\n")]
)
async def test_all_commands_before_the_end_are_answered(tmp_path: Path, last: bytes, answered: bytes) -> None:
    """After its commands, a client sends nothing more, or bytes that end the connection. The node still answers all
    commands before this end, even those that wait for a write.
    """
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        async with client(athens, table_of(c, RANGES)) as redis:
            commands = b"SET a 1\r\nGET a\r\nPING\r\nINCR a\r\nPING\r\nGET a\r\n"
            answers = b"+OK\r\n$1\r\n1\r\n+PONG\r\n:2\r\n+PONG\r\n$1\r\n2\r\n"
            assert await redis.say_last(commands + last) == answers + answered


@pytest.mark.parametrize("line", [b"POST / HTTP/1.1", b"hOST: athens", b"*1\r\n$4\r\npost"])
async def test_nothing_is_done_for_a_web_page(tmp_path: Path, line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        async with clients(athens, table_of(c, RANGES), 2) as (page, redis):
            assert await page.say_last(b"PING\r\n" + line + b"\r\nSET a 1\r\nPING\r\n*1\r\n:1\r\n") == b"+PONG\r\n"
            assert await redis.say("EXISTS a") == [b":0"]
        assert [one.levelname for one in caplog.records if "POST" in one.message] == ["WARNING"]


async def test_inline_commands_and_arrays_in_one_piece(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        incr = b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n"
        async with client(athens, table_of(c, RANGES)) as redis:
            said = await redis.say_all(incr + b"INCR n\r\n" + incr * 2 + b"INCR n\r\nPING\r\n" + incr, 7)
            assert said == [b":1", b":2", b":3", b":4", b":5", b"+PONG", b":6"]


async def test_requests_are_passed_on_to_the_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(tmp_path) as c:
        athens, _ = await c.add("athens", "byzantium")
        await c.create("byzantium", 1)
        async with client(athens, table_of(c, RANGES)) as redis:
            assert await redis.say("SET a 1", "INCR a", "STRLEN a", "TTL a") == [b"+OK", b":2", b":1", b":-1"]
            assert await redis.say("DEL a b", "EXISTS a") == [b":1", b":0"]
            await c.nodes["byzantium"].stop()
            monkeypatch.setattr(errands, "TIMEOUT_MS", 500)
            (said,) = await redis.say("INCR a")
            assert said.startswith((b"-ERR UNREACHABLE", b"-ERR OUTCOME_UNKNOWN", b"-ERR SHUTTING_DOWN"))


async def test_the_connection_to_a_node_that_has_left_is_ended(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens, byzantium = await c.add("athens", "byzantium")
        await c.create("byzantium", 1)
        state = table_of(c, RANGES)
        async with client(athens, state) as redis:
            assert await redis.say("SET a 1") == [b"+OK"]
            (passed_on,) = byzantium.data_port.connections
            change_node(state, "athens")
            assert await redis.say("STRLEN a") == [b":1"]
            assert list(byzantium.data_port.connections) == [passed_on]
            left = state.nodes.pop("byzantium")
            change_node(state, "byzantium")
            assert await redis.say("PING") == [b"+PONG"]
            await until(lambda: not byzantium.data_port.connections)
            state.nodes["byzantium"] = left
            change_node(state, "byzantium")
            assert await redis.say("INCR a") == [b":2"]


def change_node(state: State, node_id: str) -> None:
    """Give the table a new version, with a note that the row of this node has changed or is gone."""
    state.version += 1
    state.changes.note(Changed(nodes=frozenset({node_id})))


async def test_requests_to_a_node_that_leaves_the_table_are_answered(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (byzantium,) = await c.add("byzantium")
        await c.create("byzantium", 1)
        elsewhere, address = Elsewhere("test", lambda: None), f"127.0.0.1:{byzantium.port}"
        group = Group(Op.OPERATE, 1, c.rows[1].generation, kv_frames.encode([Add(b"n", 1)]))
        share = byzantium.clients_memory.share()
        deadline = asyncio.get_running_loop().time() + 30.0
        results: list[GroupResult] = []
        # byzantium leaves the table at three moments: before the connection to it is made; while a request is under way
        # on the connection; and in the turn of the loop in which a request was made but not sent yet.
        for waits_for, is_sent in ((0, True), (1, True), (1, False)):
            del results[:]
            elsewhere.ask(address, Asked(group, deadline, 1000, 1000, share, results.append))
            await until(lambda waits_for=waits_for: len(results) >= waits_for)  # type: ignore[misc]
            elsewhere.ask(address, Asked(group, deadline, 1000, 1000, share, results.append))
            if is_sent:
                await asyncio.sleep(0)
            elsewhere.keep([])
            await until(lambda: len(results) == 2)
            assert [one.error for one in results] == [None, None]
            await until(lambda: not byzantium.data_port.connections)
        assert await byzantium.get(1, b"n") == [b"6"]
        elsewhere.ask(address, Asked(group, deadline, 1000, 1000, share, results.append))
        await until(lambda: len(results) == 3)
        elsewhere.ask(address, Asked(group, deadline, 1000, 1000, share, results.append))
        await asyncio.sleep(0)
        elsewhere.keep([])
        elsewhere.close()
        assert len(results) == 4, "in the end every request is answered"


async def test_a_client_of_a_cluster_is_sent_to_the_leader(tmp_path: Path) -> None:
    keyspace = Keyspace(id=1, name="default", partition_count=1, hash=HashFunction.HASH_FUNCTION_CRC16)
    async with cluster(tmp_path) as c:
        athens, byzantium = await c.add("athens", "byzantium")
        await c.create("byzantium", 1)
        moved = f"-MOVED 12182 127.0.0.1:{byzantium.port}".encode()
        async with client(athens, table_of(c, keyspace)) as redis:
            assert await redis.say("SET foo 1", "GET foo", "INCR foo", "TTL foo") == [moved] * 4
            said = await redis.say("CLUSTER COUNTKEYSINSLOT 12182", "CLUSTER GETKEYSINSLOT 12182 5")
            assert said == [b":0", b"*0"], "as in Redis, a node knows nothing of other nodes' slots"


async def test_a_cursor_of_no_partition_is_refused_without_a_wait_for_the_partition(tmp_path: Path) -> None:
    keyspace = Keyspace(id=1, name="default", partition_count=1, hash=HashFunction.HASH_FUNCTION_MURMUR3)
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        async with client(athens, table_of(c, keyspace)) as redis, asyncio.timeout(2):
            (answer,) = await redis.say("SCAN 18446744073709551615")
            assert answer.startswith(b"-ERR the cursor is not known to this node any longer")


async def test_the_keys_of_a_slot(tmp_path: Path) -> None:
    """The node searches all keys of the partition, over several pages. The commands keep their order."""
    keyspace = Keyspace(id=1, name="default", partition_count=1, hash=HashFunction.HASH_FUNCTION_CRC16)
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        mine = [b"%d{foo}" % number for number in range(30)]
        await athens.put(1, dict.fromkeys([*mine, *(b"%d-" % number for number in range(2 * MAX_PAGE_ROWS))], b"v"))
        others = sum(crc16(b"%d-" % number) == 12182 for number in range(2 * MAX_PAGE_ROWS))
        async with clients(athens, table_of(c, keyspace), 2) as (redis, impatient):
            count = "CLUSTER COUNTKEYSINSLOT 12182"
            assert await redis.say(count, "DEL 7{foo}", count, count) == [
                b":%d" % number for number in (30 + others, 1, 29 + others, 29 + others)
            ]
            found = await redis.bulks("CLUSTER GETKEYSINSLOT 12182 5")
            assert len(set(found)) == 5
            assert {crc16(key or b"") for key in found} == {12182}
            assert len(await redis.bulks("CLUSTER GETKEYSINSLOT 12182 999999999")) == 29 + others
            assert await redis.bulks("CLUSTER GETKEYSINSLOT 12182 0") == []
            impatient.ask(count)
            impatient.close()
            assert await redis.say(count, count) == [b":%d" % (29 + others)] * 2
            wrong = ["COUNTKEYSINSLOT -1", "COUNTKEYSINSLOT 16384", "GETKEYSINSLOT 1 -1", "COUNTKEYSINSLOT x"]
            said = await redis.say(*(f"CLUSTER {one}" for one in wrong), "CLUSTER GETKEYSINSLOT 1")
            assert said == [
                b"-ERR Invalid slot",
                b"-ERR Invalid slot",
                b"-ERR Invalid slot or number of keys",
                b"-ERR value is not an integer or out of range",
                b"-ERR wrong number of arguments for 'cluster|getkeysinslot' command",
            ]
            athens.clearance = False
            (refused,) = await redis.say(count)
            assert refused.startswith(b"-TRYAGAIN")


async def test_reading_the_keys_of_a_slot_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyspace = Keyspace(id=1, name="default", partition_count=1, hash=HashFunction.HASH_FUNCTION_CRC16)
    monkeypatch.setattr(slot_keys, "TIMEOUT_MS", 0)
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        async with client(athens, table_of(c, keyspace)) as redis:
            said = await redis.say("CLUSTER COUNTKEYSINSLOT 12182", "CLUSTER GETKEYSINSLOT 12182 5", "PING")
        assert said[:2] == [b"-ERR the keys of the slot's partition were not read within 0 ms: use SCAN"] * 2
        assert said[2] == b"+PONG"


async def test_requests_are_answered_with_tryagain_while_nobody_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errands, "_PATIENCE_S", 0.1)
    keyspace = Keyspace(id=1, name="default", partition_count=1, hash=HashFunction.HASH_FUNCTION_CRC16)
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        state = table_of(c, keyspace)
        async with client(athens, state) as redis:
            athens.clearance = False
            said = await redis.say("SET foo 1", "GET foo", "INCR foo")
            assert all(one.startswith(b"-TRYAGAIN ") for one in said), said
            athens.clearance = True
            assert await redis.say("SET foo 1", "STRLEN foo") == [b"+OK", b":1"]


async def test_gets_of_many_connections_have_their_own_answers(tmp_path: Path) -> None:
    """The node reads all GETs of a turn of the loop together. If their values are too large together, it reads them one
    by one.
    """
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        large = {b"large%d" % number: b"%d" % number * 100_000 for number in range(30)}
        small = {b"small%d" % number: b"%d" % number for number in range(30)}
        await athens.put(1, large | small)
        async with clients(athens, table_of(c, RANGES), 6) as many:
            for values in (small, large):
                asked = [
                    [key for pair in zip(list(values)[number:], repeat(b"missing"), strict=False) for key in pair]
                    for number in range(len(many))
                ]
                said = await asyncio.gather(*map(Client.get, many, asked))
                assert said == [[values.get(key) for key in keys] for keys in asked]
            alone = [[key] for key in list(small)[: len(many)]]
            assert await asyncio.gather(*map(Client.get, many, alone)) == [[small[key]] for (key,) in alone]


GETEX = b"SET a b\r\nGETEX a EX x ex 20\r\nEXPIRE a 20 NX\r\nGETEX a PERSIST persist\r\nTTL a\r\n"
SYNTAX, INFINITE = b"-ERR syntax error\r\n", b"-ERR increment would produce NaN or Infinity\r\n"
INVALID = b"-ERR value is not a valid float\r\n"


@pytest.mark.parametrize(
    ("commands", "answers"),
    [
        (GETEX, b"+OK\r\n$1\r\nb\r\n:0\r\n$1\r\nb\r\n:-1\r\n"),
        (b"GETEX a EX 5 PX 5\r\nGETEX a PERSIST EX 5\r\nGETEX a EX 5 EX\r\nGETEX a KEEPTTL\r\n", SYNTAX * 4),
        (b'APPEND a bc\r\nSETRANGE a 99999999999 ""\r\nSETRANGE b 9223372036854775807 ""\r\n', b":2\r\n:2\r\n:0\r\n"),
        (b"SET a b\r\nINCRBYFLOAT a inf\r\nINCRBYFLOAT b -inf\r\n", b"+OK\r\n" + INVALID + INFINITE),
        (b"SET a 1.5\r\nINCRBYFLOAT a infinity\r\nSTRLEN a\r\n", b"+OK\r\n" + INFINITE + b":3\r\n"),
    ],
)
async def test_options_and_limits_are_those_of_redis(tmp_path: Path, commands: bytes, answers: bytes) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        async with client(athens, table_of(c, RANGES)) as redis:
            assert await redis.say_last(commands) == answers


async def test_config_get_returns_the_address_of_the_port(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        async with client(athens, table_of(c, RANGES)) as redis:
            settings = await redis.bulks("CONFIG GET port bind cluster-enabled")
            assert settings == [b"bind", b"127.0.0.1", b"cluster-enabled", b"no", b"port", b"%d" % athens.port]


@pytest.mark.parametrize(("leader", "memory_mib"), [("athens", 64), ("byzantium", 1024)])
async def test_keys_are_counted_however_large_their_values_are(tmp_path: Path, leader: str, memory_mib: int) -> None:
    """EXISTS, TYPE and TOUCH work on many keys, although their values are larger than the limit of an answer. With
    64 MiB, the values are also larger than the memory for clients.
    """
    async with cluster(tmp_path) as c:
        c.clients_memory_bytes = memory_mib << 20
        await c.add("athens", "byzantium")
        await c.create(leader, 1, 2, 3)
        for id_, (start, end) in {1: (b"", b"3"), 2: (b"3", b"6"), 3: (b"6", b"")}.items():
            row = c.change(id_, lambda row, start=start, end=end: set_range(row, start, end))  # type: ignore[misc]
            await c.nodes[leader].tell(row)
        keys = [b"%d-%d" % (number, place) for number in (0, 4, 9) for place in range(3)]
        for key in keys:
            await c.nodes[leader].put(1 + (key[:1] > b"3") + (key[:1] > b"6"), {key: bytes(8 << 20)})
        names = b" ".join(keys).decode()
        async with client(c.nodes["athens"], table_of(c, RANGES)) as redis:
            assert await redis.say(f"EXISTS {names} 0-0 none", "TYPE 0-0", "TYPE none") == [
                b":10",
                b"+string",
                b"+none",
            ]
            assert await redis.say(*["TYPE 4-0"] * 9, f"TOUCH {names}") == [b"+string"] * 9 + [b":9"]
            await c.nodes[leader].put(2, {b"4-0": None})
            assert await redis.say(f"EXISTS {names}") == [b":8"]


def set_range(row: Partition, start: bytes, end: bytes) -> None:
    row.start_key, row.end_key = start, end


async def test_an_immediate_read_does_not_overtake_an_earlier_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GET waits for the end of the turn, and STRLEN is read at once. The node still reads the keys of a connection in
    the order of its commands.
    """
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        read: list[bytes] = []
        read_now = athens.manager.requests.read_now

        def noted(partition_id: int, generation: int, keys: list[bytes]) -> list[bytes | None] | None:
            read.extend(keys)
            return read_now(partition_id, generation, keys)

        monkeypatch.setattr(athens.manager.requests, "read_now", noted)
        async with client(athens, table_of(c, RANGES)) as redis:
            commands = ["GET first", "PING", "GET b", "STRLEN c", "GET d"]
            await redis.say(*commands)
            read.clear()
            await redis.say(*commands)
        assert read == [b"first", b"b", b"c", b"d"]
