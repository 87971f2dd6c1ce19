"""One replica's leadership at one leader_epoch: who follows it, who of them is in sync, and how it is handed over."""

import logging
from dataclasses import dataclass
from typing import Final

from minka.v1.coordinator_pb2 import MigrationPhase, MigrationProgress
from minkad.replication.context import LeaderContext
from minkad.replication.feed import Follower
from minkad.replication.frames import Ack, Standing
from minkad.replication.hand_over import HandOver
from minkad.replication.replica import Replica
from minkad.replication.shipping import Shipment

_PHASE = MigrationPhase

log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Proposal:
    """An in-sync set that is to be recorded, and whose outcome isn't known."""

    partition_epoch: int
    isr: tuple[str, ...]
    in_doubt: bool = False  # an earlier try may yet be recorded


@dataclass(slots=True)
class _CaughtUp:
    """When a follower last had all that there was (Kafka's lastCaughtUpTime): at `at`, or later."""

    at: float
    mark: int  # what there was at `mark_at`
    mark_at: float

    def look(self, follower: Follower, end: int, now: float) -> None:
        """How far it is now, of what there is."""
        if not follower.sending or follower.matched < self.mark:
            return
        self.at = now if follower.matched >= end else max(self.at, self.mark_at)
        self.mark, self.mark_at = end, now


class Leadership:
    """The high watermark counts the in-sync set and whoever may have become a part of it: those who are about to join,
    and the larger of the old and the proposed set until the outcome is known (KIP-497).
    """

    def __init__(self, context: LeaderContext, replica: Replica) -> None:
        self.replica = replica
        self.leader_epoch = replica.row.leader_epoch
        self.proposed: Proposal | None = None
        self.marked_loads: set[int] = set()  # by number: their marks are in the log since this leadership began
        self.marked = 0  # the partition for whose split a marker is in the log since this leadership began
        self._context = context
        self._followers: dict[str, Follower] = {}
        self._shipments: dict[str, Shipment] = {}
        self._joining: set[str] = set()
        self._lost: set[str] = set()  # who is in the isr and lacks what it had
        self._held: dict[str, float] = {}  # who was refused: until when it isn't proposed again
        self._caught_up: dict[str, _CaughtUp] = {}
        self._hand_over: HandOver | None = None
        replica.followers = self._followers
        self.row_changed()

    def row_changed(self) -> None:
        """The replica has a newer row of the same leadership."""
        replica, row = self.replica, self.replica.row
        others = {node for node in row.replicas if node not in row.removing_replicas} | set(row.isr)
        others.discard(self._context.node_id)
        for node in sorted(self._followers.keys() - others):
            self._remove(node)
        for node in sorted(others - self._followers.keys()):
            self._add(node)
        if replica.log.keeps_tail != bool(others):
            replica.log.keep_tail(bool(others))
        if self.proposed is not None and row.partition_epoch > self.proposed.partition_epoch:
            self.proposed = None
        self._joining -= set(row.isr)
        self._recount()
        self._pause_without_room()
        self._change_hand_over()
        for node in sorted(self._lost - set(row.isr)):
            self._lost.discard(node)
            if node in self._followers:
                self._followers[node].probe()  # it is sent a checkpoint now
        self.shrink()

    def _add(self, node: str) -> None:
        feed, now = self._context.feed_to(node), self._context.clock()
        self._followers[node] = feed.add(self.replica, self._stands, self._matched)
        self._caught_up[node] = _CaughtUp(now, self.replica.log.end, now)

    def _remove(self, node: str) -> None:
        if (shipment := self._shipments.pop(node, None)) is not None:
            shipment.cancel()
        self._joining.discard(node)
        self._context.feed_to(node).remove(self._followers.pop(node))
        del self._caught_up[node]

    def close(self) -> None:
        """The leadership is over; the answer to what it has proposed may still come."""
        self.proposed = None
        if self._hand_over is not None:
            self._hand_over.cancel()
        for node in list(self._followers):
            self._remove(node)
        self.proposed = None  # it is the next leadership's turn to ask
        self.replica.followers, self.replica.counted = {}, ()
        self.replica.log.keep_tail(False)

    async def wait(self) -> None:
        """Until all that was under way has ended."""
        if self._hand_over is not None:
            await self._hand_over.wait()
        for shipment in list(self._shipments.values()):
            await shipment.wait()

    def look(self) -> None:
        """The replica is further than before."""
        if self._hand_over is not None:
            self._hand_over.look()
        for node, follower in self._followers.items():
            if node not in self.replica.row.isr:
                self._consider(follower)

    # Followers

    def _stands(self, follower: Follower, ack: Ack) -> None:
        """A follower says what it has: go on from where the logs part, with a checkpoint if that can't be helped."""
        shipment = self._shipments.get(follower.node_id)
        if shipment is not None and shipment.running:
            return
        common = None
        if ack.standing == Standing.STORED and ack.lineage:
            common = self.replica.log.common_end(ack.lineage, ack.offset)
        if self._has_lost(follower.node_id, ack.standing, common):
            names = {"partition": self.replica.id, "node": follower.node_id, "at": common}
            log.error("a replica in sync has lost what it had; it leaves the in-sync set", extra=names)
            self._lost.add(follower.node_id)
            self.shrink()
            return
        if common is not None and (common > 0 or self._is_short()):
            follower.start(common)
            return
        failures = shipment.failures if shipment is not None and shipment.blocked_by else 0
        made = self._shipments[follower.node_id] = Shipment(self._context, follower, ack.kept, failures)
        if shipment is not None:
            made.blocked_by = shipment.blocked_by

    def _has_lost(self, node: str, standing: int, common: int | None) -> bool:
        """Whether it is in the in-sync set without what is committed. Its copy must not be replaced before it has left:
        if this leader died meanwhile, it would be elected with nothing.
        """
        if node not in self.replica.row.isr:
            return False
        return standing != Standing.STORED or common is None or common < self.replica.high_watermark

    def shrink(self) -> None:
        """Without those who are gone, or have lost something, so that writes need not wait for them any more.

        Only their leader does this, once it can make use of it: a set that was made smaller for a leader that is silent
        itself would be worth nothing, and keep others from leading who have everything. A leader whose own data is
        damaged leaves it to the others to lead.
        """
        row, own = self.replica.row, self._context.node_id
        left = [n for n in row.isr if n == own or (n not in self._lost and not self._context.is_absent(n))]
        if self.replica.damage is not None and not self.replica.mending and len(left) > 1:
            left.remove(own)
        if len(left) < len(row.isr) and self.proposed is None and not self.replica.fenced:
            self._propose(left)

    def _is_short(self) -> bool:
        """Whether the log from its first entry on is little enough to be applied instead of a checkpoint."""
        log_, end = self.replica.log, self.replica.durable
        if log_.base > 0 or end == 0:
            return end == 0
        limit = self._context.settings.log_only_bytes
        entries = log_.read(1, end, limit)
        return len(entries) == end and sum(len(entry.body) for entry in entries) <= limit

    def _matched(self, follower: Follower) -> None:
        """A follower has more than before, or its stream is broken."""
        node = follower.node_id
        if not follower.sending:
            shipment = self._shipments.get(node)
            if shipment is not None and shipment.running:
                self.replica.lost.discard(node)
            if node in self._joining and self.proposed is None:
                self._joining.discard(node)
                self._recount()
        self._context.advance(self.replica)
        if self.replica.row.splitting:
            self._context.changed(self.replica)
        if node not in self.replica.row.isr:
            self._caught_up[node].look(follower, self.replica.log.end, self._context.clock())
            self._consider(follower)
        if self._hand_over is not None:
            self._hand_over.look()

    # The in-sync set

    def _recount(self) -> None:
        names = {*self.replica.row.isr, *self._joining}
        self.replica.counted = [follower for node, follower in self._followers.items() if node in names]
        assert names - {self._context.node_id} <= self._followers.keys(), f"{names} of {self._followers.keys()}"
        self._context.advance(self.replica)

    def _consider(self, follower: Follower) -> None:
        """Let a follower join once it has all that may be acknowledged, and nothing that its leader lacks, which would
        come back by its election.

        From when it nearly has, the high watermark waits for it, so that under load there is such a moment.
        """
        node = follower.node_id
        if not follower.aligned or node in self.replica.row.removing_replicas or self._context.is_absent(node):
            return
        if self._is_behind_split() or node in self._context.low_disks():
            return
        if node not in self._joining:
            now = self._context.clock()
            keeps_up = now - self._caught_up[node].at <= self._context.settings.lag_timeout
            if not follower.is_near or not keeps_up or now < self._held.get(node, 0.0):
                return
            self._joining.add(node)
            self._recount()
        has_all = follower.matched >= max(self.replica.high_watermark, self.replica.ready_at)
        if has_all and self.proposed is None and not self.replica.fenced:
            self._propose([*self.replica.row.isr, node])

    def _is_behind_split(self) -> bool:
        """Whether a copy of the partition may be one of which the other half, which is yet to be made elsewhere, can't
        be made. None is before the leader, who has applied what it began with, has come to the marker.
        """
        row = self.replica.row
        return row.splitting and (not row.split_to or not self.replica.is_ready or self._context.is_made(row.split_to))

    def check(self, now: float, stalled: bool) -> None:
        """Let those leave who have not caught up for long, or have no room. Called often. `stalled`: this node itself
        stood still.
        """
        end, isr = self.replica.log.end, self.replica.row.isr
        late = self._without_room()
        self._pause_without_room()
        for node, follower in self._followers.items():
            seen = self._caught_up[node]
            seen.look(follower, end, now)
            if stalled:
                seen.at = now
            if now - seen.at > self._context.settings.lag_timeout and node not in late:
                if node in isr:
                    late.append(node)
                elif follower.node_id in self.replica.retain and not self._is_shipped_to(node):
                    self.replica.lost.add(node)
                if node in self._joining and self.proposed is None:
                    self._joining.discard(node)
                    self._recount()
        self.shrink()
        if late and self.proposed is None and not self.replica.fenced:
            log.warning("replicas are not in sync any more", extra={"partition": self.replica.id, "late": late})
            self._propose([node for node in isr if node not in late])
        else:
            self.look()

    def _without_room(self) -> list[str]:
        """Those in sync whose disks are low, where writes can go on without them. Where they can't, they stay, and
        only deletes are taken: what is behind needs more room than before to come back.
        """
        row, low = self.replica.row, self._context.low_disks()
        if not low:
            return []
        without = [node for node in row.isr if node in low]
        if self._context.node_id in low or len(row.isr) - len(without) < max(1, self.replica.min_insync):
            return []
        return without

    def _pause_without_room(self) -> None:
        """Send no entries to those whose disks are low, once they aren't in sync any more."""
        low, isr = self._context.low_disks(), self.replica.row.isr
        for node, follower in self._followers.items():
            follower.pause(node in low and node not in isr)

    def lags(self, now: float) -> dict[str, tuple[int, float]]:
        """By follower: the entries that it lacks, and for how many seconds it has not had all of them."""
        return {
            node: (follower.lag, max(now - self._caught_up[node].at, 0.0) if follower.lag else 0.0)
            for node, follower in self._followers.items()
        }

    def _is_shipped_to(self, node: str) -> bool:
        shipment = self._shipments.get(node)
        return shipment is not None and shipment.running

    def _propose(self, isr: list[str]) -> None:
        assert set(isr) <= {*self.replica.row.isr, *self._joining}, f"{isr} has nodes that are not counted"
        self.proposed = Proposal(self.replica.row.partition_epoch, tuple(isr))
        self._context.propose(self)

    def refused(self) -> None:
        """The proposal was not recorded, and the row is as it was."""
        proposal = self.proposed
        assert proposal is not None, f"partition {self.replica.id}: nothing was proposed"
        until = self._context.clock() + self._context.settings.longest_backoff
        for node in self._joining:
            self._held[node] = until
        if proposal.in_doubt and set(proposal.isr) != set(self.replica.row.isr):
            # The try whose outcome is unknown may be recorded yet, unless a newer row comes first: the same set again.
            proposal.isr = tuple(self.replica.row.isr)
            self._context.propose(self)
            return
        self._joining.clear()
        self.proposed = None
        self._recount()

    # The end

    def _change_hand_over(self) -> None:
        successor = self.replica.row.successor
        if self._hand_over is not None and self._hand_over.target != successor:
            self._hand_over.cancel()
            self._hand_over = None
        follower = self._followers.get(successor)
        if self._hand_over is None and follower is not None:
            self._hand_over = HandOver(self._context, follower, self.shrink)
        elif self._hand_over is not None:
            self._hand_over.look()

    def progress(self) -> list[MigrationProgress]:
        """The progress of the followers that are being added, are sent a checkpoint, or are to lead."""
        row = self.replica.row
        if not (row.adding_replicas or row.successor or self._shipments):
            return []
        nodes = [
            node
            for node in self._followers
            if node in row.adding_replicas or node == row.successor or self._is_shipped_to(node)
        ]
        return [self._progress(node, self._followers[node]) for node in nodes]

    def _progress(self, node: str, follower: Follower) -> MigrationProgress:
        shipment = self._shipments.get(node)
        made = MigrationProgress(
            partition_id=self.replica.id,
            target=node,
            lag=follower.lag,
            phase=_PHASE.MIGRATION_PHASE_FOLLOW if follower.sending else _PHASE.MIGRATION_PHASE_CHECKPOINT,
            blocked_by=follower.error,
        )
        if shipment is not None:
            made.bytes_total, made.bytes_done = shipment.bytes_total, shipment.bytes_done
            if not follower.sending:
                made.phase, made.blocked_by = shipment.phase, shipment.blocked_by or follower.error
        if (
            self._hand_over is not None
            and node == self._hand_over.target
            and self._hand_over.phase != _PHASE.MIGRATION_PHASE_FOLLOW
        ):
            made.phase = self._hand_over.phase
        if self._hand_over is not None and node == self._hand_over.target and self._hand_over.blocked_by:
            made.blocked_by = self._hand_over.blocked_by
        return made
