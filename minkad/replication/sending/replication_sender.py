"""The leaders' side of replication: one stream to each node with followers, for all of its partitions."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final

from minka.errors import MinkaError
from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.instructions import Send, SendWatermark, StartSending, StopSending
from minkad.core.replication.node import Node
from minkad.core.replication.peer_messages import Append
from minkad.process import tasks
from minkad.process.failpoints import failpoint
from minkad.process.turns import turn
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.sending.peer_frames import Frame, decode_answer, encode
from minkad.replication.surroundings import Surroundings

log: Final = logging.getLogger(__name__)

_FRAME_BYTES: Final = 1024 * 1024
_FRAME_APPENDS: Final = 256  # partitions in one frame, so that neither side holds the loop for long
_BACKOFF_S: Final = (0.02, 0.5)
_BEAT_S: Final = 0.5  # the longest time between two frames that tell all high watermarks
_ECHO_S: Final = 0.05  # between beats, the shortest time between two frames with an `echo`
_WATERMARK_S: Final = 0.01  # a high watermark waits at most this long for entries with which it can be sent
_SILENCE_S: Final = 3.0  # a stream without an answer for this long is given up


class ReplicationSenders:
    """The streams to the nodes that follow, or have followed."""

    def __init__(self, around: Surroundings, node: Node[HostedReplica]) -> None:
        self._around = around
        self._node = node
        self._senders: dict[str, ReplicationSender] = {}  # by node

    def followers(self) -> Iterable[str]:
        """The nodes that follow a partition that this node leads."""
        return [name for name, sender in self._senders.items() if sender.is_followed]

    def start(self, start: StartSending) -> None:
        """Carry out the instruction."""
        node_id = start.progress.node_id
        sender = self._senders.get(node_id)
        if sender is None:
            sender = self._senders[node_id] = ReplicationSender(node_id, self._around, self._node)
        sender.start(start.progress)

    def stop(self, stop: StopSending) -> None:
        """Carry out the instruction."""
        self._senders[stop.progress.node_id].stop(stop.progress)

    def send(self, send: Send) -> None:
        """Carry out the instruction."""
        self._senders[send.progress.node_id].send(send.progress)

    def send_watermark(self, told: SendWatermark) -> None:
        """Carry out the instruction."""
        self._senders[told.progress.node_id].send_watermark(told.progress, told.at_once)

    async def close(self) -> None:
        """End all streams."""
        for sender in self._senders.values():
            await sender.close()


class ReplicationSender:
    """The stream to one node. It reconnects as long as the node follows any partition."""

    def __init__(self, node_id: str, around: Surroundings, node: Node[HostedReplica]) -> None:
        self.node_id = node_id
        self._node = node
        self._links = around.links
        self._has_clearance = around.table.has_clearance
        self._clock = around.clock
        self._progress: dict[int, Progress] = {}  # by partition
        self._unsure: dict[int, None] = {}  # partitions with messages on this stream, or new ones: see `_disconnected`
        self._ready: deque[Progress] = deque()  # followers with `is_queued`, in their turn
        self._untold: dict[Progress, None] = {}  # followers that don't know a new high watermark yet
        self._dropped: list[int] = []  # for `Frame.dropped` of the next frame
        self._stamp = 0.0  # the newest stamp of the follower's clock on this stream; 0.0: none yet
        self._echoed_at = float("-inf")  # the time of the last frame with an `echo`
        self._wake = asyncio.Event()  # there may be a frame to send, or the stream has ended
        self._task: asyncio.Task[None] | None = None  # while the node follows any partition
        self._connection = 0  # the number of the stream; grows at each end of a stream
        self._beat_due = self._untold_due = False  # the next frame tells the high watermarks of `_untold`, and echoes
        self._timer: asyncio.TimerHandle | None = None  # of the next beat

    @property
    def is_followed(self) -> bool:
        """True if the node follows any partition."""
        return bool(self._progress)

    def start(self, progress: Progress) -> None:
        """The node follows this partition from now on."""
        self._progress[progress.state.id] = progress
        self._unsure[progress.state.id] = None
        if self._task is None:
            self._task = tasks.start(self._run(), f"replication to {self.node_id}")
        progress.is_queued = False
        self.send(progress)

    def stop(self, progress: Progress) -> None:
        """The node no longer follows this partition. If that was the last one, the stream ends."""
        partition_id = progress.state.id
        if self._progress.get(partition_id) is progress:
            del self._progress[partition_id]
            self._unsure.pop(partition_id, None)
            self._dropped.append(partition_id)
            self._wake.set()
        self._untold.pop(progress, None)
        if not self._progress and self._task is not None:
            self._task.cancel()
            self._task = None
            self._end_stream()

    def send(self, progress: Progress) -> None:
        """There is something to send to this follower."""
        progress.is_queued = True
        self._ready.append(progress)
        self._wake.set()

    def send_watermark(self, progress: Progress, at_once: bool) -> None:
        """The high watermark has moved: tell the follower with the next entries, or soon."""
        if not self._untold and not at_once:
            asyncio.get_running_loop().call_later(_WATERMARK_S, self._watermarks_due)
        self._untold[progress] = None
        if at_once:
            self._watermarks_due()

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
                log.exception("replication failed, and begins again", extra={"to": self.node_id})
                reason = repr(error)
            self._end_stream()
            if not broken:
                broken = True
                log.info("replication is interrupted", extra={"to": self.node_id, "reason": reason})
            await self._disconnected(reason)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, longest)

    async def _disconnected(self, reason: str) -> None:
        """Tell the leaders that the stream broke, if they had sent anything on it, or have begun since. So while the
        node is away, each leader hears it once, not at each try.
        """
        unsure, self._unsure = list(self._unsure), {}
        for number, partition_id in enumerate(unsure, 1):
            if (progress := self._progress.get(partition_id)) is not None:
                self._node.follower_lost(progress, reason, self._clock())
            if number % _FRAME_APPENDS == 0:
                await turn()

    def _end_stream(self) -> None:
        self._connection += 1
        self._stamp = 0.0  # the stamp came from a process that may be gone
        self._dropped.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake.set()

    def _beat(self) -> None:
        self._beat_due = True
        self._wake.set()
        self._timer = asyncio.get_running_loop().call_later(_BEAT_S, self._beat)

    def _watermarks_due(self) -> None:
        self._untold_due = bool(self._untold)
        self._wake.set()

    async def _answered(self, data: bytes) -> None:
        answer = decode_answer(data)
        if not self._stamp:  # the first answer: echo it at once, so that the follower knows the age of its data
            self._beat_due = True
            self._wake.set()
        self._stamp = answer.stamp
        now = self._clock()
        for number, ack in enumerate(answer.acks, 1):
            if number % _FRAME_APPENDS == 0:
                await turn()
            if (progress := self._progress.get(ack.partition_id)) is not None:
                self._node.acknowledged(progress, ack, now)

    async def _frames(self, connection: int) -> AsyncIterator[bytes]:
        # After the end of the call, gRPC still takes the next frame, and drops it. So the next stream's frames must not
        # come from here.
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
            progress = self._ready.popleft()
            progress.is_queued = False
            if self._progress.get(progress.state.id) is not progress:
                continue
            append = progress.next_append(left)
            if append is None:
                continue
            appends.append(append)
            self._unsure[progress.state.id] = None
            left -= sum(len(entry.body) for entry in append.entries)
            if progress.has_more:
                self.send(progress)  # after the others
            if left <= 0:
                self._wake.set()
                break
        if self._ready:
            self._wake.set()
        echo = None
        if left > 0 and (self._untold_due or self._beat_due):
            appends += [append for one in self._untold if (append := one.next_watermark()) is not None]
            self._untold.clear()
            echo = self._echo()
            self._beat_due = self._untold_due = False
        if not appends and not dropped and echo is None:
            return None
        return Frame(appends, dropped, echo, self._connection)

    def _echo(self) -> float | None:
        """See `Frame.echo`. Without clearance it is 0.0: another node may lead by now, and have committed more."""
        now = self._clock()
        if not self._beat_due and now - self._echoed_at < _ECHO_S:
            return None
        self._echoed_at = now
        return self._stamp if self._has_clearance() else 0.0
