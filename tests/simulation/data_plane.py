"""The data plane of a simulated node: what `minkad.replication` does with rows, by docs/architecture.md.

A partition's log is a list of numbers, one a write, each used once: so two logs are the same as far as their numbers
are. What is committed is applied.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Keyspace, Partition
from minka.v1.coordinator_pb2 import (
    AlterIsrRequest,
    AlterIsrResponse,
    DamagedReplica,
    HandOverRequest,
    MigrationProgress,
    ReplicaOutcome,
    ReplicaResult,
    ReplicaStats,
    UpdateReplicasRequest,
    UpdateReplicasResponse,
)
from minkad.core.replication.state import Role, role_in
from tests.simulation.in_sync import InSyncSets
from tests.simulation.leadership import Append, LeaderContext, Leadership, Replica

_O: Final = ReplicaOutcome


@dataclass(slots=True)
class Copy:
    """What the disk has of a partition."""

    row: Partition
    log: list[int] = field(default_factory=list)
    committed: int = 0  # so many of the log's first
    cut_in: int = 0  # the newest leader_epoch whose leader has said where the log is its own


class Controller(Protocol):
    """What the data plane asks of the active controller."""

    async def hand_over(self, request: HandOverRequest) -> Partition:
        """Coordinator.HandOver."""

    async def alter_isr(self, request: AlterIsrRequest) -> AlterIsrResponse:
        """Coordinator.AlterIsr."""


class DataPlane:
    """`copies` is the disk. Writes to it are durable at once, and only a process that lives makes them."""

    def __init__(
        self,
        node_id: str,
        copies: dict[int, Copy],
        rng: random.Random,
        *,
        has_clearance: Callable[[], bool],
        controller: Controller,
        keyspace: Callable[[int], Keyspace | None],
        is_absent: Callable[[str], bool],
        append: Callable[[str, Append], Awaitable[list[int]]],
        acknowledged: Callable[[int], None],
        adopted: Callable[[Partition], None],
        lag_timeout: float,
        now: Callable[[], float],
        say: Callable[[str, str], None],
    ) -> None:
        """`append`: to which node; `acknowledged`: that more of a partition is; `adopted`: what this node acts on."""
        self._say = say
        self._node_id = node_id
        self._copies = copies
        self._rng = rng
        self._has_clearance = has_clearance
        self._keyspace = keyspace
        self._acknowledged = acknowledged
        self._adopted = adopted
        self._controller_term = 0
        self._closing = False
        self._departed: dict[int, int] = {}  # the epoch of the last row of what is not here any more
        self.replicas: dict[int, Replica] = {id_: Replica(copy, node_id) for id_, copy in copies.items()}
        self._leaderships: dict[int, Leadership] = {}
        self._in_sync = InSyncSets(
            node_id, self._leaderships, controller.alter_isr, has_clearance, self._learn, now, lag_timeout
        )
        self._context = LeaderContext(
            node_id,
            rng,
            controller.hand_over,
            append,
            self._in_sync.propose,
            self._learn,
            self._advance,
            is_absent,
            now,
            lag_timeout,
        )

    def start(self) -> None:
        """Begin."""
        self._in_sync.start()

    def nodes_changed(self) -> None:
        """By this node's copy of the table."""
        for leadership in list(self._leaderships.values()):
            leadership.take_out_absent()

    # What the member tells

    def stop_leading(self) -> None:
        """Others may lead what this node led: it goes on only at newer leader_epochs."""
        for replica in self.replicas.values():
            if replica.copy.row.leader == self._node_id:
                replica.led_before = replica.copy.row.leader_epoch
            if replica.role is Role.LEADER:
                replica.role = Role.IDLE
                self._leaderships.pop(replica.copy.row.id).close()

    def damaged(self) -> list[DamagedReplica]:
        """Disks of this world lose what wasn't synced, and damage nothing."""
        return []

    def stats(self, changed_only: bool) -> list[ReplicaStats]:
        """Nothing: no plan depends on it here."""
        return []

    def migrations(self) -> list[MigrationProgress]:
        """Of the replicas that this node, as the leader, is bringing up or handing over to."""
        return [progress for leadership in self._leaderships.values() for progress in leadership.progress()]

    # What the controller says

    async def update_replicas(self, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        """Become what the rows say. Raises NOT_CONTROLLER for an older term, SHUTTING_DOWN."""
        if self._closing:
            raise MinkaError(Code.SHUTTING_DOWN, "the node is stopping")
        if request.controller_term < self._controller_term:
            raise MinkaError(Code.NOT_CONTROLLER, f"the newest term is {self._controller_term}")
        self._controller_term = request.controller_term
        for row in request.partitions:
            self._take(row)
        known = zip(request.known_ids, request.known_epochs, strict=True)
        unknown = [id_ for id_, epoch in known if not self._knows(id_, epoch)]
        await asyncio.sleep(self._rng.expovariate(50))
        results = [await self._result(row) for row in request.partitions]
        return UpdateReplicasResponse(results=results, unknown_ids=unknown)

    def _knows(self, partition_id: int, epoch: int) -> bool:
        """Whether the replica is what its row of this epoch says, and from here on if need be."""
        replica = self.replicas.get(partition_id)
        if replica is None or replica.copy.row.partition_epoch != epoch or replica.deleting:
            return False
        if replica.role is Role.IDLE:
            self._adopt(replica, replica.copy.row)
        return replica.role is not Role.IDLE or not replica.copy.row.leader

    def _take(self, row: Partition) -> None:
        replica = self.replicas.get(row.id)
        if replica is not None:
            newer = row.partition_epoch > replica.copy.row.partition_epoch
            again = row.partition_epoch == replica.copy.row.partition_epoch and replica.role is Role.IDLE
            if (newer or again) and not replica.deleting:
                self._adopt(replica, row)
        elif self._departed.get(row.id, 0) < row.partition_epoch:
            if role_in(row, self._node_id) is Role.REMOVED:
                self._departed[row.id] = row.partition_epoch
            else:
                self._copies[row.id] = Copy(row)
                self.replicas[row.id] = Replica(self._copies[row.id], "")
                self._adopt(self.replicas[row.id], row)

    def _learn(self, row: Partition) -> None:
        replica = self.replicas.get(row.id)
        if replica is not None and row.partition_epoch > replica.copy.row.partition_epoch and not replica.deleting:
            self._adopt(replica, row)

    def _adopt(self, replica: Replica, row: Partition) -> None:
        self._adopted(row)
        before = (replica.role, replica.copy.row.leader_epoch)
        replica.copy.row, replica.role = row, role_in(row, self._node_id)
        if replica.role is Role.LEADER and row.leader_epoch <= replica.led_before:
            replica.role = Role.IDLE  # what it wrote at this epoch may be lost here and elsewhere not
        self._learn_keyspace(replica)
        self._say(replica.role.value, f"{_brief(row)} with {replica.copy.committed} of {len(replica.copy.log)}")
        if (replica.role, row.leader_epoch) == before:
            if row.id in self._leaderships:
                self._leaderships[row.id].row_changed()
            return
        if (former := self._leaderships.pop(row.id, None)) is not None:
            former.close()
        if replica.role is Role.LEADER:
            replica.ready_at = len(replica.copy.log)
            self._leaderships[row.id] = Leadership(self._context, replica)

    async def _result(self, row: Partition) -> ReplicaResult:
        replica = self.replicas.get(row.id)
        if replica is None:
            epoch = max(row.partition_epoch, self._departed.get(row.id, 0))
            return ReplicaResult(partition_id=row.id, partition_epoch=epoch, outcome=_O.REPLICA_OUTCOME_DELETED)
        epoch = replica.copy.row.partition_epoch
        result = ReplicaResult(partition_id=row.id, partition_epoch=epoch, outcome=_O.REPLICA_OUTCOME_HOSTED)
        if replica.role is Role.IDLE and replica.copy.row.leader == self._node_id:
            result.outcome, result.error = _O.REPLICA_OUTCOME_FAILED, "it led at this leader_epoch before its start"
        if replica.role is not Role.REMOVED:
            return result
        replica.deleting = True
        await asyncio.sleep(self._rng.expovariate(5))
        if self.replicas.get(row.id) is replica:
            self._say("deleted", _brief(replica.copy.row))
            del self.replicas[row.id], self._copies[row.id]
            self._departed[row.id] = epoch
        result.outcome = _O.REPLICA_OUTCOME_DELETED
        return result

    def close(self) -> None:
        """Serve and become nothing any more."""
        self._closing = True

    # Serving

    def serves(self, partition_id: int) -> bool:
        """Whether a read would be answered here now."""
        replica = self.replicas.get(partition_id)
        return (
            replica is not None
            and replica.role is Role.LEADER
            and replica.copy.committed >= replica.ready_at
            and not replica.handing_over
            and self._has_clearance()
        )

    def has_proposed(self, row: Partition) -> bool:
        """Whether the in-sync set of the row is the one that this leader has asked for last."""
        leadership = self._leaderships.get(row.id)
        proposed = leadership.proposed if leadership is not None else None
        return proposed is not None and set(proposed.isr) == set(row.isr)

    def write(self, partition_id: int, number: int) -> None:
        """Take a write, unless the partition is fenced or too few replicas are in sync."""
        replica = self.replicas[partition_id]
        self._learn_keyspace(replica)
        if not replica.fenced and 0 < replica.min_insync <= len(replica.copy.row.isr):
            replica.copy.log.append(number)
            self._advance(replica)
            self._leaderships[partition_id].look()

    def append_mark(self, partition_id: int, number: int) -> None:
        """The leader's own entry, which is no client's."""
        replica = self.replicas[partition_id]
        replica.copy.log.append(number)
        self._advance(replica)
        self._leaderships[partition_id].look()

    def _learn_keyspace(self, replica: Replica) -> None:
        """A row may come before the keyspace is applied here."""
        keyspace = self._keyspace(replica.copy.row.keyspace_id)
        replica.min_insync = keyspace.min_insync if keyspace is not None else 0

    def _advance(self, replica: Replica) -> None:
        """More may be committed: what everybody has who may be in sync. Without clearance nobody is told."""
        end = min([len(replica.copy.log), *(follower.matched for follower in replica.counted)])
        if len(replica.copy.row.isr) < replica.min_insync:
            end = min(end, replica.ready_at)
        if end > replica.copy.committed:
            replica.copy.committed = end
            if self._has_clearance() and end >= replica.ready_at:
                self._acknowledged(replica.copy.row.id)

    # Following

    def append(self, append: Append) -> list[int]:
        """The leader of a partition asks for the log, or sends some of its own. Raises NOT_LEADER.

        A message that was overtaken says nothing new, since a leader_epoch has one leader, whose log only grows.
        """
        replica = self.replicas.get(append.partition_id)
        if (
            replica is None
            or replica.role is not Role.FOLLOWER
            or replica.copy.row.leader_epoch != append.leader_epoch
            or self._closing
        ):
            raise MinkaError(Code.NOT_LEADER, f"{self._node_id} does not follow partition {append.partition_id}")
        copy = replica.copy
        if append.previous is not None:
            if copy.log[append.start - 1 : append.start] != append.previous:
                raise MinkaError(Code.NOT_LEADER, f"{self._node_id} has another log before {append.start}")
            if append.cut and copy.cut_in < append.leader_epoch:
                copy.cut_in = append.leader_epoch
                if len(copy.log) > append.start:
                    self._cut(copy, append.start)
            for offset, number in enumerate(append.entries, append.start):
                if copy.log[offset : offset + 1] != [number]:
                    self._cut(copy, offset)
                    copy.log += append.entries[offset - append.start :]
                    break
            copy.committed = max(copy.committed, min(append.committed, append.start + len(append.entries)))
        return list(copy.log)

    def _cut(self, copy: Copy, end: int) -> None:
        """End the log where it is no longer the leader's."""
        # After an unclean election the leader may lack what was committed here.
        assert end >= copy.committed or copy.row.unclean_elections, f"cut at {end} of {copy.committed}: {copy.row}"
        copy.committed = min(copy.committed, end)
        del copy.log[end:]


def _brief(row: Partition) -> str:
    moving = "".join([*(f" +{n}" for n in row.adding_replicas), *(f" -{n}" for n in row.removing_replicas)])
    to = f" → {row.successor}" if row.successor else ""
    return (
        f"partition {row.id} epoch {row.partition_epoch}, {row.leader or 'nobody'}{to} leads at {row.leader_epoch}, "
        f"{' '.join(row.isr)} of {' '.join(row.replicas)}{moving}"
    )
