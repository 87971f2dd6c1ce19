"""Bugs put into the real code on purpose, to show that the simulation finds bugs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from minka.v1.raft_pb2 import MSG_APP_RESP, ConfState, Entry, Message
from minkad.core.raft import RawNode, Ready, leader
from minkad.core.raft.log import RaftLog
from minkad.core.raft.quorum import UNBOUNDED, AckedIndex, JointConfig, MajorityConfig, VoteResult
from minkad.core.raft.raft import Raft
from minkad.core.raft.tracker import Progress, ProgressTracker
from minkad.core.raft.types import NONE
from tests.simulation import mutations_duties as duties
from tests.simulation import mutations_full as full
from tests.simulation import mutations_loads as loads
from tests.simulation import mutations_operations as operations
from tests.simulation import mutations_replication as replication
from tests.simulation.mutations_full import Patch

MAX_SEEDS: Final = 500  # each mutation must be found by one of the seeds 0 to MAX_SEEDS - 1


@dataclass(frozen=True, slots=True)
class Mutation:
    """One bug, and the world that has to find it."""

    name: str
    world: str
    patches: Callable[[], Sequence[Patch]]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the code have the bug while the block runs."""
        patches = self.patches()
        originals = [(where, name, getattr(where, name)) for where, name, _ in patches]
        for where, name, value in patches:
            setattr(where, name, value)
        try:
            yield
        finally:
            for where, name, value in originals:
                setattr(where, name, value)


# Elections


def _forget_vote_on_step_down() -> Sequence[Patch]:
    original = Raft.become_follower

    def become_follower(self: Raft, term: int, leader_id: int) -> None:
        original(self, term, leader_id)
        self.vote = NONE

    return [(Raft, "become_follower", become_follower)]


def _half_elects() -> Sequence[Patch]:
    def vote_result(self: MajorityConfig, votes: dict[int, bool]) -> VoteResult:
        granted = sum(1 for voter in self if votes.get(voter))
        missing = sum(1 for voter in self if voter not in votes)
        if granted >= (len(self) + 1) // 2:
            return VoteResult.WON
        return VoteResult.PENDING if missing else VoteResult.LOST

    return [(MajorityConfig, "vote_result", vote_result)]


def _vote_for_older_log() -> Sequence[Patch]:
    return [(RaftLog, "is_up_to_date", lambda *_: True)]


# The log


def _half_commits() -> Sequence[Patch]:
    def committed_index(self: MajorityConfig, acked: AckedIndex) -> int:
        indexes = sorted(acked(voter) or 0 for voter in self)
        return indexes[len(indexes) - max(1, len(indexes) // 2)] if indexes else UNBOUNDED

    return [(MajorityConfig, "committed_index", committed_index)]


def _commit_older_term() -> Sequence[Patch]:
    def maybe_commit(self: RaftLog, index: int, _term: int) -> bool:
        if index <= self.committed:
            return False
        self.commit_to(index)
        return True

    return [(RaftLog, "maybe_commit", maybe_commit)]


def _keep_conflicting_entries() -> Sequence[Patch]:
    def maybe_append(self: RaftLog, index: int, term: int, entries: list[Entry], committed: int) -> int | None:
        if not self.match_term(index, term):
            return None
        fresh = [entry for entry in entries if entry.index > self.last_index()]
        if fresh:
            self.append(fresh)
        self.commit_to(min(committed, index + len(entries)))
        return index + len(entries)

    return [(RaftLog, "maybe_append", maybe_append)]


def _apply_before_commit() -> Sequence[Patch]:
    def next_committed(self: RaftLog) -> list[Entry]:
        last = self.last_index()
        return self.slice(self.applying + 1, last + 1, 1 << 20) if self.applying < last else []

    def accept_applying(self: RaftLog, index: int) -> None:
        self.applying = index

    return [(RaftLog, "next_committed", next_committed), (RaftLog, "accept_applying", accept_applying)]


def _rejection_counts() -> Sequence[Patch]:
    original = leader._handle_append_response

    def handle(r: Raft, m: Message, progress: Progress) -> None:
        accepted = Message()
        accepted.CopyFrom(m)
        accepted.reject = False
        original(r, accepted, progress)

    return [(leader, "_FROM_PEER", {**leader._FROM_PEER, message_type(original): handle})]


def message_type(handler: object) -> int:
    """The type of the messages that this handler of the leader takes."""
    return next(type_ for type_, known in leader._FROM_PEER.items() if known is handler)


def _accept_any_previous() -> Sequence[Patch]:
    def maybe_append(self: RaftLog, index: int, _term: int, entries: list[Entry], committed: int) -> int | None:
        if index > self.last_index():
            return None
        fresh = self._first_difference(entries)
        if fresh < len(entries):
            self.append(entries[fresh:])
        self.commit_to(min(committed, index + len(entries)))
        return index + len(entries)

    return [(RaftLog, "maybe_append", maybe_append)]


# The configuration


def _learners_count() -> Sequence[Patch]:
    def committed(self: ProgressTracker) -> int:
        return MajorityConfig(self.progress).committed_index(self._match)

    return [(ProgressTracker, "committed", committed)]


def _forget_old_half() -> Sequence[Patch]:
    def committed_index(self: JointConfig, acked: AckedIndex) -> int:
        return self.incoming.committed_index(acked)

    def vote_result(self: JointConfig, votes: dict[int, bool]) -> VoteResult:
        return self.incoming.vote_result(votes)

    return [(JointConfig, "committed_index", committed_index), (JointConfig, "vote_result", vote_result)]


def _two_changes_at_once() -> Sequence[Patch]:
    return [(leader, "_admit_conf_change", lambda *_: True)]


def _snapshot_without_configuration() -> Sequence[Patch]:
    original = Raft._restore_config

    def restore_config(self: Raft, state: ConfState) -> None:
        if not self.tracker.progress:
            original(self, state)

    return [(Raft, "_restore_config", restore_config)]


# Messages that are sent or counted before their content is durable


def _count_unsynced_entries() -> Sequence[Patch]:
    original = RawNode._accept

    def accept(self: RawNode, ready: Ready) -> None:
        original(self, ready)
        assert self._accepted is not None, "it was handed out"
        for message in self._accepted.to_self:
            if message.type == MSG_APP_RESP:
                self.raft.step(message)

    return [(RawNode, "_accept", accept)]


def _ask_before_term_is_durable() -> Sequence[Patch]:
    return [(RawNode, "_may_send_at_once", lambda _: True)]


# Reads


def _read_without_quorum() -> Sequence[Patch]:
    def start_reads(r: Raft, requests: list[Message]) -> None:
        leader._answer_reads(r, [(m, r.raft_log.committed) for m in requests])

    return [(leader, "_start_reads", start_reads)]


MUTATIONS = (
    Mutation("forget the vote on step-down", "raft", _forget_vote_on_step_down),
    Mutation("half of the voters elect", "raft", _half_elects),
    Mutation("vote for a log that lacks entries", "raft", _vote_for_older_log),
    Mutation("half of the voters commit", "raft", _half_commits),
    Mutation("commit an entry of an older term", "raft", _commit_older_term),
    Mutation("keep entries that the leader does not have", "raft", _keep_conflicting_entries),
    Mutation("append without checking the previous term", "raft", _accept_any_previous),
    Mutation("apply before commit", "raft", _apply_before_commit),
    Mutation("take a rejection for an acknowledgement", "raft", _rejection_counts),
    Mutation("ignore the old majority in a joint configuration", "raft", _forget_old_half),
    Mutation("count learners as voters", "raft", _learners_count),
    Mutation("two configuration changes at once", "raft", _two_changes_at_once),
    Mutation("a snapshot leaves the configuration as it was", "raft", _snapshot_without_configuration),
    Mutation("a leader counts itself before its sync", "raft", _count_unsynced_entries),
    Mutation("ask for votes before the term is durable", "raft", _ask_before_term_is_durable),
    Mutation("answer a read without asking a quorum", "raft", _read_without_quorum),
    Mutation("send before fsync", "full", full.send_before_fsync),
    Mutation("a snapshot whose configuration lacks the learners", "full", full.snapshot_with_old_configuration),
    Mutation("compact log entries that the core still needs", "full", full.compact_needed_entries),
    Mutation("control before committed entries are applied", "full", full.active_before_applied),
    Mutation("acknowledge a command when it is proposed", "full", full.answer_when_proposed),
    Mutation("refuse with rows that are not recorded yet", "full", full.refuse_before_recorded),
    Mutation("serve after clearance has ended", "full", full.serve_after_clearance),
    Mutation("grant clearance before a quorum confirms the leader", "full", full.grant_unconfirmed),
    Mutation("a new controller that does not wait", "full", full.no_grace),
    Mutation("fail a node that may hold clearance", "full", full.fail_too_early),
    Mutation("fail nodes because the controller itself paused", "full", full.fail_without_confirmation),
    Mutation("a controller that fails itself", "full", full.judge_itself),
    Mutation("a new controller that gives nodes no time to find it", "full", full.no_time_to_find_it),
    Mutation("members that wait for a silent controller", "full", full.wait_for_silent_controller),
    Mutation("take failed nodes out of in-sync sets one by one", "full", full.fail_nodes_one_by_one),
    Mutation("elect without a new leader_epoch", "full", full.election_without_epoch),
    Mutation("change an in-sync set at an old epoch", "full", full.isr_without_epoch),
    Mutation("elect a replica that is not in sync", "full", full.elect_anybody),
    Mutation("a restarted leader keeps its leader_epoch", "full", full.restart_unnoticed),
    Mutation("remove the old replicas before the new are in sync", "full", full.remove_too_early),
    Mutation("seat voters without regard to zones", "full", full.seat_without_zones),
    Mutation("a state snapshot without migrations", "full", full.snapshot_forgets),
    Mutation("operations that do not end", "full", full.never_finish),
    Mutation("two operations move one partition", "full", full.no_conflicts),
    Mutation("shrink an in-sync set before the change is recorded", "full", replication.shrink_before_recorded),
    Mutation("acknowledge a write that a replica in sync lacks", "full", replication.commit_without_one_replica),
    Mutation("the age of a leader's data without clearance is 0", "full", replication.age_without_clearance),
    Mutation("every replica that leaves an in-sync set is eligible", "full", replication.forget_min_insync),
    Mutation("commit entries that eligible replicas lack", "full", replication.commit_without_eligible_replicas),
    Mutation("a follower acknowledges unsynced entries", "full", replication.durable_when_staged),
    Mutation("followers that truncate committed entries", "full", replication.cut_committed),
    Mutation("followers that accept entries of an old leader", "full", replication.accept_stale_epoch),
    Mutation("a leader that serves before it is ready", "full", replication.serve_unready),
    Mutation("a leader that answers reads while it hands over", "full", replication.read_while_handing_over),
    Mutation("a follower that goes past the marker of a split", "full", replication.skip_markers),
    Mutation("end a split while children are attached", "full", replication.end_splits_early),
    Mutation("remove keys while a child is attached", "full", replication.remove_keys_while_attached),
    Mutation("forget that a child is attached", "full", replication.forget_attachments),
    Mutation("merge without the last writes", "full", replication.merge_too_early),
    Mutation("wake a replica before its time", "full", replication.wake_early),
    Mutation("decide operations by the applied rows", "full", operations.decide_by_applied_rows),
    Mutation("report an outcome that may still be lost", "full", operations.report_before_commit),
    Mutation("show expired rows", "full", operations.show_expired_rows),
    Mutation("hide expired rows without removing them", "full", operations.hide_expired_rows),
    Mutation("forget when a key expires", "full", operations.forget_expiry),
    Mutation("give away the duties of a shard that is late", "duties", duties.fail_late_shards),
    Mutation("a new controller that does not wait for shards", "duties", duties.no_wait_after_failover),
    Mutation("grant shards clearance before a quorum confirms it", "duties", duties.grant_unconfirmed),
    Mutation("give a shard's name to a second process", "duties", duties.give_name_twice),
    Mutation("attach again at the same epoch", "duties", duties.same_epoch_again),
    Mutation("count a duty as released before it is", "duties", duties.give_away_at_once),
    Mutation("count reports with any epoch", "duties", duties.any_epoch),
    Mutation("give away a kept duty within the grace", "duties", duties.no_grace),
    Mutation("delete a duty before it is released", "duties", duties.delete_before_release),
    Mutation("a snapshot forgets which epochs were given", "duties", duties.forget_next_epoch),
    Mutation("answer without a quorum's word who leads", "duties", duties.answer_without_quorum),
    Mutation("acknowledge a change before all voters have it", "duties", duties.acknowledge_before_all_voters),
    Mutation("a lagging node instructs shards", "duties", duties.lagging_nodes),
    Mutation("count a shard's clearance from the receipt", "duties", duties.count_from_receipt),
    Mutation("release duties only when the clearance has ended", "duties", duties.release_too_late),
    Mutation("don't repeat a lost report", "duties", duties.report_once),
    Mutation("commit a load piece by piece", "loads", loads.commit_in_pieces),
    Mutation("take in a load again", "loads", loads.take_in_again),
    Mutation("forget loads that haven't ended", "loads", loads.forget_open_loads),
    Mutation("a state snapshot without the parts of loads", "loads", loads.snapshot_without_parts),
    Mutation("abort loads that are committed", "loads", loads.abandon_committed_loads),
    Mutation("a load is done when one part is done", "loads", loads.finish_all_parts_at_once),
    Mutation("commit a load that was aborted", "loads", loads.commit_in_any_state),
)
