"""The replicas of this node become what the controller's rows say, durably; only then does the node answer the
controller.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import UpdateReplicasRequest, UpdateReplicasResponse
from minkad.core.replication.replica_state import Copy, Role
from minkad.core.replication.replicas import Replicas
from minkad.process import tasks, turns
from minkad.replication.applying.hosted_replica import Replica
from minkad.replication.changing.deletions import Deletions
from minkad.replication.serving.client_requests import Requests
from minkad.storage.log_database import LogDatabase

log: Final = logging.getLogger(__name__)

_TURN_SECONDS: Final = 0.003  # seconds of work, after which other tasks run
_READY_POLL_SECONDS: Final = 1.0


class Turns:
    """Lets other tasks run after every few milliseconds of work."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock() + _TURN_SECONDS

    async def turn(self) -> None:
        """Let other tasks run, if it is time. Call this between two rows."""
        if self._clock() >= self._until:
            await turns.turn()
            self._until = self._clock() + _TURN_SECONDS


class Adoption:
    """For the loop's thread."""

    def __init__(
        self,
        replicas: Replicas,
        log_db: LogDatabase,
        new_replica: Callable[[Partition], Replica],
        clock: Callable[[], float],
        isr_changed: Callable[[Collection[str], Collection[str]], None],
        adopted: Callable[[Replica], None],
    ) -> None:
        """`new_replica` makes a replica that is not hosted yet. `isr_changed` is called with the old and the new
        in-sync set of a partition that this node leads, `adopted` with a replica that has another row.
        """
        self._replicas = replicas
        self._log_db = log_db
        self._new_replica = new_replica
        self._clock = clock
        self._isr_changed = isr_changed
        self._adopted = adopted
        self._controller_term = 0

    def connect(
        self,
        hosted: dict[int, Replica],
        requests: Requests,
        deletions: Deletions,
    ) -> None:
        """Bind the parts that are made after this one."""
        self._hosted = hosted
        self._requests = requests
        self._deletions = deletions

    async def update_replicas(self, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        """See `ReplicaManager`. Raises NOT_CONTROLLER for an older term, STORAGE_FAILED."""
        if request.controller_term < self._controller_term:
            text = f"term {request.controller_term} of the controller is over, the newest is {self._controller_term}"
            raise MinkaError(Code.NOT_CONTROLLER, text)
        self._controller_term = request.controller_term
        working = Turns(self._clock)
        for row in request.partitions:
            self._take(row)
            await working.turn()
        unknown = []
        for partition_id, epoch in zip(request.known_ids, request.known_epochs, strict=True):
            if not self._knows(partition_id, epoch):
                unknown.append(partition_id)
            await working.turn()
        await self._log_db.sync()
        response = UpdateReplicasResponse(unknown_ids=unknown)
        waiting: list[asyncio.Task[None]] = []
        for row in request.partitions:
            if (replica := self._hosted.get(row.id)) is not None and self._is_what_it_should_be(replica):
                _hosts(response, row.id, replica.row.partition_epoch)
            else:
                waiting.append(tasks.awaited(self._answer(row, response), f"row of {row.id}"))
            await working.turn()
        await asyncio.gather(*waiting)
        return response

    def _take(self, row: Partition) -> None:
        if row.id in self._deletions or not self._replicas.is_new(row):
            return  # if a row comes during a deletion, the controller sends it again
        if row.id in self._hosted:
            self.adopt(row)
        elif not self._replicas.is_to_be_hosted(row):
            self._replicas.depart(row)
        else:
            with contextlib.suppress(MinkaError):  # the error is in `failed`
                self.host(row)

    def host(self, row: Partition) -> Replica:
        """Host a partition that was not here before. Raises CORRUPT_DATA if the partition already has a folder."""
        replica = self._new_replica(row)
        failed = self._replicas.node.failed
        if replica.data.is_closed:
            text = f"{replica.data.path} has data of which the log database knows nothing"
            failed[row.id] = MinkaError(Code.CORRUPT_DATA, text)
            raise failed[row.id]
        self.add(replica)
        self.adopt(row)
        return replica

    def add(self, replica: Replica) -> None:
        """The replica is hosted from now on."""
        self._hosted[replica.id] = replica
        self._replicas.add(replica)

    def remove(self, replica: Replica) -> None:
        """The replica was deleted."""
        del self._hosted[replica.id]
        self._replicas.remove(replica)
        self._requests.notify(replica.id)

    def adopt(self, row: Partition) -> None:
        """Take over a row that is at least as new as the replica's: serving changes at once."""
        replica = self._hosted.get(row.id)
        if replica is None:
            return
        was = replica.row
        if self._replicas.adopt(row, self._clock()) is None:
            return
        if row.leader == self._replicas.node.id and row.isr != was.isr:
            self._isr_changed(was.isr, row.isr)
        if replica.role is not Role.REMOVED:
            replica.stage_meta(self._log_db)
        self._adopted(replica)

    def _knows(self, partition_id: int, epoch: int) -> bool:
        """True if the replica is what its row of this epoch says. A replica that only waited for the controller's word
        becomes it.
        """
        replica = self._hosted.get(partition_id)
        if replica is None or replica.row.partition_epoch != epoch or partition_id in self._deletions:
            return False
        if replica.role is Role.IDLE:
            self.adopt(replica.row)  # recovered with this row, which the controller now confirms
        is_failed = partition_id in self._replicas.node.failed
        return not is_failed and (replica.role is not Role.IDLE or not replica.row.leader)

    # Answers to the controller

    def _is_what_it_should_be(self, replica: Replica) -> bool:
        """True if the answer for the replica needs no wait, as for most."""
        if replica.role is not Role.FOLLOWER and not replica.is_ready:
            return False
        return replica.id not in self._replicas.node.failed and not replica.awaits_split

    async def _answer(self, row: Partition, response: UpdateReplicasResponse) -> None:
        """Add the answer for a row, as soon as there is one."""
        replica = self._hosted.get(row.id)
        newest = replica.row if replica is not None else self._replicas.departed(row.id) or row
        try:
            if not self._replicas.is_to_be_hosted(newest):
                await self._deletions.delete(newest)
                response.deleted_ids.append(row.id)
                return
            if (failure := self._replicas.node.failed.get(row.id)) is not None:
                raise failure
            if replica is not None and replica.awaits_split:
                _hosts(response, row.id, 0)  # it isn't hosted yet, but will be
                return
            if replica is not None:
                await self._until_ready(replica)
                if (failure := self._replicas.node.failed.get(row.id)) is not None:
                    raise failure
                if replica.role is Role.IDLE and replica.row.leader == self._replicas.node.id:
                    text = f"leader_epoch {replica.row.leader_epoch} was led before the node's start"
                    raise MinkaError(Code.NOT_LEADER, text)
            _hosts(response, row.id, newest.partition_epoch)
        except MinkaError as error:
            response.failed.add(partition_id=row.id, error=str(error))

    async def _until_ready(self, replica: Replica) -> None:
        """Wait until a leader has applied its log, but not for what it needs from other replicas first."""
        while (replica.awaits_data or replica.leader is not None) and not replica.is_ready:
            if replica.damage is not None and replica.copy is not Copy.REBUILDING:
                raise replica.damage
            if replica.leader is not None and replica.leader.counted:
                return
            if self._log_db.error is not None:
                raise self._log_db.error
            await asyncio.wait([self._requests.changed(replica.id)], timeout=_READY_POLL_SECONDS)


def _hosts(response: UpdateReplicasResponse, partition_id: int, epoch: int) -> None:
    response.hosted_ids.append(partition_id)
    response.hosted_epochs.append(epoch)
