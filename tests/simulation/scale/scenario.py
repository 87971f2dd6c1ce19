"""Runs the events of the world of scale, one after the other, and measures what each costs the active controller."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from cProfile import Profile
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from minka.errors import MinkaError
from minka.v1.admin_pb2 import ApplyPlanRequest, CreateKeyspaceRequest, PlanReassignRequest
from minka.v1.cluster_pb2 import HashFunction
from tests.simulation.scale.fake_node import FakeNode
from tests.simulation.scale.voter import Voter
from tests.simulation.scale.walks import Visits, watch
from tests.simulation.scale.world import VOTERS, ScaleWorld

LOOK_S: Final = 0.05  # the time between two looks at the table, to see if it is settled
TRANSFER_S: Final = 2.0  # the time limit for a transfer of the leadership
TAIL_S: Final = 0.5  # the time in which the last acknowledgements arrive
IDLE_S: Final = 5.0
PATIENCE_S: Final = 60.0  # the time limit for an event
MAX_KEYSPACE: Final = 25_000  # partitions in a keyspace
RESTARTS: Final = 3
DOWN_S: Final = 1.0
SHARE_ADDED: Final = 10  # one node is added for each 10 existing nodes
EVENTS: Final = 10
IDLE: Final = f"idle, {IDLE_S:.0f} s"
_SHOWN: Final = 8  # tasks and callbacks in a measurement


class Walk(NamedTuple):
    """The function `caller` went over the whole table `times` times; this took `seconds` seconds in total."""

    caller: str
    times: int
    seconds: float


@dataclass(slots=True)
class Measurement:
    """The cost of one event. Times in `…_s` are seconds."""

    event: str
    cpu_s: float  # the active controller's whole processor time
    virtual_s: float  # from the event until the table was settled, or the time limit
    watched_s: float  # the time for which `cpu_s` was counted
    turns: int
    longest_s: float
    culprit: str
    rows: int  # recorded rows of partitions
    records: int
    sent_bytes: int  # of Raft messages
    planned_s: float  # the processor time of plans, which a daemon makes on a thread
    most: list[tuple[str, float]]  # the tasks and callbacks that took most, with their seconds
    ended: bool
    visited: int  # rows of the table, if visits are counted
    walks: list[Walk]
    profile: Profile | None

    SHOWN: ClassVar = (
        *("event", "cpu_s", "virtual_s", "watched_s", "turns", "longest_s", "culprit", "rows", "records", "sent_bytes"),
        *("planned_s", "most", "ended", "visited", "walks"),
    )


class Scenario:
    """Runs the events. If `watched`, it also counts visits of rows; if `profiled`, it also profiles functions. Both add
    to the processor time that it measures.
    """

    def __init__(self, world: ScaleWorld, *, watched: bool = False, profiled: bool = False) -> None:
        self._world = world
        self._watched = watched
        self._profiled = profiled
        self._visits: Visits | None = None

    def run(self) -> Iterator[Measurement]:
        """Run and measure all events one by one. Before each event, the table is settled."""
        nodes = list(self._world.nodes.values())
        one, zone = nodes[len(nodes) // 2], self._world.in_zone("c")
        restarted = nodes[VOTERS : VOTERS + RESTARTS]
        count = max(1, len(nodes) // SHARE_ADDED)
        yield self.measure("create", self._create)
        yield self.measure(IDLE, lambda: self._run(IDLE_S))
        yield self.measure("one node fails", one.kill, lambda: self._known([one], up=False))
        yield self.measure("it comes back", one.start, lambda: self._known([one], up=True))
        yield self.measure("a zone fails", lambda: _each(zone, FakeNode.kill), lambda: self._known(zone, up=False))
        yield self.measure(
            "the zone comes back", lambda: _each(zone, FakeNode.start), lambda: self._known(zone, up=True)
        )
        yield self.measure(f"{RESTARTS} nodes restart, one by one", lambda: self._restart(restarted))
        yield self.measure("another voter leads", self._transfer)
        yield self.measure(f"{count} nodes are added", lambda: self._world.add_nodes(count), self._all_are_members)
        yield self.measure("reassign", self._reassign)

    def measure(self, event: str, begin: Callable[[], object], done: Callable[[], bool] = lambda: True) -> Measurement:
        """Call `begin`, wait until the table is settled and `done()` is true, and return the cost of the event."""
        world, observer = self._world, self._world.observer
        profile = self._reset()
        began, rows, records = world.timeline.now, observer.rows, observer.records
        try:
            begin()
        except MinkaError:  # during the event, the controller may lose its leadership
            ended = False
        else:
            settled = lambda: done() and not observer.unsettled and not observer.operations  # noqa: E731
            ended = self._until(settled, began + PATIENCE_S)
        settled_at = observer.changed_at if ended and observer.changed_at > began else world.timeline.now
        self._until(world.has_told_all, world.timeline.now + PATIENCE_S)
        self._run(TAIL_S)
        active, visits = world.leader(), self._visits or Visits()
        meter = active.meter
        return Measurement(
            event=event,
            cpu_s=meter.seconds,
            virtual_s=settled_at - began,
            watched_s=world.timeline.now - began,
            turns=meter.turns,
            longest_s=meter.longest_s,
            culprit=meter.culprit,
            rows=observer.rows - rows,
            records=observer.records - records,
            sent_bytes=active.sent_bytes,
            planned_s=active.planned_s,
            most=meter.most(_SHOWN),
            ended=ended,
            visited=visits.rows,
            walks=[Walk(who, times, visits.seconds[who]) for who, times in visits.walks.most_common()],
            profile=profile,
        )

    def _reset(self) -> Profile | None:
        """Set all counters to zero; returns the profile that the next event will fill, or None if not `profiled`."""
        gc.collect()
        if self._watched and self._visits is None:
            self._visits = watch(self._world.controller())
        if self._visits is not None:
            self._visits.reset()
        profile = Profile() if self._profiled else None
        for voter in self._world.voters.values():
            voter.meter.reset()
            voter.meter.profile = profile if voter is self._world.leader() else None
            voter.sent_bytes, voter.planned_s = 0, 0.0
        return profile

    def _run(self, seconds: float) -> None:
        self._world.timeline.run_until(self._world.timeline.now + seconds)

    def _until(self, done: Callable[[], bool], end: float) -> bool:
        while not done():
            if self._world.timeline.now >= end:
                return False
            self._run(LOOK_S)
        return True

    def _answer(self, answers: list[Any]) -> Any:
        assert self._until(lambda: bool(answers), self._world.timeline.now + PATIENCE_S), "no answer"
        if isinstance(answers[0], MinkaError):
            raise answers[0]
        return answers[0]

    def _known(self, nodes: Sequence[FakeNode], *, up: bool) -> bool:
        return all(self._world.is_up(node.id) is up for node in nodes)

    def _all_are_members(self) -> bool:
        """True if all nodes are up, and all nodes that should have the log have it."""
        world = self._world
        return self._known(list(world.nodes.values()), up=True) and world.members() >= world.wanted_members()

    # Events

    def _create(self) -> None:
        left, number = self._world.size.partitions, 0
        while left:
            count, number = min(left, MAX_KEYSPACE), number + 1
            left -= count
            request = CreateKeyspaceRequest(
                name=f"keyspace{number}", partition_count=count, replicas=3, hash=HashFunction.HASH_FUNCTION_MURMUR3
            )
            self._answer(self._world.ask("create_keyspace", request))

    def _restart(self, nodes: Sequence[FakeNode]) -> None:
        observer = self._world.observer
        for node in nodes:
            node.restart(DOWN_S)
            self._until(lambda node=node: not node.alive, self._world.timeline.now + PATIENCE_S)  # type: ignore[misc]
            self._until(
                lambda node=node: self._known([node], up=True) and not observer.unsettled,  # type: ignore[misc]
                self._world.timeline.now + PATIENCE_S,
            )

    def _transfer(self) -> None:
        before = self._world.leader()
        second = list(self._world.nodes)[1]
        while self._world.active() in (None, before):  # a transfer that fails is requested again
            before.spawn(_transfer_to(before, second), "transfer")
            self._until(lambda: self._world.active() not in (None, before), self._world.timeline.now + TRANSFER_S)
        self._visits = None
        if self._watched:
            self._visits = watch(self._world.controller())

    def _reassign(self) -> None:
        plan = self._answer(self._world.ask("plan_reassign", PlanReassignRequest(reason="new nodes")))
        request = ApplyPlanRequest(plan=plan, requested_by="somebody")
        operation = self._answer(self._world.ask("apply_plan", request)).operation
        self._until(lambda: operation.id in self._world.observer.operations, self._world.timeline.now + PATIENCE_S)


async def _transfer_to(voter: Voter, node: str) -> None:
    with suppress(MinkaError):  # it leads no more
        await voter.coordinator.transfer_leadership(node)


def _each(nodes: Sequence[FakeNode], act: Callable[[FakeNode], None]) -> None:
    for node in nodes:
        act(node)
