"""Decides whether a copy to a follower can end. Writes outrun the copy if the log since its checkpoint grows above a
bound before the follower has the checkpoint: then the leader no longer keeps this log.

Example: of the log since a copy of 10 GB, at most 10 GB are kept. If clients write 50 MB/s, the log reaches this bound
after 200 s. So the copy needs 10 GB / 200 s = 50 MB/s, and with the margin 62.5 MB/s.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from minka.v1.cluster_pb2 import Operation
from minka.v1.coordinator_pb2 import MigrationProgress
from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.retention import CopyLog
from minkad.replication.applying.hosted_replica import HostedReplica

_LOOK_S: Final = 0.9  # rates are measured over at least this time; over a shorter time they vary too much
_SMOOTH: Final = 0.3  # the weight of the newest look in the rate of writes
_MARGIN: Final = 1.25  # a copy has to be faster than necessary by this factor
_MIB: Final = 1024 * 1024
_LITTLE: Final = 64 * 1024  # bytes a second: the next copy is assumed to reach this, even if the last one stood still
_MOST_WRITES: Final = 200e6  # bytes a second, more than any partition takes
_REMEMBERED_S: Final = 60.0  # an outrun copy counts this long for the next ones, and twice as long after each further
_LONGEST_REMEMBERED_S: Final = 3600.0
_HEADROOM: Final = 2.0  # ask for at most this multiple of the fastest rate so far,
_FIRST_WANTED: Final = 16e6  # or for this rate, in bytes a second, if that is more
_VAIN_LOOKS: Final = 5  # give a copy up after this many looks in a row at less than half of the needed rate


class _Outrun(NamedTuple):
    """A copy that writes have outrun."""

    at: float  # when
    rate: float  # of the copy, in bytes a second
    limit: int  # of the operation, in bytes a second; 0: none
    following: bool  # the checkpoint had come; the follower was too slow with the log after it
    remembered_s: float  # the seconds for which this copy counts


class CopyRates:
    """The rates of all copies to one follower, while it follows. For the loop's thread."""

    def __init__(
        self,
        replica: HostedReplica,
        node: str,
        most_log_bytes: int,
        clock: Callable[[], float],
        operation_moving: Callable[[int], Operation | None],
    ) -> None:
        self.writes: float | None = None  # bytes a second, smoothed; None: not known yet
        self.copied = 0.0  # bytes a second at the last look, of the checkpoint or of the log after it
        self._replica = replica
        self._node = node  # the follower's
        self._most = most_log_bytes  # the setting: see `most_log_bytes`
        self._clock = clock
        self._operation_moving = operation_moving
        # The last look: the time, the bytes applied by then, and the bytes copied by then.
        self._seen: tuple[float, int, int] | None = None
        self._begun: tuple[float, int] = (clock(), 0)  # the time of the present copy's first look, and its bytes then
        self._outrun: _Outrun | None = None  # the last one
        self._fastest = 0.0  # the highest rate of the present copy, in bytes a second
        self._asked = 0.0  # the rate that was needed at the last look
        self._vain_looks = 0  # see `_VAIN_LOOKS`

    @property
    def most_log_bytes(self) -> int:
        """The bytes of log to keep for a copy: the setting, or the size of the copy if that is more."""
        return max(self._most, self._replica.data.size().bytes)

    def look(self, copied: int) -> bool:
        """Measure the rates, given the bytes copied so far. Returns False if the last look was too short ago."""
        now, applied = self._clock(), self._replica.state.retention.applied_bytes
        if self._seen is None:
            self._seen = (now, applied, copied)
            self._begun = (now, copied)
        at, applied_then, copied_then = self._seen
        seconds = now - at
        if seconds < _LOOK_S:
            return False
        self._seen = (now, applied, copied)
        writes, self.copied = (applied - applied_then) / seconds, max(copied - copied_then, 0) / seconds
        self.writes = writes if self.writes is None else self.writes + _SMOOTH * (writes - self.writes)
        return True

    def rest(self) -> None:
        """Forget the last look: it is too old, or was at another copy."""
        self._seen = None
        self._fastest = self._asked = self._vain_looks = 0

    def needed(self, left: int, log_left: int) -> float:
        """The rate needed to copy `left` bytes before clients write `log_left` bytes more."""
        return self._needed(left, log_left, self.writes or 0.0)

    def wanted(self, left: int, copy_log: CopyLog) -> float | None:
        """The rate to ask for after a look, so that `left` bytes are copied before the log reaches its bound; None if
        that is no longer possible. Clients wait for a copy with such a rate, so ask for at most twice the fastest rate
        so far, or for 16 MB/s.
        """
        needed = self.needed(left, copy_log.most - copy_log.kept)
        is_vain = 2 * self.copied < self._asked <= needed and 2 * copy_log.kept > copy_log.most
        self._vain_looks = self._vain_looks + 1 if is_vain else 0
        self._fastest = max(self._fastest, self.copied)
        self._asked = needed
        if self._vain_looks >= _VAIN_LOOKS:
            return None
        return min(needed, max(_HEADROOM * self._fastest, _FIRST_WANTED))

    @staticmethod
    def _needed(left: int, log_left: int, writes: float) -> float:
        return _MARGIN * left * writes / max(log_left, 1)

    @property
    def limit(self) -> int:
        """The operation's limit for its copies, in bytes a second; 0: no limit."""
        operation = self._operation_moving(self._replica.id)
        return 0 if operation is None else operation.rate_limit

    def note_outrun(self, *, following: bool = False) -> None:
        """Writes have outrun a copy, so it has to begin again. `following`: see `_Outrun`."""
        last, limit, remembered = self._outrun, self.limit, _REMEMBERED_S
        if last is not None and last.limit == limit:
            remembered = min(2 * last.remembered_s, _LONGEST_REMEMBERED_S)
        self._outrun = _Outrun(self._clock(), self._mean_rate(), limit, following, remembered)

    def why_outrun(self) -> str:
        """The reason why a copy has to begin again."""
        return (
            f"writes at {_rate(self.writes)} have outrun the copy at {_rate(self._mean_rate())}: of the log since its "
            f"checkpoint at most {_bytes(self.most_log_bytes)} are kept, and less with many copies or a low disk"
        )

    def _mean_rate(self) -> float:
        (begun, copied), (at, _, copied_then) = self._begun, self._seen or (*self._begun, 0)
        return (copied_then - copied) / (at - begun) if at > begun else self.copied

    @property
    def waits_for_writes(self) -> bool:
        """True if a copy may be too slow, so that it begins only once `obstacle` finds none."""
        is_limited = 0 < self.limit < self._needed(self._replica.data.size().bytes, self.most_log_bytes, _MOST_WRITES)
        return is_limited or self._last_outrun() is not None

    def _last_outrun(self) -> "_Outrun | None":
        """The last outrun copy, if the next copy is likely to be as slow: the limit is the same, and not much time has
        passed.
        """
        last = self._outrun
        if last is None or last.limit != self.limit or self._clock() - last.at > last.remembered_s:
            return None
        return last

    def obstacle(self) -> tuple[str, str]:
        """The reason why writes would outrun a copy that begins now, and the remedy; ("", "") if they wouldn't."""
        last, rate = self._last_outrun(), float(self.limit)
        if last is not None:
            measured = max(last.rate, _LITTLE)
            rate = min(rate or measured, measured)
        elif not rate:
            return "", ""
        size, most = self._replica.data.size().bytes, self.most_log_bytes
        needed = self.needed(size, most)
        if last is not None and last.following:
            needed = max(needed, _MARGIN * (self.writes or 0.0))
        if needed <= rate:
            return "", ""
        reason = (
            f"it is written at {_rate(self.writes)}, and a copy of {_bytes(size)} at {_rate(rate)} would be outrun: at "
            f"most {_bytes(most)} of the log that comes meanwhile are kept"
        )
        return reason, self._remedy(needed)

    def _remedy(self, needed: float) -> str:
        operation = self._operation_moving(self._replica.id)
        if operation is None:
            return "write less"
        cancel = f"minkactl operations cancel {operation.id}"
        if not operation.rate_limit:
            return f"write less, or {cancel}"
        enough = f"{int(needed / _MIB) + 1}MiB"
        return f"minkactl operations limit {operation.id} {enough} (0: no limit), or {cancel}"

    def describe_following(self, progress: Progress, migration: MigrationProgress) -> None:
        """Describe it in the report if the follower has its checkpoint, and takes the log more slowly than it grows."""
        copy_log = self._replica.state.retention.copy_log(self._node)
        if copy_log is None:
            return
        kept, most = copy_log
        # The follower has all applied entries except those that are kept for it.
        self.look(self._replica.state.retention.applied_bytes - kept)
        if 2 * kept > most and self.copied < (self.writes or 0.0):
            migration.blocked_by = migration.blocked_by or (
                f"it is written at {_rate(self.writes)}, and {progress.node_id} takes the log at {_rate(self.copied)}: "
                f"{_bytes(kept)} of at most {_bytes(most)} are kept for it"
            )
            migration.remedy = self._remedy(0.0)


def _bytes(size: float) -> str:
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"


def _rate(rate: float | None) -> str:
    return f"{_bytes(rate or 0.0)}/s"
