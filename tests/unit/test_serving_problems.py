"""What `status` says of nodes that are heard and serve nothing, by what the active controller knows."""

from minka.v1.admin_pb2 import (
    DescribeNodeResponse,
    GetStatusResponse,
    NodeCounts,
    NodeStatus,
)
from minka.v1.cluster_pb2 import Cluster, Node, NodeState, PartitionTable
from minkactl.pages import Row
from minkactl.problems import node_problems
from minkactl.survey import Report, Survey
from minkactl.views import node_rows

LIVE, FAILED = NodeState.NODE_STATE_LIVE, NodeState.NODE_STATE_FAILED
SILENT = "its data port b:1 does not answer a, c and the node itself (no answer)"


def asked(state: NodeState.ValueType = LIVE, reason: str = "", **known: int | str) -> Survey:
    """Of b something is known; a and c are well. All answer."""
    names = "abc"
    nodes = [Node(id=name, address=f"{name}:1", state=LIVE) for name in names]
    nodes[1].state, nodes[1].state_reason = state, reason
    status = GetStatusResponse(served_by="a", from_controller=True, has_clearance=True)
    status.table.CopyFrom(PartitionTable(cluster=Cluster(id="id", min_nodes=1), nodes=nodes))
    status.nodes.extend(NodeStatus(node_id=name, heartbeat_age_ms=10, applied_index=17) for name in names)
    for field, value in known.items():
        setattr(status.nodes[1], field, value)
    status.summary.nodes.extend(NodeCounts(node_id=name) for name in names)
    answers = {
        name: DescribeNodeResponse(node=name, cluster_id="id", has_clearance=name != "b" or state == LIVE, ready=True)
        for name in names
    }
    return Survey(status, {name: Report(answer) for name, answer in answers.items()}, taken_ms=1000)


def only(survey: Survey) -> Row:
    (row,) = node_problems(survey)
    assert row["severity"] == "error"
    assert row["nodes"] == ["b"]
    return row


def test_nothing_is_said_of_nodes_that_are_well() -> None:
    assert node_problems(asked()) == []


def test_a_node_that_failed_since_its_data_port_is_silent_says_why_and_what_helps() -> None:
    row = only(asked(FAILED, SILENT, data_port_problem=SILENT))
    assert f": {SILENT}. It comes back once its data port answers" in row["problem"]
    assert "advertise.data" in row["note"]


def test_a_node_whose_data_port_is_silent_is_named_although_it_is_live() -> None:
    survey = asked(data_port_problem=SILENT, data_port_problem_ms=4200)
    assert only(survey)["problem"] == f"b is heard, but {SILENT}, for 4.2 s"
    assert [row["trouble"] for row in node_rows(survey.status, survey)] == [None, "data port", None]


def test_a_table_that_stands_still_is_named_once_it_lasts() -> None:
    assert node_problems(asked(behind_ms=2900)) == []
    row = only(asked(behind_ms=43_000))
    assert row["problem"] == "b has applied nothing after entry 17 of the coordinator's log for 43.0 s"
