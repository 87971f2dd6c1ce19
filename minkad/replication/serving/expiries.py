"""Knows, for each partition that this node leads, the keys that expire next."""

import asyncio
from collections.abc import Sequence
from heapq import heappop, heappush, nsmallest
from typing import Final

from minka.wire.stored_values import expiry_of
from minkad.replication.applying.hosted_replica import HostedReplica

LOOK_SECONDS: Final = 5.0  # between looks at all replicas; also the longest time between looks at one schedule
_STEP_SECONDS: Final = 0.05  # between two pages of one partition's sweep, or two removals
_MAX_KNOWN: Final = 10_000  # at most twice this many keys of a partition are known
_REMOVED_AT_ONCE: Final = 1000


class Schedule:
    """The keys of a partition that expire next, while this node leads the partition at one leader_epoch."""

    def __init__(self, leader_epoch: int, *, sweeps: bool) -> None:
        self.leader_epoch = leader_epoch
        self.next_key: bytes | None = b"" if sweeps else None  # the sweep through all rows goes on here; None: no sweep
        self._known: list[tuple[int, bytes]] = []  # a heap of (expiry in Unix milliseconds, key)
        self._is_all = True  # False: keys were dropped from `_known`, so a sweep follows once it is empty

    def add(self, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
        """Add the rows that expire."""
        for key, row in zip(keys, rows, strict=True):
            if row is not None and (expires_ms := expiry_of(row)):
                heappush(self._known, (expires_ms, key))
        if len(self._known) > 2 * _MAX_KNOWN:
            self._known = nsmallest(_MAX_KNOWN, self._known)
            self._is_all = False

    def due(self, now_ms: int) -> list[bytes]:
        """Take out keys that have expired, at most `_REMOVED_AT_ONCE`."""
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
        return max(_STEP_SECONDS, (self._known[0][0] - now_ms) / 1000) if self._known else LOOK_SECONDS


class Expiries:
    """For the loop's thread."""

    def __init__(self) -> None:
        self.schedules: dict[int, Schedule] = {}  # by partition
        self.is_changed = asyncio.Event()  # `written` has added keys, which may expire soon

    def written(self, replica: HostedReplica, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
        """Operations have appended these rows."""
        if any(row is not None and expiry_of(row) for row in rows):
            self.schedule_of(replica).add(keys, rows)
            self.is_changed.set()

    def schedule_of(self, replica: HostedReplica) -> Schedule:
        """The schedule of a replica that leads."""
        epoch = replica.state.row.leader_epoch
        schedule = self.schedules.get(replica.id)
        if schedule is None or schedule.leader_epoch != epoch:
            schedule = self.schedules[replica.id] = Schedule(epoch, sweeps=replica.data.may_expire)
        return schedule
