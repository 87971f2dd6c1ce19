"""Who votes: the Raft configuration that the cluster ought to have, one safe change at a time."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from minka.v1.cluster_pb2 import Node, NodeState
from minka.v1.raft_pb2 import ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState


@dataclass(frozen=True, slots=True)
class VoterSettings:
    """How many voters there are to be, and for how long one may be gone before a learner takes its seat."""

    voters: int
    replace_after_ms: int


def next_membership_change(
    conf: ConfState, nodes: Collection[Node], match: Mapping[int, int], settings: VoterSettings, now_ms: int
) -> ConfChangeV2 | None:
    """The next change of the Raft configuration; None when it is as it ought to be, or while a change is under way.

    A node that was removed is no member. Every LIVE node has the log: one that is not a member becomes a learner. While
    there are fewer voters than wanted, the most up-to-date LIVE learner is promoted. A voter that has been gone for
    `replace_after_ms` gives its seat to the most up-to-date LIVE learner and becomes a learner itself, in one joint
    change. `match` is what each member has of the leader's log, by raft id.
    """
    if conf.voters_outgoing or not nodes:  # no nodes: the cluster is not created yet
        return None
    members = {*conf.voters, *conf.learners}
    for raft_id in sorted(members - {n.raft_id for n in nodes}):
        return _change((ConfChangeType.CONF_CHANGE_REMOVE_NODE, raft_id))
    live = {n.raft_id: n for n in nodes if n.state == NodeState.NODE_STATE_LIVE}
    for raft_id in sorted(live.keys() - members):
        return _change((ConfChangeType.CONF_CHANGE_ADD_LEARNER_NODE, raft_id))
    candidates = sorted(live.keys() & set(conf.learners), key=lambda r: (-match.get(r, 0), r))
    if not candidates or not match.get(candidates[0], 0):
        return None
    if len(conf.voters) < settings.voters:
        return _change((ConfChangeType.CONF_CHANGE_ADD_NODE, candidates[0]))
    gone = [
        n.raft_id
        for n in nodes
        if n.raft_id in conf.voters
        and n.state in (NodeState.NODE_STATE_FAILED, NodeState.NODE_STATE_LEFT)
        and now_ms - n.state_since_ms >= settings.replace_after_ms
    ]
    if gone:
        return _change(
            (ConfChangeType.CONF_CHANGE_ADD_NODE, candidates[0]),
            (ConfChangeType.CONF_CHANGE_ADD_LEARNER_NODE, min(gone)),
        )
    return None


def _change(*singles: tuple[ConfChangeType.ValueType, int]) -> ConfChangeV2:
    return ConfChangeV2(changes=[ConfChangeSingle(type=kind, node_id=raft_id) for kind, raft_id in singles])
