"""What a replica has outside of its partition's range, since a split or a merge that was given up, is removed.

The leader says so in the log, so that all replicas remove it at the same place: a merge brings keys into the data
before the range has them, and those have to stay.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from minka.errors import Code, MinkaError
from minka.ranges import KeyRange
from minka.v1.cluster_pb2 import Partition
from minkad.core.state import range_of
from minkad.process.failpoints import failpoint
from minkad.replication.committer import Committer
from minkad.replication.entries import Keep, encode_mark
from minkad.replication.replica import Pending, Replica, Role
from minkad.storage.data_database import DataDatabase
from minkad.storage.log_database import LogDatabase

log: Final = logging.getLogger(__name__)


class Trimming:
    """Compacts one replica at a time, since that rewrites what is on both sides of a bound."""

    def __init__(self, log_db: LogDatabase, committer: Committer, done: Callable[[Replica], None]) -> None:
        self._log_db = log_db
        self._committer = committer
        self._done = done
        self._waiting: dict[int, Replica] = {}
        self._task: asyncio.Task[None] | None = None

    def look(self, replica: Replica) -> None:
        """The replica has another row, or is further than before."""
        if replica.kept is not None:
            self._waiting[replica.id] = replica
            if self._task is None:
                self._task = asyncio.create_task(self._run(), name="trimming")
        elif replica.untrimmed and not replica.keeping and replica.is_ready and not _is_changing(replica.row):
            self.keep(replica, range_of(replica.row))

    def keep(self, replica: Replica, kept: KeyRange) -> None:
        """The leader's log says from here on which keys stay."""
        replica.keeping = True
        mark = Keep(*kept)
        body, epoch = encode_mark(mark), replica.row.leader_epoch
        offset = replica.log.append(epoch, body)
        replica.pending.append(Pending(offset, epoch, mark, len(body), None, 0))
        self._committer.staged(replica, is_barrier=True)

    async def close(self) -> None:
        """Finish what is under way, and begin nothing more."""
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

    async def _compact(self, replica: Replica) -> None:
        """Free the room of what was removed."""
        kept, data = replica.kept, replica.data
        if kept is None or not data.is_open or replica.role is Role.REMOVED:
            return
        if replica.is_async:
            await self._log_db.sync()  # the data is flushed, and must not be durable before the log
        await self._free(data, kept)
        if not replica.still_has(data) or replica.kept != kept:
            return  # what is staged of a deleted one would be a replica again at the next start
        replica.kept = None
        row = replica.row
        if kept == range_of(row) and not _is_changing(row):
            replica.untrimmed = False
            replica.stage_meta(self._log_db)
        self._done(replica)

    @staticmethod
    @failpoint("trim.compact")
    async def _free(data: DataDatabase, kept: KeyRange) -> None:
        await data.compact_outside(kept)


def _is_changing(row: Partition) -> bool:
    return bool(row.splitting or row.merge_from)
