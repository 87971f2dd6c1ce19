"""Flushes data, to bound the memory, the length of the logs, and the replay after a crash."""

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
_KEPT_SHARE: Final = 0.9  # above the limit for all replicas, flush down to this share of the limit


class Flusher:
    """Flushes a replica once `flush_bytes` of entries were applied to it since its last flush, or once too much of its
    data is only in memory. When all replicas together have more than `total_bytes` unflushed, flushes those with the
    most.
    """

    def __init__(self, node: Node[HostedReplica], log_db: LogDatabase, flush_bytes: int, total_bytes: int) -> None:
        self._node = node
        self._log_db = log_db
        self._replicas: Final = node.replicas
        self._copies_at_once = node.shared.settings.concurrent_shipping
        self._flush_bytes = flush_bytes
        self._total_bytes = total_bytes
        self._total = 0  # the sum of `unflushed` of all replicas
        self._flushing: set[int] = set()  # the partitions whose flush `_start` has begun
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: set[asyncio.Task[None]] = set()  # those of `_tasks` that wait for a database

    def applied(self, replica: HostedReplica, size: int) -> None:
        """Entries with `size` bytes were applied to the replica."""
        replica.unflushed += size
        self._total += size
        if replica.unflushed >= self._flush_bytes or replica.data.is_large:
            self._start(replica)
        elif self._total > self._total_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Begin to flush the replicas with the most unflushed bytes, until 90 % of the limit is left: so the node soon
        needs no other look at all replicas.
        """
        waiting = [one for one in self._replicas.values() if one.unflushed and one.id not in self._flushing]
        for replica in sorted(waiting, key=lambda replica: replica.unflushed, reverse=True):
            if self._total <= _KEPT_SHARE * self._total_bytes:
                return
            self._start(replica)

    def forget(self, replica: HostedReplica) -> None:
        """Count nothing of the replica as unflushed: its flush is about to begin, or the replica is gone."""
        self._total -= replica.unflushed
        replica.unflushed = 0

    async def flush(self, replica: HostedReplica) -> None:
        """Flush the replica's data, and trim its log. Raises STORAGE_FAILED."""
        self.forget(replica)
        if not replica.data.is_open:
            return
        data = replica.data
        if replica.state.trim.has_foreign:  # from the flush on, only the meta tells a restart of foreign keys
            replica.stage_meta(self._log_db)
            await self._log_db.sync()
        else:
            await replica.log_first()
        try:
            applied = await data.flush()
        except MinkaError as error:
            if error.code is Code.SHUTTING_DOWN:
                return  # before there was a database, the replica was deleted, or its data was replaced
            raise
        if not replica.still_has(data):
            return  # its data was replaced meanwhile
        self._node.flushed(replica, applied.offset)
        replica.stage_meta(self._log_db)  # with the new base of the log, and the size
        self.bound_copies(self._copies_at_once)

    def bound_copies(self, at_once: int) -> None:
        """Bound the log that is kept for copies: see `CopyLogs.bound`."""
        for replica in self._node.bound_copy_logs(at_once):
            replica.stage_meta(self._log_db)

    async def close(self) -> None:
        """Wait for the flushes under way. Data that waits for a database isn't flushed: the log has its entries."""
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open(self, data: DataDatabase) -> None:
        """Wait for the database without a slot: databases are made in another order, those with the most data first."""
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
            if error.code is not Code.CORRUPT_DATA:  # damage concerns only this partition: see damage.py
                self._log_db.fail(error)
        finally:
            self._flushing.discard(replica.id)
