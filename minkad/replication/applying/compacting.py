"""Frees the disk space of the keys outside of a partition's range that a replica has removed, after a split or an
abandoned merge.

The mark `TrimToRange` makes all replicas remove such keys at the same place of the log. A replica can't remove them by
its row alone: a merge copies keys into the data before these keys are in the range, and they have to stay.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.process import tasks
from minkad.process.failpoints import failpoint
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.reading.changed_figures import ChangedFigures
from minkad.storage.data_database import DataDatabase
from minkad.storage.log_database import LogDatabase

log: Final = logging.getLogger(__name__)


class Compacting:
    """Compacts one replica at a time, since a compaction rewrites whole tables on both sides of the range's bounds."""

    def __init__(
        self,
        node: Node[HostedReplica],
        log_db: LogDatabase,
        clock: Callable[[], float],
        figures: ChangedFigures,
    ) -> None:
        self._node = node
        self._log_db = log_db
        self._clock = clock
        self._figures = figures
        self._waiting: dict[int, HostedReplica] = {}  # by partition, in the order of their turns
        self._task: asyncio.Task[None] | None = None  # while there is work

    def compact_soon(self, replica: HostedReplica) -> None:
        """Free the disk space of the removed keys, if there are any."""
        if replica.state.trim.removed_outside is not None:
            self._waiting[replica.id] = replica
            if self._task is None:
                self._task = tasks.start(self._run(), "trimming")

    async def close(self) -> None:
        """Finish the compaction under way, and begin no other."""
        self._waiting.clear()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while self._waiting:
                replica = self._waiting.pop(next(iter(self._waiting)))
                try:
                    await self._compact(replica)
                except MinkaError as error:
                    if error.code is Code.SHUTTING_DOWN:
                        continue  # it was deleted or replaced meanwhile
                    names = {"partition": replica.id, "reason": str(error)}
                    log.error("a partition could not be trimmed", extra=names)
                    if error.code is not Code.CORRUPT_DATA:
                        self._log_db.fail(error)
        finally:
            self._task = None

    async def _compact(self, replica: HostedReplica) -> None:
        kept, data = replica.state.trim.removed_outside, replica.data
        if kept is None or not data.is_open or replica.state.role is Role.REMOVED:
            return
        await replica.log_first()
        await self._free(data, kept)
        if not replica.still_has(data) or replica.state.trim.removed_outside != kept:
            return  # with the meta of a deleted replica, the next start would recover the replica
        if self._node.compacted(replica, kept, self._clock()):
            replica.stage_meta(self._log_db)
        self._figures.note(replica.id)

    @staticmethod
    @failpoint("trim.compact")
    async def _free(data: DataDatabase, kept: KeyRange) -> None:
        await data.compact_outside(kept)
