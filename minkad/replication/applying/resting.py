"""Closes unused databases when many are open. Open databases are a cache, and this is the algorithm CLOCK: look at each
database in turn, and close it if nobody has used it since the last look.
"""

import asyncio
import logging
from typing import Final

from minka.errors import Code, MinkaError
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Applying, Copy, Role
from minkad.process.turns import turn
from minkad.replication.applying.flusher import Flusher
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.background_task import BackgroundTask
from minkad.replication.surroundings import Surroundings

log: Final = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
_AT_ONCE: Final = 500  # replicas looked at before other tasks get a turn


class Resting(BackgroundTask):
    """Closes one database at a time."""

    def __init__(self, around: Surroundings, node: Node[HostedReplica], flusher: Flusher, most: int) -> None:
        """`most`: the number of databases that may stay open."""
        super().__init__("resting", self._run, around.log_db.fail)
        self._replicas: Final = node.replicas
        self._flusher = flusher
        self._store = around.store
        self._fail = around.log_db.fail
        self._most = most

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            if self._store.open_databases > self._most:
                await self._close_some()

    async def _close_some(self) -> None:
        for number, replica in enumerate(list(self._replicas.values()), 1):
            if number % _AT_ONCE == 0:
                await turn()
            if self._store.open_databases <= self._most:
                return
            if not replica.data.take_used() and _may_rest(replica):
                await self._close_one(replica)
                await turn()

    async def _close_one(self, replica: HostedReplica) -> None:
        data = replica.data
        try:
            async with replica.lock:
                await self._flusher.flush(replica)
                if replica.still_has(data):
                    await data.rest(lambda: replica.still_has(data) and _may_rest(replica))
        except MinkaError as error:
            if error.code is Code.STORAGE_FAILED:
                log.error("a database was not closed", extra={"partition": replica.id, "reason": str(error)})
                self._fail(error)


def _may_rest(replica: HostedReplica) -> bool:
    """True if no slow work is under way, or due, with the data."""
    is_changing = (
        replica.state.is_restructured
        or replica.state.trim.has_foreign
        or replica.state.trim.removed_outside is not None
    )
    is_usable = (
        replica.state.role is not Role.REMOVED and replica.state.copy is Copy.WHOLE and replica.state.damage is None
    )
    return is_usable and not is_changing and replica.state.applying is Applying.IDLE
