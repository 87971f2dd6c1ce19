"""Campaigning and voting.

Source: Raft, section 5.2 and 5.4.1; Ongaro's thesis, section 9.6 (pre-vote); etcd/raft.
"""

from typing import TYPE_CHECKING

from minka.v1.raft_pb2 import (
    ENTRY_NORMAL,
    MSG_PRE_VOTE,
    MSG_PRE_VOTE_RESP,
    MSG_VOTE,
    MSG_VOTE_RESP,
    Message,
)
from minkad.core.raft.types import NONE, CampaignType, Role

if TYPE_CHECKING:
    from minkad.core.raft.raft import Raft

TRANSFER_CONTEXT = b"transfer"  # in a vote request: the leader wants it, so a voter that hears the leader may grant it


def hup(r: "Raft", why: CampaignType) -> None:
    """Start an election if this node may."""
    if r.role is Role.LEADER:
        return
    if not r.promotable():
        r.say("WARN", f"node {r.id} may not campaign: it isn't a voter, or has a snapshot to install")
        return
    if has_unapplied_conf_change(r):
        r.say("WARN", f"node {r.id} does not campaign before it has applied a configuration change")
        return
    r.say("INFO", f"node {r.id} starts an election ({why.value}) in term {r.term}")
    campaign(r, why)


def has_unapplied_conf_change(r: "Raft") -> bool:
    """True if a configuration change is committed and not applied. Entries that a snapshot replaces are applied, even
    if the core has not been told so yet.
    """
    log = r.raft_log
    first = max(log.applied + 1, log.first_index())
    entries = log.scan(first, log.committed + 1, r.config.max_committed_size_per_ready)
    return any(entry.type != ENTRY_NORMAL for entry in entries)


def campaign(r: "Raft", why: CampaignType) -> None:
    """Ask every voter for its vote, this node itself included."""
    if why is CampaignType.PRE_ELECTION:
        r.become_pre_candidate()
        type_, response, term = MSG_PRE_VOTE, MSG_PRE_VOTE_RESP, r.term + 1
    else:
        r.become_candidate()
        type_, response, term = MSG_VOTE, MSG_VOTE_RESP, r.term
    context = TRANSFER_CONTEXT if why is CampaignType.TRANSFER else b""
    last, last_term = r.raft_log.last_entry()
    for voter in sorted(r.tracker.config.voters.ids()):
        if voter == r.id:  # its own vote counts once it is durable
            r.send(Message(type=response, to=voter, term=term))
        else:
            request = Message(type=type_, to=voter, term=term, index=last, log_term=last_term, context=context)
            _tell_commit(r, request)
            r.send(request)


def handle_vote(r: "Raft", m: Message) -> None:
    """Answer a MSG_VOTE or MSG_PRE_VOTE."""
    learn_commit(r, m)
    response = MSG_VOTE_RESP if m.type == MSG_VOTE else MSG_PRE_VOTE_RESP
    free = (
        r.vote == m.from_id or (r.vote == NONE and r.leader_id == NONE) or (m.type == MSG_PRE_VOTE and m.term > r.term)
    )
    # A learner votes when asked: it may be a voter already and not know it yet.
    if not (free and r.raft_log.is_up_to_date(m.index, m.log_term)):
        r.say("INFO", f"node {r.id} refuses its vote to {m.from_id} in term {m.term}, it voted {r.vote}")
        refusal = Message(type=response, to=m.from_id, term=r.term, reject=True)
        _tell_commit(r, refusal)
        r.send(refusal)
        return
    # The request's term: a pre-vote is for a term that this node isn't in.
    r.send(Message(type=response, to=m.from_id, term=m.term))
    if m.type == MSG_VOTE:
        r.election_elapsed = 0
        r.vote = m.from_id
        r.say("INFO", f"node {r.id} votes for {m.from_id} in term {m.term}")


def _tell_commit(r: "Raft", m: Message) -> None:
    if r.config.commit_by_vote:
        m.commit, m.commit_term = r.raft_log.committed, r.raft_log.term(r.raft_log.committed)


def learn_commit(r: "Raft", m: Message) -> None:
    """Commit the entries that the sender of a vote request or of a vote knows to be committed.

    A change of the voters takes effect when it is applied. A node that has the change in its log, but doesn't know that
    it is committed, asks the old voters. These may be gone or have longer logs, so no node wins.

    The sender of a pre-vote may have heard of the commit from the leader of a later term than this node's. Then this
    node enters that later term: a leader of this node's present term need not have the committed entries.
    """
    if not m.commit_term or r.role is Role.LEADER or m.commit <= r.raft_log.committed:
        return
    if r.raft_log.match_term(m.commit, m.commit_term):
        if m.type == MSG_PRE_VOTE and m.term - 1 > r.term:
            r.become_follower(m.term - 1, NONE)
        r.raft_log.commit_to(m.commit)
