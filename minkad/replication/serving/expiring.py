"""Removes expired rows in the background. Even before that, nobody sees them: see `Requests`.

The leader of a partition knows which of its keys expire next. To find those from before its leadership, it reads its
rows once, page by page, and only if a row with an expiry was ever written. It removes nothing while its node's clock is
unchecked: after a start the clock may be an hour ahead.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from heapq import heappop, heappush, nsmallest
from typing import Final

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import Group, Op
from minka.wire.stored_values import expiry_of
from minkad.core.replication.replica_state import Role
from minkad.core.replication.replica_storage import DeletedAheadError
from minkad.process.turns import turn
from minkad.replication.applying.hosted_replica import Replica
from minkad.replication.background_task import BackgroundTask
from minkad.replication.serving.routing import Routing
from minkad.replication.serving.writing import Writing
from minkad.replication.surroundings import Surroundings

log: Final = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 5.0  # between looks at all replicas; also the longest time between looks at what expires
_LOOKED_AT_ONCE: Final = 500  # replicas, before other tasks get a turn
_UNCHECKED_SECONDS: Final = 0.2  # until the next look whether the clock is checked
_STEP_SECONDS: Final = 0.05  # between two pages of one partition, or two removals
_MAX_KNOWN: Final = 10_000  # keys of a partition, those that expire next
_REMOVED_AT_ONCE: Final = 1000
_PAGE_ROWS: Final = 1000
_PAGE_BYTES: Final = 256 * 1024
_MAX_PASSED: Final = 20_000
_PAGE_SECONDS: Final = 0.002
# Another node leads, or this one can't write for now: both pass.
_EXPECTED: Final = frozenset(
    {
        Code.NOT_LEADER,
        Code.STALE_GENERATION,
        Code.NO_CLEARANCE,
        Code.NOT_ENOUGH_REPLICAS,
        Code.DEADLINE_EXCEEDED,
        Code.SHUTTING_DOWN,
    }
)


class _Schedule:
    """The keys of a partition that expire next, as long as this node leads it at this epoch."""

    def __init__(self, leader_epoch: int, *, sweeps: bool) -> None:
        self.leader_epoch = leader_epoch
        self.next_key: bytes | None = b"" if sweeps else None  # of the sweep through all rows, if there is one
        self._known: list[tuple[int, bytes]] = []  # a heap
        self._is_all = True

    def add(self, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
        """Add the rows that expire."""
        for key, row in zip(keys, rows, strict=True):
            if row is not None and (expires_ms := expiry_of(row)):
                heappush(self._known, (expires_ms, key))
        if len(self._known) > 2 * _MAX_KNOWN:
            self._known = nsmallest(_MAX_KNOWN, self._known)
            self._is_all = False

    def due(self, now_ms: int) -> list[bytes]:
        """Take out keys that have expired."""
        keys: list[bytes] = []
        while self._known and self._known[0][0] <= now_ms and len(keys) < _REMOVED_AT_ONCE:
            keys.append(heappop(self._known)[1])
        if not self._known and not self._is_all and self.next_key is None:
            self.next_key, self._is_all = b"", True
        return keys

    def wait(self, now_ms: int) -> float:
        """The seconds until the next look."""
        if self.next_key is not None:
            return _STEP_SECONDS
        return max(_STEP_SECONDS, (self._known[0][0] - now_ms) / 1000) if self._known else _LOOK_SECONDS


class Expiring(BackgroundTask):
    """For the loop's thread."""

    def __init__(
        self,
        around: Surroundings,
        replicas: Mapping[int, Replica],
        routing: Routing,
        writing: Writing,
        open_data: Callable[[Replica], Awaitable[None]],
    ) -> None:
        super().__init__("expiry", self._run, around.log_db.fail)
        self._replicas = replicas
        self._routing = routing
        self._writing = writing
        self._open_data = open_data
        self._unix_ms = around.unix_ms
        self._clock_is_checked = around.clock_is_checked
        self._schedules: dict[int, _Schedule] = {}  # by partition
        self._is_changed = asyncio.Event()

    def written(self, replica: Replica, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
        """Operations have appended these rows."""
        if any(row is not None and expiry_of(row) for row in rows):
            self._schedule_of(replica).add(keys, rows)
            self._is_changed.set()

    def _schedule_of(self, replica: Replica) -> _Schedule:
        epoch = replica.row.leader_epoch
        schedule = self._schedules.get(replica.id)
        if schedule is None or schedule.leader_epoch != epoch:
            schedule = self._schedules[replica.id] = _Schedule(epoch, sweeps=replica.data.may_expire)
        return schedule

    async def _run(self) -> None:
        while True:
            await self._look_at_all()
            until = asyncio.get_running_loop().time() + _LOOK_SECONDS
            while (left := until - asyncio.get_running_loop().time()) > 0:
                self._is_changed.clear()
                wait = _UNCHECKED_SECONDS
                if self._clock_is_checked():
                    for partition_id in list(self._schedules):
                        await self._step(partition_id)
                    wait = min((one.wait(self._unix_ms()) for one in self._schedules.values()), default=left)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._is_changed.wait(), min(wait, left))

    async def _look_at_all(self) -> None:
        """Find the replicas that lead and may have rows that expire."""
        for number, replica in enumerate(list(self._replicas.values()), 1):
            if replica.role is Role.LEADER and replica.data.may_expire:
                self._schedule_of(replica)
            if number % _LOOKED_AT_ONCE == 0:
                await turn()

    async def _step(self, partition_id: int) -> None:
        """Read the next page of a sweep, and remove what is due."""
        replica, schedule = self._replicas.get(partition_id), self._schedules[partition_id]
        is_led = replica is not None and replica.role is Role.LEADER
        if replica is None or not is_led or replica.row.leader_epoch != schedule.leader_epoch:
            del self._schedules[partition_id]
            return
        due = schedule.due(self._unix_ms())
        if not due and schedule.next_key is None:
            return
        try:
            if replica.data.is_closed:
                await self._open_data(replica)
            if schedule.next_key is not None:
                await self._sweep(replica, schedule, schedule.next_key)
            if due:
                self._remove(replica, due)
        except MinkaError as error:
            del self._schedules[partition_id]  # the next look at all replicas starts over
            if error.code not in _EXPECTED:
                names = {"partition": replica.id, "reason": str(error)}
                log.warning("expired keys are not removed for now", extra=names)
        await turn()

    async def _sweep(self, replica: Replica, schedule: _Schedule, start: bytes) -> None:
        end = replica.row.end_key
        try:
            keys, rows, is_all = replica.data.stored_page(
                start, end, False, _PAGE_ROWS, _PAGE_BYTES, _MAX_PASSED, _PAGE_SECONDS
            )
        except DeletedAheadError:
            await replica.log_first()
            await replica.data.clear(KeyRange(start, end), False)
            return
        schedule.add(keys, rows)
        schedule.next_key = None if is_all else keys[-1] + b"\x00"

    def _remove(self, replica: Replica, keys: list[bytes]) -> None:
        """Raises the refusal; DEADLINE_EXCEEDED if writes have to wait for now."""
        asked = Group(Op.OPERATE, replica.id, replica.row.generation, b"")
        if self._routing.leader(asked) is not replica or replica.data.is_closed:
            raise self._routing.timed_out(asked)
        self._writing.remove_expired(replica, keys, None)
