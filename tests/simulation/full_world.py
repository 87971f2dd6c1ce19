"""The full world: complete coordinators and replicas on simulated machines, with clients and faults. Times are in
seconds.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final
from unittest import mock

from minka.v1.cluster_pb2 import Cluster, Keyspace, Node, NodeState, Partition, PartitionState
from minka.v1.raft_pb2 import ConfState
from minkad.coordinator import active_controller, admin_requests, coordinator, deciding
from minkad.coordinator.controller_settings import ControllerSettings
from minkad.coordinator.coordinator import Bootstrap
from minkad.core.controller.mover import MigrationCaps
from minkad.core.controller.voters import VoterSettings
from minkad.core.state import OPERATIONS_UNENDED, State, is_up
from minkad.replication.changing import load_check
from minkad.replication.surroundings import LoadSources
from tests.simulation.availability import FIRST_UNIX_MS, Availability
from tests.simulation.data_clients import Clients
from tests.simulation.data_oracle import DataOracle
from tests.simulation.disk import BOOTSTRAP_INDEX
from tests.simulation.endpoint import Endpoint
from tests.simulation.full_admin import Admin
from tests.simulation.full_nemesis import Nemesis
from tests.simulation.loop import DriftingClock
from tests.simulation.network import Link, Network, NetworkProfile
from tests.simulation.operation_clients import OperationClients
from tests.simulation.oracle import RaftOracle
from tests.simulation.process import KEEPALIVE, Killed, Machine, Process
from tests.simulation.trace import Outcome, Trace, Violation
from tests.strict_replicas import told

FAULTS_END: Final = 8.0  # seconds
PATIENCE: Final = 60.0  # seconds after the faults within which everything must be well
UNACKNOWLEDGED: Final = 0.3  # seconds for which a sender continues although no acknowledgement comes back
RETRANSMIT: Final = 0.2  # seconds until an unacknowledged message is sent again; the pause doubles each time
MAX_STEPS: Final = 300_000
_POWER_CUTS: Final = 0.5  # the share of the worlds that have power cuts
_DRIFT: Final = 0.045  # a clock's greatest drift; two clocks differ by less than 10 %, the configuration's margin


class FullWorld:
    """The world of one seed. `run` raises Violation, or an error of the tested code."""

    def __init__(self, seed: int, trace: Trace) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.trace = trace
        self.now = 0.0
        self.steps = 0
        self.oracle = RaftOracle(BOOTSTRAP_INDEX)
        self.network = Network(rng, _network_profile(rng))
        # True if Raft's messages on a cut link wait until the link works again, as all other messages do.
        self.hangs = random.Random(f"{seed} hangs").random() < 0.7
        self.cut_at: dict[Link, float] = {}
        founders = self._draw_settings(rng)
        self.rows: dict[int, Partition] = {}  # the newest rows that any replica of the state has applied
        self.proposed: dict[tuple[int, int], frozenset[str]] = {}  # by partition and leader_epoch: the newest isr
        self._served: dict[int, tuple[int, str]] = {}  # by partition: the newest leader_epoch, and its leader
        self.keyspaces: dict[int, Keyspace] = {}  # the newest, like `rows`
        self._nodes: dict[str, Node] = {}  # the nodes in the newest state that any replica has applied
        self._newest_epochs: dict[int, int] = {}  # by partition, even a removed one: the newest partition_epoch
        # by the index of an entry and the number of a command in it: the digest of the state after the command
        self._digests: dict[tuple[int, int], int] = {}
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._scheduled = 0
        self.machines = self._machines(founders, rng.choice((1, 2, 3)))
        zones = random.Random(f"{seed} zones").choice((1, 3))
        for machine in self.machines:
            machine.zone = f"z{machine.number % zones}"
        self.by_address = {machine.address: machine for machine in self.machines}
        self._by_id = {machine.id: machine for machine in self.machines}
        voters = [
            Node(id=m.id, raft_id=m.raft_id, address=m.address, state=NodeState.NODE_STATE_JOINING)
            for m in self.machines
            if m.raft_id
        ]
        self.bootstrap = Bootstrap(Cluster(id="simulated", name="simulated", min_nodes=1), voters)
        self.data = DataOracle(self)
        self.data_clients = Clients(self)
        self.operation_clients = OperationClients(self, self.data_clients)
        self.admin = Admin(self)
        self.nemesis = Nemesis(self)
        self.availability = Availability(self)

    def _draw_settings(self, rng: random.Random) -> int:
        """Draw the settings; returns the number of founders, the first nodes of the cluster."""
        self.heartbeat = 0.15
        self.clearance = rng.choice((0.4, 0.6))
        self.tick = 0.1
        self.election_ticks = rng.choice((3, 5))
        self.snapshot_entries = rng.choice((5, 20, 1000))
        failure_timeout = self.clearance * 1.1 + self.heartbeat / 2 + rng.choice((0.001, 0.3))
        self.holder_patience = 2 * failure_timeout + 1
        self.controller_settings = ControllerSettings(
            self.clearance,
            failure_timeout,
            2.0,
            MigrationCaps(per_node=rng.choice((1, 2)), cluster=4),
            merge_after=rng.choice((0.0, 1.0)),
        )
        founders = rng.choice((1, 3, 3, 3))
        self.voter_settings = VoterSettings(founders, rng.choice((1500, 100_000)))
        self.lag_timeout = rng.choice((0.4, 1.0))
        self.log_only_bytes = rng.choice((0, 300, 256 * 1024))
        self.flush_bytes = rng.choice((200, 1000, 1024 * 1024))
        self.change_retention = rng.choice((0, 0, 500))
        self.page_rows = rng.choice((2, 1000))
        self._cuts_power = rng.random() < _POWER_CUTS
        return founders

    def _machines(self, founders: int, joiners: int) -> list[Machine]:
        machines = []
        drift = self.rng.choice((0.0, 0.01, _DRIFT))
        for number in range(1, founders + joiners + 1):
            clock = DriftingClock(self.rng.uniform(0, 1e6), self.rng.uniform(1 - drift, 1 + drift))
            machine = Machine(number, f"n{number}", f"10.0.0.{number}:7400", f"data-{number}", clock)
            machine.sync_time = self.rng.choice((0.0, 0.0, 0.005))
            if number <= founders:
                machine.raft_id = number
                machine.disk.bootstrap(ConfState(voters=range(1, founders + 1)))
            machines.append(machine)
        self.drift = drift
        return machines

    # Events

    def after(self, delay: float, function: Callable[..., object], *arguments: Any) -> None:
        """Call `function` in `delay` seconds."""
        self._scheduled += 1
        heappush(self._events, (self.now + delay, self._scheduled, function, arguments))

    def through(
        self, link: Link, arrive: Callable[[], object], give_up: Callable[[], object], hung: float = 0.0
    ) -> None:
        """Send a message as TCP does: while the link is cut, repeat the message until the sender gives up. The link
        also counts as cut if the opposite link has been cut for UNACKNOWLEDGED seconds: then no acknowledgement comes
        back.
        """
        back = (link[1], link[0])
        acknowledged = self.network.connected(*back) or self.now - self.cut_at.get(back, 0.0) < UNACKNOWLEDGED
        if self.network.connected(*link) and acknowledged:
            arrive()
        elif hung < KEEPALIVE:
            pause = max(RETRANSMIT, hung)
            self.after(pause, self.through, link, arrive, give_up, hung + pause)
        else:
            give_up()

    def say(self, who: str, what: str, detail: str = "") -> None:
        """Add an event to the trace."""
        self.trace.add(self.now, who, what, detail)

    def run(self) -> Outcome:
        """Run clients and faults. Then end the faults, and run until everything is well. Raises Violation if that takes
        too long.
        """
        logger = logging.getLogger("minkad")
        level = logger.level
        logger.setLevel(logging.CRITICAL + 1)
        try:
            with (
                mock.patch.object(active_controller, "unix_ms", self.unix_ms),
                mock.patch.object(deciding, "unix_ms", self.unix_ms),
                mock.patch.object(coordinator, "unix_ms", self.unix_ms),
                mock.patch.object(admin_requests, "unix_ms", self.unix_ms),
                mock.patch.object(load_check, "Meter", partial(load_check.Meter, cpu_time=lambda: 0.0)),
            ):
                return self._run()
        finally:
            logger.setLevel(level)
            for machine in self.machines:
                if machine.process is not None:
                    machine.process.die()
                    machine.process.loop.kill()

    def stories(self, partition_ids: Collection[int]) -> str:
        """What happened lately to the replicas of these partitions, of all processes that have not died."""
        built = [one.process for one in self.machines if one.process is not None and one.process.built]
        here = [(one.machine.id, one.manager.replicas.get(id_)) for one in built for id_ in partition_ids]
        return "\n".join(f"{node}: {told(replica.state)}" for node, replica in here if replica is not None)

    def wire(self, process: Process) -> None:
        """Add this world's own services to a daemon that is being built. This world has none."""

    def load_sources(self, process: Process) -> LoadSources | None:
        """The node's spool; None, since only a world with loads has spools."""
        return None

    def spooled(self, process: Process, file: Path) -> dict[bytes, bytes]:
        """The rows in a load's file."""
        raise AssertionError(f"{file}: there are no loads")

    def planning_time(self) -> float:
        """The seconds that a thread needs to plan the duties."""
        return 0.0

    def begin(self) -> None:
        """Start the clients and the faults."""
        self.admin.begin()
        self.data_clients.begin()
        self.operation_clients.begin()
        self.nemesis.begin()
        self.availability.begin()

    def end(self) -> None:
        """End the faults and the administrators' requests; clients still write and read."""
        self.nemesis.end()
        self.admin.end()

    def _run(self) -> Outcome:
        for machine in self.machines:
            self.after(self.rng.random() * 0.5, self.start, machine)
        self.begin()
        self._run_until(FAULTS_END, lambda: False)
        self.say("world", "calm")
        self.end()
        self._run_until(FAULTS_END + PATIENCE, lambda: not self.missing())
        if missing := self.missing():
            raise Violation("every operation ends", f"{PATIENCE:.0f} s after the last fault: {missing}")
        return Outcome(self.steps, self.trace.digest())

    def _run_until(self, end: float, done: Callable[[], bool]) -> None:
        events = self._events
        while events and events[0][0] < end:
            self.now, _, function, arguments = heappop(events)
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise Violation("every operation ends", f"{MAX_STEPS} events without an end")
            try:
                function(*arguments)
            except Killed as killed:
                self.crash(killed.process)
            if not self.steps % 256 and done():
                return

    def unix_ms(self) -> int:
        """The time of the wall clock, in milliseconds since 1970. Recorded times, and rules that use them, need it."""
        return FIRST_UNIX_MS + int(self.now * 1000)

    # Processes

    def start(self, machine: Machine) -> None:
        """Start the machine's process, unless the process runs or the machine is taken away."""
        if machine.process is None and not machine.is_away:
            self.say(machine.id, "start")
            machine.process = Process(self, machine)

    def wake(self, process: Endpoint, when: float) -> None:
        """Give the process's loop a turn at the time `when`."""
        when = max(when, self.now)
        if process.wake is None or when < process.wake:
            process.wake = when
            self.after(when - self.now, self._turn, process, when)

    def _turn(self, process: Endpoint, when: float) -> None:
        machine = process.machine
        if not process.alive or process.wake != when:
            return
        process.wake = None
        if self.now < machine.stopped_until:
            self.wake(process, machine.stopped_until)
            return
        process.loop.turn()
        if process.loop.halted:
            self.say(machine.id, "killed")
            self.crash(process)
            return
        due = process.loop.next_due()
        if due is not None:
            process.loop_wake(due)
        process.turned()

    def turned(self, process: Process) -> None:
        """Check a daemon after a turn of its loop."""
        self.observe(process)
        self._check_clearance(process)

    def crash(self, process: Endpoint) -> None:
        """Kill the process, and start it again later."""
        assert isinstance(process, Process), process
        machine = process.machine
        if machine.process is not process:
            return
        process.die()
        machine.process = None
        process.loop.kill()
        for stream in process.streams:  # also streams whose first message the process hasn't handled yet
            stream.died(process)
        if self._cuts_power and self.rng.random() < 0.5:
            self.say(machine.id, "power cut")
            self.data.cut_power(machine)
            machine.log_disk.cut_power(self.rng)
        else:
            machine.log_disk.sync()
        survives = process.writing_since is not None and self.rng.random() < 0.5
        self.say(machine.id, "crash", "the write under way survives" if survives else "")
        if survives:
            machine.disk.sync()
        machine.disk.crash()
        self.after(self.rng.expovariate(1 / 0.7), self.start, machine)

    def process_at(self, address: str) -> Process | None:
        """The process that listens at the address."""
        machine = self.by_address.get(address)
        return machine.process if machine is not None else None

    def machine_at(self, address: str) -> Machine | None:
        """The machine that has the address."""
        return self.by_address.get(address)

    def machine(self, node_id: str) -> Machine:
        """The node's machine."""
        return self._by_id[node_id]

    def claims_loss(self, process: Process, names: Mapping[str, object]) -> None:
        """Check a follower's claim that its leader lacks committed entries. Raises Violation if the leader has them."""
        partition, committed = names["partition"], names["committed"]
        assert isinstance(partition, int)
        assert isinstance(committed, int)
        self.data.claims_loss(process, partition, committed)

    def machine_with(self, raft_id: int | None) -> Machine | None:
        """The machine whose node has this raft id."""
        return next((machine for machine in self.machines if raft_id and machine.raft_id == raft_id), None)

    def addresses(self, but: Machine) -> list[str]:
        """The addresses of all machines but this one."""
        return [machine.address for machine in self.machines if machine is not but]

    def processes(self) -> list[Process]:
        """The processes that run and have joined."""
        return [p for m in self.machines if (p := m.process) is not None and p.alive and p.built]

    # Invariants

    def observe(self, process: Process) -> None:
        """Check the process's Raft core, which may have taken a step."""
        leaders = len(self.oracle.leaders)
        self.oracle.observe(process.driver.raw.raft)
        if len(self.oracle.leaders) > leaders:
            self.say(process.machine.id, "leads", f"term {process.driver.raw.basic_status().term}")
            self.nemesis.elected(process)

    def applied(self, process: Process, position: tuple[int, int], digest: int) -> None:
        """Check the state of a process after a command: it must be the same on all replicas."""
        if position not in self._digests:
            self._digests[position] = digest
            before, self._nodes = self._nodes, dict(process.coordinator.state.nodes)
            self.keyspaces = dict(process.coordinator.state.keyspaces)
            controller = self.machine_with(self.oracle.leaders.get(self.oracle.terms[position[0]]))
            self.availability.recorded(before, self._nodes, controller)
            self._check_rows(process.coordinator.state)
            for rows in (self.rows, process.coordinator.state.tombstones):
                self._newest_epochs.update({id_: row.partition_epoch for id_, row in rows.items()})
            for holder in self.processes():
                self._check_clearance(holder)
        if self._digests[position] != digest:
            raise Violation(
                "equal states",
                f"after command {position}, the state of {process.machine.id} differs from another node's",
            )

    def restored(self, process: Process, index: int, digest: int) -> None:
        """Check the state that a process has from a snapshot at `index`: it must equal the state that other processes
        had after the last command up to this index.
        """
        position = max((p for p in self._digests if p[0] <= index), default=None)
        if position is not None and self._digests[position] != digest:
            raise Violation(
                "equal states",
                f"after the snapshot at {index}, the state of {process.machine.id} differs from other nodes'",
            )

    def _check_clearance(self, process: Process) -> None:
        """Check that only the present process of a node that is up holds clearance."""
        if not process.member.has_clearance():
            return
        node = self._nodes.get(process.machine.id)
        if node is None or not is_up(node) or node.incarnation != process.member.node.incarnation:
            what = NodeState.Name(node.state) if node is not None else "unknown"
            raise Violation(
                "clearance ends before the controller acts",
                f"{process.member.node.incarnation} holds clearance, but {process.machine.id} is {what} in the table",
            )

    def check_holder(self, process: Process, partition_id: int) -> None:
        """Check a process that serves a partition: no other process may serve it now, and no other node may ever have
        served it at this leader_epoch.
        """
        mine, epoch = process.machine.id, process.rows[partition_id].leader_epoch
        newest, holder = self._served.get(partition_id, (0, mine))
        if epoch < newest or (epoch == newest and holder != mine):
            raise Violation(
                "one holder of clearance per partition and leader_epoch",
                f"{mine} serves partition {partition_id} at leader_epoch {epoch}, but {holder} served it at {newest}",
            )
        self._served[partition_id] = (epoch, mine)
        for other in self.processes():
            if other is not process and other.serves(partition_id):
                raise Violation(
                    "one holder of clearance per partition and leader_epoch",
                    f"{mine} and {other.machine.id} serve partition {partition_id} at the same time",
                )

    def _check_rows(self, state: State) -> None:
        """Check each row that has changed: the leader must be in sync, and each replica in sync must be assigned and
        must have all acknowledged writes.
        """
        for id_ in self.rows.keys() - state.partitions.keys():
            del self.rows[id_]
        for id_, row in state.partitions.items():
            before = self.rows.get(id_)
            if before is not None and before.partition_epoch == row.partition_epoch:
                continue
            self.rows[id_] = row
            if not set(row.isr) <= set(row.replicas) or (row.leader and row.leader not in row.isr):
                raise Violation(
                    "the leader is in sync, and replicas in sync are assigned",
                    f"partition {' '.join(str(row).split())}",
                )
            if before is not None and row.unclean_elections > before.unclean_elections:
                if not state.keyspaces[row.keyspace_id].unclean_election:
                    raise Violation(
                        "nothing acknowledged is lost",
                        f"unclean election of partition {id_}, which its keyspace forbids",
                    )
                self.data.lose(row)
            self.data.check_in_sync(row)
            if self.proposed.get((id_, row.leader_epoch)) == frozenset(row.isr):
                self.availability.in_use(row)
            if before is not None:
                self.nemesis.changed(before, row)

    def adopted(self, process: Process, row: Partition) -> None:
        """Check that the row on which a node begins to act is recorded. A row with epoch 0 is exempt: a node uses it to
        create the child of a split before the node has the child's recorded row.
        """
        if not row.partition_epoch:
            return
        newest = self._newest_epochs.get(row.id, 0)
        if newest < row.partition_epoch:
            raise Violation(
                "nodes act on recorded rows only",
                f"{process.machine.id} has taken over epoch {row.partition_epoch} of partition {row.id}, but the "
                f"newest recorded epoch is {newest}",
            )
        if row.leader == process.machine.id and process.served.get(row.id) == row.leader_epoch:
            self.availability.in_use(row)

    def cut(self, process: Process, start: bytes, end: bytes) -> None:
        """Check the entries that a node is about to remove from a log."""
        self.data.cut(process.machine, start, end)

    # The end

    def active(self) -> Process | None:
        """The process of the active controller with the newest term."""
        active = [p for p in self.processes() if p.coordinator.active is not None]
        return max(active, key=lambda p: p.driver.raw.basic_status().term, default=None)

    def missing(self) -> str:
        """Check the whole world at the end of a run; returns the first error, or ""."""
        active = self.active()
        if active is None:
            return "no active controller"
        state = active.coordinator.state
        for machine in self.machines:
            node, process = state.nodes.get(machine.id), machine.process
            if node is None or node.state != NodeState.NODE_STATE_LIVE:
                return f"{machine.id} is not LIVE"
            if process is None or not process.built or not process.member.has_clearance():
                return f"{machine.id} has no clearance"
            if process.driver.applied_index != active.driver.applied_index:
                return f"{machine.id} has applied {process.driver.applied_index} of {active.driver.applied_index}"
        if missing := _unfinished(state) or self._unwritten(state) or self.admin.missing(state):
            return missing
        if self.voter_settings.replace_after_ms <= 1500 and (missing := _unevenly_seated(active)):
            return missing
        self.data_clients.end()
        self.operation_clients.end()
        if missing := self.data.missing(state):
            return missing
        self.operation_clients.judge()
        return ""

    def _unwritten(self, state: State) -> str:
        late = [id_ for id_ in state.partitions if self.data.acknowledged_at.get(id_, 0.0) < FAULTS_END]
        return f"no write of partition {late[0]} was acknowledged since the last fault" if late else ""


def _unfinished(state: State) -> str:
    for operation in state.operations.values():
        if operation.state in OPERATIONS_UNENDED:
            return f"operation {operation.id} has not ended"
    for partition in state.partitions.values():
        in_sync = set(partition.isr) == set(partition.replicas)
        moves = partition.removing_replicas or partition.target_replicas or partition.successor
        if partition.state != PartitionState.PARTITION_STATE_ONLINE or moves or not in_sync:
            return f"partition {' '.join(str(partition).split())}"
    return ""


def _unevenly_seated(active: Process) -> str:
    """Return the number of voters in each zone if a zone has at least two voters more than another zone, and this other
    zone has a node that isn't a voter; else "".
    """
    voters = set(active.driver.conf_state.voters)
    seated = Counter({node.zone: 0 for node in active.coordinator.state.nodes.values()})
    seated.update(node.zone for node in active.coordinator.state.nodes.values() if node.raft_id in voters)
    if max(seated.values()) - min(seated.values()) < 2:
        return ""
    could = [n.zone for n in active.coordinator.state.nodes.values() if n.raft_id not in voters]
    return f"voters by zone: {dict(seated)}" if any(seated[z] <= max(seated.values()) - 2 for z in could) else ""


def _network_profile(rng: random.Random) -> NetworkProfile:
    return NetworkProfile(
        delay=rng.choice((0.001, 0.005, 0.02)),
        loss=rng.choice((0.0, 0.0, 0.02)),
        duplication=rng.choice((0.0, 0.0, 0.02)),
        straggling=rng.choice((0.0, 0.01, 0.05)),
    )
