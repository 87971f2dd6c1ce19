"""The asyncio client fetches the partition table, and takes newer rows."""

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from minka.async_client import AsyncClient, OwnKeyspace
from minka.cluster.routing_table import RoutingTable
from minka.engine import call, wanted_rows
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import HashFunction, Keyspace, Partition, PartitionTable
from tests.unit.client.asking import Make, client_of, until


async def test_a_refusal_with_newer_rows_is_enough_to_find_the_new_leader(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster) as client:
        await client.put(cluster.key_of(0), b"old")
        cluster.lead(0, "byzantium")
        given = sum(node.tables_given for node in cluster.nodes.values())
        await client.put(cluster.key_of(0), b"new")
        await client.put_many({cluster.key_of(0, n): b"new" for n in range(5)})
        assert sum(node.tables_given for node in cluster.nodes.values()) == given
        assert cluster.nodes["byzantium"].writes[cluster.key_of(0)] == 2


async def test_a_stale_generation_is_replaced(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        await client.put(cluster.key_of(0), b"old")
        cluster.lead(0, "athens")
        await client.put(cluster.key_of(0), b"new")
        assert [frame.groups[0].generation for frame in cluster.nodes["athens"].frames] == [1, 1, 2]


async def test_a_refusal_without_rows_makes_the_client_fetch_the_table_elsewhere(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster) as client:
        await client.put(cluster.key_of(0), b"old")
        athens, byzantium = cluster.nodes["athens"], cluster.nodes["byzantium"]
        athens.refuse = lambda _: MinkaError(Code.NO_CLEARANCE, "athens has no clearance")
        asked, given = athens.tables_asked, byzantium.tables_given
        writing = asyncio.create_task(client.put(cluster.key_of(0), b"new"))
        await until(lambda: byzantium.tables_given > given + 4)
        assert athens.tables_asked == asked
        cluster.lead(0, "byzantium", told=["byzantium"])
        await writing
        assert byzantium.writes[cluster.key_of(0)] == 1


async def test_a_waiting_call_is_sent_again_once_a_newer_table_names_the_leader(
    data_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call doesn't wait for the end of its pause, even if the client has fetched the table for another call."""
    monkeypatch.setattr(call, "delay_s", lambda attempt, rng: 1000.0)
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster) as client:
        await client.put(cluster.key_of(0), b"old")
        athens, byzantium = cluster.nodes["athens"], cluster.nodes["byzantium"]
        athens.refuse = lambda _: MinkaError(Code.NO_CLEARANCE, "athens has no clearance")
        given, frames = byzantium.tables_given, len(athens.frames)
        waiting = asyncio.create_task(client.put(cluster.key_of(0), b"new"))
        await until(lambda: byzantium.tables_given > given and len(athens.frames) > frames)
        cluster.lead(0, "byzantium", told=["byzantium"])
        # For an unknown keyspace, the client fetches the table. This table also names the leader for the waiting call.
        with pytest.raises(MinkaError, match="UNKNOWN_KEYSPACE"):
            await client.keyspace("flight").get("key")
        await waiting
        assert byzantium.writes[cluster.key_of(0)] == 1


async def test_the_error_about_an_unknown_keyspace_lists_the_known_ones(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        with pytest.raises(MinkaError, match="UNKNOWN_KEYSPACE: there is no keyspace 'flight'; there are: flights"):
            await client.keyspace("flight").get("key")
        async with AsyncClient(cluster.endpoints) as without:
            with pytest.raises(MinkaError, match="INVALID_ARGUMENT: no keyspace: make the client with"):
                await without.get("key")
            await without.keyspace("flights").put("key", b"v")


_RULE = "must have 1 to 63 characters of a-z, 0-9, _ and -, beginning with a letter: "


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (5, "is int, not str"),
        (b"flights", "is bytes, not str"),
        ("k" * 64, _RULE + "'kkk"),
        ("a b/", _RULE + "'a b/'"),
        ("1a", _RULE + "'1a'"),
        ("", _RULE + "''"),
        ("\ud800", ".* isn't UTF-8 text"),
        ("a\nb", _RULE),
    ],
)
async def test_a_name_that_no_keyspace_can_have_is_refused_at_once(data_cluster: Make, name: Any, why: str) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        with pytest.raises(MinkaError, match=f"INVALID_ARGUMENT: the name of a keyspace {why}"):
            client.keyspace(name)
        with pytest.raises(MinkaError, match=f"INVALID_ARGUMENT: the name of a keyspace {why}"):
            AsyncClient(cluster.endpoints, keyspace=name)
        assert cluster.nodes["athens"].tables_asked == 0


async def test_the_clusters_own_keyspaces_are_refused(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        for use in (client.keyspace, lambda name: AsyncClient(cluster.endpoints, keyspace=name)):
            with pytest.raises(MinkaError, match="INVALID_ARGUMENT: keyspace '_duties' is the cluster's own"):
                use("_duties")
        # Nodes may name the cluster's own keyspace, so their client asks the nodes for it.
        own = OwnKeyspace("_duties", cluster.endpoints, None)
        with pytest.raises(MinkaError, match="UNKNOWN_KEYSPACE"):
            await own.get("key", timeout=2)
        await own.close()


async def test_a_keyspace_that_nodes_refuse_does_not_disturb_calls_for_others(data_cluster: Make) -> None:
    """Nodes of another version may have other rules for names than the client."""
    async with data_cluster("athens") as cluster, AsyncClient(cluster.endpoints, rng=Random(1)) as client:
        athens = cluster.nodes["athens"]
        athens.refused_keyspaces = {"crews", "fares"}
        for _ in range(2):  # the client has no table in the first round, and has one in the second
            flights = client.keyspace("flights").get("key")
            refused = [client.keyspace(name).get("key") for name in ("crews", "fares", "crews")]
            *errors, value = await asyncio.gather(*refused, flights, return_exceptions=True)
            assert value is None
            assert [error.code for error in errors if isinstance(error, MinkaError)] == [Code.INVALID_ARGUMENT] * 3
        asked = athens.tables_asked
        with pytest.raises(MinkaError, match=r"INVALID_ARGUMENT: no node took the request: .*crews"):
            await client.keyspace("crews").get("key")
        assert athens.tables_asked <= asked + 1, "at most one request: none is left of the earlier calls"
        assert await client._core.refresh_soon() is None


async def test_an_unexpected_error_does_not_end_the_refreshes(
    data_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster, refresh_interval=0.02) as client:
        with monkeypatch.context() as patch:
            patch.setattr(RoutingTable, "add", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                await client.get("key")
        assert await client.get("key") is None
        given = cluster.nodes["athens"].tables_given
        await until(lambda: cluster.nodes["athens"].tables_given > given + 2)


async def test_a_call_waits_until_nodes_know_a_new_keyspace(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        await client.put("key", b"v")
        athens = cluster.nodes["athens"]
        table = athens.table
        writing = asyncio.create_task(client.keyspace("crews").put("key", b"w"))
        await until(lambda: athens.tables_given > 3)  # athens' table doesn't have the new keyspace yet
        table.keyspaces.append(Keyspace(id=2, name="crews", partition_count=1, hash=HashFunction.HASH_FUNCTION_MD5))
        table.partitions.append(Partition(id=90, keyspace_id=2, leader="athens", partition_epoch=1, generation=1))
        table.version += 1
        await writing
        assert athens.frames[-1].groups[0].partition_id == 90


async def test_the_client_fetches_only_the_rows_of_a_large_keyspace_that_it_needs(
    data_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wanted_rows, "WHOLE_UP_TO", 10)
    monkeypatch.setattr(wanted_rows, "MAX_SLOTS", 20)
    async with data_cluster("athens", partitions=200) as cluster, client_of(cluster) as client:
        athens = cluster.nodes["athens"]
        await client.put(cluster.key_of(7), b"v")
        await client.put(cluster.key_of(7, 1), b"v")
        assert athens.rows_given == [0, 1], "first the keyspace without rows, then the row of the slot"
        await client.put_many({cluster.key_of(slot): b"v" for slot in range(5, 10)})
        assert athens.rows_given == [0, 1, 4]
        await client.put_many({cluster.key_of(slot): b"v" for slot in range(50)})
        assert athens.rows_given == [0, 1, 4, 200], "a client that needs many rows gets all rows"
        assert len(cluster.data) == 51


async def test_a_refresh_brings_newer_rows(data_cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wanted_rows, "WHOLE_UP_TO", 3)
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster, refresh_interval=0.02) as client:
        await client.put(cluster.key_of(0), b"v")
        cluster.lead(0, "byzantium")
        nodes = cluster.nodes.values()
        asked = sum(node.tables_given for node in nodes)
        await until(lambda: sum(node.tables_given for node in nodes) > asked + 4)
        frames = len(cluster.nodes["athens"].frames)
        assert await client.get(cluster.key_of(0)) == b"v"
        assert len(cluster.nodes["athens"].frames) == frames
        assert sorted(count for node in nodes for count in node.rows_given) == [0, 1, 1]


async def test_a_refresh_that_is_asked_for_during_a_fetch_of_rows_comes_after_it(
    data_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wanted_rows, "WHOLE_UP_TO", 3)
    async with data_cluster("athens") as cluster, client_of(cluster, refresh_interval=1000) as client:
        await client.put(cluster.key_of(0), b"v")
        athens = cluster.nodes["athens"]
        asked = athens.tables_asked
        athens.go_on.clear()
        writing = asyncio.create_task(client.put(cluster.key_of(1), b"v"))
        await until(lambda: athens.tables_asked == asked + 1)
        client._core.refresh_soon()
        athens.go_on.set()
        await writing
        await until(lambda: athens.tables_asked == asked + 2)


async def test_a_fetch_for_a_second_keyspace_does_not_bring_the_first_again(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        athens = cluster.nodes["athens"]
        athens.table.keyspaces.append(
            Keyspace(id=2, name="crews", partition_count=1, hash=HashFunction.HASH_FUNCTION_MD5)
        )
        athens.table.partitions.append(Partition(id=90, keyspace_id=2, leader="athens", partition_epoch=1))
        await client.put("key", b"v")
        await client.keyspace("crews").put("key", b"w")
        await client.put("key", b"x")
        assert athens.rows_given == [6, 1]


async def test_the_client_asks_another_node_if_one_has_no_table(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium") as cluster:
        athens = cluster.nodes["athens"]
        table = PartitionTable()
        table.CopyFrom(athens.table)
        for rng in map(Random, range(4)):  # with these seeds, each node is asked first at times
            athens.table.Clear()
            async with AsyncClient(cluster.endpoints, keyspace="flights", rng=rng) as client:
                await client.put(cluster.key_of(1), b"v")
            async with AsyncClient([athens.address], keyspace="flights", rng=rng) as client:
                with pytest.raises(MinkaError, match=r"DEADLINE_EXCEEDED: no partition table.*no partition table yet"):
                    await client.get("key", timeout=0.5)
                writing = asyncio.create_task(client.put(cluster.key_of(1), b"v"))
                asked = athens.tables_asked
                await until(functools.partial(lambda before: athens.tables_asked > before + 2, asked))
                athens.table.CopyFrom(table)
                await writing


async def test_the_table_is_refreshed_periodically(data_cluster: Make) -> None:
    async with data_cluster("athens", "byzantium") as cluster, client_of(cluster, refresh_interval=0.02) as client:
        await client.get(cluster.key_of(0))
        cluster.lead(0, "byzantium")
        given = sum(node.tables_given for node in cluster.nodes.values())
        await until(lambda: sum(node.tables_given for node in cluster.nodes.values()) > given + 4)
        assert sum(node.whole_tables_given for node in cluster.nodes.values()) == 2, "the others have only changes"
        frames = len(cluster.nodes["athens"].frames)
        await client.get(cluster.key_of(0))
        assert len(cluster.nodes["athens"].frames) == frames


async def test_another_clusters_table_is_not_used(data_cluster: Make, caplog: pytest.LogCaptureFixture) -> None:
    async with data_cluster("athens") as cluster, data_cluster("sparta") as other:
        other.nodes["sparta"].table.cluster.id = "other"
        other.nodes["sparta"].table.version = 99
        async with client_of(cluster, refresh_interval=0.01) as client:
            await client.put("key", b"v")
            cluster.nodes["athens"].table.nodes.add(id="sparta", address=other.endpoints[0])
            cluster.nodes["athens"].table.version += 1
            with caplog.at_level(logging.WARNING, logger="minka"):
                await until(lambda: "CLUSTER_MISMATCH" in caplog.text)
            assert await client.get("key") == b"v"


async def test_if_no_endpoint_answers_the_error_names_each_at_once(free_address: Callable[[], str]) -> None:
    endpoints = [free_address(), free_address()]
    start = time.monotonic()
    async with AsyncClient(endpoints, keyspace="flights") as client:
        with pytest.raises(MinkaError, match="UNREACHABLE") as caught:
            await client.get("key")
    assert time.monotonic() - start < 5
    for endpoint in endpoints:
        assert f"{endpoint}: Connection refused" in caught.value.message


async def test_a_call_asks_for_its_first_table_again_until_its_deadline(
    data_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minka.engine.core._TABLE_TIMEOUT_S", 0.05)
    async with data_cluster("athens") as cluster, client_of(cluster) as client, client_of(cluster) as other:
        athens = cluster.nodes["athens"]
        athens.go_on.clear()
        call = asyncio.create_task(client.get("key"))
        await until(lambda: athens.tables_asked == 3)
        athens.go_on.set()
        assert await call is None
        athens.go_on.clear()
        with pytest.raises(MinkaError, match=r"DEADLINE_EXCEEDED: no partition table in time: .* did not answer"):
            await other.get("key", timeout=0.5)
