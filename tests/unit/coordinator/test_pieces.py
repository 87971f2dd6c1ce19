"""Commands that change thousands of rows: other tasks get turns, and another controller can go on after each piece."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Durability, HashFunction, Node, Partition
from minka.v1.coordinator_pb2 import HeartbeatRequest
from minka.v1.records_pb2 import RecordBatch
from minkad.core.controller.decision import Command
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.membership import FailNodes, Register
from minkad.core.controller.rows import ROWS_A_RECORD
from minkad.core.state import State, is_up
from tests.unit.coordinator.controller_harness import RecordingHarness, until
from tests.unit.core.deciding import records_of
from tests.unit.core.model import Controller

MANY = 8 * ROWS_A_RECORD
MURMUR3 = HashFunction.HASH_FUNCTION_MURMUR3


def rows_in(batch: RecordBatch) -> int:
    """The rows of a command."""
    return sum(
        len(getattr(record, record.WhichOneof("fact") or "").partitions)
        for record in batch.records
        if record.WhichOneof("fact") in ("partitions_changed", "keyspace_created", "partitions_created")
    )


async def test_heartbeats_are_answered_while_a_large_keyspace_is_created() -> None:
    """The command is one proposal, so either all of it is recorded or nothing. It is applied piece by piece."""
    h = RecordingHarness()
    await h.begin("a", "b", "c", replicas=3)
    answered = 0
    create = asyncio.create_task(h.controller.run(CreateKeyspace("large", MANY, MURMUR3, 3)))
    while not create.done():
        h.controller.heartbeat(HeartbeatRequest(node_id="a", incarnation="1"))
        answered += 1
        await asyncio.sleep(0)
    await create
    assert answered > 3 * MANY // ROWS_A_RECORD, "other tasks get turns meanwhile"
    (proposed,) = [batches for batches in h.proposed if len(batches) > 1]
    assert [rows_in(batch) for batch in proposed] == [ROWS_A_RECORD] * (MANY // ROWS_A_RECORD)
    await until(h.all_online)
    h.controller.close()


def test_a_keyspace_is_not_seen_before_it_has_all_its_partitions() -> None:
    c = Controller()
    c.register("a", "b", "c")
    records = list(records_of(c.state, CreateKeyspace("large", MANY, MURMUR3, 3), 0))
    assert len(records) == MANY // ROWS_A_RECORD
    for record in records:
        table = c.state.table()
        assert not table.keyspaces
        assert not table.partitions
        c.state.apply(record)
    table = c.state.table()
    assert [keyspace.name for keyspace in table.keyspaces] == ["large"]
    assert [row.slot for row in table.partitions] == list(range(MANY))


async def test_a_command_whose_caller_gave_up_before_its_turn_is_not_proposed() -> None:
    h = RecordingHarness()
    await h.begin("a", "b", "c", replicas=3)
    async with h.controller._turn:
        late = asyncio.create_task(h.controller.run(CreateKeyspace("late", 3, MURMUR3, 3)))
        for _ in range(10):
            await asyncio.sleep(0)
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
    await h.look_around()
    assert h.state.keyspace_named("late") is None
    h.controller.close()


async def test_a_waiting_command_is_refused_when_the_controller_ends() -> None:
    h = RecordingHarness()
    await h.begin("a", "b", "c", replicas=3)
    async with h.controller._turn:
        waiting = asyncio.create_task(h.controller.run(CreateKeyspace("late", 3, MURMUR3, 3)))
        await asyncio.sleep(0)
        h.controller.close()
        proposed = len(h.proposed)
    with pytest.raises(MinkaError) as refusal:
        await waiting
    assert refusal.value.code is Code.NOT_CONTROLLER
    assert len(h.proposed) == proposed


async def test_a_wrongly_failed_node_gets_only_the_rows_that_have_changed() -> None:
    h = RecordingHarness()
    await h.begin("a", "b", "c", replicas=3)
    await h.controller.run(CreateKeyspace("large", MANY, MURMUR3, 3))
    await until(h.all_online)
    await h.controller.run(FailNodes({"c": "no heartbeat"}))
    led = [row.id for row in h.state.partitions.values() if row.leader == "c"]
    assert not led
    h.requests.clear()
    await h.controller.register(Node(id="c", data_id="c", incarnation="1.2", address="c:1"))
    await until(lambda: sum(len(request.known_ids) for node, request in h.requests if node == "c") == MANY + 2)
    assert not any(request.partitions for node, request in h.requests if node == "c")
    h.controller.close()


async def prefixes(c: Controller, command: Command, go_on: Callable[[State], Awaitable[None]]) -> int:
    """Let a controller die after 0, 1, 2 … of the command's records, up to all of them. Each time, call `go_on` with
    the state at that moment: `go_on` acts as the next controller. Returns the number of records.
    """
    snapshot = c.state.to_snapshot()
    count = len(list(_applied(State.from_snapshot(snapshot), command, 10**9)))
    for length in range(count + 1):
        state = State.from_snapshot(snapshot)
        list(_applied(state, command, length))
        await go_on(state)
    return count


def _applied(state: State, command: Command, count: int) -> list[None]:
    done: list[None] = []
    for record in records_of(state, command, 0):
        if len(done) == count:
            break
        state.apply(record)
        done.append(None)
    return done


@pytest.mark.parametrize("durability", [Durability.DURABILITY_SYNC, Durability.DURABILITY_ASYNC])
@pytest.mark.parametrize("replicas", [1, 3])
async def test_the_next_controller_can_go_on_after_any_piece(replicas: int, durability: Durability.ValueType) -> None:
    c = Controller()
    c.register("a", "b", "c")
    c.run(CreateKeyspace("large", MANY, MURMUR3, replicas, durability=durability))

    async def no_dead_leader(state: State) -> None:
        h = RecordingHarness(state)
        await until(lambda: all(not row.leader or is_up(state.nodes[row.leader]) for row in rows(state)))
        orphans = [row for row in rows(state) if list(row.replicas) == ["b"] and not is_up(state.nodes["b"])]
        assert [row for row in rows(state) if not row.leader] == orphans
        h.controller.close()

    assert await prefixes(c, FailNodes({"b": "silent"}), no_dead_leader) > 2
    again = Register(Node(id="b", data_id="data-b", incarnation="2", address="b:7400"), False)

    async def all_lead(state: State) -> None:
        h = RecordingHarness(state)
        await h.controller.run(again)
        await until(h.all_online)
        assert state.nodes["b"].incarnation == "2"
        assert all(row.leader_epoch > 1 for row in rows(state) if row.replicas[0] == "b")
        h.controller.close()

    assert await prefixes(c, again, all_lead) > 2


def rows(state: State) -> list[Partition]:
    return list(state.partitions.values())
