"""Bugs in replication: in the way that leaders and followers handle rows, logs and data."""

from collections.abc import Sequence

from minka.cluster.in_sync import has_everything
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import IsrChange
from minkad.core.controller import isr
from minkad.core.replication.eligibility import Eligibility
from minkad.core.replication.entries import SplitMarker
from minkad.core.replication.follower_progress import Progress, Reaction
from minkad.core.replication.following import Follower, LeaderStream
from minkad.core.replication.gate import WriteGate
from minkad.core.replication.instructions import WakeAt
from minkad.core.replication.leadership import Leader
from minkad.core.replication.merge import Merge, _Step
from minkad.core.replication.peer_messages import Ack, Append
from minkad.core.replication.replica_state import ReplicaState, Role
from minkad.core.replication.split import SplitEnd
from minkad.core.state import State
from minkad.core.state import state as state_module
from minkad.node.surroundings import NodeTable
from minkad.replication.applying.hosted_replica import HostedReplica, Pending
from minkad.replication.changing.splitting import Splitting
from minkad.replication.sending.replication_receiver import IncomingStream, ReplicationReceiver
from minkad.replication.timers import Timers
from minkad.storage.applied import Applied
from tests.simulation.mutations_full import Patch

# Acknowledgements


def shrink_before_recorded() -> Sequence[Patch]:
    """A leader acts on a smaller in-sync set as soon as it proposes the set to the controller."""
    original = Leader._propose

    def propose(self: Leader, isr: list[str]) -> None:
        original(self, isr)
        self.counted = [progress for node, progress in self.progress.items() if node in isr]
        self.advance()

    return [(Leader, "_propose", propose)]


def age_without_clearance() -> Sequence[Patch]:
    """A leader says that its data is up to date although its clearance has ended."""
    return [(NodeTable, "last_clearance", lambda _, now: now)]


def commit_without_one_replica() -> Sequence[Patch]:
    """A leader commits a write although one replica in sync lacks it."""

    def in_sync_end(self: Leader) -> int:
        matched = sorted(progress.matched for progress in self.counted)
        return max(min([self.state.durable, *matched[1:]]), self.state.high_watermark)

    return [(Leader, "in_sync_end", in_sync_end)]


def forget_min_insync() -> Sequence[Patch]:
    """A replica that leaves an in-sync set becomes eligible even if the set still accepts writes."""

    def eligible(state: State, partition: Partition, change: IsrChange) -> list[str]:
        return [] if partition.splitting else [n for n in has_everything(partition) if n not in change.isr]

    return [*commit_without_eligible_replicas(), (isr, "_eligible", eligible), (state_module, "check_eligible", _allow)]


def commit_without_eligible_replicas() -> Sequence[Patch]:
    """The high watermark rises although eligible replicas lack entries."""

    def may_be_in_sync(self: Leader) -> set[str]:
        return {*self.state.row.isr, *self._joining}

    return [(Leader, "may_be_in_sync", may_be_in_sync), (Eligibility, "is_awaited", False)]


def _allow(*_: object) -> None:
    pass


def durable_when_staged() -> Sequence[Patch]:
    """A follower acknowledges entries before they are durable."""
    original = Follower.append

    def append(self: Follower, append: Append, stream: LeaderStream, known_at: float) -> None:
        original(self, append, stream, known_at)
        if append.entries and self.stream is stream:
            self.state.recovered_to(self.state.log.end)
            self.stored()

    return [(Follower, "append", append)]


# Logs


def cut_committed() -> Sequence[Patch]:
    """Followers truncate two entries more than their leader lacks, even committed ones."""

    def replicate(self: Progress, offset: int) -> None:
        original(self, max(self.state.log.base, offset - 2))

    def truncate(self: Follower, end: int) -> bool:
        self.state.high_watermark = min(self.state.high_watermark, end)
        self.state.truncate(end)
        return True

    original = Progress.replicate
    return [(Progress, "replicate", replicate), (Follower, "_truncate", truncate)]


def accept_stale_epoch() -> Sequence[Patch]:
    """A follower accepts entries of a former leader, and this leader counts the follower's acknowledgement."""

    def take(self: ReplicationReceiver, append: Append, stream: IncomingStream, known_at: float) -> None:
        replica = self._node.replicas.get(append.partition_id)
        if replica is not None and append.leader_epoch < replica.state.row.leader_epoch:
            append.leader_epoch = replica.state.row.leader_epoch
        original_take(self, append, stream, known_at)

    def acknowledged(self: Progress, ack: Ack) -> Reaction:
        ack.leader_epoch = self.leader_epoch
        return original_acknowledged(self, ack)

    original_take, original_acknowledged = ReplicationReceiver._take, Progress.acknowledged
    return [(ReplicationReceiver, "_take", take), (Progress, "acknowledged", acknowledged)]


# Leaderships


def serve_unready() -> Sequence[Patch]:
    """A leader serves before it has applied the log that it had when it became leader."""
    return [(ReplicaState, "is_ready", property(lambda self: self.role is Role.LEADER and self.damage is None))]


def read_while_handing_over() -> Sequence[Patch]:
    """A leader answers reads until it hears that its successor leads."""
    return [(WriteGate, "close_to_reads", lambda _: None)]


# Splits and merges


def skip_markers() -> Sequence[Patch]:
    """A follower passes the marker of a split without creating the child."""
    original = Splitting._make

    async def make(self: Splitting, parent: HostedReplica, marker: SplitMarker, entry: Pending) -> None:
        if parent.state.role is not Role.FOLLOWER:
            await original(self, parent, marker, entry)
            return
        parent.data.write([], Applied(entry.offset, entry.leader_epoch))
        parent.passed(entry)
        self._node.applied(parent, entry.offset, 0, self._clock())
        self._node.mark_ended(parent, parent.data, self._clock(), is_passed=True)

    return [(Splitting, "_make", make)]


def end_splits_early() -> Sequence[Patch]:
    """A split ends while children are still attached to their parents' data."""

    def is_made_by_all(self: SplitEnd) -> bool:
        base = self._leader.state.log.base
        return all(one.is_replicating and one.matched >= base for one in self._leader.counted)

    return [(SplitEnd, "_is_made_by_all", is_made_by_all)]


def remove_keys_while_attached() -> Sequence[Patch]:
    """A replica removes keys from its data while a child is attached to this data."""
    return [(HostedReplica, "is_held_up", property(lambda _: False))]


def forget_attachments() -> Sequence[Patch]:
    """A restarted node forgets that a child is attached to its parent's data."""
    return [(Splitting, "recover", lambda *_: None)]


def merge_too_early() -> Sequence[Patch]:
    """The leader asks the controller to record a merge before the left partition has the last writes of the right
    partition.
    """
    original = Merge._catch_up

    def catch_up(self: Merge) -> bool:
        return self._step is _Step.FREEZE or original(self)

    return [(Merge, "_catch_up", catch_up)]


def wake_early() -> Sequence[Patch]:
    """When a timer rings too early, the replica is woken at once instead of at the due time. It finds nothing due, and
    isn't woken again.
    """

    def ring(self: Timers, wake: WakeAt) -> None:
        if not self._closed:
            self._tick(wake.partition_id, self._clock())

    return [(Timers, "_ring", ring)]
