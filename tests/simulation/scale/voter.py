"""A voter's process: the real coordinator, driver, Raft core and transport of Raft messages."""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf.message import Message as AnyMessage

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import Plan
from minka.v1.cluster_pb2 import Node
from minka.v1.coordinator_pb2 import HeartbeatRequest, UpdateReplicasRequest, UpdateReplicasResponse
from minka.v1.raft_pb2 import ConfState, RaftMessageBatch, Snapshot
from minkad.coordinator.admin_requests import AdminRequests
from minkad.coordinator.coordinator import Bootstrap, Coordinator
from minkad.coordinator.node_requests import NodeRequests
from minkad.coordinator.raft_driver import RaftDriver
from minkad.core.raft import Config, RawNode, Ready
from minkad.core.raft.sender import sender_of
from minkad.data_port.raft import RaftTransport
from minkad.node.settings import LEARNERS_A_BEAT
from minkad.rpc.validation import check
from minkad.storage.log_database import LogDatabase
from minkad.storage.raft_storage import RaftStorage
from tests.simulation.scale.fake_node import FakeNode
from tests.simulation.scale.ports import SimPorts
from tests.simulation.scale.timeline import Host
from tests.vectors.memory_storage import MemoryStorage

if TYPE_CHECKING:
    from tests.simulation.scale.world import ScaleWorld

_SYNC_S: Final = 0.001
_UPDATE_TIMEOUT_S: Final = 2.0
_TICK_S: Final = 0.05
_ELECTION_TICKS: Final = 10
_SNAPSHOT_ENTRIES: Final = 10_000


class Voter(Host):
    """The process of a voter. It never ends."""

    def __init__(self, world: "ScaleWorld", node: Node, start: Snapshot) -> None:
        super().__init__(world.timeline, charged=world.size.charged)
        self.world = world
        self.node = node
        self.sent_bytes = 0  # the size of all sent Raft messages
        self.planned_s = 0.0  # processor time of plans, which a daemon makes on a thread
        rng = random.Random(node.raft_id)
        self.coordinator = Coordinator(
            Coordinator.decode(start.data),
            Bootstrap(world.cluster, ()),
            world.controller_settings,
            world.voter_settings,
            update_replicas=self._update_replicas,
            now=self.now,
            jitter=rng,
            in_thread=self._in_thread,
        )
        self.requests = NodeRequests(self.coordinator)
        self.admin_requests = AdminRequests(self.coordinator, self._in_thread)
        self.driver = self._driver(start, rng)
        self.coordinator.driver = self.transport.driver = self.driver
        self.loop.create_task(self.driver.run(), name="raft")

    def _driver(self, start: Snapshot, rng: random.Random) -> RaftDriver:
        log = _Log(start, self)
        ports = SimPorts(self)
        self.transport = RaftTransport(
            ports.connect,
            ports.send_snapshot,
            self.node.address,
            self._address_of,
            lambda _: (),
        )
        return RaftDriver(
            RawNode(
                Config(
                    id=self.node.raft_id,
                    storage=log.storage,
                    random=rng.randrange,
                    election_tick=_ELECTION_TICKS,
                    learners_a_beat=LEARNERS_A_BEAT,
                    applied=start.metadata.index,
                    commit_by_vote=True,
                    disable_proposal_forwarding=True,
                )
            ),
            cast("RaftStorage", log),
            cast("LogDatabase", log),
            self.transport,
            self.world.machine(self),
            tick_seconds=_TICK_S,
            snapshot_entries=_SNAPSHOT_ENTRIES,
            conf_state=start.metadata.conf_state,
            on_progress=self.coordinator.on_progress,
            clock=self.now,
            in_thread=self._in_thread,
            piece_seconds=0.0,
        )

    def _address_of(self, raft_id: int) -> str | None:
        node = self.coordinator.node_with(raft_id)
        return node.address if node is not None else None

    # Arrivals

    def hear(self, data: bytes, address: str) -> None:
        """Give the driver Raft messages that have arrived, as `RaftReceiver` does."""
        messages = RaftMessageBatch.FromString(data).messages
        if sender := sender_of(messages):
            self.transport.heard_from(sender, address)
        self.driver.receive(messages)

    def heartbeat(self, node: FakeNode, incarnation: str, data: bytes) -> None:
        """Answer a heartbeat that has arrived."""
        request = HeartbeatRequest.FromString(data)
        check(request)
        try:
            self.requests.heartbeat(request).SerializeToString()
        except MinkaError as error:
            if error.code is Code.NOT_REGISTERED:
                self.timeline.after(self.timeline.delay(), node.refused, incarnation)

    def serve(
        self, requests: object, method: str, data: bytes, kind: type[AnyMessage], answered: Callable[[Any], object]
    ) -> None:
        """Carry out a request that has arrived; call `answered` later with the response or the MinkaError."""

        async def answer() -> None:
            request = kind.FromString(data)
            try:
                check(request)
                response = await getattr(requests, method)(request)
            except MinkaError as error:
                self.timeline.after(self.timeline.delay(), answered, error)
            else:
                response.SerializeToString()
                self.timeline.after(self.timeline.delay(), answered, response)

        self.spawn(answer(), method)

    # Requests to other nodes

    async def _update_replicas(self, node_id: str, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        future: asyncio.Future[UpdateReplicasResponse] = self.loop.create_future()
        request.SerializeToString()

        def answered(answer: UpdateReplicasResponse | MinkaError) -> None:
            data = b"" if isinstance(answer, MinkaError) else answer.SerializeToString()
            self.timeline.after(self.timeline.delay(), self.arrive, _settle, future, answer, data)

        node = self.world.nodes[node_id]
        self.timeline.after(self.timeline.delay(), node.update_replicas, request, answered)
        try:
            async with asyncio.timeout(_UPDATE_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise MinkaError(Code.DEADLINE_EXCEEDED, f"{node_id} did not answer in time") from None

    async def _in_thread(self, plan: Callable[..., Plan], *arguments: Any) -> Plan:
        """Call `plan` at once. A daemon calls it on a thread, so its time doesn't count as the loop's."""
        return self.world.beside(self, lambda: plan(*arguments))


def _settle(
    future: asyncio.Future[UpdateReplicasResponse], answer: UpdateReplicasResponse | MinkaError, data: bytes
) -> None:
    if future.done():
        return
    if isinstance(answer, MinkaError):
        future.set_exception(answer)
    else:
        future.set_result(UpdateReplicasResponse.FromString(data))


class _Log:
    """The Raft log and its database in one class: the parts of `RaftStorage` and `LogDatabase` that `RaftDriver` uses.
    Voters' processes don't die in this world, so the log doesn't distinguish synced writes from others.
    """

    stalled = False

    def __init__(self, start: Snapshot, voter: Voter) -> None:
        self.storage = MemoryStorage()
        self.storage.apply_snapshot(start)
        self._voter = voter
        self.term, self.first_index = self.storage.term, self.storage.first_index
        self.snapshot, self.initial_state = self.storage.snapshot, self.storage.initial_state

    def stage(self, ready: Ready) -> None:
        if ready.snapshot is not None:
            self.storage.apply_snapshot(ready.snapshot)
        if ready.entries:
            self.storage.append(ready.entries)
        if ready.hard_state is not None:
            self.storage.set_hard_state(ready.hard_state)

    def stage_snapshot(self, index: int, term: int, conf_state: ConfState, data: bytes) -> None:
        assert self.term(index) == term, (index, term)
        self.storage.create_snapshot(index, conf_state, data)

    def compact(self, index: int) -> None:
        self.storage.compact(index)

    async def sync(self) -> None:
        await asyncio.sleep(_SYNC_S)
