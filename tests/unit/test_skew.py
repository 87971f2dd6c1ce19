"""The uneven load that minkactl reports, and the commands that it proposes: to even out load, and to start a node."""

from collections.abc import Mapping, Sequence

import pytest

from minka import running_playground
from minka.v1.admin_pb2 import GetStatusResponse
from minka.v1.cluster_pb2 import Keyspace, Node, NodeState, Operation, Partition, PartitionState
from minkactl.skew import ELECT, REASSIGN, skews
from minkactl.starting import look_command, renew_command, start_command
from tests.summaries import summarized

LIVE, FAILED = NodeState.NODE_STATE_LIVE, NodeState.NODE_STATE_FAILED


def status(
    replicas: Sequence[str], *, leaders: Sequence[str] = (), zones: Mapping[str, str] | None = None
) -> GetStatusResponse:
    """A status of nodes a, b, c, d. Each item of `replicas` is a partition: "ab" has replicas on a and b, and a leads
    it.
    """
    found = GetStatusResponse()
    for name in "abcd":
        found.table.nodes.append(Node(id=name, state=LIVE, zone=(zones or {}).get(name, "")))
    found.table.keyspaces.append(Keyspace(id=1, name="flights", replicas=len(replicas[0])))
    for number, held in enumerate(replicas, 1):
        leader = leaders[number - 1] if leaders else held[0]
        found.table.partitions.append(
            Partition(
                id=number, keyspace_id=1, replicas=held, isr=held, leader=leader,
                state=PartitionState.PARTITION_STATE_ONLINE,
            )
        )  # fmt: skip
    return found


def told(found: GetStatusResponse) -> list[tuple[str, str]]:
    return list(skews(summarized(found)))


def test_a_node_with_4_of_64_partitions_is_a_problem() -> None:
    uneven = status(["a"] * 60 + ["b"] * 60 + ["c"] * 60 + ["d"] * 4)
    assert told(uneven) == [("replicas are spread unevenly: 4 (d) to 60 (c) a node", REASSIGN)]
    assert told(status(["a"] * 46 + ["b"] * 46 + ["c"] * 46 + ["d"] * 46)) == []


def test_a_small_difference_is_not_a_problem() -> None:
    assert told(status(["a"] * 18 + ["b"] * 22 + ["c"] * 16 + ["d"] * 20)) == []
    assert told(status(["a"] * 4)) == [], "a difference between so few partitions isn't a problem"


def test_an_election_is_advised_if_it_evens_leaders() -> None:
    replicas = ["ab", "bc", "cd", "da"] * 18
    uneven = status(replicas, leaders=[next(n for n in held if n in "ac") for held in replicas])
    assert told(uneven) == [("leaders are spread unevenly: 0 (b) to 36 (c) a node", ELECT)]
    for partition in uneven.table.partitions:
        partition.isr[:] = [partition.leader]
    assert told(uneven) == [], "a replica that isn't in sync can't be elected"


def test_a_reassignment_is_advised_if_no_election_evens_leaders() -> None:
    evenly_held = status(["ab", "ad", "cb", "cd"] * 12)
    assert told(evenly_held) == [("leaders are spread unevenly: 0 (b) to 24 (c) a node", REASSIGN)]


def two_keyspaces(first: Sequence[str], second: Sequence[str]) -> GetStatusResponse:
    """Like `status`, but with two keyspaces: `first` has the partitions of one, and `second` those of the other."""
    found = status([*first, *second])
    found.table.keyspaces.append(Keyspace(id=2, name="fares", replicas=len(second[0])))
    for partition in found.table.partitions[len(first) :]:
        partition.keyspace_id = 2
    return found


def test_an_uneven_keyspace_is_a_problem_although_the_total_is_even() -> None:
    leads = two_keyspaces(["ab", "ad", "cb", "cd"] * 6, ["ba", "bc", "da", "dc"] * 6)
    assert [text for text, _ in told(leads)] == [
        "leaders are spread unevenly: 0 (b) to 12 (c) a node in flights",
        "leaders are spread unevenly: 0 (a) to 12 (d) a node in fares",
    ]
    assert {command for _, command in told(leads)} == {f"{REASSIGN} --keyspace flights", f"{REASSIGN} --keyspace fares"}
    for partition in leads.table.partitions:
        if "".join(partition.replicas) in ("ad", "cb"):
            partition.replicas[:] = [*reversed(partition.replicas)]
    leads.table.keyspaces[1].max_ops = 100
    assert told(leads) == [
        ("leaders are spread unevenly: 0 (b) to 12 (c) a node in flights", f"{ELECT} --keyspace flights")
    ], "fares isn't reported: a keyspace with `max_ops` is evened by its load"
    held = two_keyspaces(["a", "b"] * 10, ["c", "d"] * 10)
    assert (
        "replicas are spread unevenly: 0 (c) to 10 (b) a node in flights",
        f"{REASSIGN} --keyspace flights",
    ) in told(held)


def test_differences_that_zones_force_are_not_a_problem() -> None:
    zones = {"a": "x", "b": "y", "c": "y", "d": "y"}
    assert told(status(["ab", "ac", "ad", "ba", "ca", "da"] * 12, zones=zones)) == []


def test_differences_by_weight_are_not_a_problem() -> None:
    heavy = status(["a"] * 60 + ["b"] * 20 + ["c"] * 20 + ["d"] * 20)
    assert told(heavy) != []
    heavy.table.nodes[0].weight = 3
    assert told(heavy) == []


@pytest.mark.parametrize("change", ["a node failed", "an operation runs", "a partition is offline"])
def test_uneven_load_is_not_reported_beside_worse_problems(change: str) -> None:
    uneven = status(["a"] * 60 + ["b"] * 60 + ["c"] * 60 + ["d"] * 4)
    if change == "a node failed":
        uneven.table.nodes[1].state = FAILED
    elif change == "an operation runs":
        uneven.running.append(Operation(id=1))
    else:
        uneven.table.partitions[0].state = PartitionState.PARTITION_STATE_OFFLINE
    assert told(uneven) == []


def test_the_command_that_starts_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    playground = running_playground.Playground(1, "socket", ("127.0.0.1:20001",))
    monkeypatch.setattr(running_playground, "read", lambda: playground)
    assert start_command("a", "10.0.0.7:7400", True) == "ssh 10.0.0.7 systemctl start minkad"
    assert start_command("a", "10.0.0.7:7400", False) == "ssh 10.0.0.7 systemctl restart minkad"
    assert start_command("a", "[fd00::7]:7400", True) == "ssh fd00::7 systemctl start minkad"
    assert start_command("a", "127.0.0.1:7400", True) == "systemctl start minkad  # a, on this machine"
    assert start_command("a", "127.0.0.1:20001", True) == "minkactl playground restart a"
    hangs = "minkactl playground kill a && minkactl playground restart a"
    assert start_command("a", "127.0.0.1:20001", False) == hangs
    renewed = "systemctl reload minkad  # once tls.cert there or tls.ca here is renewed"
    assert renew_command("a", "10.0.0.7:7400") == f"ssh 10.0.0.7 {renewed}"
    here = "systemctl reload minkad  # a, on this machine, once tls.cert there or tls.ca here is renewed"
    assert renew_command("a", "127.0.0.1:7400") == here
    assert look_command("a", "db-1.example:7400") == "ssh db-1.example journalctl -u minkad -n 50"
