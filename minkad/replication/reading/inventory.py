"""Counts the keys on a node's disks by reading them, and finds keys at which the node's partitions can be split."""

import asyncio
from collections.abc import Collection
from typing import Final

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError, with_rows
from minka.v1.admin_pb2 import PartitionCount
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.changing.deletions import Deletions
from minkad.replication.serving.partition_waits import PartitionWaits
from minkad.replication.surroundings import Surroundings
from minkad.storage.split_keys import split_keys

_MAX_PARTS: Final = 1000
_POLL_SECONDS: Final = 1.0


class Inventory:
    """For the loop's thread."""

    def __init__(
        self, around: Surroundings, node: Node[HostedReplica], deletions: Deletions, waits: PartitionWaits
    ) -> None:
        self._replicas: Final = node.replicas
        self._store = around.store
        self._deletions = deletions
        self._waits = waits

    async def count_keys(self, partition_ids: Collection[int]) -> list[PartitionCount]:
        """Count the keys of these partitions on this node's disks by reading them. Without ids, count all partitions,
        including leftover folders. Leaves out a partition that isn't here, or is deleted meanwhile. Raises
        CORRUPT_DATA, STORAGE_FAILED.
        """
        counts = []
        for id_ in partition_ids or sorted({*self._replicas, *self._store.partition_ids()}):
            replica = self._replicas.get(id_)
            try:
                count = await (self._count_leftover(id_) if replica is None else self._count(replica))
            except MinkaError as error:
                if error.code is not Code.SHUTTING_DOWN:
                    raise
                continue  # the replica was deleted or replaced meanwhile
            if count is not None:
                counts.append(count)
        return counts

    async def _count(self, replica: HostedReplica) -> PartitionCount:
        row = replica.state.row
        if replica.log.base:
            replica.state.check_data()  # raises if the folder is gone: an empty count would be wrong
        size = await replica.data.count(KeyRange(row.start_key, row.end_key))
        return PartitionCount(
            partition_id=row.id,
            keys=size.keys,
            bytes=size.bytes,
            leader=replica.state.is_ready,
            generation=row.generation,
        )

    async def _count_leftover(self, partition_id: int) -> PartitionCount | None:
        """Count the keys of a folder that no replica uses, if there is one."""
        async with self._deletions.folder(partition_id):
            if not self._store.exists(partition_id) or partition_id in self._replicas:
                return None
            data = self._store.data(partition_id)
            try:
                size = await data.count()
            finally:
                await data.close()
        return PartitionCount(partition_id=partition_id, keys=size.keys, bytes=size.bytes)

    async def split_keys(self, partition_id: int, parts: int) -> list[bytes]:
        """Keys that divide a partition that this node leads into `parts` parts of about equal bytes; see
        `minkad.storage.split_keys`. Raises PARTITION_NOT_HERE, NOT_LEADER, NO_SPLIT_KEY, INVALID_ARGUMENT.
        """
        if not 2 <= parts <= _MAX_PARTS:
            raise MinkaError(Code.INVALID_ARGUMENT, f"{parts} parts: 2 to {_MAX_PARTS} are possible")
        replica = self._replicas.get(partition_id)
        if replica is None:
            raise MinkaError(Code.PARTITION_NOT_HERE, f"this node has no partition {partition_id}")
        while replica.state.trim.has_foreign and replica.state.role is Role.LEADER:
            await asyncio.wait([self._waits.changed(replica.id)], timeout=_POLL_SECONDS)
        if not replica.state.is_ready:
            text = f"partition {partition_id} is led by {replica.state.row.leader or 'nobody'}"
            raise with_rows(MinkaError(Code.NOT_LEADER, text), [replica.state.row])
        await replica.log_first()
        keys = await split_keys(replica.data, parts)
        if not keys:
            raise MinkaError(Code.NO_SPLIT_KEY, f"partition {partition_id} has no two keys")
        return keys
