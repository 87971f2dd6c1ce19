"""After a split each half still has the other's data on disk, which nobody reads: it is removed in the background."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from minka.errors import Code, MinkaError
from minka.ranges import KeyRange
from minkad.shard.replica import Replica, Role
from minkad.storage.log_database import LogDatabase

log: Final = logging.getLogger(__name__)


class Trimming:
    """One replica at a time, since it rewrites what is on both sides of a bound."""

    def __init__(self, log_db: LogDatabase, done: Callable[[Replica], None]) -> None:
        self._log_db = log_db
        self._done = done
        self._waiting: dict[int, Replica] = {}
        self._task: asyncio.Task[None] | None = None

    def look(self, replica: Replica) -> None:
        """The replica has another row, or other data."""
        if not replica.untrimmed or replica.row.splitting or replica.role not in (Role.LEADER, Role.FOLLOWER):
            return
        self._waiting[replica.id] = replica
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="trimming")

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
                    await self._trim(replica)
                except MinkaError as error:
                    if error.code is Code.SHUTTING_DOWN:
                        continue  # it was deleted or replaced meanwhile
                    names = {"partition": replica.id, "reason": str(error)}
                    log.error("a partition could not be trimmed", extra=names)
                    self._log_db.fail(error)
        finally:
            self._task = None

    async def _trim(self, replica: Replica) -> None:
        row, data = replica.row, replica.data
        if row.splitting or replica.making or not replica.complete or replica.role is Role.REMOVED:
            return  # another row comes
        if replica.is_async:
            await self._log_db.sync()  # the data must not be durable before the log
        if data.exists():
            replica.open()
            await data.trim(KeyRange(row.start_key, row.end_key))
        if replica.data is data and (replica.row.start_key, replica.row.end_key) == (row.start_key, row.end_key):
            replica.untrimmed = False
            replica.stage_meta(self._log_db)
            self._done(replica)
