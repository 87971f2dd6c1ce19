"""One simulated daemon: the real driver, coordinator, member and replicas, wired as `minkad.node.daemon` wires them."""

import asyncio
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import Plan
from minka.v1.cluster_pb2 import Node, Partition
from minka.v1.coordinator_pb2 import (
    AlterIsrRequest,
    DiskSpace,
    RegisterRequest,
    UpdateReplicasRequest,
    UpdateReplicasResponse,
)
from minka.v1.raft_pb2 import MSG_SNAP, ConfState, Entry, HardState, Message, Snapshot
from minkad.coordinator.admin_requests import AdminRequests
from minkad.coordinator.controller_calls import ControllerCalls
from minkad.coordinator.controller_handlers import ControllerHandlers
from minkad.coordinator.coordinator import Coordinator
from minkad.coordinator.member import Member, MemberSettings, as_new_process, register_patiently
from minkad.coordinator.node_requests import NodeRequests
from minkad.coordinator.raft_driver import RaftDriver
from minkad.core.controller.data_ports import watched_by
from minkad.core.controller_methods import Method, Request, Response
from minkad.core.raft import Config, RawNode, Ready
from minkad.core.raft.sender import sender_of
from minkad.core.replication.instructions import Instruction, Report
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.core.state import State
from minkad.node.surroundings import NodeTable
from minkad.process.clock import ClusterClock
from minkad.process.memory import Memory
from minkad.process.telemetry import Telemetry
from minkad.replication.manager import ReplicaManager, StorageSettings
from minkad.replication.sending.links import ReplicationLinks
from minkad.replication.surroundings import Surroundings
from minkad.storage.disk_space import DiskWatch
from minkad.storage.log_database import STALLED_S, LogDatabase
from minkad.storage.raft_storage import RaftStorage
from minkad.storage.replica_store import ReplicaStore
from tests import strict_replicas  # noqa: F401  # each event is followed by a check
from tests.simulation.calls import Calls
from tests.simulation.data_disk import DataDisk, disk_work
from tests.simulation.disk import RaftDisk
from tests.simulation.endpoint import Endpoint
from tests.simulation.links import SimLinks
from tests.simulation.log_disk import LogDisk, SimLogDatabase
from tests.simulation.loop import DriftingClock
from tests.simulation.probe import is_served
from tests.simulation.replica_files import ENTRY, META, brief, row_in
from tests.simulation.spools import SpoolDisk
from tests.simulation.stores import SimReplicaStore

if TYPE_CHECKING:
    from tests.simulation.full_world import FullWorld
    from tests.simulation.shard_stream import ShardDoors
    from tests.simulation.spools import NodeSpool
    from tests.simulation.streams import ByteStream

JOIN_PAUSE: Final = 0.3  # seconds between two tries to join
KEEPALIVE: Final = 4.0  # seconds without an answer after which a process gives a connection up
SHUTDOWN: Final = 2.0  # seconds for other nodes to take over the partitions that this node leads
_DRAIN: Final = 1.0  # seconds that a stopping node takes to answer the requests that have begun
_CLOSES: Final = 0.5  # the share of graceful stops with enough time to close the databases
_MEMORY: Final = 256 * 1024 * 1024  # bytes
_CHUNK_BYTES: Final = 100


class Killed(BaseException):
    """The process dies at this point of its code. It is a BaseException, so that no handler in the code catches it."""

    def __init__(self, process: "Process") -> None:
        super().__init__(process.node.incarnation)
        self.process = process


@dataclass(slots=True)
class Machine:
    """A machine: the disks, the clock and the address. They outlive a process."""

    number: int
    id: str
    address: str
    data_id: str
    clock: DriftingClock
    raft_id: int = 0  # 0 until the machine's node has joined the cluster
    zone: str = ""
    disk: RaftDisk = field(default_factory=RaftDisk)
    log_disk: LogDisk = field(default_factory=LogDisk)
    data_disk: DataDisk = field(default_factory=DataDisk)
    spool_disk: SpoolDisk = field(default_factory=SpoolDisk)
    process: "Process | None" = None
    stopped_until: float = 0.0
    deaf_since: float = 0.0
    deaf_until: float = 0.0  # until this time its data port reads requests, but doesn't answer
    sync_time: float = 0.0  # mean seconds of a sync
    wall_skew_ms: int = 0  # its wall clock is ahead by this much
    starts: int = 0
    is_away: bool = False  # True while no process may start, as if the disk were lost


class Process(Endpoint):
    """A daemon's process, from its start to its end."""

    machine: Machine
    coordinator: Coordinator
    driver: RaftDriver
    log_db: SimLogDatabase | None = None
    store: SimReplicaStore
    manager: ReplicaManager
    member: Member
    node_requests: NodeRequests
    handlers: ControllerHandlers
    controller: ControllerCalls
    admin_requests: AdminRequests
    doors: "ShardDoors | None" = None  # in a world with shards
    spool: "NodeSpool | None" = None  # in a world with loads

    def __init__(self, world: "FullWorld", machine: Machine) -> None:
        super().__init__(world)
        self.machine = machine
        self.built_at = 0.0
        self.kill_after = 0  # the process dies at the n-th step of persist, send or apply; 0: never
        self.writing_since: float | None = None
        self.stalled_until = 0.0  # the end of the last sync that counted as stalled
        self.works: list[float] = []  # the time at which each thread began its work with the disk
        self.worked_until = 0.0  # the end of the last disk work that counted as stalled
        self.stopping = False
        self.rng = random.Random(world.rng.random())
        self.rows: dict[int, Partition] = {}  # the rows that this process acts on
        self.served: dict[int, int] = {}  # by partition: the leader_epoch at which the world last saw it served
        self.streams: dict[ByteStream, None] = {}
        self.memory = Memory(_MEMORY, self.now)
        machine.starts += 1
        self.calls = Calls(self)
        self.node = Node(
            id=machine.id,
            data_id=machine.data_id,
            incarnation=f"{machine.id}-{machine.starts}",
            address=machine.address,
            zone=machine.zone,
            data_address=machine.address,
        )
        if machine.raft_id:
            self._build()
        else:
            self.spawn(self._join())

    async def _join(self) -> None:
        while not self.machine.raft_id:
            try:
                _, answer = await register_patiently(
                    self.calls.call,
                    self.world.addresses(but=self.machine),
                    RegisterRequest(node=self.node),
                    self.world.holder_patience,
                    5 * self.world.heartbeat,
                    self.now,
                )
                self.machine.raft_id = answer.raft_id
            except MinkaError as error:
                if error.code is Code.NOT_REGISTERED:
                    self.node = as_new_process(self.node)
                await self.pause(JOIN_PAUSE)
        self._build()

    # Wiring

    def _build(self) -> None:
        world, machine, disk = self.world, self.machine, self.machine.disk
        snapshot = disk.seen.snapshot()
        self._transport = Transport(self)
        self.coordinator = Coordinator(
            Coordinator.decode(snapshot.data),
            world.bootstrap,
            world.controller_settings,
            world.voter_settings,
            update_replicas=self.calls.update_replicas,
            now=self.now,
            jitter=self.rng,
            in_thread=self._in_thread,
        )
        self.raft_log = _Log(self, machine.disk)
        self.driver = self._driver()
        self.coordinator.driver = self.driver
        self.node_requests = NodeRequests(self.coordinator)
        self.handlers = ControllerHandlers(self.coordinator)
        settings = MemberSettings(world.heartbeat, max(2 * world.heartbeat, world.clearance), world.holder_patience)
        self.controller = _Controller(self, settings.call_timeout)
        self.admin_requests = AdminRequests(self.coordinator, _at_once)
        self.log_db = SimLogDatabase(self, machine.log_disk, self._staged, self._deleted)
        self.log_db.on_failure = self._failed
        self.store = SimReplicaStore(self, machine.data_disk)
        self.manager = self._manager(self.log_db)
        self.member = Member(
            self.node,
            settings,
            self.controller,
            other_addresses=lambda: world.addresses(but=machine),
            data_plane=self.manager,
            raft=self.driver,
            now=self.now,
            clock=ClusterClock(
                lambda: 1_000_000 * (world.unix_ms() + machine.wall_skew_ms), lambda: int(1e9 * self.now())
            ),
            disk=cast("DiskWatch", _Disk()),
            log_db=cast("LogDatabase", self.raft_log),
            unanswered=self._unanswered,
        )
        self.coordinator.on_leader_change = self.member.leader_changed
        self.coordinator.on_nodes_changed = self._nodes_changed
        self.coordinator.on_loads_changed = self.manager.loads_changed
        world.oracle.restarted(machine.raft_id, disk.seen.initial_state()[0], disk.seen.last_index())
        self.spawn(self._run())

    def _driver(self) -> RaftDriver:
        world, disk = self.world, self.machine.disk
        applied, log = disk.seen.snapshot().metadata, self.raft_log
        return RaftDriver(
            RawNode(
                Config(
                    id=self.machine.raft_id,
                    storage=disk.seen,
                    random=self.rng.randrange,
                    election_tick=world.election_ticks,
                    heartbeat_tick=1,
                    learners_a_beat=1,
                    applied=applied.index,
                    commit_by_vote=True,
                    disable_proposal_forwarding=True,
                )
            ),
            cast("RaftStorage", log),
            cast("LogDatabase", log),
            self._transport,
            _Machine(self),
            tick_seconds=world.tick,
            snapshot_entries=world.snapshot_entries,
            conf_state=applied.conf_state,
            on_progress=self.coordinator.on_progress,
            clock=self.now,
            in_thread=self._in_thread,
            piece_seconds=0.0,
        )

    def _manager(self, log_db: SimLogDatabase) -> ReplicaManager:
        world, disk = self.world, cast("DiskWatch", _Disk())
        around = Surroundings(
            self.machine.id,
            cast("ReplicaStore", self.store),
            cast("LogDatabase", log_db),
            disk,
            cast("ReplicationLinks", SimLinks(self)),
            NodeTable(self.coordinator, lambda: self.member, disk),
            self.controller,
            Telemetry(),
            self.now,
            lambda: world.unix_ms() + self.machine.wall_skew_ms,
            lambda: True,
            world.load_sources(self),
        )
        settings = ReplicationSettings(
            lag_timeout=world.lag_timeout, chunk_bytes=_CHUNK_BYTES, log_only_bytes=world.log_only_bytes
        )
        storage = StorageSettings(
            flush=world.flush_bytes,
            open_databases=world.flush_bytes // 300,  # how many may be open: none, three, or all
            change_retention=world.change_retention,
        )
        manager = ReplicaManager(around, settings, storage)
        carry_out = manager.node.carry_out

        def noting(instruction: Instruction) -> None:
            if isinstance(instruction, Report):
                self._reported(instruction)
            else:
                carry_out(instruction)

        manager.node.carry_out = noting
        return manager

    def _reported(self, report: Report) -> None:
        """Check a replica's report, which a real daemon would write to its log."""
        if self.alive and report.text.startswith("the leader lacks what was committed"):
            self.world.claims_loss(self, report.names)

    def _unanswered(self) -> dict[str, str]:
        """The nodes whose data ports don't answer, as `minkad.data_port.port_watch.Watch` would report them."""
        machines = {node.id: self.world.machine(node.id) for node in self._watched()}
        patience = self.world.controller_settings.failure_timeout
        deaf = (name for name, one in machines.items() if one.deaf_since + patience <= self.world.now < one.deaf_until)
        return dict.fromkeys(deaf, "no answer")

    def _watched(self) -> list[Node]:
        return watched_by(self.coordinator.state.nodes.values(), self.machine.id)

    def _nodes_changed(self) -> None:
        self.manager.nodes_changed()
        self.member.nodes_changed(self.coordinator.state.nodes.get(self.machine.id))

    async def _run(self) -> None:
        await self.manager.start()
        self.world.wire(self)
        self.built = True
        self.built_at = self.world.now
        self.spawn(self.driver.run())
        self._membership = self.loop.create_task(self._member())

    # The data plane

    async def update_replicas(self, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        """Take the rows that the controller sends."""
        return await self.manager.update_replicas(request)

    def _staged(self, key: bytes, value: bytes) -> None:
        """Watch the puts to the log database: a replica that adopts a new row writes the row to its meta."""
        if key.startswith(META):
            row = row_in(value)
            if self.alive and (row.id not in self.rows or self.rows[row.id].partition_epoch < row.partition_epoch):
                self._say("adopts", brief(row))
                self.rows[row.id] = row
                self.world.adopted(self, row)

    def _deleted(self, start: bytes, end: bytes) -> None:
        """Watch the deletes of ranges in the log database: the keys may be entries of a log."""
        if self.alive and start.startswith(ENTRY):
            self.world.cut(self, start, end)

    def _failed(self, error: MinkaError) -> None:
        """Let the run fail, since the log database has failed. That is a bug: these worlds damage no disk."""
        self.loop.fail(AssertionError(f"{self.machine.id} can't go on: {error}"))

    def sync_time(self) -> float:
        """Draw the seconds that the disk needs for one sync."""
        mean = self.machine.sync_time
        return self.rng.expovariate(1 / mean) if mean else 0.0

    async def disk_work(self) -> None:
        """Wait as long as a thread's work with the disk takes."""
        began = self.world.now
        self.works.append(began)
        try:
            await disk_work(self)
        finally:
            self.works.remove(began)
            if self.world.now - began > STALLED_S:
                self.worked_until = self.world.now

    def spooled(self, file: Path) -> dict[bytes, bytes]:
        """The rows in a load's file."""
        return self.world.spooled(self, file)

    async def _in_thread(self, plan: Callable[..., Any], *arguments: Any) -> Any:
        """Call `plan`, and then wait as long as a thread would need for it; the process's other tasks continue during
        the wait.
        """
        planned = plan(*arguments)
        await self.pause(self.world.planning_time())
        return planned

    def _say(self, what: str, detail: str) -> None:
        if self.alive:
            self.world.say(self.machine.id, what, detail)

    def controller_address(self) -> str | None:
        """The address of the active controller, as far as this process knows."""
        leader = self.node if self.driver.is_leader else self.coordinator.leader()
        return leader.address if leader else None

    async def _member(self) -> None:
        try:
            await self.member.run()
        except MinkaError as final:  # the daemon ends, and the world restarts it
            self.world.say(self.machine.id, "gives up", str(final))
            self.world.after(0.0, self.world.crash, self)

    async def stop(self) -> None:
        """Stop gracefully: let other nodes lead, stop serving, leave the cluster, and end."""
        if self.stopping:
            return
        self.stopping = True
        own = self.machine.id
        if any(len(p.isr) > 1 for p in self.coordinator.state.led_by(own)):
            await self.member.shut_down(SHUTDOWN)
        try:
            async with asyncio.timeout(_DRAIN):
                await self.manager.drain()
        except TimeoutError:
            pass
        self._membership.cancel()
        await self.pause(0.0)
        self.member.clearance.revoke()
        if self.doors is not None:
            self.doors.sessions.end_all("this node stops")
        await self.member.leave(1.0)
        if self.rng.random() < _CLOSES:
            await self.manager.close()
        self.world.after(0.0, self.world.crash, self)

    # Running

    def hear(self, message: Message, sender: str) -> None:
        """Give the driver a Raft message that has arrived."""
        if raft_id := sender_of([message]):
            self._transport.heard[raft_id] = sender
        self.driver.receive([message])

    def point(self) -> None:
        """Count one step of persist, send or apply. Raises Killed if the process has to die at this step."""
        if self.kill_after:
            self.kill_after -= 1
            if not self.kill_after:
                self.die()
                raise Killed(self)

    @property
    def disk_stalled(self) -> bool:
        """True if the present sync takes longer than a slow disk would need."""
        if self.writing_since is not None and self.world.now - self.writing_since > STALLED_S:
            return True
        return self.log_db is not None and self.log_db.stalled

    def turned(self) -> None:
        if self.built:
            self.world.turned(self)

    def die(self) -> None:
        super().die()
        self.kill_after = 0
        if self.log_db is not None:
            self.log_db.die()

    def serves(self, partition_id: int) -> bool:
        """True if this process would answer a read of the partition now."""
        row = self.rows.get(partition_id)
        if not self.alive or not self.built or row is None or row.leader != self.machine.id:
            return False
        if not self.member.has_clearance() or not is_served(self, row):
            return False
        self.served[partition_id] = row.leader_epoch
        return True


class _Controller(ControllerCalls):
    """The process's calls to the controller. They tell the world which in-sync sets the process proposes."""

    def __init__(self, process: Process, call_timeout: float) -> None:
        address, here = process.machine.address, process.handlers.answer
        super().__init__(address, process.controller_address, here, process.calls, call_timeout)
        self._proposed = process.world.proposed

    async def call(self, method: Method[Request, Response], request: Request, timeout: float | None = None) -> Response:
        if isinstance(request, AlterIsrRequest):
            for change in request.changes:
                self._proposed[change.partition_id, change.leader_epoch] = frozenset(change.isr)
        return await super().call(method, request, timeout)


async def _at_once(plan: Callable[..., Plan], *arguments: Any) -> Plan:
    """Call `plan` at once, since the simulation has no threads."""
    return plan(*arguments)


class _Disk:
    """The simulated `DiskWatch`: the disk always has room."""

    is_low = False
    space = DiskSpace()

    def check_room(self, size: int) -> None:
        """Do nothing: the disk has room."""


class _Log:
    """The Raft log and its database in one class: the parts of `RaftStorage` and `LogDatabase` that RaftDriver uses."""

    def __init__(self, process: Process, disk: RaftDisk) -> None:
        self._process = process
        self._disk = disk
        self.term = disk.seen.term
        self.first_index = disk.seen.first_index
        self.initial_state: Callable[[], tuple[HardState, ConfState]] = disk.seen.initial_state
        self.snapshot: Callable[[], Snapshot] = disk.seen.snapshot

    def stage(self, ready: Ready) -> None:
        self._process.world.observe(self._process)
        self._process.point()
        if ready.entries:
            self._process.world.oracle.appended(self._process.machine.raft_id, ready.entries, self._term_before(ready))
        self._disk.stage(ready)
        self._process.point()

    def _term_before(self, ready: Ready) -> int:
        if ready.snapshot is not None:
            return ready.snapshot.metadata.term
        first: Entry = ready.entries[0]
        return self._disk.seen.term(first.index - 1)

    def stage_snapshot(self, index: int, term: int, conf_state: ConfState, data: bytes) -> None:
        assert self.term(index) == term, (index, term)
        self._disk.stage_snapshot(index, conf_state, data)

    def compact(self, index: int) -> None:
        self._disk.compact(index)

    @property
    def stalled(self) -> bool:
        return self._process.disk_stalled

    async def sync(self) -> None:
        process = self._process
        mean = process.machine.sync_time
        if mean:
            process.writing_since = process.world.now
            await process.pause(process.world.rng.expovariate(1 / mean))
            if process.disk_stalled:
                process.stalled_until = process.world.now
            process.writing_since = None
        self._disk.sync()
        self._process.point()


class Transport:
    """Sends Raft messages over a network that loses, duplicates and reorders them."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.heard: dict[int, str] = {}  # by raft id: the sender's address in its last message

    def _where(self, raft_id: int) -> str:
        node = self._process.coordinator.node_with(raft_id)
        return self.heard.get(raft_id) or (node.address if node is not None else "")

    def send(self, messages: Sequence[Message]) -> None:
        process = self._process
        world = process.world
        for message in messages:
            process.point()
            world.oracle.sent(message, process.machine.disk)
            machine = world.machine_at(self._where(message.to))
            link = (process.machine.number, machine.number) if machine is not None else (0, 0)
            hangs = world.hangs and not world.network.connected(*link)
            delays = [0.0] if hangs else world.network.deliveries(*link) if machine is not None else []
            for delay in delays:
                assert machine is not None
                copy = Message()
                copy.CopyFrom(message)
                arrive = partial(self._arrive, machine, copy)
                world.after(delay, world.through, link, arrive, lambda: None, 0.0 if world.hangs else KEEPALIVE)
            if message.type == MSG_SNAP:
                world.after(0.1, process.if_alive, self._report_snapshot(message.to, bool(delays)))
            elif not delays and world.rng.random() < 0.1:
                world.after(0.05, process.if_alive, self._report_unreachable(message.to))

    def _arrive(self, machine: Machine, message: Message) -> None:
        process = machine.process
        if machine.deaf_until > self._process.world.now and message.type != MSG_SNAP:
            return  # the data port hangs; only snapshots arrive, since they go over gRPC
        if process is not None and process.built:
            process.if_alive(partial(process.hear, message, self._process.machine.address))

    def _report_snapshot(self, raft_id: int, ok: bool) -> Callable[[], None]:
        return lambda: self._process.driver.report_snapshot(raft_id, ok)

    def _report_unreachable(self, raft_id: int) -> Callable[[], None]:
        """Return a function that reports to the driver that the node has died or can't be reached. The report may be
        wrong.
        """
        driver = self._process.driver
        report = driver.report_gone if self._process.world.rng.random() < 0.5 else driver.report_unreachable
        return lambda: report(raft_id)


class _Machine:
    """The coordinator's state machine. The world checks each of its steps."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._position = (0, 0)  # the entry's index, and the number of its commands that are applied

    def apply(self, data: bytes) -> None:
        process = self._process
        process.point()
        process.coordinator.apply(data)
        index = process.driver.applied_index
        self._position = (index, self._position[1] + 1 if self._position[0] == index else 1)
        # The commit of this entry may have come while the disk worked, so the world looks at the core first.
        process.world.observe(process)
        process.world.applied(process, self._position, self._digest())

    def capture(self) -> Callable[[], bytes]:
        return self._process.coordinator.capture()

    def decode(self, snapshot: bytes) -> State:
        return self._process.coordinator.decode(snapshot)

    def restore(self, decoded: State) -> None:
        self._process.coordinator.restore(decoded)
        self._process.world.restored(self._process, self._process.driver.applied_index, self._digest())

    def _digest(self) -> int:
        return zlib.crc32(self._process.coordinator.state.to_snapshot())
