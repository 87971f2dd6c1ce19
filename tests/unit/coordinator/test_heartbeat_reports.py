"""A heartbeat reports what has changed since the last one. A new controller gets everything, in pieces."""

from minka.v1.cluster_pb2 import Node, NodeState, Partition
from minka.v1.coordinator_pb2 import DamagedReplica, DiskSpace, HeartbeatRequest, MigrationProgress, ReplicaStats
from minkad.coordinator.heartbeat_reports import MOST_IN_ONE, HeartbeatReports
from minkad.coordinator.node_reports import NodeReports
from minkad.core.state import State

IDLE_BYTES = 64


class Plane:
    """A data plane. The test sets its lagging and its damaged replicas."""

    def __init__(self) -> None:
        self.changed: list[ReplicaStats] = []
        self.moving: dict[tuple[int, str], int] = {}  # the lag of each move, by partition and target
        self.broken: dict[int, str] = {}

    def stats(self, changed_only: bool) -> list[ReplicaStats]:
        found, self.changed = self.changed, []
        return found if changed_only else [ReplicaStats(partition_id=1, bytes=5)]

    def migrations(self) -> list[MigrationProgress]:
        return [MigrationProgress(partition_id=id_, target=to, lag=lag) for (id_, to), lag in self.moving.items()]

    def damaged(self) -> list[DamagedReplica]:
        return [DamagedReplica(partition_id=id_, reason=reason) for id_, reason in self.broken.items()]

    def stop_leading(self) -> None:
        raise AssertionError("nobody stops this leader: the controller doesn't treat the node as failed")


class Stream:
    """A heartbeat stream of node a. `known`: what the controller has learned from it."""

    def __init__(self, plane: Plane) -> None:
        self.reports = HeartbeatReports(plane)
        self.change_controller()

    def change_controller(self) -> None:
        state = State()
        state.nodes["a"] = Node(id="a", state=NodeState.NODE_STATE_LIVE)
        state.partitions[1] = Partition(id=1, leader="a")
        self.known = NodeReports(state, state)
        self.state = state

    def beat(self) -> HeartbeatRequest:
        request = HeartbeatRequest(node_id="a")
        self.reports.add_to(request)
        if not self.known.note(self.state.nodes["a"], request, 0.0):
            self.reports.begin_again()
        return request

    def lags(self) -> dict[tuple[int, str], int]:
        return {(one.partition_id, one.target): one.lag for one in self.known.progress()}


def test_when_nothing_has_changed_a_heartbeat_has_a_few_bytes() -> None:
    plane = Plane()
    plane.moving = {(id_, "b"): 7 for id_ in range(300)}
    plane.broken = dict.fromkeys(range(300), "CORRUPT_DATA: a file")
    stream = Stream(plane)
    assert stream.beat().from_start
    assert stream.beat().ByteSize() <= IDLE_BYTES
    assert len(stream.lags()) == len(stream.known.damaged()) == 300


def test_a_heartbeat_reports_what_has_changed_or_ended() -> None:
    plane = Plane()
    plane.moving, plane.broken = {(1, "b"): 7, (1, "c"): 9, (2, "b"): 1}, {3: "bad", 4: "bad"}
    stream = Stream(plane)
    stream.beat()
    plane.moving[1, "b"] = 6
    del plane.moving[2, "b"], plane.broken[3]
    request = stream.beat()
    assert [(one.partition_id, one.lag) for one in request.migrations] == [(1, 6)]
    assert stream.lags() == plane.moving
    assert [one.partition_id for one in stream.known.damaged()] == [4]


def test_a_large_report_comes_in_pieces() -> None:
    plane = Plane()
    stream = Stream(plane)
    stream.beat()
    plane.moving = {(id_, "b"): 1 for id_ in range(1200)}
    assert [len(stream.beat().migrations) for _ in range(4)] == [MOST_IN_ONE, MOST_IN_ONE, 200, 0]
    assert stream.lags() == plane.moving
    plane.moving.clear()
    assert [len(stream.beat().ended_migrations) for _ in range(3)] == [MOST_IN_ONE, MOST_IN_ONE, 200]
    assert stream.lags() == {}


def test_a_controller_that_missed_the_beginning_of_a_stream_gets_everything() -> None:
    """The controller may change while the stream stays open."""
    plane = Plane()
    plane.moving, plane.broken = {(1, "b"): 7}, {3: "bad"}
    stream = Stream(plane)
    stream.beat()
    stream.change_controller()
    assert not stream.beat().from_start
    assert stream.lags() == {}
    assert stream.beat().from_start
    assert stream.lags() == plane.moving
    assert [one.partition_id for one in stream.known.damaged()] == [3]
    assert stream.known.sizes() == {1: 5}


def test_a_new_stream_replaces_the_reports_of_older_ones() -> None:
    plane = Plane()
    plane.moving, plane.broken = {(1, "b"): 7}, {3: "bad"}
    stream = Stream(plane)
    stream.beat()
    plane.moving, plane.broken = {}, {}
    stream.reports = HeartbeatReports(plane)
    stream.beat()
    assert stream.lags() == {}
    assert stream.known.damaged() == []


def test_only_the_leaders_report_of_a_partitions_size_counts() -> None:
    stream = Stream(Plane())
    known, nodes = stream.known, stream.state.nodes
    stream.beat()
    known.note(Node(id="b"), HeartbeatRequest(replicas=[ReplicaStats(partition_id=1, bytes=9)]), 0.0)
    assert known.sizes() == {1: 5}
    row = stream.state.partitions[1]
    row.leader = "b"
    stream.state.partitions.put(row)
    assert known.sizes() == {1: 5}, "the size from node a counts until b, the new leader, reports"
    known.note(Node(id="b"), HeartbeatRequest(replicas=[ReplicaStats(partition_id=1, bytes=9)]), 0.0)
    known.note(nodes["a"], HeartbeatRequest(replicas=[ReplicaStats(partition_id=1, bytes=6)]), 0.0)
    assert known.sizes() == {1: 9}
    del stream.state.partitions[1]
    assert known.sizes() == {}


def test_the_controller_knows_which_disks_are_low() -> None:
    stream = Stream(Plane())
    node = stream.state.nodes["a"]
    stream.known.note(node, HeartbeatRequest(disk=DiskSpace(is_low=True)), 0.0)
    assert stream.known.low_disks() == ["a"]
    stream.known.note(node, HeartbeatRequest(disk=DiskSpace(is_low=False)), 0.0)
    assert stream.known.low_disks() == []
