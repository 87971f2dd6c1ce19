"""One replica on this node: it acts by its row, its log and the messages of other nodes."""

from contextlib import suppress

from minka.cluster.key_ranges import KeyRange
from minka.errors import MinkaError
from minka.v1.cluster_pb2 import Durability, Partition
from minkad.core.replication.entries import TrimToRange, encode_mark, is_mark
from minkad.core.replication.following import Follower
from minkad.core.replication.instructions import GiveUp, Level, OpenData, Reached, Sync, SyncEpoch
from minkad.core.replication.leadership import Leader
from minkad.core.replication.replica_state import UNKNOWN_MIN_INSYNC, ReplicaState, Role, role_in
from minkad.core.replication.replica_storage import ReplicaData, ReplicaLog
from minkad.core.replication.shared_state import SharedState
from minkad.core.replication.split import SplitEnd, marker_due
from minkad.core.state import range_of


class Replica(ReplicaState):
    """`Node` calls the methods, for events. They put instructions into the node's outbox."""

    __slots__ = ("_sync", "_sync_to_disk", "follower", "leader", "shared", "split_end")

    def __init__(
        self, shared: SharedState, row: Partition, log: ReplicaLog, data: ReplicaData, change_bytes: int = 0
    ) -> None:
        """`change_bytes`: see `Retention`."""
        super().__init__(row, log, data, change_bytes)
        self.shared = shared
        self.leader: Leader | None = None  # only if the role is LEADER; not while `awaits_data`
        self.follower: Follower | None = None  # exactly if the role is FOLLOWER
        self.split_end: SplitEnd | None = None  # set once this replica leads the child of a split
        # The instructions for each append, made once.
        self._sync, self._sync_to_disk = Sync(row.id, on_disk=False), Sync(row.id, on_disk=True)

    @property
    def waits_for(self) -> str:
        """The reason why requests wait here, for the error of a request that has waited in vain."""
        if self.awaits_data:
            return "its data is being opened"
        if self.leader is not None and self.leader.counted and not self.is_ready:
            return "it waits for its in-sync set to have what may be acknowledged"
        return self.gate.state.value

    def recover(self, *, is_complete: bool, has_foreign: bool) -> None:
        """The node has started, and has read the row and the log from disk. `is_complete`: log and data fit together.
        `has_foreign`: the data may have keys outside of the range.
        """
        self.recovered(self.log.end, is_complete=is_complete)
        if has_foreign:
            self.trim.suspect(self.row.partition_epoch)
        self.led_before = self.row.leader_epoch if self.row.leader == self.shared.id else 0

    # Its row

    def adopt(self, row: Partition, now: float) -> bool:
        """Take over a row that isn't older than the replica's own, and act by it at once. Returns True if a merge has
        added another partition's range.
        """
        self._note_led(now)
        was, old_role = self.row, self.role
        before, after = range_of(was), range_of(row)
        has_grown = after != before and after.covers(before)
        was_given_up = was.merge_from > row.merge_from
        if has_grown:
            self.trim.taken_over()
        elif was_given_up:
            self.trim.suspect(row.partition_epoch)  # the merge may have copied rows after the last mark
        elif not after.covers(before):
            self.trim.suspect()
        self.row = row
        self.role = self._role()
        self.learn_keyspace()
        if self.role is not old_role or row.leader_epoch != was.leader_epoch:
            self._change_role(old_role, now)
        elif self.leader is not None:
            self.leader.row_changed(now, skipped=row.partition_epoch > was.partition_epoch + 1)
        if has_grown:
            # The merge copied the new range through the log. Until a follower has these entries, it
            # doesn't know how old its data is.
            self.freshness.begin_again()
        self._restructure(now)
        return has_grown

    def learn_keyspace(self) -> None:
        """Take over the keyspace's settings. This node may get a row before it knows the row's keyspace."""
        keyspace = self.shared.view.keyspace(self.row.keyspace_id)
        self.min_insync = UNKNOWN_MIN_INSYNC if keyspace is None else max(1, keyspace.min_insync)
        self.allows_unclean = keyspace is not None and keyspace.unclean_election
        self.is_async = keyspace is not None and keyspace.durability == Durability.DURABILITY_ASYNC

    def stop_leading(self, now: float) -> None:
        """Another node may lead by now: this node leads again only at a greater leader_epoch."""
        if self.row.leader == self.shared.id:
            self.led_before = self.row.leader_epoch
        if self.role is Role.LEADER:
            self.stop_serving(now)

    def stop_serving(self, now: float) -> None:
        """Keep the copy and do nothing until a new row comes."""
        self._note_led(now)
        self.role = Role.IDLE
        self._change_role(Role.LEADER, now)

    def _note_led(self, now: float) -> None:
        self.note_led(self.shared.view.last_clearance(now))

    def _role(self) -> Role:
        row = self.row
        role = role_in(row, self.shared.id)
        if role is Role.REMOVED:
            return role
        if row.id in self.shared.failed or self.awaits_split:
            return Role.IDLE
        if role is Role.LEADER and row.leader_epoch <= self.led_before:
            return Role.IDLE  # this disk may have lost writes of this epoch that other nodes have: see `led_before`
        return role

    def _change_role(self, old: Role, now: float) -> None:
        if self.leader is not None:
            self.leader.close(now)
        if self.follower is not None:
            self.follower.disconnected()
        self.leader = self.follower = self.split_end = None
        self.awaits_data = False
        self.trim.is_announced = False
        self.gate.thaw()
        self.forget_raised()
        if old is Role.LEADER and self.role is not Role.LEADER:
            self.shared.outbox.append(GiveUp(self.id, "the node lost the leadership meanwhile"))
        self.log.keep_tail(self.role is Role.FOLLOWER)
        if self.role is Role.LEADER:
            self._lead(now)
        elif self.role is Role.FOLLOWER:
            self.follower = Follower(self.shared, self)

    def _lead(self, now: float) -> None:
        """Serve once everything in the log is applied."""
        self.shared.outbox.append(Reached("replica.lead"))
        self._lead_when_open(now)

    def _lead_when_open(self, now: float) -> None:
        """Lead at once if the log is empty or the data's offset is known; else once the data is open, since the data
        may be ahead of an `async` log.
        """
        is_usable = self.is_complete and self.damage is None
        is_unknown = self.data.is_closed and not self.data.is_known
        self.awaits_data = is_usable and self.log.end > self.log.base and is_unknown
        if self.awaits_data:
            self.shared.outbox.append(OpenData(self.id))
            return
        with suppress(MinkaError):  # with damaged data it serves nothing, but others can catch up, and then lead
            self.check_data()
            if self.data.is_known or not self.data.is_closed:
                self.take_over_data()
        if not self.data.is_known:
            self.begin_unknown()
        self.ready_at = self.log.end
        self.leader = Leader(self.shared, self, now)
        self.shared.outbox.append(SyncEpoch(self.id, self.row.leader_epoch))

    # Its data

    def data_opened(self, now: float) -> None:
        """The shell has opened the data, found it unusable, or replaced it meanwhile."""
        if self.damage is None and not self.data.is_closed:
            with suppress(MinkaError):
                self.take_over_data()
        if self.awaits_data:
            self._lead_when_open(now)
            self._restructure(now)
        elif self.follower is not None:
            self.follower.data_opened()
        self.shared.apply(self)

    def age(self, now: float) -> float:
        """The seconds since the data was certainly up to date; infinite if it never was. A leader's data was up to date
        when its node last had clearance.
        """
        if self.role is Role.LEADER:
            self._note_led(now)
        elif self.follower is not None:
            self.follower.refresh()
        return now - self.freshness.at

    def given_up(self, now: float) -> None:
        """The data is damaged, and can't be made again from the log. A follower tells the leader; a leader leaves the
        in-sync set, so that another replica leads.
        """
        self.shared.outbox.append(GiveUp(self.id, str(self.damage)))
        if self.leader is not None:
            self.leader.row_changed(now)
        elif self.follower is not None:
            self.follower.needs_checkpoint()

    def detached(self, now: float) -> None:
        """The data of this split's child is no longer attached to the parent's data."""
        if self.follower is not None:
            self.follower.stored()
        self._restructure(now)
        self.shared.apply(self)

    def data_failed(self, error: MinkaError) -> bool:
        """The shell can't open the data now. Returns False if the replica can't go on without it: a replica that was to
        lead goes on as IDLE, another one only if it has applied all committed entries.
        """
        if not self.awaits_data:
            return self.applied >= self.high_watermark
        self.shared.outbox.report(Level.ERROR, "a partition can't be served", partition=self.id, reason=str(error))
        self.shared.failed[self.id] = error
        self.awaits_data, self.role = False, Role.IDLE
        return True

    # Its log

    def append(self, body: bytes) -> int:
        """Append an entry as the leader, and return its offset. A mark is a barrier, and so is an entry while
        `needs_disk`.
        """
        assert self.leader is not None, f"partition {self.id} is not led here"
        offset = self.log.append(self.leader.leader_epoch, body)
        if is_mark(body) or self.needs_disk:
            self.barrier(offset)
            self.shared.outbox.append(self._sync_to_disk)
        else:
            self.shared.outbox.append(self._sync)
        self.leader.appended()
        return offset

    def announce_trim(self, kept: KeyRange, *, copies_follow: bool = False) -> None:
        """Append, as the leader, the mark that says which keys stay."""
        self.trim.is_announced = True
        self.append(encode_mark(TrimToRange(*kept, self.row.partition_epoch, copies_follow)))

    def trimmed(self, mark: TrimToRange, *, removed_any: bool) -> None:
        """The keys outside of the mark's range are removed from the data."""
        self.trim.applied(mark.range, mark.partition_epoch, removed_any=removed_any)
        range_ = range_of(self.row)
        if mark.copies_follow and (range_ == mark.range or not range_.covers(mark.range)):
            # The merge isn't over, or was given up. The log may have rows that the merge copied after the mark.
            self.trim.copied_after_mark()

    def advance(self) -> None:
        """Move the high watermark, if more is committed."""
        if self.leader is not None:
            self.leader.advance()
        elif self.follower is not None:
            self.follower.advance()

    # What happens to it

    def log_stored(self, end: int, truncations: int, now: float, *, on_disk: bool) -> None:
        """See `stored`. A follower acknowledges even if `durable` is unchanged."""
        self.stored(end, truncations, on_disk=on_disk)
        if self.leader is not None:
            self.leader.stored()
            if self.leader.progress:
                self.leader.progressed(now)
        elif self.follower is not None:
            self.follower.stored()

    def applied_to(self, offset: int, now: float) -> None:
        """The data has everything up to `offset`."""
        self.has_applied(offset)
        if self.leader is not None:
            if self.gate.is_closed:
                self.leader.progressed(now)
            self._restructure(now)
        elif self.role is Role.FOLLOWER:
            self.log.drop_tail(offset)

    def tick(self, now: float) -> None:
        """It is the time for which a `WakeAt` asked, or later."""
        if self.leader is not None:
            self.leader.tick(now)
            self._restructure(now)

    def _restructure(self, now: float) -> None:
        """Take the leader's next step in a split. Append the mark that removes foreign keys, if there may be any."""
        leader = self.leader
        if leader is None:
            return
        if self.row.splitting and not self.row.split_to:
            self.split_end = self.split_end or SplitEnd(self.shared, leader)
            self.split_end.advance(now)
        elif (marker := marker_due(self.shared, leader)) is not None:
            leader.marked_split = marker.child_id
            self.shared.outbox.append(Reached("split.mark"))
            self.append(encode_mark(marker))
        elif self.is_to_be_trimmed:
            self.announce_trim(range_of(self.row))

    @property
    def is_to_be_trimmed(self) -> bool:
        """True if the leader has to append a mark that says which keys stay."""
        trim = self.trim
        if not trim.has_foreign or trim.is_announced or trim.removed_outside is not None:
            return False
        return self.is_ready and not self.takes_in_others_keys
