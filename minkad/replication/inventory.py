"""What a node has on its disks, counted by reading it, and the keys at which to split what it leads."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

from minka.errors import Code, MinkaError
from minka.ranges import KeyRange
from minka.v1.admin_pb2 import PartitionCount
from minka.v1.cluster_pb2 import Partition
from minkad.core.replication.state import Role
from minkad.replication.replica import Replica
from minkad.storage.replica_store import ReplicaStore
from minkad.storage.split_keys import split_keys

_MAX_PARTS: Final = 1000
_POLL_SECONDS: Final = 1.0


class Inventory:
    """For the loop's thread."""

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        store: ReplicaStore,
        changed: Callable[[int], asyncio.Future[None]],
    ) -> None:
        """`changed` is done when a partition's row or replica changes."""
        self._replicas = replicas
        self._store = store
        self._changed = changed

    async def count_keys(self, partition_ids: Collection[int]) -> list[PartitionCount]:
        """Count the keys on this node's disks by reading them; those of all partitions, also ones that it should not
        have, if none is named. A partition that is deleted meanwhile is left out. Raises CORRUPT_DATA, STORAGE_FAILED.
        """
        ids = partition_ids or sorted({*self._replicas, *self._store.partition_ids()})
        counts = []
        for id_ in ids:
            replica = self._replicas.get(id_)
            data = self._store.data(id_) if replica is None else replica.data
            row = Partition() if replica is None else replica.row
            try:
                if replica is not None and replica.log.base:
                    replica.check_data()  # raises if its folder is gone: that is not the same as an empty one
                size = await data.count(KeyRange(row.start_key, row.end_key))
            except MinkaError as error:
                if error.code is not Code.SHUTTING_DOWN:
                    raise
                continue  # it was deleted or replaced meanwhile
            if replica is None:
                await data.close()
            leads = replica is not None and replica.is_ready
            counts.append(
                PartitionCount(
                    partition_id=id_, keys=size.keys, bytes=size.bytes, leader=leads, generation=row.generation
                )
            )
        return counts

    async def split_keys(self, partition_id: int, parts: int) -> list[bytes]:
        """Keys that divide a partition that this node leads into so many parts of about the same bytes; see
        `minkad.storage.split_keys`. Raises UNKNOWN_PARTITION, NOT_LEADER, NO_SPLIT_KEY, INVALID_ARGUMENT.
        """
        if not 2 <= parts <= _MAX_PARTS:
            raise MinkaError(Code.INVALID_ARGUMENT, f"{parts} parts: 2 to {_MAX_PARTS} are possible")
        replica = self._replicas.get(partition_id)
        if replica is None:
            raise MinkaError(Code.UNKNOWN_PARTITION, f"this node has no partition {partition_id}")
        while replica.trim.has_foreign and replica.role is Role.LEADER:
            await asyncio.wait([self._changed(replica.id)], timeout=_POLL_SECONDS)
        if not replica.is_ready:
            text = f"partition {partition_id} is led by {replica.row.leader or 'nobody'}"
            raise MinkaError(Code.NOT_LEADER, text, partitions=[replica.row])
        await replica.log_first()
        keys = await split_keys(replica.data, parts)
        if not keys:
            raise MinkaError(Code.NO_SPLIT_KEY, f"partition {partition_id} has no two keys")
        return keys
