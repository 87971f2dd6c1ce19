"""Makes the replicas of this node: new ones for new rows, and at the start those that are on disk."""

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minkad.core.replication.node import Node
from minkad.replication.applying.hosted_replica import HostedReplica, ReplicaMeta
from minkad.replication.applying.partition_log import PartitionLog
from minkad.replication.changing.damage import Damage
from minkad.replication.surroundings import Surroundings
from minkad.storage.data_database import DataDatabase
from minkad.storage.size_estimate import Size


class Hosting:
    """For the loop's thread."""

    def __init__(self, around: Surroundings, node: Node[HostedReplica], damage: Damage, change_bytes: int) -> None:
        """`change_bytes`: see `Retention`."""
        self._node = node
        self._damage = damage
        self._log_db = around.log_db
        self._clock = around.clock
        self._change_bytes = change_bytes

    def host(self, row: Partition) -> HostedReplica:
        """Make the replica of a partition that wasn't here before. Raises CORRUPT_DATA if its folder exists already."""
        data, failed = self.new_data(row.id), self._node.shared.failed
        if data.is_closed:
            text = f"{data.path} has data of which the log database knows nothing"
            failed[row.id] = MinkaError(Code.CORRUPT_DATA, text)
            raise failed[row.id]
        replica = self._replica(row, PartitionLog(self._log_db, row.id), data)
        self._node.add(replica)
        self._node.adopt(row, self._clock())
        return replica

    def recover(self, meta: ReplicaMeta, log_end: int, row: Partition) -> HostedReplica:
        """Make the replica of a partition that is on disk with this row. Its log ends at `log_end` (0: there are no
        entries). The replica serves nothing until the controller has sent its row. Raises CORRUPT_DATA,
        STORAGE_FAILED.
        """
        partition_log = PartitionLog(self._log_db, row.id, meta.base, meta.base_epoch)
        replica = self._replica(row, partition_log, self._damage.new_data(row.id, Size(meta.bytes, meta.keys)))
        replica.recover(meta, log_end)
        self._node.add(replica)
        return replica

    def new_data(self, partition_id: int) -> DataDatabase:
        """See `Damage.new_data`."""
        return self._damage.new_data(partition_id)

    def _replica(self, row: Partition, partition_log: PartitionLog, data: DataDatabase) -> HostedReplica:
        return HostedReplica(self._node.shared, row, partition_log, data, self._change_bytes)
