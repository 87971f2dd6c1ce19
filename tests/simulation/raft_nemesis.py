"""The faults of the raft world, and the changes that its administrators make."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from minka.v1.raft_pb2 import (
    CONF_CHANGE_ADD_LEARNER_NODE,
    CONF_CHANGE_ADD_NODE,
    CONF_CHANGE_REMOVE_NODE,
    CONF_CHANGE_TRANSITION_AUTO,
    CONF_CHANGE_TRANSITION_JOINT_EXPLICIT,
    CONF_CHANGE_TRANSITION_JOINT_IMPLICIT,
    ConfChange,
    ConfChangeSingle,
    ConfChangeV2,
)
from minkad.core.raft import ProposalDropped
from tests.simulation.network import Link, between, partition
from tests.simulation.raft_node import RaftNode

if TYPE_CHECKING:
    from tests.simulation.raft_world import RaftWorld

_TRANSITIONS: Final = (
    CONF_CHANGE_TRANSITION_AUTO,
    CONF_CHANGE_TRANSITION_JOINT_IMPLICIT,
    CONF_CHANGE_TRANSITION_JOINT_EXPLICIT,
    CONF_CHANGE_TRANSITION_JOINT_EXPLICIT,
)


class Nemesis:
    """Makes faults. The seed decides which kinds of faults a run has, and how often, so rare combinations occur."""

    def __init__(self, world: "RaftWorld") -> None:
        self._world = world
        rng = world.rng
        faults: list[Callable[[], None]] = [
            self._part,
            self._part_leader,
            self._part_leader,
            self._heal,
            self._crash_one,
            self._crash_leader,
            self._crash_leader,
            self._crash_in_the_middle,
            self._churn,
            self._churn,
            self._crash_all,
            self._stop,
            self._slow_disk,
            self._transfer,
            self._change_configuration,
            self._change_configuration,
            self._change_configuration,
        ]
        weights = [rng.choice((0, 1, 1, 4)) for _ in faults]
        self._faults = [fault for fault, weight in zip(faults, weights, strict=True) for _ in range(weight)]
        self._pause = rng.choice((1.5, 3.0, 8.0))
        self._ended = False
        self._churn_until = 0.0
        self._parts_configurations = rng.random() < 0.7

    def begin(self) -> None:
        """Start the faults."""
        if self._faults:
            self._world.after(self._pause, self._next)

    def end(self) -> None:
        """End the faults."""
        self._ended = True

    def _next(self) -> None:
        if self._ended:
            return
        world = self._world
        world.after(world.rng.expovariate(1 / self._pause), self._next)
        world.rng.choice(self._faults)()

    def _say(self, what: str, detail: str = "") -> None:
        self._world.trace.add(self._world.now, "nemesis", what, detail)

    def _any(self) -> RaftNode:
        return self._world.rng.choice(list(self._world.nodes.values()))

    # The network

    def _part(self) -> None:
        world = self._world
        if len(world.nodes) < 2:
            return
        name, links = partition(world.rng, list(world.nodes))
        self._block(name, links)

    def _part_leader(self) -> None:
        """Cut off the leader, perhaps together with another node, from the other nodes."""
        world = self._world
        leader = world.leader()
        if leader is None or len(world.nodes) < 2:
            return
        company = {leader.id, self._any().id} if world.rng.random() < 0.5 else {leader.id}
        links = between(company, world.nodes.keys() - company, both=world.rng.random() < 0.7)
        self._block(f"leader {leader.id} with {sorted(company)}", links)

    def configured(self, leader: RaftNode) -> None:
        """In some runs, cut off part of the configuration that the leader has just applied, before the other nodes hear
        that the change is committed.
        """
        if self._parts_configurations and not self._ended and self._world.rng.random() < 0.3:
            self._part_configuration(leader)

    def _part_configuration(self, leader: RaftNode) -> None:
        """Cut off the incoming voters of a joint configuration from all other nodes."""
        if not leader.conf_state.voters_outgoing:
            return
        incoming = set(leader.conf_state.voters)
        others = self._world.nodes.keys() - incoming
        self._block(f"incoming voters {sorted(incoming)}", between(incoming, others, both=True))
        if self._world.rng.random() < 0.5:
            for id_ in sorted(others):  # after a restart, a node knows of fewer committed entries
                self._world.after(0.0, self._world.crash, self._world.nodes[id_])

    def _block(self, name: str, links: list[Link]) -> None:
        world = self._world
        self._say("partition", name)
        world.network.block(links)
        world.after(world.rng.expovariate(1 / 8), self._heal)

    def _heal(self) -> None:
        self._say("heal")
        self._world.network.heal()

    # Processes and disks

    def _crash_one(self) -> None:
        self._world.crash(self._any())

    def _crash_leader(self) -> None:
        leader = self._world.leader()
        if leader is not None:
            self._world.crash(leader)

    def _crash_in_the_middle(self) -> None:
        """Crash a node at a random step of persist, send or apply."""
        node = self._world.leader() if self._world.rng.random() < 0.5 else None
        (node or self._any()).kill_after = self._world.rng.randint(1, 12)

    def _churn(self) -> None:
        """For a while, let each leader die soon after its election: then entries of its term are only on few disks."""
        self._churn_until = self._world.now + self._world.rng.expovariate(1 / 40)

    def elected(self, node: RaftNode) -> None:
        """If `_churn` is under way, let the newly elected leader die soon."""
        if self._world.now >= self._churn_until or self._ended:
            return
        rng = self._world.rng
        match rng.randrange(3):
            case 0:
                node.kill_after = 3  # it dies when its first entry is durable, and no other node has the entry
            case 1:
                node.kill_after = rng.randint(2, 30)
            case _:
                node.kill_behind_commit = node.raft.raft_log.committed

    def _crash_all(self) -> None:
        if self._world.rng.random() < 0.3:
            for node in self._world.nodes.values():
                self._world.crash(node)

    def _stop(self) -> None:
        """Stop a node as SIGSTOP does: the node misses ticks, and messages to it wait."""
        world, node = self._world, self._any()
        pause = world.rng.expovariate(1 / 8)
        self._say("stop", f"{node.id} for {pause:.1f}")
        node.stopped_until = world.now + pause
        world.after(pause + 1e-6, world.work, node)

    def _slow_disk(self) -> None:
        world, node = self._world, self._any()
        self._say("slow disk", str(node.id))
        node.sync_time = 5.0

        def recover() -> None:
            node.sync_time = world.sync_time

        world.after(world.rng.expovariate(1 / 20), recover)

    # Administrators

    def _transfer(self) -> None:
        leader, to = self._world.leader(), self._any()
        if leader is not None and leader.raw is not None:
            self._say("transfer", f"{leader.id} to {to.id}")
            leader.raw.transfer_leader(to.id)
            self._world.work(leader)

    def leave_joint(self, leader: RaftNode) -> None:
        """Propose the end of a joint configuration that the leader doesn't end automatically."""
        if leader.conf_state.voters_outgoing and not leader.conf_state.auto_leave:
            self._propose(leader, ConfChangeV2())

    def _change_configuration(self) -> None:
        leader = self._world.leader()
        if leader is None:
            return
        if leader.conf_state.voters_outgoing:
            self.leave_joint(leader)
            return
        change = self._change(leader)
        if change is not None:
            self._propose(leader, change)

    def _change(self, leader: RaftNode) -> ConfChange | ConfChangeV2 | None:
        """Draw a configuration change, and leave out each part that would take away the last voter. Returns None if no
        part remains. A change of several nodes uses a joint configuration.
        """
        rng, conf = self._world.rng, leader.conf_state
        voters, learners = set(conf.voters), set(conf.learners)
        singles: list[ConfChangeSingle] = []
        nodes = list(self._world.nodes)
        for id_ in rng.sample(nodes, rng.choice((1, 1, 1, min(2, len(nodes)), len(nodes)))):
            kind = rng.choice((CONF_CHANGE_ADD_NODE, CONF_CHANGE_ADD_LEARNER_NODE, CONF_CHANGE_REMOVE_NODE))
            if kind != CONF_CHANGE_ADD_NODE and voters <= {id_}:
                continue
            voters.discard(id_)
            learners.discard(id_)
            if kind == CONF_CHANGE_ADD_NODE:
                voters.add(id_)
            singles.append(ConfChangeSingle(type=kind, node_id=id_))
        if not singles:
            return None
        if len(singles) == 1 and rng.random() < 0.3:
            return ConfChange(type=singles[0].type, node_id=singles[0].node_id)
        return ConfChangeV2(changes=singles, transition=rng.choice(_TRANSITIONS))

    def _propose(self, leader: RaftNode, change: ConfChange | ConfChangeV2) -> None:
        assert leader.raw is not None
        self._say("change", " ".join(str(change).split()))
        try:
            leader.raw.propose_conf_change(change)
        except ProposalDropped:
            return
        self._world.work(leader)
