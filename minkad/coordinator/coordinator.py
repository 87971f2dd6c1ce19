"""The replicated state on this node, and the controller while this node is the leader."""

import asyncio
import logging
import random
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import SeatMove
from minka.v1.cluster_pb2 import Cluster, Node, NodeState
from minka.v1.coordinator_pb2 import UpdateReplicasRequest, UpdateReplicasResponse
from minka.v1.records_pb2 import RecordBatch
from minkad.coordinator.active_controller import ActiveController
from minkad.coordinator.controller_settings import ControllerSettings
from minkad.coordinator.raft_driver import RaftDriver
from minkad.core.controller.membership import CreateCluster
from minkad.core.controller.seats import Seats
from minkad.core.controller.voters import VoterSettings, change_voters, check_transfer, next_membership_change
from minkad.core.state import NotifyShard, State
from minkad.duties.control.duty_history import DutyHistory
from minkad.process import tasks
from minkad.process.clock import unix_ms
from minkad.process.failpoints import failpoint
from minkad.process.turns import InThread

log: Final = logging.getLogger(__name__)

_MEMBERS_INTERVAL_S: Final = 0.1  # between looks at the Raft configuration
_MEMBERS_S_A_NODE: Final = 0.001  # added for each node; a look takes a 500th of this time


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The first content of a new cluster's table, from the configuration: the cluster and its first voters."""

    cluster: Cluster
    voters: Sequence[Node]


class Coordinator:
    """The state machine under the Raft log. `driver` is set once, before anything is applied."""

    driver: RaftDriver

    def __init__(
        self,
        state: State,
        bootstrap: Bootstrap,
        settings: ControllerSettings,
        voters: VoterSettings,
        *,
        update_replicas: Callable[[str, UpdateReplicasRequest], Awaitable[UpdateReplicasResponse]],
        now: Callable[[], float],
        jitter: random.Random,
        in_thread: InThread = asyncio.to_thread,
    ) -> None:
        self.state = state
        self.active: ActiveController | None = None
        self.on_leader_change: Callable[[], None] = lambda: None  # this and the following are set once, as `driver` is
        self.on_nodes_changed: Callable[[], None] = lambda: None
        self.on_shards_changed: Callable[[Sequence[NotifyShard]], None] = lambda _: None
        self.on_loads_changed: Callable[[], None] = lambda: None
        self.on_restored: Callable[[], None] = lambda: None
        self.history = DutyHistory()
        self._leader_id = 0
        self._members_due = float("-inf")
        self._bootstrap = bootstrap
        self._settings = settings
        self._voters = voters
        self._update_replicas = update_replicas
        self._now = now
        self._jitter = jitter
        self._in_thread = in_thread

    # The state machine

    @failpoint("coordinator.apply")
    def apply(self, data: bytes) -> None:
        """Apply a committed entry."""
        batch = RecordBatch.FromString(data)
        self.history.note(batch, self.state)
        effects = self.state.apply_batch(batch, is_checked=True)
        if self.active is not None:
            self.active.outboxes.carry_out(effects)
        if to_shards := [effect for effect in effects if isinstance(effect, NotifyShard)]:
            self.on_shards_changed(to_shards)
        if any(record.HasField("node_changed") for record in batch.records):
            self.on_nodes_changed()
        if any(record.HasField("load_changed") for record in batch.records):
            self.on_loads_changed()

    @staticmethod
    def decode(snapshot: bytes) -> State:
        """The state in a snapshot; the empty state for no bytes."""
        return State.from_snapshot(zlib.decompress(snapshot) if snapshot else b"")

    def restore(self, decoded: State) -> None:
        """Replace the state with one from the leader; this node doesn't lead, or no longer does."""
        self.resign()
        self.state = decoded
        self.on_nodes_changed()
        self.on_loads_changed()
        self.on_restored()

    def capture(self) -> Callable[[], bytes]:
        """Capture the state, for followers that lag and for the next start. Compression reduces a table to a tenth, so
        the loop spends less time on storing and sending the snapshot.
        """
        assert not self.state.incomplete, "a snapshot is of whole entries"
        captured = self.state.capture()
        return lambda: zlib.compress(captured.encode(), 1)

    # Leadership

    def on_progress(self) -> None:
        """The role, the applied index or the fate of a proposal may have changed."""
        active, status = self.active, self.driver.raw.basic_status()
        if status.leader_id != self._leader_id:
            self._leader_id = status.leader_id
            self.on_leader_change()
        leads = self.driver.leads_with_applied_term and not status.lead_transferee
        if active is not None and (active.failed or not leads or active.term != status.term):
            log.info("no longer the active controller", extra={"term": active.term})
            self.resign()
        if self.active is None and leads and not self.driver.proposals_under_way:
            self._activate()

    def resign(self) -> None:
        """End the active controller here, if there is one: this node no longer leads, or stops."""
        if self.active is not None:
            self.active.close()
            self.active = None

    def _activate(self) -> None:
        status = self.driver.raw.basic_status()
        term = status.term
        former, unconfirmed_since = self.driver.former_leader
        log.info("active controller", extra={"term": term})
        self.active = ActiveController(
            self.state,
            term,
            self._settings,
            raft_log=self.driver,
            raft_id=status.id,
            former_leader=former,
            unconfirmed_since=unconfirmed_since,
            update_replicas=self._update_replicas,
            before_tick=self._change_members,
            hand_over=self._hand_over_leadership,
            now=self._now,
            jitter=self._jitter,
            in_thread=self._in_thread,
        )
        if not self.state.cluster.id:
            tasks.start(self._found(self.active), "founding the cluster", self.active.fail)

    async def _found(self, active: ActiveController) -> None:
        with suppress(MinkaError):  # the next controller tries it again
            await active.run(CreateCluster(self._bootstrap.cluster, self._bootstrap.voters))

    def _change_members(self) -> None:
        """Propose the next change that the Raft configuration needs. If Raft drops it, a later look proposes it again.
        The more nodes there are, the less frequent the looks are.
        """
        driver, now, nodes = self.driver, self._now(), self.state.nodes
        if now < self._members_due:
            return
        self._members_due = now + _MEMBERS_INTERVAL_S + _MEMBERS_S_A_NODE * len(nodes)
        own = driver.raw.basic_status().id
        change = next_membership_change(driver.conf_state, nodes.values(), driver.match(), own, self._voters, unix_ms())
        if change is not None:
            log.info("changing the Raft configuration", extra={"change": str(change).replace("\n", " ")})
            driver.propose_conf_change(change)

    def seat_due(self) -> SeatMove | None:
        """The seat that must move to another zone; None if there is none, or this isn't the active controller."""
        driver = self.driver
        if self.active is None:
            return None
        seats = Seats(driver.conf_state, self.state.nodes.values(), driver.match())
        if (move := seats.move(driver.raw.basic_status().id)) is None:
            return None
        promote, demote = self.node_with(move.promote), self.node_with(move.demote)
        assert promote is not None, move
        assert demote is not None, move
        return SeatMove(promote=promote.id, demote=demote.id, live_for_ms=self._voters.replace_after_ms)

    # Changes of the Raft group on people's request

    async def change_voters(self, promote: Sequence[str], demote: Sequence[str]) -> None:
        """Propose the change of voters, if there is anything to change; if the proposal is lost, the caller has to ask
        again. Raises MinkaError, see `minkad.core.controller.change_voters`.
        """
        await self.up_to_date()
        driver, own = self.driver, self.driver.raw.basic_status().id
        change = change_voters(driver.conf_state, self.state.nodes, driver.match(), own, self._voters, promote, demote)
        if change is not None:
            log.info("changing the voters as asked", extra={"promote": list(promote), "demote": list(demote)})
            driver.propose_conf_change(change)

    async def transfer_leadership(self, node_id: str) -> None:
        """Ask a voter to take over. It does so within an election timeout, or not at all. Raises MinkaError."""
        await self.up_to_date()
        self.driver.transfer_leadership(check_transfer(self.driver.conf_state, self.state.nodes, node_id))

    def _hand_over_leadership(self, reason: str) -> None:
        """Transfer the leadership to a LIVE voter whose data port answers, if there is one: to the voter with the
        longest log.
        """
        active, driver, match = self.active, self.driver, self.driver.match()
        if active is None or driver.raw.basic_status().lead_transferee:
            return
        voters = [node for node in self.state.nodes.values() if node.raft_id in driver.conf_state.voters]
        able = [n for n in voters if n.state == NodeState.NODE_STATE_LIVE and not active.data_ports.unanswered(n.id)]
        if able:
            log.warning("this node serves nothing, so it hands over the active controller", extra={"reason": reason})
            driver.transfer_leadership(max(able, key=lambda node: match.get(node.raft_id, 0)).raft_id)

    def reconfigure(self, settings: ControllerSettings) -> None:
        """Use the settings of the reloaded configuration."""
        self._settings = settings
        if self.active is not None:
            self.active.settings = settings

    # Queries of the rest of the daemon

    def controller(self) -> ActiveController:
        """The active controller on this node. Raises NOT_CONTROLLER with the address of the active one, or
        NO_CONTROLLER.
        """
        if self.active is not None:
            return self.active
        leader = self.leader()
        if leader is None:
            raise MinkaError(Code.NO_CONTROLLER, "no leader is known to this node")
        raise MinkaError(
            Code.NOT_CONTROLLER,
            f"the active controller is {leader.id} at {leader.address}",
            leader=leader.id,
            leader_address=leader.address,
        )

    async def up_to_date(self) -> ActiveController:
        """The active controller on this node, once the state has all that was committed before the call. For answers
        on which people and programs act: a former leader may not know yet that there is another one. Raises
        NOT_CONTROLLER, NO_CONTROLLER.
        """
        controller = self.controller()
        await controller.up_to_date()
        return controller

    def leader(self) -> Node | None:
        """The node that leads the Raft group, as far as this node knows."""
        return self.node_with(self.driver.raw.basic_status().leader_id)

    def node_with(self, raft_id: int) -> Node | None:
        """The node with this raft id, by the state, or by the configuration while the state is empty."""
        known = [*self.state.nodes.values(), *self._bootstrap.voters]
        return next((n for n in known if n.raft_id == raft_id), None)

    def address_of(self, node_id: str) -> str:
        """The address of the node's gRPC server. Raises UNKNOWN_NODE."""
        return self._node(node_id).address

    def data_address_of(self, node_id: str) -> str:
        """The address of the node's data port. Raises UNKNOWN_NODE; UNREACHABLE until it has registered with one."""
        address = self._node(node_id).data_address
        if not address:
            raise MinkaError(Code.UNREACHABLE, f"the table has no address of the data port of {node_id}")
        return address

    def _node(self, node_id: str) -> Node:
        node = self.state.nodes.get(node_id)
        if node is None:
            raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {node_id}", node=node_id)
        return node
