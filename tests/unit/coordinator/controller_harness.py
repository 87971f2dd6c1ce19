"""A harness around the active controller: proposals are committed at once, and nodes answer like real ones."""

import asyncio
import random
from collections.abc import Callable, Collection

from minka.v1.admin_pb2 import PlanReassignRequest
from minka.v1.cluster_pb2 import Cluster, HashFunction, Node, PartitionState
from minka.v1.coordinator_pb2 import HeartbeatRequest, UpdateReplicasRequest, UpdateReplicasResponse
from minka.v1.records_pb2 import RecordBatch
from minkad.coordinator.active_controller import ActiveController
from minkad.coordinator.controller_settings import ControllerSettings
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.membership import CreateCluster
from minkad.core.controller.mover import MigrationCaps
from minkad.core.controller.reassigns import ApplyPlan
from minkad.core.placement import plan_reassign
from minkad.core.state import State, is_up

SETTINGS = ControllerSettings(1.0, 3600.0, 60.0, MigrationCaps(4, 32))
STEP = 0.05  # seconds between two ticks
ONLINE = PartitionState.PARTITION_STATE_ONLINE


class Harness:
    """An active controller of one term, with its own state. `now` is the time on its clock."""

    def __init__(
        self,
        state: State | None = None,
        settings: ControllerSettings = SETTINGS,
        *,
        raft_id: int = 0,
        former: int = 0,
        silent_for: float = 0.0,
    ) -> None:
        self.state = state or State()
        self.now = 1000.0
        self.ticks = 0
        self.held: list[tuple[tuple[bytes, ...], asyncio.Future[None]]] | None = None
        self.confirms = True  # if true, a quorum confirms at once that this node leads
        self.batches: list[RecordBatch] = []
        self.hand_overs: list[str] = []  # the reasons for which the controller handed its role over
        self.controller = ActiveController(
            self.state,
            1,
            settings,
            raft_log=self,
            raft_id=raft_id,
            former_leader=former,
            unconfirmed_since=self.now - silent_for,
            update_replicas=self.update_replicas,
            before_tick=self.count_tick,
            hand_over=self.hand_overs.append,
            now=lambda: self.now,
            jitter=random.Random(0),
            in_thread=asyncio.to_thread,
        )

    def confirm_leadership(self, now: float, confirmed: Callable[[float], None]) -> None:
        if self.confirms:
            confirmed(now)

    async def logged_by(self, raft_ids: Collection[int]) -> None:
        """Return at once: in these tests every node has the log already."""

    def count_tick(self) -> None:
        self.ticks += 1

    async def pass_time(self, seconds: float, *silent: str) -> None:
        """Let time pass in ticks, while all other nodes send heartbeats."""
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            for node in self.state.nodes.values():
                if node.id not in silent and is_up(node):
                    self.controller.heartbeat(HeartbeatRequest(node_id=node.id, incarnation="1"))
            await self.look_around()

    async def look_around(self) -> None:
        """Wait until the controller has looked at the whole state at least once from now on."""
        seen = self.ticks
        await until(lambda: self.ticks >= seen + 2)

    def propose(self, *data: bytes) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.held is not None:
            self.held.append((data, future))
        else:
            asyncio.get_running_loop().call_soon(self.commit, data, future)
        return future

    def hold(self) -> None:
        """Commit nothing until `release`."""
        self.held = []

    def release(self) -> None:
        """Commit the held commands."""
        held, self.held = self.held, None
        for data, future in held or ():
            self.commit(data, future)

    def commit(self, data: tuple[bytes, ...], future: asyncio.Future[None]) -> None:
        for one in data:
            self.batches.append(RecordBatch.FromString(one))
            self.controller.outboxes.carry_out(self.state.apply_batch(self.batches[-1]))
        future.set_result(None)

    async def update_replicas(self, node: str, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        response = UpdateReplicasResponse()
        for row in request.partitions:
            if node in row.replicas and node not in row.removing_replicas:
                response.hosted_ids.append(row.id)
                response.hosted_epochs.append(row.partition_epoch)
            else:
                response.deleted_ids.append(row.id)
        return response

    async def begin(self, *nodes: str, replicas: int) -> None:
        await self.controller.run(CreateCluster(Cluster(id="c", name="test", min_nodes=1), ()))
        for node in nodes:
            await self.register(node)
        await self.controller.run(CreateKeyspace("flights", 2, HashFunction.HASH_FUNCTION_MURMUR3, replicas))
        await until(self.all_online)

    def all_online(self) -> bool:
        return all(row.state == ONLINE for row in self.state.partitions.values())

    async def register(self, node: str) -> None:
        await self.controller.register(Node(id=node, data_id=node, incarnation="1", address=f"{node}:1"))

    async def reassign(self) -> int:
        await until(lambda: self.controller.decided.version == self.state.version)
        plan = plan_reassign(self.controller.decided, {}, PlanReassignRequest(), 0)
        await self.controller.run(ApplyPlan(plan, "tester", "", rate_limit=5_000_000))
        return max(self.state.operations)


class RecordingHarness(Harness):
    """A harness that keeps the proposals and the messages to nodes."""

    def __init__(self, state: State | None = None) -> None:
        self.proposed: list[list[RecordBatch]] = []
        self.requests: list[tuple[str, UpdateReplicasRequest]] = []
        super().__init__(state)

    def propose(self, *data: bytes) -> asyncio.Future[None]:
        self.proposed.append([RecordBatch.FromString(one) for one in data])
        return super().propose(*data)

    async def update_replicas(self, node: str, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        self.requests.append((node, request))
        return await super().update_replicas(node, request)


async def until(probe: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not probe():  # noqa: ASYNC110 - a state of the whole, which sets no event
            await asyncio.sleep(0.005)
