"""How long it is certain that nobody led: voters say with their votes for how long they have heard no leader.

An active controller grants no clearance beyond `clearance_ms` after it last asked a quorum whether it leads, and each
of that quorum has heard it after the question. A quorum votes for the next leader, and one node at least is in both. So
the shortest silence of all who voted has passed since the last confirmation, hence of what was granted by it. A vote
that a voter gives although it has just heard its leader (a leadership transfer, a leader's process that is said to have
died) says a short time, and proves no more than that.
"""

from minka.v1.raft_pb2 import Message, MessageType
from minkad.core.clearance import CLOCK_RATIO
from minkad.core.raft import BasicStatus, Role

_FROM_LEADER = (MessageType.MSG_APP, MessageType.MSG_HEARTBEAT, MessageType.MSG_SNAP)


class LeaderSilence:
    """Times are seconds of this node's clock. Before its start a node may have heard anything."""

    def __init__(self, started_at: float) -> None:
        self.leader = 0  # the raft id of the last leader, if that was another node; 0: none
        self._heard_at = started_at
        self._term = 0  # the last in which votes were given to this node
        self._proven_since = started_at

    def handle(self, message: Message, status: BasicStatus, now: float) -> None:
        """A message is about to be handled."""
        if message.type in _FROM_LEADER:
            self.leader, self._heard_at = message.from_id, now
        if message.type != MessageType.MSG_VOTE_RESP or message.reject:
            return
        if status.role is Role.CANDIDATE and message.term == status.term:
            # The voter's clock may run faster than this one. This node votes for itself, too.
            since = max(self._heard_at, now - message.silence_ms / 1000 / CLOCK_RATIO)
            self._proven_since = max(self._proven_since, since) if message.term == self._term else since
            self._term = message.term

    def asks(self, now: float) -> None:
        """This node leads, and asks whether it does: it is one of those who confirm that, and what it grants by it may
        hold when it begins to act as the controller once more in the same term.
        """
        self.leader, self._heard_at, self._proven_since = 0, now, now

    def milliseconds(self, now: float) -> int:
        """For how long this node has heard no leader, itself included."""
        return max(0, int((now - self._heard_at) * 1000))

    def proven_since(self, term: int, now: float) -> float:
        """Since when no leader before that of `term`, which is this node, can have been confirmed."""
        return self._proven_since if term == self._term else now
