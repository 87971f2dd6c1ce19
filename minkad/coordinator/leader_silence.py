"""The time since which there has certainly been no leader. With its vote, each voter says how long it has heard none.

The clearances of an active controller end at most `clearance_ms` after it last asked a quorum if it leads. Each node of
that quorum has heard from the controller after the question. The next leader is elected by a quorum as well, and at
least one node is in both quorums. If the voters report silences of 4 s, 5 s and 9 s, the former leader asked its last
confirmed question at least 4 s ago. A voter may have just heard from its leader, in a leadership transfer or when the
leader's process is said to have died. Then the silence is short, and proves little.
"""

from minka.v1.raft_pb2 import Message, MessageType
from minkad.core.clearance import CLOCK_RATIO
from minkad.core.raft import BasicStatus, Role

_FROM_LEADER = (MessageType.MSG_APP, MessageType.MSG_HEARTBEAT, MessageType.MSG_SNAP)


class LeaderSilence:
    """Times are seconds of this node's clock. Before its start a node may have heard from a leader at any time."""

    def __init__(self, started_at: float) -> None:
        self.leader = 0  # the raft id of the last leader, if it was another node; 0: none
        self._heard_at = started_at  # when this node last heard from a leader, or was one
        self._term = 0  # the last term in which this node was given votes
        self._proven_since = started_at  # by the votes of `_term`: no earlier leader was confirmed after this time

    def handle(self, message: Message, status: BasicStatus, now: float) -> None:
        """Note a message that is about to be handled."""
        if message.type in _FROM_LEADER:
            self.leader, self._heard_at = message.from_id, now
        if message.type != MessageType.MSG_VOTE_RESP or message.reject:
            return
        if status.role is Role.CANDIDATE and message.term == status.term:
            # The voter's clock may run faster than this one. This node also votes for itself.
            since = max(self._heard_at, now - message.silence_ms / 1000 / CLOCK_RATIO)
            self._proven_since = max(self._proven_since, since) if message.term == self._term else since
            self._term = message.term

    def asks(self, now: float) -> None:
        """This node, as the leader, asks a quorum if it still leads. The node belongs to the quorum itself. Its grants
        from now on may still be valid when it becomes the active controller again in the same term.
        """
        self.leader, self._heard_at, self._proven_since = 0, now, now

    def milliseconds(self, now: float) -> int:
        """The milliseconds since this node last heard from a leader, itself included."""
        return max(0, int((now - self._heard_at) * 1000))

    def proven_since(self, term: int, now: float) -> float:
        """The time since which no leader before this node's `term` can have been confirmed."""
        return self._proven_since if term == self._term else now
