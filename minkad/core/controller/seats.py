"""Spreads the voters over zones: no zone has two voters more than another one in which a live node could vote.

So with three voters and three zones, the loss of a zone never costs the quorum.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from minka.v1.cluster_pb2 import Node, NodeState
from minka.v1.raft_pb2 import ConfState
from minkad.core.state import is_up

READY_SHARE: Final = 0.9  # of the leader's log; a learner needs as much to become a voter, as in etcd


@dataclass(frozen=True, slots=True)
class SeatMove:
    """A learner takes the seat of a voter; both by raft id."""

    promote: int
    demote: int


class Seats:
    """The voters, and the nodes that could be voters: LIVE learners with at least a part of the log. `match`: by raft
    id, the index up to which each member has the leader's log.
    """

    def __init__(self, conf: ConfState, nodes: Collection[Node], match: Mapping[int, int]) -> None:
        self._nodes = {node.raft_id: node for node in nodes}
        self._voters = list(conf.voters)
        self._match = match
        self._candidates = [raft_id for raft_id in conf.learners if self._could_vote(raft_id)]

    def _could_vote(self, raft_id: int) -> bool:
        node = self._nodes.get(raft_id)
        return node is not None and node.state == NodeState.NODE_STATE_LIVE and self._match.get(raft_id, 0) > 0

    def _taken(self, but: int = 0) -> Counter[str]:
        """The number of voters in each zone, without this one."""
        return Counter(self._nodes[v].zone for v in self._voters if v != but and v in self._nodes)

    def best(self, instead_of: int = 0) -> int | None:
        """The learner that is to vote, instead of this voter: of the learners in the zone with the fewest voters, the
        one with the longest log. A learner with less than READY_SHARE of the longest learner's log comes last.
        """
        taken, most = self._taken(instead_of), max(map(self._has, self._candidates), default=0)

        def rank(candidate: int) -> tuple[bool, int, int, int]:
            has = self._has(candidate)
            return has < READY_SHARE * most, taken[self._nodes[candidate].zone], -has, candidate

        return min(self._candidates, key=rank, default=None)

    def _has(self, raft_id: int) -> int:
        return self._match.get(raft_id, 0)

    def move(self, leader: int, live_before_ms: int | None = None) -> SeatMove | None:
        """The move of a seat that evens out the zones. None if they are even, or while a voter is down, since the
        quorum then has no voter to spare. `leader` keeps its seat. With `live_before_ms` (Unix time), a node counts
        only if it has been LIVE since then, so that seats don't follow a node that comes and goes.
        """
        if not all(is_up(self._nodes.get(voter)) for voter in self._voters):
            return None
        ready = [c for c in self._candidates if self._has(c) >= READY_SHARE * self._has(leader)]
        if live_before_ms is not None:
            ready = [c for c in ready if self._nodes[c].state_since_ms <= live_before_ms]
        givers = [voter for voter in self._voters if voter != leader]
        if not ready or not givers:
            return None
        taken, zone = self._taken(), {raft_id: node.zone for raft_id, node in self._nodes.items()}
        promote = min(ready, key=lambda c: (taken[zone[c]], -self._has(c), c))
        demote = min(givers, key=lambda v: (-taken[zone[v]], self._has(v), -v))
        return SeatMove(promote, demote) if taken[zone[demote]] - taken[zone[promote]] >= 2 else None
