"""On a real cluster, members of the coordinator join, change their seats and leave, automatically or by minkactl. They
are voters, learners, the leader, and nodes that are gone.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.admin_pb2 import CoordinatorStatus
from minka.v1.cluster_pb2 import NodeState
from minkactl.exits import Exit
from minkad.process.exits import REFUSED
from tests.cluster.cluster import QUICK, eventually, minkactl, state_of, wait_settled

CONFIG = QUICK | {"coordinator": {"voters": 3, "replace_voter_after_s": 1}, "log": {"level": "debug"}}
FAILED = NodeState.NODE_STATE_FAILED


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """A cluster that one node has founded, and the other nodes have joined."""
    with LocalCluster(["athens"], config=CONFIG) as cluster:
        for name in ("byzantium", "cyrene", "ephesus"):
            cluster.add(name)
        yield cluster


@pytest.fixture
def control(cluster: LocalCluster) -> Iterator[Control]:
    with Control(cluster.endpoints) as control:
        yield control


def done(cluster: LocalCluster, *arguments: str) -> dict[str, Any]:
    """Run a command of minkactl, which has to succeed; returns its JSON document."""
    result = minkactl(cluster, *arguments, "-o", "json")
    assert result.exit_code == Exit.OK, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def raft(control: Control) -> CoordinatorStatus:
    """Wait until an active controller answers, and return its status of the coordinator."""

    def probe() -> CoordinatorStatus | None:
        status = control.status()
        return status.coordinator if status.from_controller else None

    return eventually("an active controller", probe)


def seats(control: Control) -> tuple[set[str], set[str]]:
    """Return the names of the voters, and those of the learners."""
    coordinator = raft(control)
    return set(coordinator.voters), set(coordinator.learners)


def wait_seats(control: Control, voters: set[str], learners: set[str]) -> None:
    eventually(f"voters {voters} and learners {learners}", lambda: seats(control) == (voters, learners))


@pytest.mark.timeout(240)
def test_members_come_change_their_seats_and_go(cluster: LocalCluster, control: Control) -> None:
    nodes_that_join_fill_the_seats_and_then_keep_up_as_learners(cluster, control)
    status_shows_every_member_and_what_it_lacks(cluster, control)
    transfer(cluster, control)
    what_is_refused_changes_nothing(cluster, control)
    a_learner_takes_a_voters_seat_in_one_joint_change(cluster, control)
    a_voter_that_leads_hands_over_before_it_is_demoted(cluster, control)
    a_voter_that_stays_away_gives_its_seat_to_a_learner(cluster, control)
    a_removed_node_learns_of_it(cluster, control)
    a_voter_is_removed_with_its_seat_and_its_id_is_used_again(cluster, control)


def nodes_that_join_fill_the_seats_and_then_keep_up_as_learners(cluster: LocalCluster, control: Control) -> None:
    wait_seats(control, {"athens", "byzantium", "cyrene"}, {"ephesus"})
    table = wait_settled(control, live=4)
    assert len({node.raft_id for node in table.nodes}) == 4
    with Control([cluster.node("ephesus").address]) as learner:
        eventually("the learner has the table", lambda: learner.table() == table)


def status_shows_every_member_and_what_it_lacks(cluster: LocalCluster, control: Control) -> None:
    status = done(cluster, "raft", "status")
    assert status["controller"] == raft(control).controller
    assert sorted(member["id"] for member in status["members"]) == sorted(cluster.nodes)
    assert {member["role"] for member in status["members"]} == {"controller", "voter", "learner"}
    eventually("nobody lags", lambda: all(m["lag"] == 0 for m in done(cluster, "raft", "status")["members"]))


def transfer(cluster: LocalCluster, control: Control) -> None:
    term = raft(control).term
    for successor in ("byzantium", "athens", "athens"):
        assert done(cluster, "raft", "transfer", successor, "--yes")["controller"] == successor
        assert raft(control).controller == successor
    assert raft(control).term >= term + 2, "each hand-over to another node begins a term"


REFUSALS = (
    ("transfer ephesus --yes", Exit.FAILED, "INVALID_VOTERS: ephesus is a learner"),
    ("transfer nowhere --yes", Exit.FAILED, "UNKNOWN_NODE"),
    ("transfer byzantium", Exit.USAGE, "--yes goes ahead"),
    ("promote nowhere --yes", Exit.FAILED, "UNKNOWN_NODE"),
    ("promote ephesus --instead-of nowhere --yes", Exit.FAILED, "UNKNOWN_NODE"),
    ("promote ephesus --instead-of ephesus --yes", Exit.USAGE, "INVALID_ARGUMENT"),
    ("promote ephesus", Exit.USAGE, "--yes goes ahead"),
    ("promote", Exit.USAGE, "Missing argument"),
    ("add nowhere --yes", Exit.FAILED, "UNKNOWN_NODE"),
    ("demote byzantium --yes", Exit.FAILED, "INVALID_VOTERS: 2 voters would be left"),
    ("demote nowhere --yes", Exit.FAILED, "UNKNOWN_NODE"),
    ("remove nowhere --yes", Exit.FAILED, "UNKNOWN_NODE"),
    ("remove ephesus --yes", Exit.FAILED, "NODE_IN_USE"),
    ("remove ephesus", Exit.USAGE, "--yes goes ahead"),
)


def what_is_refused_changes_nothing(cluster: LocalCluster, control: Control) -> None:
    before = seats(control)
    for arguments, status, reason in REFUSALS:
        result = minkactl(cluster, "raft", *arguments.split())
        assert (result.exit_code, reason in result.stderr) == (status, True), result.output
        assert seats(control) == before, arguments


def a_learner_takes_a_voters_seat_in_one_joint_change(cluster: LocalCluster, control: Control) -> None:
    status = done(cluster, "raft", "promote", "ephesus", "--instead-of", "cyrene", "--yes")
    assert sorted(status["voters"]) == ["athens", "byzantium", "ephesus"]
    assert status["learners"] == ["cyrene"]
    eventually("one joint change", lambda: joint_configurations(cluster) == ["(1 2 4)&&(1 2 3)"])
    assert done(cluster, "raft", "promote", "ephesus", "--yes")["voters"] == status["voters"], "it is a voter already"


def joint_configurations(cluster: LocalCluster) -> list[str]:
    """Return the joint configurations of voters (raft ids), in the order in which athens has logged them: for example,
    "(1 2 4)&&(1 2 3)" if node 4 takes the seat of node 3."""
    return re.findall(
        r"is in the configuration voters=(\(\S[^)]*\)&&\([^)]*\))", cluster.log("athens").read_text("utf-8")
    )


def a_voter_that_leads_hands_over_before_it_is_demoted(cluster: LocalCluster, control: Control) -> None:
    done(cluster, "raft", "add", "cyrene", "--yes")
    assert seats(control) == ({"athens", "byzantium", "cyrene", "ephesus"}, set())
    leader = raft(control).controller
    result = minkactl(cluster, "raft", "demote", leader, "--yes")
    assert result.exit_code == Exit.OK, result.stderr
    assert "is the active controller" in result.stderr
    assert f"{leader} is a learner" in result.stderr
    assert seats(control) == (set(cluster.nodes) - {leader}, {leader})
    assert raft(control).controller != leader


def a_voter_that_stays_away_gives_its_seat_to_a_learner(cluster: LocalCluster, control: Control) -> None:
    voters, (learner,) = seats(control)
    gone = next(iter(sorted(voters - {raft(control).controller})))
    joint = len(joint_configurations(cluster))
    cluster.kill(gone)
    eventually(f"{gone} FAILED", lambda: state_of(control, gone) == FAILED)
    wait_seats(control, voters - {gone} | {learner}, {gone})
    eventually("one joint change", lambda: gone == "athens" or len(joint_configurations(cluster)) == joint + 1)
    cluster.restart(gone)
    wait_settled(control, live=4)
    assert seats(control) == (voters - {gone} | {learner}, {gone}), "it comes back as a learner"


def a_removed_node_learns_of_it(cluster: LocalCluster, control: Control) -> None:
    voters, (learner,) = seats(control)
    node = cluster.node(learner)
    # The learner is paused while it is removed. So when it goes on, no leader sends it messages.
    cluster.signal(learner, signal.SIGSTOP)
    try:
        eventually(f"{learner} FAILED", lambda: state_of(control, learner) == FAILED)
        assert done(cluster, "raft", "remove", learner, "--yes")["learners"] == []
    finally:
        cluster.signal(learner, signal.SIGCONT)
    assert node.process is not None
    assert node.process.wait(20) == REFUSED
    assert "minkad: NODE_REMOVED: " in node.log.read_text("utf-8")
    again = subprocess.run(
        [sys.executable, "-m", "minkad", "--config", str(node.config_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert again.returncode == REFUSED
    assert "minkad: NODE_REMOVED: " in again.stderr
    assert "remedy: Start it with an empty data directory" in again.stderr
    assert seats(control) == (voters, set())


def a_voter_is_removed_with_its_seat_and_its_id_is_used_again(cluster: LocalCluster, control: Control) -> None:
    coordinator = raft(control)
    voter = next(v for v in sorted(coordinator.voters) if v != coordinator.controller)
    raft_id = next(n.raft_id for n in control.table().nodes if n.id == voter)
    cluster.terminate(voter)
    done(cluster, "raft", "remove", voter, "--yes")
    assert seats(control) == (set(coordinator.voters) - {voter}, set())
    cluster.node(voter).data_dir.rename(cluster.directory / "old data")
    # The voter may be athens. By its configuration, athens with an empty directory would found a second cluster alone.
    # So let the voter join.
    others = [node.address for node in cluster.nodes.values() if node.name != voter]
    cluster.node(voter).config = {"cluster": {"join": others}}
    cluster.restart(voter)
    wait_seats(control, set(coordinator.voters), set())
    assert next(n.raft_id for n in control.table().nodes if n.id == voter) > max(raft_id, 4), "no raft id is used twice"
