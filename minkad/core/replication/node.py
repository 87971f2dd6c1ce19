"""The replicas of one node. Only the methods of `Node` change a replica, and `ReplicaState.take_over_data`: whoever is
about to read the data calls it, since data that was opened meanwhile tells how far it is.

Each method is an event: a row, an entry, a message of another node, a finished sync, an answer of the controller, the
time. The method changes the states of replicas, and at its end hands out the instructions that follow.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import FinishMergeRequest, FinishSplitRequest, HandOverRequest
from minkad.core.replication import instructions as i
from minkad.core.replication.entries import TrimToRange
from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.following import LeaderStream
from minkad.core.replication.instructions import (
    Apply,
    BringLoadFiles,
    Changed,
    Instruction,
    IsrProposal,
    Level,
    MarkPassed,
    RowAdopted,
)
from minkad.core.replication.leadership import Leader
from minkad.core.replication.merge import Merge, is_due
from minkad.core.replication.peer_messages import Ack, Append, KeptFile
from minkad.core.replication.replica import Replica
from minkad.core.replication.replica_state import ReplicaState, Role, role_in
from minkad.core.replication.replica_storage import ReplicaData
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.core.replication.shared_state import ClusterView, HasState, SharedState
from minkad.core.replication.story import Happened
from minkad.core.state import range_of

_MAX_DEPARTED: Final = 10_000


H = TypeVar("H", bound=HasState[Replica])


class Node(Generic[H]):
    """For one thread. An event may come while instructions are handed out, but not in the middle of another event.
    Only `damaged` may come at any time, since it hands out no instructions.
    """

    check_every: int = 1024
    """After each 1024th event, the node checks the state of that event's replica."""

    def __init__(
        self,
        id: str,  # noqa: A002
        settings: ReplicationSettings,
        view: ClusterView,
        with_load_files: Container[int] = (),
    ) -> None:
        """See `SharedState` for `with_load_files`."""
        self.shared = SharedState(id, settings, view, with_load_files)
        self.replicas: dict[int, H] = {}  # by partition
        self.shared.replicas = self.replicas
        # The shell sets this once. It can't be an argument: the parts that carry out instructions need this node.
        self.carry_out: Callable[[Instruction], None] = _drop
        self._outbox = self.shared.outbox
        self._is_handing_out = False  # `_hand_out` runs; it also takes the instructions of events that come meanwhile
        self._events = 0  # since a state was last checked
        self._now = 0.0  # the newest time of an event
        # By partition: the last rows of partitions that aren't here, the newest _MAX_DEPARTED of them.
        self._departed: OrderedDict[int, Partition] = OrderedDict()
        self._merges: dict[int, Merge] = {}  # by the left partition's id; both partitions are led here

    @property
    def id(self) -> str:
        """The node's id."""
        return self.shared.id

    def _happened(self, state: Replica, what: str, now: float) -> None:
        """Add an event to the replica's story."""
        self._now = max(self._now, now)
        offsets = state.applied, state.high_watermark, state.durable, state.log.end
        state.story.add(Happened(self._now, what, 1, state.row.leader_epoch, *offsets))

    def _tell(self, partition_id: int, what: str) -> None:
        if (state := self._state_of(partition_id)) is not None:
            self._happened(state, what, self._now)  # it follows from the newest event

    def _end(self, state: ReplicaState) -> None:
        """The event of this replica is over."""
        self._events += 1
        if self._events >= self.check_every:
            self._check(state)
        self._hand_out()

    def _check(self, state: ReplicaState) -> None:
        self._events = 0
        if wrong := state.violated():
            self.condemn(state, wrong)

    def condemn(self, state: ReplicaState, wrong: str) -> None:
        """The state breaks a rule: a bug. The replica counts as damaged, so that the node goes on with its other
        replicas, and another node leads this partition.
        """
        text = f"partition {state.id}: it can't go on: {wrong}"
        story = [f"{one.what} x{one.times}" for one in state.story.all()]
        self._outbox.report(Level.ERROR, "a replica is in a state that can't be", replica=repr(state), story=story)
        state.data.condemn(MinkaError(Code.CORRUPT_DATA, text))

    def _hand_out(self) -> None:
        """Carry the instructions out, in their order, including the instructions of events that come meanwhile."""
        outbox, shared = self._outbox, self.shared
        if self._is_handing_out or not (outbox or shared.due):
            return
        self._is_handing_out = True
        try:
            while outbox or shared.due:
                for state in self._due():
                    outbox.append(Apply(state.id))
                # One at a time: if the shell fails to carry one out, the others are handed out after the next event.
                while outbox:
                    instruction = outbox.popleft()
                    if (tell := _TOLD.get(type(instruction))) is not None:
                        self._tell(*tell(instruction))
                    self.carry_out(instruction)
        finally:
            self._is_handing_out = False

    # Replicas come and go

    def add(self, replica: H) -> None:
        """The replica is here from now on."""
        self.replicas[replica.state.id] = replica
        self.shared.failed.pop(replica.state.id, None)

    def remove(self, replica: H) -> None:
        """The replica was deleted."""
        del self.replicas[replica.state.id]
        self.depart(replica.state.row)
        self._outbox.append(Changed(replica.state.id))
        self._hand_out()

    def depart(self, row: Partition) -> None:
        """Remember the last row of a partition that isn't here."""
        self._departed[row.id] = row
        self._departed.move_to_end(row.id)
        if len(self._departed) > _MAX_DEPARTED:
            self._departed.popitem(last=False)

    def departed(self, partition_id: int) -> Partition | None:
        """The last row of a partition that isn't here; None if it isn't remembered."""
        return self._departed.get(partition_id)

    def close(self, now: float) -> None:
        """The node stops: it leads nothing from now on."""
        for replica in self.replicas.values():
            if replica.state.leader is not None:
                replica.state.leader.close(now)
        self._hand_out()

    # Rows

    def is_new(self, row: Partition) -> bool:
        """True if the row is newer than this node's row of the same partition."""
        replica = self.replicas.get(row.id)
        if replica is None:
            departed = self._departed.get(row.id)
            return departed is None or departed.partition_epoch < row.partition_epoch
        if row.partition_epoch == replica.state.row.partition_epoch:
            return replica.state.role is Role.IDLE  # the row came from disk, and the controller confirms it now
        return row.partition_epoch > replica.state.row.partition_epoch

    def is_to_be_hosted(self, row: Partition) -> bool:
        """True if the row gives this node a replica of the partition."""
        return role_in(row, self.id) is not Role.REMOVED

    def adopt(self, row: Partition, now: float) -> None:
        """A row has come. The replica takes it over, and acts by it at once, unless the replica's row is newer."""
        replica = self.replicas.get(row.id)
        if replica is None or row.partition_epoch < replica.state.row.partition_epoch:
            return
        state, was = replica.state, replica.state.row
        self._outbox.append(RowAdopted(row.id, was))  # before all that follows from it
        if state.adopt(row, now):
            self._has_merged(was.merge_from, now)
        self._outbox.append(Changed(row.id))
        self._advance_merge(state, now)
        self._happened(state, f"row {row.partition_epoch}: {state.role.value}", now)
        self._end(state)

    def _has_merged(self, partition_id: int, now: float) -> None:
        """The partition is now a part of another partition, so it serves nothing. Its own last row comes later."""
        replica = self.replicas.get(partition_id)
        if replica is not None and replica.state.role is Role.LEADER:
            replica.state.stop_serving(now)

    def stop_leading(self, now: float) -> None:
        """Other nodes may lead the partitions by now: this node leads them again only at greater leader_epochs."""
        for replica in self.replicas.values():
            replica.state.stop_leading(now)
            self._outbox.append(Changed(replica.state.id))
            self._happened(replica.state, "others may lead by now", now)
        self._hand_out()

    # The log

    def append(self, replica: H, body: bytes) -> int:
        """Append a client's write, or a mark, to the log of a partition that this node leads. Returns the offset."""
        offset = replica.state.append(body)
        self._end(replica.state)
        return offset

    def append_load_mark(self, replica: H, number: int, body: bytes, have: Collection[str]) -> int:
        """Append the mark of a load, like `append`. The nodes in `have` have the load's file; that must be all nodes
        that may be in sync.
        """
        leader = replica.state.leader
        assert leader is not None, replica.state
        assert leader.may_be_in_sync() <= set(have), f"{replica.state}: only {have} have the file"
        offset = replica.state.append(body)
        leader.load_marks.appended(number, have)
        self._end(replica.state)
        return offset

    def stored(self, ends: Mapping[H, tuple[int, int]], now: float, *, on_disk: bool) -> list[H]:
        """The disk (without `on_disk`: the operating system) has these logs up to the ends in `ends`. The second number
        of each is the log's `truncations` when the changes were staged. Returns the replicas with entries to apply.
        """
        for replica, (end, truncations) in ends.items():
            replica.state.log_stored(end, truncations, now, on_disk=on_disk)
            self._events += 1
            if self._events >= self.check_every:
                self._check(replica.state)
        due = [self.replicas[state.id] for state in self._due()]
        self._hand_out()
        return due

    def epoch_stored(self, partition_id: int, leader_epoch: int) -> None:
        """The shell has carried out `SyncEpoch`."""
        leader = self._leader_of(partition_id)
        if leader is not None and leader.leader_epoch == leader_epoch:
            leader.epoch_durable()
            self._hand_out()

    def flushed(self, replica: H, offset: int) -> None:
        """The data on disk has everything up to `offset`."""
        replica.state.flushed_to(offset)

    def keep_copy_log(self, replica: H, reader: str, most_bytes: int) -> None:
        """The shell is about to send the data on disk to the follower `reader`: see `Retention.keep_for_copy`."""
        self.shared.copy_logs.keep(replica.state, reader, replica.state.flushed, most_bytes)

    def bound_copy_logs(self, at_once: int) -> list[H]:
        """Bound the log that is kept for copies: see `CopyLogs.bound`. Returns the replicas whose logs were trimmed."""
        found = [self.replicas.get(partition_id) for partition_id in self.shared.copy_logs.bound(at_once)]
        trimmed = [replica for replica in found if replica is not None and replica.state.is_complete]
        for replica in trimmed:
            replica.state.trim_log()
        return trimmed

    def _due(self) -> Iterable[Replica]:
        shared = self.shared
        if not shared.due:
            return ()
        due, shared.due = shared.due, []
        return [replica.state for state in due if (replica := self.replicas.get(state.id)) is not None]

    # Applying

    def applied(self, replica: H, offset: int, size: int, now: float) -> None:
        """The data has everything up to `offset`. `size`: the bytes of the entries applied since the last call."""
        state = replica.state
        state.retention.applied_bytes += size
        state.applied_to(offset, now)
        self._advance_merge_of(state, now)
        self._end(state)

    def ingested(self, replica: H, size: int) -> None:
        """The data has taken in a file with `size` bytes of keys and values. The event `applied` follows."""
        replica.state.retention.applied_bytes += size

    def trimmed(self, replica: H, mark: TrimToRange, *, removed_any: bool) -> None:
        """The data no longer has the keys outside of the mark's range. The event `applied` follows."""
        replica.state.trimmed(mark, removed_any=removed_any)

    def compacted(self, replica: H, kept: KeyRange, now: float) -> bool:
        """A compaction has freed the disk space of the keys outside of `kept`. Returns True if the data now has no keys
        outside of the replica's range.
        """
        state = replica.state
        is_clean = state.trim.compacted(kept, range_of(state.row), is_changing=state.takes_in_others_keys)
        self._outbox.append(Changed(state.id))
        self.tick(state.id, now)  # there may be more to trim
        return is_clean

    def apply_ended(self, replica: H) -> None:
        """All committed entries are applied, or the shell can't apply the rest now."""
        replica.state.end_apply()

    def mark_begun(self, replica: H, now: float) -> None:
        """The next entry is a mark. The shell carries it out, and applies nothing meanwhile."""
        replica.state.begin_mark()
        self._happened(replica.state, "a mark is carried out", now)

    def mark_ended(self, replica: H, data: ReplicaData, now: float, *, is_passed: bool) -> None:
        """The shell has carried out and applied the mark on `data`, or (without `is_passed`) can't carry it out. The
        call has no effect if other data has replaced `data` meanwhile.
        """
        state = replica.state
        if state.data is not data:
            return
        state.end_mark()
        self._happened(state, "a mark is passed" if is_passed else "a mark can't be carried out", now)
        if is_passed:
            state.advance()
            self._outbox.append(MarkPassed(state.id))
            self._end(state)

    def apply(self, replica: H) -> None:
        """Somebody waits until the replica has applied all committed entries: have them applied."""
        self.shared.apply(replica.state)
        self._hand_out()

    # The data

    def data_opened(self, replica: H, now: float) -> None:
        """The shell has carried out `OpenData`, or found the data damaged. Raises CORRUPT_DATA, STORAGE_FAILED,
        INTERNAL.
        """
        state = replica.state
        state.data_opened(now)
        self._outbox.append(Changed(state.id))
        self._advance_merge_of(state, now)
        self._happened(state, "the data is open, or damaged", now)
        self._end(state)

    def data_failed(self, replica: H, error: MinkaError, now: float) -> bool:
        """`OpenData` has failed. Returns False if the node can't go on: see `Replica.data_failed`."""
        self._outbox.append(Changed(replica.state.id))
        goes_on = replica.state.data_failed(error)
        self._happened(replica.state, f"the data can't be opened: {error.code.name}", now)
        self._end(replica.state)
        return goes_on

    def damaged(self, replica: H, now: float, *, may_rebuild: bool) -> bool:
        """The shell has found the data damaged. Returns True if the shell is to make the data again from the log."""
        rebuilds = may_rebuild and replica.state.begin_rebuilding()
        self._happened(replica.state, "the data is damaged" + ", and made again from the log" * rebuilds, now)
        return rebuilds

    def given_up(self, replica: H, now: float) -> None:
        """The node can't make the damaged data again from the log."""
        replica.state.given_up(now)
        self._outbox.append(Changed(replica.state.id))
        self._happened(replica.state, "the damaged data is given up", now)
        self._end(replica.state)

    def data_emptied(self, replica: H, data: ReplicaData, now: float) -> None:
        """Empty data has replaced the damaged data."""
        replica.state.put_empty_data(data)
        self._happened(replica.state, "empty data is in the place of the damaged data", now)

    def rebuilding_ended(self, replica: H, now: float) -> None:
        """Empty data has replaced the damaged data, or couldn't."""
        state = replica.state
        state.end_rebuilding()
        self._happened(state, "the copy is made again from the log, or couldn't be", now)
        if state.damage is not None:
            self.given_up(replica, now)
            return
        state.advance()
        self._outbox.append(Changed(state.id))
        self._end(state)

    def data_lost(self, replica: H, now: float) -> None:
        """The data is lost: it stays unusable, even after a restart."""
        replica.state.lose_data()
        self._happened(replica.state, "the data is lost", now)

    # Checkpoints that come

    def receiving_begun(self, replica: H, now: float) -> None:
        """The node begins to receive a checkpoint."""
        replica.state.begin_receiving()
        self._happened(replica.state, "a checkpoint is being received", now)

    def checkpoint_complete(self, replica: H, now: float) -> None:
        """The whole checkpoint has come, and begins to replace log and data."""
        replica.state.clear()
        self._happened(replica.state, "the checkpoint has come, and replaces log and data", now)

    def checkpoint_in_place(self, replica: H, data: ReplicaData) -> None:
        """The checkpoint is in the data's place, and the shell is about to open it."""
        replica.state.put_data(data)

    def checkpoint_opened(self, replica: H, now: float) -> None:
        """The checkpoint is open as the replica's data. The log goes on after its offset."""
        replica.state.begin_with_checkpoint()
        self._happened(replica.state, "the checkpoint is in place", now)

    def receiving_ended(self, replica: H, now: float) -> None:
        """The checkpoint is in place durably, or its transfer has broken off."""
        replica.state.end_receiving()
        self._happened(replica.state, "receiving has ended", now)

    # Splits

    def child_attached(self, child: H, data: ReplicaData, offset: int, leader_epoch: int, now: float) -> None:
        """A split has made the child: its data is attached to its parent's data, as of this entry."""
        child.state.put_data(data)
        child.state.begin_child(offset, leader_epoch)
        self._happened(child.state, "made by a split, attached to its parent's data", now)

    def child_made(self, child: H, now: float) -> None:
        """The child's beginning is durable: it gets the role of its row."""
        child.state.end_child()
        self._happened(child.state, "its beginning is durable", now)
        self.adopt(child.state.row, now)

    def marker_carried_out(self, parent: H) -> None:
        """The parent has applied a split's marker, so its data has keys of the child, outside of its range."""
        parent.state.trim.suspect()

    def child_recovered(self, parent: H, base: int) -> None:
        """At the node's start, a child is attached to this data as of `base`: so entries up to `base` are committed."""
        parent.state.commit(base)

    def detached(self, child: H, parent_id: int, now: float) -> None:
        """The child's data is no longer attached to its parent's."""
        if self.replicas.get(child.state.id) is child:
            child.state.detached(now)
            self._happened(child.state, "no longer attached to its parent's data", now)
        if (parent := self.replicas.get(parent_id)) is not None:
            self.shared.apply(parent.state)
        self._hand_out()

    # A leader's messages

    def probed(self, replica: H, stream: LeaderStream, kept: list[KeptFile], now: float) -> None:
        """The leader asks where this follower stands: see `Follower.probed`."""
        if (follower := replica.state.follower) is not None:
            follower.probed(stream, kept)
            self._happened(replica.state, "asked by the leader where it stands", now)
            self._end(replica.state)

    def leader_sent(self, replica: H, append: Append, stream: LeaderStream, known_at: float) -> None:
        """The leader sends entries, or its high watermark: see `Follower.append`, also for the errors."""
        if (follower := replica.state.follower) is not None:
            follower.append(append, stream, known_at)
            self._end(replica.state)

    def stream_ended(self, partition_id: int, stream: LeaderStream, now: float) -> None:
        """The leader's stream says nothing more about this partition."""
        replica = self.replicas.get(partition_id)
        follower = replica.state.follower if replica is not None else None
        if replica is not None and follower is not None and follower.stream is stream:
            follower.disconnected()
            self._happened(replica.state, "the leader's stream has ended", now)

    # Followers' messages

    def acknowledged(self, progress: Progress, ack: Ack, now: float) -> None:
        """A follower has answered. Raises INTERNAL for an impossible answer."""
        if (leader := self._leader_of(progress.state.id)) is not None:
            leader.acknowledged(progress, ack, now)
            self._end(progress.state)

    def follower_lost(self, progress: Progress, reason: str, now: float) -> None:
        """The stream to a follower broke."""
        if (leader := self._leader_of(progress.state.id)) is not None:
            leader.disconnected(progress, reason, now)
            self._answered(progress.state.id, f"{progress.node_id}: the stream broke: {reason}", now)

    def checkpoint_sent(self, progress: Progress, offset: int, now: float) -> None:
        """The shell has carried out `SendCheckpoint`: the follower has the data up to `offset`, durably."""
        if (leader := self._leader_of(progress.state.id)) is not None:
            leader.checkpoint_sent(progress, offset, now)
            self._answered(progress.state.id, f"{progress.node_id} has a checkpoint up to {offset}", now)

    def checkpoint_failed(self, progress: Progress, reason: str, now: float) -> None:
        """`SendCheckpoint` has failed."""
        if (leader := self._leader_of(progress.state.id)) is not None:
            leader.checkpoint_failed(progress, reason, now)
            self._answered(progress.state.id, f"no checkpoint for {progress.node_id}: {reason}", now)

    def load_files_brought(self, instruction: BringLoadFiles, now: float, *, has_all: bool) -> None:
        """The shell has carried out this instruction, or (without `has_all`) the follower can't get the files now."""
        progress = instruction.progress
        if (leader := self._leader_of(progress.state.id)) is not None:
            leader.load_files_brought(instruction, now, has_all=has_all)
            what = "has the files of loads" if has_all else "can't get the files of loads now"
            self._answered(progress.state.id, f"{progress.node_id} {what}", now)

    # The controller's answers; the rows that it sent are adopted already

    def hand_over_answered(self, request: HandOverRequest, error: MinkaError | None, now: float) -> None:
        """The controller has answered `AskHandOver`."""
        if (leader := self._leader_of(request.partition_id)) is not None:
            leader.hand_over_answered(request, error, now)
            self._answered(request.partition_id, f"the hand-over is {_outcome(error)}", now)

    def split_answered(self, request: FinishSplitRequest, error: MinkaError | None, now: float) -> None:
        """The controller has answered `AskFinishSplit`."""
        replica = self.replicas.get(request.partition_id)
        if replica is not None and replica.state.split_end is not None:
            replica.state.split_end.answered(request, error, now)
            self._answered(request.partition_id, f"the end of the split is {_outcome(error)}", now)

    def merge_answered(self, request: FinishMergeRequest, error: MinkaError | None, now: float) -> None:
        """The controller has answered `AskFinishMerge`."""
        if (merge := self._merges.get(request.partition_id)) is not None:
            merge.answered(request, error, now)
            self._answered(request.partition_id, f"the end of the merge is {_outcome(error)}", now)

    def isr_in_doubt(self, proposal: IsrProposal, now: float) -> None:
        """The call of the controller has failed: the controller may have recorded the proposal, or may yet do so."""
        if (leader := self._leader_of(proposal.partition_id)) is not None:
            leader.isr_in_doubt(proposal)
            self._answered(proposal.partition_id, "the in-sync set is in doubt", now)

    def isr_refused(self, proposal: IsrProposal, now: float) -> None:
        """The controller refused the proposal; the row is unchanged."""
        if (leader := self._leader_of(proposal.partition_id)) is not None:
            leader.isr_refused(proposal, now)
            self._answered(proposal.partition_id, "the in-sync set is not recorded", now)

    def room_made(self, left_id: int, error: MinkaError | None, now: float) -> None:
        """The shell has carried out `MakeRoom`, or `MakeRoom` has failed with `error`."""
        if (merge := self._merges.get(left_id)) is not None:
            merge.cleared(error, now)
            self._answered(left_id, "there is room for a merge" if error is None else "no room for a merge", now)

    # Time

    def tick(self, partition_id: int, now: float) -> None:
        """It is the time for which a `WakeAt` asked, or later."""
        if (replica := self.replicas.get(partition_id)) is not None:
            replica.state.tick(now)
            self._advance_merge_of(replica.state, now)
            self._end(replica.state)

    def check(self, partition_id: int, now: float, *, stalled: bool, nodes_changed: bool) -> None:
        """See `Leader.check`. `nodes_changed`: nodes have come or gone, or their disks are low or have room again."""
        if (leader := self._leader_of(partition_id)) is not None:
            if nodes_changed:
                leader.nodes_changed(now)
            leader.check(now, stalled=stalled)
            self._now = max(self._now, now)
            self._hand_out()

    def _answered(self, partition_id: int, what: str, now: float) -> None:
        if (state := self._state_of(partition_id)) is not None:
            self._happened(state, what, now)
            self._end(state)

    def _leader_of(self, partition_id: int) -> Leader | None:
        replica = self.replicas.get(partition_id)
        return replica.state.leader if replica is not None else None

    # Merges

    def _advance_merge_of(self, state: Replica, now: float) -> None:
        if self._merges or state.row.merge_from or state.row.merge_into:
            self._advance_merge(state, now)

    def _advance_merge(self, state: Replica, now: float) -> None:
        """The replica has progressed, or has another row: take the next steps of its merge, if there is one."""
        merge = next((one for one in self._merges.values() if state in (one.left, one.right)), None)
        if merge is not None and not merge.goes_on:
            del self._merges[merge.left.id]
            merge.close()
            merge = None
        merge = merge or self._begin_merge(state)
        if merge is not None:
            merge.advance(now)

    def _begin_merge(self, state: Replica) -> Merge | None:
        left = state if state.row.merge_from else self._state_of(state.row.merge_into)
        if left is None or not left.row.merge_from:
            return None
        right = self._state_of(left.row.merge_from)
        # Perhaps the row names another right partition, while the earlier merge of the left one isn't over here.
        if right is None or state not in (left, right) or not is_due(left, right):
            return None
        assert left.id not in self._merges, f"partition {left.id} is being merged already"
        merge = self._merges[left.id] = Merge(left, right)
        return merge

    def _state_of(self, partition_id: int) -> Replica | None:
        replica = self.replicas.get(partition_id)
        return replica.state if replica is not None else None


def _drop(_: Instruction) -> None:
    """Drop an instruction: until the shell has set `carry_out`, nothing happens to a replica."""


def _outcome(error: MinkaError | None) -> str:
    return "recorded" if error is None else f"not recorded, or in doubt: {error.code.name}"


# The instructions that go into a replica's story: for each, the partition and the text. Most of the other instructions
# come with every write, and would fill the story.
_TOLD: Final[dict[type[Instruction], Callable[[Any], tuple[int, str]]]] = {
    i.StartSending: lambda it: (it.progress.state.id, f"begin to send to {it.progress.node_id}"),
    i.StopSending: lambda it: (it.progress.state.id, f"stop sending to {it.progress.node_id}"),
    i.SendCheckpoint: lambda it: (it.progress.state.id, f"send {it.progress.node_id} a checkpoint"),
    i.CancelCheckpoint: lambda it: (it.progress.state.id, f"send {it.progress.node_id} no checkpoint"),
    i.IsrProposal: lambda it: (it.partition_id, f"propose that {', '.join(it.isr)} are in sync"),
    i.AskHandOver: lambda it: (it.request.partition_id, f"ask to hand over to {it.request.target}"),
    i.AskFinishSplit: lambda it: (it.request.partition_id, "ask to end the split"),
    i.AskFinishMerge: lambda it: (it.request.partition_id, "ask to end the merge"),
    i.GiveUp: lambda it: (it.partition_id, f"give up the writes that wait: {it.reason}"),
    i.MakeRoom: lambda it: (it.left_id, "make room for a merge"),
    i.GateOpened: lambda it: (it.partition_id, f"writes go on after {it.seconds:.3f} s"),
    i.SyncEpoch: lambda it: (it.partition_id, f"lead at epoch {it.leader_epoch}"),
    i.OpenData: lambda it: (it.partition_id, "open the data"),
}
