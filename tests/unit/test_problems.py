"""The problems about zones and clocks that `minkactl status` reports."""

from collections.abc import Sequence
from typing import Any

import grpc
from grpc.aio import Metadata

from minka.engine.grpc_calls import error_from_call
from minka.v1.admin_pb2 import DescribeNodeResponse, GetStatusResponse, NodeStatus, SeatMove
from minka.v1.cluster_pb2 import Keyspace, Node, NodeState, Partition, PartitionState
from minkactl.problems import problems
from minkactl.survey import Report, Survey, failed
from minkactl.zones import zone_rows
from tests.summaries import summarized

LIVE, FAILED = NodeState.NODE_STATE_LIVE, NodeState.NODE_STATE_FAILED


def status(zones: str, voters: str, *, failed: str = "", isr: Sequence[str] = ()) -> GetStatusResponse:
    """A status of nodes a, b, c, … in these zones. Each item of `isr` is a partition's in-sync set, leader first."""
    found = GetStatusResponse(served_by="a", from_controller=True, has_clearance=True)
    found.table.cluster.id = "c-1"
    found.coordinator.voters.extend(voters)
    found.table.keyspaces.append(Keyspace(id=1, name="flights", replicas=3, min_insync=2))
    for name, zone in zip("abcdef", zones, strict=False):
        state = FAILED if name in failed else LIVE
        found.table.nodes.append(Node(id=name, zone=zone, state=state, address=f"10.0.0.{ord(name)}:7400"))
        found.nodes.append(NodeStatus(node_id=name, heartbeat_age_ms=10))
    for number, nodes in enumerate(isr, 1):
        online = PartitionState.PARTITION_STATE_ONLINE
        row = Partition(id=number, keyspace_id=1, replicas=nodes, isr=nodes, leader=nodes[0], state=online)
        found.table.partitions.append(row)
    return found


def told(found: GetStatusResponse) -> list[Any]:
    """The reported problems, without those about failed nodes."""
    answer = DescribeNodeResponse(cluster_id="c-1", has_clearance=True)
    up = [node.id for node in found.table.nodes if node.state == LIVE]
    reports = {node.id: Report(answer if node.id in up else None) for node in found.table.nodes}
    rows = problems(Survey(summarized(found), reports, 1_700_000_000_000))
    return [row for row in rows if " failed at " not in row["problem"]]


def test_the_consequences_of_the_end_of_each_zone() -> None:
    rows = zone_rows(summarized(status("xxyz", "abc", isr=["acd", "abd", "abc", "ab"])))
    assert [(row["zone"], row["live"], row["voters"], row["ends"]) for row in rows] == [
        ("x", 2, ["a", "b"], "the quorum: nothing would be served, 1 partition (OFFLINE), writes to 2 partitions"),
        ("y", 1, ["c"], "nothing"),
        ("z", 1, [], "nothing"),
    ]
    assert zone_rows(summarized(status("xxx", "abc"))) == [], "there is only one"


def test_a_voter_that_is_down_does_not_count_as_left() -> None:
    rows = zone_rows(summarized(status("xyz", "abc", failed="b")))
    assert [row["ends_quorum"] for row in rows] == [True, False, True]


def test_a_zone_with_two_voters_while_another_has_none_is_a_problem() -> None:
    found = status("xxyz", "abc")
    found.coordinator.seat_due.CopyFrom(SeatMove(promote="d", demote="b", live_for_ms=300_000))
    (problem,) = told(found)
    assert problem["problem"] == ("zone x has 2 of 3 voters, zone z has none: the end of zone x would end the quorum")
    assert (problem["severity"], problem["next"]) == ("warning", ["minkactl raft promote d --instead-of b"])
    assert problem["note"] == "The seat moves automatically once d has been live for 5 min 00 s."
    (problem,) = told(status("xxyz", "abc", failed="d"))
    assert problem["note"] == "A seat moves automatically once a node of zone z is live, and all voters are."
    assert told(status("xxyy", "abc")) == [], "two zones can't do better"


def test_a_wrong_clock_is_a_problem() -> None:
    found = status("xxx", "abc")
    for node, ms in zip(found.nodes, (7_000_000, 7_000_300, 3_400_000), strict=True):
        node.clock_ahead_ms = ms
    (problem,) = told(found)
    assert problem["problem"] == "the clock of c is 1 h 00 min behind those of most nodes"
    assert problem["next"] == ["ssh 10.0.0.99 timedatectl set-ntp true"]
    found.nodes[0].ClearField("clock_ahead_ms")
    (problem,) = told(found)
    assert problem["problem"] == "the clocks of b, c differ by 1 h 00 min, and too few agree to say which are right"
    found.nodes[2].clock_ahead_ms = 7_001_000
    assert told(found) == []


def test_one_spare_node_is_enough_to_replace_one_of_two_dead_nodes() -> None:
    found = status("xxxxxx", "abc", failed="de", isr=["abcde"])
    found.table.keyspaces[0].replicas = 5
    answer = DescribeNodeResponse(cluster_id="c-1", has_clearance=True)
    reports = {node.id: Report(answer if node.state == LIVE else None) for node in found.table.nodes}
    otherwise = [row["otherwise"] for row in problems(Survey(summarized(found), reports, 1_700_000_000_000))]
    gone = "If d is gone for good: minkactl drain d --decommission, then minkactl raft remove d"
    assert otherwise[0] == gone, "f takes its place"
    del found.table.nodes[5], found.nodes[5]
    otherwise = [row["otherwise"] for row in problems(Survey(summarized(found), reports, 1_700_000_000_000))]
    assert otherwise[0] == gone.replace("minkactl drain", "let a new node join, then minkactl drain", 1)


def test_the_remedy_for_a_refused_certificate_is_a_reload() -> None:
    reason = "CERTIFICATE_VERIFY_FAILED: certificate has expired"
    call = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(),
        details=f"failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.98:7400: {reason}: OK",
    )  # fmt: skip
    found = status("xyz", "abc", failed="b")
    answer = DescribeNodeResponse(cluster_id="c-1", has_clearance=True)
    silent = failed(error_from_call(call, "10.0.0.98:7400", repeatable=True), 1.0)
    reports = {"a": Report(answer), "b": silent, "c": Report(answer)}
    rows = problems(Survey(summarized(found), reports, 1_700_000_000_000))
    (problem,) = (row for row in rows if " failed at " in row["problem"])
    assert problem["next"] == ["ssh 10.0.0.98 systemctl reload minkad  # once tls.cert there or tls.ca here is renewed"]
