"""One call of the library's user, divided into parts. The client sends each part to the node that leads the part's
partition, and repeats the part until a node has taken it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

from minka.cluster.routing_table import KeyspaceRoutes, RangeRoutes, Route, RoutingTable
from minka.engine.batch_error import BatchError, Failure, error_of_one
from minka.engine.grpc_calls import clipped
from minka.engine.last_send import last_send
from minka.engine.retry import asks_for_table, delay_s, is_repeatable
from minka.errors import Code, MinkaError, newer_rows, with_rows
from minka.wire.kv_frames import WRITING, Op, ScanBody, ScanPage

CLOSED: Final = "the client was closed"


def closed() -> MinkaError:
    """The error for a call under way when its client is closed, if the call was not sent or only reads."""
    return MinkaError(Code.UNREACHABLE, CLOSED, remedy="None needed: your program has closed this client.")


@dataclass(slots=True, eq=False)
class Part:
    """One call's operations on one partition. A node answers or refuses a part as a whole.

    `open` becomes false when the part is answered, given up, or replaced by another try; later answers are ignored.
    """

    call: "Call"
    place: int
    keys: list[bytes]
    values: list[Any] | None  # one for each key: bytes or None, or an Operation for OPERATE; None for a read
    size: int  # in bytes: about the size of the keys and values
    alone: bool = False  # True: the part gets a frame of its own
    attempts: int = 0
    route: Route | None = None  # the route by which it was last sent
    node: str = ""
    address: str = ""
    sent: bool = False
    waits: bool = False  # True while it waits for another try: after a refusal, or until its route is known
    open: bool = True
    error: MinkaError | None = None  # the last refusal
    scan: ScanBody | None = None  # the request, for a part of a scan; such a part has no keys

    def find_route(self) -> Route | None:
        """The route to the part's partition; None while it isn't known."""
        routes = self.call.routes
        if self.scan is None:
            return routes.route(self.place, self.keys)
        assert isinstance(routes, RangeRoutes), f"a scan of {routes.name}"
        return routes.route_below(self.scan.end) if self.scan.reverse else routes.route(0, [self.scan.start])


class Client(Protocol):
    """The attributes and methods of a client that a call needs."""

    loop: asyncio.AbstractEventLoop

    @property
    def table(self) -> RoutingTable:
        """The routes and addresses, as far as they are known."""

    @property
    def rng(self) -> Random:
        """The source of the jitter in delays."""

    @property
    def calls(self) -> "set[Call]":
        """The calls under way."""

    def send(self, part: Part) -> None:
        """Give the part to the stream of the node that should answer it."""

    def has_newer_route(self, part: Part) -> bool:
        """True if a row that is newer than the part's route names a leader."""

    def refresh_soon(self, avoid: str = "") -> object:
        """Fetch the table in the background, from another node than `avoid` if possible."""


class Call:
    """A call's parts under way, its deadline and its result."""

    def __init__(self, client: Client, routes: KeyspaceRoutes, op: Op, timeout: float, deadline: float) -> None:
        self.op: Final = op
        self.routes: Final = routes
        self.deadline: Final = deadline  # by the loop's clock
        # The answers by key: an Outcome for OPERATE, a Versioned or None for READ_VERSIONED, else a value or None.
        self.found: Final[dict[bytes, Any]] = {}
        self.age_ms = 0  # the greatest age of these answers
        self.page: ScanPage | None = None  # the answer to a scan
        self.node = self.address = ""  # of the node that answered last
        self.parts: Final[set[Part]] = set()
        self._client = client
        self._timeout = timeout
        self._failures: list[Failure] = []
        self._done: asyncio.Future[None] = client.loop.create_future()

    def add(self, place: int, keys: list[bytes], values: list[Any] | None, size: int, *, alone: bool = False) -> None:
        """Send a part."""
        self._add(Part(self, place, keys, values, size, alone))

    def add_scan(self, scan: ScanBody) -> None:
        """Send a scan."""
        self._add(Part(self, 0, [], None, 0, alone=True, scan=scan))

    def _add(self, part: Part) -> None:
        self.parts.add(part)
        self._client.send(part)

    def regroup(self, part: Part) -> None:
        """Divide a part whose keys no longer belong to one partition."""
        self._replace(part)
        size = part.size // len(part.keys)
        if part.values is None:
            for place, keys in self.routes.key_buckets(part.keys):
                self.add(place, keys, None, size * len(keys), alone=part.alone)
            return
        for bucket in self.routes.pair_buckets(dict(zip(part.keys, part.values, strict=True))):
            self.add(bucket.place, bucket.keys, bucket.values, size * len(bucket.keys))

    def _replace(self, part: Part) -> None:
        part.open = False
        self.parts.discard(part)

    async def outcome(self, key_count: int) -> None:
        """Wait until every part is answered or given up. Raises `MinkaError`, for a batch `BatchError`. `key_count` is
        0 for a scan.
        """
        self._client.calls.add(self)
        timer = self._client.loop.call_at(self.deadline, self._expire)
        try:
            if self.parts:
                await self._done
        finally:
            timer.cancel()
            self._client.calls.discard(self)
            for part in self.parts:
                part.open = False
        if self._failures:
            failure = self._failures[0]
            raise error_of_one(failure) if key_count <= 1 else BatchError(self._failures, key_count)

    def answered(self, part: Part, values: Sequence[object] | None, age_ms: int = 0) -> None:
        """Take a node's answer: a value for each key of the part, at most `age_ms` milliseconds old; None for
        a write.
        """
        if part.open:
            if values is not None:
                assert len(values) == len(part.keys), f"{len(values)} values for {len(part.keys)} keys"
                self.found.update(zip(part.keys, values, strict=True))
                self.age_ms = max(self.age_ms, age_ms)
            self.node, self.address = part.node, part.address
            self._settle(part)

    def answered_scan(self, part: Part, page: ScanPage) -> None:
        """Take the page with which a node answered a scan."""
        if part.open:
            self.page = page
            self._settle(part)

    def refused(self, part: Part, error: MinkaError) -> None:
        """Repeat or give up a part that was not done, or whose outcome isn't known."""
        if not part.open:
            return
        part.sent = False
        part.error = error
        part.attempts += 1
        if error.code is Code.TOO_LARGE and self.op not in WRITING and (len(part.keys) > 1 or not part.alone):
            self._read_apart(part)
        elif is_repeatable(error, self.op):
            self._repeat(part, error)
        else:
            self._give_up(part, error)

    def reroute(self, part: Part) -> None:
        """Send a read that is under way, or a part that was not sent, to the node that is right for it now. A late
        answer of the former node is ignored.
        """
        assert self.op not in WRITING or not part.sent, "a write under way may have been done"
        self._replace(part)
        self._add(Part(self, part.place, part.keys, part.values, part.size, part.alone, scan=part.scan))

    def abort(self) -> None:
        """Give up the parts under way, since the client is being closed."""
        for part in list(self.parts):
            unknown = part.sent and self.op in WRITING
            self._give_up(part, MinkaError(Code.OUTCOME_UNKNOWN, CLOSED) if unknown else closed())

    def _repeat(self, part: Part, error: MinkaError) -> None:
        self._client.table.update(newer_rows(error))
        part.waits = True
        if self._client.has_newer_route(part):
            self._client.loop.call_soon(self.send_again, part)
            return
        if asks_for_table(error):
            self._client.refresh_soon(avoid=part.address)
        self._client.loop.call_later(delay_s(part.attempts, self._client.rng), self.send_again, part)

    def send_again(self, part: Part) -> None:
        """Send a part that waits, unless it was sent meanwhile, is over, or has too little time left."""
        if part.open and part.waits and self._client.loop.time() <= last_send(self.deadline, self._timeout):
            part.waits = False
            self._client.send(part)

    def _read_apart(self, part: Part) -> None:
        """Repeat a read whose values are too large for one answer: first apart from other parts, then in halves."""
        self._replace(part)
        middle = len(part.keys) // 2 if part.alone else 0
        for keys in (part.keys[:middle], part.keys[middle:]):
            if keys:
                self.add(part.place, keys, None, part.size, alone=True)

    def _expire(self) -> None:
        for part in list(self.parts):
            self._give_up(part, self._overdue(part))

    def _overdue(self, part: Part) -> MinkaError:
        within = f"within {self._timeout:g} s"
        if part.sent:
            doubt = "; the write may or may not have been done" if self.op in WRITING else ""
            return MinkaError(Code.DEADLINE_EXCEEDED, f"no answer {within}{doubt}")
        if part.error is None:
            return MinkaError(Code.DEADLINE_EXCEEDED, f"not sent {within}: too much is under way to this node already")
        tries = f"given up after {part.attempts} {'tries' if part.attempts > 1 else 'try'} {within}"
        message, partitions = f"{clipped(part.error.message)}; {tries}", newer_rows(part.error)
        return with_rows(MinkaError(part.error.code, message, **part.error.details), partitions)

    def _give_up(self, part: Part, error: MinkaError) -> None:
        self._failures.append(Failure(tuple(part.keys), part.node, part.address, error))
        self._settle(part)

    def _settle(self, part: Part) -> None:
        self._replace(part)
        if not self.parts and not self._done.done():
            self._done.set_result(None)
