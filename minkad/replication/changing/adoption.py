"""Takes over the controller's rows, durably, and only then answers the controller."""

import asyncio
import contextlib
import logging
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import UpdateReplicasRequest, UpdateReplicasResponse
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Copy, Role
from minkad.process import tasks
from minkad.process.turns import Turns
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.changing.deletions import Deletions
from minkad.replication.changing.hosting import Hosting
from minkad.replication.serving.partition_waits import PartitionWaits
from minkad.replication.surroundings import Surroundings

log: Final = logging.getLogger(__name__)

_READY_POLL_SECONDS: Final = 1.0


class Adoption:
    """For the loop's thread."""

    def __init__(
        self,
        around: Surroundings,
        node: Node[HostedReplica],
        hosting: Hosting,
        deletions: Deletions,
        waits: PartitionWaits,
    ) -> None:
        self._node = node
        self._hosting = hosting
        self._deletions = deletions
        self._waits = waits
        self._log_db = around.log_db
        self._clock = around.clock
        self._controller_term = 0  # the newest term of a controller that has sent rows

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
            if (replica := self._node.replicas.get(row.id)) is not None and self._is_what_it_should_be(replica):
                _hosts(response, row.id, replica.state.row.partition_epoch)
            else:
                waiting.append(tasks.awaited(self._answer(row, response), f"row of {row.id}"))
            await working.turn()
        await asyncio.gather(*waiting)
        return response

    def _take(self, row: Partition) -> None:
        if row.id in self._deletions or not self._node.is_new(row):
            return  # `_answer` tells the controller to send a row again that comes during a deletion
        if row.id in self._node.replicas:
            self._node.adopt(row, self._clock())
        elif not self._node.is_to_be_hosted(row):
            self._node.depart(row)
        else:
            with contextlib.suppress(MinkaError):  # the error is in `failed`
                self._hosting.host(row)

    def _knows(self, partition_id: int, epoch: int) -> bool:
        """True if the replica has the row of this partition_epoch, and its role. A recovered replica, which waits for
        the controller to confirm its row, takes the role now.
        """
        replica = self._node.replicas.get(partition_id)
        if replica is None or replica.state.row.partition_epoch != epoch or partition_id in self._deletions:
            return False
        if replica.state.role is Role.IDLE:
            self._node.adopt(replica.state.row, self._clock())
        is_failed = partition_id in self._node.shared.failed
        return not is_failed and (replica.state.role is not Role.IDLE or not replica.state.row.leader)

    # Answers to the controller

    def _is_what_it_should_be(self, replica: HostedReplica) -> bool:
        """True if the controller's answer for the replica needs no wait, as for most replicas."""
        if replica.state.role is not Role.FOLLOWER and not replica.state.is_ready:
            return False
        return replica.id not in self._node.shared.failed and not replica.state.awaits_split

    async def _answer(self, row: Partition, response: UpdateReplicasResponse) -> None:
        """Add the answer for a row, once the replica has become what the row says, or can't."""
        replica = self._node.replicas.get(row.id)
        newest = replica.state.row if replica is not None else self._node.departed(row.id) or row
        try:
            if not self._node.is_to_be_hosted(newest):
                await self._deletions.delete(newest)
                if row.partition_epoch > newest.partition_epoch and self._node.is_to_be_hosted(row):
                    raise MinkaError(Code.OVERLOADED, "an older copy was being deleted")
                response.deleted_ids.append(row.id)
                return
            if (failure := self._node.shared.failed.get(row.id)) is not None:
                raise failure
            if replica is not None and replica.state.awaits_split:
                _hosts(response, row.id, 0)  # the split has yet to make the replica
                return
            if replica is not None:
                await self._until_ready(replica)
                if (failure := self._node.shared.failed.get(row.id)) is not None:
                    raise failure
                if replica.state.role is Role.IDLE and replica.state.row.leader == self._node.id:
                    text = f"leader_epoch {replica.state.row.leader_epoch} was led before the node's start"
                    raise MinkaError(Code.NOT_LEADER, text)
            _hosts(response, row.id, newest.partition_epoch)
        except MinkaError as error:
            response.failed.add(partition_id=row.id, error=str(error))

    async def _until_ready(self, replica: HostedReplica) -> None:
        """Wait until a leader has applied its log. A leader that waits for other replicas isn't waited for."""
        while (replica.state.awaits_data or replica.state.leader is not None) and not replica.state.is_ready:
            if replica.state.damage is not None and replica.state.copy is not Copy.REBUILDING:
                raise replica.state.damage
            if replica.state.leader is not None and replica.state.leader.counted:
                return
            if self._log_db.error is not None:
                raise self._log_db.error
            await asyncio.wait([self._waits.changed(replica.id)], timeout=_READY_POLL_SECONDS)


def _hosts(response: UpdateReplicasResponse, partition_id: int, epoch: int) -> None:
    response.hosted_ids.append(partition_id)
    response.hosted_epochs.append(epoch)
