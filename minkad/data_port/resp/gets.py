"""Gathers the GETs of all Redis connections in a turn of the loop, and reads those of a partition together."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Protocol, cast

from minka.cluster.routing_table import Route
from minka.wire.kv_frames import Op
from minkad.data_port.resp.command import Words
from minkad.data_port.resp.errands import Means
from minkad.data_port.resp.keyspaces import View
from minkad.data_port.resp.reads import Reads
from minkad.data_port.resp.replies import bulk, internal
from minkad.data_port.resp.slots import Joined, Owner, Slot
from minkad.process.memory import Share

MAX_KEYS: Final = 64
"""The most keys that are read together."""


class Getter(Owner, Protocol):
    """A connection that sends GETs."""

    share: Share
    is_readonly: bool
    resp3: bool

    def keep(self, size: int) -> None:
        """An answer of `size` bytes waits for its turn."""

    def may_keep_more(self) -> bool:
        """True if there is room for more waiting answers."""


class GetSlot(Slot):
    """The answers to consecutive GETs on one connection."""

    __slots__ = ("_late", "_left", "_reader", "_view", "connection", "count", "is_late", "reads", "writes")

    def __init__(self, connection: Getter) -> None:
        super().__init__(connection, is_write=False)
        self.connection = connection
        self.count = 1
        self.is_late = False
        """True if `next` gives the answers one by one: all together may be too large for the memory."""

    def later(self, reader: Reads, view: View, keys: list[bytes]) -> None:
        """Read each key by its own request; further requests begin only while the connection may keep more answers."""
        self.reads = self.writes = 0
        self.is_late = True
        self._reader = reader
        self._view = view
        self._left = deque(keys)
        self._late: deque[Joined] = deque()
        self._begin_more()

    def next(self) -> bytes | None:
        """The next answer, if it is known. Call this while the client takes answers and no earlier answer waits."""
        late = self._late
        if not late and self._left:
            self._begin()
        answer = late[0].answer if late else None
        if answer is not None:
            late.popleft()
        return answer

    @property
    def is_done(self) -> bool:
        """True if `next` has given all answers."""
        return not (self._late or self._left)

    def _begin_more(self) -> None:
        while self._left and self.connection.may_keep_more():
            self._begin()

    def _begin(self) -> None:
        connection = self.connection
        resp3 = connection.resp3
        finish = cast("Callable[[list[object]], bytes]", lambda found: bulk(found[0], resp3))
        joined = Joined(self, 1, finish, is_write=False)
        self._late.append(joined)
        key = self._left.popleft()
        self._reader.begin(self._view, Op.READ, connection.share, joined, [key], connection.is_readonly)

    def filled(self, slot: Slot) -> None:
        """The answer to a later read is known."""
        self.connection.keep(len(slot.answer or b""))


class _Batch:
    """Keys of one partition."""

    __slots__ = ("keys", "route", "slots", "view")

    def __init__(self, view: View, route: Route) -> None:
        self.view = view
        self.route = route
        self.keys: list[bytes] = []
        self.slots: list[GetSlot] = []


class Gets:
    """The GETs of this turn."""

    def __init__(self, means: Means, reads: Reads) -> None:
        self._telemetry = means.telemetry
        self._reads = reads
        self._batches: list[_Batch] = []
        self._open: dict[int, _Batch] = {}  # by partition: the batch that takes more keys

    def add(self, view: View, route: Route, key: bytes, connection: Getter, last: object) -> GetSlot | None:
        """Read a key at the end of the turn. `last` is the connection's newest slot. Returns a new slot for the answer,
        or None if `last` also gets this answer.
        """
        batch = self._open.get(route.partition_id)
        if batch is None or len(batch.keys) >= MAX_KEYS or batch.route is not route:
            batch = self._open[route.partition_id] = _Batch(view, route)
            self._batches.append(batch)
        batch.keys.append(key)
        slots = batch.slots
        if slots and slots[-1] is last:
            slots[-1].count += 1
            return None
        slot = GetSlot(connection)
        slots.append(slot)
        return slot

    def run(self) -> bool:
        """Read all added keys. Returns True if there were any."""
        batches = self._batches
        if not batches:
            return False
        self._batches, self._open = [], {}
        for batch in batches:
            try:
                self._read(batch)
            except Exception as error:  # noqa: BLE001 - the others are answered
                failure = internal(error).encoded
                for slot in batch.slots:
                    if slot.answer is None and not slot.is_late:
                        slot.fill(failure * slot.count)
        return True

    def _read(self, batch: _Batch) -> None:
        route, keys = batch.route, batch.keys
        began = time.perf_counter()
        values: list[bytes | None] | None = None
        if batch.slots[0].connection.share.has_plenty:  # earlier batches may have taken the memory
            values = self._reads.read_now(route.partition_id, route.generation, keys)
        start = 0
        for slot in batch.slots:
            end, resp3 = start + slot.count, slot.connection.resp3
            if values is None:
                slot.later(self._reads, batch.view, keys[start:end])
            elif slot.count == 1:
                slot.fill(bulk(values[start], resp3))
            else:
                slot.fill(b"".join([bulk(value, resp3) for value in values[start:end]]))
            start = end
        if values is not None:
            self._telemetry.kv("read", "ok", time.perf_counter() - began, len(batch.slots))


def run_of_gets(commands: Sequence[Words], index: int) -> list[bytes]:
    """The keys of the consecutive GETs from `index` on, at most MAX_KEYS."""
    keys = [commands[index][1]]
    name = commands[index][0]
    for words in islice(commands, index + 1, index + MAX_KEYS):
        if words[0] != name or len(words) != 2:
            break
        keys.append(words[1])
    return keys
