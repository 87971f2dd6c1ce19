"""Requests of clients to the raft world, and checks of the answers."""

from typing import TYPE_CHECKING

from minka.v1.raft_pb2 import Entry
from minkad.core.raft import ProposalDropped, ReadState
from tests.simulation.raft_node import RaftNode
from tests.simulation.trace import Violation

if TYPE_CHECKING:
    from tests.simulation.raft_world import RaftWorld


class Clients:
    """Clients that send proposals and reads to leaders, and sometimes to other nodes."""

    def __init__(self, world: "RaftWorld") -> None:
        self._world = world
        self._reads: dict[bytes, int] = {}  # by context: the highest committed index when the read began
        self._refused: set[bytes] = set()  # payloads that were refused to a client
        self._payload_size = world.rng.choice((0, 0, 40))
        self._pause = world.rng.choice((0.2, 0.5, 2.0))
        self._numbers = 0
        self._ended = False

    def begin(self) -> None:
        """Start the requests."""
        self._world.after(0.5, self._next)

    def end(self) -> None:
        """Stop the requests."""
        self._ended = True

    def _next(self) -> None:
        if self._ended:
            return
        world = self._world
        world.after(self._pause * world.rng.random() * 2, self._next)
        up = [node for node in world.nodes.values() if node.raw is not None and world.now >= node.stopped_until]
        if not up:
            return
        leading = [node for node in up if node.leads]  # a deposed leader counts until it hears of the new term
        node = world.rng.choice(leading if leading and world.rng.random() < 0.8 else up)
        if world.rng.random() < 0.2:
            self._read(node)
        else:
            self._propose(node, world.rng.randint(1, 3))
        world.work(node)

    def _propose(self, node: RaftNode, count: int) -> None:
        assert node.raw is not None
        payloads = [self._payload() for _ in range(count)]
        term, leads = node.raft.term, node.leads
        try:
            node.raw.propose_batch(payloads)
        except ProposalDropped:
            self._refused.update(payloads)
            return
        self._world.trace.add(self._world.now, node.id, "propose", f"{payloads[0].decode()} and {count - 1} more")
        if leads:
            last = node.raw.last_index()
            node.waiting |= {last - count + 1 + i: (term, payload) for i, payload in enumerate(payloads)}

    def _payload(self) -> bytes:
        self._numbers += 1
        return b"%d" % self._numbers + b"." * self._payload_size

    def applied(self, node: RaftNode, entry: Entry) -> None:
        """Check an entry that a node has applied: it must not be a refused proposal. If a client waits at this node for
        a proposal with the entry's index and term, the entry must be this proposal.
        """
        payload = self._world.oracle.data(entry.index)
        if payload in self._refused:
            raise Violation(
                "a refusal means that nothing was done", f"{payload!r} was refused, but is entry {entry.index}"
            )
        proposed = node.waiting.pop(entry.index, None)
        if proposed is not None and proposed[0] == entry.term and payload != proposed[1]:
            raise Violation(
                "nothing acknowledged is lost",
                f"{proposed[1]!r} is acknowledged, but entry {entry.index} is {payload!r}",
            )

    def _read(self, node: RaftNode) -> None:
        assert node.raw is not None
        self._numbers += 1
        context = b"read %d" % self._numbers
        committed = self._world.oracle.committed
        try:
            node.raw.read_index(context)
        except ProposalDropped:
            return
        self._world.trace.add(self._world.now, node.id, "read", f"not below {committed}")
        self._reads[context] = committed

    def answered(self, node: RaftNode, read: ReadState) -> None:
        """Check that a node answers a read at an index that isn't lower than the commit index when the read began."""
        floor = self._reads.pop(read.context, 0)
        if read.index < floor:
            raise Violation(
                "linearizable reads", f"a read at node {node.id} is answered at {read.index}, but {floor} was committed"
            )
