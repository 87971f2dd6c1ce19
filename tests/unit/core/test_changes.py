"""A client with an older version of the table gets the later changes, and makes the present table from both."""

import pytest

from minka.cluster.routing_table import RoutingTable
from minka.cluster.table_changes import with_changes
from minka.v1.admin_pb2 import RemoveNodeRequest
from minka.v1.cluster_pb2 import PartitionTable, TableChanges
from minka.v1.coordinator_pb2 import LeaveRequest
from minkad.core.state import State, row_changes
from tests.unit.core.model import Controller
from tests.unit.core.ranges import by_ranges, finish, merge, rows_of, split


def busy_cluster() -> tuple[Controller, dict[int, PartitionTable]]:
    """Make a cluster that has had joins, splits, merges and moves. Returns the cluster, and the table at each earlier
    version.
    """
    c = Controller()
    tables: dict[int, PartitionTable] = {}

    def note() -> None:
        tables[c.state.version] = c.state.table()

    c.after_record = note
    c.register("athens", "byzantium", "cyrene")
    c.keyspace("flights", 30, replicas=2)
    by_ranges(c, [b"d", b"m"])
    c.register("ephesus")
    c.reassign()
    c.settle()
    split(c, b"f")
    finish(c)
    c.settle()
    merge(c, rows_of(c)[1].start_key)
    c.settle()
    finish(c)
    c.settle()
    c.begin(c.plan(drain=["athens"]))
    c.settle()
    c.run(LeaveRequest(node_id="athens", incarnation="1"))
    c.run(RemoveNodeRequest(node="athens"))
    return c, tables


def table_since(state: State, version: int) -> TableChanges | None:
    """Return the changes since an older version, with the partitions; None if the state doesn't remember them."""
    found = state.table_since_in_pieces(version)
    if found is None:
        return None
    changes, rows = found
    for some in rows:
        changes.partitions.extend(some)
    return changes


def test_changes_since_any_version_give_the_present_table() -> None:
    c, tables = busy_cluster()
    now = c.state.table()
    assert len(tables) > 50
    for version, table in tables.items():
        since = table_since(c.state, version)
        assert since is not None
        assert with_changes(table, since) == now


def test_a_client_that_applies_changes_routes_as_by_the_whole_table() -> None:
    c, tables = busy_cluster()
    keys = [b"%d" % number for number in range(200)] + [b"a", b"e", b"g", b"z"]
    whole = RoutingTable()
    whole.replace(c.state.table())
    for version, table in tables.items():
        routes, since = RoutingTable(), table_since(c.state, version)
        routes.replace(table)
        assert since is not None
        routes.change(since)
        assert (routes.version, routes.addresses()) == (whole.version, whole.addresses())
        for name in ("flights", "authors"):
            one, other = routes.keyspace(name), whole.keyspace(name)
            for key in keys:
                assert one.route(one.place(key), [key]) == other.route(other.place(key), [key])


def test_the_changes_after_one_move_are_one_row() -> None:
    c = Controller()
    c.register("athens", "byzantium")
    row = c.keyspace("flights", 1000)[0]
    before = c.state.version
    c.begin(c.plan(partitions={row.id: ["byzantium" if row.leader == "athens" else "athens"]}))
    c.settle()
    since = table_since(c.state, before)
    assert since is not None
    assert (len(since.partitions), len(since.nodes), len(since.keyspaces)) == (1, 0, 0)
    assert table_since(c.state, c.state.version) is not None


def test_the_memory_for_changes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_changes, "KEPT_ROWS", 3)
    c = Controller()
    c.register("athens", "byzantium", "cyrene", "ephesus")
    now = c.state.version
    assert [table_since(c.state, version) is None for version in (now - 4, now - 3, now, now + 1)] == [
        True, False, False, True,
    ]  # fmt: skip


def test_a_restored_state_remembers_no_changes() -> None:
    c, _ = busy_cluster()
    state = State.from_snapshot(c.state.to_snapshot())
    assert table_since(state, state.version - 1) is None
    assert table_since(state, state.version) is not None
