"""Limits for Redis clients: the node counts and bounds the memory that it uses for a client, and serves other clients
in the meantime, whatever the client sends.
"""

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from minka.v1.cluster_pb2 import HashFunction, Keyspace
from minka.wire import kv_frames
from minka.wire.key_operations import Append
from minka.wire.kv_frames import Group, GroupResult, Op, ScanBody
from minkad.data_port.resp.elsewhere import Elsewhere
from minkad.data_port.resp.errands import Asked
from minkad.data_port.resp.many import PIECE_WORDS, Many, added, by_pieces
from minkad.data_port.resp.pipes import Batch, Pipe
from minkad.data_port.resp.reads import Read
from minkad.data_port.resp.replies import RespError
from minkad.data_port.resp.scanning import Scan
from minkad.data_port.resp.service import TURN_S
from minkad.data_port.resp.slots import Joined, SetSlot, Slot
from minkad.replication.serving import client_requests
from tests.integration.replication.harness import Cluster, cluster
from tests.integration.replication.node import TestNode, until
from tests.integration.replication.redis_client import RANGES, client, clients, table_of

MIB = 1024 * 1024
HELLO_LINES = 26  # lines in the answer to HELLO 3


async def led_by_byzantium(c: Cluster, rows: dict[bytes, bytes | None]) -> TestNode:
    """Create a partition with these rows that byzantium leads; returns athens, which has no replica."""
    athens, byzantium = await c.add("athens", "byzantium")
    await c.create("byzantium", 1)
    for key, value in rows.items():
        await byzantium.put(1, {key: value})
    return athens


async def test_answers_passed_on_to_clients_that_do_not_read_are_bounded_and_counted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        c.clients_memory_bytes = 16 * MIB
        athens = await led_by_byzantium(c, {b"k%d" % number: bytes(MIB) for number in range(3)})
        memory, most = athens.clients_memory, 0
        async with clients(athens, table_of(c, RANGES), 8) as greedy:
            for one in greedy:
                one.ask("\r\n".join(["GET k0", "SCAN 0", "GETRANGE k1 0 -1", "MGET k0 k1 k2"] * 50))
            for _ in range(100):
                await asyncio.sleep(0.01)
                held = sum(one._transport.get_write_buffer_size() for one in greedy[0].service.connections.values())
                assert held <= memory.used
                most = max(most, memory.used)
            async with client(athens, table_of(c, RANGES)) as other:
                assert await other.say("STRLEN k0") == [b":%d" % MIB]
        assert most < 1.5 * memory.limit, f"{most / MIB:.0f} MiB"
        await until(lambda: memory.used < MIB)


async def test_the_leaders_answers_to_pipelines_are_bounded_and_counted(tmp_path: Path) -> None:
    rows: dict[bytes, bytes | None] = {b"k%d" % number: bytes(4 * MIB) for number in range(2)}
    async with cluster(tmp_path) as c:
        c.clients_memory_bytes = 64 * MIB
        await led_by_byzantium(c, rows)
        byzantium = c.nodes["byzantium"]
        async with clients(byzantium, table_of(c, RANGES), 2) as (one, other):
            gc.collect()
            tracemalloc.start()
            try:
                for greedy in (one, other):
                    greedy.ask("\r\n".join(["GET k0"] * 64))
                for _ in range(50):
                    await asyncio.sleep(0.01)
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert most < 96 * MIB, f"{most / MIB:.0f} MiB"


async def test_pipelined_gets_of_large_values_are_answered_in_order(tmp_path: Path) -> None:
    rows: dict[bytes, bytes | None] = {b"k%d" % number: b"%d" % number * MIB for number in range(9)}
    async with cluster(tmp_path) as c:
        await led_by_byzantium(c, rows)
        byzantium = c.nodes["byzantium"]
        async with clients(byzantium, table_of(c, RANGES), 2) as (one, other):
            keys = [*rows, b"none", *rows, b"k3"]
            found = await asyncio.gather(one.get(keys), other.get(keys))
            assert found[0] == found[1] == [*rows.values(), None, *rows.values(), rows[b"k3"]]
            assert await one.say("SET k0 1", "STRLEN k0", "PING") == [b"+OK", b":1", b"+PONG"]
        await until(lambda: byzantium.clients_memory.used < MIB)


async def test_a_request_is_repeated_if_the_answer_is_larger_than_expected(tmp_path: Path) -> None:
    rows: dict[bytes, bytes | None] = {b"k%d" % number: b"%d" % number * MIB for number in range(9)}
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, rows)
        async with clients(athens, table_of(c, RANGES), 3) as many:
            found = await asyncio.gather(*[one.get([*rows, b"none"]) for one in many])
        assert found == [[*rows.values(), None]] * 3
        assert athens.clients_memory.used < MIB


async def test_values_that_are_too_large_together_are_deleted_one_by_one(tmp_path: Path) -> None:
    rows: dict[bytes, bytes | None] = {b"k%d" % number: b"%d" % number * 9 * MIB for number in range(4)}
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, rows)
        for node in (athens, c.nodes["byzantium"]):
            async with client(node, table_of(c, RANGES)) as redis:
                assert await redis.all_bulks("GETDEL", list(rows)) == list(rows.values())
                assert await redis.say("EXISTS k0 k1 k2 k3") == [b":0"]
            for key, value in rows.items():
                await c.nodes["byzantium"].put(1, {key: value})


async def test_a_scan_for_keys_has_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_requests, "_PAGE_SECONDS", 30.0)  # else a page may end early on a slow machine
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, {b"a": bytes(MIB), b"b": b"1", b"c": bytes(MIB)})
        byzantium = c.nodes["byzantium"]
        body = kv_frames.encode(ScanBody(b"", b"", False, 1000, 1000, True))
        for durable in (False, True):
            if durable:
                await byzantium.manager.replicas[1].data.flush()
            page = kv_frames.decode_page(await byzantium.ask(Op.SCAN, 1, 1, body))
            assert (page.keys, page.values, page.end) == ([b"a", b"b", b"c"], [], b"")
        async with client(athens, table_of(c, RANGES)) as redis:
            assert (await redis.lines(b"SCAN 0\r\n", 10))[3::2] == [b"*3", b"a", b"b", b"c"]


async def test_nothing_is_left_for_the_garbage_collector(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, {b"a": b"1"})
        gc.collect()
        gc.disable()
        try:
            for node in (athens, c.nodes["byzantium"]):
                async with client(node, table_of(c, RANGES)) as redis:
                    await redis.lines(b"SCAN 0\r\n" * 50, 50 * 6)
                    await redis.say(*["EXISTS a b"] * 50, *["INCR a"] * 50, *["SET k v EX x"] * 50)
            left = [type(one).__name__ for one in gc.get_objects() if isinstance(one, (Joined, Scan, Many))]
            assert left == []
        finally:
            gc.enable()


@pytest.mark.parametrize(
    ("commands", "answers", "last"),
    [
        (lambda: b"EXISTS " + b"k " * 30_000 + b"\r\n", 1, b":0"),
        (lambda: array(b"EXISTS", *[b"k"] * (100 * PIECE_WORDS)), 1, b":0"),
        (lambda: array(b"DEL", *[b"k"] * (20 * PIECE_WORDS)), 1, b":0"),
        (lambda: array(b"MSET", *[b"k", b"v"] * (20 * PIECE_WORDS)), 1, b"+OK"),
        (lambda: b"INCR n\r\n" * 30_000, 30_000, b":30000"),
        (lambda: b"PING\r\n" * 100_000, 100_000, b"+PONG"),
    ],
)
async def test_other_clients_are_served_during_a_long_command(
    tmp_path: Path, commands: Callable[[], bytes], answers: int, last: bytes
) -> None:
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, {b"other": b"1"})
        async with clients(athens, table_of(c, RANGES), 2) as (greedy, other):
            asked = asyncio.ensure_future(greedy.lines(commands(), answers))
            meanwhile = 0
            while not asked.done():
                assert await other.say("PING") == [b"+PONG"]
                meanwhile += not asked.done()
            assert (await asked)[-1] == last
        assert meanwhile >= 3


async def test_very_many_keys(tmp_path: Path) -> None:
    keys = [b"k%d" % number for number in range(3 * PIECE_WORDS)]
    pairs = [word for number, key in enumerate(keys) for word in (key, b"%d" % number)]
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, {b"other": b"1"})
        async with client(athens, table_of(c, RANGES)) as redis:
            asked = [[b"MSET", *pairs], [b"EXISTS", *keys, b"none"], [b"SET", b"k0", b"new"], [b"MGET", *keys, b"none"]]
            said = await redis.lines(b"".join([array(*words) for words in asked]), 3 + 1 + 2 * len(keys) + 1)
            assert said[:6] == [b"+OK", b":3000", b"+OK", b"*3001", b"$3", b"new"]
            assert said[6:-1:2] == [b"$%d" % len(b"%d" % number) for number in range(1, len(keys))]
            assert said[7:-1:2] == [b"%d" % number for number in range(1, len(keys))]
            assert said[-1] == b"$-1"
            assert await redis.lines(array(b"DEL", *keys) + array(b"EXISTS", *keys), 2) == [b":3000", b":0"]
            assert await redis.lines(array(b"MSET", *keys, b"", b"v") + array(b"GET", b"k0"), 2) == [
                b"-ERR a key is empty: a key of Minka has 1 to 65536 bytes",
                b"$-1",
            ]


async def test_the_values_of_a_few_keys_are_bounded(tmp_path: Path) -> None:
    rows: dict[bytes, bytes | None] = {b"k%d" % number: bytes(9 * MIB) for number in range(4)}
    async with cluster(tmp_path) as c:
        await led_by_byzantium(c, rows)
        async with client(c.nodes["byzantium"], table_of(c, RANGES)) as redis:
            assert (await redis.say("MGET k0 k1 k2 k3"))[0].startswith(b"-ERR TOO_LARGE")
            assert await redis.bulks("MGET k0 k1 k2") == [bytes(9 * MIB)] * 3


async def test_a_long_command_gets_its_turn_while_other_connections_are_busy(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, {b"other": b"1"})
        async with client(athens, table_of(c, RANGES)) as redis:
            service = redis.service
            settled = 0

            class Busy:
                address = "busy"

                def settle(self) -> None:
                    nonlocal settled
                    settled += 1
                    time.sleep(2 * TURN_S)
                    if settled < 1000:
                        service.settle_soon(self)  # type: ignore[arg-type]

            for _ in range(2):
                service.settle_soon(Busy())  # type: ignore[arg-type]
            done: list[int] = []
            (connection,) = service.connections.values()
            service.in_turn(connection, lambda: done.append(settled))
            await until(lambda: bool(done))
            settled = 1000
        assert done[0] < 10


async def test_a_bug_ends_only_one_connection(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, {b"other": b"1"})
        async with clients(athens, table_of(c, RANGES), 2) as (one, other):
            assert await one.say("PING") == await other.say("PING") == [b"+PONG"]
            first, _ = one.service.connections.values()

            def mistake() -> None:
                raise IndexError

            one.service.in_turn(first, mistake)
            await until(lambda: first.id not in one.service.connections)
            assert await other.say("PING", "GET none") == [b"+PONG", b"$-1"]


async def test_commands_after_multi_wait_for_the_answers_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, {b"other": b"1"})
        held: list[Asked] = []
        async with client(athens, table_of(c, RANGES)) as redis:
            await redis.say("PING")
            ask = redis.service.means.elsewhere.ask
            monkeypatch.setattr(redis.service.means.elsewhere, "ask", lambda _, asked: held.append(asked))
            (connection,) = redis.service.connections.values()
            asked = asyncio.ensure_future(redis.lines(b"STRLEN k\r\nMULTI\r\n" + b"x\r\n" * 20_000, 20_002))
            await until(lambda: bool(held))
            for _ in range(20):
                await asyncio.sleep(0.01)
            assert connection._out_bytes < 256 * 1024
            ask(f"127.0.0.1:{c.ports['byzantium']}", held[0])
            said = await asked
            assert said[0] == b":0"
            assert {one[:10] for one in said[2:]} == {b"-ERR MULTI"}


async def test_reset_in_a_transaction_waits_for_the_answers_before_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        await led_by_byzantium(c, {b"other": b"1"})
        async with client(c.nodes["byzantium"], table_of(c, RANGES)) as redis:
            await redis.lines(b"HELLO 3\r\n", HELLO_LINES)
            said = await redis.say("GET none", "PING", "GET none", "MULTI", "RESET", "GET none")
            assert said[:3] == [b"_", b"+PONG", b"_"]
            assert said[4:] == [b"+RESET", b"$-1"]


async def test_a_scan_reports_a_partition_without_a_leader(tmp_path: Path) -> None:
    keyspace = Keyspace(id=1, name="default", partition_count=1, hash=HashFunction.HASH_FUNCTION_CRC16)
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        async with client(athens, table_of(c, keyspace)) as redis:
            athens.clearance = False
            assert (await redis.say("SCAN 0"))[0].startswith(b"-TRYAGAIN ")


async def test_a_command_that_is_done_in_part_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(tmp_path) as c:
        await led_by_byzantium(c, {b"k1": b"1"})
        async with client(c.nodes["byzantium"], table_of(c, RANGES)) as redis:
            await redis.say("PING")
            (connection,) = redis.service.connections.values()
            pieces: list[int] = []

            def run(_: object, words: list[bytes], owner: object) -> bytes:
                pieces.append(len(words))
                if len(pieces) % 2:
                    return b":1\r\n"
                raise RespError("MOVED 1 127.0.0.1:1")

            words = [b"DEL", *[b"k"] * (2 * PIECE_WORDS)]
            for is_write, said in (
                (True, b"-ERR some of the keys are done, and not all: MOVED 1 "),
                (False, b"-MOVED 1 "),
            ):
                many = by_pieces(run, added, is_write=is_write)(connection, list(words))
                assert isinstance(many, Many)
                await until(lambda many=many: many.answer is not None)  # type: ignore[misc]
                assert many.answer is not None
                assert many.answer.startswith(said)


async def test_a_request_that_is_repeated_for_its_size_keeps_its_deadline(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, {b"k": bytes(MIB)})
        elsewhere, share = Elsewhere("test", lambda: None), athens.clients_memory.share()
        results: list[GroupResult] = []
        group = Group(Op.READ, 1, c.rows[1].generation, kv_frames.encode([b"k"]))
        now = asyncio.get_running_loop().time()
        late = Asked(group, now - 1.0, 1000, 2 * MIB, share, results.append)
        share.take(late.size)
        address = f"127.0.0.1:{c.ports['byzantium']}"
        elsewhere.ask(address, Asked(group, now + 30.0, 1000, 2 * MIB, share, results.append))
        share.take(1000)
        await until(lambda: len(results) == 1)
        assert results[0].error is None
        node = elsewhere._nodes[address]
        await node._with_room(late)
        await until(lambda: len(results) == 2)
        assert results[1].error is not None
        elsewhere.close()
        share.close()


class Taker:
    """Collects the answers of reads."""

    reads = writes = 0

    def __init__(self) -> None:
        self.taken: list[bytes | None] = []

    def filled(self, slot: Slot) -> None:
        self.taken.append(slot.answer)


async def test_reads_with_known_large_answers_wait_for_room(tmp_path: Path) -> None:
    """Many reads with large answers of known sizes begin at the same time, for example because they are repeated after
    a refusal. Each waits until there is room for its answer.
    """
    value, taker = bytes(4 * MIB), Taker()
    async with cluster(tmp_path) as c:
        c.clients_memory_bytes = 64 * MIB
        athens = await led_by_byzantium(c, {b"k0": value})
        memory, used = athens.clients_memory, list[int]()

        def is_over() -> bool:
            used.append(memory.used)
            return len(taker.taken) == 48

        async with clients(athens, table_of(c, RANGES), 4) as greedy:
            for one in greedy:
                assert await one.get([b"k0"]) == [value]
            view, means = greedy[0].service.keyspaces.view(b"default"), greedy[0].service.means
            assert view is not None
            for connection in greedy[0].service.connections.values():
                for _ in range(12):
                    joined = Joined(taker, 1, lambda found: cast("bytes", found[0]), is_write=False)
                    Read(means, view, Op.READ, connection.share, joined, [b"k0"], [0]).send()
            await until(is_over)
        assert taker.taken == [value] * 48
        assert max(used) < memory.limit, f"{max(used) / MIB:.0f} MiB"


async def test_writes_that_are_passed_on_do_not_wait_for_the_room_of_answers(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        c.clients_memory_bytes = 16 * MIB
        athens = await led_by_byzantium(c, {b"k0": bytes(4 * MIB)})
        async with client(athens, table_of(c, RANGES)) as redis:
            assert await redis.get([b"k0"]) == [bytes(4 * MIB)]
            share = redis.service.pipes.share
            share.take(athens.clients_memory.limit // 4)  # as if answers of GETEX were under way
            assert await redis.say("SET k0 1") == [b"+OK"]
            share.give(athens.clients_memory.limit // 4)


async def test_a_part_of_a_batch_keeps_the_weights_of_its_entries(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, {b"k": b"1"})
        async with client(athens, table_of(c, RANGES)) as redis:
            await redis.say("PING")
            pipes, view = redis.service.pipes, redis.service.keyspaces.view(b"default")
            assert view is not None
            batch = Batch(pipes.means, view, pipes.share, Pipe(pipes, view, 1))
            (connection,) = redis.service.connections.values()
            for size in (100, 1000):
                batch.put(b"k", bytes(size))
                batch.takers.append(SetSlot(connection))
            batch.operate(b"k", Append(b"k", bytes(5000)), 5000)
            batch.takers.append(SetSlot(connection))
            batch.put(b"k", bytes(7))
            batch.takers.append(SetSlot(connection))
            halves = batch.part(batch.takers[:1], 0), batch.part(batch.takers[1:], 1)
            assert [half.weight for half in halves] == [100, 6007]


async def test_nothing_of_a_transaction_is_carried_out(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, {b"other": b"1"})
        async with client(athens, table_of(c, RANGES)) as redis:
            said: list[bytes] = []
            for end, answer in (
                ("EXEC", b"-EXECABORT Transaction discarded because of previous errors."),
                ("DISCARD", b"+OK"),
                ("RESET", b"+RESET"),
            ):
                said = await redis.say("MULTI", "SET n 1", "incr n", "GET n", "none", end, "GET n", "INCR m")
                assert said[0].startswith(b"-ERR unknown command 'MULTI'")
                assert {one[:22] for one in said[1:5]} == {b"-ERR MULTI was refused"}
                assert said[5:7] == [answer, b"$-1"]
            assert said[7] == b":3"
            assert await redis.say("EXEC", "DISCARD") == [b"-ERR EXEC without MULTI", b"-ERR DISCARD without MULTI"]


async def test_a_node_without_a_table_answers_auth_with_loading(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, {b"other": b"1"})
        async with client(athens, table_of(c, RANGES), knows_table=False) as redis:
            said = await redis.say("AUTH none x", "HELLO 3 AUTH none x", "SET a 1")
            assert [one.split()[0] for one in said] == [b"-LOADING", b"-LOADING", b"+OK"]
        async with client(athens, table_of(c, RANGES)) as redis:
            assert (await redis.say("AUTH none x"))[0].startswith(b"-WRONGPASS there is no keyspace 'none': create it")
            answer = (await redis.say("AUTH no:ne x"))[0]
            assert answer.startswith(b"-WRONGPASS there is no keyspace 'no:ne': a name must have 1 to 63 characters")


async def test_long_words_are_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, {b"text": b"x"})
        long = b"1" * 200_000
        async with client(athens, table_of(c, RANGES)) as redis:
            for command, answer in {
                (b"SCAN", long): b"-ERR invalid cursor",
                (b"SCAN", b"0", b"COUNT", long): b"-ERR value is not an integer or out of range",
                (b"SCAN", b"0", b"MATCH", long): b"-ERR pattern is too long: one has at most 1024 bytes",
                (b"CONFIG", b"GET", long): b"-ERR pattern is too long: one has at most 1024 bytes",
                (b"COMMAND", b"LIST", b"FILTERBY", b"PATTERN", long): b"-ERR pattern is too long",
                (b"INCRBY", b"n", long): b"-ERR value is not an integer or out of range",
                (b"INCRBYFLOAT", b"n", long): b"-ERR value is not a valid float",
                (b"SET", b"n", b"1", b"EX", long): b"-ERR value is not an integer or out of range",
                (b"SET", b"n", b"1", *[b"GET"] * 1000): b"-ERR wrong number of arguments for 'set' command",
                (b"CLIENT", b"SETNAME", long): b"-ERR Client names cannot be longer than",
                (b"INCR", b"text"): b"-ERR value is not an integer or out of range",
                (long, b"a"): b"-ERR unknown command '1111",
            }.items():
                (said,) = await redis.lines(array(*command), 1)
                assert said.startswith(answer), said[:100]
                assert len(said) < 500


def array(*words: bytes) -> bytes:
    """Encode a command as clients send it: as an array of words."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of keys in the reads that are sent to leaders."""
    found, send = list[int](), Read._send

    def counted(self: Read) -> None:
        found.append(len(self.keys()))
        send(self)

    monkeypatch.setattr(Read, "_send", counted)
    return found


async def test_repeated_keys_are_read_once(tmp_path: Path, sent: list[int]) -> None:
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, {b"large": bytes(16 * MIB), b"a": b"1", b"b": b"2"})
        async with client(athens, table_of(c, RANGES)) as one:
            assert await one.say("EXISTS" + " large" * 900) == [b":900"]
            (refused,) = await one.say("MGET" + " large" * 300)
            assert refused.startswith(b"-ERR TOO_LARGE")
            assert await one.bulks("MGET" + " a b none a" * 50) == [b"1", b"2", None, b"1"] * 50
    assert sum(sent) < 20, sent


async def test_an_answer_that_is_too_large_ends_the_reads_for_it(tmp_path: Path, sent: list[int]) -> None:
    rows: dict[bytes, bytes | None] = {b"k%d" % number: bytes(9 * MIB) for number in range(16)}
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, rows)
        async with client(athens, table_of(c, RANGES)) as one:
            (refused,) = await one.say("MGET " + " ".join(key.decode() for key in rows))
            assert refused.startswith(b"-ERR TOO_LARGE")
    assert sent.count(1) <= 4, "four values are too large together"


@pytest.mark.parametrize("command", ["EXISTS", "MGET"])
async def test_the_reads_for_a_client_that_has_gone_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    rows: dict[bytes, bytes | None] = {b"k%d" % number: bytes(3 * MIB) for number in range(8)}
    async with cluster(tmp_path) as c:
        athens = await led_by_byzantium(c, rows)
        async with client(athens, table_of(c, RANGES)) as one:
            alone, send = list[bytes](), Read._send

            def gone_at_the_first(self: Read) -> None:
                if len(self.keys()) == 1:
                    alone.extend(self.keys())
                    for connection in list(one.service.connections.values()):
                        connection.abort()
                send(self)

            answers = list[bytes]()
            monkeypatch.setattr(Read, "_send", gone_at_the_first)
            monkeypatch.setattr(Joined, "fill", lambda _, answer: answers.append(answer))
            one.ask(f"{command} " + " ".join(key.decode() for key in rows))
            await until(lambda: bool(answers))
        assert len(alone) <= 2
