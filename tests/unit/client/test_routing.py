"""The routing table keeps the newest row of each partition, in whatever order the rows arrive."""

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.cluster.hashing import md5, murmur3
from minka.cluster.key_ranges import KeyRange
from minka.cluster.routing_table import HashRoutes, RangeRoutes, Route, RoutingTable
from minka.errors import Code, MinkaError
from minka.v1 import cluster_pb2
from minka.v1.cluster_pb2 import (
    HASH_FUNCTION_MD5,
    HASH_FUNCTION_MURMUR3,
    PARTITIONING_RANGES,
    Keyspace,
    Node,
    Partition,
    PartitionTable,
)

NODES = ("athens", "byzantium", "cyrene")


def _row(slot: int, leader: str, epoch: int = 1, keyspace: int = 1) -> Partition:
    return Partition(
        id=100 * keyspace + slot,
        keyspace_id=keyspace,
        slot=slot,
        leader=leader,
        partition_epoch=epoch,
        generation=epoch,
    )


def _table(
    version: int, rows: Sequence[Partition], *, cluster: str = "c1", names: Sequence[str] = NODES
) -> PartitionTable:
    return PartitionTable(
        cluster=cluster_pb2.Cluster(id=cluster, name=cluster),
        version=version,
        nodes=[Node(id=name, address=f"{name}:7000") for name in names],
        keyspaces=[
            Keyspace(id=1, name="flights", partition_count=3, hash=HASH_FUNCTION_MD5),
            Keyspace(id=2, name="crews", partition_count=7, hash=HASH_FUNCTION_MURMUR3),
        ],
        partitions=rows,
    )


def _by_hash(table: RoutingTable, name: str = "flights") -> HashRoutes:
    routes = table.keyspace(name)
    assert isinstance(routes, HashRoutes)
    return routes


def _leaders(table: RoutingTable) -> list[str | None]:
    return [None if route is None else route.leader for route in _by_hash(table).routes]


def test_a_key_is_routed_by_its_slot() -> None:
    table = RoutingTable()
    assert table.replace(_table(5, [_row(slot, NODES[slot]) for slot in range(3)]))
    flights = _by_hash(table)
    found = {}
    for name in (b"Alice", b"Bob", b"Mary", b"Philip"):
        route = flights.routes[flights.place(name)]
        assert route is not None
        found[name] = (route.partition_id, table.addresses_of(route.leader)[0])
    # The first table of the pattern Fixed Partitions has these partitions for these names: 0, 1, 2 and 2.
    assert found == {
        b"Alice": (100, "athens:7000"),
        b"Bob": (101, "byzantium:7000"),
        b"Mary": (102, "cyrene:7000"),
        b"Philip": (102, "cyrene:7000"),
    }


def test_rows_from_an_older_table_lower_the_version() -> None:
    """If the client kept the higher version, it would never ask for the changes between the two versions."""
    table = RoutingTable()
    assert table.add(_table(5, [_row(0, "athens")]))
    assert table.version == 5
    assert table.add(_table(3, [_row(1, "byzantium")]))
    assert table.version == 3
    assert table.add(_table(9, [_row(2, "cyrene")]))
    assert table.version == 3
    assert _leaders(table) == ["athens", "byzantium", "cyrene"]
    assert not table.add(PartitionTable())
    assert table.version == 3, "an empty table, as of a node that has just started, changes nothing"
    with pytest.raises(MinkaError, match="CLUSTER_MISMATCH"):
        table.add(_table(9, [], cluster="c2"))


def test_routes_share_equal_objects() -> None:
    rows = [Partition(id=slot, keyspace_id=1, slot=slot, leader="a" * 9, isr=["a" * 9, "b" * 9]) for slot in (0, 1)]
    table = RoutingTable()
    table.replace(_table(1, [Partition.FromString(row.SerializeToString()) for row in rows]))
    first, second, _ = _by_hash(table).routes
    assert first is not None
    assert second is not None
    assert first.readable is second.readable
    assert first.leader is second.leader is first.readable[0]
    assert first.range is second.range


@given(st.dictionaries(st.binary(max_size=20), st.none() | st.binary(max_size=5)))
def test_buckets_hold_each_pair_once_in_its_slot_in_order(pairs: dict[bytes, bytes | None]) -> None:
    table = RoutingTable()
    table.replace(_table(1, []))
    for name, digest, count in (("flights", md5, 3), ("crews", murmur3, 7)):
        routes = table.keyspace(name)
        expected = {
            slot: [key for key in pairs if digest(key) % count == slot]
            for slot in {digest(key) % count for key in pairs}
        }
        assert dict(routes.key_buckets(pairs)) == expected
        buckets = routes.pair_buckets(pairs)
        assert {bucket.place: bucket.keys for bucket in buckets} == expected
        assert all(bucket.values == [pairs[key] for key in bucket.keys] for bucket in buckets)
        assert all(routes.place(key) == slot for slot, keys in expected.items() for key in keys)


def test_the_highest_epoch_wins_in_any_order() -> None:
    arrivals: list[Callable[[RoutingTable], bool]] = [
        lambda table: table.replace(_table(5, [_row(0, "athens", 1), _row(1, "athens", 4)])),
        lambda table: table.update([_row(0, "byzantium", 3)]),
        lambda table: table.replace(_table(4, [_row(0, "cyrene", 2), _row(1, "cyrene", 3)])),
    ]
    for order in itertools.permutations(arrivals):
        table = RoutingTable()
        table.replace(_table(1, []))
        for arrive in order:
            arrive(table)
        assert _leaders(table) == ["byzantium", "athens", None]
        assert table.version == 5


def test_update_says_whether_anything_changed() -> None:
    table = RoutingTable()
    assert table.replace(_table(5, [_row(0, "athens", 2)]))
    assert not table.replace(_table(6, [_row(0, "athens", 2)]))
    assert not table.update([_row(0, "byzantium", 1)])
    assert not table.update([_row(0, "byzantium", 2)])
    assert table.update([_row(0, "byzantium", 3)])


def test_an_older_table_does_not_overwrite_addresses() -> None:
    table = RoutingTable()
    table.replace(_table(5, [], names=["athens", "ephesus"]))
    table.replace(_table(4, [], names=["athens"]))
    assert table.addresses() == ["athens:7000", "ephesus:7000"]
    assert table.addresses_of("cyrene") == ("", "")


def test_a_row_of_an_unknown_keyspace_is_left_for_the_next_whole_table() -> None:
    table = RoutingTable()
    table.replace(_table(5, []))
    assert not table.update([_row(0, "athens", keyspace=9)])


def test_an_offline_partition_has_a_route_without_leader() -> None:
    table = RoutingTable()
    table.replace(_table(5, [_row(0, "athens", 1)]))
    assert table.update([_row(0, "", 2)])
    assert _leaders(table) == ["", None, None]


def test_another_clusters_table_is_refused() -> None:
    table = RoutingTable()
    table.replace(_table(5, []))
    with pytest.raises(MinkaError) as caught:
        table.replace(_table(6, [_row(0, "athens")], cluster="c2"))
    assert caught.value.code is Code.CLUSTER_MISMATCH
    assert table.version == 5


def test_the_error_about_an_unknown_keyspace_lists_the_known_ones() -> None:
    table = RoutingTable()
    with pytest.raises(MinkaError, match="the cluster has none yet"):
        table.keyspace("flight")
    table.replace(_table(5, []))
    with pytest.raises(MinkaError, match="there is no keyspace 'flight'; there are: crews, flights") as caught:
        table.keyspace("flight")
    assert caught.value.code is Code.UNKNOWN_KEYSPACE


def test_a_row_outside_of_its_keyspace_is_refused() -> None:
    table = RoutingTable()
    table.replace(_table(5, []))
    with pytest.raises(MinkaError, match="slot 3 of 3"):
        table.update([_row(3, "athens")])


# Keyspaces by ranges


def _authors(*rows: tuple[int, bytes, bytes, int]) -> RoutingTable:
    """A table of a keyspace by ranges with these partitions: (id, start, end, generation)."""
    table = RoutingTable()
    table.replace(
        PartitionTable(
            cluster=cluster_pb2.Cluster(id="c1"),
            version=1,
            nodes=[Node(id="athens", address="athens:7000")],
            keyspaces=[Keyspace(id=7, name="authors", partitioning=PARTITIONING_RANGES)],
            partitions=[_range(*row) for row in rows],
        )
    )
    return table


def _range(id_: int, start: bytes, end: bytes, generation: int, epoch: int = 0) -> Partition:
    return Partition(
        id=id_, keyspace_id=7, slot=id_, start_key=start, end_key=end, leader="athens", generation=generation,
        partition_epoch=epoch or generation,
    )  # fmt: skip


def _by_ranges(table: RoutingTable) -> RangeRoutes:
    routes = table.keyspace("authors")
    assert isinstance(routes, RangeRoutes)
    return routes


def _id(route: Route | None) -> int | None:
    return None if route is None else route.partition_id


def test_names_of_authors_by_range() -> None:
    """The ranges of the pattern Key-Range Partitions are ["", b), [b, d) and [d, "")."""
    routes = _by_ranges(_authors((1, b"", b"b", 1), (2, b"b", b"d", 1), (3, b"d", b"", 1)))
    found = {name: _id(routes.route(0, [name])) for name in (b"\x00", b"alice", b"b", b"bob", b"c", b"d", b"mary")}
    assert found == {b"\x00": 1, b"alice": 1, b"b": 2, b"bob": 2, b"c": 2, b"d": 3, b"mary": 3}
    assert routes.overlapping(KeyRange(b"a", b"c")) == [KeyRange(b"a", b"b"), KeyRange(b"b", b"c")]
    assert routes.overlapping(KeyRange(b"b", b"d")) == [KeyRange(b"b", b"d")]
    assert routes.overlapping(KeyRange()) == [KeyRange(b"", b"b"), KeyRange(b"b", b"d"), KeyRange(b"d", b"")]
    assert [_id(routes.route_below(end)) for end in (b"a", b"b", b"b\x00", b"d", b"")] == [1, 1, 2, 2, 3]


def test_the_rows_of_both_halves_of_a_split_may_come_in_any_order() -> None:
    parent, child = _range(1, b"", b"m", 2), _range(2, b"m", b"", 2)
    table = _authors((1, b"", b"", 1))
    assert table.update([child])
    routes = _by_ranges(table)
    assert [_id(routes.route(0, [key])) for key in (b"a", b"m", b"z")] == [1, 2, 2]
    assert table.update([parent])
    assert not table.update([parent, child])
    assert [_id(routes.route(0, [key])) for key in (b"a", b"m", b"z")] == [1, 2, 2]

    table = _authors((1, b"", b"", 1))
    table.update([parent])
    routes = _by_ranges(table)
    assert [_id(routes.route(0, [key])) for key in (b"a", b"m", b"z")] == [1, None, None]
    assert routes.route_below(b"") is None
    assert routes.route_below(b"n") is None
    assert _id(routes.route_below(b"m")) == 1
    assert not routes.belong_together([b"a", b"z"])
    assert routes.belong_together([b"m", b"z"])
    table.update([child])
    assert [_id(routes.route(0, [key])) for key in (b"a", b"m", b"z")] == [1, 2, 2]


def test_a_partition_that_was_merged_into_another_is_dropped() -> None:
    table = _authors((1, b"", b"b", 1), (2, b"b", b"d", 1), (3, b"d", b"", 1))
    routes = _by_ranges(table)
    late = _range(2, b"b", b"d", 1, epoch=7)
    assert table.update([_range(1, b"", b"d", 2)])
    assert [_id(routes.route(0, [key])) for key in (b"a", b"b", b"c", b"d")] == [1, 1, 1, 3]
    assert not table.update([late])
    assert routes.overlapping(KeyRange()) == [KeyRange(b"", b"d"), KeyRange(b"d", b"")]
    assert table.update([_range(4, b"b", b"d", 3)])
    assert [_id(routes.route(0, [key])) for key in (b"a", b"b", b"c", b"d")] == [1, 4, 4, 3]
    assert not table.update([late])


@given(st.data())
def test_any_history_of_splits_and_merges_in_any_order(data: st.DataObject) -> None:
    """A client gets old and new rows in any order. In the end, each key goes to the partition that has it now."""
    now, said = [_range(1, b"", b"", 1)], [_range(1, b"", b"", 1)]
    for number in range(data.draw(st.integers(1, 12))):
        place = data.draw(st.integers(0, len(now) - 1))
        row = now[place]
        if place + 1 < len(now) and data.draw(st.booleans()):
            behind = now.pop(place + 1)
            generation = max(row.generation, behind.generation) + 1
            made = [_range(row.id, row.start_key, behind.end_key, generation, number + 2)]
            # After a merge, a client may also get a row of the partition that was removed, with the new generation.
            said.append(_range(behind.id, behind.start_key, behind.end_key, generation, number + 2))
        else:
            key = bytes([data.draw(st.integers(1, 255))])
            if not KeyRange(row.start_key, row.end_key).contains(key) or key == row.start_key:
                continue
            made = [
                _range(row.id, row.start_key, key, row.generation + 1, number + 2),
                _range(number + 100, key, row.end_key, row.generation + 1),
            ]
        now[place : place + 1] = made
        said += made
    heard = data.draw(st.lists(st.sampled_from(said), max_size=20))
    table = _authors((1, b"", b"", 1))
    for row in [*heard, *data.draw(st.permutations(now)), *heard]:
        table.update([row])
    routes = _by_ranges(table)
    for byte in range(256):
        key = bytes([byte])
        owner = next(row for row in now if KeyRange(row.start_key, row.end_key).contains(key))
        assert _id(routes.route(0, [key])) == owner.id
    assert routes.overlapping(KeyRange()) == [KeyRange(row.start_key, row.end_key) for row in now]


@given(
    st.lists(st.binary(min_size=1, max_size=2), unique=True, max_size=6),
    st.dictionaries(st.binary(max_size=3), st.binary(max_size=1)),
)
def test_buckets_by_range_hold_each_pair_once(points: list[bytes], pairs: dict[bytes, bytes | None]) -> None:
    bounds = [b"", *sorted(points), b""]
    rows = [(i, start, end, 1) for i, (start, end) in enumerate(itertools.pairwise(bounds), 1)]
    routes = _by_ranges(_authors(*rows))
    buckets = routes.pair_buckets(pairs)
    assert {key: value for b in buckets for key, value in zip(b.keys, b.values, strict=True)} == pairs
    assert sum(len(bucket.keys) for bucket in buckets) == len(pairs)
    for bucket in buckets:
        route = routes.route(bucket.place, bucket.keys)
        assert route is not None
        assert all(route.range.contains(key) for key in bucket.keys)
        assert routes.belong_together(bucket.keys)
    assert len({bucket.place for bucket in buckets}) == len(buckets)
