"""Gathers the writes of all Redis connections by partition: those of a turn of the loop are one entry of its log."""

import asyncio
import time
from itertools import islice
from typing import Final

from minka.cluster.routing_table import Route
from minka.errors import Code, MinkaError
from minka.wire import kv_frames
from minka.wire.key_operations import Expire, Operation, Set, decode_outcomes
from minka.wire.kv_frames import MAX_ANSWER_BYTES, Op, WriteBody
from minkad.data_port.resp.commit_delay import CommitDelay
from minkad.data_port.resp.errands import SEVERAL_BYTES, Errand, Means
from minkad.data_port.resp.keyspaces import View
from minkad.data_port.resp.replies import RespError
from minkad.data_port.resp.slots import Divided, Part, Taker
from minkad.process.memory import Share

_BATCH_BYTES: Final = 4 * 1024 * 1024  # a batch with this many bytes is full; a single write may have more
_BATCH_ENTRIES: Final = 10_000
_BATCH_OPERATIONS: Final = 1000  # few, since the leader decides all of them in one turn of its loop
_OUTCOME_BYTES: Final = 32
_PATIENCE_S: Final = 0.002  # uvloop counts whole milliseconds, so this may be only a little more than 1 ms


class Batch(Errand):
    """Writes to one partition, in order: plain pairs. The first operation turns all pairs into operations."""

    __slots__ = ("_began", "_keys", "_pipe", "_sizes", "_wanted", "operations", "takers", "values", "weight")

    def __init__(self, means: Means, view: View, share: Share, pipe: "Pipe") -> None:
        super().__init__(means, view, Op.WRITE, share)
        self._pipe = pipe
        self._keys: list[bytes] = []
        self.values: list[bytes | None] = []  # by key, while the batch has no operations
        self.operations: list[Operation] | None = None  # by key, since the first operation
        self.takers: list[Taker] = []  # each takes the results of its next entries
        self.weight = 0  # bytes of the entries
        self._sizes: list[int] = []  # of the operations
        self._wanted = 0  # operations that answer with a value
        self._began = time.perf_counter()

    def put(self, key: bytes, value: bytes | None) -> None:
        """Add a plain write; the caller adds its taker."""
        self._keys.append(key)
        if self.operations is None:
            self.values.append(value)
        else:
            self.operations.append(Set(key, value))
            self._sizes.append(len(value or b""))
        self.weight += len(key) + len(value or b"")

    def operate(self, key: bytes, operation: Operation, size: int) -> None:
        """Add an operation; the caller adds its taker."""
        if self.operations is None:
            self.operations = [Set(key, value) for key, value in zip(self._keys, self.values, strict=True)]
            self._sizes = [len(value or b"") for value in self.values]
            self.values = []
            self._op = Op.OPERATE
        self._keys.append(key)
        self.operations.append(operation)
        self._sizes.append(size)
        self.weight += size
        if isinstance(operation, (Set, Expire)) and operation.wants_value:
            self._wanted += 1

    @property
    def is_full(self) -> bool:
        """True if the batch takes no more."""
        most = _BATCH_ENTRIES if self.operations is None else _BATCH_OPERATIONS
        return self.weight >= _BATCH_BYTES or len(self._keys) >= most

    def size(self) -> int:
        """An outcome for each key, and the wanted values."""
        return len(self._keys) * _OUTCOME_BYTES + self._wanted * self.view.answer_bytes

    def most(self) -> int:
        """The limit of any answer, if the batch wants values."""
        return MAX_ANSWER_BYTES if self._wanted else max(self.size(), SEVERAL_BYTES)

    def keys(self) -> list[bytes]:
        """The keys by entry; for an operation on several keys, the first."""
        return self._keys

    def body(self) -> bytes:
        """A `WriteBody`, or operations."""
        return kv_frames.encode(WriteBody(self._keys, self.values) if self.operations is None else self.operations)

    def succeeded(self, body: bytes | None) -> None:
        """Tell the takers."""
        self._pipe.ended(self)
        self._means.telemetry.kv("write", "ok", time.perf_counter() - self._began)
        if self.operations is None:
            for taker in self.takers:
                taker.written()
            return
        outcomes = decode_outcomes(body or b"")
        if len(outcomes) != len(self._keys):
            text = f"{len(outcomes)} outcomes for {len(self._keys)} operations"
            self._tell([self._means.refusals.plain(MinkaError(Code.INTERNAL, text))] * len(self._keys))
            return
        left = iter(outcomes)
        for taker in self.takers:
            taker.done(list(islice(left, taker.entries)))

    def failed(self, errors: list[RespError]) -> None:  # type: ignore[override]
        """Tell the takers."""
        self._pipe.ended(self)
        self._means.telemetry.kv("write", self.outcome, 0.0)
        self._tell(errors)

    def _tell(self, errors: list[RespError]) -> None:
        left = iter(errors)
        for taker in self.takers:
            taker.refused(list(islice(left, taker.entries)))

    def _retry_or_fail(self, error: MinkaError) -> None:
        if error.code is Code.TOO_LARGE and len(self.takers) > 1:
            self._pipe.halve(self)
        else:
            super()._retry_or_fail(error)

    def part(self, takers: list[Taker], first: int) -> "Batch":
        """A batch with the entries of these takers; the first of these entries is at `first`."""
        made = Batch(self._means, self.view, self._share, self._pipe)
        for taker in takers:
            for place in range(first, first + taker.entries):
                self.copy_entry(place, made)
            first += taker.entries
        made.takers = takers
        made._deadline = self._deadline
        return made

    def copy_entry(self, place: int, target: "Batch") -> None:
        """Add the entry at `place` to another batch."""
        if self.operations is None:
            target.put(self._keys[place], self.values[place])
        else:
            target.operate(self._keys[place], self.operations[place], self._sizes[place])

    def divided(self) -> None:
        """Put each entry into the pipe of its partition, followed by the entries gathered meanwhile."""
        self._pipe.divide(self)


class Pipe:
    """Sends one batch at a time and gathers the next batches meanwhile, so the writes of a connection stay in order."""

    __slots__ = ("_awaited", "_overdue", "_pipes", "_under_way", "gathered", "partition_id", "view")

    def __init__(self, pipes: "Pipes", view: View, partition_id: int) -> None:
        self._pipes = pipes
        self.view = view
        self.partition_id = partition_id
        self.gathered: list[Batch] = []  # in the order of sending; only the last takes more entries
        self._under_way: Batch | None = None  # sent, and not answered yet
        self._awaited = 0  # the takers with which the next batch begins; 0: it doesn't wait
        self._overdue: asyncio.TimerHandle | None = None  # ends this wait

    def batch(self) -> Batch:
        """The batch that takes the next entry."""
        gathered = self.gathered
        if not gathered or gathered[-1].is_full:
            if not gathered and self._under_way is None and not self._awaited:
                self._pipes.begin_soon(self)
            gathered.append(Batch(self._pipes.means, self.view, self._pipes.share, self))
        batch = gathered[-1]
        if self._awaited and len(batch.takers) + 1 >= self._awaited:
            self._awaited = 0
            if self._overdue is not None:
                self._overdue.cancel()
            self._pipes.commit_delay.came()
            self._pipes.begin_soon(self)
        return batch

    def begin(self) -> None:
        """Send the next batch."""
        if self._under_way is None and self.gathered:
            batch = self._under_way = self.gathered.pop(0)
            batch.send()

    def ended(self, batch: Batch) -> None:
        """The batch is over. The next batch begins when the clients of this batch have come again (see CommitDelay), or
        at the end of this turn of the loop, after they were answered.
        """
        assert self._under_way is batch, "one batch is on its way"
        self._under_way = None
        gathered = len(self.gathered[0].takers) if self.gathered else 0
        self._awaited = self._pipes.commit_delay.awaited(len(batch.takers), gathered)
        if self._awaited:
            self._overdue = asyncio.get_running_loop().call_later(self._pipes.patience_s, self._missed)
        else:
            self._go_on()

    def _missed(self) -> None:
        self._awaited = 0
        self._pipes.commit_delay.missed()
        self._go_on()

    def _go_on(self) -> None:
        if self.gathered:
            self._pipes.begin_soon(self)
        else:
            self._pipes.forget(self)

    def halve(self, batch: Batch) -> None:
        """The batch was too large, and none of its writes was done: send its halves, one after the other."""
        middle = len(batch.takers) // 2
        first = batch.part(batch.takers[:middle], 0)
        self.gathered.insert(0, batch.part(batch.takers[middle:], len(first.keys())))
        self._under_way = first
        asyncio.get_running_loop().call_soon(first.send)

    def divide(self, batch: Batch) -> None:
        """The entries now belong to several partitions."""
        batches, self.gathered = [batch, *self.gathered], []
        self._under_way = None
        self._pipes.forget(self)
        for one in batches:
            self._pipes.again(one)


class Pipes:
    """The non-empty pipes, by partition."""

    def __init__(self, means: Means, share: Share) -> None:
        """`share` holds the memory of the answers to operations while the answers are on their way."""
        self.means = means
        self.share = share
        self.commit_delay = CommitDelay()
        self.patience_s = _PATIENCE_S  # the longest time that a batch waits for clients
        self._pipes: dict[int, Pipe] = {}  # by partition
        self._beginning: list[Pipe] = []  # pipes that begin at the end of this turn of the loop

    def batch(self, view: View, route: Route) -> Batch:
        """The batch that takes the next entry for a partition."""
        pipe = self._pipes.get(route.partition_id)
        if pipe is None:
            pipe = self._pipes[route.partition_id] = Pipe(self, view, route.partition_id)
        return pipe.batch()

    def begin_soon(self, pipe: Pipe) -> None:
        """Begin the pipe at the end of this turn of the loop, with all that has come until then."""
        if not self._beginning:
            asyncio.get_running_loop().call_soon(self._begin)
        self._beginning.append(pipe)

    def forget(self, pipe: Pipe) -> None:
        """The pipe is empty."""
        if self._pipes.get(pipe.partition_id) is pipe:
            del self._pipes[pipe.partition_id]

    def again(self, batch: Batch) -> None:
        """The batch was not done: put its entries into the pipes of their partitions."""
        position, keys = 0, batch.keys()
        for taker in batch.takers:
            positions = range(position, position + taker.entries)
            position = positions.stop
            divided = Divided(taker, len(positions), is_plain=batch.operations is None)
            for number, at in enumerate(positions):
                route = batch.view.route(keys[at])
                if route is None:
                    divided.lack([number], RespError("TRYAGAIN the partitions of the keyspace are changing"))
                    continue
                target = self.batch(batch.view, route)
                batch.copy_entry(at, target)
                target.takers.append(Part(divided, [number]))

    def _begin(self) -> None:
        beginning, self._beginning = self._beginning, []
        for pipe in beginning:
            pipe.begin()
