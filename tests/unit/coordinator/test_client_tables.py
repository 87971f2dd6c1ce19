"""The part of the table that a client gets: the rows that it wants and doesn't have yet."""

import zlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minka.v1.admin_pb2 import GetTableRequest, GetTableResponse, WantedRows
from minka.v1.cluster_pb2 import Cluster, Keyspace, Node, Partition, Partitioning
from minkad.coordinator.client_tables import ClientTables
from minkad.core.state import State
from minkad.core.state.row_changes import Changed

FLIGHTS, FARES, AUTHORS = 1, 2, 3


class World:
    """A state with three keyspaces: flights (40 partitions by hash), fares (4 by hash) and authors (one by ranges)."""

    def __init__(self) -> None:
        self.state = State(cluster=Cluster(id="c-1", name="demo"))
        self.state.nodes["a"] = Node(id="a")
        for id_, name, count in ((FLIGHTS, "flights", 40), (FARES, "fares", 4)):
            self.state.keyspaces[id_] = Keyspace(id=id_, name=name, partition_count=count)
            for slot in range(count):
                self.put(id_, slot)
        ranges = Partitioning.PARTITIONING_RANGES
        self.state.keyspaces[AUTHORS] = Keyspace(id=AUTHORS, name="authors", partitioning=ranges)
        self.put(AUTHORS, 0)
        self.tables = ClientTables(cast(Any, SimpleNamespace(state=self.state)))

    def put(self, keyspace: int, slot: int, **more: Any) -> None:
        row = Partition(id=100 * keyspace + slot, keyspace_id=keyspace, slot=slot, replicas="a", leader="a", **more)
        self.state.partitions.put(row)
        self.state._note(Changed(partitions=frozenset({row.id})))

    async def ask(self, *wanted: WantedRows, known: int = 0, cluster: str = "c-1") -> GetTableResponse:
        request = GetTableRequest(keyspaces=wanted, known_version=known, known_cluster=cluster if known else "")
        return await self.tables.answer(request)


@pytest.fixture
def world() -> World:
    return World()


def ids(answer: GetTableResponse) -> list[int]:
    return [row.id for row in (answer.table if answer.HasField("table") else answer.changes).partitions]


async def test_a_request_without_keyspaces_gets_all_rows(world: World) -> None:
    assert len(ids(await world.ask())) == 45


async def test_a_request_gets_the_rows_of_the_keyspaces_that_it_names(world: World) -> None:
    answer = await world.ask(WantedRows(keyspace="fares"), WantedRows(keyspace="authors"), WantedRows(keyspace="x"))
    assert ids(answer) == [200, 201, 202, 203, 300]
    assert [one.name for one in answer.table.keyspaces] == ["flights", "fares", "authors"]
    assert [one.id for one in answer.table.nodes] == ["a"]
    assert ids(await world.ask(WantedRows(keyspace="x"))) == []


async def test_a_large_answer_is_compressed_for_clients_that_accept_it(world: World) -> None:
    for slot in range(4, 8000):
        world.put(FARES, slot)
    plain = await world.tables.answer(GetTableRequest())
    compressed = await world.tables.answer(GetTableRequest(accepts_zlib=True))
    assert not plain.zlib
    assert GetTableResponse.FromString(zlib.decompress(compressed.zlib)) == plain
    assert compressed.ByteSize() < plain.ByteSize() / 4
    few = await world.tables.answer(GetTableRequest(accepts_zlib=True, keyspaces=[WantedRows(keyspace="flights")]))
    assert len(ids(few)) == 40, "it is not worth it"


async def test_a_request_gets_some_slots_of_a_large_keyspace(world: World) -> None:
    def some(keyspace: str, *slots: int) -> WantedRows:
        return WantedRows(keyspace=keyspace, whole_up_to=10, slots=slots)

    assert ids(await world.ask(some("flights", 7, 3, 99))) == [103, 107]
    assert ids(await world.ask(some("flights"))) == []
    assert ids(await world.ask(some("fares", 1))) == [200, 201, 202, 203], "it is small"
    assert ids(await world.ask(some("authors", 1), some("flights", 2))) == [300, 102], "it has no slots"


async def test_rows_of_slots_are_found_without_reading_other_rows(world: World) -> None:
    wanted = WantedRows(keyspace="flights", whole_up_to=10, slots=[5])
    await world.ask(wanted)
    del world.state.partitions[106]  # a read of all rows of the keyspace would fail at this row
    world.state.partitions = cast(Any, OnlyByKey(world.state.partitions))
    assert ids(await world.ask(wanted)) == [105]


class OnlyByKey(dict[int, Partition]):
    def values(self) -> Any:
        raise AssertionError("all rows are read")


async def test_changes_contain_only_the_rows_that_the_client_wants(world: World) -> None:
    known = world.state.version
    world.put(FLIGHTS, 3, partition_epoch=1)
    world.put(FLIGHTS, 4, partition_epoch=1)
    world.put(FARES, 1, partition_epoch=1)
    world.put(AUTHORS, 0, partition_epoch=1)
    wanted = (WantedRows(keyspace="flights", whole_up_to=10, slots=[4]), WantedRows(keyspace="authors"))
    answer = await world.ask(*wanted, known=known)
    assert answer.HasField("changes")
    assert (answer.changes.since, answer.changes.version) == (known, world.state.version)
    assert ids(answer) == [104, 300]
    assert ids(await world.ask(known=known)) == [103, 104, 201, 300]
    assert await world.ask(*wanted, known=world.state.version) == GetTableResponse()


async def test_a_client_whose_version_is_too_old_or_of_another_cluster_gets_all_its_rows(world: World) -> None:
    wanted = WantedRows(keyspace="fares")
    elsewhere = await world.ask(wanted, known=world.state.version - 1, cluster="c-2")
    assert (elsewhere.table.cluster.id, ids(elsewhere)) == ("c-1", [200, 201, 202, 203])
    world.state = world.state.copy()  # the copy doesn't remember which rows have changed
    world.tables = ClientTables(cast(Any, SimpleNamespace(state=world.state)))
    missed = await world.ask(wanted, known=world.state.version - 1)
    assert (missed.HasField("table"), ids(missed)) == (True, [200, 201, 202, 203])


async def test_a_keyspace_that_is_being_created_has_no_rows_yet(world: World) -> None:
    world.state.incomplete.add(FLIGHTS)
    answer = await world.ask(WantedRows(keyspace="flights", whole_up_to=10, slots=[1]))
    assert ids(answer) == []
    assert [one.name for one in answer.table.keyspaces] == ["fares", "authors"]
