"""The code finds the same majorities as a plain count does, for small configurations that Hypothesis makes."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from minkad.core.raft.quorum import UNBOUNDED, JointConfig, MajorityConfig, VoteResult

IDS = st.integers(1, 9)
CONFIGS = st.frozensets(IDS, max_size=7).map(MajorityConfig)
ACKED = st.dictionaries(IDS, st.integers(0, 20))
VOTES = st.dictionaries(IDS, st.booleans())


def has_majority(config: MajorityConfig, having: set[int]) -> bool:
    """True if more than half of the members are in `having`."""
    return 2 * len(config & having) > len(config)


def committed(config: MajorityConfig, acked: dict[int, int]) -> int:
    """The highest index that a majority has acknowledged, found by a plain count."""
    if not config:
        return UNBOUNDED
    return max(index for index in range(21) if has_majority(config, {v for v in config if acked.get(v, 0) >= index}))


@given(CONFIGS, ACKED)
def test_committed_index(config: MajorityConfig, acked: dict[int, int]) -> None:
    assert config.committed_index(acked.get) == committed(config, acked)


@given(CONFIGS, CONFIGS, ACKED)
def test_joint_committed_index(incoming: MajorityConfig, outgoing: MajorityConfig, acked: dict[int, int]) -> None:
    expected = min(committed(incoming, acked), committed(outgoing, acked))
    assert JointConfig(incoming, outgoing).committed_index(acked.get) == expected


@given(st.frozensets(IDS, max_size=5).map(MajorityConfig), VOTES)
def test_vote_result(config: MajorityConfig, votes: dict[int, bool]) -> None:
    """A vote is decided once the missing votes can't change the result."""
    missing = [voter for voter in config if voter not in votes]
    outcomes = set()
    for rest in product([False, True], repeat=len(missing)):
        granted = {v for v, yes in {**votes, **dict(zip(missing, rest, strict=True))}.items() if yes}
        outcomes.add(not config or has_majority(config, granted))
    decided = VoteResult.WON if True in outcomes else VoteResult.LOST
    expected = decided if len(outcomes) == 1 else VoteResult.PENDING
    assert config.vote_result(votes) is expected


@given(CONFIGS, CONFIGS, VOTES)
def test_joint_vote_result(incoming: MajorityConfig, outgoing: MajorityConfig, votes: dict[int, bool]) -> None:
    results = [incoming.vote_result(votes), outgoing.vote_result(votes)]
    joint = JointConfig(incoming, outgoing).vote_result(votes)
    assert (joint is VoteResult.LOST) == (VoteResult.LOST in results)
    assert (joint is VoteResult.WON) == (results == [VoteResult.WON] * 2)
