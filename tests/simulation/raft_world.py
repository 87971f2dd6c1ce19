"""The raft world: a group of real Raft cores on a simulated network, disk and clock. Times are in ticks.

The world drives `RawNode` like `minkad.coordinator.raft_driver`: send the messages that may leave at once → persist →
send the others → apply. A node makes one write at a time.
"""

import random
from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import Any, Final

from minka.v1.raft_pb2 import MSG_HEARTBEAT, MSG_HEARTBEAT_RESP, MSG_SNAP, ConfState, Message, MessageType
from minkad.core.raft import ProposalDropped, RaftError, RawNode, Ready
from minkad.core.raft.answers import without_repeated_answers
from tests.simulation.disk import BOOTSTRAP_INDEX, RaftDisk
from tests.simulation.network import Network, NetworkProfile
from tests.simulation.oracle import RaftOracle
from tests.simulation.raft_clients import Clients
from tests.simulation.raft_nemesis import Nemesis
from tests.simulation.raft_node import RaftNode
from tests.simulation.trace import Outcome, Trace, Violation

FAULTS_END: Final = 150.0  # ticks
TICKS_TO_CONVERGE: Final = 400.0
TICKS_TO_CATCH_UP: Final = 3.0  # for each entry, since in some runs a message has only one entry
MAX_INBOX: Final = 256
MAX_STEPS: Final = 200_000  # events; a usual run has about 3,000
_LAST_PAYLOAD: Final = b"last"
_HEARTBEATS: Final = frozenset[int]((MSG_HEARTBEAT, MSG_HEARTBEAT_RESP))
_ALL_BUT_SNAPSHOTS: Final = frozenset[int](MessageType.values()) - {MSG_SNAP}


class Killed(Exception):
    """A process dies at this step."""


class RaftWorld:
    """The world of one seed. `run` raises Violation, or an AssertionError of the Raft core."""

    def __init__(self, seed: int, trace: Trace) -> None:
        self.rng = rng = random.Random(seed)
        self.trace = trace
        self.now = 0.0
        self.steps = 0
        self._disks: dict[int, RaftDisk] = {}
        self.oracle = RaftOracle(BOOTSTRAP_INDEX, self._disks)
        self.network = Network(rng, _network_profile(rng))
        self.snapshot_entries = rng.choice((8, 20, 60, 1000))
        self.sync_time = rng.choice((0.0, 0.0, 0.05, 0.3))
        self._restart_time = rng.choice((1.0, 4.0, 10.0))
        # The types of messages that nodes handle during a write: none, heartbeats (as in a daemon), or all but
        # snapshots.
        self._meanwhile = rng.choice((frozenset[int](), _HEARTBEATS, _HEARTBEATS, _ALL_BUT_SNAPSHOTS))
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0
        self._calm = False
        self._start(_settings(rng))
        self.clients = Clients(self)
        self.nemesis = Nemesis(self)

    def _start(self, settings: dict[str, Any]) -> None:
        rng, self._settings = self.rng, settings
        voters = rng.choice((1, 2, 3, 3, 3, 4, 5, 5))
        ids = range(1, voters + rng.choice((0, 1, 2)) + 1)
        self.nodes = {id_: RaftNode(id_, rng, settings) for id_ in ids}
        self._disks |= {node.id: node.disk for node in self.nodes.values()}
        drift = rng.choice((0.0, 0.01, 0.3))
        for node in self.nodes.values():
            if node.id <= voters:
                node.disk.bootstrap(ConfState(voters=range(1, voters + 1)))
            node.sync_time = self.sync_time
            node.tick_length = 1 + drift * (rng.random() - 0.5)
            self.restart(node)
            self.after(rng.random(), self._tick, node)

    # Events

    def after(self, delay: float, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function` in `delay` ticks."""
        self._scheduled += 1
        heappush(self._events, (self.now + delay, self._scheduled, function, arguments))

    def stories(self, partition_ids: Collection[int]) -> str:
        """This world has no replicas."""
        return ""

    def run(self) -> Outcome:
        """Run clients and faults. Then end both, and run until all nodes agree. Raises Violation if they never do."""
        self.clients.begin()
        self.nemesis.begin()
        # While messages overtake each other, answers can cause new messages faster than nodes can handle them. Real
        # nodes have no such flood, since their streams keep the order. So a flood ends the faults, and its messages
        # are lost.
        self._run_until(FAULTS_END, self._is_flooded)
        if self._is_flooded():
            self._events = [event for event in self._events if event[2] != self._deliver]
            heapify(self._events)
        self._calm_down()
        backlog = max(node.disk.seen.last_index() for node in self.nodes.values())
        patience = TICKS_TO_CONVERGE + TICKS_TO_CATCH_UP * backlog
        self._run_until(FAULTS_END + patience, self._converged)
        # Without pre-vote, a member that missed a change of the voters can ask the former voters for votes again and
        # again. Each time it begins a newer term, which disturbs the node that could win. In this case Raft doesn't
        # promise that the nodes ever agree (Ongaro's thesis, section 4.2.3).
        if not self._converged() and self._settings["pre_vote"]:
            raise Violation("liveness", f"no agreement {patience:.0f} ticks after the last fault: {self._where()}")
        return Outcome(self.steps, self.trace.digest())

    def _run_until(self, end: float, done: Callable[[], bool]) -> None:
        events = self._events
        while events and events[0][0] < end:
            self.now, _, function, arguments = heappop(events)
            self.steps += 1
            function(*arguments)
            if self.steps > MAX_STEPS:
                raise Violation("liveness", f"{MAX_STEPS} events without an end: {self._where()}")
            if not self.steps % 64 and done():
                return

    def _is_flooded(self) -> bool:
        return self.steps > MAX_STEPS // 2

    def _tick(self, node: RaftNode) -> None:
        self.after(node.tick_length, self._tick, node)
        if node.raw is None or self.now < node.stopped_until or (node.writing and not self._meanwhile):
            return
        node.raw.tick()
        self.work(node)

    # The Ready loop

    def work(self, node: RaftNode) -> None:
        """Handle all messages that have arrived. Stop at the next write to the disk that takes time."""
        if node.raw is None or self.now < node.stopped_until:
            return
        try:
            if node.writing:
                self._go_on_without_disk(node, node.raw)
                return
            self._step_inbox(node, node.raw)
            while node.raw.has_ready():
                self._observe(node)
                ready = node.raw.ready()
                self._send_all(node, ready.messages_at_once)
                self._stage(node, ready)
                if (ready.must_sync or ready.snapshot is not None) and not self._sync(node, ready):
                    break
                self._finish(node, node.raw, ready)
                self._step_inbox(node, node.raw)
            self._observe(node)
        except Killed:
            self.crash(node)

    def _go_on_without_disk(self, node: RaftNode, raw: RawNode) -> None:
        waiting = list(node.inbox)
        node.inbox.clear()
        node.inbox.extend(m for m in waiting if m.type in self._meanwhile)
        self._step_inbox(node, raw)
        node.inbox.extend(m for m in waiting if m.type not in self._meanwhile)
        self._observe(node)
        if self._meanwhile:
            self._send_all(node, raw.heartbeats())
            for read in raw.confirmed_reads():
                self.clients.answered(node, read)

    def _observe(self, node: RaftNode) -> None:
        leaders = len(self.oracle.leaders)
        self.oracle.observe(node.raft)
        if len(self.oracle.leaders) > leaders:
            self.nemesis.elected(node)
        if node.kill_behind_commit and node.raft.raft_log.committed > node.kill_behind_commit:
            self._kill(node)

    def _step_inbox(self, node: RaftNode, raw: RawNode) -> None:
        inbox = node.inbox
        while inbox:
            try:
                raw.step(inbox.popleft())
            except RaftError:
                continue

    def _stage(self, node: RaftNode, ready: Ready) -> None:
        self._point(node)
        if ready.entries:
            before = ready.entries[0].index - 1
            term = ready.snapshot.metadata.term if ready.snapshot is not None else node.disk.seen.term(before)
            self.oracle.appended(node.id, ready.entries, term)
        node.disk.stage(ready)
        self._point(node)
        self._observe(node)

    def _sync(self, node: RaftNode, ready: Ready) -> bool:
        """Begin to make the node's write durable. Returns True if it is durable at once."""
        if node.sync_time:
            node.writing = ready
            self.after(self.rng.expovariate(1 / node.sync_time), self._written, node, node.incarnation)
            return False
        node.disk.sync()
        return True

    def _written(self, node: RaftNode, incarnation: int) -> None:
        ready = node.writing
        if node.raw is None or ready is None or node.incarnation != incarnation:
            return
        self.trace.add(self.now, node.id, "written")
        node.writing = None
        node.disk.sync()
        try:
            self._finish(node, node.raw, ready)
        except Killed:
            self.crash(node)
        else:
            self.work(node)

    def _finish(self, node: RaftNode, raw: RawNode, ready: Ready) -> None:
        self._send_all(node, without_repeated_answers(ready.messages))
        if ready.snapshot is not None:
            node.restore(ready.snapshot)
            self.oracle.applied(node.id, node.applied, node.state)
            self.oracle.configured(node.id, node.applied, node.raft.tracker.config.conf_state(), changed=False)
        changed = False
        for entry in ready.committed_entries:
            self._point(node)
            node.apply(entry)
            self.oracle.applied(node.id, entry.index, node.state)
            if entry.type:
                changed = True
                self._observe(node)
                self.oracle.configured(node.id, entry.index, node.raft.tracker.config.conf_state(), changed=True)
            self.clients.applied(node, entry)
        for read in ready.read_states:
            self.clients.answered(node, read)
        raw.advance(ready)
        self._observe(node)
        if changed and node.leads:
            self.nemesis.configured(node)
        # Take a snapshot after a change of the configuration, since a joining node accepts only a snapshot in which it
        # is a member.
        if changed or node.applied - node.disk.seen.snapshot().metadata.index >= self.snapshot_entries:
            node.take_snapshot(keep=self.snapshot_entries // 2)

    def _point(self, node: RaftNode) -> None:
        if node.kill_after:
            node.kill_after -= 1
            if not node.kill_after:
                self._kill(node)

    def _kill(self, node: RaftNode) -> None:
        self.trace.add(self.now, node.id, "killed")
        raise Killed

    def _send_all(self, node: RaftNode, messages: Iterable[Message]) -> None:
        for message in messages:
            self._point(node)
            self._send(node, message)

    def _send(self, node: RaftNode, message: Message) -> None:
        to = message.to
        self.oracle.sent(message, node.disk)
        delays = self.network.deliveries(node.id, to)
        for delay in delays:
            self.after(delay, self._deliver, message)
            if len(delays) > 1:  # each arrival needs its own message, since the receiver owns it
                message = _copy(message)
        if message.type == MSG_SNAP:
            self.after(2.0, self._report, node, node.incarnation, to, bool(delays))
        elif not delays and self.rng.random() < 0.1:
            self.after(0.5, self._report, node, node.incarnation, to, None)

    def _report(self, node: RaftNode, incarnation: int, to: int, snapshot: bool | None) -> None:
        """Report to the node's core, as its transport would. `snapshot` is True if a snapshot to `to` has arrived,
        False if the snapshot was lost, and None if `to` can't be reached.
        """
        if node.raw is None or node.incarnation != incarnation:
            return
        if snapshot is None:
            node.raw.report_unreachable(to)
            if node.raft.leader_id == to and self.rng.random() < 0.5:  # the report that the leader is gone may be wrong
                node.raw.forget_leader(self.rng.randrange(1, 5))
        else:
            node.raw.report_snapshot(to, snapshot)
        self.work(node)

    def _deliver(self, message: Message) -> None:
        node = self.nodes.get(message.to)
        if node is None or node.raw is None or not self.network.connected(message.from_id, message.to):
            return
        self.trace.add(self.now, node.id, "receive", message)
        if len(node.inbox) < MAX_INBOX:
            node.inbox.append(message)
        self.work(node)

    # Processes

    def crash(self, node: RaftNode) -> None:
        """Kill the process, and start it again later."""
        if node.raw is None:
            return
        survives = node.writing is not None and self.rng.random() < 0.5
        self.trace.add(self.now, node.id, "crash", "the write under way survives" if survives else "")
        node.crash(write_survives=survives)
        self.after(self.rng.expovariate(1 / self._restart_time), self.restart, node)

    def restart(self, node: RaftNode) -> None:
        """Start the process if it doesn't run."""
        if node.raw is not None:
            return
        storage = node.disk.seen
        state, _ = storage.initial_state()
        self.trace.add(self.now, node.id, "start", f"term {state.term} vote {state.vote} log {storage.last_index()}")
        self.oracle.restarted(node.id, state, storage.last_index())
        node.start()
        self.oracle.observe(node.raft)

    def leader(self) -> RaftNode | None:
        """The node that leads in the newest term."""
        leading = [node for node in self.nodes.values() if node.leads]
        return max(leading, key=lambda node: node.raft.term, default=None)

    # The end

    def _calm_down(self) -> None:
        self._calm = True
        self.trace.add(self.now, "world", "calm")
        self.nemesis.end()
        self.clients.end()
        self.network.heal()
        self.network.calm()
        for node in self.nodes.values():
            node.sync_time, node.stopped_until, node.tick_length = 0.0, 0.0, 1.0
            node.kill_after = node.kill_behind_commit = 0
            self.restart(node)
            self.work(node)
        self._finish_load()

    def _finish_load(self) -> None:
        """Leave a joint configuration, stop removed nodes, and propose a last payload; the proposals end when the
        payload is committed.
        """
        self.after(5.0, self._finish_load)
        leader = self.leader()
        if leader is not None:
            self._stop_removed(leader)
            if leader.raw is None:
                return
            self.nemesis.leave_joint(leader)
            if self._last_committed():
                return
            try:
                leader.raw.propose_batch([_LAST_PAYLOAD])
            except ProposalDropped:
                return
            self.work(leader)

    def _stop_removed(self, leader: RaftNode) -> None:
        """Stop removed nodes, since a node that doesn't know of its removal may still lead, or disturb the others with
        elections. Wait until all members know of the removal, since a member that hasn't heard of it may need the
        removed node's vote. Also wait until the leader has applied its whole log, since an entry may add the node
        again.
        """
        members = self._members(leader.conf_state)
        knows = all(self._members(self.nodes[id_].conf_state) == members for id_ in members)
        if not knows or leader.applied < leader.raft.raft_log.last_index():
            return
        for node in self.nodes.values():
            if node.id in members:
                self.restart(node)
            elif node.raw is not None:
                self.trace.add(self.now, node.id, "removed")
                node.crash(write_survives=True)

    def _last_committed(self) -> bool:
        return self.oracle.committed > BOOTSTRAP_INDEX and self.oracle.data(self.oracle.committed) == _LAST_PAYLOAD

    def _converged(self) -> bool:
        leader = self.leader()
        if not self._calm or leader is None or leader.conf_state.voters_outgoing or not self._last_committed():
            return False
        members = [self.nodes[id_] for id_ in self._members(leader.conf_state)]
        return all(node.raw is not None and node.applied == self.oracle.committed for node in members)

    @staticmethod
    def _members(conf: ConfState) -> set[int]:
        return {*conf.voters, *conf.learners, *conf.voters_outgoing, *conf.learners_next}

    def _where(self) -> str:
        nodes = [
            f"{n.id}: {n.raft.role.value} term {n.raft.term} applied {n.applied}" if n.raw else f"{n.id}: down"
            for n in self.nodes.values()
        ]
        return f"committed {self.oracle.committed}; {'; '.join(nodes)}"


def _copy(message: Message) -> Message:
    copy = Message()
    copy.CopyFrom(message)
    return copy


def _network_profile(rng: random.Random) -> NetworkProfile:
    return NetworkProfile(
        delay=rng.choice((0.05, 0.2, 0.6)),
        loss=rng.choice((0.0, 0.0, 0.02, 0.15)),
        duplication=rng.choice((0.0, 0.0, 0.02, 0.1)),
        straggling=rng.choice((0.0, 0.0, 0.02, 0.1)),
    )


def _settings(rng: random.Random) -> dict[str, Any]:
    """Draw the settings of the Raft core. In most runs, its switches are set as in the daemon."""
    as_in_daemon = rng.random() < 0.6
    size = rng.choice((0, 0, 60, 1 << 20))
    return {
        "election_tick": rng.choice((3, 4, 8)),
        "heartbeat_tick": 1,
        "max_size_per_msg": size,
        "max_committed_size_per_ready": rng.choice((1, 100, 1 << 20)),
        "max_uncommitted_entries_size": rng.choice((60, 1 << 20)),
        "max_inflight_msgs": rng.choice((1, 3, 256)),
        "max_inflight_bytes": max(size, rng.choice((1, 200, 1 << 20))),
        "check_quorum": as_in_daemon or rng.random() < 0.5,
        "pre_vote": as_in_daemon or rng.random() < 0.5,
        "commit_by_vote": True,
        "disable_proposal_forwarding": as_in_daemon or rng.random() < 0.5,
        "step_down_on_removal": as_in_daemon or rng.random() < 0.5,
    }
