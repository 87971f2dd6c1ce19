"""A node's replicas without I/O: log and data are in memory, and a test carries out the instructions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar, cast

from minka.errors import MinkaError
from minka.v1.cluster_pb2 import Keyspace, Partition
from minka.wire.kv_frames import StoredWrite, WriteBody, encode
from minka.wire.stored_values import LOAD_VERSIONS, head, values_of
from minkad.core.replication.entries import decode_entry
from minkad.core.replication.epochs import Epochs
from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.gate import Gate
from minkad.core.replication.instructions import Apply, Instruction
from minkad.core.replication.leadership import Leader
from minkad.core.replication.node import Node
from minkad.core.replication.peer_messages import Ack, Append, Entry, Standing
from minkad.core.replication.replica import Replica
from minkad.core.replication.replica_storage import DeletedAheadError
from minkad.core.replication.replication_settings import ReplicationSettings
from tests import strict_replicas  # noqa: F401  # each event is followed by a check

NODES = ("athens", "byzantium", "cyrene")
SETTINGS = ReplicationSettings()
VERSION = 3  # the version of all rows in `MemoryData`
InstructionT = TypeVar("InstructionT")


def a_write(key: bytes = b"k", value: bytes = b"v") -> bytes:
    return encode(WriteBody([key], [value]))


def row(id: int = 1, replicas: Sequence[str] = NODES, isr: Sequence[str] | None = None, **fields: Any) -> Partition:  # noqa: A002
    """A row of a partition; by default all replicas are in sync, and the first leads."""
    known: dict[str, Any] = {"leader": replicas[0], "leader_epoch": 1, "partition_epoch": 1, "keyspace_id": 1}
    return Partition(id=id, replicas=replicas, isr=replicas if isr is None else isr, **known | fields)


def changed(was: Partition, **fields: Any) -> Partition:
    """A copy of the row `was` with the next partition_epoch and these fields."""
    new: Any = Partition()
    new.CopyFrom(was)
    new.partition_epoch += 1
    for name, value in fields.items():
        new.ClearField(name)
        new.MergeFrom(Partition(**{name: value}))
    return cast("Partition", new)


class MemoryLog:
    """A `ReplicaLog` in memory. Entries in its tail can be read before they are stored."""

    def __init__(self, base: int = 0, base_epoch: int = 0) -> None:
        self.base = self.end = base
        self.truncations = 0
        self.keeps_tail = False
        self._entries: dict[int, Entry] = {}
        self._epochs = Epochs(base, base_epoch)

    def append(self, leader_epoch: int, body: bytes) -> int:
        self.end += 1
        self._entries[self.end] = Entry(leader_epoch, body)
        self._epochs.append(self.end, leader_epoch)
        return self.end

    def read(self, start: int, end: int, max_bytes: int) -> list[Entry]:
        assert self.base < start <= end <= self.end
        taken: list[Entry] = []
        for offset in range(start, end + 1):
            entry = self._entries[offset]
            max_bytes -= len(entry.body)
            if taken and max_bytes < 0:
                break
            taken.append(entry)
        return taken

    def readable(self, start: int, stored: int) -> int:
        return self.end if self.keeps_tail else min(stored, self.end)

    def truncate(self, end: int) -> None:
        assert self.base <= end <= self.end
        if end < self.end:
            self._epochs.truncate(end + 1)
            self.end = end
            self.truncations += 1

    def trim(self, base: int) -> None:
        assert self.base <= base <= self.end
        self._epochs.compact(base)
        self.base = base

    def reset(self, base: int, base_epoch: int) -> None:
        self.base = self.end = base
        self._epochs = Epochs(base, base_epoch)
        self.truncations += 1

    def epoch_at(self, offset: int) -> int:
        return self._epochs.at(offset)

    def lineage(self) -> list[tuple[int, int]]:
        return self._epochs.lineage()

    def common_end(self, theirs: Sequence[tuple[int, int]], their_end: int) -> int | None:
        return self._epochs.common(self.end, theirs, their_end)

    def keep_tail(self, keep: bool) -> None:
        self.keeps_tail = keep

    def drop_tail(self, offset: int) -> None:
        pass

    def bound_tail(self, stored: int) -> None:
        pass


def log_of(*epochs: int, base: int = 0, base_epoch: int = 0) -> MemoryLog:
    """A log with one write for each of these leader_epochs."""
    log = MemoryLog(base, base_epoch)
    for epoch in epochs:
        log.append(epoch, a_write())
    return log


@dataclass
class At:
    """A `Position` that a test chooses."""

    offset: int = 0
    leader_epoch: int = 0


@dataclass
class MemoryData:
    """A `ReplicaData` in memory. It is on disk if `is_there`, and at rest if `was_open` and not `is_open`."""

    applied: At = field(default_factory=At)
    is_there: bool = False
    is_open: bool = False
    was_open: bool = False
    damage: MinkaError | None = None
    rows: dict[bytes, bytes | None] = field(default_factory=dict)
    deleted_ahead: bool = False
    version_base: int = 0
    is_attached: bool = False
    head: bytes = head(VERSION)  # the head of every row

    @property
    def is_known(self) -> bool:
        return self.is_open or self.was_open

    @property
    def is_closed(self) -> bool:
        return self.is_there and not self.is_open and self.damage is None

    def exists(self) -> bool:
        return self.is_there

    def open(self) -> None:
        self.is_there = self.is_open = True

    def condemn(self, error: MinkaError) -> None:
        self.damage = error

    @property
    def loaded_version(self) -> int:
        return LOAD_VERSIONS + 1

    def stored_page(
        self, start: bytes, end: bytes, reverse: bool, max_rows: int, max_bytes: int, max_passed: int
    ) -> tuple[list[bytes], list[bytes], bool]:
        if self.damage is not None:
            raise self.damage
        if self.deleted_ahead:
            raise DeletedAheadError
        found = sorted((k, v) for k, v in self.rows.items() if k >= start and (not end or k < end) and v is not None)
        page = found[:max_rows]
        return [key for key, _ in page], [self.head + value for _, value in page], page == found

    def describe(self) -> str:
        return "the data"


def data_at(offset: int, leader_epoch: int = 1) -> MemoryData:
    """Data on disk, with everything up to this offset."""
    return MemoryData(At(offset, leader_epoch), is_there=True)


class View:
    """A `ClusterView` whose keyspaces, absent nodes and low disks a test sets."""

    def __init__(self) -> None:
        self.keyspaces = {1: Keyspace(id=1, min_insync=1)}
        self.absent: set[str] = set()
        self.low: set[str] = set()
        self.cleared_until = inf  # the end of the node's clearance

    def keyspace(self, keyspace_id: int) -> Keyspace | None:
        return self.keyspaces.get(keyspace_id)

    def last_clearance(self, now: float) -> float:
        return min(now, self.cleared_until)

    def is_absent(self, node_id: str) -> bool:
        return node_id in self.absent

    def low_disks(self) -> Collection[str]:
        return self.low


@dataclass(frozen=True, eq=False)
class Bare:
    """A replica of which the shell has nothing more."""

    state: Replica


class Bench:
    """The replicas on one node. A test sets the time, and carries out the instructions."""

    def __init__(self, id: str = "athens") -> None:  # noqa: A002
        self.now = 0.0
        self.view = View()
        self.with_load_files: set[int] = set()
        self.node = Node[Bare](id, SETTINGS, self.view, self.with_load_files)
        self.shared = self.node.shared
        self._handed_out: list[Instruction] = []
        self.node.carry_out = self._handed_out.append

    def host(self, row: Partition, log: MemoryLog | None = None, data: MemoryData | None = None) -> Replica:
        """Host a replica in the role that its row gives it. Its log is on disk."""
        log = log or MemoryLog()
        replica = Replica(self.shared, row, log, data or MemoryData())
        replica.recovered_to(log.end)
        self.node.add(Bare(replica))
        self.node.adopt(row, self.now)
        return replica

    def hosted(self, partition_id: int) -> Bare:
        """The replica, for events."""
        return self.node.replicas[partition_id]

    def replica(self, partition_id: int) -> Replica:
        """The replica's state."""
        return self.node.replicas[partition_id].state

    def adopt(self, replica: Replica, **fields: Any) -> None:
        """Give the replica its next row, in which `fields` have changed."""
        self.node.adopt(changed(replica.row, **fields), self.now)

    def take(self, kind: type[InstructionT]) -> list[InstructionT]:
        """Return the instructions of this kind since the last call, and drop all others."""
        return [one for one in self.take_all() if isinstance(one, kind)]

    def take_all(self) -> list[Instruction]:
        """The instructions since the last call, also of a part of a replica that a test has called itself."""
        left: list[Instruction] = []
        while self.shared.outbox:
            left.append(self.shared.outbox.popleft())
        left += [Apply(state.id) for state in self.shared.due]
        taken = [*self._handed_out, *left]
        self._handed_out.clear()
        self.shared.due.clear()
        return taken

    def write(self, replica: Replica, *bodies: bytes) -> None:
        """Write as clients do; by default one entry."""
        for body in bodies or (a_write(),):
            self.node.append(self.hosted(replica.id), body)

    def sync(self, replica: Replica) -> None:
        """Put everything that is staged on the disk."""
        ends = {self.hosted(replica.id): (replica.log.end, replica.log.truncations)}
        self._handed_out += [Apply(one.state.id) for one in self.node.stored(ends, self.now, on_disk=True)]

    def open(self, replica: Replica) -> None:
        """Open the data, as `OpenData` asks."""
        assert isinstance(replica.data, MemoryData)
        replica.data.open()
        self.node.data_opened(self.hosted(replica.id), self.now)

    def apply(self, replica: Replica) -> None:
        """Apply everything that is committed."""
        data = replica.data
        assert isinstance(data, MemoryData)
        if data.is_closed:
            self.open(replica)
        replica.take_over_data()
        end = replica.high_watermark
        if replica.applied < end:
            for entry in replica.log.read(replica.applied + 1, end, 2**30):
                write = decode_entry(entry.body)
                if isinstance(write, WriteBody):
                    values = values_of(write.values) if isinstance(write, StoredWrite) else write.values
                    data.rows.update(zip(write.keys, values, strict=True))
            data.open()
            data.applied.offset = end
        self.node.apply_ended(self.hosted(replica.id))
        self.node.applied(self.hosted(replica.id), end, 0, self.now)

    def tick(self, replica: Replica, now: float) -> None:
        """Move the clock to `now`, and give the replica a tick."""
        self.now = now
        self.node.tick(replica.id, now)

    # Answers of followers to leaders on this node

    def stands(self, replica: Replica, node: str, log: MemoryLog, standing: Standing = Standing.STORED) -> Progress:
        """Probe a follower. Its answer has this standing, and the positions of this log."""
        leader, progress = leader_of(replica), leader_of(replica).progress[node]
        progress.is_queued = False
        probe = progress.next_append(2**20)
        assert probe is not None
        assert probe.probe
        ack = Ack(replica.id, leader.leader_epoch, standing, log.end, log.lineage())
        self.node.acknowledged(progress, ack, self.now)
        return progress

    def ack(self, replica: Replica, node: str, offset: int | None = None, *, attached: bool = False) -> None:
        """Let a follower acknowledge everything up to `offset`; by default, everything that was sent to it."""
        leader, progress = leader_of(replica), leader_of(replica).progress[node]
        if offset is None:
            sent(progress)
            offset = progress.next - 1
        ack = Ack(replica.id, leader.leader_epoch, Standing.STORED, offset, attached=attached)
        self.node.acknowledged(progress, ack, self.now)

    def align(self, replica: Replica, *nodes: str) -> None:
        """Let these followers acknowledge everything that the leader has."""
        for node in nodes:
            assert isinstance(replica.log, MemoryLog)
            if not leader_of(replica).progress[node].is_replicating:
                self.stands(replica, node, replica.log)
            self.ack(replica, node)

    def serve_alone(self, replica: Replica) -> None:
        """Sync and apply everything, as a leader that is alone in the in-sync set does."""
        leader_of(replica).epoch_durable()
        self.sync(replica)
        self.apply(replica)

    def serve(self, replica: Replica) -> None:
        """Let all followers have everything, and apply it on the leader."""
        self.sync(replica)
        self.align(replica, *leader_of(replica).progress)
        self.apply(replica)


def leader_of(replica: Replica) -> Leader:
    assert replica.leader is not None
    return replica.leader


def gate_of(replica: Replica) -> Gate:
    return replica.gate.state


def sent(progress: Progress) -> list[Append]:
    """Take all messages that the leader may send to the follower now. Returns the messages."""
    progress.is_queued = False
    appends: list[Append] = []
    while (append := progress.next_append(2**30)) is not None:
        appends.append(append)
    return appends
