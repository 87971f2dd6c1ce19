"""CLUSTER COUNTKEYSINSLOT and GETKEYSINSLOT: the keys of a partition in one of its slots.

There are no counts by slot, since they would make every write slower. So a node reads all keys of the partition, page
by page, with other work in between, and for one client at a time.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from minka.cluster.hashing import REDIS_SLOTS, crc16
from minka.wire.kv_frames import ScanPage
from minkad.data_port.resp.command import Words, integer_of, wrong_number
from minkad.data_port.resp.connection import RespConnection
from minkad.data_port.resp.errands import TIMEOUT_MS
from minkad.data_port.resp.keyspaces import ClusterView
from minkad.data_port.resp.replies import Reply, RespError, integer, reply
from minkad.data_port.resp.scanning import Page, Place
from minkad.data_port.resp.slots import Joined, Slot
from minkad.replication.serving.client_requests import MAX_PAGE_BYTES, MAX_PAGE_ROWS


def count_keys(connection: RespConnection, words: Words) -> Slot:
    """CLUSTER COUNTKEYSINSLOT. Raises RespError."""
    if len(words) != 3:
        raise wrong_number("cluster|countkeysinslot")
    slot = integer_of(words[2])
    if not 0 <= slot < REDIS_SLOTS:
        raise RespError("ERR Invalid slot")
    return _begin(Walk(connection, connection.cluster, slot, None))


def get_keys(connection: RespConnection, words: Words) -> Slot:
    """CLUSTER GETKEYSINSLOT. Raises RespError."""
    if len(words) != 4:
        raise wrong_number("cluster|getkeysinslot")
    slot, count = integer_of(words[2]), integer_of(words[3])
    if not 0 <= slot < REDIS_SLOTS or count < 0:
        raise RespError("ERR Invalid slot or number of keys")
    return _begin(Walk(connection, connection.cluster, slot, min(count, MAX_PAGE_ROWS)))


def _begin(walk: "Walk") -> Slot:
    walk.connection.service.walks.begin(walk)
    return walk.slot


class Walks:
    """The walks of all clients, one after the other."""

    def __init__(self) -> None:
        self._waiting: deque[Walk] = deque()  # the first one is under way

    def begin(self, walk: "Walk") -> None:
        """Begin the walk in its turn."""
        self._waiting.append(walk)
        if len(self._waiting) == 1:
            self._next()

    def _next(self) -> None:
        if self._waiting:
            self._waiting[0].begin(self._ended)

    def _ended(self) -> None:
        self._waiting.popleft()
        asyncio.get_running_loop().call_soon(self._next)


class Walk:
    """One command: reads the keys of the partition page by page, and counts or keeps the keys in the slot."""

    def __init__(self, connection: RespConnection, view: ClusterView, redis_slot: int, wanted: int | None) -> None:
        """The answer has at most `wanted` keys; None: the answer is the number of keys."""
        self.connection = connection
        self._view = view
        self._redis_slot = redis_slot
        self._wanted = wanted
        self._count = 0
        self._keys: list[bytes] = []  # in the slot, if keys are wanted
        self._keys_bytes = 0
        self._deadline = asyncio.get_running_loop().time() + TIMEOUT_MS / 1000
        self.slot = Joined(connection, 1, self._answer, is_write=False)

    def begin(self, on_end: Callable[[], None]) -> None:
        """Read. `on_end` is called after the answer."""
        self._on_end = on_end
        self._read(b"")

    def _read(self, start: bytes) -> None:
        connection = self.connection
        service, place = connection.service, Place(self._redis_slot * self._view.count // REDIS_SLOTS, start)
        is_over = service.connections.get(connection.id) is not connection
        if is_over or self._wanted == 0:
            self._end()
        elif asyncio.get_running_loop().time() >= self._deadline:
            text = f"ERR the keys of the slot's partition were not read within {TIMEOUT_MS} ms: use SCAN"
            self._end(RespError(text))
        else:
            Page(service.means, self._view, connection.share, place, MAX_PAGE_ROWS, self._came).send()

    def _is_elsewhere(self) -> bool:
        """True if another node leads the partition: as in Redis, a node knows no keys in slots of other nodes."""
        route = self._view.route_of_slot(self._redis_slot)
        return route is not None and route.leader not in ("", self.connection.service.means.node_id)

    def _came(self, page: ScanPage | RespError) -> None:
        if isinstance(page, RespError):
            self._end(None if self._is_elsewhere() else page)
            return
        found = [key for key in page.keys if crc16(key) == self._redis_slot]
        if self._wanted is None:
            self._count += len(found)
        else:
            self._keys += found
            self._keys_bytes += sum(map(len, found))
        has_all = self._wanted is not None and (len(self._keys) >= self._wanted or self._keys_bytes >= MAX_PAGE_BYTES)
        if has_all or not page.end:
            self._end()
        else:
            asyncio.get_running_loop().call_soon(self._read, page.end)

    def _end(self, error: RespError | None = None) -> None:
        if error is not None:
            self.slot.lack([0], error)
        else:
            self.slot.have([0], [None])
        self._on_end()

    def _answer(self, _: list[object]) -> bytes:
        if self._wanted is None:
            return integer(self._count)
        return reply(list[Reply](self._keys[: self._wanted]), self.connection.resp3)
