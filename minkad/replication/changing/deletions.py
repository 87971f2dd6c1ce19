"""Deletes the replicas that the rows no longer give this node."""

import asyncio
from typing import Final
from weakref import WeakValueDictionary

from minka.v1.cluster_pb2 import Partition
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.process import tasks
from minkad.process.failpoints import failpoint
from minkad.replication.applying.flusher import Flusher
from minkad.replication.applying.hosted_replica import HostedReplica, meta_key
from minkad.replication.sending.checkpoint_receiver import CheckpointReceiver
from minkad.replication.surroundings import Surroundings

_AT_ONCE: Final = 4


class Deletions:
    """For the loop's thread."""

    def __init__(
        self,
        around: Surroundings,
        node: Node[HostedReplica],
        flusher: Flusher,
        receiver: CheckpointReceiver,
    ) -> None:
        self._node = node
        self._log_db = around.log_db
        self._store = around.store
        self._flusher = flusher
        self._receiver = receiver
        self._under_way: dict[int, asyncio.Task[None]] = {}  # by partition
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._folders: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()  # see `folder`

    def __contains__(self, partition_id: int) -> bool:
        """True if the partition's replica is being deleted."""
        return partition_id in self._under_way

    def folder(self, partition_id: int) -> asyncio.Lock:
        """Hold this lock while you read the folder of a partition without a replica, so that nobody removes the folder
        meanwhile: RocksDB would write its own log there, and so make the folder again.
        """
        return self._folders.setdefault(partition_id, asyncio.Lock())

    async def delete(self, row: Partition) -> None:
        """Delete everything that this node has of the partition, and return after that. Raises STORAGE_FAILED."""
        if row.id not in self._under_way:
            if row.id not in self._node.replicas and not self._store.exists(row.id):
                return
            task = tasks.awaited(self._delete(row), f"delete {row.id}")
            self._under_way[row.id] = task
            task.add_done_callback(lambda _: self._under_way.pop(row.id))
        await asyncio.shield(self._under_way[row.id])

    async def close(self) -> None:
        """Wait for the deletions that are under way."""
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def _delete(self, row: Partition) -> None:
        async with self._slots:
            replica = self._node.replicas.get(row.id)
            if replica is not None:
                await replica.data.detach_children()
                async with replica.lock:
                    await replica.data.detach_children()  # a split may have made another child before that
                    await self.delete_replica(replica)
            await self._receiver.discard(row.id)
            async with self.folder(row.id):
                await self._store.remove(row.id)
            self._node.shared.failed.pop(row.id, None)

    @failpoint("replica.delete")
    async def delete_replica(self, replica: HostedReplica) -> None:
        """Remove the replica's meta and log, durably. After that, a crash is harmless: a folder without meta serves
        nothing.
        """
        assert replica.state.role is Role.REMOVED, f"partition {replica.id} is to be deleted as {replica.state.role}"
        self._flusher.forget(replica)
        replica.drop_pending()
        replica.log.reset(0, 0)
        self._log_db.delete(meta_key(replica.id))
        await self._log_db.sync()
        await replica.data.close()
        self._node.remove(replica)
