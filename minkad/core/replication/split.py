"""What the leaders of both halves do in a split (Key-Range Partitions, Patterns of Distributed Systems).

As soon as the leader takes over the row, it serves only the lower half, and appends a marker: after the marker, the log
has no writes to the upper half. Each replica that applies the marker makes the child from its data at that offset. The
child's data is attached to the parent's data at first, and gets its own database later. Once the whole in-sync set has
this database, the child's leader tells the controller.
"""

from minka.errors import MinkaError
from minka.v1.cluster_pb2 import Partition, PartitionState
from minka.v1.coordinator_pb2 import FinishSplitRequest
from minkad.core.replication.entries import SplitMarker
from minkad.core.replication.inquiry import Inquiry, Outcome
from minkad.core.replication.instructions import AskFinishSplit, Level, WakeAt
from minkad.core.replication.leadership import Leader
from minkad.core.replication.shared_state import SharedState


def marker_due(shared: SharedState, leader: Leader) -> SplitMarker | None:
    """The marker that the leader has to append now; None if there is none to append.

    The log may already have the marker of an earlier leader. Once this leader is ready, it has applied that marker and
    made the child, so it appends no second marker.
    """
    state, row = leader.state, leader.state.row
    if not (row.splitting and row.split_to) or not state.is_ready:
        return None
    if shared.is_made(row.split_to) or leader.marked_split == row.split_to:
        return None
    return SplitMarker(row.split_to, row.partition_epoch)


def awaits_child(row: Partition, marker: SplitMarker) -> bool:
    """True if a replica that applies the marker is to make the child. After the end of the split, a node that lacks the
    child gets a checkpoint from the child's leader instead.
    """
    return row.splitting and row.split_to == marker.child_id


def provisional_row(parent: Partition, child_id: int) -> Partition:
    """A row for the child, until the controller sends this node the real row."""
    return Partition(
        id=child_id,
        keyspace_id=parent.keyspace_id,
        slot=child_id,
        replicas=parent.replicas,
        state=PartitionState.PARTITION_STATE_NEW,
        start_key=parent.end_key,
        split_from=parent.id,
        splitting=True,
    )


class SplitEnd:
    """The child's leader tells the controller, until the controller records it, that all replicas have the child's
    database.
    """

    def __init__(self, shared: SharedState, leader: Leader) -> None:
        self._shared = shared
        self._leader = leader
        self._inquiry = Inquiry(shared.settings)

    def advance(self, now: float) -> None:
        """Ask the controller if that is due: a follower or the row may have changed, or time has passed."""
        state = self._leader.state
        if state.row.splitting and self._is_made_by_all() and self._inquiry.is_due(now):
            request = FinishSplitRequest(
                node_id=self._shared.id,
                partition_id=state.id,
                leader_epoch=self._leader.leader_epoch,
                partition_epoch=state.row.partition_epoch,
            )
            self._inquiry.asked(request)
            self._shared.outbox.append(AskFinishSplit(request))

    def _is_made_by_all(self) -> bool:
        base, counted = self._leader.state.log.base, self._leader.counted
        if self._leader.state.data.is_attached:
            return False
        return all(one.is_replicating and one.matched >= base and not one.is_attached for one in counted)

    def answered(self, request: FinishSplitRequest, error: MinkaError | None, now: float) -> None:
        """The controller has answered; the rows that it sent are adopted already."""
        if self._inquiry.answered(request, error, now) is Outcome.STALE:
            return
        if error is not None:
            self._shared.outbox.report(
                Level.INFO, "the end of a split is tried again", partition=self._leader.state.id, reason=str(error)
            )
        self._shared.outbox.append(WakeAt(self._leader.state.id, self._inquiry.due_at))
