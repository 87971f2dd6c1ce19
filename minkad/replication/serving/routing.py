"""Finds the replica of this node that serves a request, or the reason why none does."""

import math
from collections.abc import Callable, Mapping

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError, with_rows
from minka.v1.cluster_pb2 import Partition
from minka.wire.kv_frames import WRITING, Group, Op
from minkad.core.replication.gate import Gate
from minkad.core.replication.replica_state import UNKNOWN_MIN_INSYNC, Copy, Role
from minkad.replication.applying.hosted_replica import Replica
from minkad.replication.sending.replication_receiver import ReplicationReceiver
from minkad.replication.surroundings import Surroundings


class Routing:
    """Decides by the rows that this node knows. A refusal has the newest of them, so that the client knows
    where to go.
    """

    def __init__(
        self,
        around: Surroundings,
        replicas: Mapping[int, Replica],
        receiver: ReplicationReceiver,
        newest_row: Callable[[int], Partition | None],
    ) -> None:
        """`newest_row`: the newest row of a partition that this node knows, with a replica here or without."""
        self._is_stopping = False
        self._node_id = around.node_id
        self._replicas = replicas
        self._receiver = receiver
        self._table = around.table
        self._has_clearance = around.table.has_clearance
        self._clock = around.clock
        self._newest_row = newest_row

    def stop(self) -> None:
        """From now on leaders refuse with SHUTTING_DOWN."""
        self._is_stopping = True

    def leader(self, group: Group) -> Replica | None:
        """The replica that serves the group now, or None if that isn't known yet. Raises the refusal."""
        if self._is_stopping:
            raise MinkaError(Code.SHUTTING_DOWN, "the node is stopping")
        replica = self._replicas.get(group.partition_id)
        if not self._has_clearance():
            raise MinkaError(Code.NO_CLEARANCE, "this node has no clearance from the active controller")
        if replica is None or replica.role is not Role.LEADER or group.generation != replica.row.generation:
            self._check_row(group)
            return None
        gate = replica.gate.state
        if not replica.is_ready or gate is Gate.CLOSED_TO_READS:
            if replica.damage is not None and not self.may_be_mended(replica):
                raise replica.damage.with_traceback(None)
            return None
        if group.op in WRITING and (
            gate is not Gate.OPEN or (replica.min_insync != 1 and not self._has_enough_replicas(replica))
        ):
            return None
        if group.op == Op.OPERATE and replica.applied < replica.decidable_at:
            return None
        return replica

    def serves_now(self, replica: Replica, generation: int, keys: list[bytes]) -> bool:
        """True if the replica answers a read of these keys of this generation at once; makes only quick checks."""
        row = replica.row
        if (
            self._is_stopping
            or row.generation != generation
            or not replica.is_ready
            or replica.gate.state is Gate.CLOSED_TO_READS
            or replica.data.is_closed
        ):
            return False
        if not (row.start_key or row.end_key):
            return True
        return row.start_key <= min(keys) and (not row.end_key or max(keys) < row.end_key)

    def _has_enough_replicas(self, replica: Replica) -> bool:
        """True if enough replicas are in sync for a write; False if the number needed isn't known yet. Raises
        NOT_ENOUGH_REPLICAS.
        """
        if replica.min_insync == UNKNOWN_MIN_INSYNC:
            replica.learn_keyspace()
        in_sync = len(replica.row.isr)
        if in_sync < replica.min_insync:
            text = f"partition {replica.id} has {in_sync} of {replica.min_insync} replicas in sync"
            raise with_rows(MinkaError(Code.NOT_ENOUGH_REPLICAS, text), [replica.row])
        return replica.min_insync != UNKNOWN_MIN_INSYNC

    @staticmethod
    def may_be_mended(replica: Replica) -> bool:
        """True if the partition may be served again in a moment, by another replica or by this one."""
        return replica.copy is Copy.REBUILDING or len(replica.row.isr) > 1

    def stale(self, group: Group) -> Replica | None:
        """The replica here, if it knows the age of its data; it needs no clearance. None if there may be one later.
        Raises the refusal.
        """
        replica = self._replicas.get(group.partition_id)
        if replica is None or replica.role is Role.REMOVED or group.generation != replica.row.generation:
            self._check_row(group)
            return None
        if replica.damage is not None and replica.copy is not Copy.REBUILDING:
            if len(replica.row.replicas) == 1:
                raise replica.damage.with_traceback(None)
            text = f"partition {replica.id}: this replica is damaged: {replica.damage}"
            raise with_rows(MinkaError(Code.AGE_UNKNOWN, text), [replica.row])
        if not self._knows_its_age(replica):
            raise self.age_unknown(replica)
        return replica

    @staticmethod
    def age_unknown(replica: Replica) -> MinkaError:
        """The refusal of a stale read by a replica that doesn't know its age."""
        text = f"partition {replica.id}: this replica doesn't know how old its data is"
        return with_rows(MinkaError(Code.AGE_UNKNOWN, text), [replica.row])

    def answers_stale(self, replica: Replica) -> bool:
        """True if a client's stale read would be answered here now. Clients send stale reads to replicas in sync."""
        return self._node_id in replica.row.isr and replica.damage is None and self._knows_its_age(replica)

    def _knows_its_age(self, replica: Replica) -> bool:
        return replica.is_complete and not replica.is_receiving and self.age(replica) != math.inf

    def age(self, replica: Replica) -> float:
        """The seconds since the replica was certainly up to date; infinite if it doesn't know. A leader was up to date
        when its node last had clearance.
        """
        if replica.role is not Role.LEADER:
            return self._receiver.age(replica)
        now = self._clock()
        replica.note_led(self._table.last_clearance(now))
        return now - replica.freshness.at

    def _check_row(self, group: Group) -> None:
        """Raises the refusal, unless this node may have to serve the group when it gets a newer row."""
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
        if row.leader != self._node_id:
            text = f"partition {row.id} is led by {row.leader}"
            raise with_rows(MinkaError(Code.NOT_LEADER, text, leader=row.leader), [row])

    def with_neighbour(self, row: Partition) -> list[Partition]:
        """The row, and the row of the partition that was last split off from it. For a merged partition, the row of the
        partition that it is now a part of.
        """
        rows = {one.id: one for one in map(self._remaining, (row, self._newest_row(row.split_to))) if one is not None}
        return list(rows.values())

    def _remaining(self, row: Partition | None) -> Partition | None:
        """The row of the partition that this one became a part of, if it was merged."""
        while row is not None and row.merge_into and not row.replicas:
            row = self._newest_row(row.merge_into)
        return row

    def check_in_range(self, replica: Replica, keys: list[bytes]) -> None:
        """Raises KEY_OUT_OF_RANGE for a key outside of the partition's range."""
        row = replica.row
        bounded = keys and (row.start_key or row.end_key)
        if bounded and (min(keys) < row.start_key or (row.end_key and max(keys) >= row.end_key)):
            text = f"partition {row.id} has the keys {KeyRange(row.start_key, row.end_key)}, and others are asked for"
            raise with_rows(MinkaError(Code.KEY_OUT_OF_RANGE, text), self.with_neighbour(row))

    def timed_out(self, group: Group) -> MinkaError:
        """The error for a group that this node could not serve in time, with the reason."""
        replica = self._replicas.get(group.partition_id)
        if replica is None:
            return MinkaError(Code.PARTITION_NOT_HERE, f"this node was not told of partition {group.partition_id}")
        if replica.damage is not None:
            return replica.damage
        generation = replica.row.generation
        what = f"its generation is {generation} here, the request is for {group.generation}"
        if generation == group.generation:
            what = replica.waits_for
        return MinkaError(Code.DEADLINE_EXCEEDED, f"partition {group.partition_id}: {what}; nothing was done")
