"""One replica's leadership at one leader_epoch: its followers, the in-sync set, and the hand-over."""

from collections.abc import Sequence
from dataclasses import replace

from minka.cluster.in_sync import eligible_replicas, has_everything
from minka.errors import MinkaError
from minka.v1.coordinator_pb2 import HandOverRequest, MigrationPhase, MigrationProgress
from minkad.core.replication.caught_up import CaughtUp
from minkad.core.replication.checkpoints import Checkpoints
from minkad.core.replication.eligibility import Eligibility
from minkad.core.replication.follower_progress import Progress, Reaction, Stage
from minkad.core.replication.hand_over import HandOver
from minkad.core.replication.instructions import (
    BringLoadFiles,
    CancelCheckpoint,
    IsrProposal,
    Level,
    Send,
    SendWatermark,
    StartSending,
    StopSending,
    WakeAt,
)
from minkad.core.replication.load_marks import LoadMarks
from minkad.core.replication.peer_messages import Ack, Standing
from minkad.core.replication.replica_state import Copy, ReplicaState
from minkad.core.replication.shared_state import SharedState

_PHASE = MigrationPhase


class Leader:
    """The high watermark waits for the counted replicas. These are the in-sync set and the replicas that may have
    joined it: those that are about to join and, until the outcome of a proposal is known, those in the old set or in
    the proposed one (KIP-497). The eligible replicas count, too, so that they have all committed entries (KIP-966).

        leader (durable)         ---------------------------> 120
        b      (in sync)         ----------------------> 110
        c      (about to join)   -----------------> 100        so entries up to 100 are committed
        d      (not counted)     ----> 40                      d doesn't delay them
    """

    def __init__(self, shared: SharedState, state: ReplicaState, now: float) -> None:
        self.state = state
        self.leader_epoch = state.row.leader_epoch  # never changes: a new epoch is another leadership
        self.proposed: IsrProposal | None = None  # at most one at a time, until its outcome is known
        self.progress: dict[str, Progress] = {}  # by node, for all other replicas
        self.counted: Sequence[Progress] = ()  # the followers that the high watermark waits for: a part of `progress`
        self.load_marks = LoadMarks(shared)
        self.marked_split = 0  # the child for whose split this leadership has appended a marker
        self._shared = shared
        self._checkpoints = Checkpoints(shared)
        self._joining: set[str] = set()  # followers about to join the in-sync set; the high watermark waits for them
        self._eligible = Eligibility(shared, state)
        self._usable: set[str] = set()  # nodes with usable copies, while the leader's can't be used
        self._held: dict[str, float] = {}  # node -> the time until which it isn't proposed again, after a refusal
        self._caught_up: dict[str, CaughtUp] = {}  # by node, with the keys of `progress`
        self._hand_over: HandOver | None = None  # while the row names a successor
        self._has_paused = False  # at least one follower is paused, since its disk is low
        # The last `check` left nothing to do, so it removed the partition from `SharedState.unsettled`. Something has
        # happened since; the next `check` clears this.
        self._was_settled = False
        shared.in_sync_sets[state.id] = self
        shared.unsettled.add(state.id)
        self.row_changed(now)

    # What happens

    def row_changed(self, now: float, *, skipped: bool = False) -> None:
        """The replica has a newer row of the same leadership. `skipped`: it isn't the next one after the last row."""
        self._stir()
        state, row = self.state, self.state.row
        others = {node for node in row.replicas if node not in row.removing_replicas} | set(row.isr)
        others.discard(self._shared.id)
        for node in sorted(self.progress.keys() - others):
            self._remove(node)
        if skipped:
            # A row between the two may have removed a follower, so that its node has another copy now. This copy takes
            # no entries before it has answered a probe.
            for node in sorted(self.progress.keys() - set(row.isr)):
                self._probe(self.progress[node])
        for node in sorted(others - self.progress.keys()):
            self._add(node, now)
        if state.log.keeps_tail != bool(others):
            state.log.keep_tail(bool(others))
        if self.proposed is not None and row.partition_epoch > self.proposed.partition_epoch:
            self.proposed = None
        self._joining -= set(row.isr)
        for node in row.isr:
            state.retention.copied(node)
        self._note_migrating()
        self.recount()
        self._pause_without_room()
        self._change_hand_over(now)
        for node in sorted(self._eligible.lost.difference(has_everything(row))):
            self._eligible.lost.discard(node)
            if node in self.progress:
                self._probe(self.progress[node])  # it is sent a checkpoint now
        self.shrink()

    def close(self, now: float) -> None:
        """The leadership is over. The answer to its last proposal may still come, and has no effect."""
        if self._hand_over is not None:
            self._hand_over.cancel(now)
            self._hand_over = None
        for node in list(self.progress):
            self._remove(node)
        self.proposed, self.counted = None, ()
        self._shared.in_sync_sets.pop(self.state.id, None)
        self._shared.unsettled.discard(self.state.id)
        self._shared.migrating.discard(self.state.id)
        self.state.log.keep_tail(False)

    def epoch_durable(self) -> None:
        """The disk knows that this node leads at this epoch: after a crash, the node won't lead at it again."""
        self.state.durable_epoch = self.leader_epoch
        self._send_to_all()

    def appended(self) -> None:
        """The log is longer."""
        self._stir()
        self._send_to_all()

    def stored(self) -> None:
        """More of the log is durable."""
        self._send_to_all()
        self.advance()

    def nodes_changed(self, now: float) -> None:
        """Nodes have come or gone, or their disks are low or have room again."""
        self._stir()
        self._advance_hand_over(now)
        self.shrink()

    def progressed(self, now: float) -> None:
        """The replica has applied more, or more of its log is durable. A hand-over may go on; a follower may join."""
        self._advance_hand_over(now)
        for node, progress in self.progress.items():
            if node not in self.state.row.isr:
                self._consider(progress, now)

    def acknowledged(self, progress: Progress, ack: Ack, now: float) -> None:
        """A follower has answered. Raises INTERNAL for an impossible answer."""
        if self.progress.get(progress.node_id) is not progress:
            return
        self._stir()
        reaction = progress.acknowledged(ack)
        if reaction is Reaction.STANDS:
            self._stands(progress, ack, now)
        elif reaction is Reaction.MATCHED:
            self._send(progress)
            self._matched(progress, now)

    def disconnected(self, progress: Progress, reason: str, now: float) -> None:
        """The stream to a follower broke, perhaps with messages: the leader probes the follower on the next stream."""
        self._stir()
        progress.error, progress.fell_behind = reason, False
        self.state.retention.late(progress.node_id)
        self._probe(progress)
        self._matched(progress, now)

    def checkpoint_sent(self, progress: Progress, offset: int, now: float) -> None:
        """The follower has a checkpoint up to `offset` in place, durably. If the stream broke meanwhile, the leader
        probes the follower on the next stream instead.
        """
        if self.progress.get(progress.node_id) is not progress or not self._checkpoints.sent(progress.node_id):
            return
        if progress.stage is Stage.CHECKPOINT:
            self._replicate(progress, offset, now)

    def checkpoint_failed(self, progress: Progress, reason: str, now: float) -> None:
        """The checkpoint did not arrive: after a pause, the leader probes the follower again."""
        if self.progress.get(progress.node_id) is progress:
            self._checkpoints.failed(self.state.id, progress.node_id, reason, now)

    def tick(self, now: float) -> None:
        """It is the time for which a `WakeAt` asked, or later."""
        self._advance_hand_over(now)
        for node in self._checkpoints.due(now):
            self._probe(self.progress[node])

    def check(self, now: float, *, stalled: bool) -> None:
        """Propose an in-sync set without the replicas that have lagged for longer than `lag_timeout`, or have no room.
        Call this method often while the partition is in `SharedState.unsettled`. `stalled`: this node's own process
        stood still, so no replica counts as late.
        """
        isr = self.state.row.isr
        late = self._without_room()
        self._pause_without_room()
        self._note_late(late, now, stalled=stalled)
        self.shrink()
        if late and self.proposed is None and not self.state.gate.is_closed:
            self._shared.outbox.report(
                Level.WARNING, "replicas are no longer in sync", partition=self.state.id, late=late
            )
            self._propose([node for node in isr if node not in late])
        else:
            self.progressed(now)
        if self._has_settled():
            self._shared.unsettled.discard(self.state.id)

    def _note_late(self, late: list[str], now: float, *, stalled: bool) -> None:
        """Add to `late` the in-sync replicas that have lagged for longer than `lag_timeout`."""
        end, isr = self.state.log.end, self.state.row.isr
        was_settled, self._was_settled = self._was_settled, False
        self._eligible.late.clear()
        for node, progress in self.progress.items():
            seen = self._caught_up[node]
            seen.observe(progress, end, now)
            if stalled or (was_settled and node in isr):
                seen.at = now
            if now - seen.at > self._shared.settings.lag_timeout and node not in late:
                self._eligible.late.add(node)
                if node in isr:
                    late.append(node)
                elif not self._checkpoints.is_catching_up(progress):
                    self.state.retention.late(node)
                self._stop_joining(node)

    def _stir(self) -> None:
        """Something has happened, so `check` may have work."""
        if self.state.id not in self._shared.unsettled:
            self._was_settled = True
            self._shared.unsettled.add(self.state.id)

    def _has_settled(self) -> bool:
        """True if `check` has no work until something happens."""
        state, row = self.state, self.state.row
        if self.proposed is not None or self._hand_over is not None or self._joining or self._eligible.lost:
            return False
        if row.adding_replicas or row.successor or state.gate.is_closed or state.copy is not Copy.WHOLE:
            return False
        if state.damage is not None or self._checkpoints.any_under_way() or self._eligible.is_awaited:
            return False
        return all(self._is_at_rest(node, progress) for node, progress in self.progress.items())

    def _is_at_rest(self, node: str, progress: Progress) -> bool:
        """True if a follower has the whole log, or is absent and not in sync."""
        if node in self.state.row.isr:
            return progress.is_aligned and not progress.lag
        return not progress.is_replicating and self._shared.view.is_absent(node)

    # The high watermark

    def advance(self) -> None:
        """Move the high watermark to `in_sync_end`."""
        state, end = self.state, self.in_sync_end()
        if end > state.high_watermark:
            state.commit(end)
            if self.progress:
                state.log.drop_tail(end)
                makes_child = bool(state.row.splitting and state.row.split_to)
                for progress in self.progress.values():
                    if progress.is_replicating:
                        self._shared.outbox.append(SendWatermark(progress, at_once=makes_child))
        elif self.progress:
            state.log.bound_tail(state.durable)
        self._shared.apply(state)

    def in_sync_end(self) -> int:
        """Return the last offset that the leader and all counted followers have, as far as the leader knows.

        If fewer than `min_insync` replicas are in sync, this is at most `ready_at`, since a former leader may have
        acknowledged the entries up to there. Example: the log was at 90 when this leadership began, and all counted
        replicas have it up to 100. The method returns 100 with two replicas in sync, and 90 with one, if `min_insync`
        is 2. The high watermark never falls, so the result is never below it.
        """
        state = self.state
        end = state.durable
        for progress in self.counted:
            if progress.matched < end:
                end = progress.matched
        if end > state.ready_at and len(state.row.isr) < state.min_insync:
            end = state.ready_at
        return max(end, state.high_watermark)

    # Followers

    def _add(self, node: str, now: float) -> None:
        progress = self.progress[node] = Progress(node, self.state)
        self._caught_up[node] = CaughtUp(now, self.state.log.end, now)
        self._shared.outbox.append(StartSending(progress))

    def _remove(self, node: str) -> None:
        progress = self.progress.pop(node)
        if self._checkpoints.forget(node):
            self._shared.outbox.append(CancelCheckpoint(progress))
        self._joining.discard(node)
        self._usable.discard(node)
        self.load_marks.forget(node)
        del self._caught_up[node]
        progress.wait_for_checkpoint()
        self.state.retention.release(node)
        self._shared.outbox.append(StopSending(progress))

    def _send(self, progress: Progress) -> None:
        if progress.wants_sending:
            progress.is_queued = True
            self._shared.outbox.append(Send(progress))

    def _send_to_all(self) -> None:
        for progress in self.progress.values():
            self._send(progress)

    def _probe(self, progress: Progress) -> None:
        self.load_marks.forget(progress.node_id)
        progress.probe()
        self._send(progress)

    def _replicate(self, progress: Progress, offset: int, now: float) -> None:
        progress.replicate(offset)
        retention, node = self.state.retention, progress.node_id
        if node not in self.state.row.isr and retention.copy_log(node) is None:
            self._shared.copy_logs.keep(self.state, node, offset, self._shared.settings.copy_log_bytes)
        self._send(progress)
        self._matched(progress, now)

    def _stands(self, progress: Progress, ack: Ack, now: float) -> None:
        """A follower says what its log has. Send the entries after the last common one, or a checkpoint if that isn't
        possible or would take longer. A checkpoint never replaces the copy of an in-sync replica, even an empty copy:
        perhaps no other replica can lead.
        """
        node = progress.node_id
        if self._checkpoints.is_under_way(node):
            return
        common = None
        if ack.standing == Standing.STORED and ack.lineage:
            common = self.state.log.common_end(ack.lineage, ack.offset)
        if self._has_lost(node, ack.standing, common):
            self._shared.outbox.report(
                Level.ERROR,
                "a replica in sync has lost what it had; it leaves the in-sync set",
                partition=self.state.id,
                node=node,
                at=common,
            )
            self._eligible.lost.add(node)
            self.shrink()
        elif common is not None and (common > 0 or node in has_everything(self.state.row) or self._is_short()):
            self._replicate(progress, common, now)
        elif ack.standing == Standing.STORED and self.state.copy is Copy.INCOMPLETE:
            self._usable.add(node)
            self.shrink()
        else:
            self._checkpoints.begin(progress, ack.kept)
            self._note_migrating()

    def _has_lost(self, node: str, standing: int, common: int | None) -> bool:
        """True if the node is in sync, or eligible, and lacks committed entries. The node must leave the in-sync set
        before a checkpoint replaces its copy: if this leader died during the transfer, the controller would elect the
        node, with an unusable copy.
        """
        if node not in has_everything(self.state.row):
            return False
        return standing != Standing.STORED or common is None or common < self.state.high_watermark

    def _is_short(self) -> bool:
        """True if the log has all entries from the first on, in at most `log_only_bytes`: such a log is sent instead of
        a checkpoint.
        """
        log, end = self.state.log, self.state.durable
        if log.base > 0 or end == 0:
            return end == 0
        limit = self._shared.settings.log_only_bytes
        entries = log.read(1, end, limit)
        return len(entries) == end and sum(len(entry.body) for entry in entries) <= limit

    def _matched(self, progress: Progress, now: float) -> None:
        """A follower has more entries than before, or its stream has broken."""
        node = progress.node_id
        if not progress.is_replicating:
            if self._checkpoints.of(node).is_sending:
                self.state.retention.in_time(node)
            self._stop_joining(node)
        self.advance()
        if self.state.row.splitting:
            self._shared.outbox.append(WakeAt(self.state.id, now))  # perhaps now all followers have made the child
        if node not in self.state.row.isr:
            self._caught_up[node].observe(progress, self.state.log.end, now)
            self._consider(progress, now)
        self._advance_hand_over(now)

    # The in-sync set

    def shrink(self) -> None:
        """Propose an in-sync set without the nodes that are absent or have lost entries, so that writes need not wait
        for these nodes.

        Only a leader shrinks the set. If the controller shrank it while the leader is silent, the partition would still
        have no leader, and fewer replicas could become leader. A leader whose own data is damaged leaves the set, so
        that another replica leads; if the leader was alone in the set, it proposes the eligible replicas besides
        itself. After an unclean election, a leader with an unusable copy proposes the replicas with usable copies.
        """
        state, own = self.state, self._shared.id
        isr = state.row.isr
        left = [n for n in isr if n == own or (n not in self._eligible.lost and not self._shared.view.is_absent(n))]
        if state.damage is not None and state.copy is not Copy.REBUILDING:
            if len(left) > 1:
                left.remove(own)
            else:
                left += [n for n in self._eligible.beside(left) if not self._shared.view.is_absent(n)]
        if left == [own] and state.allows_unclean and state.copy is Copy.INCOMPLETE:
            left = [node for node in sorted(self._usable) if not self._shared.view.is_absent(node)] or left
        are_gone = any(self._eligible.is_given_up(node) for node in eligible_replicas(state.row))
        if (left != list(isr) or are_gone) and self.proposed is None and not state.gate.is_closed:
            self._propose(left)

    def isr_in_doubt(self, proposal: IsrProposal) -> None:
        """It isn't known whether the controller records the proposal: propose it again."""
        if self.proposed is proposal:
            self.proposed = replace(proposal, in_doubt=True)
            self._shared.outbox.append(self.proposed)

    def isr_refused(self, proposal: IsrProposal, now: float) -> None:
        """The controller refused the proposal; the row is unchanged."""
        if self.proposed is not proposal:
            return
        self._stir()
        until = now + self._shared.settings.longest_backoff
        for node in self._joining:
            self._held[node] = until
        row = self.state.row
        if proposal.in_doubt and set(proposal.isr) != set(row.isr):
            # The controller may yet record an earlier try. A newer row rules that out, so propose the present set.
            self.proposed = replace(proposal, isr=tuple(row.isr), eligible=tuple(eligible_replicas(row)))
            self._shared.outbox.append(self.proposed)
            return
        self._joining.clear()
        self.proposed = None
        self.recount()

    def may_be_in_sync(self) -> set[str]:
        """The in-sync replicas, the eligible ones, and those that may have joined the in-sync set."""
        return {*has_everything(self.state.row), *self._joining}

    def recount(self) -> None:
        """The result of `may_be_in_sync` has changed: count again. During a split, the child's leader also counts the
        replicas that count for the parent.
        """
        row, names = self.state.row, self.may_be_in_sync()
        others = self._shared.in_sync_sets
        if row.splitting and not row.split_to and (parent := others.get(row.split_from)) is not None:
            names |= parent.may_be_in_sync()
        self.counted = [progress for node, progress in self.progress.items() if node in names]
        assert names - {self._shared.id} <= self.progress.keys(), f"{names} of {self.progress.keys()}"
        self.advance()
        if row.splitting and row.split_to and (child := others.get(row.split_to)) is not None:
            child.recount()

    def _stop_joining(self, node: str) -> None:
        if node in self._joining and self.proposed is None:
            self._joining.discard(node)
            self.recount()

    def _consider(self, progress: Progress, now: float) -> None:
        """Let a follower join the in-sync set once it has all entries that anybody may have acknowledged, and none that
        its leader lacks (if the follower were elected, such an entry would come back).

        Once the follower is near that point, the high watermark waits for it; under load, the follower might otherwise
        never get there.
        """
        node, state = progress.node_id, self.state
        if not progress.is_aligned or progress.is_attached or self._shared.view.is_absent(node):
            return
        if self._may_precede_split() or node in self._shared.view.low_disks():
            return
        if node not in self._joining:
            keeps_up = now - self._caught_up[node].at <= self._shared.settings.lag_timeout
            if not progress.is_near or not keeps_up or now < self._held.get(node, 0.0):
                return
            if not self.load_marks.has_files(progress):
                return
            self._joining.add(node)
            self.recount()
        has_all = progress.matched >= max(state.high_watermark, state.ready_at)
        if has_all and self.proposed is None and not state.gate.is_closed and self.load_marks.has_files(progress):
            self._propose([*state.row.isr, node])

    def load_files_brought(self, instruction: BringLoadFiles, now: float, *, has_all: bool) -> None:
        """See `Node.load_files_brought`."""
        if not self.load_marks.brought(instruction, has_all=has_all):
            return
        self._stir()
        if has_all:
            self._consider(instruction.progress, now)
        else:
            self._held[instruction.progress.node_id] = now + self._shared.settings.longest_backoff
            self._stop_joining(instruction.progress.node_id)

    def _may_precede_split(self) -> bool:
        """True if a node that joins now might be unable to make the child of a split: for that, the node needs a copy
        from before the marker. The leader's copies surely precede the marker while the leader is ready (it has applied
        the log with which it began) and has not come to the marker.
        """
        row = self.state.row
        return row.splitting and (not row.split_to or not self.state.is_ready or self._shared.is_made(row.split_to))

    def _without_room(self) -> list[str]:
        """The in-sync replicas whose disks are low, if writes can go on without them. Otherwise these replicas stay in
        sync, and the partition takes only deletes: a replica that lags would need even more room to catch up.
        """
        row, low = self.state.row, self._shared.view.low_disks()
        if not low:
            return []
        without = [node for node in row.isr if node in low]
        if self._shared.id in low or len(row.isr) - len(without) < max(1, self.state.min_insync):
            return []
        return without

    def _pause_without_room(self) -> None:
        """Send no entries to nodes whose disks are low and that aren't in sync."""
        low, isr = self._shared.view.low_disks(), self.state.row.isr
        if not low and not self._has_paused:
            return
        self._has_paused = any(node in low and node not in isr for node in self.progress)
        for node, progress in self.progress.items():
            if progress.pause(node in low and node not in isr):
                self._send(progress)

    def _propose(self, isr: list[str]) -> None:
        row = self.state.row
        counted = self.may_be_in_sync() | self._usable
        assert set(isr) <= counted, f"{isr} has nodes that are not among {counted}"
        eligible = self._eligible.proposed(isr)
        self.proposed = IsrProposal(row.id, self.leader_epoch, row.partition_epoch, tuple(isr), eligible)
        self._shared.outbox.append(self.proposed)

    # The end

    def _change_hand_over(self, now: float) -> None:
        successor = self.state.row.successor
        if self._hand_over is not None and self._hand_over.successor != successor:
            self._hand_over.cancel(now)
            self._hand_over = None
        progress = self.progress.get(successor)
        if self._hand_over is None and progress is not None:
            self._hand_over = HandOver(self._shared, self.state, progress)
        self._advance_hand_over(now)

    def _advance_hand_over(self, now: float) -> None:
        if self._hand_over is not None:
            was_closed = self.state.gate.is_closed
            self._hand_over.advance(now)
            self._after_hand_over(was_closed)

    def hand_over_answered(self, request: HandOverRequest, error: MinkaError | None, now: float) -> None:
        """The controller has answered `AskHandOver`; the rows that it sent are adopted already."""
        if self._hand_over is not None:
            was_closed = self.state.gate.is_closed
            self._hand_over.answered(request, error, now)
            self._after_hand_over(was_closed)

    def _after_hand_over(self, was_closed: bool) -> None:
        if was_closed and not self.state.gate.is_closed:
            self.shrink()  # a leader proposes nothing while the gate is closed

    # For metrics and progress

    def lags(self, now: float) -> dict[str, tuple[int, float]]:
        """By follower: the number of entries that it lacks, and the seconds since it last had the whole log."""
        found: dict[str, tuple[int, float]] = {}
        for node, progress in self.progress.items():
            has_just_begun = self._was_settled and node in self.state.row.isr
            lacks_any = progress.lag and not has_just_begun
            found[node] = (progress.lag, max(now - self._caught_up[node].at, 0.0) if lacks_any else 0.0)
        return found

    def migrations(self) -> list[MigrationProgress]:
        """The progress of the followers that the controller adds, that get a checkpoint, or that are to lead."""
        row = self.state.row
        if not (row.adding_replicas or row.successor or self._checkpoints):
            return []
        nodes = [
            node
            for node in self.progress
            if node in row.adding_replicas or node == row.successor or self._checkpoints.of(node).is_sending
        ]
        return [self._migration(node, self.progress[node]) for node in nodes]

    def _note_migrating(self) -> None:
        row = self.state.row
        if row.adding_replicas or row.successor or self._checkpoints:
            self._shared.migrating.add(self.state.id)
        else:
            self._shared.migrating.discard(self.state.id)

    def _migration(self, node: str, progress: Progress) -> MigrationProgress:
        is_replicating, transfer = progress.is_replicating, self._checkpoints.of(node)
        made = MigrationProgress(
            partition_id=self.state.id,
            target=node,
            lag=progress.lag,
            phase=_PHASE.MIGRATION_PHASE_FOLLOW if is_replicating else _PHASE.MIGRATION_PHASE_CHECKPOINT,
            blocked_by=progress.error,
            tries=transfer.tries,
            restarted_by=transfer.restarted_by,
        )
        if (copy_log := self.state.retention.copy_log(node)) is not None:
            made.kept_log_bytes = copy_log.kept
        if transfer.blocked_by and not is_replicating:
            made.blocked_by = transfer.blocked_by
        hand_over = self._hand_over
        if hand_over is not None and node == hand_over.successor:
            if hand_over.phase != _PHASE.MIGRATION_PHASE_FOLLOW:
                made.phase = hand_over.phase
            made.blocked_by = hand_over.blocked_by or made.blocked_by
        return made
