"""A leader replicates, commits, answers reads and hands over.

Source: Ongaro's thesis, sections 3.5 (replication), 3.10 (transfer), 6.4 (reads); etcd/raft, stepLeader.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from minka.v1.raft_pb2 import (
    ENTRY_CONF_CHANGE_V2,
    ENTRY_NORMAL,
    MSG_APP,
    MSG_APP_RESP,
    MSG_BEAT,
    MSG_CHECK_QUORUM,
    MSG_HEARTBEAT,
    MSG_HEARTBEAT_RESP,
    MSG_PROP,
    MSG_READ_INDEX,
    MSG_READ_INDEX_RESP,
    MSG_SNAP,
    MSG_SNAP_STATUS,
    MSG_TIMEOUT_NOW,
    MSG_TRANSFER_LEADER,
    MSG_UNREACHABLE,
    Entry,
    Message,
)
from minkad.core.raft.confchange import as_v2, from_entry
from minkad.core.raft.read_only import MAX_WAITING_READS
from minkad.core.raft.storage import (
    Compacted,
    SnapshotTemporarilyUnavailable,
    Unavailable,
    payloads_size,
)
from minkad.core.raft.tracker import Progress, ProgressState
from minkad.core.raft.types import NONE, ProposalDropped, ReadOnlyOption, ReadState

if TYPE_CHECKING:
    from minkad.core.raft.raft import Raft


LEARNERS_TURNS = 4  # a learner gets at most every fourth heartbeat: entries, too, tell it who leads

Built = dict[int, tuple[Message, int]]  # index that the entries follow → (MSG_APP, payload bytes)


def step_leader(r: "Raft", m: Message) -> None:
    """Handle a message as the leader. Raises ProposalDropped."""
    local = _LOCAL.get(m.type)
    if local:
        local(r, m)
        return
    assert m.type not in _FROM_LEADER, f"{r.id} and {m.from_id} both lead term {r.term}"
    progress = r.tracker.progress.get(m.from_id)
    if progress is None:
        r.say("DEBUG", f"node {r.id} has no progress of {m.from_id}")
        return
    handler = _FROM_PEER.get(m.type)
    if handler:
        handler(r, m, progress)


# Proposals


def propose(r: "Raft", entries: list[Entry]) -> None:
    """Append entries and send them. Raises ProposalDropped."""
    assert entries, "a proposal has entries"
    if r.id not in r.tracker.progress:
        raise r.dropped("this node has been removed from the group")
    if r.lead_transferee != NONE:
        raise r.dropped(f"leadership is being handed over to {r.lead_transferee}")
    pending = r.pending_conf_index
    for position, entry in enumerate(entries):
        if entry.type != ENTRY_NORMAL and not _admit_conf_change(r, entry, position):
            entries[position] = Entry()
    if not r.append_entries(entries):
        r.pending_conf_index = pending
        raise r.dropped("too much is uncommitted")
    broadcast_append(r)


def _admit_conf_change(r: "Raft", entry: Entry, position: int) -> bool:
    """True if the configuration change may be proposed now. Otherwise it becomes an empty entry."""
    change = from_entry(entry)
    assert change is not None, "an entry that is not normal is a configuration change"
    joint = r.tracker.config.joint
    wants_leave = not as_v2(change).changes
    refusal = None
    if r.pending_conf_index > r.raft_log.applied:
        refusal = f"there may be one at {r.pending_conf_index} that is not applied"
    elif joint and not wants_leave:
        refusal = "the joint configuration must be left first"
    elif not joint and wants_leave:
        refusal = "there is no joint configuration to leave"
    if refusal and not r.config.disable_conf_change_validation:
        r.say("INFO", f"node {r.id} refuses a configuration change: {refusal}")
        return False
    r.pending_conf_index = r.raft_log.last_index() + position + 1
    return True


def leave_joint(r: "Raft") -> None:
    """Propose to leave the joint configuration. If refused now, it is tried again after the next apply."""
    try:
        # An entry without data is the empty change. Its size is 0, so no limit refuses it.
        propose(r, [Entry(type=ENTRY_CONF_CHANGE_V2)])
    except ProposalDropped as error:
        r.say("DEBUG", f"node {r.id} cannot leave {r.tracker.config} yet: {error}")


def _step_propose(r: "Raft", m: Message) -> None:
    propose(r, list(m.entries))


# Replication


def broadcast_append(r: "Raft") -> None:
    """Send every other node the entries that it lacks, or at least the commit index."""
    built: Built = {}
    for id_ in r.tracker.progress:
        if id_ != r.id:
            maybe_send_append(r, id_, send_if_empty=True, built=built)


def catch_up(r: "Raft") -> None:
    """Send entries to every other node that lacks some."""
    for id_ in r.tracker.progress:
        if id_ != r.id:
            maybe_send_append(r, id_, send_if_empty=False)


def send_append(r: "Raft", to: int) -> None:
    """Send a MSG_APP, unless sending to the node is paused."""
    maybe_send_append(r, to, send_if_empty=True)


def maybe_send_append(r: "Raft", to: int, send_if_empty: bool, built: Built | None = None) -> bool:
    """Send one MSG_APP, or a snapshot if the entries are gone. Returns False if nothing was sent.

    `built` keeps messages for other nodes that lack the same entries: to copy a message takes a tenth of the time.
    """
    progress = r.tracker.progress[to]
    log = r.raft_log
    if progress.paused() or (progress.next > log.last_index() and not send_if_empty):
        return False
    index = progress.next - 1
    into_full = progress.state is ProgressState.REPLICATE and progress.inflights.full()
    if built and not into_full and index in built:
        message, size = built[index]
        copy = Message()
        copy.CopyFrom(message)
        copy.to, copy.term = to, 0
        _send_append(r, progress, copy, size)
        return True
    try:
        term = log.term(index)
    except (Compacted, Unavailable):
        return _maybe_send_snapshot(r, to, progress)
    entries: list[Entry] = []
    gone = False
    # If the window is full, the message is empty. Its rejection shows if all messages under way were lost.
    if not into_full:
        try:
            entries = log.entries(progress.next, r.config.max_size_per_msg)
        except Compacted:
            gone = True
    if not entries and not send_if_empty:
        return False
    if gone:
        return _maybe_send_snapshot(r, to, progress)
    message = Message(type=MSG_APP, to=to, index=index, log_term=term, entries=entries, commit=log.committed)
    if progress.state is ProgressState.PROBE:
        message.log_crc = log.crc_or_zero(index)
    size = payloads_size(entries)
    if built is not None and not into_full:
        built[index] = message, size
    _send_append(r, progress, message, size)
    return True


def _send_append(r: "Raft", progress: Progress, message: Message, size: int) -> None:
    r.send(message)
    progress.sent_entries(len(message.entries), size)
    progress.sent_commit = message.commit


def _maybe_send_snapshot(r: "Raft", to: int, progress: Progress) -> bool:
    if not progress.recent_active:
        r.say("DEBUG", f"node {r.id} sends no snapshot to {to}, which is not heard")
        return False
    try:
        snapshot = r.raft_log.snapshot()
    except SnapshotTemporarilyUnavailable:
        r.say("DEBUG", f"node {r.id} has no snapshot for {to} yet")
        return False
    index = snapshot.metadata.index
    assert index, "a node that lacks compacted entries needs a snapshot that has them"
    r.say("DEBUG", f"node {r.id} sends the snapshot at {index} to {to} ({progress})")
    progress.become_snapshot(index)
    r.send(Message(type=MSG_SNAP, to=to, snapshot=snapshot))
    return True


def _handle_append_response(r: "Raft", m: Message, progress: Progress) -> None:
    progress.recent_active = True
    if progress.is_ahead or m.index > r.raft_log.last_index():
        _refuse(r, m, progress)
        return
    if m.reject:
        _handle_append_reject(r, m, progress)
        return
    index = m.index
    probing = progress.state is ProgressState.PROBE
    if not progress.maybe_update(index) and not (probing and progress.match == index):
        return
    if probing:
        progress.become_replicate()
    elif progress.state is ProgressState.REPLICATE:
        progress.inflights.free_to(index)
    elif progress.match + 1 >= r.raft_log.first_index():
        # It doesn't matter which snapshot the node got, and from whom: the log goes on from there.
        progress.become_probe()
        progress.become_replicate()
    other = m.from_id != r.id
    if index > r.raft_log.committed and r.maybe_commit():
        _release_pending_reads(r)
        broadcast_append(r)
    elif other and progress.can_bump_commit(r.raft_log.committed):
        send_append(r, m.from_id)
    if other:
        while maybe_send_append(r, m.from_id, send_if_empty=False):
            pass
    if m.from_id == r.lead_transferee and progress.match == r.raft_log.last_index():
        _send_timeout_now(r, m.from_id)


def _refuse(r: "Raft", m: Message, progress: Progress) -> None:
    """The node has committed entries that this leader lacks, which proves that a quorum has lost them. The leader tells
    the node to stop, and ignores the node's answers.
    """
    if progress.is_ahead:
        return
    progress.is_ahead = True
    last = r.raft_log.last_index()
    text = f"node {m.from_id} has committed entries up to {m.index}, and the log of its leader {r.id} ends at {last}"
    r.say("ERROR", f"{text}: most voters have lost what they had; node {m.from_id} is told to stop")
    _send_heartbeat(r, m.from_id, progress, b"")


def _handle_append_reject(r: "Raft", m: Message, progress: Progress) -> None:
    """Go back to where the logs can match.

    The follower's answer has (reject_hint, log_term): its last entry that could match the leader's. In its own log, the
    leader skips all entries with a newer term, so there is at most one probe a term:

        index      1 2 3 4 5 6 7 8
        leader     1 1 1 3 3 3 3 3   (terms) probes after 8, of term 3
        follower   1 1 1 2 2         answers (5, term 2): later terms can't match
        leader     1 1 1             last entry up to 5 with a term up to 2: probes after 3, and it matches
    """
    hint = m.reject_hint
    if m.log_term:
        hint, _ = r.raft_log.find_conflict_by_term(hint, m.log_term)
    if progress.maybe_decrease(m.index, hint):
        r.say("DEBUG", f"node {r.id} goes back for {m.from_id}: {progress}")
        if progress.state is ProgressState.REPLICATE:
            progress.become_probe()
        send_append(r, m.from_id)


def _handle_snapshot_status(r: "Raft", m: Message, progress: Progress) -> None:
    if progress.state is not ProgressState.SNAPSHOT:
        return
    if m.reject:
        progress.pending_snapshot = 0  # before become_probe, which would start from there
    progress.become_probe()
    # If it arrived, its MSG_APP_RESP comes soon; if not, the next heartbeat's answer is early enough to retry.
    progress.flow_paused = True
    r.say("DEBUG", f"node {r.id}: the snapshot to {m.from_id} {'failed' if m.reject else 'arrived'}: {progress}")


def _handle_unreachable(r: "Raft", m: Message, progress: Progress) -> None:
    # The messages that were sent ahead are most likely lost.
    if progress.state is ProgressState.REPLICATE:
        progress.become_probe()
    r.say("DEBUG", f"node {r.id} cannot reach {m.from_id}: {progress}")


# Heartbeats and reads


def _beat(r: "Raft", _m: Message) -> None:
    """Send a heartbeat to the voters, unless a read has just asked them, and to the learners whose turn it is."""
    learners = [id_ for id_, progress in r.tracker.progress.items() if progress.is_learner]
    at_once = r.config.learners_a_beat
    turns = max(LEARNERS_TURNS, -(-len(learners) // at_once)) if at_once else 1
    turn = frozenset(learners[r.beats % turns :: turns])
    asked, r.voters_asked, r.beats = r.voters_asked, False, r.beats + 1
    _send_heartbeats(r, lambda id_, progress: id_ in turn if progress.is_learner else not asked)


def _ask_voters(r: "Raft") -> None:
    """Ask all of them at once to confirm the waiting reads."""
    r.voters_asked = only_voters = r.config.learners_a_beat > 0
    _send_heartbeats(r, lambda _, progress: not (only_voters and progress.is_learner))


def _send_heartbeats(r: "Raft", concerns: Callable[[int, Progress], bool]) -> None:
    context = r.read_only.heartbeat_context()
    for id_, progress in r.tracker.progress.items():
        if id_ != r.id and concerns(id_, progress):
            _send_heartbeat(r, id_, progress, context)


def _send_heartbeat(r: "Raft", to: int, progress: Progress, context: bytes) -> None:
    # The node is told to commit only what is known to match, since the rest of its log may differ.
    commit = min(progress.match, r.raft_log.committed)
    message = Message(type=MSG_HEARTBEAT, to=to, commit=commit, context=context)
    if progress.is_ahead:
        message.reject, message.index = True, r.raft_log.last_index()
    r.send(message)
    progress.sent_commit = commit


def _handle_heartbeat_response(r: "Raft", m: Message, progress: Progress) -> None:
    progress.recent_active = True
    progress.flow_paused = False
    if progress.match < r.raft_log.last_index() or progress.state is ProgressState.PROBE:
        send_append(r, m.from_id)
    if m.context:
        r.read_only.ack(m.from_id, m.context)
        _answer_reads(r, r.read_only.advance(r.tracker.config.voters))


def _check_quorum(r: "Raft", _m: Message) -> None:
    if not r.tracker.quorum_active():
        r.say("WARN", f"node {r.id} steps down: it hears no quorum")
        r.become_follower(r.term, NONE)
    for id_, progress in r.tracker.progress.items():
        if id_ != r.id:
            progress.recent_active = False


def _handle_read_index(r: "Raft", m: Message) -> None:
    # Before its first commit in the term, a leader doesn't know which entries earlier leaders have committed. The same
    # holds for an only voter: before a crash, it may have committed more than its commit index on disk says.
    if not _committed_in_term(r):
        if len(r.pending_reads) >= MAX_WAITING_READS:
            raise r.dropped("too many reads are waiting")
        r.pending_reads.append(m)
    else:
        _start_reads(r, [m])


def _start_reads(r: "Raft", requests: list[Message]) -> None:
    commit = r.raft_log.committed
    # An only voter has nobody to ask. A leader that was removed and still leads isn't a voter, even if one is left.
    alone = r.tracker.config.voters.ids() == {r.id}
    # While leadership is handed over, the next leader may lead already, despite a lease.
    if alone or (r.config.read_only_option is ReadOnlyOption.LEASE_BASED and r.lead_transferee == NONE):
        _answer_reads(r, [(m, commit) for m in requests])
        return
    if r.read_only.full():
        raise r.dropped("too many reads are waiting")
    for m in requests:
        r.read_only.add(m, commit)
    r.read_only.ack(r.id, r.read_only.heartbeat_context())
    _ask_voters(r)


def _release_pending_reads(r: "Raft") -> None:
    if r.pending_reads and _committed_in_term(r):
        reads, r.pending_reads = r.pending_reads, []
        _start_reads(r, reads)  # at most MAX_WAITING_READS, and none waits yet


def _committed_in_term(r: "Raft") -> bool:
    return r.raft_log.term_or_zero(r.raft_log.committed) == r.term


def _answer_reads(r: "Raft", reads: Sequence[tuple[Message, int]]) -> None:
    for request, index in reads:
        if request.from_id in (NONE, r.id):
            r.read_states.append(ReadState(index, request.entries[0].data))
        else:
            r.send(Message(type=MSG_READ_INDEX_RESP, to=request.from_id, index=index, entries=request.entries))


# Handing over


def _handle_transfer(r: "Raft", m: Message, progress: Progress) -> None:
    to = m.from_id
    if progress.is_learner:
        r.say("DEBUG", f"node {r.id} does not hand over to the learner {to}")
        return
    if r.lead_transferee == to:
        return  # under way
    r.abort_leader_transfer()
    if to == r.id:
        return
    r.say("INFO", f"node {r.id} hands over leadership to {to}")
    r.election_elapsed = 0  # the transfer has one election timeout to succeed
    r.lead_transferee = to
    if progress.match == r.raft_log.last_index():
        _send_timeout_now(r, to)
    else:
        send_append(r, to)


def _send_timeout_now(r: "Raft", to: int) -> None:
    r.send(Message(type=MSG_TIMEOUT_NOW, to=to))


_FROM_LEADER = (MSG_APP, MSG_HEARTBEAT, MSG_SNAP)
_LOCAL = {
    MSG_BEAT: _beat,
    MSG_CHECK_QUORUM: _check_quorum,
    MSG_PROP: _step_propose,
    MSG_READ_INDEX: _handle_read_index,
}
_FROM_PEER = {
    MSG_APP_RESP: _handle_append_response,
    MSG_HEARTBEAT_RESP: _handle_heartbeat_response,
    MSG_SNAP_STATUS: _handle_snapshot_status,
    MSG_UNREACHABLE: _handle_unreachable,
    MSG_TRANSFER_LEADER: _handle_transfer,
}
