"""Each node learns from the answers to its heartbeats how far its clock is off."""

import pytest

from minka.v1.cluster_pb2 import Node, NodeState
from minka.v1.coordinator_pb2 import HeartbeatRequest, HeartbeatResponse
from minkad.coordinator.clock_offset import ClockOffset
from minkad.coordinator.node_reports import NodeReports
from minkad.core.state import State
from minkad.process.clock import ClusterClock

HOUR_MS = 3_600_000


class World:
    """Three nodes that send heartbeats to a controller. `ahead`: the milliseconds that each node's clock is ahead."""

    def __init__(self) -> None:
        self.right_ms = 500 * HOUR_MS
        self.ahead = dict.fromkeys("abc", 0)
        self.clocks = {node: self._clock(node) for node in "abc"}
        self.new_controller()

    def _clock(self, node: str) -> ClusterClock:
        return ClusterClock(lambda: (self.right_ms + self.ahead[node]) * 1_000_000, lambda: self.right_ms * 1_000_000)

    def new_controller(self) -> None:
        """Let another controller lead, whose steady clock began at another time."""
        state = State()
        for node in "abc":
            state.nodes[node] = Node(id=node, state=NodeState.NODE_STATE_LIVE)
        self.reports = NodeReports(state, state)
        self.boot_ms = self.right_ms - 1000
        self.offsets = {node: ClockOffset(self.clocks[node]) for node in "abc"}

    def heartbeats(self, there_ms: int = 5, back_ms: int = 5, c_ms: int = 0) -> None:
        """Let each node send a heartbeat, which arrives after `there_ms`; the answer arrives `back_ms` later. For node
        c, each way takes `c_ms` longer.
        """
        for node, offset in self.offsets.items():
            request = HeartbeatRequest(node_id=node, sequence=1, from_start=True)
            offset.add_to(request)
            longer = c_ms if node == "c" else 0
            self.right_ms += there_ms + longer
            self.reports.note(self.reports._committed.nodes[node], request, 0.0)
            answer = HeartbeatResponse(
                sequence=1, clock_ms=self.right_ms - self.boot_ms, clocks_ahead_ms=self.reports.clocks_of_most()
            )
            self.right_ms += back_ms + longer
            offset.answered(answer)

    def errors(self) -> list[int]:
        return [clock.ms() - self.right_ms for clock in self.clocks.values()]


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("node", ["a", "b", "c"])
@pytest.mark.parametrize("ahead", [HOUR_MS, -HOUR_MS])
def test_a_wrong_clock_is_corrected_on_any_node(world: World, node: str, ahead: int) -> None:
    world.ahead[node] = ahead
    world.clocks[node] = world._clock(node)
    world.new_controller()
    for _ in range(3):
        world.heartbeats()
    if ahead < 0:
        world.right_ms += 1000  # the corrected time jumps ahead only after answers have agreed for 1 s
        world.heartbeats()
    assert world.errors() == [0, 0, 0]
    offsets = [clock.ahead_ms for clock in world.clocks.values()]
    assert offsets == [ahead if one == node else 0 for one in "abc"]


def test_a_jump_ahead_is_never_seen(world: World) -> None:
    for _ in range(3):
        world.heartbeats()
    world.ahead["b"] = HOUR_MS
    for _ in range(3):
        assert world.errors() == [0, 0, 0]
        world.heartbeats()
    world.ahead["c"] = HOUR_MS
    world.ahead["b"] = 0
    world.new_controller()
    for _ in range(3):
        world.heartbeats()
        assert all(-100 <= error <= 0 for error in world.errors()), "b's clock was set back, so its time runs slowly"


def test_the_middle_of_the_round_trip_counts(world: World) -> None:
    for _ in range(3):
        world.heartbeats(c_ms=200)
    assert [clock.ahead_ms for clock in world.clocks.values()] == [0, 0, 0]


def test_a_slow_path_in_one_direction_does_not_count_as_a_wrong_clock(world: World) -> None:
    for _ in range(3):
        world.heartbeats(there_ms=400, back_ms=0)
    assert all(clock.ahead_ms is not None and abs(clock.ahead_ms) <= 400 for clock in world.clocks.values())
    assert world.errors() == [0, 0, 0]
    world.new_controller()
    world.heartbeats(there_ms=5000, back_ms=0)
    assert not world.reports.clocks_ms, "a trip of 5 s measures nothing"


def test_without_the_third_clock_two_that_differ_decide_nothing(world: World) -> None:
    for _ in range(3):
        world.heartbeats()
    world.reports._committed.nodes["c"].state = NodeState.NODE_STATE_FAILED
    assert world.reports.clocks_of_most() is None


def test_a_new_controller_tells_no_offset_before_most_live_nodes_have_reported(world: World) -> None:
    for _ in range(3):
        world.heartbeats()
    for node in "defg":
        world.reports._committed.nodes[node] = Node(id=node, state=NodeState.NODE_STATE_LIVE)
    assert world.reports.clocks_of_most() is None
    world.reports._committed.nodes["g"].state = world.reports._committed.nodes["f"].state = NodeState.NODE_STATE_LEFT
    assert world.reports.clocks_of_most() is not None
