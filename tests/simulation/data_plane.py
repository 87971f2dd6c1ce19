"""The data plane of a simulated node: what `minkad.shard` does with rows and migrations, with a counter for data.

A partition's value is how many writes it has taken: whoever serves it must know them all.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import (
    HandOverRequest,
    MigrationProgress,
    ReplicaOutcome,
    ReplicaResult,
    ReplicaStats,
    UpdateReplicasRequest,
    UpdateReplicasResponse,
)
from minkad.shard.replica import Role, role_in

_COPYING: Final = 0.3  # seconds, the mean
_REFUSALS: Final = (Code.STALE_GENERATION, Code.UNKNOWN_PARTITION, Code.NOT_REGISTERED, Code.UNKNOWN_NODE)

Ship = Callable[[str, Partition, int], Awaitable[None]]  # to which node, the source's row, the value


@dataclass(slots=True)
class Copy:
    """What the disk has of a partition."""

    row: Partition
    value: int = 0


class Replica:
    """A copy, and this process's part in it."""

    def __init__(self, copy: Copy) -> None:
        self.copy = copy
        self.role = Role.IDLE
        self.handing_over = False
        self.fenced = False
        self.deleting = False
        self.migration: asyncio.Task[None] | None = None
        self.migrating_to = ("", 0)  # node, leader_epoch
        self.progress = 0


class DataPlane:
    """`copies` is the disk. Writes to it are durable at once, and only a process that lives makes them."""

    def __init__(
        self,
        node_id: str,
        copies: dict[int, Copy],
        rng: random.Random,
        has_clearance: Callable[[], bool],
        hand_over: Callable[[HandOverRequest], Awaitable[Partition]],
        ship: Ship,
        say: Callable[[str, str], None],
    ) -> None:
        self._say = say
        self._node_id = node_id
        self._copies = copies
        self._rng = rng
        self._has_clearance = has_clearance
        self._hand_over = hand_over
        self._ship = ship
        self._controller_term = 0
        self._closing = False
        self._departed: dict[int, int] = {}  # the epoch of the last row of what is not here any more
        self.replicas = {id_: Replica(copy) for id_, copy in copies.items()}

    # What the member tells

    def stats(self, changed_only: bool) -> list[ReplicaStats]:
        """Nothing: no plan depends on it here."""
        return []

    def migrations(self) -> list[MigrationProgress]:
        """Of the migrations that this node is the source of."""
        return [
            MigrationProgress(partition_id=id_, target=replica.migrating_to[0], bytes_done=replica.progress)
            for id_, replica in self.replicas.items()
            if replica.migration is not None
        ]

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
        await asyncio.sleep(self._rng.expovariate(50))
        return UpdateReplicasResponse(results=[await self._result(row) for row in request.partitions])

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
                self.replicas[row.id] = Replica(self._copies[row.id])
                self._adopt(self.replicas[row.id], row)

    def _adopt(self, replica: Replica, row: Partition) -> None:
        replica.copy.row, replica.role = row, role_in(row, self._node_id)
        self._say(replica.role.value, f"{_brief(row)} with {replica.copy.value}")
        target = row.adding_replicas[0] if replica.role is Role.LEADER and row.adding_replicas else ""
        wanted = (target, row.leader_epoch)
        if replica.migration is not None and replica.migrating_to != wanted:
            replica.migration.cancel()
            replica.migration = None
            replica.fenced = replica.handing_over = False
        if target and replica.migration is None:
            replica.migrating_to = wanted
            replica.migration = asyncio.get_running_loop().create_task(self._migrate(replica, target))

    async def _result(self, row: Partition) -> ReplicaResult:
        replica = self.replicas.get(row.id)
        if replica is None:
            return self._deleted(row.id, max(row.partition_epoch, self._departed.get(row.id, 0)))
        epoch = replica.copy.row.partition_epoch
        if replica.role is not Role.REMOVED:
            return ReplicaResult(
                partition_id=row.id, partition_epoch=epoch, outcome=ReplicaOutcome.REPLICA_OUTCOME_HOSTED
            )
        replica.deleting = True
        await asyncio.sleep(self._rng.expovariate(5))
        if self.replicas.get(row.id) is replica:
            self._say("deleted", _brief(replica.copy.row))
            del self.replicas[row.id], self._copies[row.id]
            self._departed[row.id] = epoch
        return self._deleted(row.id, epoch)

    @staticmethod
    def _deleted(partition_id: int, epoch: int) -> ReplicaResult:
        return ReplicaResult(
            partition_id=partition_id, partition_epoch=epoch, outcome=ReplicaOutcome.REPLICA_OUTCOME_DELETED
        )

    def close(self) -> None:
        """Serve and become nothing any more."""
        self._closing = True

    # Serving

    def serves(self, partition_id: int) -> bool:
        """Whether a read would be answered here now."""
        replica = self.replicas.get(partition_id)
        return (
            replica is not None and replica.role is Role.LEADER and not replica.handing_over and self._has_clearance()
        )

    def write(self, partition_id: int) -> bool:
        """Take a write, unless the partition is fenced."""
        replica = self.replicas[partition_id]
        if replica.fenced:
            return False
        replica.copy.value += 1
        return True

    # Migrations

    async def _migrate(self, replica: Replica, target: str) -> None:
        """Copy, fence, ship the rest, hand over; again when that was refused."""
        while True:
            for _ in range(3):
                await asyncio.sleep(self._rng.expovariate(3 / _COPYING))
                replica.progress += 1
            replica.fenced = True
            try:
                await self._ship(target, replica.copy.row, replica.copy.value)
                replica.handing_over = True
                await self._until_handed_over(replica, target)
            except MinkaError:
                replica.fenced = replica.handing_over = False

    async def _until_handed_over(self, replica: Replica, target: str) -> None:
        """Raises MinkaError when it is certain that nothing was handed over."""
        row = replica.copy.row
        request = HandOverRequest(
            node_id=self._node_id,
            partition_id=row.id,
            leader_epoch=row.leader_epoch,
            partition_epoch=row.partition_epoch,
            target=target,
        )
        in_doubt = False
        while replica.copy.row.partition_epoch == request.partition_epoch:
            try:
                self._learn(await self._hand_over(request))
            except MinkaError as error:
                for newer in error.partitions:
                    self._learn(newer)
                if error.code in _REFUSALS and not in_doubt:
                    raise
                in_doubt = True
                await asyncio.sleep(0.1)

    def _learn(self, row: Partition) -> None:
        replica = self.replicas.get(row.id)
        if replica is not None and row.partition_epoch > replica.copy.row.partition_epoch:
            self._adopt(replica, row)

    def receive(self, source: Partition, value: int) -> None:
        """The leader of a partition ships what it has. Raises NOT_LEADER."""
        replica = self.replicas.get(source.id)
        if replica is None or replica.role is not Role.FOLLOWER or replica.copy.row.leader_epoch != source.leader_epoch:
            raise MinkaError(Code.NOT_LEADER, f"{self._node_id} does not follow partition {source.id}")
        self._say("received", f"{_brief(source)} with {value}")
        replica.copy.value = value


def _brief(row: Partition) -> str:
    moving = "".join([*(f" +{n}" for n in row.adding_replicas), *(f" -{n}" for n in row.removing_replicas)])
    return (
        f"partition {row.id} epoch {row.partition_epoch}, {row.leader or 'nobody'} leads at {row.leader_epoch}{moving}"
    )
