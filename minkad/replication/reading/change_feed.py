"""The change feed of partitions: applied entries, read from their logs."""

from array import array
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from itertools import accumulate
from pathlib import Path
from typing import Final

from minka.errors import Code, MinkaError, with_rows
from minka.v1.changes_pb2 import ChangeBatch, ChangePosition
from minka.v1.snapshots_pb2 import RowBatch
from minka.wire.kv_frames import StoredWrite, WriteBody
from minka.wire.stored_values import values_of
from minkad.core.replication.entries import IngestMark, SplitMarker, decode_entry, is_mark
from minkad.core.replication.replica_state import Role
from minkad.process import turns
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.surroundings import LoadSources
from minkad.storage.scan_process import ScanRequest
from minkad.storage.scanner import Scanner

_READ_BYTES: Final = 256 * 1024  # of entries before other tasks get a turn; a larger entry is read whole


class Changes:
    """For the loop's thread. Any replica serves its applied entries, even without clearance: they never change."""

    def __init__(self, replicas: Mapping[int, HostedReplica], scanner: Scanner, loads: LoadSources | None) -> None:
        """`loads` has the files of loads on this node; None: this node takes in no loads."""
        self._replicas = replicas
        self._scanner = scanner
        self._loads = loads

    def positions(self, partition_ids: Iterable[int]) -> list[ChangePosition]:
        """The positions of the partitions that are here, among these."""
        found = [replica for id_ in partition_ids if (replica := self._replicas.get(id_)) is not None]
        return [_position(replica) for replica in found if _is_usable(replica)]

    def _file_of(self, number: int, name: str) -> Path | None:
        """The path of a load's file, if it is here."""
        if self._loads is None or all(file.name != name for file in self._loads.spool.files(number)):
            return None
        return self._loads.spool.path(number, name)

    async def read(self, partition_id: int, after: int, until: int) -> AsyncGenerator[ChangeBatch, None]:
        """The changes after the offset `after`, up to and including `until`, in batches. The caller gives other tasks a
        turn between two batches. Raises NOT_LEADER if `until` isn't applied here; PARTITION_NOT_HERE, CHANGES_GONE,
        CORRUPT_DATA, STORAGE_FAILED.
        """
        while after < until:
            replica = self._usable(partition_id)
            if until > replica.state.applied:
                text = f"partition {partition_id} is at offset {replica.state.applied} here, not at {until}"
                raise with_rows(MinkaError(Code.NOT_LEADER, text), [replica.state.row])
            first = self._first(replica, after)
            batch = _Batch()
            after, mark = batch.add(replica, first, until)
            encoded = [batch.encode(after)]
            del batch  # while the reader takes nothing, memory has the batch only once
            yield encoded.pop()
            if mark is not None:
                async with aclosing(self._taken_in(replica, after + 1, mark)) as batches:
                    async for taken_in in batches:
                        yield taken_in
                after += 1
                yield ChangeBatch(next_offset=after)

    async def _taken_in(
        self, replica: HostedReplica, offset: int, mark: IngestMark
    ) -> AsyncGenerator[ChangeBatch, None]:
        """The rows of a load's file, as puts. Until all of them are read, `next_offset` stays before the mark's offset.
        The first batch is empty: the scan of the file waits for its turn after that.
        """
        if await self._was_taken_in(replica, offset, mark.load_number):
            return
        path = self._file_of(mark.load_number, mark.name)
        if path is None:
            text = f"partition {replica.id}: the file of the load at offset {offset} is no longer here"
            raise with_rows(MinkaError(Code.CHANGES_GONE, text), [replica.state.row])
        request = ScanRequest(str(path), b"", b"", "rows", batch_bytes=_READ_BYTES)
        yield ChangeBatch()
        async with aclosing(self._scanner.scan(request)) as answers:
            async for answer in answers:
                rows = RowBatch.FromString(answer)
                yield ChangeBatch(
                    offsets=[offset] * rows.rows,
                    key_offsets=rows.key_offsets,
                    keys=rows.keys,
                    value_offsets=rows.value_offsets,
                    values=rows.values,
                    deleted=bytes(rows.rows),
                    next_offset=offset - 1,
                )

    async def _was_taken_in(self, replica: HostedReplica, offset: int, load_number: int) -> bool:
        """True if an earlier mark has taken in the same load, so that this mark did nothing."""
        after = replica.log.base
        while after + 1 < offset:
            entries = replica.log.read(after + 1, offset - 1, _READ_BYTES)
            for entry in entries:
                mark = decode_entry(entry.body) if is_mark(entry.body) else None
                if isinstance(mark, IngestMark) and mark.load_number == load_number:
                    return True
            after += len(entries)
            await turns.turn()
        return False

    async def child_at(self, partition_id: int, after: int, child_id: int) -> int:
        """The offset, after `after`, of the mark that split the child off; 0: none. Raises errors of `read`."""
        while True:
            replica = self._usable(partition_id)
            if after >= replica.state.applied:
                return 0
            entries = replica.log.read(self._first(replica, after), replica.state.applied, _READ_BYTES)
            for offset, entry in enumerate(entries, after + 1):
                mark = decode_entry(entry.body)
                if isinstance(mark, SplitMarker) and mark.child_id == child_id:
                    return offset
            after += len(entries)
            await turns.turn()

    def _usable(self, partition_id: int) -> HostedReplica:
        replica = self._replicas.get(partition_id)
        if replica is None or not _is_usable(replica):
            raise MinkaError(Code.PARTITION_NOT_HERE, f"this node has no whole replica of partition {partition_id}")
        return replica

    @staticmethod
    def _first(replica: HostedReplica, after: int) -> int:
        if after < replica.log.base:
            text = f"partition {replica.id}: changes after offset {replica.log.base} are kept, not after {after}"
            raise with_rows(MinkaError(Code.CHANGES_GONE, text), [replica.state.row])
        return after + 1


def _is_usable(replica: HostedReplica) -> bool:
    return replica.state.role is not Role.REMOVED and replica.state.is_complete and not replica.state.is_receiving


def _position(replica: HostedReplica) -> ChangePosition:
    return ChangePosition(
        partition_id=replica.id,
        base_offset=replica.log.base,
        end_offset=max(replica.state.applied, replica.log.base),
        is_leader=replica.state.is_ready,
    )


class _Batch:
    """Collects changes as columns."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []

    def add(self, replica: HostedReplica, first: int, until: int) -> tuple[int, IngestMark | None]:
        """Add the next entries. Returns the offset of the last added entry, and the entry after that if it is the mark
        of a load.
        """
        offset = first - 1
        for offset, entry in enumerate(replica.log.read(first, until, _READ_BYTES), first):
            write = decode_entry(entry.body)
            if isinstance(write, IngestMark):
                return offset - 1, write
            if isinstance(write, WriteBody):
                self._offsets += [offset] * len(write.keys)
                self._keys += write.keys
                self._values += values_of(write.values) if isinstance(write, StoredWrite) else write.values
        return offset, None

    def encode(self, next_offset: int) -> ChangeBatch:
        values = [value or b"" for value in self._values]
        return ChangeBatch(
            offsets=self._offsets,
            key_offsets=_ends(self._keys),
            keys=b"".join(self._keys),
            value_offsets=_ends(values),
            values=b"".join(values),
            deleted=bytes([value is None for value in self._values]),
            next_offset=next_offset,
        )


def _ends(parts: list[bytes]) -> bytes:
    return array("i", accumulate(map(len, parts), initial=0)).tobytes()
