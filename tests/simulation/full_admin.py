"""Requests of administrators to the full world, and checks of the answers."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from minka.cluster.key_ranges import is_by_ranges
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import (
    ApplyPlanRequest,
    AssignedReplicas,
    CancelOperationRequest,
    CreateKeyspaceRequest,
    DrainNodeRequest,
    ElectLeadersRequest,
    MergeRequest,
    PlanReassignRequest,
    SplitRequest,
    UndrainNodeRequest,
)
from minka.v1.cluster_pb2 import Durability, HashFunction, Keyspace, NodeState
from minkad.core.state import State
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.full_world import FullWorld

_UNKNOWN: Final = (Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED)
MAX_KEYSPACES: Final = 10  # the number of keyspaces that `Admin` tries to create
_SOON: Final = 2  # `Admin` creates this number of keyspaces before any other request
LAST: Final = "last"
_BY_RANGES: Final = (0.5, 0.5, 1.0)  # the share of keyspaces by ranges; each run draws one of these
_RANGES_ONLY: Final = 0.3  # the share of the runs that mostly split and merge
_BOUNDS: Final = (0, 1, 2, 5)  # the number of bounds in a new keyspace
_MAX_BYTES: Final = (0, 0, 200, 400)  # the size from which a partition is split; 0: no limit
_QUEUED: Final = 0.3  # the share of requests that may be queued


class Admin:
    """Administrators. They create keyspaces, reassign, split and merge partitions, drain nodes, elect leaders, change
    the voters, and hand over the leadership. The seed decides which of these requests a run has, and how often.
    """

    def __init__(self, world: "FullWorld") -> None:
        self._world = world
        self._created: set[str] = set()  # names of keyspaces whose creation was acknowledged
        self._refused: set[str] = set()  # names of keyspaces whose creation was refused
        self._numbers = 0
        self._pause = world.rng.choice((0.2, 0.6))
        self._by_ranges_share = world.rng.choice(_BY_RANGES)
        actions = (
            self._create_next,
            self._reassign,
            self._assign,
            self._elect,
            self._drain,
            self._undrain,
            self._cancel,
            self._transfer,
            self._voters,
            self._split,
            self._merge,
        )
        weights = [world.rng.choice((0, 1, 1, 4)) for _ in actions]
        if world.rng.random() < _RANGES_ONLY:
            self._by_ranges_share = 1.0
            weights = [
                4 if action in (self._split, self._merge) else weight // 4
                for action, weight in zip(actions, weights, strict=True)
            ]
        self._actions = [action for action, weight in zip(actions, weights, strict=True) for _ in range(weight)]
        self._ended = False
        self.most = MAX_KEYSPACES

    def begin(self) -> None:
        """Start the requests."""
        self._world.after(1.0, self._next)

    def end(self) -> None:
        """Send only two further kinds of requests: undrain all nodes, and create a last keyspace."""
        self._ended = True
        self._world.after(1.0, self._undrain_all)
        self._world.after(1.0, self._create_last)

    def _create_last(self) -> None:
        active = self._world.active()
        if active is None or active.coordinator.state.keyspace_named(LAST) is None:
            self._world.after(1.0, self._create_last)
        if active is not None:
            self._ask(active, LAST, lambda process: self._create(process, LAST))

    def _next(self) -> None:
        if self._ended:
            return
        world = self._world
        world.after(world.rng.expovariate(1 / self._pause), self._next)
        processes = world.processes()
        if not processes:
            return
        active = world.active()
        process = active if active is not None and world.rng.random() < 0.8 else world.rng.choice(processes)
        begun = len(self._created) >= _SOON and self._actions
        (world.rng.choice(self._actions) if begun else self._create_next)(process)

    def _ask(self, process: Process, name: str, ask: Callable[[Process], Awaitable[object]]) -> None:
        async def asking() -> None:
            try:
                await ask(process)
            except MinkaError as error:
                if process.alive and error.code not in _UNKNOWN and name != LAST:
                    self._refused.add(name)

        if self._world.now >= process.machine.stopped_until:
            process.spawn(asking())

    # Administrators

    def _create_next(self, process: Process) -> None:
        if self._numbers < self.most:
            self._numbers += 1
            name = f"k{self._numbers}"
            self._ask(process, name, lambda to: self._create(to, name))

    async def _create(self, process: Process, name: str) -> None:
        rng = self._world.rng
        replicas = rng.randint(1, 3) if name != LAST else 1
        request = CreateKeyspaceRequest(
            name=name,
            partition_count=rng.randint(1, 3),
            hash=HashFunction.HASH_FUNCTION_MURMUR3,
            replicas=replicas,
            min_insync=rng.randint(1, replicas),
            durability=rng.choice((Durability.DURABILITY_SYNC, Durability.DURABILITY_ASYNC)),
            unclean_election=rng.random() < 0.2,
        )
        if rng.random() < self._by_ranges_share and name != LAST:
            points = sorted(rng.sample(range(256), rng.choice(_BOUNDS)))
            request.ranges.split_points.extend(b"%02x" % point for point in points)
            request.ranges.max_bytes = rng.choice(_MAX_BYTES)
            request.partition_count = 0
        await process.admin_requests.create_keyspace(request)
        if process.alive:
            self._world.say(process.machine.id, "created", name)
            self._created.add(name)

    def _reassign(self, process: Process) -> None:
        """Spread the partitions over some nodes, or move all partitions away from one node."""
        rng = self._world.rng
        nodes = [machine.id for machine in self._world.machines]
        some = sorted(rng.sample(nodes, rng.randint(1, len(nodes))))
        request = PlanReassignRequest(to=some) if rng.random() < 0.7 else PlanReassignRequest(drain=some[:1])
        request.queue = rng.random() < _QUEUED
        self._plan(process, request)

    def _assign(self, process: Process) -> None:
        """Assign random replicas to some partitions, in one plan."""
        rng = self._world.rng
        nodes = [machine.id for machine in self._world.machines]
        ids = sorted(process.coordinator.state.partitions) if process.built else []
        chosen = rng.sample(ids, min(len(ids), rng.randint(1, 4)))
        wishes = [
            AssignedReplicas(partition_id=id_, replicas=rng.sample(nodes, min(len(nodes), rng.randint(1, 3))))
            for id_ in chosen
        ]
        if wishes:
            self._plan(process, PlanReassignRequest(partitions=wishes, queue=rng.random() < _QUEUED))

    def _plan(self, process: Process, request: PlanReassignRequest) -> None:
        async def apply(server: Process) -> None:
            plan = await server.admin_requests.plan_reassign(request)
            await server.admin_requests.apply_plan(ApplyPlanRequest(plan=plan, requested_by="simulation"))

        self._ask(process, "", apply)

    def _split(self, process: Process) -> None:
        """Split at one or two keys. Some may already be bounds of partitions."""
        rng = self._world.rng
        if keyspace := self._by_ranges(process):
            keys = [b"%02x" % rng.randrange(256) for _ in range(rng.randint(1, 2))]
            request = SplitRequest(keyspace=keyspace.name, keys=keys, requested_by="simulation")
            request.queue = rng.random() < _QUEUED
            self._ask(process, "", lambda to: to.admin_requests.split(request))

    def _merge(self, process: Process) -> None:
        """Merge at one or two bounds, or at all of them."""
        rng = self._world.rng
        if keyspace := self._by_ranges(process):
            rows = [row for row in process.coordinator.state.partitions.values() if row.keyspace_id == keyspace.id]
            bounds = [row.start_key for row in rows if row.start_key]
            request = MergeRequest(keyspace=keyspace.name, requested_by="simulation", queue=rng.random() < _QUEUED)
            request.keys.extend(rng.sample(bounds, min(len(bounds), rng.choice((1, 2, len(bounds))))))
            self._ask(process, "", lambda to: to.admin_requests.merge(request))

    def _by_ranges(self, process: Process) -> Keyspace | None:
        if not process.built:
            return None
        keyspaces = [one for one in process.coordinator.state.keyspaces.values() if is_by_ranges(one)]
        return self._world.rng.choice(keyspaces) if keyspaces else None

    def _elect(self, process: Process) -> None:
        request = ElectLeadersRequest(requested_by="simulation", queue=self._world.rng.random() < _QUEUED)
        self._ask(process, "", lambda to: to.admin_requests.elect_leaders(request))

    def _drain(self, process: Process) -> None:
        rng = self._world.rng
        node_id, decommission = rng.choice(self._world.machines).id, rng.random() < 0.3
        request = DrainNodeRequest(node=node_id, decommission=decommission, requested_by="simulation")
        request.queue = self._world.rng.random() < _QUEUED
        self._ask(process, "", lambda to: to.admin_requests.drain_node(request))

    def _undrain(self, process: Process) -> None:
        self._undrain_node(process, self._world.rng.choice(self._world.machines).id)

    def _undrain_node(self, process: Process, node_id: str) -> None:
        request = UndrainNodeRequest(node=node_id)
        self._ask(process, "", lambda to: to.admin_requests.run(request))

    def _undrain_all(self) -> None:
        self._world.after(1.0, self._undrain_all)
        active = self._world.active()
        if active is not None:
            for node in active.coordinator.state.nodes.values():
                if node.state == NodeState.NODE_STATE_DRAINING:
                    self._undrain_node(active, node.id)

    def _cancel(self, process: Process) -> None:
        async def cancel(server: Process) -> None:
            newest = server.coordinator.controller().decided.next_operation_id - 1
            await server.admin_requests.run(CancelOperationRequest(id=newest, requested_by="simulation"))

        self._ask(process, "", cancel)

    def _transfer(self, process: Process) -> None:
        to = self._world.rng.choice(self._world.machines).id

        async def transfer(server: Process) -> None:
            await server.coordinator.transfer_leadership(to)

        self._ask(process, "", transfer)

    def _voters(self, process: Process) -> None:
        one, other = self._world.rng.choice(self._world.machines).id, self._world.rng.choice(self._world.machines).id

        async def change(server: Process) -> None:
            await server.coordinator.change_voters([one], [other] if other != one else [])

        self._ask(process, "", change)

    # The end

    def missing(self, state: State) -> str:
        """Check that acknowledged keyspaces exist, and that refused ones don't; returns an error if the last keyspace
        isn't created yet, else "".
        """
        names = {keyspace.name for keyspace in state.keyspaces.values()}
        assert self._created <= names, f"acknowledged, but gone: {self._created - names}"
        assert not self._refused & names, f"refused, but there: {self._refused & names}"
        return "" if LAST in names else "the last keyspace is not created"
