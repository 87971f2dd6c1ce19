"""Majorities, single and joint.

Source: Ongaro, "Consensus: Bridging Theory and Practice", sections 3 and 4.3; package quorum of etcd/raft.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

# The committed index of a configuration without voters. So the other half of a joint configuration decides alone.
UNBOUNDED = 2**64 - 1

# Returns the highest index that a voter has acknowledged; None if it has acknowledged none.
AckedIndex = Callable[[int], int | None]


class VoteResult(Enum):
    """The state of an election."""

    PENDING = "VotePending"
    LOST = "VoteLost"
    WON = "VoteWon"


class MajorityConfig(frozenset[int]):
    """A set of voter ids that decides by majority."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"({' '.join(map(str, sorted(self)))})"

    def committed_index(self, acked: AckedIndex) -> int:
        """The highest index that a majority has acknowledged; UNBOUNDED without voters."""
        if not self:
            return UNBOUNDED
        indexes = sorted(acked(voter) or 0 for voter in self)
        return indexes[(len(indexes) - 1) // 2]

    def vote_result(self, votes: Mapping[int, bool]) -> VoteResult:
        """The state of the election by `votes` (voter id → granted); without voters it is won."""
        if not self:
            return VoteResult.WON
        quorum = len(self) // 2 + 1
        granted = sum(1 for voter in self if votes.get(voter))
        missing = sum(1 for voter in self if voter not in votes)
        if granted >= quorum:
            return VoteResult.WON
        return VoteResult.PENDING if granted + missing >= quorum else VoteResult.LOST


class JointConfig(NamedTuple):
    """Two majorities that must both agree; `outgoing` is empty outside of a joint configuration."""

    incoming: MajorityConfig
    outgoing: MajorityConfig

    def __str__(self) -> str:
        return f"{self.incoming}&&{self.outgoing}" if self.outgoing else str(self.incoming)

    def ids(self) -> frozenset[int]:
        """Every voter of either half."""
        return self.incoming | self.outgoing

    def committed_index(self, acked: AckedIndex) -> int:
        """The highest index that both halves have committed."""
        return min(self.incoming.committed_index(acked), self.outgoing.committed_index(acked))

    def vote_result(self, votes: Mapping[int, bool]) -> VoteResult:
        """WON if both halves won, LOST if either lost."""
        results = {self.incoming.vote_result(votes), self.outgoing.vote_result(votes)}
        if VoteResult.LOST in results:
            return VoteResult.LOST
        return VoteResult.PENDING if VoteResult.PENDING in results else VoteResult.WON
