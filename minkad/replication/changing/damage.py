"""A replica with damaged data serves nothing; its data is made again where that is safe.

If its log still has everything that was ever written, the data is made from the log. Otherwise a follower tells its
leader, which takes it out of the in-sync set and sends a checkpoint; a leader lets another replica in sync lead, and
becomes a follower (`Leader`). The last replica in sync refuses every request with CORRUPT_DATA, but still sends its log
to the followers that can catch up with it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import DamagedReplica
from minkad.core.replication.replica_state import Copy, Role
from minkad.process import tasks
from minkad.replication.applying.committer import Committer
from minkad.replication.applying.hosted_replica import Replica
from minkad.replication.surroundings import Surroundings
from minkad.storage.data_database import DataDatabase

log: Final = logging.getLogger(__name__)

_MOST_FROM_LOG: Final = 3  # times for one partition since the node's start: a bad disk may damage it repeatedly


class Damage:
    """For the loop's thread."""

    def __init__(
        self,
        around: Surroundings,
        replicas: Mapping[int, Replica],
        committer: Committer,
        new_data: Callable[[int], DataDatabase],
        notify: Callable[[int], None],
    ) -> None:
        """`notify`: requests that wait for the partition look again."""
        self._replicas = replicas
        self._committer = committer
        self._store = around.store
        self._log_db = around.log_db
        self._new_data = new_data
        self._notify = notify
        self._on_found = around.observer.damage_found
        self._clock = around.clock
        self._found: set[int] = set()  # the partitions that may have damaged replicas
        self._from_log: Counter[int] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def found(self, partition_id: int) -> None:
        """The partition's data was found damaged."""
        self._found.add(partition_id)
        replica = self._replicas.get(partition_id)
        if replica is None or replica.damage is None or replica.role is Role.REMOVED or self._closing:
            return  # it was replaced meanwhile
        self._on_found()
        names = {"partition": partition_id, "role": replica.role.value, "reason": str(replica.damage)}
        is_in_log = replica.is_in_log and replica.copy is Copy.WHOLE
        if is_in_log and self._from_log[partition_id] < _MOST_FROM_LOG:
            self._from_log[partition_id] += 1
            replica.copy = Copy.REBUILDING
            log.error("a copy is damaged; it is made again from the log", extra=names)
            task = tasks.start(self._mend(replica), f"mending {partition_id}", lambda _: self._give_up(replica))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            log.error("a copy is damaged; nothing of it is served", extra=names)
            asyncio.get_running_loop().call_soon(self._give_up, replica)  # the finder is in the middle of work

    def all(self) -> list[DamagedReplica]:
        """The replicas on this node that are damaged and serve nothing, with the reason."""
        found: list[DamagedReplica] = []
        for partition_id in sorted(self._found):
            replica = self._replicas.get(partition_id)
            if replica is None or replica.damage is None:
                self._found.discard(partition_id)
            elif replica.role is not Role.REMOVED:
                found.append(DamagedReplica(partition_id=partition_id, reason=str(replica.damage)))
        return found

    async def close(self) -> None:
        """Wait for what is under way, and begin nothing more."""
        self._closing = True
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _give_up(self, replica: Replica) -> None:
        if replica.damage is None:
            return
        self._committer.give_up(replica, Code.OUTCOME_UNKNOWN, str(replica.damage))
        if replica.leader is not None:
            replica.leader.row_changed(self._clock())
        elif replica.follower is not None:
            replica.follower.needs_checkpoint()
        self._notify(replica.id)

    async def _mend(self, replica: Replica) -> None:
        try:
            async with replica.lock:
                if replica.damage is not None and replica.role is not Role.REMOVED and replica.is_in_log:
                    await replica.data.close()
                    await self._log_db.sync()  # a child that was attached to it is lost durably first
                    await self._store.remove(replica.id)
                    replica.replace_data(self._new_data(replica.id))
        except MinkaError as error:
            log.error("a copy could not be mended", extra={"partition": replica.id, "reason": str(error)})
        finally:
            if replica.copy is Copy.REBUILDING:
                replica.copy = Copy.WHOLE
        if replica.damage is not None:
            self._give_up(replica)
            return
        replica.advance()
        self._notify(replica.id)
