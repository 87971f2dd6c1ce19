"""Bugs in replication: what leaders and followers do with rows, logs and data. They are of the code as it is, so they
move with it.
"""

from collections.abc import Sequence
from dataclasses import replace

from minka.v1.records_pb2 import Record
from minkad.core.controller import splits
from minkad.core.controller.commands import FinishSplit
from minkad.core.state import State
from minkad.replication.committer import Committer
from minkad.replication.feed import Follower
from minkad.replication.following import Following, Stream
from minkad.replication.frames import Ack, Append
from minkad.replication.leadership import Leadership
from minkad.replication.manager import ReplicaManager
from minkad.replication.merging import Merging, _Merge
from minkad.replication.replica import Replica, Role
from minkad.replication.splitting import Splitting
from minkad.storage.data_database import Applied
from tests.simulation.mutations_full import Patch, restart_unnoticed

# What is acknowledged


def shrink_before_recorded() -> Sequence[Patch]:
    """The in-sync set that was asked for counts at once."""
    original = Leadership._propose

    def propose(self: Leadership, isr: list[str]) -> None:
        original(self, isr)
        self.replica.counted = [follower for node, follower in self._followers.items() if node in isr]
        self._context.advance(self.replica)

    return [(Leadership, "_propose", propose)]


def watermark_ahead() -> Sequence[Patch]:
    """One of the in-sync set need not have it."""

    def in_sync_end(self: Replica) -> int:
        matched = sorted(follower.matched for follower in self.counted)
        return max(min([self.durable, *matched[1:]]), self.high_watermark)

    return [(Replica, "in_sync_end", in_sync_end)]


def durable_when_staged() -> Sequence[Patch]:
    """A replica says that it has what is not on its disk yet."""
    original = Committer.staged

    def staged(self: Committer, replica: Replica, *, is_barrier: bool = False) -> None:
        original(self, replica, is_barrier=is_barrier)
        if replica.role is Role.FOLLOWER:
            replica.durable = replica.log.end
            self._on_durable(replica)

    return [(Committer, "staged", staged)]


def one_half_alone() -> Sequence[Patch]:
    """Who may have joined one half of a split doesn't count for the other."""
    return [(Leadership, "may_be_in_sync", lambda self: set(self.replica.row.isr[:1]))]


# Logs


def cut_committed() -> Sequence[Patch]:
    """Followers give up a little more than what isn't their leader's, whether it is committed or not."""

    def start(self: Follower, offset: int) -> None:
        original(self, max(self.replica.log.base, offset - 2))

    def cut(self: Following, replica: Replica, end: int, stream: Stream) -> bool:
        replica.log.truncate(max(replica.log.base, end))
        replica.durable = min(replica.durable, replica.log.end)
        replica.high_watermark = min(replica.high_watermark, replica.log.end)
        return True

    original = Follower.start
    return [(Follower, "start", start), (Following, "_cut", cut)]


def accept_stale_epoch() -> Sequence[Patch]:
    """A follower takes entries of a leadership that is over, and that one takes its word."""

    def take(self: Following, append: Append, stream: Stream, known_at: float) -> None:
        replica = self._replicas.get(append.partition_id)
        if replica is not None and append.leader_epoch < replica.row.leader_epoch:
            append.leader_epoch = replica.row.leader_epoch
        original_take(self, append, stream, known_at)

    def acknowledged(self: Follower, ack: Ack) -> None:
        ack.leader_epoch = self.leader_epoch
        original_acknowledged(self, ack)

    original_take, original_acknowledged = Following._take, Follower.acknowledged
    return [(Following, "_take", take), (Follower, "acknowledged", acknowledged)]


def join_unaligned() -> Sequence[Patch]:
    """A follower joins before it has cut what its leader lacks."""
    original = Leadership._consider

    def consider(self: Leadership, follower: Follower) -> None:
        follower.aligned = follower.aligned or follower.sending
        original(self, follower)

    return [(Leadership, "_consider", consider)]


# Leaderships


def serve_unready() -> Sequence[Patch]:
    """A leader serves before it has applied what it began with."""
    is_ready = property(lambda self: self.role is Role.LEADER and self.damage is None)
    return [(Replica, "is_ready", is_ready)]


def lead_again() -> Sequence[Patch]:
    """Who has restarted leads on at its leader_epoch, and the controller has not noticed either."""
    original = ReplicaManager._role_in

    def role_in(self: ReplicaManager, replica: Replica) -> Role:
        replica.led_before = 0
        return original(self, replica)

    return [(ReplicaManager, "_role_in", role_in), *restart_unnoticed()]


def read_while_handing_over() -> Sequence[Patch]:
    """A leader answers reads until it hears that its successor leads."""
    return [(Replica, "handing_over", property(lambda _: False, lambda *_: None))]


def ship_unsynced() -> Sequence[Patch]:
    """What isn't synced is sent at a leader_epoch of which a crash takes the memory; the controller has not noticed it."""
    original = ReplicaManager._lead

    def lead(self: ReplicaManager, replica: Replica) -> None:
        original(self, replica)
        replica.ships_unsynced = True

    return [(ReplicaManager, "_lead", lead), *restart_unnoticed()]


# Checkpoints, splits, merges


def skip_markers() -> Sequence[Patch]:
    """A follower goes past the marker of a split, and makes nothing."""
    original = Splitting._make

    async def make(self: Splitting, parent: Replica) -> None:
        if parent.role is not Role.FOLLOWER:
            await original(self, parent)
            return
        entry = parent.pending[0]
        parent.data.write([], Applied(entry.offset, entry.leader_epoch))
        parent.passed(entry)
        parent.making = False
        self._committer.passed_mark(parent)

    return [(Splitting, "_make", make)]


def end_split_by_any_row() -> Sequence[Patch]:
    """The end of a split is recorded by whatever in-sync set its leader knew."""
    original = splits.finish

    def finish(state: State, command: FinishSplit) -> list[Record]:
        child = state.partitions.get(command.partition_id)
        epoch = child.partition_epoch if child is not None else 0
        return original(state, replace(command, partition_epoch=epoch))

    return [(splits, "finish", finish)]


def merge_too_early() -> Sequence[Patch]:
    """A merge is recorded without the last writes."""

    async def freeze(self: Merging, merge: _Merge) -> bool:
        merge.right.frozen = True
        return merge.goes_on()

    return [(Merging, "_freeze", freeze)]
