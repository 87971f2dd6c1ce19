"""The leader's knowledge of each node: how far its log matches, and how much may be under way to it.

Source: etcd/raft, package tracker; Ongaro's thesis, sections 3.5 and 4.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum

from minka.v1.raft_pb2 import ConfState
from minkad.core.raft.quorum import JointConfig, MajorityConfig, VoteResult


class ProgressState(Enum):
    """The way in which the leader sends entries to a node."""

    PROBE = "StateProbe"  # the end of its log is not known: send at most one message in a heartbeat interval
    REPLICATE = "StateReplicate"  # it follows: send ahead, up to the in-flight limits
    SNAPSHOT = "StateSnapshot"  # it needs a snapshot, which is under way: send nothing


class Inflights:
    """The MSG_APPs with entries that a node has not acknowledged: a window limited by count and by bytes."""

    __slots__ = ("_window", "bytes", "max_bytes", "max_count")

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self.max_count = max_count
        self.max_bytes = max_bytes
        self.bytes = 0
        self._window: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._window)

    def add(self, index: int, size: int) -> None:
        """Record a message whose last entry is `index`, with `size` payload bytes."""
        assert not self.full(), "cannot send into a full window"
        assert not self._window or self._window[-1][0] < index, "in-flight indexes only grow"
        self._window.append((index, size))
        self.bytes += size

    def free_to(self, index: int) -> None:
        """Forget the messages up to `index`, which have arrived."""
        while self._window and self._window[0][0] <= index:
            self.bytes -= self._window.popleft()[1]

    def full(self) -> bool:
        """True if no more may be sent. One message may exceed the byte limit; else a large one would never be sent."""
        return len(self._window) >= self.max_count or self.bytes >= self.max_bytes

    def reset(self) -> None:
        """Forget everything that was under way."""
        self._window.clear()
        self.bytes = 0


@dataclass(slots=True)
class Progress:
    """One node's progress in the leader's view."""

    next: int  # the index to send next; match < next
    inflights: Inflights
    match: int = 0  # up to here its log is known to equal the leader's
    sent_commit: int = 0  # the commit index last sent
    state: ProgressState = ProgressState.PROBE
    pending_snapshot: int = 0  # SNAPSHOT: the index of the snapshot under way
    recent_active: bool = False  # the node was heard since the last check of the quorum
    flow_paused: bool = False  # no MSG_APP until the node answers one, or a heartbeat
    is_ahead: bool = False  # the node has committed entries that this leader lacks: it gets no entries until it stops
    is_learner: bool = False

    def __str__(self) -> str:
        text = f"{self.state.value} match={self.match} next={self.next}"
        if self.is_learner:
            text += " learner"
        if self.paused():
            text += " paused"
        if self.pending_snapshot:
            text += f" pendingSnap={self.pending_snapshot}"
        if not self.recent_active:
            text += " inactive"
        if self.inflights:
            text += f" inflight={len(self.inflights)}" + ("[full]" if self.inflights.full() else "")
        return text

    def paused(self) -> bool:
        """True if no MSG_APPs are sent to the node for now."""
        return self.state is ProgressState.SNAPSHOT or self.flow_paused or self.is_ahead

    def become_probe(self) -> None:
        """Find out where the node's log ends, from the last known match or the snapshot that it was sent."""
        base = max(self.match, self.pending_snapshot) if self.state is ProgressState.SNAPSHOT else self.match
        self._reset(ProgressState.PROBE)
        self.next = base + 1
        self.sent_commit = min(self.sent_commit, base)

    def become_replicate(self) -> None:
        """Send ahead, from the last match on: the node follows."""
        self._reset(ProgressState.REPLICATE)
        self.next = self.match + 1

    def become_snapshot(self, index: int) -> None:
        """Note that a snapshot of everything up to `index` is on its way to the node."""
        self._reset(ProgressState.SNAPSHOT)
        self.pending_snapshot = index
        self.next = index + 1
        self.sent_commit = index

    def _reset(self, state: ProgressState) -> None:
        self.flow_paused = False
        self.pending_snapshot = 0
        self.state = state
        self.inflights.reset()

    def sent_entries(self, count: int, size: int) -> None:
        """Note that a MSG_APP with `count` entries of `size` payload bytes, from `next` on, is on its way."""
        assert self.state is not ProgressState.SNAPSHOT, "no entries are sent while a snapshot is under way"
        if self.state is ProgressState.PROBE:
            self.flow_paused = self.flow_paused or count > 0
            return
        if count:
            self.next += count
            self.inflights.add(self.next - 1, size)
        # A message sent into a full window is a probe: sending pauses until something comes back.
        self.flow_paused = self.inflights.full()

    def can_bump_commit(self, commit: int) -> bool:
        """True if sending `commit` can move the node's commit index: it can't commit beyond the last entry sent."""
        return commit > self.sent_commit and self.sent_commit < self.next - 1

    def maybe_update(self, index: int) -> bool:
        """Note that the node acknowledged `index`. Returns False if that was known."""
        if index <= self.match:
            return False
        self.match = index
        self.next = max(self.next, index + 1)
        self.flow_paused = False
        return True

    def maybe_decrease(self, rejected: int, hint: int) -> bool:
        """Note that the node rejected a MSG_APP that follows `rejected`, and that its log may match at `hint`. Returns
        False if the rejection is outdated.
        """
        if self.state is ProgressState.REPLICATE:
            if rejected <= self.match:
                return False
            self.next = self.match + 1
        else:
            if self.next - 1 != rejected:  # a probe has one message under way: this answers an earlier one
                return False
            self.next = max(min(rejected, hint + 1), self.match + 1)
            self.flow_paused = False
        self.sent_commit = min(self.sent_commit, self.next - 1)
        return True


@dataclass(frozen=True, slots=True)
class TrackerConfig:
    """The active configuration. Voters and learners never overlap; in a joint configuration, voters that become
    learners wait in `learners_next`.
    """

    voters: JointConfig = field(default_factory=lambda: JointConfig(MajorityConfig(), MajorityConfig()))
    learners: MajorityConfig = field(default_factory=MajorityConfig)
    learners_next: MajorityConfig = field(default_factory=MajorityConfig)
    auto_leave: bool = False

    def __str__(self) -> str:
        text = f"voters={self.voters}"
        if self.learners:
            text += f" learners={self.learners}"
        if self.learners_next:
            text += f" learners_next={self.learners_next}"
        return text + (" autoleave" if self.auto_leave else "")

    @property
    def joint(self) -> bool:
        """True if two majorities must agree."""
        return bool(self.voters.outgoing)

    def conf_state(self) -> ConfState:
        """The configuration as it is stored."""
        return ConfState(
            voters=sorted(self.voters.incoming),
            voters_outgoing=sorted(self.voters.outgoing),
            learners=sorted(self.learners),
            learners_next=sorted(self.learners_next),
            auto_leave=self.auto_leave,
        )


@dataclass(slots=True)
class ProgressTracker:
    """The active configuration, the progress of each of its nodes, and the votes of the running election."""

    max_inflight: int  # MSG_APPs to one node
    max_inflight_bytes: int  # payload bytes to one node
    config: TrackerConfig = field(default_factory=TrackerConfig)
    progress: dict[int, Progress] = field(default_factory=dict)  # by id, ascending
    votes: dict[int, bool] = field(default_factory=dict)  # by voter: True if it granted its vote or pre-vote

    def switch(self, config: TrackerConfig, progress: dict[int, Progress]) -> None:
        """Make `config` the active configuration."""
        self.config = config
        self.progress = dict(sorted(progress.items()))

    def new_inflights(self) -> Inflights:
        """An empty window."""
        return Inflights(self.max_inflight, self.max_inflight_bytes)

    def committed(self) -> int:
        """The highest index that a quorum has acknowledged."""
        return self.config.voters.committed_index(self._match)

    def _match(self, voter: int) -> int | None:
        progress = self.progress.get(voter)
        return progress.match if progress else None

    def quorum_active(self) -> bool:
        """True if a quorum was heard since the last check."""
        active = {id_: progress.recent_active for id_, progress in self.progress.items()}
        return self.config.voters.vote_result(active) is VoteResult.WON

    def record_vote(self, voter: int, granted: bool) -> None:
        """Count a vote; only a voter's first answer counts."""
        self.votes.setdefault(voter, granted)

    def tally(self) -> VoteResult:
        """The state of the election."""
        return self.config.voters.vote_result(self.votes)

    def snapshot_progress(self) -> dict[int, Progress]:
        """Copies that the caller may keep."""
        return {id_: replace(progress, inflights=_copy(progress.inflights)) for id_, progress in self.progress.items()}


def _copy(inflights: Inflights) -> Inflights:
    copy = Inflights(inflights.max_count, inflights.max_bytes)
    copy._window = deque(inflights._window)
    copy.bytes = inflights.bytes
    return copy
