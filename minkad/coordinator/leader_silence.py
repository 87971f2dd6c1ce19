"""The time for which there has certainly been no leader. With their votes, voters say how long they have heard none.

An active controller grants no clearance beyond `clearance_ms` after it last asked a quorum if it leads, and each node
of that quorum has heard from it after the question. A quorum votes for the next leader, and at least one node is in
both. So at least the shortest silence among the voters has passed since the last confirmation, and since the last grant
based on it. A voter that has just heard from its leader (in a leadership transfer, or when the leader's process is said
to have died) reports a short silence, which proves only that.
"""

from minka.v1.raft_pb2 import Message, MessageType
from minkad.core.clearance import CLOCK_RATIO
from minkad.core.raft import BasicStatus, Role

_FROM_LEADER = (MessageType.MSG_APP, MessageType.MSG_HEARTBEAT, MessageType.MSG_SNAP)


class LeaderSilence:
    """Times are seconds of this node's clock. Before its start a node may have heard from a leader at any time."""

    def __init__(self, started_at: float) -> None:
        self.leader = 0  # the raft id of the last leader, if it was another node; 0: none
        self._heard_at = started_at
        self._term = 0  # the last term in which this node was given votes
        self._proven_since = started_at

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
        """This node, as the leader, asks a quorum if it still leads. It is part of that quorum, and its grants from now
        on may still be valid when it becomes the active controller again in the same term.
        """
        self.leader, self._heard_at, self._proven_since = 0, now, now

    def milliseconds(self, now: float) -> int:
        """The milliseconds since this node last heard from a leader, itself included."""
        return max(0, int((now - self._heard_at) * 1000))

    def proven_since(self, term: int, now: float) -> float:
        """The time since which no leader before this node's `term` can have been confirmed."""
        return self._proven_since if term == self._term else now
