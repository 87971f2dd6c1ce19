"""The history of a real cluster's load: nodes record the requests of clients, and a killed node keeps its history."""

from collections.abc import Iterator

import pytest

from minka import Client
from minka.admin.control import Control
from minka.bulk.load_history import HistoryClient, NodeInterval
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from minka.wire.history_rows import quantile_ms
from tests.cluster.cluster import QUICK, eventually, wait_settled

MURMUR3 = HashFunction.HASH_FUNCTION_MURMUR3
EVERY_SECOND = QUICK | {"history": {"interval_s": 1}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, config=EVERY_SECOND) as cluster, Control(cluster.endpoints) as control:
        control.create_keyspace("hashed", 4, MURMUR3, replicas=3)
        wait_settled(control, live=3)
        yield cluster


def all_intervals(cluster: LocalCluster) -> list[NodeInterval]:
    missing: list[str] = []
    with HistoryClient(cluster.endpoints) as history:
        found = list(history.read_all(on_missing=lambda node, _: missing.append(node)))
    assert not missing
    return found


def test_each_request_of_a_client_is_reported_once(cluster: LocalCluster) -> None:
    pairs = {b"key-%03d" % number: b"v" * 100 for number in range(500)}
    with Client(cluster.endpoints, keyspace="hashed", timeout=30.0) as client, Control(cluster.endpoints) as control:
        client.put_many(pairs)
        for _ in range(3):
            client.get_many(list(pairs))
        table = control.table()
    mine = {keyspace.id for keyspace in table.keyspaces if keyspace.name == "hashed"}
    leaders = {row.id: row.leader for row in table.partitions if row.keyspace_id in mine}

    def all_told() -> list[NodeInterval] | None:
        found = all_intervals(cluster)
        rows = [row for interval in found for row in interval.partitions if row.keyspace_id in mine]
        is_told = sum(row.reads for row in rows) >= 1500 and sum(row.writes for row in rows) >= 500
        return found if is_told and sum(sizes(found, mine).values()) == 3 * 500 * 107 else None

    found = eventually("the history has all requests of the test", all_told)
    rows = [(one.node, row) for one in found for row in one.partitions if row.keyspace_id in mine]
    assert sum(row.reads for _, row in rows) == 1500
    assert sum(row.writes for _, row in rows) == 500
    assert sum(row.bytes_written for _, row in rows) > 500 * 107
    assert sum(row.bytes_read for _, row in rows) > 1500 * 100
    assert {(row.partition_id, node) for node, row in rows if row.ops} == set(leaders.items())
    assert all(row.leads == (leaders[row.partition_id] == node) for node, row in rows if row.ops)
    for _, row in rows:
        assert bool(row.reads) == bool(sum(row.reads_took))
        assert bool(row.writes) == bool(sum(row.writes_took))
        assert not row.writes or (quantile_ms(row.writes_took, 0.5) or 0) > 0.016, "three replicas sync a write"
    assert len(sizes(found, mine)) == 3 * 4, "each replica reports its size"
    for one in found:
        assert 0 < one.free_bytes < one.total_bytes
        assert one.interval_ms >= 500


def sizes(found: list[NodeInterval], keyspaces: set[int]) -> dict[tuple[str, int], int]:
    """Return the newest size of each replica in the history, in bytes."""
    rows = [(one.node, row) for one in found for row in one.partitions if row.keyspace_id in keyspaces]
    return {(node, row.partition_id): row.bytes for node, row in rows}


def test_after_a_kill_the_intervals_before_are_there(cluster: LocalCluster) -> None:
    name = sorted(cluster.nodes)[-1]
    with HistoryClient(cluster.endpoints) as history:
        before = eventually("three intervals", lambda: found if len(found := list(history.read(name))) >= 3 else None)
        cluster.kill(name)
        missing: dict[str, MinkaError] = {}
        rest = list(history.read_all(on_missing=missing.__setitem__))
        assert set(missing) == {name}
        assert missing[name].code in (Code.UNREACHABLE, Code.DEADLINE_EXCEEDED)
        assert {one.node for one in rest} == set(cluster.nodes) - {name}
    cluster.restart(name)
    with Control(cluster.endpoints) as control, HistoryClient(cluster.endpoints) as history:
        wait_settled(control, live=3)
        eventually("an interval since the restart", lambda: bool(list(history.read(name, before[-1].start_ms + 1))))
        after = list(history.read(name))
        assert after[: len(before)] == before
        one = before[len(before) // 2]
        assert list(history.read(name, one.start_ms, one.start_ms + 1)) == [one]
        with pytest.raises(MinkaError) as refused:
            list(history.read("nowhere"))
        assert refused.value.code is Code.UNKNOWN_NODE
