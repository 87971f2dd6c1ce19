"""The traffic and size of a node's replicas in each interval, for the history of its load."""

from collections.abc import Mapping
from typing import Final

from minka.wire.history_rows import NO_LATENCY, PartitionInterval
from minkad.core.replication.replica_state import Role
from minkad.core.state import range_of
from minkad.process.turns import turn
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.reading.replica_load import Traffic
from minkad.storage.size_estimate import Size

_AT_ONCE: Final = 500  # replicas looked at before other tasks get a turn
_CHANGED_SHARE: Final = 16  # a size is reported when it has changed by more than 1/16
_QUIET: Final = Traffic()


class Intervals:
    """For the loop's thread. The last interval of a replica that is removed is lost."""

    def __init__(self, replicas: Mapping[int, HostedReplica]) -> None:
        self._replicas = replicas
        self._told: dict[int, int] = {}  # bytes by partition id

    async def take(self, *, whole: bool) -> list[PartitionInterval]:
        """The rows of the replicas that have answered clients or changed in size since the last call. With `whole`,
        also the rows of all others that have data.
        """
        self._told = {id_: size for id_, size in self._told.items() if id_ in self._replicas}
        found: list[PartitionInterval] = []
        for number, replica in enumerate(list(self._replicas.values()), 1):
            if number % _AT_ONCE == 0:
                await turn()
            traffic, size, told = replica.load.take_traffic(), owned_size(replica), self._told.get(replica.id, 0)
            has_changed = abs(size.bytes - told) > max(told, size.bytes) // _CHANGED_SHARE
            if traffic is not None or has_changed or (whole and size.bytes):
                self._told[replica.id] = size.bytes
                found.append(_interval(replica, traffic or _QUIET, size))
        return found


def owned_size(replica: HostedReplica) -> Size:
    """The size of the replica's data without the part that belongs to another partition since a split; the size is an
    estimate then.
    """
    size = replica.data.size()
    if not replica.state.trim.has_foreign:
        return size
    share = replica.data.share(range_of(replica.state.row))
    return Size(int(size.bytes * share), int(size.keys * share))


def _interval(replica: HostedReplica, traffic: Traffic, size: Size) -> PartitionInterval:
    return PartitionInterval(
        partition_id=replica.id,
        keyspace_id=replica.state.row.keyspace_id,
        leads=replica.state.role is Role.LEADER,
        reads=traffic.reads,
        writes=traffic.writes,
        bytes_read=traffic.bytes_read,
        bytes_written=traffic.bytes_written,
        bytes=size.bytes,
        keys=size.keys,
        reads_took=traffic.reads_took or NO_LATENCY,
        writes_took=traffic.writes_took or NO_LATENCY,
    )
