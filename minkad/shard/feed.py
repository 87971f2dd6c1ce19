"""The leader's side of replication: one stream to each node that follows, for all its partitions."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

from minka.errors import Code, MinkaError
from minkad.failpoints import failpoint
from minkad.shard.frames import Ack, Append, Entry, Standing, decode_acks, encode
from minkad.shard.links import ReplicationLinks
from minkad.shard.replica import Replica, Role

log: Final = logging.getLogger(__name__)

_READ_BYTES: Final = 256 * 1024  # for one partition in one frame
_FRAME_BYTES: Final = 1024 * 1024
_UNACKNOWLEDGED_BYTES: Final = 4 * 1024 * 1024  # sent to one follower of one partition
_NEAR_BYTES: Final = 256 * 1024
_BACKOFF_S: Final = (0.05, 1.0)


class Follower:
    """How far one node is with one partition. `changed` is set at every change, and cleared by who waits."""

    def __init__(self, node_id: str, replica: Replica, wake: Callable[[], None]) -> None:
        self.node_id = node_id
        self.replica = replica
        self.leader_epoch = replica.row.leader_epoch
        self.standing: Ack | None = None  # its answer to the last probe
        self.sending = False
        self.next = 0
        self.matched = 0  # durable there
        self.probing = False
        self.changed = asyncio.Event()
        self.error = ""  # why the stream is broken; "" while it is not
        self._wake = wake
        self._sent: deque[tuple[int, int]] = deque()  # (last offset, bytes) of each part that is not acknowledged
        self.unacknowledged = 0  # bytes of them

    def probe(self) -> None:
        """Ask where the node stands; the answer is `standing`."""
        self.stop()
        self.standing, self.probing = None, True
        self._wake()

    def start(self, offset: int) -> None:
        """Send everything behind `offset`, which the node has."""
        self.next, self.matched, self.sending = offset + 1, offset, True
        self.replica.retain[self.node_id] = offset
        self._wake()

    def stop(self) -> None:
        """Send nothing."""
        self.sending, self.next = False, 0
        self._sent.clear()
        self.unacknowledged = 0

    def lost(self, error: str) -> None:
        """The stream broke: what was sent may not have come, so ask again on the next."""
        self.stop()
        self.standing, self.probing, self.error = None, True, error
        self.changed.set()

    @property
    def is_near(self) -> bool:
        """Whether it has been sent everything durable here, and little of that is not acknowledged."""
        return self.sending and self.next > self.replica.durable and self.unacknowledged <= _NEAR_BYTES

    @property
    def lag(self) -> int:
        """Offsets that it lacks."""
        return self.replica.log.end - self.matched

    def take(self, limit: int) -> Append | None:
        """What to send next, up to `limit` bytes and at least one entry; None: nothing now."""
        replica = self.replica
        if self.probing:
            self.probing = False
            return Append(replica.id, self.leader_epoch, 0, 0, [], True)
        if not self.sending or self.next > replica.durable or self.unacknowledged >= _UNACKNOWLEDGED_BYTES:
            return None
        prev = self.next - 1
        # Only what is durable here: what a crash of this node takes must not be anywhere.
        found = replica.log.read(self.next, replica.durable, min(limit, _READ_BYTES))
        size = sum(len(entry.body) for entry in found)
        self.next = found[-1].offset + 1
        self._sent.append((found[-1].offset, size))
        self.unacknowledged += size
        entries = [Entry(epoch, body) for _, epoch, body in found]
        return Append(replica.id, self.leader_epoch, prev, replica.high_watermark, entries)

    def acknowledged(self, ack: Ack) -> None:
        """The node has answered."""
        if ack.leader_epoch != self.leader_epoch:
            return
        self.error = ""
        if ack.answers_probe:
            self.standing = ack
        elif self.sending and ack.standing == Standing.DURABLE:
            if ack.offset >= self.next:
                raise MinkaError(Code.INTERNAL, f"partition {ack.partition_id}: {ack.offset} was never sent")
            self.matched = max(self.matched, ack.offset)
            self.replica.retain[self.node_id] = self.matched
            while self._sent and self._sent[0][0] <= ack.offset:
                self.unacknowledged -= self._sent.popleft()[1]
        self.changed.set()


class Feed:
    """The stream to one node; reconnects for as long as there are followers."""

    def __init__(self, node_id: str, links: ReplicationLinks) -> None:
        self.node_id = node_id
        self._links = links
        self._followers: dict[int, Follower] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection = 0

    def add(self, replica: Replica) -> Follower:
        """Begin to care for the node's replica of this partition."""
        assert replica.role is Role.LEADER, f"partition {replica.id} is not led here"
        follower = self._followers[replica.id] = Follower(self.node_id, replica, self._wake.set)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"replication to {self.node_id}")
        return follower

    def remove(self, follower: Follower) -> None:
        """Forget it. The stream ends with the last."""
        if self._followers.get(follower.replica.id) is follower:
            del self._followers[follower.replica.id]
        follower.stop()
        follower.replica.retain.pop(self.node_id, None)
        if not self._followers and self._task is not None:
            self._task.cancel()
            self._task = None

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    async def close(self) -> None:
        """End the stream."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        backoff, longest = _BACKOFF_S
        broken = False
        while True:
            reason = "the node ended the stream"
            try:
                async for frame in self._links.append(self.node_id, self._frames(self._connection)):
                    for ack in decode_acks(frame):
                        self._answered(ack)
                    backoff = _BACKOFF_S[0]
                    if broken:
                        broken = False
                        log.info("replication goes on", extra={"to": self.node_id})
            except MinkaError as error:
                reason = str(error)
            self._connection += 1
            if not broken:
                broken = True
                log.info("replication is interrupted", extra={"to": self.node_id, "reason": reason})
            for follower in list(self._followers.values()):
                follower.lost(reason)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, longest)

    def _answered(self, ack: Ack) -> None:
        follower = self._followers.get(ack.partition_id)
        if follower is not None:
            follower.acknowledged(ack)
            self._wake.set()

    async def _frames(self, connection: int) -> AsyncIterator[bytes]:
        # gRPC goes on asking for the next frame when the call has ended, and drops it: it must not get one.
        while connection == self._connection:
            self._wake.clear()
            appends = self._collect()
            if appends:
                yield encode(appends)
            else:
                await self._wake.wait()

    @failpoint("feed.append")
    def _collect(self) -> list[Append]:
        appends: list[Append] = []
        left = _FRAME_BYTES
        for follower in self._followers.values():
            append = follower.take(left)
            if append is None:
                continue
            appends.append(append)
            left -= sum(len(entry.body) for entry in append.entries)
            if left <= 0:
                self._wake.set()
                break
        if len(appends) > 1:
            # Who comes first changes, so that nobody waits for ever behind a busy one.
            first = appends[0].partition_id
            self._followers[first] = self._followers.pop(first)
        return appends
