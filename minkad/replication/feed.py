"""The leader's side of replication: one stream to each node that follows, for all its partitions."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

from minka.errors import Code, MinkaError
from minkad.process.failpoints import failpoint
from minkad.process.turns import turn
from minkad.replication.frames import Ack, Append, Entry, Frame, Standing, decode_answer, encode
from minkad.replication.links import ReplicationLinks
from minkad.replication.replica import Replica, Role

log: Final = logging.getLogger(__name__)

_READ_BYTES: Final = 256 * 1024  # for one partition in one frame
_FRAME_BYTES: Final = 1024 * 1024
_FRAME_APPENDS: Final = 256  # partitions in one frame, for a turn of the loop on either side
_UNACKNOWLEDGED_BYTES: Final = 4 * 1024 * 1024  # sent to one follower of one partition
_NEAR_BYTES: Final = 256 * 1024
_BACKOFF_S: Final = (0.02, 0.5)
_BEAT_S: Final = 0.1  # between two frames that tell all high watermarks, at the longest
_WATERMARK_S: Final = 0.01  # for which a high watermark may wait for entries to travel with
_SILENCE_S: Final = 3.0  # without an answer for so long, the stream is given up


class Follower:
    """How far one node is with one partition, in one leadership.

    It is asked where it stands, whenever its stream has begun anew; `on_standing` is to `start` it then.
    """

    def __init__(
        self,
        node_id: str,
        replica: Replica,
        feed: "Feed",
        on_standing: Callable[["Follower", Ack], None],
        on_matched: Callable[["Follower"], None],
    ) -> None:
        """`on_matched`: it has more than before, or its stream is broken."""
        self.node_id = node_id
        self.replica = replica
        self.leader_epoch = replica.row.leader_epoch
        self.sending = False
        self.aligned = False  # it has said, since the sending began, that its log is a part of this leader's
        self.next = 0
        self.matched = 0  # it has everything up to here, as durably as the keyspace asks
        self.error = ""  # why the stream is broken; "" while it is not
        self.queued = False  # in the feed
        self.unacknowledged = 0  # bytes
        self._feed = feed
        self._on_standing = on_standing
        self._on_matched = on_matched
        self._probing = False  # the question is yet to be sent
        self._asked = False  # its answer is yet to come
        self._cut = False  # its log is to end where the next entries begin
        self._paused = False
        self._told = 0  # the high watermark, last time
        self._sent: deque[tuple[int, int]] = deque()  # (last offset, bytes) of each part that is not acknowledged

    def probe(self) -> None:
        """Ask where the node stands."""
        self.stop()
        self._probing = True
        self._feed.queue(self)

    def start(self, offset: int) -> None:
        """Send everything behind `offset`, up to which the node has what the leader has."""
        self.stop()
        self.next, self.matched, self.sending, self._cut = offset + 1, offset, True, True
        self.replica.retain[self.node_id] = offset
        self.replica.lost.discard(self.node_id)
        self._feed.queue(self)
        self._on_matched(self)

    def stop(self) -> None:
        """Send nothing."""
        self.sending, self.aligned, self._probing, self._asked, self.next = False, False, False, False, 0
        self._sent.clear()
        self.unacknowledged = 0

    def lost(self, error: str) -> None:
        """The stream broke: what was sent may not have come, so ask again on the next."""
        self.error = error
        if self.node_id in self.replica.retain:
            self.replica.lost.add(self.node_id)
        self.probe()
        self._on_matched(self)

    def look(self) -> None:
        """There may be more to send."""
        if not self.queued and self.sending and (self._cut or self.next <= self.replica.log.end):
            self._feed.queue(self)

    def pause(self, pause: bool) -> None:
        """Whether to send no entries: the node has no room for them, and is not in sync."""
        if pause != self._paused:
            self._paused = pause
            self.look()

    def watermark_moved(self) -> None:
        """More is committed."""
        if self.sending:
            self._feed.tell_soon(self)

    @property
    def has_more(self) -> bool:
        """Whether there is more to send right now."""
        has_room = not self._paused and self.unacknowledged < _UNACKNOWLEDGED_BYTES
        return self.sending and self.next <= self._readable() and has_room

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
        replica, log_ = self.replica, self.replica.log
        if self.sending and self.next <= log_.base:
            self.probe()  # the log did not wait for it
        if self._probing:
            self._probing, self._asked = False, True
            return Append(replica.id, self.leader_epoch, 0, 0, 0, [], True)
        if not self.sending or self._paused or self.unacknowledged >= _UNACKNOWLEDGED_BYTES:
            return None
        prev, cut = self.next - 1, self._cut
        end = self._readable()
        if prev >= end:
            return self.watermark() if cut else None
        entries = log_.read(self.next, end, min(limit, _READ_BYTES))
        size = sum(len(entry.body) for entry in entries)
        self.next += len(entries)
        self._sent.append((self.next - 1, size))
        self.unacknowledged += size
        return self._append(prev, entries, cut)

    def _readable(self) -> int:
        replica = self.replica
        return replica.log.readable(self.next, replica.durable) if replica.ships_unsynced else replica.durable

    def watermark(self) -> Append | None:
        """What is committed, without entries; None: it was told, or is to be told otherwise."""
        if not self.sending or (self._told == self.replica.high_watermark and not self._cut):
            return None
        return self._append(self.next - 1, [], self._cut)

    def _append(self, prev: int, entries: list[Entry], cut: bool) -> Append:
        replica = self.replica
        self._cut, self._told = False, replica.high_watermark
        return Append(replica.id, self.leader_epoch, prev, self._told, replica.ready_at, entries, False, cut)

    def acknowledged(self, ack: Ack) -> None:
        """The node has answered."""
        if ack.leader_epoch != self.leader_epoch:
            return
        self.error = ""
        if ack.lineage is not None:
            if self._asked:
                self._asked = False
                self._on_standing(self, ack)
        elif ack.standing == Standing.NEEDS_CHECKPOINT:
            self.stop()
            self._on_standing(self, ack)
        elif self.sending:
            if ack.offset >= self.next:
                raise MinkaError(Code.INTERNAL, f"partition {ack.partition_id}: {ack.offset} was never sent")
            was_aligned, self.aligned = self.aligned, True
            if ack.offset <= self.matched:
                if not was_aligned:
                    self._on_matched(self)
                return
            self.matched = ack.offset
            self.replica.retain[self.node_id] = self.matched
            while self._sent and self._sent[0][0] <= ack.offset:
                self.unacknowledged -= self._sent.popleft()[1]
            if self.next <= self.replica.log.end:
                self.look()
            self._on_matched(self)


class Feed:
    """The stream to one node; reconnects for as long as there are followers."""

    def __init__(self, node_id: str, links: ReplicationLinks, has_clearance: Callable[[], bool]) -> None:
        self.node_id = node_id
        self._links = links
        self._has_clearance = has_clearance
        self._followers: dict[int, Follower] = {}
        self._ready: deque[Follower] = deque()
        self._untold: dict[Follower, None] = {}  # high watermarks that have moved
        self._dropped: list[int] = []
        self._stamp = 0.0  # the newest of the node's clock
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection = 0
        self._beat_due = self._untold_due = False
        self._timer: asyncio.TimerHandle | None = None

    def add(
        self,
        replica: Replica,
        on_standing: Callable[[Follower, Ack], None],
        on_matched: Callable[[Follower], None],
    ) -> Follower:
        """Begin to care for the node's replica of this partition."""
        assert replica.role is Role.LEADER, f"partition {replica.id} is not led here"
        follower = self._followers[replica.id] = Follower(self.node_id, replica, self, on_standing, on_matched)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"replication to {self.node_id}")
        follower.probe()
        return follower

    def remove(self, follower: Follower) -> None:
        """Forget it. The stream ends with the last."""
        if self._followers.get(follower.replica.id) is follower:
            del self._followers[follower.replica.id]
            self._dropped.append(follower.replica.id)
            self._wake.set()
        follower.stop()
        self._untold.pop(follower, None)
        follower.replica.retain.pop(self.node_id, None)
        follower.replica.lost.discard(self.node_id)
        if not self._followers and self._task is not None:
            self._task.cancel()
            self._task = None
            self._end_stream()

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    def queue(self, follower: Follower) -> None:
        """It has something to send."""
        if not follower.queued:
            follower.queued = True
            self._ready.append(follower)
            self._wake.set()

    def tell_soon(self, follower: Follower) -> None:
        """Its high watermark has moved: tell it with the next entries, or soon."""
        if not self._untold:
            asyncio.get_running_loop().call_later(_WATERMARK_S, self._untold_are_due)
        self._untold[follower] = None

    async def close(self) -> None:
        """End the stream."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._end_stream()

    async def _run(self) -> None:
        backoff, longest = _BACKOFF_S
        broken = False
        while True:
            reason = "the node ended the stream"
            try:
                async with asyncio.timeout(_SILENCE_S) as limit:
                    self._beat()
                    async for data in self._links.append(self.node_id, self._frames(self._connection)):
                        limit.reschedule(asyncio.get_running_loop().time() + _SILENCE_S)
                        await self._answered(data)
                        backoff = _BACKOFF_S[0]
                        if broken:
                            broken = False
                            log.info("replication goes on", extra={"to": self.node_id})
            except MinkaError as error:
                reason = str(error)
            except TimeoutError:
                reason = f"no answer for {_SILENCE_S:g} s"
            except Exception as error:
                log.exception("replication failed, and begins anew", extra={"to": self.node_id})
                reason = repr(error)
            self._end_stream()
            if not broken:
                broken = True
                log.info("replication is interrupted", extra={"to": self.node_id, "reason": reason})
            for follower in list(self._followers.values()):
                follower.lost(reason)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, longest)

    def _end_stream(self) -> None:
        self._connection += 1
        self._stamp = 0.0  # of a process that may be gone
        self._dropped.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake.set()

    def _beat(self) -> None:
        self._beat_due = True
        self._wake.set()
        self._timer = asyncio.get_running_loop().call_later(_BEAT_S, self._beat)

    def _untold_are_due(self) -> None:
        self._untold_due = bool(self._untold)
        self._wake.set()

    async def _answered(self, data: bytes) -> None:
        answer = decode_answer(data)
        self._stamp = answer.stamp
        for number, ack in enumerate(answer.acks, 1):
            if number % _FRAME_APPENDS == 0:
                await turn()
            follower = self._followers.get(ack.partition_id)
            if follower is not None:
                follower.acknowledged(ack)

    async def _frames(self, connection: int) -> AsyncIterator[bytes]:
        # gRPC goes on asking for the next frame when the call has ended, and drops it: it must not get one.
        while connection == self._connection:
            self._wake.clear()
            frame = self._collect()
            if frame is not None:
                yield encode(frame)
            else:
                await self._wake.wait()

    @failpoint("feed.append")
    def _collect(self) -> Frame | None:
        dropped, self._dropped = self._dropped, []
        appends: list[Append] = []
        left = _FRAME_BYTES
        for _ in range(min(len(self._ready), _FRAME_APPENDS)):
            follower = self._ready.popleft()
            follower.queued = False
            if self._followers.get(follower.replica.id) is not follower:
                continue
            append = follower.take(left)
            if append is None:
                continue
            appends.append(append)
            left -= sum(len(entry.body) for entry in append.entries)
            if follower.has_more:
                self.queue(follower)  # behind the others
            if left <= 0:
                self._wake.set()
                break
        if self._ready:
            self._wake.set()
        echo = None
        if left > 0 and (self._untold_due or self._beat_due):
            appends += [append for follower in self._untold if (append := follower.watermark()) is not None]
            self._untold.clear()
            if self._beat_due:
                # Who has no clearance may have been replaced, and its high watermarks are old.
                echo = self._stamp if self._has_clearance() else 0.0
            self._beat_due = self._untold_due = False
        if not appends and not dropped and echo is None:
            return None
        return Frame(appends, dropped, echo)
