"""The logs that a node keeps for copies, counted together over all partitions that it leads: they share its disk."""

from heapq import nlargest
from typing import Final

from minkad.core.replication.replica_state import ReplicaState

NONE: Final = 0


class CopyLogs:
    """The log for each copy has its own bound (`Retention.keep_for_copy`), and all logs together have one: the sum of
    the largest bounds, as many as checkpoints are sent at a time. Example, with 4 at a time and bounds of 1 GiB: six
    copies that catch up may keep 4 GiB of log together.
    """

    def __init__(self) -> None:
        self._states: dict[int, ReplicaState] = {}  # by partition: all that keep log for copies, and perhaps more

    def keep(self, state: ReplicaState, reader: str, offset: int, most_bytes: int) -> None:
        """Keep the partition's log for a copy: see `Retention.keep_for_copy`."""
        state.retention.keep_for_copy(reader, offset, most_bytes)
        self._states[state.id] = state

    def bound(self, at_once: int) -> list[int]:
        """Keep at most the sum of the `at_once` largest bounds (NONE: keep nothing). First give up the copies with the
        most log. Returns the partitions whose logs can be trimmed.
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
