"""The interface of the Raft core: ticks, messages and requests in, Ready out.

Source: etcd/raft, RawNode without asynchronous storage writes.
"""

from dataclasses import dataclass

from minka.v1.raft_pb2 import (
    MSG_APP_RESP,
    MSG_BEAT,
    MSG_CHECK_QUORUM,
    MSG_HEARTBEAT,
    MSG_HEARTBEAT_RESP,
    MSG_HUP,
    MSG_PRE_VOTE_RESP,
    MSG_READ_INDEX,
    MSG_READ_INDEX_RESP,
    MSG_SNAP_STATUS,
    MSG_TRANSFER_LEADER,
    MSG_UNREACHABLE,
    MSG_VOTE_RESP,
    ConfChange,
    ConfChangeV2,
    ConfState,
    Entry,
    Message,
    MessageType,
    Snapshot,
)
from minkad.core.raft.confchange import as_v2, to_entry
from minkad.core.raft.config import Config
from minkad.core.raft.raft import Raft
from minkad.core.raft.types import (
    BasicStatus,
    LocalMessage,
    PeerNotFound,
    ReadState,
    Ready,
    Role,
    SoftState,
    Status,
)

_LOCAL = (MSG_HUP, MSG_BEAT, MSG_UNREACHABLE, MSG_SNAP_STATUS, MSG_CHECK_QUORUM)
_HEARTBEATS = (MSG_HEARTBEAT, MSG_HEARTBEAT_RESP)
_RESPONSES = (MSG_APP_RESP, MSG_VOTE_RESP, MSG_HEARTBEAT_RESP, MSG_READ_INDEX_RESP, MSG_PRE_VOTE_RESP)


@dataclass(slots=True)
class _Accepted:
    """The Ready that is under way, as far as `advance` needs it."""

    to_self: list[Message]  # this node's promises to itself, to be stepped in `advance`
    term: int  # term and vote when the Ready was handed out
    vote: int
    last: tuple[int, int] | None  # (index, term) of the last entry, if it was not persisted then
    snapshot: Snapshot | None
    committed: list[Entry]


class RawNode:
    """One node of a Raft group. Not thread-safe. The driver calls `ready` and `advance` in turn. Between them it may do
    everything except take in a MSG_SNAP: its configuration would hold before the entries that were handed out are
    applied.
    """

    def __init__(self, config: Config) -> None:
        """Raises ValueError for settings that contradict each other."""
        self.raft = Raft(config)
        self._soft_state = self._current_soft_state()
        self._hard_state = self._current_hard_state()
        self._durable_term, self._durable_vote = self.raft.term, self.raft.vote  # a crash doesn't lose these
        self._accepted: _Accepted | None = None  # between `ready` and `advance`

    # In

    def tick(self) -> None:
        """Let one tick pass; the driver decides how long a tick is."""
        self.raft.tick()

    def campaign(self) -> None:
        """Start an election, if this node may."""
        self.raft.step(Message(type=MSG_HUP))

    def propose(self, data: bytes) -> None:
        """Propose one entry. Raises ProposalDropped."""
        self.propose_batch([data])

    def propose_batch(self, datas: list[bytes]) -> None:
        """Propose an entry for each of `datas`, all or none. Each node gets one message, much cheaper than one an
        entry.

        A follower passes them on to the leader; they may be lost on the way. Raises ProposalDropped.
        """
        if datas:
            self.raft.propose([Entry(data=data) for data in datas])

    def propose_conf_change(self, change: ConfChange | ConfChangeV2) -> None:
        """Propose a configuration change. It becomes an empty entry while another one may be pending.

        Raises ProposalDropped.
        """
        self.raft.propose([to_entry(change)])

    def apply_conf_change(self, change: ConfChange | ConfChangeV2) -> ConfState:
        """Make a committed change take effect. A driver that voids a change passes it with every node_id set to 0.

        Returns the configuration to persist with the applied index. Raises ConfChangeError.
        """
        return self.raft.apply_conf_change(as_v2(change))

    def step(self, message: Message) -> None:
        """Take in a message from another node. Raises ProposalDropped, LocalMessage, PeerNotFound; if the node must not
        go on, LogRolledBack, QuorumRolledBack.
        """
        if message.type in _LOCAL:
            raise LocalMessage(f"{MessageType.Name(message.type)} from {message.from_id} is for the node itself only")
        if message.type in _RESPONSES and message.from_id not in self.raft.tracker.progress:
            raise PeerNotFound(f"{message.from_id} is not in the configuration of node {self.raft.id}")
        self.raft.step(message)

    def report_unreachable(self, id_: int) -> None:
        """Report that the last message to node `id_` was not delivered."""
        self.raft.step(Message(type=MSG_UNREACHABLE, from_id=id_))

    def report_snapshot(self, id_: int, ok: bool) -> None:
        """Report that the snapshot to node `id_` was delivered, or wasn't. Must be called for each MSG_SNAP."""
        self.raft.step(Message(type=MSG_SNAP_STATUS, from_id=id_, reject=not ok))

    def transfer_leader(self, id_: int) -> None:
        """Hand over leadership to node `id_`, within an election timeout or not at all."""
        self.raft.step(Message(type=MSG_TRANSFER_LEADER, from_id=id_))

    def forget_leader(self, campaign_after: int) -> None:
        """Report that the leader's process has died: another leader is elected without waiting for an election timeout.
        This node campaigns after `campaign_after` ticks if it may. If the leader lives after all, an election is the
        only harm.
        """
        self.raft.forget_leader(campaign_after)

    def read_index(self, context: bytes) -> None:
        """Ask for the index up to which entries must be applied before a read that starts now may be answered.

        The index comes as a ReadState with `context`; never if the leadership changes. Raises ProposalDropped.
        """
        self.raft.step(Message(type=MSG_READ_INDEX, entries=[Entry(data=context)]))

    # Out

    def has_ready(self) -> bool:
        """True if there is work for the driver."""
        r = self.raft
        log = r.raft_log
        return bool(
            r.msgs
            or r.msgs_after_append
            or log.unstable.has_next_entries()
            or log.has_next_committed()
            or r.read_states
            or log.unstable.next_snapshot() is not None
            or self._hard_state != self._current_hard_state()
            or self._soft_state != self._current_soft_state()
        )

    def ready(self) -> Ready:
        """The work for the driver; `advance` must follow before the next call."""
        assert self._accepted is None, "advance comes between two calls of ready"
        r = self.raft
        log = r.raft_log
        soft_state, hard_state = self._current_soft_state(), self._current_hard_state()
        entries = log.unstable.next_entries()
        at_once = self._may_send_at_once()
        ready = Ready(
            soft_state=soft_state if soft_state != self._soft_state else None,
            hard_state=r.hard_state() if hard_state != self._hard_state else None,
            read_states=r.read_states,
            entries=entries,
            snapshot=log.unstable.next_snapshot(),
            committed_entries=log.next_committed(),
            messages_at_once=r.msgs if at_once else [],
            messages=[*([] if at_once else r.msgs), *(m for m in r.msgs_after_append if m.to != r.id)],
            must_sync=bool(entries) or hard_state[:2] != self._hard_state[:2],
        )
        self._soft_state, self._hard_state = soft_state, hard_state
        self._accept(ready)
        return ready

    def _may_send_at_once(self) -> bool:
        """True if messages without a promise (all but `msgs_after_append`) may be sent before this Ready is durable.

        A leader may send entries while it writes them itself (Ongaro's thesis, section 10.2.1), since it counts itself
        only in `advance`. But a crash must not make it forget a term in which it spoke, or its vote.
        """
        r = self.raft
        return r.role is Role.LEADER and (r.term, r.vote) == (self._durable_term, self._durable_vote)

    def _accept(self, ready: Ready) -> None:
        r = self.raft
        log = r.raft_log
        committed = ready.committed_entries
        self._accepted = _Accepted(
            to_self=[m for m in r.msgs_after_append if m.to == r.id],
            term=r.term,
            vote=r.vote,
            last=log.last_entry() if log.unstable.entries else None,
            snapshot=ready.snapshot,
            committed=committed,
        )
        if committed:
            log.accept_applying(committed[-1].index)
        r.msgs, r.msgs_after_append, r.read_states = [], [], []
        log.unstable.accept_in_progress()

    def advance(self, ready: Ready) -> None:
        """Report that everything in `ready` is persisted, sent and applied."""
        accepted = self._accepted
        assert accepted is not None, "advance follows ready"
        assert ready.committed_entries is accepted.committed, "advance is called with the last ready"
        self._accepted = None
        self._durable_term, self._durable_vote = accepted.term, accepted.vote
        r = self.raft
        # This node's own answers come first: they read terms, which are still in the unstable entries.
        for message in accepted.to_self:
            r.step(message)
        # Entries that were persisted in an older term may soon be replaced in the storage.
        if accepted.last and accepted.term == r.term:
            r.raft_log.unstable.stable_to(*accepted.last)
        if accepted.snapshot:
            r.applied_snapshot(accepted.snapshot)
        if committed := accepted.committed:
            r.applied_to(committed[-1].index)
            r.reduce_uncommitted(committed)

    def heartbeats(self) -> list[Message]:
        """Take the heartbeats and answers to heartbeats that wait for the next Ready.

        All that they say is durable already, so they may be sent while a Ready is being persisted: a slow disk doesn't
        cost the leadership. Empty while the present term isn't durable.
        """
        r = self.raft
        if r.term != self._durable_term:
            return []
        taken = [message for message in r.msgs if message.type in _HEARTBEATS]
        if taken:
            r.msgs = [message for message in r.msgs if message.type not in _HEARTBEATS]
        return taken

    def confirmed_reads(self) -> list[ReadState]:
        """Take the answers to reads that wait for the next Ready; nothing in them has to become durable either."""
        r = self.raft
        if r.term != self._durable_term:
            return []
        taken, r.read_states = r.read_states, []
        return taken

    # Status

    def compactable(self) -> int:
        """The last entry that this node itself no longer needs: it knows that everything up to there is applied.
        Entries that the driver has applied since the last `advance` don't count.
        """
        return self.raft.raft_log.applied

    def basic_status(self) -> BasicStatus:
        """The part of the status that costs nothing."""
        r = self.raft
        log = r.raft_log
        return BasicStatus(r.id, r.role, r.term, r.vote, r.leader_id, log.committed, log.applied, r.lead_transferee)

    def last_index(self) -> int:
        """The last index of the log, persisted or not. On the leader, after `propose_batch`: the last one proposed."""
        return self.raft.raft_log.last_index()

    def status(self) -> Status:
        """The whole status; the progress is a copy."""
        r = self.raft
        progress = r.tracker.snapshot_progress() if r.role is Role.LEADER else {}
        return Status(self.basic_status(), r.tracker.config, progress)

    def match(self) -> dict[int, int]:
        """The index up to which each member has this leader's log, by its id; empty if this node doesn't lead."""
        r = self.raft
        return {id_: one.match for id_, one in r.tracker.progress.items()} if r.role is Role.LEADER else {}

    def _current_soft_state(self) -> SoftState:
        return SoftState(self.raft.leader_id, self.raft.role)

    def _current_hard_state(self) -> tuple[int, int, int]:
        return self.raft.term, self.raft.vote, self.raft.raft_log.committed
