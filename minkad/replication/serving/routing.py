"""Finds the replica of this node that serves a request, or the reason why no replica does."""

import asyncio
import math
from typing import Final

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError, with_rows
from minka.v1.cluster_pb2 import Partition
from minka.wire.kv_frames import WRITING, Group, Op
from minkad.core.replication.gate import Gate
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import UNKNOWN_MIN_INSYNC, Copy, Role
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.serving.partition_waits import PartitionWaits
from minkad.replication.surroundings import Surroundings

POLL_SECONDS: Final = 0.1
"""The longest time between two looks whether a replica serves a waiting request."""


class Routing:
    """Decides by the rows that this node knows. A refusal carries the newest of these rows, so that the client knows
    where to send the request.
    """

    def __init__(self, around: Surroundings, node: Node[HostedReplica], waits: PartitionWaits) -> None:
        self._is_stopping = False  # `stop` was called
        self._node = node
        self._waits = waits
        self._replicas: Final = node.replicas
        self._table = around.table
        self._has_clearance = around.table.has_clearance
        self._clock = around.clock

    def stop(self) -> None:
        """From now on leaders refuse with SHUTTING_DOWN."""
        self._is_stopping = True
        self._waits.notify_all()

    def leader(self, group: Group) -> HostedReplica | None:
        """The replica that serves the group now. None: the group has to wait. Raises the refusal."""
        if self._is_stopping:
            raise MinkaError(Code.SHUTTING_DOWN, "the node is stopping")
        replica = self._replicas.get(group.partition_id)
        if not self._has_clearance():
            raise MinkaError(Code.NO_CLEARANCE, "this node has no clearance from the active controller")
        if replica is None or replica.state.role is not Role.LEADER or group.generation != replica.state.row.generation:
            self._check_row(group)
            return None
        gate = replica.state.gate.state
        if not replica.state.is_ready or gate is Gate.CLOSED_TO_READS:
            if replica.state.damage is not None and not self.may_be_mended(replica):
                raise replica.state.damage.with_traceback(None)
            return None
        if group.op in WRITING and (
            gate is not Gate.OPEN or (replica.state.min_insync != 1 and not self._has_enough_replicas(replica))
        ):
            return None
        if group.op == Op.OPERATE and replica.state.applied < replica.decidable_at:
            return None
        return replica

    async def serving(self, partition_id: int, generation: int, deadline: float) -> HostedReplica:
        """Wait until the replica here leads, serves this generation, and takes entries; then return it. `deadline` is a
        time of the loop's clock. Raises the refusal; DEADLINE_EXCEEDED.
        """
        group = Group(partition_id=partition_id, generation=generation, op=Op.READ, body=b"")
        while (replica := self.leader(group)) is None or replica.state.gate.state is not Gate.OPEN:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise self.timed_out(group)
            await asyncio.wait([self._waits.changed(partition_id)], timeout=min(left, POLL_SECONDS))
        replica.state.learn_keyspace()
        return replica

    def serves_now(self, replica: HostedReplica, generation: int, keys: list[bytes]) -> bool:
        """True if the replica answers a read of these keys, at this generation, at once. Makes only quick checks."""
        row = replica.state.row
        if (
            self._is_stopping
            or row.generation != generation
            or not replica.state.is_ready
            or replica.state.gate.state is Gate.CLOSED_TO_READS
            or replica.data.is_closed
        ):
            return False
        if not (row.start_key or row.end_key):
            return True
        return row.start_key <= min(keys) and (not row.end_key or max(keys) < row.end_key)

    def _has_enough_replicas(self, replica: HostedReplica) -> bool:
        """True if enough replicas are in sync for a write; False if this node doesn't know `min_insync` yet. Raises
        NOT_ENOUGH_REPLICAS.
        """
        if replica.state.min_insync == UNKNOWN_MIN_INSYNC:
            replica.state.learn_keyspace()
        in_sync = len(replica.state.row.isr)
        if in_sync < replica.state.min_insync:
            text = f"partition {replica.id} has {in_sync} of {replica.state.min_insync} replicas in sync"
            raise with_rows(MinkaError(Code.NOT_ENOUGH_REPLICAS, text), [replica.state.row])
        return replica.state.min_insync != UNKNOWN_MIN_INSYNC

    @staticmethod
    def may_be_mended(replica: HostedReplica) -> bool:
        """True if another replica, or this one once it is rebuilt, may serve the partition soon."""
        return replica.state.copy is Copy.REBUILDING or len(replica.state.row.isr) > 1

    def stale(self, group: Group) -> HostedReplica | None:
        """The replica here, if it knows the age of its data; a stale read needs no clearance. None: the group has to
        wait for a newer row. Raises the refusal.
        """
        replica = self._replicas.get(group.partition_id)
        if replica is None or replica.state.role is Role.REMOVED or group.generation != replica.state.row.generation:
            self._check_row(group)
            return None
        if replica.state.damage is not None and replica.state.copy is not Copy.REBUILDING:
            if len(replica.state.row.replicas) == 1:
                raise replica.state.damage.with_traceback(None)
            text = f"partition {replica.id}: this replica is damaged: {replica.state.damage}"
            raise with_rows(MinkaError(Code.AGE_UNKNOWN, text), [replica.state.row])
        if not self._knows_its_age(replica):
            raise self.age_unknown(replica)
        return replica

    @staticmethod
    def age_unknown(replica: HostedReplica) -> MinkaError:
        """The refusal of a stale read by a replica that doesn't know its age."""
        text = f"partition {replica.id}: this replica doesn't know how old its data is"
        return with_rows(MinkaError(Code.AGE_UNKNOWN, text), [replica.state.row])

    def answers_stale(self, replica: HostedReplica) -> bool:
        """True if this replica would answer a client's stale read now. Clients send these to replicas in sync."""
        return self._node.id in replica.state.row.isr and replica.state.damage is None and self._knows_its_age(replica)

    def _knows_its_age(self, replica: HostedReplica) -> bool:
        return replica.state.is_complete and not replica.state.is_receiving and self.age(replica) != math.inf

    def age(self, replica: HostedReplica) -> float:
        """The seconds since the replica was certainly up to date; infinite if it doesn't know."""
        return replica.state.age(self._clock())

    def _check_row(self, group: Group) -> None:
        """Raises the refusal, unless a newer row may make this node serve the group."""
        row = self._newest_row(group.partition_id)
        if row is None and self._table.is_gone(group.partition_id):
            text = f"partition {group.partition_id} is part of another one by now"
            raise MinkaError(Code.STALE_GENERATION, text)
        if row is None or group.generation > row.generation:
            return
        if group.generation < row.generation:
            text = f"partition {row.id} is at generation {row.generation}, the request is for {group.generation}"
            raise with_rows(MinkaError(Code.STALE_GENERATION, text), self.with_neighbour(row))
        if not row.leader:
            raise with_rows(MinkaError(Code.PARTITION_OFFLINE, f"partition {row.id} has no leader"), [row])
        if row.leader != self._node.id:
            text = f"partition {row.id} is led by {row.leader}"
            raise with_rows(MinkaError(Code.NOT_LEADER, text, leader=row.leader), [row])

    def _newest_row(self, partition_id: int) -> Partition | None:
        """The newest row of a partition that this node knows, with a replica here or without."""
        replica = self._replicas.get(partition_id)
        rows = [self._node.departed(partition_id), self._table.row(partition_id)]
        rows.append(replica.state.row if replica is not None else None)
        return max((row for row in rows if row is not None), key=lambda row: row.partition_epoch, default=None)

    def with_neighbour(self, row: Partition) -> list[Partition]:
        """The row, and the row of the partition that was last split off. In place of a merged partition's row, the
        result has the row of the partition that has its keys now.
        """
        rows = {one.id: one for one in map(self._remaining, (row, self._newest_row(row.split_to))) if one is not None}
        return list(rows.values())

    def _remaining(self, row: Partition | None) -> Partition | None:
        """The row; for a merged partition, the row of the partition that has its keys now."""
        while row is not None and row.merge_into and not row.replicas:
            row = self._newest_row(row.merge_into)
        return row

    def check_in_range(self, replica: HostedReplica, keys: list[bytes]) -> None:
        """Raises KEY_OUT_OF_RANGE for a key outside of the partition's range."""
        row = replica.state.row
        bounded = keys and (row.start_key or row.end_key)
        if bounded and (min(keys) < row.start_key or (row.end_key and max(keys) >= row.end_key)):
            text = f"partition {row.id} has the keys {KeyRange(row.start_key, row.end_key)}, and others are asked for"
            raise with_rows(MinkaError(Code.KEY_OUT_OF_RANGE, text), self.with_neighbour(row))

    def timed_out(self, group: Group) -> MinkaError:
        """The error for a group that this node could not serve in time, with the reason."""
        replica = self._replicas.get(group.partition_id)
        if replica is None:
            return MinkaError(Code.PARTITION_NOT_HERE, f"this node was not told of partition {group.partition_id}")
        if replica.state.damage is not None:
            return replica.state.damage
        generation = replica.state.row.generation
        what = f"its generation is {generation} here, the request is for {group.generation}"
        if generation == group.generation:
            what = replica.state.waits_for
        return MinkaError(Code.DEADLINE_EXCEEDED, f"partition {group.partition_id}: {what}; nothing was done")
