"""One node of a Raft group: its term, role and log, and the active configuration.

Source: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm"; Ongaro's thesis; etcd/raft.
See `election` for campaigns and votes, `leader` for leaders, `follower` for followers and candidates.
"""

from collections.abc import Callable

from minka.v1.raft_pb2 import (
    MSG_APP,
    MSG_APP_RESP,
    MSG_BEAT,
    MSG_CHECK_QUORUM,
    MSG_HEARTBEAT,
    MSG_HUP,
    MSG_PRE_VOTE,
    MSG_PRE_VOTE_RESP,
    MSG_PROP,
    MSG_READ_INDEX,
    MSG_SNAP,
    MSG_VOTE,
    MSG_VOTE_RESP,
    ConfChangeV2,
    ConfState,
    Entry,
    HardState,
    Message,
    MessageType,
    Snapshot,
)
from minkad.core.raft import election, leader
from minkad.core.raft.confchange import Changed, Changer, restore
from minkad.core.raft.config import Config
from minkad.core.raft.follower import step_candidate, step_follower
from minkad.core.raft.log import RaftLog
from minkad.core.raft.read_only import ReadOnly
from minkad.core.raft.storage import payloads_size
from minkad.core.raft.tracker import Progress, ProgressTracker
from minkad.core.raft.types import NO_LIMIT, NONE, CampaignType, ProposalDropped, ReadState, Role

_VOTES = (MSG_VOTE, MSG_PRE_VOTE)
_VOTE_MESSAGES = (MSG_VOTE, MSG_PRE_VOTE, MSG_VOTE_RESP, MSG_PRE_VOTE_RESP)
_FROM_LEADER = (MSG_APP, MSG_HEARTBEAT, MSG_SNAP)
# These promise that something is durable, so they wait until it is.
_AFTER_APPEND = (MSG_APP_RESP, MSG_VOTE_RESP, MSG_PRE_VOTE_RESP)


class Raft:
    """The state machine that RawNode drives; deterministic, single-threaded, without I/O and clock."""

    def __init__(self, config: Config) -> None:
        config.validate()
        self.config = config
        self.id = config.id
        self.say = config.log()
        self.term = 0  # never falls
        self.vote = NONE  # the candidate that this node has voted for in this term; never another one
        self.leader_id = NONE  # of this term; NONE while it isn't known
        self.role = Role.FOLLOWER
        self.is_learner = False
        self.raft_log = RaftLog(config.storage, config.max_committed_size_per_ready, self.say)
        self.tracker = ProgressTracker(config.max_inflight_msgs, config.max_inflight_bytes)
        self.msgs: list[Message] = []  # to send with the next Ready; they promise nothing
        # To send once the next Ready is durable, since they promise that it is. Messages to this node itself, too.
        self.msgs_after_append: list[Message] = []
        self.read_states: list[ReadState] = []  # confirmed reads of this node, for the next Ready
        self.read_only = ReadOnly()
        self.pending_reads: list[Message] = []  # reads that came before this leader committed an entry of its term
        self.lead_transferee = NONE  # the node to which this leader hands over; meanwhile it drops proposals
        # No configuration change is proposed until this index is applied: an entry up to there may be another one.
        self.pending_conf_index = 0
        self.uncommitted_size = 0  # the leader's estimate of the payload bytes that are proposed and not applied
        self.election_elapsed = 0  # follower: ticks since it heard its leader; leader: since it checked its quorum
        self.heartbeat_elapsed = 0  # ticks since this leader's last heartbeat
        self.voters_asked = False  # a read has sent heartbeats to the voters since the last tick of heartbeats
        self.beats = 0  # ticks of heartbeats, which choose the learners whose turn it is
        self.randomized_election_timeout = 0  # ticks without a leader before a campaign, drawn for each term
        self.tick: Callable[[], None] = self._tick_election
        self._step: Callable[[Raft, Message], None] = step_follower
        self._start()

    def _start(self) -> None:
        hard_state, conf_state = self.config.storage.initial_state()
        self._restore_config(conf_state)
        if hard_state.term or hard_state.vote or hard_state.commit:
            self._load_state(hard_state)
        if self.config.applied:
            self.raft_log.applied_to(self.config.applied)
        self.become_follower(self.term, NONE)
        last, last_term = self.raft_log.last_entry()
        self.say("INFO", f"node {self.id} starts: {self.tracker.config}, last entry {last} of term {last_term}")

    def _load_state(self, state: HardState) -> None:
        log = self.raft_log
        assert log.committed <= state.commit <= log.last_index(), (
            f"commit {state.commit} is not within [{log.committed}, {log.last_index()}]: was the log truncated or lost?"
        )
        log.committed = state.commit
        self.term = state.term
        self.vote = state.vote

    def hard_state(self) -> HardState:
        """The state that must be durable."""
        return HardState(term=self.term, vote=self.vote, commit=self.raft_log.committed)

    # Sending

    def send(self, message: Message) -> None:
        """Queue `message` for the next Ready. It gets this node's term. Messages about votes have their own, and those
        that are passed on to the leader have none.
        """
        type_ = message.type
        if not message.from_id:
            message.from_id = self.id
        if type_ in _VOTE_MESSAGES:
            assert message.term, f"{MessageType.Name(type_)} says its term"
        else:
            assert not message.term, f"{MessageType.Name(type_)} has this node's term"
            if type_ not in (MSG_PROP, MSG_READ_INDEX):  # passed on to the leader, whichever term it is in
                message.term = self.term
        if type_ in _AFTER_APPEND:
            self.msgs_after_append.append(message)
        else:
            assert message.to != self.id, f"{MessageType.Name(type_)} to this node itself"
            self.msgs.append(message)

    # Time

    def _tick_election(self) -> None:
        self.election_elapsed += 1
        if self.promotable() and self.election_elapsed >= self.randomized_election_timeout:
            self.election_elapsed = 0
            self.step(Message(type=MSG_HUP, from_id=self.id))

    def _tick_heartbeat(self) -> None:
        self.heartbeat_elapsed += 1
        self.election_elapsed += 1
        if self.election_elapsed >= self.config.election_tick:
            self.election_elapsed = 0
            if self.config.check_quorum:
                self.step(Message(type=MSG_CHECK_QUORUM, from_id=self.id))
            self.abort_leader_transfer()  # it had an election timeout to succeed
        if self.role is Role.LEADER and self.heartbeat_elapsed >= self.config.heartbeat_tick:
            self.heartbeat_elapsed = 0
            self.step(Message(type=MSG_BEAT, from_id=self.id))

    # Roles

    def _reset(self, term: int) -> None:
        assert term >= self.term, f"the term never goes back from {self.term} to {term}"
        if self.term != term:
            self.term = term
            self.vote = NONE
        self.leader_id = NONE
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.randomized_election_timeout = self.config.election_tick + self.config.random(self.config.election_tick)
        self.abort_leader_transfer()
        self.tracker.votes.clear()
        last = self.raft_log.last_index()
        for id_, old in self.tracker.progress.items():
            self.tracker.progress[id_] = Progress(
                next=last + 1,
                inflights=self.tracker.new_inflights(),
                match=last if id_ == self.id else 0,
                is_learner=old.is_learner,
            )
        self.pending_conf_index = 0
        self.uncommitted_size = 0
        self.read_only = ReadOnly()
        self.pending_reads = []

    def become_follower(self, term: int, leader_id: int) -> None:
        """Follow `leader_id` (NONE: not known yet) in `term`."""
        self._step = step_follower
        self._reset(term)
        self.tick = self._tick_election
        self.leader_id = leader_id
        self.role = Role.FOLLOWER
        self.say("INFO", f"node {self.id} is a follower in term {self.term}")

    def forget_leader(self, campaign_after: int) -> None:
        """Note that the leader's process has died: from now on this node votes for others, though it heard the leader
        lately. Campaign after `campaign_after` ticks if no other node leads by then (etcd/raft: MsgForgetLeader).
        """
        if self.role is not Role.FOLLOWER or self.leader_id == NONE:
            return
        self.say("INFO", f"node {self.id} forgets its leader {self.leader_id} in term {self.term}")
        self.leader_id = NONE
        self.election_elapsed = max(self.election_elapsed, self.randomized_election_timeout - campaign_after)

    def become_candidate(self) -> None:
        """Campaign in the next term."""
        assert self.role is not Role.LEADER, "a leader does not campaign"
        self._step = step_candidate
        self._reset(self.term + 1)
        self.tick = self._tick_election
        self.vote = self.id
        self.role = Role.CANDIDATE
        self.say("INFO", f"node {self.id} is a candidate in term {self.term}")

    def become_pre_candidate(self) -> None:
        """Ask if a campaign would be won; term and vote stay."""
        assert self.role is not Role.LEADER, "a leader does not campaign"
        self._step = step_candidate
        self.tracker.votes.clear()
        self.tick = self._tick_election
        self.leader_id = NONE
        self.role = Role.PRE_CANDIDATE
        self.say("INFO", f"node {self.id} is a pre-candidate in term {self.term}")

    def become_leader(self) -> None:
        """Lead this term, beginning with an empty entry, which commits all entries before it."""
        assert self.role in (Role.CANDIDATE, Role.PRE_CANDIDATE), "only a candidate wins an election"
        self._step = leader.step_leader
        self._reset(self.term)
        self.tick = self._tick_heartbeat
        self.leader_id = self.id
        self.role = Role.LEADER
        mine = self.tracker.progress[self.id]
        mine.become_replicate()
        mine.recent_active = True
        # Any entry of the log may be a configuration change that isn't applied yet.
        self.pending_conf_index = self.raft_log.last_index()
        accepted = self.append_entries([Entry()])
        assert accepted, "an empty entry is never refused"
        self.say("INFO", f"node {self.id} is the leader in term {self.term}")

    def promotable(self) -> bool:
        """True if this node may campaign: a voter that has no snapshot to install."""
        mine = self.tracker.progress.get(self.id)
        return mine is not None and not mine.is_learner and self.raft_log.unstable.snapshot is None

    # Messages

    def step(self, m: Message) -> None:
        """Take in a message. Raises ProposalDropped for MSG_PROP and MSG_READ_INDEX."""
        if m.term and m.term != self.term and not self._accepts_term(m):
            return
        if m.type == MSG_HUP:
            election.hup(self, CampaignType.PRE_ELECTION if self.config.pre_vote else CampaignType.ELECTION)
        elif m.type in _VOTES:
            election.handle_vote(self, m)
        else:
            self._step(self, m)

    def _accepts_term(self, m: Message) -> bool:
        """Handle a term other than this node's: follow a newer one, answer an older one. Returns True if the message
        still has to be handled.
        """
        if m.term < self.term:
            self._answer_older_term(m)
            return False
        if m.type in _VOTES and m.context != election.TRANSFER_CONTEXT:
            in_lease = self.leader_id != NONE and self.election_elapsed < self.config.election_tick
            if self.config.check_quorum and in_lease:
                self.say("INFO", f"node {self.id} ignores the candidate {m.from_id}: it has just heard its leader")
                return False
        if m.type == MSG_PRE_VOTE or (m.type == MSG_PRE_VOTE_RESP and not m.reject):
            return True  # these carry a term that nobody is in yet
        self.say("INFO", f"node {self.id} in term {self.term} hears of term {m.term} from {m.from_id}")
        self.become_follower(m.term, m.from_id if m.type in _FROM_LEADER else NONE)
        return True

    def _answer_older_term(self, m: Message) -> None:
        config = self.config
        if (config.check_quorum or config.pre_vote) and m.type in (MSG_HEARTBEAT, MSG_APP):
            # This node may have a newer term and be unable to win, since nodes that hear their leader ignore its vote
            # requests. The answer tells the leader of the newer term, which frees this node.
            self.send(Message(type=MSG_APP_RESP, to=m.from_id))
        elif m.type == MSG_PRE_VOTE:
            # Otherwise a sender with an older term and a longer log would never learn of this term.
            self.send(Message(type=MSG_PRE_VOTE_RESP, to=m.from_id, term=self.term, reject=True))
        else:
            self.say("INFO", f"node {self.id} ignores {MessageType.Name(m.type)} of term {m.term} from {m.from_id}")

    # The leader's log

    def propose(self, entries: list[Entry]) -> None:
        """Propose entries, here or at the leader. Raises ProposalDropped."""
        if self.role is Role.LEADER:
            leader.propose(self, entries)
        else:
            self.step(Message(type=MSG_PROP, from_id=self.id, entries=entries))

    def append_entries(self, entries: list[Entry]) -> bool:
        """Append the entries to the leader's log. Returns False if too much is uncommitted."""
        if not self._increase_uncommitted(payloads_size(entries)):
            return False
        index, term = self.raft_log.last_index(), self.term
        for entry in entries:
            index += 1
            entry.index = index
            entry.term = term
        self.raft_log.append(entries)
        # The leader counts itself once the entries are durable.
        self.send(Message(type=MSG_APP_RESP, to=self.id, index=index))
        return True

    def _increase_uncommitted(self, size: int) -> bool:
        # If nothing is uncommitted, any size is accepted; otherwise a large one never would be. Empty ones always are.
        limit = self.config.max_uncommitted_entries_size
        if size and self.uncommitted_size and limit < NO_LIMIT and self.uncommitted_size + size > limit:
            return False
        self.uncommitted_size += size
        return True

    def reduce_uncommitted(self, entries: list[Entry]) -> None:
        """Subtract the size of entries that are applied, and so committed."""
        if self.uncommitted_size:  # an estimate: entries of earlier leaders were never counted
            self.uncommitted_size = max(0, self.uncommitted_size - payloads_size(entries))

    def maybe_commit(self) -> bool:
        """Commit what a quorum has; for the leader only. Returns True if the commit index has grown."""
        return self.raft_log.maybe_commit(self.tracker.committed(), self.term)

    def applied_to(self, index: int) -> None:
        """Note that everything up to `index` is applied."""
        index = max(index, self.raft_log.applied)
        self.raft_log.applied_to(index)
        if self.role is Role.LEADER and self.tracker.config.auto_leave and index >= self.pending_conf_index:
            leader.leave_joint(self)

    def applied_snapshot(self, snapshot: Snapshot) -> None:
        """Note that the snapshot is persisted and installed."""
        index = snapshot.metadata.index
        self.raft_log.unstable.stable_snapshot_to(index)
        self.applied_to(index)

    def abort_leader_transfer(self) -> None:
        """Give up the transfer, and go on leading."""
        self.lead_transferee = NONE

    # The configuration

    def apply_conf_change(self, change: ConfChangeV2) -> ConfState:
        """Make the committed change take effect. Raises ConfChangeError; then nothing has changed."""
        return self._switch_to(Changer(self.tracker, self.raft_log.last_index()).apply(change))

    def restore(self, snapshot: Snapshot) -> bool:
        """Replace log and configuration by `snapshot`. Returns False if nothing was replaced."""
        metadata = snapshot.metadata
        log = self.raft_log
        if metadata.index <= log.committed:
            return False
        assert self.role is Role.FOLLOWER, "only a follower is sent a snapshot"
        state = metadata.conf_state
        if self.id not in (*state.voters, *state.learners, *state.voters_outgoing):
            self.say("WARN", f"node {self.id} ignores a snapshot of a group that it is not in")
            return False
        if log.match_term(metadata.index, metadata.term):  # this log has all of it, and maybe more
            log.commit_to(metadata.index)
            return False
        log.restore(snapshot)
        self._restore_config(state)
        return True

    def _restore_config(self, state: ConfState) -> None:
        tracker = self.tracker
        restored = self._switch_to(restore(tracker, self.raft_log.last_index(), state))
        for field in ("voters", "learners", "voters_outgoing", "learners_next"):
            assert sorted(getattr(state, field)) == list(getattr(restored, field)), f"{field} of the restored group"
        assert state.auto_leave == restored.auto_leave, "auto_leave of the restored group"

    def _switch_to(self, changed: Changed) -> ConfState:
        self.tracker.switch(*changed)
        config = self.tracker.config
        state = config.conf_state()
        mine = self.tracker.progress.get(self.id)
        self.is_learner = mine is not None and mine.is_learner
        self.say("INFO", f"node {self.id} is in the configuration {config}")
        if self.role is not Role.LEADER:
            return state
        if mine is None or mine.is_learner:
            if self.config.step_down_on_removal:
                self.become_follower(self.term, NONE)
            return state
        if self.maybe_commit():  # a smaller quorum may have more entries already
            leader.broadcast_append(self)
        else:
            leader.catch_up(self)  # a new member need not wait for the next heartbeat
        if self.lead_transferee not in config.voters.ids():
            self.abort_leader_transfer()
        return state

    def dropped(self, reason: str) -> ProposalDropped:
        """The error to raise when a proposal is refused."""
        return ProposalDropped(reason, self.leader_id)
