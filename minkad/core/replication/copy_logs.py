"""The logs that the partitions led by one node keep for copies, counted together: they share its disk."""

from heapq import nlargest
from typing import Final

from minkad.core.replication.replica_state import ReplicaState

NONE: Final = 0


class CopyLogs:
    """Each copy has a bound of its own (`Retention.keep_for_copy`). Together the logs may take as much as the bounds of
    the copies sent at a time. Copies that wait to catch up after their checkpoint get the rest.
    """

    def __init__(self) -> None:
        self._states: dict[int, ReplicaState] = {}  # by partition; those whose log may be kept for copies

    def keep(self, state: ReplicaState, reader: str, offset: int, most_bytes: int) -> None:
        """The partition's log is kept for a copy: see `Retention.keep_for_copy`."""
        state.retention.keep_for_copy(reader, offset, most_bytes)
        self._states[state.id] = state

    def bound(self, at_once: int) -> list[int]:
        """Keep at most the sum of the `at_once` largest bounds; NONE: nothing. The copies with the most log are given
        up first. Returns the partitions whose logs can be trimmed.
        """
        copies = [
            (copy.kept, copy.most, reader, state)
            for state in self._states.values()
            for reader, copy in state.retention.copies()
        ]
        self._states = {state.id: state for *_, state in copies}
        left = sum(kept for kept, *_ in copies) - sum(nlargest(at_once, (most for _, most, *_ in copies)))
        trimmed: dict[int, None] = {}
        for kept, _, reader, state in sorted(copies, key=lambda copy: copy[0], reverse=True):
            if left <= 0:
                break
            state.retention.release(reader)
            trimmed[state.id] = None
            left -= kept
        return list(trimmed)
