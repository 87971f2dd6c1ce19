"""The types that the parts of the Raft core and its driver share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from minka.v1.raft_pb2 import Entry, HardState, Message, Snapshot
from minkad.core.raft.tracker import Progress, TrackerConfig

NONE = 0  # no node
NO_LIMIT = 2**64 - 1  # bytes; for parameters that take a limit

Log = Callable[[str, str], None]  # (level, text); levels DEBUG, INFO, WARN, ERROR


class Role(Enum):
    """A node's role within its term."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"
    PRE_CANDIDATE = "pre-candidate"


class CampaignType(Enum):
    """The reason for which a node campaigns."""

    PRE_ELECTION = "pre-election"
    ELECTION = "election"
    TRANSFER = "transfer"


class ReadOnlyOption(Enum):
    """The way in which a leader makes sure that it still leads before it answers a read."""

    SAFE = "safe"  # a quorum confirms it: one round of heartbeats for all waiting reads
    LEASE_BASED = "lease-based"  # it trusts check_quorum and bounded clock drift


class RaftError(Exception):
    """A request that the core refused; its state is as before."""


class LogRolledBack(AssertionError):
    """The log lacks entries that this node has acknowledged, so it was truncated, lost or replaced by an older copy.
    The node must not go on; etcd/raft panics in this case.
    """


class QuorumRolledBack(AssertionError):
    """The leader lacks entries that are committed here, or has other entries in their place: most voters have lost
    their logs, or were set back to older copies. The node must stop, so that its log stays as it is.
    """


class ProposalDropped(RaftError):
    """A proposal (or read) was refused.

    `leader_id` is the node to ask instead, NONE if this node knows of none. It is the node itself if the limit on
    uncommitted entries was reached or leadership is being handed over.
    """

    def __init__(self, reason: str, leader_id: int) -> None:
        super().__init__(reason)
        self.leader_id = leader_id


class LocalMessage(RaftError):
    """A message came from outside whose type only the node itself may step."""


class PeerNotFound(RaftError):
    """A response came from a node that is not in this node's configuration."""


@dataclass(frozen=True, slots=True)
class SoftState:
    """The state that need not survive a restart: the leader, and this node's role."""

    leader_id: int
    role: Role


@dataclass(frozen=True, slots=True)
class ReadState:
    """A read with this context may be answered once `index` is applied."""

    index: int
    context: bytes


@dataclass(slots=True)
class Ready:
    """Work for the driver, in this order: send messages_at_once; persist hard_state, the snapshot (which replaces the
    log) and then entries, with one fsync if must_sync or there is a snapshot; send messages; apply committed_entries;
    `advance`. A driver may send messages_at_once later, too.

    None of the entries and messages may be changed: the core shares them.
    """

    soft_state: SoftState | None
    hard_state: HardState | None
    read_states: Sequence[ReadState]
    entries: list[Entry]
    snapshot: Snapshot | None
    committed_entries: list[Entry]
    messages_at_once: list[Message]  # a leader's: they promise nothing that isn't durable before this Ready
    messages: list[Message]
    must_sync: bool


class BasicStatus(NamedTuple):
    """The cheap part of a node's status."""

    id: int
    role: Role
    term: int
    vote: int
    leader_id: int
    commit: int
    applied: int
    lead_transferee: int


@dataclass(frozen=True, slots=True)
class Status:
    """A node's status; `progress` is filled in on the leader only."""

    basic: BasicStatus
    config: TrackerConfig
    progress: dict[int, Progress]
