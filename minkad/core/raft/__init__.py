"""Raft, as a pure state machine in the shape of etcd/raft.

A driver owns one `RawNode`: it calls `tick`, `step` and `propose_batch`, and whenever `has_ready()`:

    ready = node.ready()
    send ready.messages_at_once                               # a leader's entries, which the others sync meanwhile
    persist ready.hard_state, ready.snapshot, ready.entries   # in this order, one fsync
    send ready.messages
    apply ready.committed_entries                             # apply_conf_change for the configuration changes
    node.advance(ready)

A promise is sent only once it is durable. The core has no clock, no randomness and no I/O of its own.
"""

from minkad.core.raft.confchange import ConfChangeError, from_entry
from minkad.core.raft.config import Config
from minkad.core.raft.quorum import JointConfig, MajorityConfig
from minkad.core.raft.raw_node import RawNode
from minkad.core.raft.storage import (
    Compacted,
    SnapOutOfDate,
    SnapshotTemporarilyUnavailable,
    Storage,
    Unavailable,
)
from minkad.core.raft.tracker import Progress, ProgressState, TrackerConfig
from minkad.core.raft.types import (
    NO_LIMIT,
    NONE,
    BasicStatus,
    LocalMessage,
    LogRolledBack,
    PeerNotFound,
    ProposalDropped,
    QuorumRolledBack,
    RaftError,
    ReadOnlyOption,
    ReadState,
    Ready,
    Role,
    SoftState,
    Status,
)

__all__ = [
    "NONE",
    "NO_LIMIT",
    "BasicStatus",
    "Compacted",
    "ConfChangeError",
    "Config",
    "JointConfig",
    "LocalMessage",
    "LogRolledBack",
    "MajorityConfig",
    "PeerNotFound",
    "Progress",
    "ProgressState",
    "ProposalDropped",
    "QuorumRolledBack",
    "RaftError",
    "RawNode",
    "ReadOnlyOption",
    "ReadState",
    "Ready",
    "Role",
    "SnapOutOfDate",
    "SnapshotTemporarilyUnavailable",
    "SoftState",
    "Status",
    "Storage",
    "TrackerConfig",
    "Unavailable",
    "from_entry",
]
