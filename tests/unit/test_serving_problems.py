"""The problems that `status` reports about nodes that are heard but serve nothing."""

from minka.v1.admin_pb2 import (
    DamagedLeader,
    DescribeNodeResponse,
    GetStatusResponse,
    KeyspaceCounts,
    NodeCounts,
    NodeStatus,
    UnservedOnNode,
)
from minka.v1.cluster_pb2 import Cluster, Keyspace, Node, NodeState, PartitionState, PartitionTable
from minkactl.pages import Row
from minkactl.problems import node_problems, problems
from minkactl.status_views import served
from minkactl.survey import Report, Survey
from minkactl.views import node_rows
from tests.summaries import summary_of

LIVE, FAILED = NodeState.NODE_STATE_LIVE, NodeState.NODE_STATE_FAILED
SILENT = "its data port b:1 does not answer a, c and the node itself (no answer)"


def asked(state: NodeState.ValueType = LIVE, reason: str = "", **known: int | str) -> Survey:
    """A survey of nodes a, b and c, which all answer. a and c are well. `known`: fields of the controller's status of
    b.
    """
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


def test_nodes_that_are_well_are_not_a_problem() -> None:
    assert node_problems(asked()) == []


def test_the_problem_of_a_node_failed_for_its_data_port_has_a_reason_and_a_remedy() -> None:
    row = only(asked(FAILED, SILENT, data_port_problem=SILENT))
    assert f": {SILENT}. It comes back once its data port answers" in row["problem"]
    assert "advertise.data" in row["note"]


def test_a_silent_data_port_is_a_problem_although_the_node_is_live() -> None:
    survey = asked(data_port_problem=SILENT, data_port_problem_ms=4200)
    assert only(survey)["problem"] == f"b is heard, but {SILENT}, for 4.2 s"
    assert [row["trouble"] for row in node_rows(survey.status, survey)] == [None, "data port", None]


def test_a_node_whose_table_stands_still_is_a_problem_after_a_while() -> None:
    assert node_problems(asked(behind_ms=2900)) == []
    row = only(asked(behind_ms=43_000))
    assert row["problem"] == "b has applied nothing after entry 17 of the coordinator's log for 43.0 s"


def damaged(*others: str, alone: bool = True) -> Survey:
    """A survey in which the table has 2 partitions that b leads and that are ONLINE, but b serves only one of them."""
    survey = asked()
    summary = survey.status.summary
    summary.partitions, summary.nodes[1].leads_online = 2, 2
    survey.status.table.keyspaces.append(Keyspace(id=1, name="one"))
    summary.keyspaces.append(KeyspaceCounts(keyspace_id=1, partitions=2, online=2))
    summary.unserved.damaged = 1
    leader = DamagedLeader(partition_id=3, partition="one/0", node_id="b", reason="CORRUPT_DATA: x is gone")
    leader.is_alone, leader.others[:] = alone, others
    summary.unserved.leaders.append(leader)
    summary.unserved.nodes.append(UnservedOnNode(node_id="b", damaged=1, damaged_online=1))
    return survey


def test_a_partition_whose_only_copy_is_damaged_is_a_problem_with_a_remedy() -> None:
    survey = damaged()
    (row,) = problems(survey)
    assert (row["severity"], row["nodes"]) == ("error", ["b"])
    assert row["problem"] == "one/0 is not served: the copy of its leader, b, is damaged: CORRUPT_DATA: x is gone"
    assert row["next"] == ["ssh b systemctl stop minkad", "ssh b systemctl start minkad"]
    assert "put data_dir/partitions/3 of b back" in row["note"]
    assert "elect-leaders" not in row["otherwise"], "there is no other copy"
    assert "docs/operations.md" in row["otherwise"]
    assert (served(survey)["served"], served(survey)["not_served"]) == (1, 1)
    assert [one["trouble"] for one in node_rows(survey.status, survey)] == [None, "damaged data", None]


def test_another_copy_may_lead_if_a_person_accepts_the_loss() -> None:
    (row,) = problems(damaged("c"))
    assert "minkactl elect-leaders --unclean --partition one/0" in row["otherwise"]
    (row,) = problems(damaged("c", alone=False))
    assert "takes over in a moment" in row["note"]
    assert row["otherwise"] == ""


def test_an_eligible_replica_that_is_down_is_named_as_the_remedy() -> None:
    survey = damaged("c")
    survey.status.table.nodes[2].state = FAILED
    row = next(row for row in problems(survey) if "damaged" in row["problem"])
    assert "c has everything" not in row["note"], "it is only a copy"
    (leader,) = survey.status.summary.unserved.leaders
    leader.eligible.append("c")
    row = next(row for row in problems(survey) if "damaged" in row["problem"])
    assert row["note"].endswith("c has everything, too, and leads once it is started.")


def test_a_leadership_that_is_not_confirmed_for_long_is_a_problem() -> None:
    survey = asked()
    survey.status.summary.unserved.unconfirmed = 2
    survey.status.summary.unserved.unconfirmed_by.append("b")
    (row,) = problems(survey)
    assert (row["severity"], row["nodes"]) == ("error", ["b"])
    assert row["problem"] == "2 partitions not served: b has not confirmed for seconds to lead"


def test_a_partition_that_never_had_a_leader_is_a_problem_that_names_a_node_to_start() -> None:
    survey = asked(FAILED)
    survey.status.table.keyspaces.add(id=1, name="one")
    new = PartitionState.PARTITION_STATE_NEW
    survey.status.table.partitions.add(id=1, keyspace_id=1, state=new, replicas=["b"])
    survey.status.summary.CopyFrom(summary_of(survey.status))
    (row,) = (row for row in problems(survey) if row["severity"] == "error" and "partition" in row["next"][-1])
    assert (row["problem"], row["nodes"]) == ("1 partition under min-insync, so writes are refused", ["b"])


def test_no_remedy_accepts_a_loss_if_no_copy_is_left() -> None:
    survey = asked()
    survey.status.summary.keyspaces.append(KeyspaceCounts(keyspace_id=1, partitions=2, offline=2))
    (row,) = problems(survey)
    assert "elect-leaders --unclean" in row["otherwise"]
    survey.status.summary.unserved.without_copy = 1
    (row,) = problems(survey)
    assert "elect-leaders --unclean" in row["otherwise"]
    assert "Of 1, no other whole copy is left" in row["otherwise"]
    survey.status.summary.unserved.without_copy = 2
    (row,) = problems(survey)
    assert "elect-leaders" not in row["otherwise"]


def test_the_silent_data_port_of_a_process_that_has_ended_is_not_a_problem() -> None:
    survey = asked(data_port_problem=SILENT, heartbeat_age_ms=400)
    ended = {**survey.reports, "b": Report(None, "connection refused", refused=True)}
    survey = Survey(survey.status, ended, taken_ms=1000)
    assert [row["trouble"] for row in node_rows(survey.status, survey)] == [None, "no answer", None]
    assert not any("is heard, but" in row["problem"] for row in node_problems(survey))
    hidden = Survey(survey.status, {**ended, "b": Report(None, "no answer within 1 s")}, taken_ms=1000)
    assert any("is heard, but" in row["problem"] for row in node_problems(hidden)), "it is heard elsewhere"
