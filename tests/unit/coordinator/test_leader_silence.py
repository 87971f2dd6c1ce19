"""The votes of an election prove how long no voter has heard the former leader."""

from minka.v1.raft_pb2 import Message, MessageType
from minkad.coordinator.leader_silence import LeaderSilence
from minkad.core.clearance import CLOCK_RATIO
from minkad.core.raft import BasicStatus, Role

CANDIDATE = BasicStatus(1, Role.CANDIDATE, 7, 1, 0, 0, 0, 0)
FOLLOWER = BasicStatus(1, Role.FOLLOWER, 6, 0, 2, 0, 0, 0)


def vote(silence_ms: int, *, term: int = 7, reject: bool = False, sender: int = 2) -> Message:
    return Message(type=MessageType.MSG_VOTE_RESP, from_id=sender, term=term, silence_ms=silence_ms, reject=reject)


def heartbeat(sender: int = 3) -> Message:
    return Message(type=MessageType.MSG_HEARTBEAT, from_id=sender, term=6)


def heard_at(at: float) -> LeaderSilence:
    silence = LeaderSilence(0.0)
    silence.handle(heartbeat(), FOLLOWER, at)
    return silence


def test_the_shortest_silence_of_the_voters_counts() -> None:
    silence = heard_at(10.0)
    silence.handle(vote(550, sender=2), CANDIDATE, 10.7)
    silence.handle(vote(330, sender=4), CANDIDATE, 10.7)
    assert silence.proven_since(7, 20.0) == 10.7 - 0.330 / CLOCK_RATIO
    assert silence.leader == 3


def test_the_candidates_own_silence_counts_too() -> None:
    silence = heard_at(10.6)
    silence.handle(vote(550), CANDIDATE, 10.7)
    assert silence.proven_since(7, 20.0) == 10.6


def test_a_vote_without_a_silence_proves_nothing() -> None:
    """A vote with `silence_ms` 0 comes from a voter with an older version of Minka, or from a voter that has just heard
    its leader.
    """
    silence = heard_at(10.0)
    silence.handle(vote(550, sender=2), CANDIDATE, 10.7)
    silence.handle(vote(0, sender=4), CANDIDATE, 10.7)
    assert silence.proven_since(7, 20.0) == 10.7


def test_only_votes_of_this_term_that_were_given_count() -> None:
    silence = heard_at(10.0)
    silence.handle(vote(550), CANDIDATE, 10.7)
    silence.handle(vote(0, reject=True), CANDIDATE, 10.7)
    silence.handle(vote(0, term=6), CANDIDATE, 10.7)
    assert silence.proven_since(7, 20.0) == 10.7 - 0.550 / CLOCK_RATIO


def test_without_votes_nothing_is_proven() -> None:
    silence = heard_at(10.0)
    silence.handle(vote(550), CANDIDATE, 10.7)
    assert silence.proven_since(8, 20.0) == 20.0
    assert LeaderSilence(0.0).proven_since(1, 20.0) == 20.0


def test_the_silence_that_a_voter_reports() -> None:
    """A voter that has heard no leader since its own start reports the time since its start. A leader hears itself, so
    it reports 0.
    """
    silence = LeaderSilence(10.0)
    assert silence.milliseconds(10.2) == 199 or silence.milliseconds(10.2) == 200
    silence.handle(heartbeat(), FOLLOWER, 11.0)
    assert silence.milliseconds(11.5) == 500
    silence.asks(12.0)
    assert silence.milliseconds(12.0) == 0


def test_the_time_in_which_this_node_led_counts_too() -> None:
    """After a failed transfer of the leadership, this node may be the controller again in the same term. The former
    leader is then this node itself, and the silence begins when the node last asked a quorum.
    """
    silence = heard_at(10.0)
    silence.handle(vote(550), CANDIDATE, 10.7)
    silence.asks(12.0)
    assert silence.proven_since(7, 20.0) == 12.0
    assert silence.leader == 0
