"""The followers' side of replication: one stream from each leader's node."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from minka.errors import Code, MinkaError
from minka.wire import kv_frames
from minkad.core.replication.following import LeaderStream
from minkad.core.replication.node import Node
from minkad.core.replication.peer_messages import Ack, Append
from minkad.core.replication.replica_state import Role
from minkad.process import tasks
from minkad.process.failpoints import failpoint
from minkad.process.turns import turn
from minkad.replication.applying.committer import Committer
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.sending.checkpoint_receiver import CheckpointReceiver
from minkad.replication.sending.peer_frames import Answer, decode_frame, encode
from minkad.replication.surroundings import Surroundings

_MANY: Final = 64  # partitions in a frame, after which other tasks get a turn
_UNSTORED_BYTES: Final = 64 * 1024 * 1024  # with more bytes that aren't stored yet, no frame is read (flow control)
_MAX_PROBES: Final = 65_536  # probes that came before their rows


class IncomingStream(LeaderStream):
    """A leaders' stream, with the answers that are to be sent: for each partition only the newest."""

    def __init__(self) -> None:
        super().__init__()
        self.wake = asyncio.Event()  # there may be an answer to send, or the stream has ended
        self.partitions: set[int] = set()  # partitions whose followers were probed on this stream
        self._acks: dict[int, Ack] = {}  # by partition: answers to send
        self._beat = False  # send an answer even without acks

    def answer(self, ack: Ack) -> None:
        """Send the answer soon."""
        waiting = self._acks.get(ack.partition_id)
        if waiting is not None and waiting.lineage is not None and ack.lineage is None:
            return  # the leader needs the probe's answer first; later acks tell of the newer entries
        self._acks[ack.partition_id] = ack
        self.wake.set()

    def beat(self) -> None:
        """Send an answer soon, even if it has only the time."""
        self._beat = True
        self.wake.set()

    def take(self) -> list[Ack] | None:
        """The answers to send; None if there is nothing to send."""
        self.wake.clear()
        if not self._acks and not self._beat:
            return None
        acks, self._acks, self._beat = list(self._acks.values()), {}, False
        return acks


class ReplicationReceiver:
    """Serves the leaders of the partitions that this node follows."""

    def __init__(
        self,
        around: Surroundings,
        node: Node[HostedReplica],
        checkpoints: CheckpointReceiver,
        committer: Committer,
    ) -> None:
        self._node = node
        self._checkpoints = checkpoints
        self._committer = committer
        self._clock = around.clock
        # By partition: (leader_epoch, stream) of a probe that came before the row.
        self.early_probes: dict[int, tuple[int, IncomingStream]] = {}
        self._unstored = 0  # the bytes of all frames since everything was last stored

    async def append(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Serve one stream from a leaders' node: take its frames, and yield answers. Raises INVALID_ARGUMENT,
        INTERNAL.
        """
        stream = IncomingStream()
        reader = tasks.awaited(self._read(frames, stream), "frames of a leader")
        reader.add_done_callback(lambda _: stream.wake.set())
        try:
            while True:
                await stream.wake.wait()
                acks = stream.take()
                if acks is not None:
                    yield encode(Answer(acks, self._clock()))
                if reader.done():
                    reader.result()
                    return
        finally:
            tasks.drop(reader)
            for partition_id in stream.partitions:
                self._node.stream_ended(partition_id, stream, self._clock())
            self.early_probes = {key: value for key, value in self.early_probes.items() if value[1] is not stream}

    def row_changed(self, replica: HostedReplica) -> None:
        """Answer a probe that came before the row."""
        probe = self.early_probes.get(replica.id)
        if probe is not None and replica.state.role is Role.FOLLOWER and probe[0] == replica.state.row.leader_epoch:
            del self.early_probes[replica.id]
            self._answer_probe(replica, probe[1])

    async def _read(self, frames: AsyncIterator[bytes], stream: IncomingStream) -> None:
        async for data in frames:
            try:
                frame = decode_frame(data)
            except kv_frames.UNDECODABLE as error:
                raise MinkaError(Code.INVALID_ARGUMENT, f"a replication frame: {error}") from error
            stream.number = frame.stream_number
            for partition_id in frame.dropped:
                stream.partitions.discard(partition_id)
                self._node.stream_ended(partition_id, stream, self._clock())
            known_at = frame.echo or stream.known_at
            for append in frame.appends:
                self._take(append, stream, known_at)
            stream.known_at = known_at
            if len(frame.appends) >= _MANY:
                await turn()
            if frame.echo is not None:
                stream.beat()
            self._unstored += len(data)
            if self._unstored > _UNSTORED_BYTES:
                await self._committer.stored()
                self._unstored = 0

    def _take(self, append: Append, stream: IncomingStream, known_at: float) -> None:
        replica = self._node.replicas.get(append.partition_id)
        if replica is None or replica.state.follower is None or replica.state.row.leader_epoch != append.leader_epoch:
            if append.probe:
                self._answer_later(append, stream)
            return  # this node or the leader lacks the newer row
        if append.probe:
            self._answer_probe(replica, stream)
        else:
            self._append(replica, append, stream, known_at)

    @failpoint("following.append")
    def _append(self, replica: HostedReplica, append: Append, stream: IncomingStream, known_at: float) -> None:
        self._node.leader_sent(replica, append, stream, known_at)

    def _answer_later(self, append: Append, stream: IncomingStream) -> None:
        """Keep the probe until the row comes. For a former leader's probe, the row never comes."""
        probe = self.early_probes.get(append.partition_id)
        if probe is None and len(self.early_probes) >= _MAX_PROBES:
            return
        if probe is None or (probe[0], probe[1].number) <= (append.leader_epoch, stream.number):
            self.early_probes[append.partition_id] = (append.leader_epoch, stream)

    def _answer_probe(self, replica: HostedReplica, stream: IncomingStream) -> None:
        stream.partitions.add(replica.id)
        self._node.probed(replica, stream, self._checkpoints.kept(replica.id), self._clock())
