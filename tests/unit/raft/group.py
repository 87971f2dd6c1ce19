"""A Raft group in one process: real nodes, storages in memory, and messages that a test can hold back or drop."""

from collections.abc import Callable, Iterable

from minka.v1.raft_pb2 import ConfState, Entry, Message, MessageType, Snapshot, SnapshotMetadata
from minkad.core.raft import (
    Config,
    PeerNotFound,
    RawNode,
    ReadState,
    Ready,
    Role,
    from_entry,
)
from tests.vectors.memory_storage import MemoryStorage

Setting = object


class GroupStorage(MemoryStorage):
    """A storage that makes a snapshot of the applied entries whenever the core asks for one."""

    def __init__(self) -> None:
        super().__init__()
        self.applied: tuple[int, ConfState] | None = None  # the last applied index, and the configuration at that index

    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        if self.applied and self.applied[0] > super().snapshot().metadata.index:
            return self.create_snapshot(*self.applied, b"")
        return super().snapshot()


def bootstrapped(voters: Iterable[int], learners: Iterable[int] = ()) -> GroupStorage:
    """A storage that begins with a snapshot at index 1; the snapshot names the group's members."""
    storage = GroupStorage()
    state = ConfState(voters=voters, learners=learners)
    storage.apply_snapshot(Snapshot(metadata=SnapshotMetadata(index=1, term=1, conf_state=state)))
    return storage


class Group:
    """A group of nodes, with the ids 1 to n. The messages for which `drop` returns True are lost."""

    def __init__(self, voters: int, learners: Iterable[int] = (), **settings: Setting) -> None:
        self.settings = settings
        self.nodes: dict[int, RawNode] = {}
        self.storages: dict[int, GroupStorage] = {}
        self.applied: dict[int, list[Entry]] = {}
        self.conf: dict[int, ConfState] = {}
        self.reads: dict[int, list[ReadState]] = {}
        self.net: list[Message] = []
        self.drop: Callable[[Message], bool] = lambda _: False
        learners = list(learners)
        for id_ in [*range(1, voters + 1), *learners]:
            self.start(id_, bootstrapped(range(1, voters + 1), learners), applied=1)

    def start(self, id_: int, storage: GroupStorage, applied: int = 0, **settings: Setting) -> RawNode:
        """Start, or restart, a node on `storage`."""
        config = Config(id=id_, storage=storage, random=lambda n: n // 2, applied=applied)
        for name, value in {**self.settings, **settings}.items():
            setattr(config, name, value)
        self.nodes[id_] = RawNode(config)
        self.storages[id_] = storage
        self.applied[id_] = []
        self.reads[id_] = []
        _, self.conf[id_] = storage.initial_state()
        return self.nodes[id_]

    def isolate(self, *ids: int) -> None:
        """From now on, drop only the messages from and to these nodes. Without ids, drop no messages."""
        self.drop = lambda m: m.to in ids or m.from_id in ids

    def process(self, id_: int) -> Ready | None:
        """Handle one Ready of a node, if there is one."""
        node = self.nodes[id_]
        if not node.has_ready():
            return None
        ready = node.ready()
        if ready.hard_state:
            self.storages[id_].set_hard_state(ready.hard_state)
        if ready.snapshot:
            self.storages[id_].apply_snapshot(ready.snapshot)
            self.conf[id_] = ready.snapshot.metadata.conf_state
        self.storages[id_].append(ready.entries)
        self.net += [m for m in (*ready.messages_at_once, *ready.messages) if not self.drop(m)]
        self.reads[id_] += ready.read_states
        for entry in ready.committed_entries:
            change = from_entry(entry)
            if change is not None:
                self.conf[id_] = node.apply_conf_change(change)
            self.storages[id_].applied = entry.index, self.conf[id_]
        self.applied[id_] += ready.committed_entries
        node.advance(ready)
        return ready

    def deliver(self, *types: MessageType.ValueType) -> list[Message]:
        """Deliver the messages under way, or only those of `types`. Returns the delivered messages."""
        now = [m for m in self.net if not types or m.type in types]
        self.net = [m for m in self.net if types and m.type not in types]
        for message in now:
            if message.to in self.nodes:
                try:
                    # The receiver gets a copy, as over a network.
                    self.nodes[message.to].step(Message.FromString(message.SerializeToString()))
                except PeerNotFound:
                    continue
        return now

    def settle(self) -> None:
        """Run until nothing is left to do."""
        for _ in range(1_000):
            readys = [self.process(id_) for id_ in self.nodes]
            if not self.deliver() and not any(readys):
                return
        raise AssertionError("the group does not settle")

    def settle_until_leader(self, id_: int) -> None:
        """Run only until the node leads. The messages that it sends as the leader are not delivered yet."""
        for _ in range(1_000):
            if self.role(id_) is Role.LEADER:
                return
            for other in self.nodes:
                self.process(other)
            self.deliver()
        raise AssertionError(f"{id_} does not become the leader")

    def elect(self, id_: int) -> RawNode:
        """Make a node the leader."""
        self.nodes[id_].campaign()
        self.settle()
        node = self.nodes[id_]
        assert node.basic_status().role is Role.LEADER
        return node

    def elect_after_timeout(self, id_: int) -> Role:
        """Let an election timeout pass without a message from the leader: the other nodes are then free to vote, and
        this node campaigns. Return the role of this node after the election.
        """
        for other in self.nodes:
            self.tick(other, 10 if other != id_ else 15)
        self.settle()
        return self.role(id_)

    def tick(self, id_: int, times: int = 1) -> None:
        """Let time pass for one node."""
        for _ in range(times):
            self.nodes[id_].tick()

    def role(self, id_: int) -> Role:
        """A node's role."""
        return self.nodes[id_].basic_status().role

    def term(self, id_: int) -> int:
        """A node's term."""
        return self.nodes[id_].basic_status().term

    def commit(self, id_: int) -> int:
        """A node's commit index."""
        return self.nodes[id_].basic_status().commit

    def data(self, id_: int) -> list[bytes]:
        """The data of the entries that a node has applied, without empty entries."""
        return [entry.data for entry in self.applied[id_] if entry.data]
