"""The checkpoints that one leader sends to its followers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.instructions import Level, SendCheckpoint, WakeAt
from minkad.core.replication.peer_messages import KeptFile
from minkad.core.replication.shared_state import SharedState

OUTRUN: Final = "the node has fallen behind the writes, and the log that it lacks is no longer kept"
AWAY: Final = "the node was away, or its copy can't be used, and the log is not enough"


@dataclass(slots=True)
class Transfer:
    """The transfer of a checkpoint to one follower."""

    is_sending: bool = True  # it is on its way
    tries: int = 0  # the checkpoints begun for this follower since it began to follow
    restarted_by: str = ""  # why the last checkpoint was begun after an earlier one
    failures: int = 0  # failed tries in a row
    blocked_by: str = ""  # why the last try failed; "" if it didn't
    again_at: float | None = None  # after a failure: the time to probe the follower again


_NONE: Final = Transfer(is_sending=False)


class Checkpoints:
    """Each transfer is tried once. After a failure and a pause, the leader probes the follower, and may begin again."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._transfers: dict[str, Transfer] = {}  # by follower: the present transfer, or the last one

    def __bool__(self) -> bool:
        """True if any follower gets a checkpoint, or got one since it began to follow."""
        return bool(self._transfers)

    def begin(self, progress: Progress, kept: Sequence[KeptFile]) -> None:
        """Begin a transfer. `kept`: the files that the follower still has of a broken transfer. No log is kept for the
        follower until the checkpoint's turn comes. If this isn't the first checkpoint for the follower, a log line and
        the migration's progress give the reason and the number.
        """
        progress.state.retention.release(progress.node_id)
        transfer = self._begun(progress)
        tries, reason = transfer.tries, transfer.restarted_by
        self._shared.outbox.append(SendCheckpoint(progress, kept, tries, reason, progress.fell_behind))
        if tries > 1:
            names = {"partition": progress.state.id, "target": progress.node_id, "tries": tries, "reason": reason}
            self._shared.outbox.report(Level.WARNING, "a copy begins again", **names)

    def _begun(self, progress: Progress) -> Transfer:
        transfer = self._transfers.setdefault(progress.node_id, Transfer())
        if not transfer.blocked_by:
            transfer.failures = 0
        transfer.is_sending = True
        transfer.tries += 1
        if transfer.tries > 1:
            transfer.restarted_by = transfer.blocked_by or (OUTRUN if progress.fell_behind else AWAY)
        return transfer

    def of(self, node: str) -> Transfer:
        """The present transfer to the node, or the last one; an empty one if there was none. Only for reading."""
        return self._transfers.get(node, _NONE)

    def sent(self, node: str) -> bool:
        """The checkpoint is in place at the node. Returns False if no checkpoint was on its way there."""
        transfer = self.of(node)
        if not transfer.is_sending:
            return False
        transfer.is_sending, transfer.blocked_by = False, ""
        return True

    def failed(self, partition_id: int, node: str, reason: str, now: float) -> None:
        """The checkpoint did not arrive: the leader probes the follower again after a pause."""
        transfer = self._transfers[node]
        settings = self._shared.settings
        pause = min(settings.first_backoff * 2.0 ** min(transfer.failures, 10), settings.longest_backoff)
        transfer.blocked_by, transfer.is_sending, transfer.again_at = reason, False, now + pause
        transfer.failures += 1
        self._shared.outbox.append(WakeAt(partition_id, transfer.again_at))

    def due(self, now: float) -> list[str]:
        """The followers that the leader is to probe again, each once."""
        due = [node for node, t in self._transfers.items() if t.again_at is not None and now >= t.again_at]
        for node in due:
            self._transfers[node].again_at = None
        return due

    def is_catching_up(self, progress: Progress) -> bool:
        """True if the follower gets a checkpoint, or the log that the leader keeps, within a bound, for this copy."""
        copy_log = progress.state.retention.copy_log(progress.node_id)
        return self.of(progress.node_id).is_sending or (progress.is_replicating and copy_log is not None)

    def is_under_way(self, node: str) -> bool:
        """True if a checkpoint is on its way to the node, or the pause after a failure isn't over."""
        return self.of(node).is_sending or self.of(node).again_at is not None

    def any_under_way(self) -> bool:
        """True if `is_under_way` for any follower."""
        return any(self.is_under_way(node) for node in self._transfers)

    def forget(self, node: str) -> bool:
        """The node no longer follows. Returns True if a checkpoint is on its way to it."""
        return self._transfers.pop(node, _NONE).is_sending
