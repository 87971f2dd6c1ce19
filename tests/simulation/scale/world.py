"""The world of scale: a real controller and a thousand fake nodes. They run by a virtual clock.

Three voters run the real code, and the world measures the processor time of the active controller's loop. The fake
nodes keep the controller as busy as a real cluster would.
"""

import gc
import logging
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from unittest import mock

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Cluster, Node, NodeState
from minka.v1.raft_pb2 import ConfState, Snapshot, SnapshotMetadata
from minkad.coordinator import active_controller, admin_requests, coordinator, deciding
from minkad.coordinator.active_controller import ActiveController
from minkad.coordinator.controller_settings import ControllerSettings
from minkad.coordinator.coordinator import Coordinator
from minkad.core.controller import keyspaces
from minkad.core.controller.mover import MigrationCaps
from minkad.core.controller.voters import VoterSettings
from minkad.core.state import State, is_up
from minkad.data_port import raft as raft_port
from minkad.rpc.field_rules import COUNTS
from minkad.rpc.validation import check_of
from tests.simulation.scale.fake_node import FakeNode
from tests.simulation.scale.learner import FakeLearner
from tests.simulation.scale.observer import Observer
from tests.simulation.scale.timeline import FIRST_UNIX_MS, Timeline
from tests.simulation.scale.voter import Voter

R = TypeVar("R")

VOTERS: Final = 3
ZONES: Final = ("a", "b", "c")
_BOOTSTRAP_INDEX: Final = 1
_NEWS_S: Final = 0.003  # the time until a record has reached the nodes through the log
_NO_LIMIT: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Size:
    """The settings of the world. If `learners`, every node has the Raft log, as in a real cluster; if not, only the
    voters have it. If `charged`, the virtual clock advances by the processor time that the voters use.
    """

    nodes: int
    partitions: int
    learners: bool
    charged: bool


class ScaleWorld:
    """A cluster whose nodes are all LIVE. Its table has no partitions until a keyspace is created."""

    def __init__(self, size: Size, seed: int = 0) -> None:
        self.size = size
        self.timeline = Timeline(seed)
        self.cluster = Cluster(id="simulated", name="simulated", min_nodes=1)
        self.controller_settings = ControllerSettings(
            clearance=0.6,
            failure_timeout=0.8,
            stall_timeout=60.0,
            caps=MigrationCaps(per_node=1, cluster=32),
            merge_after=300.0,
            abandon_loads_after=86_400.0,
        )
        self.voter_settings = VoterSettings(VOTERS, 300_000)
        rows = [self._row(number) for number in range(1, size.nodes + 1)]
        start = self._start(rows)
        self._absent: set[str] = set()
        self._up = {row.id for row in rows}
        self.nodes: dict[str, FakeNode] = {}
        self.voters: dict[str, Voter] = {}  # by address
        self._learners: dict[str, FakeLearner] = {}  # by address
        self._last: dict[tuple[str, str], float] = {}  # by link: the arrival time of the last Raft messages
        for row in rows:
            self._add(row, _BOOTSTRAP_INDEX)
        for row in rows[:VOTERS]:
            self.voters[row.address] = Voter(self, row, start)
        self._follower = self.voters[rows[VOTERS - 1].address]
        self.observer = Observer(lambda: self._follower.coordinator.state, self._node_changed)

    @staticmethod
    def _row(number: int) -> Node:
        return Node(
            id=f"n{number}",
            raft_id=number,
            data_id=f"data-{number}",
            incarnation=f"n{number}-1",
            starts=1,
            address=f"10.0.{number // 250}.{number % 250}:7400",
            zone=ZONES[number % len(ZONES)],
            state=NodeState.NODE_STATE_LIVE,
            state_since_ms=FIRST_UNIX_MS,
        )

    def _start(self, rows: list[Node]) -> Snapshot:
        state = State(cluster=self.cluster)
        for row in rows:
            state._apply_node(row)
        learners = range(VOTERS + 1, self.size.nodes + 1) if self.size.learners else ()
        conf = ConfState(voters=range(1, VOTERS + 1), learners=learners)
        metadata = SnapshotMetadata(index=_BOOTSTRAP_INDEX, term=1, conf_state=conf)
        return Snapshot(data=zlib.compress(state.to_snapshot(), 1), metadata=metadata)

    def _add(self, row: Node, last: int) -> FakeNode:
        node = self.nodes[row.id] = FakeNode(self, row)
        if self.size.learners and row.raft_id > VOTERS:
            self._learners[row.address] = FakeLearner(row.raft_id, last, self.timeline, self._from_learner(row))
        return node

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the cluster, and wait for the first active controller; stop the voters after the block."""
        logger = logging.getLogger("minkad")
        level, unix_ms = logger.level, self.timeline.unix_ms
        logger.setLevel(logging.CRITICAL + 1)
        gc.disable()
        try:
            with ExitStack() as patches:
                for module in (active_controller, deciding, coordinator, admin_requests):
                    patches.enter_context(mock.patch.object(module, "unix_ms", unix_ms))
                patches.enter_context(mock.patch.object(raft_port, "_is_refused", _nobody_listens))
                self._allow_more(patches)
                if not self.size.learners:
                    patches.enter_context(mock.patch.object(Coordinator, "_change_members"))
                self._begin()
                yield
        finally:
            logger.setLevel(level)
            gc.enable()
            for voter in self.voters.values():
                voter.loop.kill()

    @staticmethod
    def _allow_more(patches: ExitStack) -> None:
        """Lift the limits on the size of a cluster, since this world also measures larger clusters."""
        patches.enter_context(mock.patch.object(keyspaces, "MAX_PARTITIONS_IN_CLUSTER", _NO_LIMIT))
        patches.callback(check_of.cache_clear)
        patches.enter_context(mock.patch.dict(COUNTS, dict.fromkeys(("nodes", "moves"), _NO_LIMIT)))
        check_of.cache_clear()

    def _begin(self) -> None:
        first = next(iter(self.voters.values()))
        first.arrive(first.driver.raw.campaign)
        first.arrive(first.driver._wake.set)
        for node in self.nodes.values():
            node.begin()
        self.timeline.run_until(2.0)
        assert self.active() is first, "the first voter leads"

    # Nodes

    def add_nodes(self, count: int) -> list[FakeNode]:
        """Add nodes; they begin to register."""
        first = len(self.nodes) + 1
        added = [self._add(self._row(number), 0) for number in range(first, first + count)]
        for node in added:
            node.alive = False
            node.start()
        return added

    def in_zone(self, zone: str) -> list[FakeNode]:
        """The nodes in a zone."""
        return [node for number, node in enumerate(self.nodes.values(), 1) if ZONES[number % len(ZONES)] == zone]

    def is_up(self, node: str) -> bool:
        """True if the node is up according to the table."""
        return node in self._up

    def is_absent(self, node: str) -> bool:
        """True if the node is not up according to the table."""
        return node in self._absent

    def _node_changed(self, row: Node) -> None:
        up = is_up(row)
        (self._up.add if up else self._up.discard)(row.id)
        (self._absent.discard if up else self._absent.add)(row.id)
        for partition in self._follower.coordinator.state.partitions_on(row.id):
            leader = self.nodes.get(partition.leader)
            if leader is not None:
                self.timeline.after(_NEWS_S + self.timeline.delay(), leader.consider, partition.id)

    # Calls

    def active(self) -> Voter | None:
        """The voter that is the active controller; None if there is none."""
        active = [voter for voter in self.voters.values() if voter.coordinator.active is not None]
        return max(active, key=lambda voter: voter.driver.raw.basic_status().term, default=None)

    def leader(self) -> Voter:
        """The voter that is the active controller; fails if there is none."""
        active = self.active()
        assert active is not None, "there is no active controller"
        return active

    def controller(self) -> ActiveController:
        """The active controller."""
        controller = self.leader().coordinator.active
        assert controller is not None
        return controller

    def has_told_all(self) -> bool:
        """True if the active controller has sent all rows to the nodes, and the nodes have acknowledged all of them."""
        outboxes = self.controller().outboxes._of.values()
        return not any(outbox.unacknowledged or outbox._in_flight for outbox in outboxes)

    def members(self) -> int:
        """The number of nodes that have the log."""
        conf = self.leader().driver.conf_state
        return len(conf.voters) + len(conf.learners)

    def wanted_members(self) -> int:
        """The number of nodes that should have the log."""
        return len(self.nodes) if self.size.learners else VOTERS

    def applied_index(self) -> int:
        """The index up to which the nodes have applied the log."""
        return self._follower.driver.applied_index

    def call(self, node: FakeNode, method: str, request: Any, answered: Callable[[Any], object]) -> None:
        """Send a node's call to the active controller; `answered` gets the response or the MinkaError."""
        active = self.active()
        if active is None:
            refusal = MinkaError(Code.NO_CONTROLLER, "no leader is known")
            self.timeline.after(self.timeline.delay(), answered, refusal)
            return
        data = request.SerializeToString()
        arguments = (active.requests, method, data, type(request), answered)
        self.timeline.after(self.timeline.delay(), active.arrive, active.serve, *arguments)

    def ask(self, method: str, request: Any) -> list[Any]:
        """Send a request of an administrator to the active controller. The returned list gets the answer."""
        active, answers = self.leader(), list[Any]()
        data = request.SerializeToString()
        active.arrive(active.serve, active.admin_requests, method, data, type(request), answers.append)
        return answers

    def heartbeat(self, node: FakeNode, request: Any) -> None:
        """Send a node's heartbeat to the active controller."""
        active = self.active()
        if active is not None:
            data, incarnation = request.SerializeToString(), request.incarnation
            self.timeline.after(self.timeline.delay(), active.arrive, active.heartbeat, node, incarnation, data)

    # Raft

    def machine(self, voter: Voter) -> "_Machine":
        """The state machine of this voter."""
        return _Machine(self, voter)

    def applied(self, voter: Voter, data: bytes) -> None:
        """Tell the observer of a command that this voter has applied, if the voter is the observed follower."""
        if voter is self._follower:
            self.observer.applied(data, self.timeline.now)

    def listens(self, address: str) -> bool:
        """True if a process listens at the address."""
        return address in self.voters or address in self._learners

    def raft_to(self, sender: Voter, address: str, content: bytes) -> None:
        """Send a batch of Raft messages; batches keep their order on each link."""
        link = (sender.node.address, address)
        when = max(self.timeline.now + self.timeline.delay(), self._last.get(link, 0.0))
        self._last[link] = when
        if (learner := self._learners.get(address)) is not None:
            self.timeline.at(when, learner.hear, content)
        elif (voter := self.voters.get(address)) is not None:
            self.timeline.at(when, voter.arrive, voter.hear, content, sender.node.address)

    def _from_learner(self, row: Node) -> Callable[[int, bytes], None]:
        def answer(to: int, data: bytes) -> None:
            voter = next(voter for voter in self.voters.values() if voter.node.raft_id == to)
            self.timeline.after(self.timeline.delay(), voter.arrive, voter.hear, data, row.address)

        return answer

    def beside(self, voter: Voter, work: Callable[[], R]) -> R:
        """Do work that a daemon does on a thread; the time that it takes doesn't count as the loop's."""
        began = time.thread_time()
        try:
            return work()
        finally:
            took = time.thread_time() - began
            voter.planned_s += took
            voter.meter.set_aside(took)


class _Machine:
    """The coordinator's state machine, as the driver uses it."""

    def __init__(self, world: ScaleWorld, voter: Voter) -> None:
        self._world = world
        self._voter = voter

    def apply(self, data: bytes) -> None:
        self._voter.coordinator.apply(data)
        self._world.applied(self._voter, data)

    def capture(self) -> Callable[[], bytes]:
        return self._voter.coordinator.capture()

    def decode(self, snapshot: bytes) -> State:
        return self._voter.coordinator.decode(snapshot)

    def restore(self, decoded: State) -> None:
        self._voter.coordinator.restore(decoded)


async def _nobody_listens(_: str) -> bool:
    """Return False: the machine doesn't refuse connections."""
    return False
