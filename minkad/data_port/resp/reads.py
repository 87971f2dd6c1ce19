"""Reads for Redis clients: at once if this node leads the partition and can read at once, else as errands."""

import asyncio
from collections.abc import Sequence
from typing import Final

from minka.cluster.routing_table import Route
from minka.errors import Code, MinkaError
from minka.wire import kv_frames
from minka.wire.key_operations import decode_versioned
from minka.wire.kv_frames import Op
from minkad.data_port.resp.errands import Errand, Means
from minkad.data_port.resp.keyspaces import View
from minkad.data_port.resp.replies import RespError
from minkad.data_port.resp.slots import Joined, Results
from minkad.process.memory import Share
from minkad.replication.serving.client_requests import FEW_BYTES

STALE_MS: Final = 5000
"""If a replica's data is older, the leader answers the READONLY connection instead."""

_TOO_MUCH: Final = frozenset({Code.TOO_LARGE, Code.OVERLOADED})


class Read(Errand):
    """Reads some keys of one partition, for a joined answer."""

    __slots__ = ("_joined", "_keys", "_positions")

    def __init__(
        self, means: Means, view: View, op: Op, share: Share, joined: Results, keys: list[bytes], positions: list[int]
    ) -> None:
        super().__init__(means, view, op, share)
        self._joined = joined
        self._keys = keys
        self._positions = positions

    def keys(self) -> list[bytes]:
        """The keys."""
        return self._keys

    @property
    def positions(self) -> list[int]:
        """The places of the keys in the answer."""
        return self._positions

    def body(self) -> bytes:
        """A `ReadBody`."""
        return kv_frames.encode(self._keys)

    def succeeded(self, body: bytes | None) -> None:
        """Use the values, or versions."""
        found: Sequence[object]
        if self._op is Op.READ_VERSIONED:
            found = decode_versioned(body or b"")
        elif self._op is Op.READ_STALE:
            stale = kv_frames.decode_stale(body or b"")
            if stale.age_ms > STALE_MS:
                self._read_at_leader()
                return
            found = stale.values
        else:
            found = kv_frames.decode_values(body or b"")
        self._joined.have(self._positions, found, len(body or b""))

    def failed(self, errors: Sequence[RespError]) -> None:
        """If it was a stale read, read at the leader; else the answer is an error."""
        if self._op is Op.READ_STALE:
            self._read_at_leader()
            return
        self._means.telemetry.kv("read", self.outcome, 0.0)
        self._joined.lack(self._positions, errors[0])

    def divided(self) -> None:
        """Read the keys one by one."""
        for key, position in zip(self._keys, self._positions, strict=True):
            Read(self._means, self.view, self._op, self._share, self._joined, [key], [position]).send()

    def _retry_or_fail(self, error: MinkaError) -> None:
        if error.code is not Code.TOO_LARGE or len(self._keys) == 1:
            super()._retry_or_fail(error)
            return
        middle, means, view = len(self._keys) // 2, self._means, self.view
        second = Read(means, view, self._op, self._share, self._joined, self._keys[middle:], self._positions[middle:])
        then = Then(self._joined, middle, second)
        first = Read(means, view, self._op, self._share, then, self._keys[:middle], self._positions[:middle])
        asyncio.get_running_loop().call_soon(first.send)  # others are served in between

    def _read_at_leader(self) -> None:
        self._op = Op.READ
        self._send()


class Then:
    """The first half of a read that was too large. The second half begins when all results of the first are there,
    unless they no longer count.
    """

    def __init__(self, joined: Results, missing: int, second: Read) -> None:
        """`missing`: the number of results of the first half."""
        self._joined = joined
        self._missing = missing
        self._second = second

    @property
    def lost(self) -> RespError | None:
        """See `Results`."""
        return self._joined.lost

    def have(self, positions: Sequence[int], results: Sequence[object], size: int = 0) -> None:
        """Results have come."""
        self._joined.have(positions, results, size)
        self._came(len(positions))

    def lack(self, positions: Sequence[int], error: RespError) -> None:
        """An error has come instead of these results."""
        self._joined.lack(positions, error)
        self._came(len(positions))

    def _came(self, count: int) -> None:
        self._missing -= count
        if self._missing:
            return
        if (error := self._joined.lost) is not None:
            self._joined.lack(self._second.positions, error)
        else:
            asyncio.get_running_loop().call_soon(self._second.send)


class Presence:
    """The parts of an answer that only tells if keys exist: no value is kept. If values are too large to be read at
    once, their keys are read in pieces, one after the other, when nothing else of the answer is under way.
    """

    def __init__(self, joined: Joined, under_way: int) -> None:
        """`under_way`: the number of looks sent at once."""
        self._joined = joined
        self._under_way = under_way
        self._waiting: list[Look] = []

    @property
    def lost(self) -> RespError | None:
        """See `Results`."""
        return self._joined.lost

    def have(self, positions: Sequence[int], results: Sequence[object], size: int = 0) -> None:
        """Values have come."""
        self._joined.have(positions, [None if value is None else b"" for value in results])
        self._ended()

    def lack(self, positions: Sequence[int], error: RespError) -> None:
        """An error has come instead of these results."""
        self._joined.lack(positions, error)
        self._ended()

    def wait(self, looks: Sequence["Look"]) -> None:
        """A look has ended without an answer: send these looks in its place, in their turn."""
        self._waiting += looks
        self._ended()

    def _ended(self) -> None:
        self._under_way -= 1
        if (error := self._joined.lost) is not None:
            waiting, self._waiting = self._waiting, []
            for look in waiting:
                self._joined.lack(look.positions, error)
        elif not self._under_way and self._waiting:
            self._under_way = 1
            asyncio.get_running_loop().call_soon(self._waiting.pop().send)  # others are served in between


class Look(Read):
    """Checks if some keys of one partition exist."""

    __slots__ = ("_is_alone", "_presence")

    def __init__(
        self,
        means: Means,
        view: View,
        op: Op,
        share: Share,
        presence: Presence,
        keys: list[bytes],
        positions: list[int],
        *,
        is_alone: bool = False,
    ) -> None:
        """`is_alone`: no other look of the same answer is under way."""
        super().__init__(means, view, op, share, presence, keys, positions)
        self._presence = presence
        self._is_alone = is_alone

    def divided(self) -> None:
        """Look in pieces."""
        size = (len(self._keys) + 1) // 2
        pieces = [slice(start, start + size) for start in range(0, len(self._keys), size)]
        made = (self._means, self.view, self._op, self._share, self._presence)
        self._presence.wait([Look(*made, self._keys[piece], self._positions[piece], is_alone=True) for piece in pieces])

    def _retry_or_fail(self, error: MinkaError) -> None:
        if error.code not in _TOO_MUCH:
            super()._retry_or_fail(error)
        elif len(self._keys) > 1 or not self._is_alone:
            self.divided()
        else:
            # One value fits into any answer, unless the answer also has values for other connections: try again.
            super()._retry_or_fail(MinkaError(Code.OVERLOADED, error.message))


class Reads:
    """The reads of connections. Nearly every command calls `here`, so it does only what it must."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._node_id = means.node_id
        self.read_now = means.requests.read_now

    def here(self, view: View, keys: list[bytes]) -> list[bytes | None] | None:
        """The values of a few keys; None if not all of them can be read here and now."""
        if len(keys) == 1:
            route = view.route(keys[0])
            if route is None or route.leader != self._node_id:
                return None
            return self.read_now(route.partition_id, route.generation, keys)
        parts = _by_route(view, keys)
        if parts is None:
            return None
        if len(parts) == 1:
            (route, _) = next(iter(parts.values()))
            return self.read_now(route.partition_id, route.generation, keys) if self._leads(route) else None
        values: list[bytes | None] = [None] * len(keys)
        left = FEW_BYTES
        for route, positions in parts.values():
            if not self._leads(route):
                return None
            found = self.read_now(route.partition_id, route.generation, [keys[position] for position in positions])
            if found is None:
                return None
            for position, value in zip(positions, found, strict=True):
                values[position] = value
            left -= sum(map(len, filter(None, found)))
            if left < 0:
                return None
        return values

    def _leads(self, route: Route) -> bool:
        return route.leader == self._node_id

    def begin(
        self,
        view: View,
        op: Op,
        share: Share,
        joined: Joined,
        keys: list[bytes],
        is_readonly: bool,
        *,
        only_presence: bool = False,
    ) -> None:
        """Read the keys for a joined answer, by position. With `only_presence`, the answer gets placeholders instead of
        values.
        """
        parts = _by_route(view, keys)
        if parts is None:
            joined.lack(range(len(keys)), RespError("TRYAGAIN a partition is not known yet"))
            return
        presence = Presence(joined, len(parts)) if only_presence else None
        for route, positions in list(parts.values()):
            some = [keys[position] for position in positions]
            is_follower = is_readonly and route.leader != self._node_id and self._node_id in route.readable
            stale = is_follower and view.is_cluster and op is Op.READ
            sent_op = Op.READ_STALE if stale else op
            if presence is not None:
                Look(self._means, view, sent_op, share, presence, some, positions).send()
            else:
                Read(self._means, view, sent_op, share, joined, some, positions).send()


def _by_route(view: View, keys: list[bytes]) -> dict[int, tuple[Route, list[int]]] | None:
    """Positions by partition; None if a partition isn't known."""
    parts: dict[int, tuple[Route, list[int]]] = {}
    find = view.route
    for position, key in enumerate(keys):
        route = find(key)
        if route is None:
            return None
        known = parts.get(route.partition_id)
        if known is None:
            parts[route.partition_id] = route, [position]
        else:
            known[1].append(position)
    return parts
