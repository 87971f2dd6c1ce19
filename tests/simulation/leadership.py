"""A modelled replica's leadership at one leader_epoch: who follows it, who is in sync, and how it is handed over."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import HandOverRequest, MigrationProgress
from minkad.core.replication.state import Role

if TYPE_CHECKING:
    from tests.simulation.data_plane import Copy

COPYING: Final = 0.3  # seconds, the mean
FENCE_TIMEOUT: Final = 0.5
RETRY: Final = 0.1
_NEAR: Final = 3  # writes
_REFUSALS: Final = (Code.STALE_EPOCH, Code.UNKNOWN_PARTITION, Code.NOT_REGISTERED, Code.UNKNOWN_NODE)


@dataclass(frozen=True, slots=True)
class Append:
    """From a leader: what it has from `start` on. `previous`: the number before that, or none at the log's beginning;
    None: a question for the follower's log.
    """

    partition_id: int
    leader_epoch: int
    start: int = 0
    previous: list[int] | None = None
    entries: Sequence[int] = ()
    committed: int = 0
    cut: bool = False  # the follower's log is to end at `start` first


class Replica:
    """A copy, and this process's part in it."""

    def __init__(self, copy: "Copy", recovered_by: str) -> None:
        """`recovered_by`: the node, at its start; "": it is new."""
        self.copy = copy
        self.role = Role.IDLE
        self.led_before = copy.row.leader_epoch if copy.row.leader == recovered_by else 0
        self.ready_at = 0
        self.min_insync = 0  # unknown
        self.fenced = False
        self.handing_over = False
        self.deleting = False
        self.counted: Sequence[Follower] = ()


@dataclass(frozen=True, slots=True)
class LeaderContext:
    """What a leadership needs of its node."""

    node_id: str
    rng: random.Random
    hand_over: Callable[[HandOverRequest], Awaitable[Partition]]
    append: Callable[[str, Append], Awaitable[list[int]]]
    propose: Callable[["Leadership"], None]
    learn: Callable[[Partition], None]
    advance: Callable[[Replica], None]
    is_absent: Callable[[str], bool]
    now: Callable[[], float]
    lag_timeout: float


@dataclass(slots=True)
class Proposal:
    """An in-sync set that is to be recorded, and whose outcome isn't known."""

    partition_epoch: int
    isr: list[str]
    in_doubt: bool = False  # an earlier try may yet be recorded


class Follower:
    """Another node's replica: a task keeps it up to date."""

    def __init__(self, leadership: "Leadership", node_id: str) -> None:
        self.node_id = node_id
        self.matched = 0
        self.sending = False
        self.held_until = 0.0
        self.caught_up_at = leadership.context.now()
        self.wake = asyncio.Event()
        self._leadership = leadership
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Send nothing more."""
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self._catch_up()
            except MinkaError:
                self.sending = False
                self._leadership.matched(self)
                await asyncio.sleep(RETRY)

    async def _catch_up(self) -> None:
        context, copy = self._leadership.context, self._leadership.replica.copy
        epoch, id_ = copy.row.leader_epoch, copy.row.id
        theirs = await context.append(self.node_id, Append(id_, epoch))
        start, cut = _common(copy.log, theirs), True
        if not start and copy.log:
            await asyncio.sleep(context.rng.expovariate(1 / COPYING))
        while True:
            self.wake.clear()
            end = len(copy.log)
            append = Append(id_, epoch, start, copy.log[start - 1 : start], copy.log[start:end], copy.committed, cut)
            await context.append(self.node_id, append)
            start, cut = end, False
            self.matched = end
            self.sending = True
            if end == len(copy.log):
                self.caught_up_at = context.now()
            self._leadership.matched(self)
            if end == len(copy.log):
                await self.wake.wait()


def _common(one: list[int], other: list[int]) -> int:
    """How far both logs are the same."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class Leadership:
    """What counts for the watermark: the in-sync set and whoever may have become a part of it."""

    def __init__(self, context: LeaderContext, replica: Replica) -> None:
        self.context = context
        self.replica = replica
        self.proposed: Proposal | None = None
        self._followers: dict[str, Follower] = {}
        self._joining: set[str] = set()
        self._hand_over: asyncio.Task[None] | None = None
        self._target = ""
        self._changed = asyncio.Event()
        self.row_changed()

    def row_changed(self) -> None:
        """The replica has a newer row of the same leadership."""
        row = self.replica.copy.row
        others = {*row.replicas, *row.isr} - {*row.removing_replicas, self.context.node_id}
        for node in sorted(self._followers.keys() - others):
            self._joining.discard(node)
            self._followers.pop(node).close()
        for node in sorted(others - self._followers.keys()):
            self._followers[node] = Follower(self, node)
        if self.proposed is not None and row.partition_epoch > self.proposed.partition_epoch:
            self.proposed = None
        self._joining -= set(row.isr)
        self._recount()
        self._change_hand_over()
        self.take_out_absent()

    def close(self) -> None:
        """The leadership is over."""
        self._end_hand_over()
        for follower in self._followers.values():
            follower.close()
        self.proposed = None
        self.replica.counted = ()

    def look(self) -> None:
        """The log is longer."""
        for follower in self._followers.values():
            follower.wake.set()

    def matched(self, follower: Follower) -> None:
        """A follower has more than before, or can't be reached."""
        if not follower.sending and follower.node_id in self._joining and self.proposed is None:
            self._joining.discard(follower.node_id)
            self._recount()
        self.context.advance(self.replica)
        self._consider(follower)
        self._changed.set()

    # The in-sync set

    def _recount(self) -> None:
        names = {*self.replica.copy.row.isr, *self._joining} - {self.context.node_id}
        self.replica.counted = [self._followers[node] for node in sorted(names)]
        self.context.advance(self.replica)

    def _consider(self, follower: Follower) -> None:
        """Let a follower join once it has all that may be acknowledged; the watermark waits for it from then on."""
        node, replica = follower.node_id, self.replica
        if node in replica.copy.row.isr or not follower.sending or replica.fenced or self.context.is_absent(node):
            return
        if node not in self._joining:
            is_near = len(replica.copy.log) - follower.matched < _NEAR
            if not is_near or self.context.now() < follower.held_until:
                return
            self._joining.add(node)
            self._recount()
        if follower.matched >= max(replica.copy.committed, replica.ready_at) and self.proposed is None:
            self._propose([*replica.copy.row.isr, node])

    def check(self, *, stalled: bool) -> None:
        """Let those leave who have not caught up for long. Called often."""
        now, isr = self.context.now(), self.replica.copy.row.isr
        late = set()
        for node, follower in self._followers.items():
            if stalled or (follower.sending and follower.matched == len(self.replica.copy.log)):
                follower.caught_up_at = now
            if now - follower.caught_up_at > self.context.lag_timeout:
                late.add(node)
                if node in self._joining and self.proposed is None:
                    self._joining.discard(node)
                    self._recount()
            elif self.proposed is None:
                self._consider(follower)
        if late & set(isr) and self.proposed is None and not self.replica.fenced:
            self._propose([node for node in isr if node not in late])

        self.take_out_absent()

    def take_out_absent(self) -> None:
        """Let those leave who are gone, by this node's copy of the table."""
        isr = self.replica.copy.row.isr
        left = [node for node in isr if node == self.context.node_id or not self.context.is_absent(node)]
        if left != list(isr) and self.proposed is None and not self.replica.fenced:
            self._propose(left)

    def _propose(self, isr: list[str]) -> None:
        self.proposed = Proposal(self.replica.copy.row.partition_epoch, isr)
        self.context.propose(self)

    def refused(self) -> None:
        """The proposal was not recorded, and the row is as it was."""
        proposal, isr = self.proposed, self.replica.copy.row.isr
        assert proposal is not None, "nothing was proposed"
        for node in self._joining:
            self._followers[node].held_until = self.context.now() + 0.5
        if proposal.in_doubt and set(proposal.isr) != set(isr):
            # The try whose outcome is unknown may be recorded yet, unless a newer row comes first: the same set again.
            proposal.isr = list(isr)
            self.context.propose(self)
            return
        self._joining.clear()
        self.proposed = None
        self._recount()

    # The end

    def _change_hand_over(self) -> None:
        successor = self.replica.copy.row.successor
        if self._target != successor:
            self._end_hand_over()
        if self._hand_over is None and successor:
            self._target = successor
            task = self._run_hand_over(self._followers[successor])
            self._hand_over = asyncio.get_running_loop().create_task(task)
        self._changed.set()

    def _end_hand_over(self) -> None:
        if self._hand_over is not None:
            self._hand_over.cancel()
        self._hand_over, self._target = None, ""
        self.replica.fenced = self.replica.handing_over = False

    async def _run_hand_over(self, follower: Follower) -> None:
        """Fence, let the successor catch up, ask; again when that was refused."""
        replica = self.replica
        while True:
            replica.fenced = True
            try:
                async with asyncio.timeout(FENCE_TIMEOUT):
                    while follower.matched < len(replica.copy.log) or replica.copy.committed < len(replica.copy.log):
                        self._changed.clear()
                        await self._changed.wait()
                if follower.sending:
                    await self._ask_hand_over(follower.node_id)
            except (MinkaError, TimeoutError):
                pass  # it is certain that nothing was handed over
            replica.fenced = replica.handing_over = False
            await asyncio.sleep(RETRY)

    async def _ask_hand_over(self, target: str) -> None:
        """Until a newer row decides. Raises MinkaError when it is certain that nothing was handed over."""
        self.replica.handing_over = True
        row = self.replica.copy.row
        request = HandOverRequest(
            node_id=self.context.node_id,
            partition_id=row.id,
            leader_epoch=row.leader_epoch,
            partition_epoch=row.partition_epoch,
            target=target,
        )
        in_doubt = False
        while self.replica.copy.row.partition_epoch == request.partition_epoch:
            try:
                self.context.learn(await self.context.hand_over(request))
            except MinkaError as error:
                for newer in error.partitions:
                    self.context.learn(newer)
                if error.code in _REFUSALS and not in_doubt:
                    raise
                in_doubt = True
                await asyncio.sleep(RETRY)

    def progress(self) -> list[MigrationProgress]:
        """Of the followers that are being added, or are to lead."""
        row = self.replica.copy.row
        return [
            MigrationProgress(partition_id=row.id, target=node, bytes_done=follower.matched)
            for node, follower in self._followers.items()
            if node in row.adding_replicas or node == row.successor
        ]
