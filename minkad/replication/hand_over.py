"""A leader hands over to its successor gracefully: fence, let it catch up, have it recorded.

Source: Fixed Partitions, Patterns of Distributed Systems ("Moving partitions to newly added members"), and the planned
changes of leader in Kafka's controller.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import HandOverRequest, MigrationPhase
from minkad.process.failpoints import failpoint
from minkad.replication.feed import Follower

_PHASE = MigrationPhase

if TYPE_CHECKING:
    from minkad.replication.context import LeaderContext

log: Final = logging.getLogger(__name__)

# What the controller answers when it has decided not to: the hand-over was not recorded.
_REFUSALS: Final = frozenset(
    {
        Code.STALE_EPOCH,
        Code.STALE_GENERATION,
        Code.INELIGIBLE_REPLICA,
        Code.NOT_LEADER,
        Code.UNKNOWN_PARTITION,
        Code.UNKNOWN_NODE,
        Code.NOT_REGISTERED,
        Code.OVERLOADED,
        Code.INVALID_ARGUMENT,
    }
)


class HandOver:
    """To one successor: a task that tries until it is cancelled or the row has changed."""

    def __init__(self, context: "LeaderContext", follower: Follower, on_unfenced: Callable[[], None]) -> None:
        """`on_unfenced`: it was given up for now, so the in-sync set may change."""
        self.target = follower.node_id
        self.replica = follower.replica
        self.phase = _PHASE.MIGRATION_PHASE_FOLLOW
        self.blocked_by = ""
        self._context = context
        self._on_unfenced = on_unfenced
        self._follower = follower
        self._changed = asyncio.Event()
        self._fenced_at = 0.0
        self._backoff = context.settings.first_backoff
        self._task = asyncio.create_task(self._run(), name=f"hand-over of {self.replica.id} to {self.target}")

    def look(self) -> None:
        """The replica or its successor is further than before."""
        self._changed.set()

    def cancel(self) -> None:
        """Stop, and let writes go on if they wait. The row has decided."""
        self._task.cancel()
        self._unfence()

    async def wait(self) -> None:
        """Until it has ended."""
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._until_near()
            try:
                if await self._fence() and await self._hand_over():
                    return
            except MinkaError as error:
                self._block(str(error))
            self._unfence()
            self._on_unfenced()
            await asyncio.sleep(self._backoff)
            self._backoff = min(2 * self._backoff, self._context.settings.longest_backoff)

    async def _until_near(self) -> None:
        """Until the successor is in sync and has nearly everything."""
        self.phase = _PHASE.MIGRATION_PHASE_FOLLOW
        while not self._follower.is_near or self.target not in self.replica.row.isr:
            self._changed.clear()
            await self._changed.wait()

    def _block(self, reason: str) -> None:
        if not self.blocked_by:
            names = {
                "partition": self.replica.id,
                "target": self.target,
                "phase": MigrationPhase.Name(self.phase),
                "reason": reason,
            }
            log.warning("a hand-over is blocked; it goes on trying", extra=names)
        self.blocked_by = reason

    @failpoint("migration.fence")
    async def _fence(self) -> bool:
        """Let writes wait, until the successor has all before them and they are acknowledged; False if that takes too
        long.
        """
        replica, follower = self.replica, self._follower
        self._fenced_at = self._context.clock()
        replica.fenced = True
        try:
            async with asyncio.timeout(self._context.settings.fence_timeout):
                while follower.matched < replica.log.end or replica.applied < replica.log.end:
                    self._changed.clear()
                    await self._changed.wait()
                    if not follower.sending:
                        return False
        except TimeoutError:
            self._block(f"the target did not catch up within {self._context.settings.fence_timeout} s")
            return False
        return True

    async def _hand_over(self) -> bool:
        """Ask until the outcome is known; whether the successor leads now. Nothing is served meanwhile."""
        replica = self.replica
        self.phase, self.blocked_by = _PHASE.MIGRATION_PHASE_HAND_OVER, ""
        replica.handing_over = True
        request = HandOverRequest(
            node_id=self._context.node_id,
            partition_id=replica.id,
            leader_epoch=replica.row.leader_epoch,
            partition_epoch=replica.row.partition_epoch,
            target=self.target,
        )
        in_doubt = False
        backoff = self._context.settings.first_backoff
        while replica.row.partition_epoch == request.partition_epoch:
            try:
                self._received(await self._ask(request))
                return True
            except MinkaError as error:
                for row in error.partitions:
                    self._received(row)
                if error.code in _REFUSALS and not in_doubt:
                    raise
                in_doubt = True
                self._block(f"waiting for the outcome of the hand-over: {error}")
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, self._context.settings.longest_backoff)
        return False  # a newer row still has this node as leader and the target as its successor

    @failpoint("migration.hand_over")
    async def _ask(self, request: HandOverRequest) -> Partition:
        return await self._context.hand_over(request)

    @failpoint("migration.row_received")
    def _received(self, row: Partition) -> None:
        if row.id == self.replica.id:
            self._context.learn(row)

    def _unfence(self) -> None:
        """Called when the fence is lifted, whether by giving up or by a row that has decided."""
        replica = self.replica
        if not replica.fenced:
            return
        replica.fenced = replica.handing_over = False
        seconds = self._context.clock() - self._fenced_at
        self._context.on_fence(seconds)
        log.info("writes waited", extra={"partition": replica.id, "target": self.target, "ms": round(seconds * 1e3, 1)})
        self._context.changed(replica)
