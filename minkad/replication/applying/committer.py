"""Takes entries from staged to acknowledged: one sync for all writes of a turn of the loop, then apply, then answer."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError
from minka.wire.kv_frames import WriteBody
from minkad.core.replication.entries import IngestMark, Mark, SnapshotMark, SplitMarker, TrimToRange
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.replication.applying.compacting import Compacting
from minkad.replication.applying.flusher import Flusher
from minkad.replication.applying.hosted_replica import HostedReplica, Pending
from minkad.replication.applying.opening import Opening
from minkad.replication.changing.ingesting import Ingesting
from minkad.replication.changing.splitting import Splitting
from minkad.replication.reading.changed_figures import ChangedFigures
from minkad.replication.reading.snapshots import Snapshots
from minkad.replication.serving.partition_waits import PartitionWaits
from minkad.storage.log_database import LogDatabase

_APPLY_KEYS: Final = 2000  # applied at once, in about 5 ms
_APPLY_SECONDS: Final = 0.005  # other tasks run after applying for this long
_STALL_RETRY_SECONDS: Final = 0.002

_Ends = dict[HostedReplica, tuple[int, int]]  # by replica: the end of its log when staged, and its truncations


@dataclass(frozen=True, slots=True)
class Marks:
    """The parts that carry out slow marks."""

    splitting: Splitting
    snapshots: Snapshots
    ingesting: Ingesting | None  # None: this node takes in no loads


class Committer:
    """Makes staged entries durable, and applies what is committed."""

    def __init__(
        self,
        node: Node[HostedReplica],
        log_db: LogDatabase,
        clock: Callable[[], float],
        opening: Opening,
        marks: Marks,
        flusher: Flusher,
        compacting: Compacting,
        figures: ChangedFigures,
        waits: PartitionWaits,
    ) -> None:
        self._node = node
        self._log_db = log_db
        self._clock = clock
        self._opening = opening
        self._marks = marks
        self._flusher = flusher
        self._compacting = compacting
        self._figures = figures
        self._waits = waits
        self._groups: dict[asyncio.Future[None], _Ends] = {}  # by sync under way: the logs that it stores
        self._queue: deque[HostedReplica] = deque()  # the replicas whose state is Applying.QUEUED, in their turn
        self._is_scheduled = False  # a call of `_go_on` is scheduled
        self._closed = False
        self.pending_bytes = 0  # the bodies of the appended writes for which clients wait

    def sync(self, replica: HostedReplica, *, on_disk: bool) -> None:
        """Make the changes of the replica's log durable, together with all others of this turn of the loop. In an
        `async` keyspace the operating system is enough, unless `on_disk`.
        """
        to_disk = on_disk or not replica.state.is_async
        stored = self._log_db.sync() if to_disk else self._log_db.write()
        ends = self._groups.get(stored)
        if ends is None:
            ends = self._groups[stored] = {}
            stored.add_done_callback(self._synced if to_disk else self._written)
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
        if error is not None:
            for replica in ends:
                self.give_up(replica, Code.OUTCOME_UNKNOWN, str(error))
            return
        self._queue.extend(self._node.stored(ends, self._clock(), on_disk=on_disk))
        if self._queue and not self._is_scheduled:
            self._apply_queued()

    def apply(self, replica: HostedReplica) -> None:
        """Apply the replica's committed entries, after those of the replicas that are queued already."""
        self._queue.append(replica)
        self._schedule(0.0)

    def close(self) -> None:
        """Apply nothing from now on. Committed entries stay in the log."""
        self._closed = True

    def give_up(self, replica: HostedReplica, code: Code, reason: str) -> None:
        """The clients that wait for unapplied entries get an error with this code."""
        for entry in replica.drop_pending():
            if entry.ticket is not None:
                self.pending_bytes -= entry.size
                entry.ticket.fail(entry.position, MinkaError(code, f"partition {replica.id}: {reason}"))

    # Applying

    def _schedule(self, delay: float) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_later(delay, self._go_on)

    def _go_on(self) -> None:
        self._is_scheduled = False
        self._apply_queued()

    def _apply_queued(self) -> None:
        if self._closed:
            return
        until = self._clock() + _APPLY_SECONDS
        for _ in range(len(self._queue)):
            replica = self._queue.popleft()
            delay = self._apply_some(replica, until)
            if delay is None:
                self._node.apply_ended(replica)
                continue
            self._queue.append(replica)
            if delay or self._clock() >= until:
                self._schedule(delay)
                return
        if self._queue:
            self._schedule(0.0)

    def _apply_some(self, replica: HostedReplica, until: float) -> float | None:
        """Apply entries until the time `until`. Returns the seconds after which to go on; None if all committed entries
        are applied, or the rest can't be applied now.
        """
        state = replica.state
        while _can_apply(replica) and state.applied < state.high_watermark:
            if replica.data.is_closed:
                self._opening.begin(replica)  # applying goes on once the data is open
                return None
            try:
                state.take_over_data()
                if replica.data.is_stalled():
                    return _STALL_RETRY_SECONDS
                if state.applied >= state.high_watermark:
                    break
                mark = replica.next_mark()
                if replica.is_held_up:
                    return None  # applying goes on once the child is detached
                if mark is None:
                    self._applied(replica, replica.apply(_APPLY_KEYS))
                elif isinstance(mark, TrimToRange):
                    self._trim(replica, mark)
                else:
                    self._carry_out(replica, mark)
                    return None
            except Exception as error:  # noqa: BLE001 - neither the replica nor the node can go on
                if state.damage is None:
                    self._fail(replica, error)
                return None
            if self._clock() >= until:
                return 0.0
        return None

    def _trim(self, replica: HostedReplica, mark: TrimToRange) -> None:
        entry, removed_any = replica.apply_trim(mark)
        self._node.trimmed(replica, mark, removed_any=removed_any)
        self._applied(replica, [entry])

    def _carry_out(self, replica: HostedReplica, mark: Mark) -> None:
        """Begin to carry out a mark. The replica applies nothing until that is done."""
        marks, entry = self._marks, replica.pending[0]
        self._node.mark_begun(replica, self._clock())
        if isinstance(mark, SplitMarker):
            marks.splitting.make(replica, mark, entry)
        elif isinstance(mark, SnapshotMark):
            marks.snapshots.make(replica, mark, entry)
        else:
            assert isinstance(mark, IngestMark), mark
            assert marks.ingesting is not None, mark
            marks.ingesting.make(replica, mark, entry)

    def _applied(self, replica: HostedReplica, entries: list[Pending]) -> None:
        """These whole entries were applied: answer the clients that wait for them. Empty: a part of one was applied."""
        if not entries:
            self._flusher.applied(replica, 0)  # the data may have become large
            return
        now, size = self._clock(), sum([entry.size for entry in entries])
        self._node.applied(replica, entries[-1].offset, size, now)
        self._acknowledge(replica, entries, now)
        replica.note_applied(entries)
        self._flusher.applied(replica, size)
        self.wake_after_apply(replica)

    def wake_after_apply(self, replica: HostedReplica) -> None:
        """The replica has applied writes, or a mark: wake the parts that wait for that."""
        self._figures.note(replica.id)
        if replica.state.applied >= replica.state.ready_at:
            self._waits.notify(replica.id)
        self._compacting.compact_soon(replica)
        self.look_for_loads(replica)

    def look_for_loads(self, replica: HostedReplica) -> None:
        """Take in the part of a load that is due in this replica's partition, if there is one."""
        if self._marks.ingesting is not None:
            self._marks.ingesting.take_next(replica)

    def _acknowledge(self, replica: HostedReplica, entries: list[Pending], now: float) -> None:
        # A leader may acknowledge a committed write even without clearance. If another replica was elected meanwhile,
        # that replica was in sync, so its log has the write; and it serves nothing before it has applied its log. Only
        # an unclean election may lose the write.
        leads, traffic = replica.state.role is Role.LEADER, replica.load.traffic
        for entry in entries:
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

    def _fail(self, replica: HostedReplica, error: Exception) -> None:
        failure = error if isinstance(error, MinkaError) else MinkaError(Code.INTERNAL, f"applying: {error!r}")
        self.give_up(replica, Code.OUTCOME_UNKNOWN, str(failure))
        self._log_db.fail(failure)


def _can_apply(replica: HostedReplica) -> bool:
    state = replica.state
    return state.role is not Role.REMOVED and state.is_complete and state.damage is None
