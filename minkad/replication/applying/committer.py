"""Takes entries from staged to acknowledged: one sync for all writes of a loop turn, then apply, then answer."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from minka.errors import Code, MinkaError
from minka.wire.kv_frames import WriteBody
from minkad.core.replication.entries import SlowMark
from minkad.core.replication.replica_state import Applying, Role
from minkad.replication.applying.hosted_replica import Pending, Replica
from minkad.storage.log_database import LogDatabase

_APPLY_KEYS: Final = 2000  # applied at once; they take about 5 ms
_APPLY_SECONDS: Final = 0.005  # seconds of applying, after which other tasks run
_STALL_RETRY_SECONDS: Final = 0.002


_Ends = dict[Replica, tuple[int, int]]  # by replica: the end of its log when staged, and its number of truncations


class Committer:
    """Makes staged entries durable, and applies what is committed."""

    def __init__(
        self,
        log_db: LogDatabase,
        clock: Callable[[], float],
        carry_out: Callable[[], None],
        on_applied: Callable[[Replica, int], None],
        on_mark: Callable[[Replica, SlowMark], None],
        open_data: Callable[[Replica], None],
    ) -> None:
        """`carry_out` carries out what is in the outbox. `on_applied` is called with the number of bytes of bodies that
        were applied. `on_mark` carries a slow mark out in a task; applying goes on with `passed_mark`. `open_data`
        begins to open a replica's data; the entries to apply are queued again after that.
        """
        self._log_db = log_db
        self._clock = clock
        self._carry_out = carry_out
        self._on_applied = on_applied
        self._on_mark = on_mark
        self._open_data = open_data
        self._groups: dict[asyncio.Future[None], _Ends] = {}  # writes on their way to the disk
        self._queue: deque[Replica] = deque()
        self._scheduled = False
        self._closed = False
        self.pending_bytes = 0  # the bodies of writes that clients wait for

    def sync(self, replica: Replica, *, to_disk: bool) -> None:
        """Something was appended to the replica's log: make it durable with all else of this loop turn. Without
        `to_disk`, an `async` keyspace only needs the operating system to have it.
        """
        on_disk = to_disk or not replica.is_async
        stored = self._log_db.sync() if on_disk else self._log_db.write()
        ends = self._groups.get(stored)
        if ends is None:
            ends = self._groups[stored] = {}
            stored.add_done_callback(self._synced if on_disk else self._written)
        ends[replica] = (replica.log.end, replica.log.truncations)

    async def stored(self) -> None:
        """Wait until everything staged so far is written, as durably as asked, or has failed."""
        if self._groups:
            await asyncio.wait(list(self._groups))

    def _synced(self, stored: asyncio.Future[None]) -> None:
        self._stored(stored, on_disk=True)

    def _written(self, stored: asyncio.Future[None]) -> None:
        self._stored(stored, on_disk=False)

    def _stored(self, stored: asyncio.Future[None], *, on_disk: bool) -> None:
        ends, error = self._groups.pop(stored), stored.exception()
        apply_here = not self._scheduled
        self._scheduled = True
        now = self._clock()
        for replica, (end, truncations) in ends.items():
            if error is not None:
                self.give_up(replica, Code.OUTCOME_UNKNOWN, str(error))
            else:
                replica.log_stored(end, truncations, now, on_disk=on_disk)
        self._carry_out()
        if apply_here:
            self._apply_queued()

    def apply(self, replica: Replica) -> None:
        """Apply the replica's committed entries, after those of the replicas that are queued already."""
        self._queue.append(replica)
        self._schedule(0.0)

    def close(self) -> None:
        """Apply nothing from here on; committed entries stay in the log."""
        self._closed = True

    def passed_mark(self, replica: Replica) -> None:
        """The replica has carried the mark out."""
        self._on_applied(replica, 0)
        replica.advance()
        self._carry_out()

    def give_up(self, replica: Replica, code: Code, reason: str) -> None:
        """The clients that wait for unapplied entries get an error with this code."""
        for entry in replica.drop_pending():
            if entry.ticket is not None:
                self.pending_bytes -= entry.size
                entry.ticket.fail(entry.position, MinkaError(code, f"partition {replica.id}: {reason}"))

    def _apply_queued(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        until = self._clock() + _APPLY_SECONDS
        for _ in range(len(self._queue)):
            replica = self._queue.popleft()
            delay = self._apply_some(replica, until)
            if delay is not None:
                self._queue.append(replica)
                if delay or self._clock() >= until:
                    self._schedule(delay)
                    return
            elif replica.applying is Applying.QUEUED:
                replica.applying = Applying.IDLE
        self._carry_out()
        if self._queue:
            self._schedule(0.0)

    def _schedule(self, delay: float) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(delay, self._apply_queued)

    def _apply_some(self, replica: Replica, until: float) -> float | None:
        """Apply entries until the time `until`. Returns the seconds after which to go on, or None if everything is
        applied.
        """
        while self._can_apply(replica) and replica.applied < replica.high_watermark:
            if replica.data.is_closed:
                self._open_data(replica)
                return None
            try:
                replica.take_over_data()
                if replica.data.is_stalled():
                    return _STALL_RETRY_SECONDS
                if replica.applied >= replica.high_watermark:
                    break
                mark = replica.next_slow_mark()
                if replica.is_held_up:
                    return None  # `Splitting` lets it go on
                if mark is not None:
                    self._on_mark(replica, mark)
                    return None
                applied = replica.apply(_APPLY_KEYS)
            except Exception as error:  # noqa: BLE001 - the replica can't go on, nor can the node
                if replica.damage is None:
                    self._fail(replica, error)
                return None
            self._acknowledge(replica, applied)
            if self._clock() >= until:
                return 0.0
        return None

    @staticmethod
    def _can_apply(replica: Replica) -> bool:
        return replica.role is not Role.REMOVED and replica.is_complete and replica.damage is None

    def _acknowledge(self, replica: Replica, applied: list[Pending]) -> None:
        size = 0
        if replica.role is Role.FOLLOWER:
            replica.log.drop_tail(replica.applied)
        # This needs no clearance: any replica elected since was in the in-sync set, so it has all of this in its log,
        # and serves nothing before it has applied it. Only an unclean election may lose it.
        leads = replica.role is Role.LEADER
        traffic, now = replica.load.traffic, self._clock()
        for entry in applied:
            size += entry.size
            if entry.ticket is None:
                continue
            self.pending_bytes -= entry.size
            if leads:
                entry.ticket.fill(entry.position, entry.answer)
                if isinstance(entry.write, WriteBody):
                    traffic.write(len(entry.write.keys), entry.size, now - entry.ticket.began)
            else:
                text = f"partition {replica.id}: the node stopped leading before the write was acknowledged"
                entry.ticket.fail(entry.position, MinkaError(Code.OUTCOME_UNKNOWN, text))
        replica.note_applied(applied)
        self._on_applied(replica, size)

    def _fail(self, replica: Replica, error: Exception) -> None:
        failure = error if isinstance(error, MinkaError) else MinkaError(Code.INTERNAL, f"applying: {error!r}")
        self.give_up(replica, Code.OUTCOME_UNKNOWN, str(failure))
        self._log_db.fail(failure)
