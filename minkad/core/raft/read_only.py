"""Reads that wait until a quorum has confirmed that the leader still leads.

Source: Ongaro's thesis, section 6.4 (ReadIndex). The waiting reads are numbered. A heartbeat carries the number of the
newest read, so an answer to the heartbeat confirms this read and all before it, whatever context their readers chose.
"""

from collections import deque

from minka.v1.raft_pb2 import Message
from minkad.core.raft.quorum import JointConfig

MAX_WAITING_READS = 65_536


class ReadOnly:
    """The waiting reads of one leader in one term."""

    __slots__ = ("_acked", "_confirmed", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[Message, int]] = deque()  # (request, commit index when it came)
        self._confirmed = 0  # the number of reads confirmed so far
        self._acked: dict[int, int] = {}  # voter → number of the newest read that it confirmed

    def full(self) -> bool:
        """True if no more reads may wait."""
        return len(self._waiting) >= MAX_WAITING_READS

    def add(self, request: Message, commit: int) -> None:
        """Let `request` wait; once confirmed, it may be answered at `commit`."""
        assert not self.full(), "the caller checks the limit"
        self._waiting.append((request, commit))

    def heartbeat_context(self) -> bytes:
        """The context of a heartbeat whose answer confirms all waiting reads; empty if there are none."""
        return (self._confirmed + len(self._waiting)).to_bytes(8, "little") if self._waiting else b""

    def ack(self, voter: int, context: bytes) -> None:
        """Note that `voter` has answered a heartbeat that carried `context`."""
        if len(context) == 8:
            number = int.from_bytes(context, "little")
            if number <= self._confirmed + len(self._waiting):  # a greater one is not this leader's
                self._acked[voter] = max(self._acked.get(voter, 0), number)

    def advance(self, voters: JointConfig) -> list[tuple[Message, int]]:
        """The reads that are confirmed now, each with the index at which it may be answered."""
        number = voters.committed_index(self._acked.get)
        confirmed = []
        while self._waiting and self._confirmed < number:
            confirmed.append(self._waiting.popleft())
            self._confirmed += 1
        return confirmed
