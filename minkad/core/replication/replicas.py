"""All replicas of one node. They become what the controller's rows say."""

from collections import OrderedDict
from typing import Final

from minka.errors import MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import FinishMergeRequest
from minkad.core.replication.instructions import Changed
from minkad.core.replication.merge import Merge, is_due
from minkad.core.replication.node import Node
from minkad.core.replication.replica import Replica
from minkad.core.replication.replica_state import Role, role_in

_MAX_DEPARTED: Final = 10_000


class Replicas:
    """Events that concern more than one replica. For one thread."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.hosted: dict[int, Replica] = {}  # by partition
        self._departed: OrderedDict[int, Partition] = OrderedDict()  # last rows of partitions no longer here
        self._merges: dict[int, Merge] = {}  # by the left partition's id

    def add(self, replica: Replica) -> None:
        """The replica is hosted from now on."""
        self.hosted[replica.id] = self.node.states[replica.id] = replica
        self.node.failed.pop(replica.id, None)

    def remove(self, replica: Replica) -> None:
        """The replica was deleted."""
        del self.hosted[replica.id], self.node.states[replica.id]
        self.depart(replica.row)

    def depart(self, row: Partition) -> None:
        """Remember the last row of a partition that is not, or no longer, hosted here."""
        self._departed[row.id] = row
        self._departed.move_to_end(row.id)
        if len(self._departed) > _MAX_DEPARTED:
            self._departed.popitem(last=False)

    def departed(self, partition_id: int) -> Partition | None:
        """The last row of a partition that has left this node; None if it isn't remembered."""
        return self._departed.get(partition_id)

    # Rows

    def is_new(self, row: Partition) -> bool:
        """True if the row is newer than the one known here of its partition."""
        replica = self.hosted.get(row.id)
        if replica is None:
            departed = self._departed.get(row.id)
            return departed is None or departed.partition_epoch < row.partition_epoch
        if row.partition_epoch == replica.row.partition_epoch:
            return replica.role is Role.IDLE  # recovered with this row, which the controller now confirms
        return row.partition_epoch > replica.row.partition_epoch

    def is_to_be_hosted(self, row: Partition) -> bool:
        """True if the row makes this node one of the partition's."""
        return role_in(row, self.node.id) is not Role.REMOVED

    def adopt(self, row: Partition, now: float) -> Replica | None:
        """Take over a row that is as new as the local replica's, or newer: what is served changes at once. Returns the
        replica, or None if there is none.
        """
        replica = self.hosted.get(row.id)
        if replica is None or row.partition_epoch < replica.row.partition_epoch:
            return None
        other_id = replica.row.merge_from
        if replica.adopt(row, now):
            self._has_merged(other_id, now)
        self.node.outbox.put(Changed(row.id))
        self.advance_merge(replica, now)
        return replica

    def _has_merged(self, partition_id: int, now: float) -> None:
        """The partition is a part of another one now, and serves nothing from now on; its last row is on its way."""
        replica = self.hosted.get(partition_id)
        if replica is not None and replica.role is Role.LEADER:
            replica.stop_serving(now)

    def stop_leading(self, now: float) -> None:
        """Other nodes may lead the partitions by now: this one leads again only at newer leader_epochs."""
        for replica in self.hosted.values():
            replica.stop_leading(now)
            self.node.outbox.put(Changed(replica.id))

    # Merges

    def advance_merge(self, replica: Replica, now: float) -> None:
        """The replica has progressed, or has another row: do this node's part in a merge."""
        merge = next((one for one in self._merges.values() if replica in (one.left, one.right)), None)
        if merge is not None and not merge.goes_on:
            del self._merges[merge.left.id]
            merge.close()
            merge = None
        merge = merge or self._begin_merge(replica)
        if merge is not None:
            merge.advance(now)

    def _begin_merge(self, replica: Replica) -> Merge | None:
        left = replica if replica.row.merge_from else self.hosted.get(replica.row.merge_into)
        if left is None or not left.row.merge_from:
            return None
        right = self.hosted.get(left.row.merge_from)
        # The next partition may be due to merge into the left one, whose merge with another one isn't over here.
        if right is None or replica not in (left, right) or not is_due(left, right):
            return None
        assert left.id not in self._merges, f"partition {left.id} is being merged already"
        merge = self._merges[left.id] = Merge(left, right)
        return merge

    def merge_answered(self, request: FinishMergeRequest, error: MinkaError | None, now: float) -> None:
        """The controller has answered `AskFinishMerge`; the rows that it sent are adopted already."""
        if (merge := self._merges.get(request.partition_id)) is not None:
            merge.answered(request, error, now)

    def cleared(self, left_id: int, error: MinkaError | None, now: float) -> None:
        """`MakeRoom` is carried out, or has failed with `error`."""
        if (merge := self._merges.get(left_id)) is not None:
            merge.cleared(error, now)

    # What happens

    def has_applied(self, replica: Replica, now: float) -> None:
        """The replica has applied more than before."""
        replica.has_applied(now)
        self._advance_merge_of(replica, now)

    def data_opened(self, partition_id: int, now: float) -> None:
        """`OpenData` is carried out: see `Replica.data_opened`."""
        if (replica := self.hosted.get(partition_id)) is not None:
            replica.data_opened(now)
            self.node.outbox.put(Changed(partition_id))
            self._advance_merge_of(replica, now)

    def detached(self, partition_id: int, parent_id: int, now: float) -> None:
        """The data of a split's child is no longer attached to its parent's."""
        if (replica := self.hosted.get(partition_id)) is not None:
            replica.detached(now)
        if (parent := self.hosted.get(parent_id)) is not None:
            self.node.apply(parent)

    def data_failed(self, partition_id: int, error: MinkaError) -> bool:
        """`OpenData` has failed. Returns False if the node can't go on: see `Replica.data_failed`."""
        replica = self.hosted.get(partition_id)
        if replica is None:
            return True
        self.node.outbox.put(Changed(partition_id))
        return replica.data_failed(error)

    def tick(self, partition_id: int, now: float) -> None:
        """It is the time for which a `WakeAt` asked, or later."""
        if (replica := self.hosted.get(partition_id)) is not None:
            replica.tick(now)
            self._advance_merge_of(replica, now)

    def _advance_merge_of(self, replica: Replica, now: float) -> None:
        if self._merges or replica.row.merge_from or replica.row.merge_into:
            self.advance_merge(replica, now)
