"""SCAN: the keys in order, partition by partition.

A cursor has 64 bits: 19 for the partition, and 45 for the hash of the key at which the scan goes on. The node remembers
the keys of its latest cursors. If a cursor is unknown, since it is too old or from another node, the node finds the key
by reading the partition's keys from the first one.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

import mmh3

from minka.cluster.key_ranges import MAX_KEY_BYTES
from minka.cluster.routing_table import Route
from minka.wire import kv_frames
from minka.wire.kv_frames import Op, ScanBody, ScanPage
from minkad.data_port.resp.command import Command, Kind, Words, cursor_of, integer_of, syntax_error, upper
from minkad.data_port.resp.connection import RespConnection
from minkad.data_port.resp.errands import Errand, Means
from minkad.data_port.resp.globs import Glob
from minkad.data_port.resp.keyspaces import ClusterView, HashView, View
from minkad.data_port.resp.replies import RespError, bulk, values
from minkad.data_port.resp.slots import Joined, Slot
from minkad.process.memory import Share
from minkad.replication.serving.client_requests import MAX_PAGE_BYTES, MAX_PAGE_ROWS

_HASH_BITS: Final = 45
_HASH_MASK: Final = (1 << _HASH_BITS) - 1
_REMEMBERED_BYTES: Final = 4 * 1024 * 1024
_CURSOR_BYTES: Final = 100  # of a remembered cursor, besides its key
_DEFAULT_COUNT: Final = 10
_KEY_BYTES: Final = 64  # about the bytes of a key in a page
_PAGE_BYTES: Final = 1024  # of a page, besides its keys
_MATCHED_BYTES: Final = 64 * 1024  # most bytes of a page's keys, if the pattern isn't quick


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a scan goes on: the slot `number` (0 in a keyspace by ranges), and the key `start`."""

    number: int
    start: bytes = b""

    @property
    def cursor(self) -> int:
        """The place as a number; 0 is the beginning of the keyspace."""
        if not self.start:
            return self.number << _HASH_BITS
        return self.number << _HASH_BITS | (mmh3.hash64(self.start, signed=False)[0] & _HASH_MASK or 1)


class Cursors:
    """The latest cursors given out."""

    def __init__(self) -> None:
        self._starts: OrderedDict[tuple[int, int], bytes] = OrderedDict()  # by keyspace and cursor
        self._bytes = 0  # of the remembered cursors and their keys

    def give(self, view: View, place: Place) -> int:
        """The cursor of a place."""
        cursor = place.cursor
        if place.start and (view.id, cursor) not in self._starts:
            self._starts[view.id, cursor] = place.start
            self._bytes += len(place.start) + _CURSOR_BYTES
            while self._bytes > _REMEMBERED_BYTES:
                self._bytes -= len(self._starts.popitem(last=False)[1]) + _CURSOR_BYTES
        return cursor

    def take(self, view: View, cursor: int) -> Place | None:
        """The place of a cursor; None if it isn't remembered."""
        number = cursor >> _HASH_BITS
        if not cursor & _HASH_MASK:
            return Place(number)
        start = self._starts.get((view.id, cursor))
        return Place(number, start) if start is not None else None


class Page(Errand):
    """One page of a scan."""

    __slots__ = ("_have", "_max_bytes", "_place", "_rows")

    def __init__(
        self,
        means: Means,
        view: View,
        share: Share,
        place: Place,
        rows: int,
        have: Callable[[ScanPage | RespError], None],
        max_bytes: int = MAX_PAGE_BYTES,
    ) -> None:
        """`have` is called with the page, or with an error. The page's keys have at most `max_bytes`, or one key."""
        super().__init__(means, view, Op.SCAN, share)
        self._place = place
        self._rows = rows
        self._max_bytes = max_bytes
        self._have = have

    def keys(self) -> Sequence[bytes]:
        """The key at which the page begins."""
        return [self._place.start]

    def route(self) -> Route | None:
        """The route to the partition."""
        view, place = self.view, self._place
        return view.route_at(place.number) if isinstance(view, HashView) else view.route(place.start)

    def body(self) -> bytes:
        """A `ScanBody`."""
        return kv_frames.encode(ScanBody(self._place.start, b"", False, self._rows, self._max_bytes, True))

    def size(self) -> int:
        """For keys of normal length."""
        return min(self._rows * _KEY_BYTES, self._max_bytes) + MAX_KEY_BYTES

    def most(self) -> int:
        """The first key may exceed the page's limit. The page also has the place where the next page begins."""
        return self._max_bytes + 3 * MAX_KEY_BYTES + _PAGE_BYTES

    def succeeded(self, body: bytes | None) -> None:
        """The page."""
        self._have(kv_frames.decode_page(body or b""))

    def failed(self, errors: Sequence[RespError]) -> None:
        """No page."""
        self._have(errors[0])

    def divided(self) -> None:
        """Nothing to divide: a page has one key to begin at."""
        raise AssertionError("a page is of one partition")


class Scan:
    """One SCAN: reads a page. If the cursor is unknown, first searches for the page's beginning."""

    def __init__(
        self, connection: RespConnection, cursor: int, count: int, pattern: Glob | None, is_empty: bool
    ) -> None:
        """`is_empty`: no key has the requested type."""
        self._connection = connection
        self._view = connection.view
        self._cursor = cursor
        self._count = count
        self._pattern = pattern
        self._is_empty = is_empty
        self.slot = Joined(connection, 1, self._finish, is_write=False)

    def begin(self) -> None:
        """Read."""
        place = self._connection.service.cursors.take(self._view, self._cursor)
        if place is not None:
            self._read(place)
            return
        place, view = Place(self._cursor >> _HASH_BITS), self._view
        if place.number < (view.count if isinstance(view, HashView) else 1):
            self._search(place)
        else:
            self._refuse()

    def _read(self, place: Place) -> None:
        known = self._here(place)
        if known is None:
            self._answer(None, [])
            return
        self._page(known, self._count, lambda page: self._came(known, page))

    def _came(self, place: Place, page: ScanPage | RespError) -> None:
        if isinstance(page, RespError):
            view = self._view
            if not (isinstance(view, ClusterView) and self._is_elsewhere(view, place)):
                self.slot.lack([0], page)
                return
            self._answer(self._here(Place(place.number + 1)), [])  # another node leads the partition now
            return
        following = Place(place.number, page.end)
        if not page.end:
            following = Place(place.number + 1)
        self._answer(self._here(following), page.keys)

    def _is_elsewhere(self, view: ClusterView, place: Place) -> bool:
        means = self._connection.service.means
        means.keyspaces.refresh()
        return means.refusals.is_elsewhere(view.route_at(place.number))

    def _here(self, place: Place) -> Place | None:
        """The place, or the beginning of the next partition to read; None if everything is read."""
        view = self._view
        if not isinstance(view, HashView):
            return place if place.number == 0 else None
        if place.start:
            return place
        own = self._connection.service.means.node_id
        for number in range(place.number, view.count):
            route = view.route_at(number)
            if route is not None and (not view.is_cluster or route.leader == own):
                return Place(number)
        return None

    def _search(self, place: Place) -> None:
        self._page(place, MAX_PAGE_ROWS, lambda page: self._searched(place, page))

    def _searched(self, place: Place, page: ScanPage | RespError) -> None:
        if not isinstance(page, RespError):
            for start in (*[key + b"\0" for key in page.keys], page.end):
                if start and Place(place.number, start).cursor == self._cursor:
                    self._read(Place(place.number, start))
                    return
            if page.end:
                self._search(Place(place.number, page.end))
                return
        self._refuse()

    def _refuse(self) -> None:
        self.slot.lack([0], RespError("ERR the cursor is not known to this node any longer; begin again with 0"))

    def _page(self, place: Place, rows: int, have: Callable[[ScanPage | RespError], None]) -> None:
        connection, pattern = self._connection, self._pattern
        max_bytes = MAX_PAGE_BYTES if pattern is None or pattern.is_quick else _MATCHED_BYTES
        Page(connection.service.means, self._view, connection.share, place, rows, have, max_bytes).send()

    def _answer(self, following: Place | None, keys: Sequence[bytes]) -> None:
        cursor = 0 if following is None else self._connection.service.cursors.give(self._view, following)
        pattern = self._pattern
        found = [] if self._is_empty else [key for key in keys if pattern is None or pattern.matches(key)]
        self.slot.have([0], [b"*2\r\n" + bulk(b"%d" % cursor, False) + values(found, False)])

    @staticmethod
    def _finish(results: list[object]) -> bytes:
        return cast("bytes", results[0])


def _scan(connection: RespConnection, words: Words) -> Slot:
    cursor, count, is_empty = cursor_of(words[1]), _DEFAULT_COUNT, False
    pattern: Glob | None = None
    if len(words) % 2:
        raise syntax_error()
    for option, word in zip(map(upper, words[2::2]), words[3::2], strict=True):
        if option == b"COUNT":
            count = integer_of(word)
            if count < 1:
                raise syntax_error()
        elif option == b"MATCH":
            pattern = Glob(word) if word != b"*" else None
        elif option == b"TYPE":
            is_empty = upper(word) != b"STRING"
        else:
            raise syntax_error()
    scan = Scan(connection, cursor, min(count, MAX_PAGE_ROWS), pattern, is_empty)
    scan.begin()
    return scan.slot


def _keys(connection: RespConnection, words: Words) -> bytes:
    raise RespError("ERR KEYS would read the whole keyspace at once: use SCAN")


COMMANDS: Final = (
    Command("SCAN", -2, _scan, Kind.READ, ("readonly",), "Returns some of the keys, and where to go on.",
            since="2.8.0", group="generic", tips=("nondeterministic_output", "request_policy:special")),
    Command("KEYS", 2, _keys, Kind.READ, ("readonly",), "Is refused: SCAN does it in pieces.", group="generic"),
)  # fmt: skip
