"""One node of the raft world: the real Raft core, a simulated disk, and the applied state."""

import random
import zlib
from collections import deque
from typing import Any

from minka.v1.raft_pb2 import ConfState, Entry, Message, Snapshot
from minkad.core.raft import Config, RawNode, Ready, Role, from_entry
from minkad.core.raft.raft import Raft
from tests.simulation.disk import RaftDisk


class RaftNode:
    """A node. `raw` is None while the node's process is down."""

    def __init__(self, id_: int, rng: random.Random, settings: dict[str, Any]) -> None:
        self.id = id_
        self.disk = RaftDisk()
        self.raw: RawNode | None = None
        self.inbox: deque[Message] = deque()
        self.waiting: dict[int, tuple[int, bytes]] = {}  # by index: term and payload of a client's proposal
        self.writing: Ready | None = None
        self.stopped_until = 0.0
        self.sync_time = 0.0  # mean ticks of a sync; 0: no time
        self.kill_after = 0  # the process dies at the n-th step of persist, send or apply; 0: never
        self.kill_behind_commit = 0  # the process dies as soon as its commit index is greater than this; 0: never
        self.tick_length = 1.0
        self.incarnation = 0
        self.applied = 0
        self.state = 0
        self.conf_state = ConfState()
        self._rng = rng
        self._settings = settings

    def start(self) -> None:
        """Start the process with the state on the disk."""
        snapshot = self.disk.seen.snapshot()
        self.restore(snapshot)
        self.incarnation += 1
        config = Config(
            id=self.id,
            storage=self.disk.seen,
            random=self._rng.randrange,
            applied=snapshot.metadata.index,
            **self._settings,
        )
        self.raw = RawNode(config)

    def crash(self, *, write_survives: bool) -> None:
        """End the process. If `write_survives`, the write that is under way becomes durable; if not, it is lost."""
        if write_survives:
            self.disk.sync()
        self.disk.crash()
        self.raw = self.writing = None
        self.kill_after = self.kill_behind_commit = 0
        self.inbox.clear()
        self.waiting.clear()

    @property
    def raft(self) -> Raft:
        """The Raft core; the process must be up."""
        assert self.raw is not None
        return self.raw.raft

    @property
    def leads(self) -> bool:
        """True if the process is up and believes that it leads."""
        return self.raw is not None and self.raft.role is Role.LEADER

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the state by the state in the snapshot."""
        self.applied = snapshot.metadata.index
        self.conf_state = snapshot.metadata.conf_state
        self.state = int.from_bytes(snapshot.data, "big")

    def apply(self, entry: Entry) -> None:
        """Apply a committed entry: the state is a digest of all applied entries."""
        assert self.raw is not None
        assert entry.index == self.applied + 1, (entry.index, self.applied)
        self.applied = entry.index
        self.state = zlib.crc32(entry.data, self.state)
        change = from_entry(entry)
        if change is not None:
            self.conf_state = self.raw.apply_conf_change(change)

    def take_snapshot(self, keep: int) -> None:
        """Make a snapshot of the present state. Trim the log, but keep its last `keep` applied entries."""
        self.disk.stage_snapshot(self.applied, self.conf_state, self.state.to_bytes(4, "big"))
        self.disk.compact(self.applied - keep)
