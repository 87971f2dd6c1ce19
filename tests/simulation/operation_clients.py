"""Clients of the simulated store that use conditions, versions, counters and lifetimes. At the end, the checker of
`tests/cluster` checks their history.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from minka.cluster.key_ranges import is_by_ranges
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Durability, Partition
from minka.wire import key_operations, kv_frames
from minka.wire.key_operations import (
    Add,
    Expire,
    If,
    Lifetime,
    OnlyIf,
    Operation,
    Set,
    decode_outcomes,
    decode_versioned,
)
from minkad.core.state import range_of
from tests.cluster.linearizability import Outcome, Verdict
from tests.cluster.operation_checker import Kind, Operated, check
from tests.simulation.availability import FIRST_UNIX_MS
from tests.simulation.data_clients import Clients
from tests.simulation.data_oracle import OPERATED
from tests.simulation.trace import Violation

if TYPE_CHECKING:
    from tests.simulation.full_world import FullWorld
    from tests.simulation.process import Process

_UNKNOWN: Final = (Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED)
_NOT_DONE: Final = "nothing was done"  # an error with these words: the deadline had passed before the node began
_PAUSE: Final = 0.03  # mean seconds between two rounds of requests
_SKEWS_MS: Final = (0, 0, 100, 1500)  # the largest difference between wall clocks; each run draws one of these
_SLACK: Final = 0.003  # seconds of tolerance, since wall clocks show whole milliseconds
_AT_ONCE: Final = 2  # partitions in a round
_TOGETHER: Final = 0.4  # the share of requests with two operations
_TTLS: Final = (0.1, 0.5, 2.0, 10.0)  # seconds
_KINDS: Final = (Kind.GET, Kind.GET_VERSIONED, Kind.PUT, Kind.PUT, Kind.PUT, Kind.EXPIRE, Kind.PERSIST)
_CONDITIONS: Final = (If.ALWAYS, If.ABSENT, If.VALUE, If.VERSION)


class OperationClients:
    """Clients with keys of their own, in keyspaces that never lose acknowledged writes. They use a register and a
    counter in each partition of a keyspace by hash, and at several points of a keyspace by ranges.
    """

    def __init__(self, world: "FullWorld", clients: Clients) -> None:
        self._world = world
        self._clients = clients
        self._number = self._asked_for = 0
        self._ended = False
        self._events: dict[int, Operated] = {}
        self._known: dict[bytes, tuple[bytes, int]] = {}  # by key: the value and version that a client saw last
        self._skew_ms = 0

    def begin(self) -> None:
        """Make the machines' wall clocks differ, and start the requests."""
        self._skew_ms = self._world.rng.choice(_SKEWS_MS)
        for machine in self._world.machines:
            machine.wall_skew_ms = self._world.rng.randint(0, self._skew_ms)
        self._world.after(1.0, self._next)

    def end(self) -> None:
        """Stop the requests."""
        self._ended = True

    def judge(self) -> None:
        """Check the clients' history. Raises Violation if it isn't linearizable."""
        result = check(self._events.values(), slack=self._skew_ms / 1000 + _SLACK)
        if result.verdict is not Verdict.LINEARIZABLE:
            text = f"{result.verdict.value}: {result.key!r}: {result.reason}"
            raise Violation("operations take effect one after the other", text)

    def _next(self) -> None:
        world, rng = self._world, self._world.rng
        if self._ended:
            return
        world.after(rng.expovariate(1 / _PAUSE), self._next)
        processes = world.processes()
        rows = rng.choice(processes).coordinator.state.partitions if processes else {}
        fitting = [row for row in rows.values() if self._is_exact(row)]
        if not fitting:
            return
        for row in rng.sample(fitting, min(len(fitting), _AT_ONCE)):
            keys = [key for key in self._keys(row) if range_of(row).contains(key)]
            process = self._clients.leader(row) or rng.choice(processes)
            if keys:
                process.spawn(self._ask(process, row, self._group(rng.choice(keys))))

    def _is_exact(self, row: Partition) -> bool:
        """True if the partition's keyspace promises that no fault loses acknowledged writes."""
        keyspace = self._world.keyspaces.get(row.keyspace_id)
        is_sync = keyspace is not None and keyspace.durability == Durability.DURABILITY_SYNC
        return is_sync and keyspace is not None and not keyspace.unclean_election

    def _keys(self, row: Partition) -> list[bytes]:
        if not is_by_ranges(self._world.keyspaces[row.keyspace_id]):
            names = [b"%d" % row.id]
        else:
            names = [b"%02x" % point for point in range(32, 256, 64)]
        return [b"%s%s%d%s" % (name, OPERATED, row.keyspace_id, kind) for name in names for kind in (b"c", b"r")]

    def _group(self, key: bytes) -> list[Operated]:
        """Draw the events for one request about this key: one event of any kind, or two operations."""
        both = [self._asked(key), self._asked(key)]
        together = all(map(is_operation, both)) and self._world.rng.random() < _TOGETHER
        return both if together else both[:1]

    def _asked(self, key: bytes) -> Operated:
        rng = self._world.rng
        self._number += 1
        if key.endswith(b"c"):
            kind = rng.choice((Kind.GET, Kind.GET_VERSIONED, Kind.ADD, Kind.ADD))
            return Operated(key, kind, 0, 0, by=2**32 + self._number if kind is Kind.ADD else 0)
        kind = rng.choice(_KINDS)
        ttl = rng.choice(_TTLS) if kind is Kind.EXPIRE or (kind is Kind.PUT and rng.random() < 0.4) else None
        if kind is not Kind.PUT:
            return Operated(key, kind, 0, 0, ttl=ttl)
        condition = rng.choice(_CONDITIONS)
        known, version = self._known.get(key, (b"", 0))
        deletes = ttl is None and condition is not If.ABSENT and rng.random() < 0.3
        return Operated(
            key, kind, 0, 0, value=None if deletes else b"o%d" % self._number, condition=condition,
            expected=known if condition is If.VALUE else b"",
            expected_version=version if condition is If.VERSION else 0, ttl=ttl,
        )  # fmt: skip

    async def _ask(self, process: "Process", row: Partition, events: list[Operated]) -> None:
        """Send the events as one request, and record the outcome: UNKNOWN if no answer comes."""
        first, called = self._asked_for, self._world.now
        self._asked_for += len(events)
        where = f"{process.machine.id}, partition {row.id}"
        for number, event in enumerate(events, first):
            self._events[number] = replace(event, called=called, returned=called, outcome=Outcome.UNKNOWN, note=where)
        try:
            answer = await self._clients.ask(process, *request_of(events, row))
        except MinkaError as error:
            is_unknown = error.code in _UNKNOWN and _NOT_DONE not in error.message
            outcome = Outcome.UNKNOWN if is_unknown else Outcome.REFUSED
            answered = [replace(event, outcome=outcome, note=f"{where}: {error}") for event in events]
        else:
            answered = [replace(event, note=where) for event in with_answers(events, answer)]
        if not process.alive:
            return
        for number, event in enumerate(answered, first):
            self._events[number] = replace(event, called=called, returned=self._world.now)
            if event.outcome is Outcome.OK and event.version:
                found = event.found if event.is_read else event.value if event.done else None
                if found is not None:
                    self._known[event.key] = (found, event.version)


def is_operation(event: Operated) -> bool:
    """True if clients send this event as an operation on a key; False if they send it as a read or a plain write."""
    return not event.is_read and not (event.is_blind and event.ttl is None)


def request_of(events: list[Operated], row: Partition) -> tuple[kv_frames.Op, Partition, bytes]:
    """Encode the events as one request; returns its op, its row and its body."""
    event = events[0]
    if event.is_read:
        op = kv_frames.Op.READ if event.kind is Kind.GET else kv_frames.Op.READ_VERSIONED
        return op, row, kv_frames.encode([event.key])
    if not is_operation(event):
        return kv_frames.Op.WRITE, row, kv_frames.encode(kv_frames.WriteBody([event.key], [event.value]))
    return kv_frames.Op.OPERATE, row, kv_frames.encode([operation_of(one) for one in events])


def operation_of(event: Operated) -> Operation:
    """Convert the event to the operation that a client sends."""
    lifetime = Lifetime.UNLIMITED if event.ttl is None else Lifetime.FOR
    ms = round((event.ttl or 0) * 1000)
    if event.kind is Kind.ADD:
        return Add(event.key, event.by)
    if event.kind is Kind.EXPIRE:
        return Expire(event.key, lifetime, ms)
    if event.kind is Kind.PERSIST:
        return Expire(event.key, lifetime, condition=OnlyIf.LIMITED)
    return Set(event.key, event.value, event.condition, event.expected, event.expected_version, lifetime, ms)


def with_answers(events: list[Operated], body: bytes) -> list[Operated]:
    """Decode the answers, and return the events with them."""
    event = events[0]
    if event.kind is Kind.GET:
        (found,) = kv_frames.decode_values(body)
        return [replace(event, found=found)]
    if event.kind is Kind.GET_VERSIONED:
        (versioned,) = decode_versioned(body)
        if versioned is None:
            return [event]
        expires = (versioned.expires_ms - FIRST_UNIX_MS) / 1000 if versioned.expires_ms else None
        return [replace(event, found=versioned.value, version=versioned.version, expires=expires)]
    if not is_operation(event):
        return [event]
    return [_with_outcome(one, outcome) for one, outcome in zip(events, decode_outcomes(body), strict=True)]


def _with_outcome(event: Operated, outcome: key_operations.Outcome) -> Operated:
    if event.kind is Kind.ADD:
        return replace(event, number=outcome.number)
    return replace(event, done=outcome.done, version=outcome.version if event.kind is Kind.PUT else None)
