"""Requests of clients: answers reads and begins writes, or lets a request wait if waiting helps."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError, with_rows
from minka.wire import kv_frames
from minka.wire.kv_frames import WRITING, Group, Op
from minka.wire.stored_values import has_expired, value_of, values_of, versioned
from minkad.core.replication.node import Node
from minkad.core.replication.replica_storage import DeletedAheadError
from minkad.process import tasks
from minkad.process.memory import Share
from minkad.process.turns import turn
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.applying.opening import Opening
from minkad.replication.reading.replica_load import page_operations
from minkad.replication.serving.bodies import checked_read, checked_scan, element_count
from minkad.replication.serving.partition_waits import PartitionWaits
from minkad.replication.serving.request_deadlines import Deadlines
from minkad.replication.serving.routing import POLL_SECONDS, Routing
from minkad.replication.serving.ticket import Ticket, no_memory, too_large
from minkad.replication.serving.writing import Writing
from minkad.replication.surroundings import Surroundings
from minkad.storage.data_database import DataDatabase
from minkad.storage.rocks_data import MAX_PASSED

_INLINE_KEYS: Final = 64  # at most this many keys are read on the loop's thread, which is faster than another thread
_MANY_KEYS: Final = 10_000  # other tasks run before a body with more keys is decoded
_MAX_TIMEOUT_SECONDS: Final = 3600.0
_ANSWER_SECONDS: Final = 0.1  # a request that waits gives up at most this long before its deadline
_READS: Final = frozenset({Op.READ, Op.READ_STALE, Op.READ_VERSIONED, Op.SCAN})
# A page of a scan holds the loop for about 2 ms.
MAX_PAGE_ROWS: Final = 2000
MAX_PAGE_BYTES: Final = 512 * 1024
_PAGE_SECONDS: Final = 0.01  # in places with many deleted keys between the rows
FEW_BYTES: Final = 1024 * 1024
"""At most this many bytes of values are read at once without a check whether there is memory for them."""

_KEYS_AT_ONCE: Final = 4  # read before the size of the values is checked


class Requests:
    """Serves clients while the node has clearance. A refusal means that nothing was done."""

    def __init__(
        self,
        around: Surroundings,
        node: Node[HostedReplica],
        writing: Writing,
        routing: Routing,
        opening: Opening,
        waits: PartitionWaits,
    ) -> None:
        self._replicas: Final = node.replicas
        self._writing = writing
        self._routing = routing
        self._opening = opening
        self._waits = waits
        self._has_clearance = around.table.has_clearance
        self._clock = around.clock
        self._unix_ms = around.unix_ms
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = Deadlines(self._late)

    def begin(
        self,
        groups: Sequence[Group],
        timeout_ms: int,
        share: Share,
        on_done: Callable[[Ticket], None],
        max_bytes: int = kv_frames.MAX_ANSWER_BYTES,
    ) -> Ticket:
        """Begin the groups. `on_done` gets the ticket once each group has its result: within this call if no group has
        to wait, and at the deadline at the latest.

        The bodies of the results are taken from `share`, the memory for answers, and the caller gives them back. Reads
        wait while `share` has no room. All bodies of the ticket have at most `max_bytes` together.
        """
        ticket = Ticket(len(groups), share, self._clock(), on_done, self._waiting.remove, max_bytes)
        timeout = min(timeout_ms / 1000, _MAX_TIMEOUT_SECONDS)
        deadline = asyncio.get_running_loop().time() + timeout
        # Groups that wait give up a little earlier, so that the client gets the reason before its own timeout.
        give_up = deadline - min(timeout / 10, _ANSWER_SECONDS)
        for index, group in enumerate(groups):
            self._begin(group, ticket, index, give_up)
        if ticket.missing:
            self._waiting.add(ticket, groups, timeout_ms, deadline)
        elif not groups:
            on_done(ticket)
        return ticket

    def read_now(self, partition_id: int, generation: int, keys: list[bytes]) -> list[bytes | None] | None:
        """The values of a few checked keys, if this node leads their partition and can read them at once. None
        otherwise: then call `begin`, which waits or gives the reason.
        """
        replica = self._replicas.get(partition_id)
        if replica is None or not self._routing.serves_now(replica, generation, keys) or len(keys) > _INLINE_KEYS:
            return None
        data = replica.data
        try:
            replica.state.take_over_data()
            rows = data.stored(keys) if len(keys) == 1 else _few_rows(data, keys)
        except MinkaError:
            return None
        if rows is None or not self._has_clearance() or (data.may_expire and self._expired(keys, rows)):
            return None
        replica.load.count(keys)
        values = values_of(rows)
        replica.load.traffic.read(len(keys), sum(map(len, filter(None, values))), 0.0)
        return values

    def key_count(self, partition_id: int) -> int:
        """About the number of keys of the replica here; 0 without a replica."""
        replica = self._replicas.get(partition_id)
        return replica.data.size().keys if replica is not None else 0

    @staticmethod
    def _late(ticket: Ticket, groups: Sequence[Group], timeout_ms: int) -> None:
        for index, group in enumerate(groups):
            text = f"partition {group.partition_id}: not done within {timeout_ms} ms"
            ticket.fail(index, MinkaError(Code.DEADLINE_EXCEEDED, text))

    async def drain(self) -> None:
        """Refuse requests from now on, and return once the earlier ones are answered."""
        self._routing.stop()
        await self._waiting.emptied()

    async def close(self) -> None:
        """Cancel everything that waits."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, group: Group, ticket: Ticket, index: int, deadline: float, *, has_reserved: bool = False) -> None:
        if ticket.results[index] is not None:
            return  # while the group waited, its deadline came
        try:
            replica = self._routing.leader(group) if group.op != Op.READ_STALE else self._routing.stale(group)
            if replica is None:
                self._writing.check_memory(len(group.body))
                self._spawn(self._wait(group, group.op, ticket, index, deadline), ticket, index)
            elif group.op == Op.WRITE:
                self._writing.write(replica, group.body, ticket, index)
            elif group.op not in _READS and group.op != Op.OPERATE:
                raise MinkaError(Code.INVALID_ARGUMENT, f"a group has the unknown op {group.op}")
            elif replica.data.is_closed:
                self._spawn(self._begin_when_open(replica, group, ticket, index, deadline), ticket, index)
            elif group.op == Op.OPERATE:
                self._writing.operate(replica, group.body, ticket, index)
            elif not (has_reserved or ticket.share.has_plenty or ticket.has_room(_expected(replica, group))):
                size = _expected(replica, group)
                self._spawn(self._wait_for_room(size, group, ticket, index, deadline), ticket, index)
            elif group.op in (Op.READ, Op.READ_VERSIONED):
                self._read(replica, group, ticket, index, deadline)
            elif group.op == Op.READ_STALE:
                self._read_stale(replica, group, ticket, index, deadline)
            else:
                self._scan(replica, group, ticket, index, deadline)
        except MinkaError as error:
            self._refuse(group, ticket, index, deadline, error)

    def _refuse(self, group: Group, ticket: Ticket, index: int, deadline: float, error: MinkaError) -> None:
        """Refuse the group. But a read that has just found damage waits until a replica can answer it."""
        replica = self._replicas.get(group.partition_id)
        is_damaged = error.code is Code.CORRUPT_DATA and replica is not None and group.op not in WRITING
        if replica is not None and is_damaged and self._routing.may_be_mended(replica):
            self._spawn(self._wait(group, group.op, ticket, index, deadline), ticket, index)
        else:
            ticket.fail(index, error)

    def _spawn(self, work: Coroutine[Any, Any, None], ticket: Ticket, index: int) -> None:
        task = tasks.start(work, "request", lambda error: ticket.fail(index, _broken(error)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait(self, group: Group, op: int, ticket: Ticket, index: int, deadline: float) -> None:
        """Begin the group as soon as the replica would serve a group with the op `op`."""
        loop = asyncio.get_running_loop()
        self._writing.waiting_bytes += len(group.body)
        asked = Group(op, group.partition_id, group.generation, b"")
        try:
            route = self._routing.stale if op == Op.READ_STALE else self._routing.leader
            while (replica := route(asked)) is None:
                left = deadline - loop.time()
                if left <= 0:
                    raise self._routing.timed_out(group)
                await asyncio.wait([self._waits.changed(group.partition_id)], timeout=min(left, POLL_SECONDS))
        except MinkaError as error:
            ticket.fail(index, error)
            return
        finally:
            self._writing.waiting_bytes -= len(group.body)
        assert replica is not None
        self._begin(group, ticket, index, deadline)

    async def _begin_when_open(
        self, replica: HostedReplica, group: Group, ticket: Ticket, index: int, deadline: float
    ) -> None:
        try:
            await self._opening.wait(replica)
        except MinkaError as error:
            ticket.fail(index, error)
            return
        self._begin(group, ticket, index, deadline)

    async def _wait_for_room(self, size: int, group: Group, ticket: Ticket, index: int, deadline: float) -> None:
        if await ticket.share.reserve(size, deadline, lambda: ticket.size):
            try:
                self._begin(group, ticket, index, deadline, has_reserved=True)
            finally:
                ticket.share.give(size)
        else:
            ticket.fail(index, no_memory())

    # Reading

    def _answer(self, replica: HostedReplica, operations: int, body: bytes, ticket: Ticket, index: int) -> None:
        """Answer a read, and count its operations. Raises TOO_LARGE."""
        ticket.answer(index, body)
        replica.load.traffic.read(operations, len(body), self._clock() - ticket.began)

    def _read(self, replica: HostedReplica, group: Group, ticket: Ticket, index: int, deadline: float) -> None:
        if element_count(group.body) > _INLINE_KEYS:
            self._spawn(self._read_many(replica, group, ticket, index, deadline), ticket, index)
            return
        keys = self._checked(replica, group)
        rows = _rows(replica, keys, ticket)
        if not self._has_clearance():
            raise MinkaError(Code.NO_CLEARANCE, "the node lost its clearance before the read was answered")
        self._answer_read(replica, keys, rows, group, ticket, index, deadline)

    def _answer_read(
        self,
        replica: HostedReplica,
        keys: list[bytes],
        rows: list[bytes | None],
        group: Group,
        ticket: Ticket,
        index: int,
        deadline: float,
    ) -> None:
        if replica.data.may_expire and (expired := self._expired(keys, rows)):
            self._remove_first(replica, expired, group, ticket, index, deadline)
            return
        if group.op == Op.READ_VERSIONED:
            loaded = replica.data.loaded_version
            body = kv_frames.encode([None if row is None else versioned(row, loaded) for row in rows])
        else:
            body = kv_frames.encode(values_of(rows))
        self._answer(replica, len(keys), body, ticket, index)

    # Expiry

    def _expired(self, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> list[bytes]:
        """The keys whose rows have expired."""
        now_ms = self._unix_ms()
        return [key for key, row in zip(keys, rows, strict=True) if row is not None and has_expired(row, now_ms)]

    def _remove_first(
        self, replica: HostedReplica, keys: list[bytes], group: Group, ticket: Ticket, index: int, deadline: float
    ) -> None:
        """Remove expired rows through the log, and answer the group after that. Without the removal, the next leader
        could show these rows again, if its clock shows an earlier time. Raises the refusal.
        """
        asked = Group(Op.OPERATE, group.partition_id, group.generation, b"")
        if self._routing.leader(asked) is not replica:
            self._spawn(self._wait(group, Op.OPERATE, ticket, index, deadline), ticket, index)
            return

        def removed(removal: Ticket) -> None:
            (result,) = removal.answers
            if result.error is not None:
                ticket.fill(index, result)
            else:
                self._begin(group, ticket, index, deadline)

        self._writing.remove_expired(replica, keys, Ticket(1, ticket.share, self._clock(), removed, lambda _: None))

    def _scan(self, replica: HostedReplica, group: Group, ticket: Ticket, index: int, deadline: float) -> None:
        body = checked_scan(group.body)
        if ticket.left <= 0:
            raise too_large()
        asked, mine = KeyRange(body.start, body.end), KeyRange(replica.state.row.start_key, replica.state.row.end_key)
        if not asked.overlaps(mine):
            text = f"partition {replica.id} has the keys {mine}, and those of {asked} are asked for"
            raise with_rows(MinkaError(Code.KEY_OUT_OF_RANGE, text), self._routing.with_neighbour(replica.state.row))
        wanted = asked.clip(mine)
        replica.state.take_over_data()
        try:
            page = self._page(replica, body, wanted, MAX_PASSED)
        except DeletedAheadError:
            self._spawn(self._scan_cleared(replica, body, wanted, group, ticket, index, deadline), ticket, index)
            return
        self._answer_page(replica, page, body.only_keys, group, ticket, index, deadline)

    def _answer_page(
        self,
        replica: HostedReplica,
        page: kv_frames.ScanPage,
        only_keys: bool,
        group: Group,
        ticket: Ticket,
        index: int,
        deadline: float,
    ) -> None:
        """`page` has the values in their stored form, or the beginnings of the values."""
        if replica.data.may_expire and (expired := self._expired(page.keys, page.values)):
            self._remove_first(replica, expired, group, ticket, index, deadline)
            return
        values = [] if only_keys else [value_of(row) for row in page.values]
        body = kv_frames.encode(kv_frames.ScanPage(page.keys, values, page.start, page.end))
        self._answer(replica, page_operations(len(page.keys)), body, ticket, index)

    def _page(
        self, replica: HostedReplica, body: kv_frames.ScanBody, wanted: KeyRange, max_passed: int
    ) -> kv_frames.ScanPage:
        """Read a page as of one point in time: no other task runs meanwhile. Raises DeletedAheadError."""
        start, end = wanted
        rows, size = min(body.max_rows, MAX_PAGE_ROWS), min(body.max_bytes, MAX_PAGE_BYTES)
        keys, values, is_all = replica.data.stored_page(
            start, end, body.reverse, rows, size, max_passed, _PAGE_SECONDS, only_heads=body.only_keys
        )
        if not self._has_clearance():
            raise MinkaError(Code.NO_CLEARANCE, "the node lost its clearance before the scan was answered")
        if not is_all and body.reverse:
            start = keys[-1]
        elif not is_all:
            end = keys[-1] + b"\x00"
        replica.load.count_page(start, end, len(keys))
        return kv_frames.ScanPage(keys, values, start, end)

    async def _scan_cleared(
        self,
        replica: HostedReplica,
        body: kv_frames.ScanBody,
        wanted: KeyRange,
        group: Group,
        ticket: Ticket,
        index: int,
        deadline: float,
    ) -> None:
        """Compact the deleted keys at the beginning of `wanted` away, then read a page from there."""
        row, max_passed = replica.state.row, MAX_PASSED
        try:
            while ticket.missing:
                part = await replica.clear(wanted, reverse=body.reverse)
                if self._routing.leader(group) is not replica or replica.state.row is not row:
                    break
                max_passed *= 2  # clients may delete keys meanwhile; the loop has to end all the same
                with suppress(DeletedAheadError):
                    page = self._page(replica, body, part, max_passed)
                    self._answer_page(replica, page, body.only_keys, group, ticket, index, deadline)
                    return
        except MinkaError as error:
            self._refuse(group, ticket, index, deadline, error)
            return
        self._begin(group, ticket, index, deadline)  # another replica is about to answer it

    def _read_stale(self, replica: HostedReplica, group: Group, ticket: Ticket, index: int, deadline: float) -> None:
        if element_count(group.body) > _INLINE_KEYS:
            self._spawn(self._read_many_stale(replica, group, ticket, index, deadline), ticket, index)
        else:
            keys, age_ms = self._checked(replica, group), self._age_ms(replica)
            self._answer_stale(replica, age_ms, _rows(replica, keys, ticket), ticket, index)

    def _answer_stale(
        self, replica: HostedReplica, age_ms: int, rows: list[bytes | None], ticket: Ticket, index: int
    ) -> None:
        if replica.data.may_expire:
            now_ms = self._unix_ms()
            rows = [None if row is None or has_expired(row, now_ms) else row for row in rows]
        body = kv_frames.encode(kv_frames.StaleResult(age_ms, values_of(rows)))
        self._answer(replica, len(rows), body, ticket, index)

    def _checked(self, replica: HostedReplica, group: Group) -> list[bytes]:
        """The keys to read. Raises the refusal."""
        keys = checked_read(group.body)
        self._routing.check_in_range(replica, keys)
        replica.load.count(keys)
        replica.state.take_over_data()
        return keys

    def _age_ms(self, replica: HostedReplica) -> int:
        """The age of the replica's data, at most, in milliseconds. Raises AGE_UNKNOWN."""
        age = self._routing.age(replica)
        if age == math.inf:
            raise self._routing.age_unknown(replica)
        return math.ceil(age * 1000)

    async def _read_many_stale(
        self, replica: HostedReplica, group: Group, ticket: Ticket, index: int, deadline: float
    ) -> None:
        try:
            await _turn_for(group)
            keys, age_ms = self._checked(replica, group), self._age_ms(replica)
            rows = await _many_rows(replica, keys, ticket)
            self._answer_stale(replica, age_ms, rows, ticket, index)
        except MinkaError as error:
            self._refuse(group, ticket, index, deadline, error)

    async def _read_many(
        self, replica: HostedReplica, group: Group, ticket: Ticket, index: int, deadline: float
    ) -> None:
        epoch = replica.state.row.leader_epoch
        try:
            await _turn_for(group)
            keys = self._checked(replica, group)
            rows = await _many_rows(replica, keys, ticket)
            if self._routing.leader(group) is replica and replica.state.row.leader_epoch == epoch:
                self._answer_read(replica, keys, rows, group, ticket, index, deadline)
                return
        except MinkaError as error:
            self._refuse(group, ticket, index, deadline, error)
            return
        self._begin(group, ticket, index, deadline)  # another replica is about to answer it


async def _turn_for(group: Group) -> None:
    """Let other tasks run before the keys of a large group are decoded: a million keys take 50 ms, and one frame may
    have many large groups.
    """
    if element_count(group.body) > _MANY_KEYS:
        await turn()


def _expected(replica: HostedReplica, group: Group) -> int:
    """About the number of bytes of the answer."""
    if group.op == Op.SCAN:
        return MAX_PAGE_BYTES
    return min(element_count(group.body) * _mean_size(replica) + len(group.body), kv_frames.MAX_ANSWER_BYTES)


def _mean_size(replica: HostedReplica) -> int:
    size = replica.data.size()
    return size.bytes // max(size.keys, 1)


def _rows(replica: HostedReplica, keys: list[bytes], ticket: Ticket) -> list[bytes | None]:
    """The values of the keys, in their stored form. Raises TOO_LARGE, early, if they are too large for the answer."""
    if len(keys) <= _KEYS_AT_ONCE and not ticket.size:
        return replica.data.stored(keys)
    rows: list[bytes | None] = []
    left = ticket.left
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        if left < 0:
            raise too_large()
        part = replica.data.stored(keys[start : start + _KEYS_AT_ONCE])
        left -= sum([len(row) for row in part if row])
        rows += part
    return rows


def _few_rows(data: DataDatabase, keys: list[bytes]) -> list[bytes | None] | None:
    """The values of the keys, in their stored form; None if they have more than `FEW_BYTES`."""
    rows: list[bytes | None] = []
    left = FEW_BYTES
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        part = data.stored(keys[start : start + _KEYS_AT_ONCE])
        left -= sum(map(len, filter(None, part)))
        if left < 0:
            return None
        rows += part
    return rows


async def _many_rows(replica: HostedReplica, keys: list[bytes], ticket: Ticket) -> list[bytes | None]:
    """As `_rows`, but on another thread. Meanwhile the expected size is taken from the share."""
    expected = min(len(keys) * _mean_size(replica), kv_frames.MAX_ANSWER_BYTES)
    ticket.share.take(expected)
    try:
        return await replica.data.stored_many(keys, ticket.left)
    finally:
        ticket.share.give(expected)


def _broken(error: BaseException) -> MinkaError:
    return MinkaError(Code.INTERNAL, f"{type(error).__name__}: {error}")
