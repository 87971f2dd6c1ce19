"""Receives a checkpoint from a leader, and replaces the follower's log and data with it."""

from collections.abc import AsyncIterator
from typing import Final

from minka.errors import Code, MinkaError
from minka.wire.kv_frames import UNDECODABLE
from minkad.core.replication.node import Node
from minkad.core.replication.peer_messages import KeptFile
from minkad.process.failpoints import failpoint
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.changing.damage import Damage
from minkad.replication.sending.pace import Pace
from minkad.replication.sending.peer_frames import ShipHeader, Shipped, decode_header, decode_trailer, encode
from minkad.replication.surroundings import Surroundings
from minkad.storage.checkpoint import CheckpointFile, Incoming

_MAX_KEPT: Final = 10_000  # files of one checkpoint
_AT_ONCE: Final = 32  # checkpoints; any other is refused, and its leader tries again soon


class CheckpointReceiver:
    """A replica stays unchanged until the whole checkpoint has come. If the transfer breaks, the node keeps the
    complete files for the next transfer.
    """

    def __init__(self, around: Surroundings, node: Node[HostedReplica], damage: Damage, pace: Pace) -> None:
        self._node = node
        self._damage = damage
        self._log_db = around.log_db
        self._clock = around.clock
        self._store = around.store
        self._pace = pace
        self._check_room = around.disk.check_room
        # By partition: the complete files of a broken transfer; empty during a transfer, absent without any.
        self._kept: dict[int, list[KeptFile]] = {}
        self._under_way: set[int] = set()  # partitions whose checkpoint is being received

    def kept(self, partition_id: int) -> list[KeptFile]:
        """The complete files of a checkpoint whose transfer broke."""
        return self._kept.get(partition_id, [])

    async def discard(self, partition_id: int) -> None:
        """Remove the kept files, unless a transfer is under way: it removes its files at its end. Raises
        STORAGE_FAILED.
        """
        if partition_id not in self._under_way and self._kept.pop(partition_id, None) is not None:
            await self._store.incoming(partition_id, [], {}).discard()

    async def install(self, messages: AsyncIterator[bytes]) -> bytes:
        """Receive a checkpoint, and put it in place. Returns an encoded `Shipped`.

        Raises NOT_LEADER, OVERLOADED, DISK_LOW, INVALID_ARGUMENT, CORRUPT_DATA, STORAGE_FAILED.
        """
        header = await _decoded_header(messages)
        replica = self._following(header)
        if replica.state.is_receiving or replica.id in self._under_way:
            raise MinkaError(Code.OVERLOADED, f"partition {header.partition_id} is being received already")
        if len(self._under_way) >= _AT_ONCE:
            raise MinkaError(Code.OVERLOADED, f"{_AT_ONCE} checkpoints are being received already")
        self._check_room(sum(size for name, size in header.files if name not in header.kept))
        incoming = self._announced(header)
        self._under_way.add(replica.id)
        self._node.receiving_begun(replica, self._clock())
        try:
            await self._receive(incoming, messages)
            await replica.data.detach_children()
            async with replica.lock:
                await replica.data.detach_children()  # before the lock was free, a split may have made another child
                if self._following(header) is not replica:
                    raise MinkaError(Code.NOT_LEADER, f"partition {replica.id} has changed hands")
                self._kept.pop(replica.id, None)
                await self.replace(replica, incoming)
                return encode(Shipped(replica.state.durable))
        except MinkaError as error:
            if error.code in (Code.CORRUPT_DATA, Code.NOT_LEADER, Code.STORAGE_FAILED):
                self._kept.pop(replica.id, None)
                await incoming.discard()
            raise
        finally:
            self._node.receiving_ended(replica, self._clock())
            self._under_way.discard(replica.id)
            if self._node.replicas.get(replica.id) is replica:
                if replica.id in self._kept:
                    self._keep(header, incoming)
            elif self._kept.pop(replica.id, None) is not None:
                await incoming.discard()

    def _announced(self, header: ShipHeader) -> Incoming:
        there = {file.name: file.checksum for file in self.kept(header.partition_id)}
        if missing := set(header.kept) - there.keys():
            raise MinkaError(Code.INVALID_ARGUMENT, f"{len(missing)} files are not here, such as {missing.pop()!r}")
        files = [CheckpointFile(*file) for file in header.files]
        incoming = self._store.incoming(header.partition_id, files, {name: there[name] for name in header.kept})
        self._kept[header.partition_id] = []
        return incoming

    def _keep(self, header: ShipHeader, incoming: Incoming) -> None:
        sizes = dict(header.files)
        files = [KeptFile(name, sizes[name], checksum) for name, checksum in incoming.finished().items()]
        self._kept[header.partition_id] = files[:_MAX_KEPT]

    def _following(self, header: ShipHeader) -> HostedReplica:
        replica = self._node.replicas.get(header.partition_id)
        if replica is None or replica.state.follower is None or replica.state.row.leader_epoch != header.leader_epoch:
            text = f"partition {header.partition_id} is not followed here at leader_epoch {header.leader_epoch}"
            raise MinkaError(Code.NOT_LEADER, text)
        return replica

    @failpoint("following.receive")
    async def _receive(self, incoming: Incoming, messages: AsyncIterator[bytes]) -> None:
        found = await incoming.write(_content(incoming, messages, self._pace))
        try:
            trailer = decode_trailer(await anext(messages))
        except (StopAsyncIteration, *UNDECODABLE) as error:
            raise MinkaError(Code.INVALID_ARGUMENT, "a checkpoint without its checksums") from error
        incoming.check(trailer.checksums, found)
        await incoming.verify()

    async def replace(self, replica: HostedReplica, incoming: Incoming) -> None:
        """Replace the replica's log and data with the checkpoint."""
        await self.clear(replica)
        await self.put_in_place(replica, incoming)
        await self.take_over(replica)

    @failpoint("following.clear")
    async def clear(self, replica: HostedReplica) -> None:
        """Record durably that the data on disk is unusable from now on."""
        replica.drop_pending()
        self._node.checkpoint_complete(replica, self._clock())
        replica.stage_meta(self._log_db)
        await self._log_db.sync()
        await replica.data.close()

    @failpoint("following.install")
    async def put_in_place(self, replica: HostedReplica, incoming: Incoming) -> None:
        await incoming.install(replica.data.path)
        self._node.checkpoint_in_place(replica, self._damage.new_data(replica.id))
        await replica.data.open()

    @failpoint("following.take_over")
    async def take_over(self, replica: HostedReplica) -> None:
        """Record durably that the checkpoint is the data, and that the log begins after it."""
        self._node.checkpoint_opened(replica, self._clock())
        replica.stage_meta(self._log_db)
        await self._log_db.sync()


async def _decoded_header(messages: AsyncIterator[bytes]) -> ShipHeader:
    try:
        return decode_header(await anext(messages))
    except (StopAsyncIteration, *UNDECODABLE) as error:
        raise MinkaError(Code.INVALID_ARGUMENT, "a checkpoint without its header") from error


async def _content(incoming: Incoming, messages: AsyncIterator[bytes], pace: Pace) -> AsyncIterator[bytes]:
    """The content of the files as it comes. The sender waits while `pace` lets this side wait."""
    while not incoming.complete:
        try:
            content = await anext(messages)
        except StopAsyncIteration:
            return
        await pace.take(len(content))
        yield content
