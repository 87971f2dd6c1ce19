"""Flushes of the data: they bound the memory, the length of the log, and the replay after a crash."""

import asyncio
import logging
from typing import Final

from minka.errors import Code, MinkaError
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.process import tasks
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.storage.data_database import DataDatabase
from minkad.storage.log_database import LogDatabase

log: Final = logging.getLogger(__name__)

_AT_ONCE: Final = 2
_KEPT_SHARE: Final = 0.9  # of the bytes that may be unflushed; reached by each flush for room


class Flusher:
    """A replica is flushed after `flush_bytes` of bodies were applied to it since its last flush, or when too much of
    it is in memory alone. When all replicas together have more than `total_bytes`, those with the most are flushed.
    """

    def __init__(self, node: Node[HostedReplica], log_db: LogDatabase, flush_bytes: int, total_bytes: int) -> None:
        self._node = node
        self._log_db = log_db
        self._replicas: Final = node.replicas
        self._copies_at_once = node.shared.settings.concurrent_shipping
        self._flush_bytes = flush_bytes
        self._total_bytes = total_bytes
        self._total = 0
        self._flushing: set[int] = set()  # the partitions whose flush was begun here
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: set[asyncio.Task[None]] = set()  # those that wait for a database

    def applied(self, replica: HostedReplica, size: int) -> None:
        """`size` bytes of bodies were applied to the replica."""
        replica.unflushed += size
        self._total += size
        if replica.unflushed >= self._flush_bytes or replica.data.is_large:
            self._start(replica)
        elif self._total > self._total_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Begin to flush the replicas with the most, down to a share of the limit, so that the next look at all of them
        is a while off.
        """
        waiting = [one for one in self._replicas.values() if one.unflushed and one.id not in self._flushing]
        for replica in sorted(waiting, key=lambda replica: replica.unflushed, reverse=True):
            if self._total <= _KEPT_SHARE * self._total_bytes:
                return
            self._start(replica)

    def forget(self, replica: HostedReplica) -> None:
        """Count nothing of the replica as unflushed: it is about to be flushed, or is gone."""
        self._total -= replica.unflushed
        replica.unflushed = 0

    async def flush(self, replica: HostedReplica) -> None:
        """Flush the replica's data, and trim its log. Raises STORAGE_FAILED."""
        self.forget(replica)
        if not replica.data.is_open:
            return
        data = replica.data
        if replica.state.trim.has_foreign:  # after the flush, a restart doesn't apply the mark that says so again
            replica.stage_meta(self._log_db)
            await self._log_db.sync()
        else:
            await replica.log_first()
        try:
            applied = await data.flush()
        except MinkaError as error:
            if error.code is Code.SHUTTING_DOWN:
                return  # it was deleted, or its data was replaced, before there was a database to flush
            raise
        if not replica.still_has(data):
            return  # its data was replaced meanwhile
        self._node.flushed(replica, applied.offset)
        replica.stage_meta(self._log_db)  # it also has the size
        self.bound_copies(self._copies_at_once)

    def bound_copies(self, at_once: int) -> None:
        """Bound the log that is kept for copies: see `CopyLogs.bound`."""
        for replica in self._node.bound_copy_logs(at_once):
            replica.stage_meta(self._log_db)

    async def close(self) -> None:
        """Wait for the flushes that are under way. Data that waits for a database stays in the log."""
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open(self, data: DataDatabase) -> None:
        """Wait for the database without holding a slot: databases with the most data are made first."""
        task = asyncio.current_task()
        assert task is not None
        self._opening.add(task)
        try:
            await data.open()
        finally:
            self._opening.discard(task)

    def _start(self, replica: HostedReplica) -> None:
        if replica.id in self._flushing:
            return
        self._flushing.add(replica.id)
        self.forget(replica)
        task = tasks.start(self._flush(replica), f"flush {replica.id}", replica.broke)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush(self, replica: HostedReplica) -> None:
        try:
            if replica.data.in_memory and replica.state.role is not Role.REMOVED:
                await self._open(replica.data)
            async with self._slots:
                if self._replicas.get(replica.id) is replica and replica.state.role is not Role.REMOVED:
                    await self.flush(replica)
        except MinkaError as error:
            if error.code is Code.SHUTTING_DOWN:
                return  # it was deleted or replaced meanwhile
            log.error("a partition could not be flushed", extra={"partition": replica.id, "reason": str(error)})
            if error.code is not Code.CORRUPT_DATA:  # damage concerns this partition alone: see damage.py
                self._log_db.fail(error)
        finally:
            self._flushing.discard(replica.id)
