"""A node's health, and the gauges that it derives from its copy of the table."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minka.v1.cluster_pb2 import Keyspace, Node, NodeState, Partition, PartitionState
from minka.v1.coordinator_pb2 import DiskSpace
from minka.v1.raft_pb2 import ConfState
from minkad.coordinator.table_counting import TableCounting
from minkad.core.clearance import Clearance
from minkad.core.state import State
from minkad.core.state.row_changes import Changed
from minkad.http.metrics import Lag
from minkad.node.health import Health
from minkad.process.clock import ClusterClock
from minkad.process.telemetry import Telemetry

NOW, LATER = 10.0, 11.0  # seconds of a monotonic clock
ONLINE, OFFLINE = PartitionState.PARTITION_STATE_ONLINE, PartitionState.PARTITION_STATE_OFFLINE


def partition(id_: int, isr: str, leader: str = "a", **more: Any) -> Partition:
    return Partition(id=id_, keyspace_id=1, replicas="abc", isr=isr, leader=leader, **{"state": ONLINE, **more})


def health(state: State) -> Health:
    """The health of the node a."""
    raft = SimpleNamespace(basic_status=lambda: SimpleNamespace(id=1, term=1, commit=2))
    driver = SimpleNamespace(raw=raft, applied_index=2, conf_state=ConfState())
    coordinator = SimpleNamespace(state=state, active=None, driver=driver, leader=lambda: None)
    clearance = Clearance()
    clock = ClusterClock(lambda: 0, lambda: 0)
    member = SimpleNamespace(node=Node(id="a"), clearance=clearance, clock=clock, withheld="")
    member.running_migrations = lambda: 0
    member.registered, member.has_clearance = asyncio.Event(), lambda: clearance.holds(LATER)
    reporting = SimpleNamespace(follower_lags=lambda: {"b": (3, 0.5)}, serving=lambda: 0)
    reporting.copies, reporting.stale_reads = lambda partitions, stories: [], lambda: None
    manager = SimpleNamespace(damaged=list, reporting=reporting)
    disk = SimpleNamespace(space=DiskSpace(total_bytes=1000, free_bytes=40), is_low=True)
    log_db = SimpleNamespace(unsynced_s=lambda: 0.25)
    counting = TableCounting(cast(Any, coordinator))
    transport, watch = SimpleNamespace(last_heard=lambda raft_id: None), SimpleNamespace(unanswered=dict)
    parts = (coordinator, member, manager, Telemetry(), 0, disk, log_db, transport, counting, watch)
    return Health(*cast(Any, parts))


def test_the_gauges_of_the_disk() -> None:
    now = health(State()).snapshot()
    assert (now.disk_total_bytes, now.disk_free_bytes, now.is_disk_low, now.unsynced_seconds) == (1000, 40, True, 0.25)


def test_a_clearance_that_ends_during_the_answer_is_either_held_or_lapsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minkad.node.health.boottime", lambda: NOW)
    described = health(State())
    described._member.clearance.grant(0.0, (NOW + LATER) / 2)
    answer = described.describe()
    assert answer.has_clearance
    monkeypatch.setattr("minkad.node.health.boottime", lambda: LATER)
    answer = described.describe()
    assert (answer.has_clearance, answer.clearance_lapsed_ms) == (False, 500)
    monkeypatch.setattr("minkad.node.health.boottime", lambda: (NOW + LATER) / 2 + 1e-4)
    assert described.describe().clearance_lapsed_ms == 1, "0 would mean that the clearance ends just now"


async def test_the_gauges_of_replicas_out_of_sync_and_of_elections() -> None:
    state = State()
    state.keyspaces[1] = Keyspace(id=1, name="flights", replicas=3, min_insync=2)
    state.nodes["a"] = Node(id="a", state=NodeState.NODE_STATE_LIVE)
    rows = [
        partition(1, "abc", leader_epoch=4),
        partition(2, "ab", leader_epoch=2, unclean_elections=1),
        partition(3, "b", leader="", state=OFFLINE, leader_epoch=1),
    ]
    state.partitions.update((row.id, row) for row in rows)
    seen = health(state)
    await seen.refresh()
    now = seen.snapshot()
    assert (now.under_replicated, now.missing_in_sync, now.under_min_insync) == (2, 3, 1)
    assert (now.elections, now.unclean_elections) == (7, 1)
    assert now.partitions == {"new": 0, "assigned": 0, "online": 2, "offline": 1}
    assert (now.nodes["live"], now.nodes["failed"]) == (1, 0)
    assert now.replicas == {"leader": 2, "follower": 1}
    assert now.lags == {"b": Lag(3, 0.5)}


async def test_the_counters_of_elections_do_not_fall_when_a_partition_goes() -> None:
    state = State()
    state.keyspaces[1] = Keyspace(id=1, name="flights", replicas=3, min_insync=2)
    state.partitions[1] = partition(1, "abc", leader_epoch=4, unclean_elections=2)
    state.partitions[2] = partition(2, "abc", leader_epoch=3)
    seen = health(state)
    await seen.refresh()
    state.version += 1
    state.changes.note(Changed(partitions=frozenset({1, 2, 3})))
    del state.partitions[1]
    state.partitions[2] = partition(2, "ab", leader_epoch=5, unclean_elections=1)
    state.partitions[3] = partition(3, "abc", leader_epoch=1)
    await seen.refresh()
    now = seen.snapshot()
    assert (now.elections, now.unclean_elections) == (10, 3)


async def test_the_table_is_known_once_the_nodes_own_row_has_come() -> None:
    """The answer to the node's registration may come before the Raft entries that the node missed while it was down.
    The node's own row comes after these entries.
    """
    state = State()
    own = health(state)
    own._member.node.incarnation = "this process"
    own._member.registered.set()
    assert not own.knows_table()
    state.nodes["a"] = Node(id="a", incarnation="the one before")
    assert not own.knows_table()
    state.nodes["a"] = Node(id="a", incarnation="this process")
    assert own.knows_table()
    own._member.registered.clear()
    assert not own.knows_table()
