"""Frees disk space while the disk is low: compactions remove deleted and overwritten values at once. When the disk
becomes low, the log that is kept for copies is given up.
"""

import asyncio
import logging
from typing import Final

from minka.errors import MinkaError
from minkad.core.replication.copy_logs import NONE
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.replication.applying.flusher import Flusher
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.background_task import BackgroundTask
from minkad.replication.surroundings import Surroundings

log: Final = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
_LEAST_BYTES: Final = 1024 * 1024  # a compaction that frees less than this, or
_LEAST_SHARE: Final = 0.1  # less than this share of a partition's tables, isn't worth it


class Reclaiming(BackgroundTask):
    """Compacts one partition at a time, the one with the greatest gain. A compaction writes new tables before it
    removes the old ones; a partition whose new tables don't fit waits until other compactions have freed space.
    """

    def __init__(self, around: Surroundings, node: Node[HostedReplica], flusher: Flusher) -> None:
        super().__init__("reclaiming", self._run, around.log_db.fail)
        self._replicas: Final = node.replicas
        self._disk = around.disk
        self._flusher = flusher
        self._was_low = False

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            was_low, self._was_low = self._was_low, self._disk.is_low
            if not self._was_low:
                continue
            if not was_low:  # once is enough: the log hardly grows from now on, since only deletes are accepted
                self._flusher.bound_copies(NONE)
            replica = max(self._replicas.values(), key=self._gain, default=None)
            if replica is None or not self._gain(replica):
                continue
            try:
                await self._flusher.flush(replica)
                await replica.data.compact()
            except MinkaError as error:
                log.info("no room was made", extra={"partition": replica.id, "reason": str(error)})

    def _gain(self, replica: HostedReplica) -> int:
        """About the number of bytes that a compaction would free; 0 if it isn't worth it, or its tables don't fit."""
        data = replica.data
        if not data.is_known or replica.state.role is Role.REMOVED or replica.state.is_receiving:
            return 0
        size, at_most = data.size().bytes, data.size_at_most().bytes
        gain = at_most - size
        is_worth_it = gain >= max(_LEAST_BYTES, _LEAST_SHARE * at_most)
        return gain if is_worth_it and 2 * size < self._disk.space.free_bytes else 0
