"""How partitions take in committed loads.

The leader of a partition sees in its node's copy of the table which parts are due. For each part, in order:

1. The leader gets the file from another node if its own node lacks the file, and lets the other replicas' nodes do so.
2. The leader appends an `IngestMark` to the partition's log.
3. Each replica that comes to the mark takes in a hard link of the file. So all rows appear at once, and at the same
   place of each replica's log. The data records which loads it has taken in, so a repeated mark does nothing.
4. The leader tells the controller.

A node that joins the in-sync set afterwards gets the file first (`load_files.py`).
"""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.load_api_pb2 import FinishedPart, FinishLoadPartsRequest, PullFileRequest, WaitingPart
from minka.v1.loads_pb2 import LoadFile, LoadPart
from minkad.core.controller_methods import FINISH_LOAD_PARTS
from minkad.core.replication.entries import IngestMark, encode_mark
from minkad.core.replication.gate import Gate
from minkad.core.replication.leadership import Leader
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.core.state import slices
from minkad.process import tasks
from minkad.process.failpoints import failpoint
from minkad.process.turns import turn
from minkad.replication.applying.flusher import Flusher
from minkad.replication.applying.hosted_replica import HostedReplica, Pending
from minkad.replication.applying.opening import Opening
from minkad.replication.surroundings import LoadSources, Surroundings
from minkad.storage.applied import Applied
from minkad.storage.data_database import DataDatabase
from minkad.storage.size_estimate import Size

log: Final = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_PULL_SECONDS: Final = 30.0  # other nodes have at most this long to get the file
_FIRST_BACKOFF: Final = 0.05
_LONGEST_BACKOFF: Final = 2.0
_FLUSH_FIRST_BYTES: Final = 256 * 1024  # with more unflushed data, flush before the mark
_TOLD_AT_ONCE: Final = 1000  # parts in one call to the controller
_LOOKED_AT_ONCE: Final = 200  # partitions, before other tasks get a turn
_PREPARED_AT_ONCE: Final = 16

Key = tuple[int, int]  # load number, partition id


@dataclass(slots=True)
class _Report:
    """Reports to the active controller about parts."""

    finished: dict[Key, int] = field(default_factory=dict)  # taken in, to be reported; with the leader_epoch
    told: dict[Key, int] = field(default_factory=dict)  # reported as taken in, since the last look once a second
    waiting: dict[Key, str] = field(default_factory=dict)  # parts that wait now, with the reason
    waiting_told: dict[Key, str] = field(default_factory=dict)  # `waiting` as of the last report


class Ingesting:
    """For the loop's thread."""

    def __init__(
        self,
        around: Surroundings,
        node: Node[HostedReplica],
        flusher: Flusher,
        opening: Opening,
        sources: LoadSources,
    ) -> None:
        self._node = node
        self._flusher = flusher
        self._opening = opening
        self._is_absent = around.table.is_absent
        self._log_db = around.log_db
        self._clock = around.clock
        self._spool = sources.spool
        self._fetching = sources.fetching
        self._table = sources.table
        self._pull = sources.pull
        self._controller = around.controller
        self._preparing: dict[Key, asyncio.Task[None]] = {}  # parts whose mark a leader here is about to append
        self._making: dict[int, asyncio.Task[None]] = {}  # by partition: carries its mark out
        self._report = _Report()
        self._reporting: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(_PREPARED_AT_ONCE)
        self._taking = asyncio.Lock()  # one file at a time: taking it in holds the GIL for some milliseconds

    def start(self) -> None:
        """Begin to look at the loads once a second, and whenever something has changed."""
        self._timer = tasks.start(self._keep_looking(), "loads")

    async def close(self) -> None:
        """Stop. Unfinished work begins again after the next start."""
        single = (self._reporting, self._looking, self._timer)
        under_way = [*self._preparing.values(), *self._making.values(), *(task for task in single if task is not None)]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    # What is due

    def loads_changed(self) -> None:
        """The loads in this node's copy of the table have changed."""
        if self._looking is None or self._looking.done():
            self._looking = tasks.start(self._look_at_all(), "looking at loads")

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._report.told.clear()  # report parts that are still due again: perhaps the report was lost
            await self._look_at_all()

    async def _look_at_all(self) -> None:
        due = list(self._table.state.loads.due)
        for some in slices(due, _LOOKED_AT_ONCE):
            for partition_id in some:
                if (replica := self._node.replicas.get(partition_id)) is not None:
                    self.take_next(replica)
            await turn()

    def take_next(self, replica: HostedReplica) -> None:
        """The replica has another row or has applied more, or the table has changed: if the replica leads, begin with
        the next part that is due.
        """
        table = self._table.state.loads
        leader = replica.state.leader
        if replica.id not in table.due or not replica.state.is_ready or leader is None:
            return
        if replica.data.is_closed and not replica.data.is_known:
            self._opening.begin(replica)
            return
        try:
            replica.state.take_over_data()
        except MinkaError:
            return  # the data is damaged: another replica will lead
        for part in table.due_parts(replica.id):
            key = part.load_number, replica.id
            if replica.data.loads.has(part.load_number):
                self._tell_finished(key, leader.leader_epoch)
                continue
            if key not in self._preparing and part.load_number not in leader.load_marks.loads:
                self._prepare_soon(replica, leader, part)
            return  # one part at a time, in the order in which the loads were committed

    def _prepare_soon(self, replica: HostedReplica, leader: Leader, part: LoadPart) -> None:
        key = part.load_number, replica.id
        name = f"load {part.load_number} of {replica.id}"
        task = self._preparing[key] = tasks.start(self._prepare(replica, leader, part), name, tasks.told)
        task.add_done_callback(lambda ended: self._prepared(key, ended))

    def _prepared(self, key: Key, task: asyncio.Task[None]) -> None:
        del self._preparing[key]
        self._stop_waiting(key)

    # The leader

    async def _prepare(self, replica: HostedReplica, leader: Leader, part: LoadPart) -> None:
        """Append the mark to the log once enough replicas, and all that may be in sync, have the file."""
        key, backoff = (part.load_number, replica.id), _FIRST_BACKOFF

        def goes_on() -> bool:
            is_due = part.load_number in self._table.state.loads.due.get(replica.id, ())
            return is_due and replica.state.leader is leader

        while goes_on():
            try:
                async with self._slots:
                    have = await self._have_file(replica, leader, part)
                if replica.unflushed >= _FLUSH_FIRST_BYTES or replica.data.in_memory:
                    await self._flusher.flush(replica)  # a flush after the mark would make users' writes wait
                is_ready = replica.state.is_ready and replica.state.gate.state is Gate.OPEN
                if goes_on() and is_ready and leader.may_be_in_sync() <= have:
                    self._append_mark(replica, part, have)
                    return
            except MinkaError as error:
                self._wait_for(key, error)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _LONGEST_BACKOFF)

    @failpoint("ingest.prepare")
    async def _have_file(self, replica: HostedReplica, leader: Leader, part: LoadPart) -> set[str]:
        """Get the file for this node, and for the nodes of all other replicas that aren't absent. Returns the nodes
        that have it. Raises NOT_ENOUGH_SPOOLS if they are fewer than `min_insync`, or if a node without the file may be
        in sync: it could lead without a way to the rows.
        """
        file, row = _file_of(part), replica.state.row
        await self._fetching.ensure(part.load_number, file, row.replicas)
        await self._spool.verify(part.load_number, part.name, part.checksum)
        request = PullFileRequest(load_number=part.load_number, file=file)
        wanted = set(row.replicas).difference(row.removing_replicas) | leader.may_be_in_sync()
        present = [node for node in sorted(wanted - {self._node.id}) if not self._is_absent(node)]
        pulls = {tasks.awaited(self._pull(node, request), f"pull by {node}"): node for node in present}
        if pulls:
            _, slow = await asyncio.wait(pulls, timeout=_PULL_SECONDS)
            for pull in slow:
                pull.cancel()
            await asyncio.gather(*pulls, return_exceptions=True)
        late = f"it isn't there after {_PULL_SECONDS:g} s"
        failed = {n: late if pull.cancelled() else pull.exception() for pull, n in pulls.items()}
        have = {self._node.id, *(node for node, error in failed.items() if error is None)}
        lacking = ", ".join(sorted(leader.may_be_in_sync() - have))
        if lacking or len(have) < min(max(1, replica.state.min_insync), len(row.replicas)):
            reasons = "; ".join(f"{n}: {error}" for n, error in failed.items() if error) or "the others are away"
            text = f"{len(have)} of {replica.state.min_insync} nodes have {part.name}"
            missing = f", and {lacking} in sync must get it" if lacking else ""
            raise MinkaError(Code.NOT_ENOUGH_SPOOLS, f"{text}{missing}: {reasons[:1000]}")
        return have

    @failpoint("ingest.mark")
    def _append_mark(self, replica: HostedReplica, part: LoadPart, have: Collection[str]) -> None:
        mark = IngestMark(
            part.load_number,
            self._table.state.loads.lowest_open(),
            part.name,
            part.bytes,
            part.checksum,
            part.rows,
            part.digest.bytes,
        )
        replica.decidable_at = self._node.append_load_mark(replica, part.load_number, encode_mark(mark), have)

    # Each replica

    def make(self, replica: HostedReplica, mark: IngestMark, entry: Pending) -> None:
        """Carry out the mark, the next entry to apply. Applying goes on once the file is taken in."""
        task = tasks.start(
            self._make(replica, mark, entry), f"taking load {mark.load_number} in {replica.id}", replica.broke
        )
        self._making[replica.id] = task
        task.add_done_callback(lambda ended: self._made(replica, ended))

    def _made(self, replica: HostedReplica, task: asyncio.Task[None]) -> None:
        if self._making.get(replica.id) is task:  # the next mark may have come already
            del self._making[replica.id]

    async def _make(self, replica: HostedReplica, mark: IngestMark, entry: Pending) -> None:
        data, is_passed = replica.data, False
        try:
            while not data.loads.has(mark.load_number):
                link = await self._own_link(replica, data, mark)
                if link is None or not await self._take_in(replica, data, link, mark, entry):
                    return  # the replica was deleted, or a checkpoint has replaced it
            async with replica.lock:
                if not _is_same(replica, data):
                    return
                if data.applied.offset < entry.offset:  # an earlier mark has taken the load in
                    data.write([], Applied(entry.offset, entry.leader_epoch))
                replica.passed(entry)
                self._node.applied(replica, entry.offset, 0, self._clock())
                is_passed = True
        except MinkaError as error:
            names = {"partition": replica.id, "load": mark.load_number, "reason": str(error)}
            log.error("a load could not be taken in", extra=names)
            if data.damage is None:
                self._log_db.fail(error)
            return
        finally:
            self._node.mark_ended(replica, data, self._clock(), is_passed=is_passed)
            self._stop_waiting((mark.load_number, replica.id))
        await self._settle(replica, mark)

    async def _settle(self, replica: HostedReplica, mark: IngestMark) -> None:
        """Flush, so that the data has the load durably, and the log may be trimmed past the mark."""
        names = {"partition": replica.id, "load": mark.load_number, "rows": mark.rows}
        log.info("a part of a load was taken in", extra=names)
        try:
            await self._flusher.flush(replica)
        except MinkaError as error:
            if error.code is Code.STORAGE_FAILED:
                self._log_db.fail(error)

    async def _take_in(
        self, replica: HostedReplica, data: DataDatabase, link: Path, mark: IngestMark, entry: Pending
    ) -> bool:
        """Take the file in. Returns False if the replica was deleted or replaced meanwhile. Removes a damaged file, so
        that the next try gets it from another node.
        """
        try:
            async with replica.lock, self._taking:
                if not _is_same(replica, data):
                    return False
                await self._ingest(replica, link, mark, entry)
        except MinkaError as error:
            if error.code is not Code.CORRUPT_DATA or data.damage is not None:
                raise
            self._wait_for((mark.load_number, replica.id), error)
            await self._spool.remove(mark.load_number, [mark.name])
            await asyncio.sleep(_LONGEST_BACKOFF)
        finally:
            await self._spool.discard(link)
        return True

    @failpoint("ingest.take")
    async def _ingest(self, replica: HostedReplica, link: Path, mark: IngestMark, entry: Pending) -> None:
        taken = replica.data.loads.with_load(mark.load_number, entry.offset, mark.floor, replica.log.base)
        applied = Applied(entry.offset, entry.leader_epoch)
        await replica.data.ingest(link, Size(mark.data_bytes, mark.rows), taken, applied)
        self._node.ingested(replica, mark.data_bytes)

    async def _own_link(self, replica: HostedReplica, data: DataDatabase, mark: IngestMark) -> Path | None:
        """Make a hard link of the file, and check its content. Wait until a node has the file; the replica applies
        nothing meanwhile. Returns None if the replica no longer has this data.
        """
        file = LoadFile(name=mark.name, partition_id=replica.id, bytes=mark.bytes, rows=mark.rows)
        file.checksum = mark.checksum
        backoff = _FIRST_BACKOFF
        while _is_same(replica, data):
            try:
                await self._fetching.ensure(mark.load_number, file, replica.state.row.replicas)
                return await self._spool.link(mark.load_number, mark.name, mark.checksum)
            except MinkaError as error:
                self._wait_for((mark.load_number, replica.id), error)
                if error.code is Code.UNKNOWN_FILE and self._is_to_be_had_otherwise(replica, mark):
                    text = f"partition {replica.id}: its log needs {mark.name} of a load, which no node has now"
                    data.condemn(MinkaError(Code.CORRUPT_DATA, text))
                    return None
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _LONGEST_BACKOFF)
        return None

    def _is_to_be_had_otherwise(self, replica: HostedReplica, mark: IngestMark) -> bool:
        """True if the leader has certainly taken the load in: then a checkpoint of the leader's data has the load."""
        table = self._table.state.loads
        is_due = mark.load_number in table.due.get(replica.id, ())
        return replica.state.role is Role.FOLLOWER and mark.load_number < table.next_number and not is_due

    async def get_file(self, number: int, file: LoadFile) -> None:
        """Get the file, unless the partition's data here has the load already. If the mark is still to come, check that
        the file on the disk is whole. Raises the errors of `Fetching.ensure` and CORRUPT_DATA.
        """
        if not self._has_taken(file.partition_id, number):
            row = self._table.state.partitions.get(file.partition_id)
            await self._fetching.ensure(number, file, row.replicas if row is not None else ())
            if number in self._table.state.loads.due.get(file.partition_id, ()):
                await self._spool.verify(number, file.name, file.checksum)

    def _has_taken(self, partition_id: int, number: int) -> bool:
        replica = self._node.replicas.get(partition_id)
        if replica is None or not replica.state.is_usable or (replica.data.is_closed and not replica.data.is_known):
            return False
        try:
            replica.state.take_over_data()
        except MinkaError:
            return False
        return replica.data.loads.has(number)

    def is_in_log(self, partition_id: int, number: int) -> bool:
        """True if the log of the partition here has, or may have, the mark of the load."""
        replica = self._node.replicas.get(partition_id)
        if replica is None or replica.state.role is Role.REMOVED:
            return False
        if replica.data.is_closed and not replica.data.is_known:
            self._opening.begin(replica)
            return True  # until the data is open
        try:
            replica.state.take_over_data()
        except MinkaError:
            return True  # the node may make the data again from the log, and then needs the file
        if replica.data.loads.has(number):
            return replica.data.loads.is_in_log(number, replica.log.base)
        return replica.state.applied < replica.log.end

    # Telling

    def _wait_for(self, key: Key, error: MinkaError) -> None:
        """Log once why a part waits, and tell the controller, which tells clients that ask for the load."""
        if self._report.waiting.get(key) != str(error):
            names = {"load": key[0], "partition": key[1], "reason": str(error)}
            log.warning("a part of a load waits", extra=names)
            self._report.waiting[key] = str(error)
            self._tell()

    def _stop_waiting(self, key: Key) -> None:
        if self._report.waiting.pop(key, None) is not None:
            self._tell()

    def _tell_finished(self, key: Key, leader_epoch: int) -> None:
        if self._report.told.get(key) != leader_epoch:
            self._report.finished[key] = leader_epoch
            self._tell()

    def _tell(self) -> None:
        if self._reporting is None or self._reporting.done():
            self._reporting = tasks.start(self._tell_all(), "loads' reports")

    async def _tell_all(self) -> None:
        """Send the controller all reports, one call at a time."""
        report, backoff = self._report, _FIRST_BACKOFF
        while report.finished or report.waiting != report.waiting_told:
            await asyncio.sleep(0)  # so that one call has all parts that are taken in during this turn of the loop
            some, waiting = dict(list(report.finished.items())[:_TOLD_AT_ONCE]), dict(report.waiting)
            request = FinishLoadPartsRequest(
                node_id=self._node.id,
                finished=[
                    FinishedPart(load_number=number, partition_id=partition_id, leader_epoch=epoch)
                    for (number, partition_id), epoch in some.items()
                ],
                # At most _TOLD_AT_ONCE of them: people read this list.
                waiting=[
                    WaitingPart(load_number=number, partition_id=partition_id, reason=reason[:4000])
                    for (number, partition_id), reason in list(waiting.items())[:_TOLD_AT_ONCE]
                ],
            )
            try:
                await self._tell_controller(request)
            except MinkaError as error:
                log.info("taken-in parts of loads are reported again", extra={"reason": str(error)})
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, _LONGEST_BACKOFF)
                continue
            report.waiting_told = waiting
            for key, epoch in some.items():
                report.told[key] = epoch
                if report.finished.get(key) == epoch:
                    del report.finished[key]

    @failpoint("ingest.finish")
    async def _tell_controller(self, request: FinishLoadPartsRequest) -> None:
        await self._controller.call(FINISH_LOAD_PARTS, request)


def _is_same(replica: HostedReplica, data: DataDatabase) -> bool:
    """True if the replica still has this data, without known damage."""
    return replica.still_has(data) and data.damage is None


def _file_of(part: LoadPart) -> LoadFile:
    return LoadFile(
        name=part.name,
        partition_id=part.partition_id,
        bytes=part.bytes,
        rows=part.rows,
        checksum=part.checksum,
        digest=part.digest,
    )
