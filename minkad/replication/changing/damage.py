"""A replica with damaged data serves nothing. The node gets new data for the replica where that is safe:

- If the log still has all entries from the first on, the node makes the data again from the log.
- Otherwise a follower tells its leader, which takes the follower out of the in-sync set and sends it a checkpoint.
- Otherwise a leader lets another in-sync replica lead, and becomes its follower (`Leader`).
- The last replica in sync refuses every request with CORRUPT_DATA, but still sends its log to its followers.
"""

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import Final

from minka.errors import MinkaError
from minka.v1.coordinator_pb2 import DamagedReplica
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.process import tasks
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.surroundings import Surroundings
from minkad.storage.data_database import DataDatabase
from minkad.storage.size_estimate import Size

log: Final = logging.getLogger(__name__)

_MOST_FROM_LOG: Final = 3  # at most this often for one partition since the node's start: a bad disk may damage it again


class Damage:
    """For the loop's thread."""

    def __init__(self, around: Surroundings, node: Node[HostedReplica]) -> None:
        self._node = node
        self._store = around.store
        self._log_db = around.log_db
        self._on_found = around.observer.damage_found
        self._clock = around.clock
        self._found: set[int] = set()  # the partitions whose replicas here may be damaged
        self._from_log: Counter[int] = Counter()  # by partition: how often its data was made again from the log
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def new_data(self, partition_id: int, size: Size | None = None) -> DataDatabase:
        """Data for a replica of this partition; if damage is found in the data, the data calls `found`."""
        return self._store.data(partition_id, size, partial(self.found, partition_id))

    def found(self, partition_id: int) -> None:
        """The partition's data was found damaged, in the middle of other work. So only note it, and begin tasks."""
        self._found.add(partition_id)
        replica = self._node.replicas.get(partition_id)
        if replica is None or replica.state.damage is None or replica.state.role is Role.REMOVED or self._closing:
            return  # the data was replaced meanwhile, or isn't needed
        self._on_found()
        names = {"partition": partition_id, "role": replica.state.role.value, "reason": str(replica.state.damage)}
        if self._node.damaged(replica, self._clock(), may_rebuild=self._from_log[partition_id] < _MOST_FROM_LOG):
            self._from_log[partition_id] += 1
            log.error("a copy is damaged; it is made again from the log", extra=names)
            task = tasks.start(self._mend(replica), f"mending {partition_id}", lambda _: self._give_up(replica))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            log.error("a copy is damaged; nothing of it is served", extra=names)
            asyncio.get_running_loop().call_soon(self._give_up, replica)

    def all(self) -> list[DamagedReplica]:
        """The replicas on this node that are damaged and serve nothing, with the reason."""
        found: list[DamagedReplica] = []
        for partition_id in sorted(self._found):
            replica = self._node.replicas.get(partition_id)
            if replica is None or replica.state.damage is None:
                self._found.discard(partition_id)
            elif replica.state.role is not Role.REMOVED:
                found.append(DamagedReplica(partition_id=partition_id, reason=str(replica.state.damage)))
        return found

    async def close(self) -> None:
        """Wait for the work under way, and begin no other."""
        self._closing = True
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _give_up(self, replica: HostedReplica) -> None:
        if replica.state.damage is not None:
            self._node.given_up(replica, self._clock())

    async def _mend(self, replica: HostedReplica) -> None:
        state = replica.state
        try:
            async with replica.lock:
                if state.damage is not None and state.role is not Role.REMOVED and state.is_in_log:
                    await replica.data.close()
                    await self._log_db.sync()  # first record durably that attached children have lost their data
                    await self._store.remove(replica.id)
                    replica.slice_start = 0
                    self._node.data_emptied(replica, self.new_data(replica.id), self._clock())
        except MinkaError as error:
            log.error("a copy could not be mended", extra={"partition": replica.id, "reason": str(error)})
        finally:
            self._node.rebuilding_ended(replica, self._clock())
