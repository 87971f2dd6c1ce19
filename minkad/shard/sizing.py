"""Partitions that have grown too large are proposed to be split (Key-Range Partitions, Patterns of Distributed Systems:
the split check).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import ProposeSplitRequest
from minkad.shard.context import KnownKeyspace
from minkad.shard.replica import Replica
from minkad.storage.log_database import LogDatabase

log: Final = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
_RECHECK_S: Final = 10.0


@dataclass(slots=True)
class _Checked:
    """When a partition was last measured, and what was found."""

    at: float
    bytes: int


class SizeCheck:
    """One partition at a time. What is known at no cost is never less than the true size, but may be more: older
    versions of overwritten keys count. So what seems too large is compacted first, outside of the GIL, and measured.
    """

    def __init__(
        self,
        node_id: str,
        replicas: Mapping[int, Replica],
        log_db: LogDatabase,
        known_keyspace: KnownKeyspace,
        split_keys: Callable[[int, int], Awaitable[list[bytes]]],
        propose: Callable[[ProposeSplitRequest], Awaitable[list[Partition]]],
        learn: Callable[[Partition], None],
        clock: Callable[[], float],
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._log_db = log_db
        self._known_keyspace = known_keyspace
        self._split_keys = split_keys
        self._propose = propose
        self._learn = learn
        self._clock = clock
        self._checked: dict[int, _Checked] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="size check")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("sizes can't be checked", exc_info=error)
            self._log_db.fail(MinkaError(Code.INTERNAL, f"{task.get_name()}: {error!r}"))

    async def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self._checked = {id_: checked for id_, checked in self._checked.items() if id_ in self._replicas}
            for replica in list(self._replicas.values()):
                limit = self._limit(replica)
                if limit and self._is_due(replica, limit):
                    try:
                        await self._check(replica, limit)
                    except MinkaError as error:
                        names = {"partition": replica.id, "reason": str(error)}
                        log.info("a large partition is not split yet", extra=names)

    def _limit(self, replica: Replica) -> int:
        """What it may have at most; 0: there is no limit, or it is not this node's to look."""
        row = replica.row
        if not replica.is_ready or row.splitting or replica.untrimmed or not replica.data.is_open:
            return 0
        if row.merge_from or row.merge_into:
            return 0
        keyspace = self._known_keyspace(replica.row.keyspace_id)
        return keyspace.max_bytes if keyspace is not None else 0

    def _is_due(self, replica: Replica, limit: int) -> bool:
        size, checked = replica.data.size().bytes, self._checked.get(replica.id)
        if size <= limit:
            replica.not_split = ""
            return False
        if checked is None:
            return True
        # Of what is only overwritten, not again at each write.
        return size - checked.bytes >= limit // 4 or self._clock() - checked.at >= _RECHECK_S

    async def _check(self, replica: Replica, limit: int) -> None:
        """Raises MinkaError; then it is looked at again later."""
        if replica.is_async:
            await self._log_db.sync()  # the data must not be durable before the log
        size = (await replica.data.compact()).bytes
        self._checked[replica.id] = _Checked(self._clock(), size)
        if size <= limit:
            return
        generation = replica.row.generation
        try:
            (key,) = await self._split_keys(replica.id, 2)
        except MinkaError as error:
            if error.code is Code.NO_SPLIT_KEY and not replica.not_split:
                replica.not_split = "too large, and no key divides it"
                log.warning("a partition is too large, and one key's", extra={"partition": replica.id, "bytes": size})
            raise
        request = ProposeSplitRequest(node_id=self._node_id, partition_id=replica.id, generation=generation, key=key)
        for row in await self._propose(request):
            self._learn(row)
        del self._checked[replica.id]
        log.info("a partition was too large", extra={"partition": replica.id, "bytes": size, "max": limit})
