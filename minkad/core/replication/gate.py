"""Decides whether a leader takes requests now, or lets them wait."""

from enum import Enum


class Gate(Enum):
    """Each value is the reason that a client gets if its request has waited in vain."""

    OPEN = "it is being made ready"
    CLOSED = "it is being handed over"  # writes wait until the successor has everything
    CLOSED_TO_READS = "it is being handed over; its outcome is not known yet"  # reads wait, too
    FROZEN = "it is about to be part of another partition"  # writes wait until a merge is recorded


class WriteGate:
    """A hand-over and a merge may each close the gate; it is open if neither has closed it."""

    __slots__ = ("_hand_over", "_merge", "state")

    def __init__(self) -> None:
        self.state = Gate.OPEN  # the state of the hand-over, or, if that is OPEN, of the merge
        self._hand_over = Gate.OPEN  # or CLOSED, CLOSED_TO_READS
        self._merge = Gate.OPEN  # or FROZEN

    @property
    def is_closed(self) -> bool:
        """True if a hand-over has closed the gate."""
        return self._hand_over is not Gate.OPEN

    def close(self) -> None:
        """Writes wait: the leadership is about to be handed over."""
        self._hand_over = Gate.CLOSED
        self._decide()

    def close_to_reads(self) -> None:
        """Reads wait, too: another replica may lead by now."""
        assert self.is_closed, "writes wait before a leadership is handed over"
        self._hand_over = Gate.CLOSED_TO_READS
        self._decide()

    def open(self) -> None:
        """The hand-over has ended, or has failed."""
        self._hand_over = Gate.OPEN
        self._decide()

    def freeze(self) -> None:
        """Writes wait: the partition is about to be part of another one."""
        self._merge = Gate.FROZEN
        self._decide()

    def thaw(self) -> None:
        """The merge has ended, or has failed."""
        self._merge = Gate.OPEN
        self._decide()

    def _decide(self) -> None:
        self.state = self._hand_over if self.is_closed else self._merge
