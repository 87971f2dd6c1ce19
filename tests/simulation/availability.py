"""Two checks, made from outside with the true state of all nodes: no living node is marked FAILED, and every partition
that can be served is served.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from minka.cluster.in_sync import has_everything
from minka.v1.cluster_pb2 import Durability, Keyspace, Node, NodeState, Partition
from minkad.core.controller.failure_detector import PATIENCE
from minkad.core.state import is_up
from minkad.storage.log_database import STALLED_S
from tests.simulation.network import Link
from tests.simulation.process import Machine, Process
from tests.simulation.trace import Violation

if TYPE_CHECKING:
    from tests.simulation.full_world import FullWorld

FIRST_UNIX_MS: Final = 1_800_000_000_000
_LOOK: Final = 0.25  # seconds between two checks of the served partitions
_SERVED_AFTER: Final = 4.0  # seconds within which a partition is served again if a replica could lead it
_LEFT_OUT: Final = 1.0  # seconds added to the lag timeout: after both, a lagging replica has left the in-sync set
_FAIR: Final = 0.3  # seconds added to the failure timeout: a node that is well for longer must not be marked FAILED
_MAX_DELAY: Final = 0.06  # seconds for a message: in slower networks heartbeats may be late, so nodes may be FAILED


class Availability:
    """Watches the recorded rows and the served partitions. Its methods raise Violation."""

    def __init__(self, world: "FullWorld") -> None:
        self._world = world
        profile = world.network.profile
        self._is_fast = profile.delay * (50 if profile.straggling else 1.5) <= _MAX_DELAY
        self._healed: dict[Link, float] = {}
        self._led_since: tuple[Process | None, int, float] = (None, 0, 0.0)
        # by partition: the nodes that had all of its writes when a leader last served it
        self._in_use: dict[int, frozenset[str]] = {}
        self._unserved_since: dict[int, float] = {}

    def begin(self) -> None:
        """Check from now on."""
        self._world.after(_LOOK, self._look)

    def heal(self) -> None:
        """Make the network whole again."""
        for link in self._world.network.heal():
            self._healed[link] = self._world.now

    # The times since which machines have been well

    def _well_since(self, machine: Machine) -> float:
        """The time since which the machine's process has run without a pause, with a disk and a data port that answer;
        infinite if the process doesn't run now, or its disk or its data port doesn't answer.
        """
        process, now = machine.process, self._world.now
        if process is None or not process.alive or not process.built or process.stopping:
            return float("inf")
        if max(machine.stopped_until, machine.deaf_until) > now or process.disk_stalled:
            return float("inf")
        return max(process.built_at, machine.stopped_until, machine.deaf_until, process.stalled_until)

    def _works_since(self, machine: Machine) -> float:
        """The time since which no thread's work with the disk has been slow; infinite if a thread is slow now. The
        daemon doesn't count a slow thread as a hanging disk, but a split or the installation of a checkpoint may wait
        for the thread.
        """
        process, now = machine.process, self._world.now
        if process is None or any(now - began > STALLED_S for began in process.works):
            return float("inf")
        return process.worked_until

    def _connected_since(self, one: Machine, other: Machine) -> float:
        links = [(one.number, other.number), (other.number, one.number)]
        if one is not other and not all(self._world.network.connected(*link) for link in links):
            return float("inf")
        return max(self._healed.get(link, 0.0) for link in links)

    def _can_record_since(self, controller: Process) -> float:
        """The time since which a majority of the voters has been well and connected to the active controller."""
        voters = controller.driver.raw.status().config.voters
        since = self._well_since(controller.machine)
        for half in filter(None, voters):
            machines = [self._world.machine_with(raft_id) for raft_id in half]
            well = sorted(
                float("inf")
                if machine is None
                else max(self._well_since(machine), self._connected_since(machine, controller.machine))
                for machine in machines
            )
            since = max(since, well[len(half) // 2])
        return since

    # Failed nodes

    def recorded(self, before: Mapping[str, Node], after: Mapping[str, Node], controller: Machine | None) -> None:
        """Check each node that `controller` has just marked FAILED: the table had the nodes `before`, and has now the
        nodes `after`.
        """
        for node in after.values():
            old = before.get(node.id)
            if node.state == NodeState.NODE_STATE_FAILED and (old is None or old.state != node.state):
                self._check_failed(node, controller)

    def _check_failed(self, node: Node, controller: Machine | None) -> None:
        world, machine = self._world, self._world.machine(node.id)
        process = machine.process
        if controller is None or process is None or not process.built or not self._is_fast:
            return
        if process.member.node.incarnation != node.incarnation:
            return
        well = max(self._well_since(machine), self._connected_since(machine, controller))
        # The time of the decision: if disks hang, the decision may be recorded much later.
        decided_at = (node.state_since_ms - FIRST_UNIX_MS) / 1000
        if decided_at - well > world.controller_settings.failure_timeout + _FAIR:
            raise Violation(
                "no running node is failed",
                f"{controller.id} has marked {node.id} FAILED ({node.state_reason}), though the node has run and "
                f"been connected to the controller for {decided_at - well:.2f} s",
            )

    # Partitions

    def _look(self) -> None:
        world = self._world
        world.after(_LOOK, self._look)
        active = world.active()
        term = active.driver.raw.basic_status().term if active is not None else 0
        if self._led_since[:2] != (active, term):
            self._led_since = (active, term, world.now)
        for id_, row in world.rows.items():
            self._note_served(id_)
            if id_ in self._unserved_since and active is not None:
                self._check_unserved(row, active)

    def _note_served(self, id_: int) -> None:
        server = next((p for p in self._world.processes() if p.serves(id_)), None)
        if server is None or server.machine.deaf_until > self._world.now:
            self._unserved_since.setdefault(id_, self._world.now)
        else:
            self._world.check_holder(server, id_)
            self._in_use[id_] = frozenset(has_everything(server.rows[id_]))
            self._unserved_since.pop(id_, None)

    def in_use(self, row: Partition) -> None:
        """Note that the leader may act on this row from now on: the leader serves, or has proposed this in-sync set.
        The leader may also have died: it may have heard, before its death, that the row was recorded.
        """
        self._in_use[row.id] = frozenset(has_everything(row))

    def _patience(self, active: Process) -> float:
        """The additional seconds that the controller waits before it marks nodes FAILED, if more than half of the nodes
        are silent or were just marked FAILED.
        """
        world = self._world
        lately = world.now - _SERVED_AFTER
        nodes = active.coordinator.state.nodes.values()
        up = [world.machine(node.id) for node in nodes if is_up(node) or _failed_at(node) > lately]
        quiet = sum(max(self._well_since(m), self._connected_since(m, active.machine)) > lately for m in up)
        return PATIENCE * world.controller_settings.failure_timeout if quiet > len(up) / 2 else 0.0

    def _waits_for_others(self, row: Partition, node_id: str) -> bool:
        """True if another node than `node_id` has a replica in sync, and came back a moment ago. A leader doesn't
        serve before this replica has caught up or has left the in-sync set.
        """
        others = (self._world.machine(other) for other in has_everything(row) if other != node_id)
        lately = self._world.now - self._world.lag_timeout - _LEFT_OUT
        return any(lately < self._well_since(other) < float("inf") for other in others)

    def _check_unserved(self, row: Partition, active: Process) -> None:
        world, controller = self._world, active.machine
        keyspace: Keyspace | None = world.keyspaces.get(row.keyspace_id)
        if keyspace is None or keyspace.durability == Durability.DURABILITY_ASYNC:
            return  # not checked: a restarted replica may lack unsynced entries
        since = max(self._unserved_since[row.id], self._led_since[2], self._can_record_since(active))
        if row.leader:  # a leader may wait for a slow thread before it serves
            since = max(since, self._works_since(world.machine(row.leader)))
        after = _SERVED_AFTER + self._patience(active)
        for node_id in sorted(self._in_use.get(row.id, frozenset())):
            machine = world.machine(node_id)
            well = max(since, self._well_since(machine), self._works_since(machine))
            well = max(well, self._connected_since(machine, controller))
            if node_id not in row.replicas or node_id in row.removing_replicas or world.now - well < after:
                continue
            if self._waits_for_others(row, node_id):
                continue
            raise Violation(
                "a partition that can be served is served",
                f"no node has served partition {row.id} for {world.now - well:.2f} s, though {node_id} had all "
                f"its writes when it was last served, is well and connected to the controller {controller.id}; "
                f"the row: {' '.join(str(row).split())}",
            )


def _failed_at(node: Node) -> float:
    """The time at which the node was marked FAILED; minus infinity if it isn't FAILED."""
    if node.state != NodeState.NODE_STATE_FAILED:
        return float("-inf")
    return (node.state_since_ms - FIRST_UNIX_MS) / 1000
