"""Followers and candidates: take in the leader's log, pass requests on to it, count votes.

Source: Raft, section 5; etcd/raft, stepFollower and stepCandidate.
"""

from typing import TYPE_CHECKING

from minka.v1.raft_pb2 import (
    MSG_APP,
    MSG_APP_RESP,
    MSG_HEARTBEAT,
    MSG_HEARTBEAT_RESP,
    MSG_PRE_VOTE_RESP,
    MSG_PROP,
    MSG_READ_INDEX,
    MSG_READ_INDEX_RESP,
    MSG_SNAP,
    MSG_TIMEOUT_NOW,
    MSG_TRANSFER_LEADER,
    MSG_VOTE_RESP,
    Message,
)
from minkad.core.raft.election import campaign, has_unapplied_conf_change, hup, learn_commit
from minkad.core.raft.leader import broadcast_append
from minkad.core.raft.quorum import VoteResult
from minkad.core.raft.rollback import check_append, check_entry
from minkad.core.raft.types import NONE, CampaignType, QuorumRolledBack, ReadState, Role

if TYPE_CHECKING:
    from minkad.core.raft.raft import Raft


def step_follower(r: "Raft", m: Message) -> None:
    """Handle a message as a follower. Raises ProposalDropped, LogRolledBack, QuorumRolledBack."""
    if m.type in _FROM_LEADER:
        assert r.leader_id in (NONE, m.from_id), f"{r.leader_id} and {m.from_id} both lead term {r.term}"
        r.election_elapsed = 0
        r.leader_id = m.from_id
        _FROM_LEADER[m.type](r, m)
    elif m.type in (MSG_PROP, MSG_READ_INDEX):
        if r.leader_id == NONE:
            raise r.dropped(f"no leader is known in term {r.term}")
        if m.type == MSG_PROP and r.config.disable_proposal_forwarding:
            raise r.dropped("proposals are not passed on to the leader")
        _pass_on(r, m)
    elif m.type == MSG_TRANSFER_LEADER:
        if r.leader_id != NONE:
            _pass_on(r, m)
    elif m.type == MSG_TIMEOUT_NOW:
        # No pre-vote: the leader itself wants the election, so it disturbs nobody.
        hup(r, CampaignType.TRANSFER)
    elif m.type == MSG_READ_INDEX_RESP and len(m.entries) == 1:
        r.read_states.append(ReadState(m.index, m.entries[0].data))


def step_candidate(r: "Raft", m: Message) -> None:
    """Handle a message as a candidate or pre-candidate. Raises what `step_follower` does."""
    if m.type in _FROM_LEADER:
        r.become_follower(m.term, m.from_id)
        _FROM_LEADER[m.type](r, m)
    elif m.type in (MSG_PROP, MSG_READ_INDEX):
        raise r.dropped(f"no leader is known in term {r.term}")
    elif m.type == (MSG_PRE_VOTE_RESP if r.role is Role.PRE_CANDIDATE else MSG_VOTE_RESP):
        _count_vote(r, m)


def _pass_on(r: "Raft", m: Message) -> None:
    """Send the leader a request that came here, in the name of its sender."""
    passed = Message()
    passed.CopyFrom(m)
    passed.to = r.leader_id
    passed.term = 0
    r.send(passed)


def _count_vote(r: "Raft", m: Message) -> None:
    r.say("INFO", f"node {r.id}: node {m.from_id} {'refuses' if m.reject else 'grants'} its vote")
    learn_commit(r, m)
    if m.commit_term and has_unapplied_conf_change(r):
        r.become_follower(r.term, NONE)  # other voters have to be asked
        return
    r.tracker.record_vote(m.from_id, not m.reject)
    result = r.tracker.tally()
    if result is VoteResult.LOST:
        r.become_follower(r.term, NONE)  # not m.term: a pre-vote's is ahead
    elif result is VoteResult.WON:
        if r.role is Role.PRE_CANDIDATE:
            campaign(r, CampaignType.ELECTION)
        else:
            r.become_leader()
            broadcast_append(r)


def _handle_append(r: "Raft", m: Message) -> None:
    log = r.raft_log
    index = m.index
    check_append(log, m)
    if index < log.committed:
        r.send(Message(type=MSG_APP_RESP, to=m.from_id, index=log.committed))
        return
    last = log.maybe_append(index, m.log_term, list(m.entries), m.commit)
    if last is not None:
        r.send(Message(type=MSG_APP_RESP, to=m.from_id, index=last))
        return
    # The entry at `index` differs here, or is missing. The logs cannot match at entries with a newer term than the
    # leader has at `index`, so the leader need not try these.
    hint, hint_term = log.find_conflict_by_term(min(index, log.last_index()), m.log_term)
    r.say("DEBUG", f"node {r.id} does not have entry {index} of term {m.log_term}; {hint} may match")
    r.send(Message(type=MSG_APP_RESP, to=m.from_id, index=index, reject=True, reject_hint=hint, log_term=hint_term))


def _handle_heartbeat(r: "Raft", m: Message) -> None:
    if m.reject:
        text = f"entries up to {r.raft_log.committed} are committed here, and the leader's log ended at {m.index}"
        raise QuorumRolledBack(text)
    r.raft_log.commit_to(m.commit)
    r.send(Message(type=MSG_HEARTBEAT_RESP, to=m.from_id, context=m.context))


def _handle_snapshot(r: "Raft", m: Message) -> None:
    check_entry(r.raft_log, m.snapshot.metadata.index, m.snapshot.metadata.term)
    restored = r.restore(m.snapshot)
    r.say("INFO", f"node {r.id} {'takes' if restored else 'ignores'} the snapshot at {m.snapshot.metadata.index}")
    index = r.raft_log.last_index() if restored else r.raft_log.committed
    r.send(Message(type=MSG_APP_RESP, to=m.from_id, index=index))


_FROM_LEADER = {MSG_APP: _handle_append, MSG_HEARTBEAT: _handle_heartbeat, MSG_SNAP: _handle_snapshot}
