"""The states of partitions and replicas, and the selectors of leaders (Kafka Controller Internals)."""

from itertools import product

import pytest

from minka.v1.cluster_pb2 import Keyspace, Node, NodeState, Partition, PartitionState
from minka.v1.records_pb2 import KeyspaceCreated, PartitionsChanged, Record
from minkad.core.controller.selectors import (
    Live,
    Selection,
    controlled_shutdown_leader_selector,
    new_partition_leader_selector,
    offline_partition_leader_selector,
    preferred_replica_partition_leader_selector,
    reassigned_partition_leader_selector,
)
from minkad.core.state import (
    PARTITION_TRANSITIONS,
    REPLICA_TRANSITIONS,
    NotifyNode,
    PartitionStateName,
    ReplicaStateName,
    State,
)
from minkad.core.state.partition_states import is_valid_partition_change, partition_state
from minkad.core.state.replica_states import invalid_replica_changes, replica_states

P, R = PartitionStateName, ReplicaStateName

# The changes of states that Kafka Controller Internals lists.
VALID_PARTITION = {
    (P.NON_EXISTENT, P.NEW),
    (P.NEW, P.ONLINE),
    (P.ONLINE, P.ONLINE),
    (P.OFFLINE, P.ONLINE),
    (P.NEW, P.OFFLINE),
    (P.ONLINE, P.OFFLINE),
    (P.OFFLINE, P.NON_EXISTENT),
}
VALID_REPLICA = {
    (R.NON_EXISTENT, R.NEW),
    (R.NEW, R.ONLINE),
    (R.ONLINE, R.ONLINE),
    (R.OFFLINE, R.ONLINE),
    (R.NEW, R.OFFLINE),
    (R.ONLINE, R.OFFLINE),
    (R.OFFLINE, R.NON_EXISTENT),
}


def test_states_and_transitions_are_those_of_the_page() -> None:
    assert {(a, b) for a in P for b in PARTITION_TRANSITIONS[a]} == VALID_PARTITION
    assert {(a, b) for a in R for b in REPLICA_TRANSITIONS[a]} == VALID_REPLICA
    assert [s.value for s in P] == ["NonExistentPartition", "NewPartition", "OnlinePartition", "OfflinePartition"]
    assert [s.value for s in R] == ["NonExistentReplica", "NewReplica", "OnlineReplica", "OfflineReplica"]


def row(state: PartitionState.ValueType, epoch: int = 1, **fields: object) -> Partition:
    has_leader = state in (PartitionState.PARTITION_STATE_ASSIGNED, PartitionState.PARTITION_STATE_ONLINE)
    is_new = state == PartitionState.PARTITION_STATE_NEW
    known = {
        "id": 1, "keyspace_id": 1, "replicas": ["a", "b", "c"], "isr": [] if is_new else ["a", "b", "c"],
        "leader": "a" if has_leader else "", "leader_epoch": epoch, "partition_epoch": epoch, "state": state,
    }  # fmt: skip
    return Partition(**(known | fields))  # type: ignore[arg-type]  # the types of the fields differ


ROWS = {
    P.NON_EXISTENT: None,
    P.NEW: row(PartitionState.PARTITION_STATE_NEW),
    P.ONLINE: row(PartitionState.PARTITION_STATE_ONLINE),
    P.OFFLINE: row(PartitionState.PARTITION_STATE_OFFLINE),
}


@pytest.mark.parametrize(("before", "after"), list(product(P, P)))
def test_a_change_of_a_partition_is_checked_against_the_table(
    before: PartitionStateName, after: PartitionStateName
) -> None:
    assert partition_state(ROWS[before]) is before
    expected = before is after or (before, after) in VALID_PARTITION
    assert is_valid_partition_change(ROWS[before], ROWS[after]) is expected


def a_state(old: Partition) -> State:
    state = State()
    state.keyspaces[1] = Keyspace(id=1, name="k", partition_count=1)
    for i, name in enumerate("abcd"):
        state.nodes[name] = Node(id=name, raft_id=i + 1, state=NodeState.NODE_STATE_LIVE)
    state.partitions.put(old)
    return state


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (row(PartitionState.PARTITION_STATE_OFFLINE), row(PartitionState.PARTITION_STATE_NEW, 2, isr=[])),
        (row(PartitionState.PARTITION_STATE_ONLINE), row(PartitionState.PARTITION_STATE_NEW, 2)),
        # A replica may not come online before it is new (NonExistentReplica → OnlineReplica).
        (ROWS[P.ONLINE], row(PartitionState.PARTITION_STATE_ONLINE, 2, replicas=["a", "b", "c", "d"])),
        # A replica that is online may not disappear at once (OnlineReplica → NonExistentReplica).
        (ROWS[P.ONLINE], row(PartitionState.PARTITION_STATE_ONLINE, 2, replicas=["a", "b"], isr=["a", "b"])),
        # A replica that is online may not become new again (OnlineReplica → NewReplica).
        (
            ROWS[P.ONLINE],
            row(
                PartitionState.PARTITION_STATE_ONLINE,
                2,
                isr=["a", "b"],
                target_replicas=["a", "b", "c"],
                adding_replicas=["c"],
            ),
        ),
    ],
)
def test_a_record_with_an_invalid_transition_is_a_bug(old: Partition, new: Partition) -> None:
    state = a_state(old)
    with pytest.raises(AssertionError):
        state.apply(Record(partitions_changed=PartitionsChanged(partitions=[new])))


@pytest.mark.parametrize(
    "fields",
    [
        {"leader": "d"},
        {"isr": []},
        {"isr": ["b", "c"]},
        {"isr": ["a", "d"]},
        {"isr": ["a", "a"]},
        {"successor": "a"},
        {"successor": "d"},
        {"removing_replicas": ["c"]},
        {"adding_replicas": ["b"]},
        {"target_replicas": ["d"]},
        {"leader": "b"},  # without a new leader_epoch
        {"leader_epoch": 0},
        {"partition_epoch": 3},
        {"unclean_elections": 2},
    ],
)
def test_a_record_with_a_contradictory_row_is_a_bug(fields: dict[str, object]) -> None:
    state = a_state(row(PartitionState.PARTITION_STATE_ONLINE))
    new = row(PartitionState.PARTITION_STATE_ONLINE, **({"epoch": 1, "partition_epoch": 2} | fields))  # type: ignore[arg-type]  # as above
    with pytest.raises(AssertionError):
        state.apply(Record(partitions_changed=PartitionsChanged(partitions=[new])))


@pytest.mark.parametrize(
    "state_and_epoch", [(PartitionState.PARTITION_STATE_ONLINE, 1), (PartitionState.PARTITION_STATE_ASSIGNED, 2)]
)
def test_a_created_keyspace_must_have_new_partitions_or_ones_with_their_first_leader(
    state_and_epoch: tuple[PartitionState.ValueType, int],
) -> None:
    state = a_state(row(PartitionState.PARTITION_STATE_ONLINE))
    created = KeyspaceCreated(keyspace=Keyspace(id=2, name="m"))
    state.next_partition_id, state.next_keyspace_id = 2, 2
    created.partitions.append(row(state_and_epoch[0], id=2, keyspace_id=2, epoch=state_and_epoch[1]))
    with pytest.raises(AssertionError):
        state.apply(Record(keyspace_created=created))


def test_the_nodes_that_are_told_of_a_change() -> None:
    """If a partition becomes ONLINE, the controller tells only its leader. It tells all replicas about a hand-over,
    even if the partition was not ONLINE before.
    """
    assigned = row(PartitionState.PARTITION_STATE_ASSIGNED, 1, successor="b")
    online = row(PartitionState.PARTITION_STATE_ONLINE, 2, leader_epoch=1, successor="b")
    handed_over = row(PartitionState.PARTITION_STATE_ONLINE, 2, leader="b")

    def told(new: Partition) -> list[str]:
        changes = Record(partitions_changed=PartitionsChanged(partitions=[new]))
        return [effect.node for effect in a_state(assigned).apply(changes) if isinstance(effect, NotifyNode)]

    assert told(online) == ["a"]
    assert told(handed_over) == ["a", "b", "c"]


def test_the_state_of_a_replica_follows_from_the_rows() -> None:
    state = a_state(row(PartitionState.PARTITION_STATE_ONLINE))
    reassigned = row(
        PartitionState.PARTITION_STATE_ONLINE,
        replicas=["a", "b", "c", "d"],
        target_replicas=["a", "b", "d"],
        adding_replicas=["d"],
    )
    assert replica_states(reassigned, state.nodes).get("d", R.NON_EXISTENT) is R.NEW
    assert replica_states(reassigned, state.nodes).get("a", R.NON_EXISTENT) is R.ONLINE
    assert replica_states(reassigned, state.nodes).get("e", R.NON_EXISTENT) is R.NON_EXISTENT
    assert replica_states(None, state.nodes).get("a", R.NON_EXISTENT) is R.NON_EXISTENT
    state.nodes["d"] = Node(id="d", raft_id=4, state=NodeState.NODE_STATE_FAILED)
    assert replica_states(reassigned, state.nodes).get("d", R.NON_EXISTENT) is R.OFFLINE
    stopped = row(PartitionState.PARTITION_STATE_ONLINE, replicas=["a", "b"], isr=["a", "b"], removing_replicas=["c"])
    assert replica_states(stopped, state.nodes).get("c", R.NON_EXISTENT) is R.OFFLINE
    assert replica_states(ROWS[P.NEW], state.nodes).get("a", R.NON_EXISTENT) is R.NEW
    assert invalid_replica_changes(ROWS[P.ONLINE], stopped, state.nodes) == []


# Selectors choose a leader. In these tests, the replicas are a, b and c, the leader was a, and a and b are in sync.

ALL = Live(frozenset("abcd"))
AB = row(PartitionState.PARTITION_STATE_ONLINE, isr=["a", "b"])


def live(up: str, draining: str = "") -> Live:
    return Live(frozenset(up), frozenset(draining))


@pytest.mark.parametrize(
    ("up", "unclean", "selected"),
    [
        (live("bc"), False, Selection("b", ("a", "b"))),
        (live("abc", "a"), False, Selection("b", ("a", "b"))),
        (live("a", "a"), False, Selection("a", ("a", "b"))),
        (live("c"), False, None),
        (live("c"), True, Selection("c", ("c",), unclean=True)),
        (live("bc"), True, Selection("b", ("a", "b"))),
        (live("d"), True, None),
    ],
)
def test_offline_partition_leader_selector(up: Live, unclean: bool, selected: Selection | None) -> None:
    assert offline_partition_leader_selector(AB, up, allow_unclean=unclean) == selected


def test_an_unclean_election_never_chooses_a_replica_without_data() -> None:
    new = row(
        PartitionState.PARTITION_STATE_ONLINE,
        isr=["a"],
        replicas=["a", "b"],
        target_replicas=["b"],
        adding_replicas=["b"],
    )
    assert offline_partition_leader_selector(new, live("b"), allow_unclean=True) is None


def test_new_partition_leader_selector() -> None:
    new = ROWS[P.NEW]
    assert new is not None
    assert new_partition_leader_selector(new, live("bc")) == Selection("b", ("b", "c"))
    assert new_partition_leader_selector(new, live("d")) is None


def test_reassigned_partition_leader_selector() -> None:
    moving = row(
        PartitionState.PARTITION_STATE_ONLINE,
        replicas=["a", "b", "c", "d"],
        target_replicas=["d", "c"],
        isr=["a", "b", "c", "d"],
    )
    assert reassigned_partition_leader_selector(moving, ALL) == Selection("d", ("a", "b", "c", "d"))
    assert reassigned_partition_leader_selector(moving, live("abc")) == Selection("c", ("a", "b", "c", "d"))
    assert reassigned_partition_leader_selector(moving, live("ab")) is None


def test_preferred_replica_partition_leader_selector() -> None:
    led_by_b = row(PartitionState.PARTITION_STATE_ONLINE, leader="b", isr=["b", "a"])
    assert preferred_replica_partition_leader_selector(led_by_b, ALL) == Selection("a", ("b", "a"))
    assert preferred_replica_partition_leader_selector(led_by_b, live("bc")) is None
    assert preferred_replica_partition_leader_selector(led_by_b, live("abc", "a")) is None
    out_of_sync = row(PartitionState.PARTITION_STATE_ONLINE, leader="b", isr=["b", "c"])
    assert preferred_replica_partition_leader_selector(out_of_sync, ALL) is None


def test_controlled_shutdown_leader_selector() -> None:
    assert controlled_shutdown_leader_selector(AB, ALL, ["a"]) == Selection("b", ("b",))
    assert controlled_shutdown_leader_selector(AB, live("ac"), ["a"]) is None
    assert controlled_shutdown_leader_selector(AB, live("abc", "ab"), ["a"]) is None
