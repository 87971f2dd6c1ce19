"""Clients that use conditions, versions, counters and lifetimes on a few keys at the same time, and record what they
see.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import minka
from minka.errors import MinkaError
from minka.wire.key_operations import If
from tests.cluster.history import TIMEOUTS_S, Loop, Workers, outcome_of
from tests.cluster.linearizability import Outcome
from tests.cluster.operation_checker import Kind, Operated

COUNTERS: Final = 3
TTLS_S: Final = (0.05, 0.2, 0.5, 1.5)
# For each kind of request for a register: its kind, the condition if it is a put, and its share in percent.
_MIX: Final = (
    (Kind.GET, If.ALWAYS, 20), (Kind.GET_VERSIONED, If.ALWAYS, 20), (Kind.PUT, If.ALWAYS, 16),
    (Kind.PUT, If.ABSENT, 12), (Kind.PUT, If.VERSION, 14), (Kind.PUT, If.VALUE, 8), (Kind.EXPIRE, If.ALWAYS, 5),
    (Kind.PERSIST, If.ALWAYS, 5),
)  # fmt: skip
_LIVES: Final = 0.35  # the share of puts whose value expires
_DELETES: Final = 0.2  # the share of deletes among puts without a lifetime, except conditional puts of absent keys


class OperationRecorder(Workers[Operated]):
    """Clients that use `keys` as registers, and a few more keys as counters. No two puts have the same value, and a
    counter's value shows which increments it contains: see `_amount`.
    """

    def __init__(self, loop: Loop, endpoints: Sequence[str], keyspace: str, keys: Sequence[bytes], seed: int) -> None:
        self._registers = list(keys)
        self._counters = [key + b"+" for key in keys[:COUNTERS]]
        super().__init__(loop, endpoints, keyspace, [*self._registers, *self._counters], seed)
        self._known: dict[bytes, tuple[bytes, int]] = {}  # by key: the last value that a client saw, and its version
        self._wall = time.time() - time.monotonic()

    def writes(self, event: Operated) -> bool | None:
        """True for a put or an increment that was done, False for a read, None for any other operation."""
        if event.is_read:
            return False
        return True if event.done and event.kind in (Kind.PUT, Kind.ADD) else None

    async def act(self, client: minka.AsyncClient, name: str, rng: random.Random, value: bytes) -> None:
        """Send a request of a random kind; some kinds come more often."""
        key = rng.choice(self.keys)
        event = self._count(rng, key) if key in self._counters else self._register(rng, key, value)
        timeout = rng.choice(TIMEOUTS_S)
        called = time.monotonic()
        try:
            answered = await self._ask(client, event, timeout)
        except MinkaError as error:
            answered = replace(event, outcome=outcome_of(error), note=f"{name}: {error}")
        else:
            answered = replace(answered, note=name)
        self.events.append(replace(answered, called=called, returned=time.monotonic()))
        if answered.outcome is Outcome.OK and answered.version:
            found = answered.found if answered.is_read else answered.value if answered.done else None
            if found is not None:
                self._known[key] = (found, answered.version)

    def _count(self, rng: random.Random, key: bytes) -> Operated:
        kind = rng.choice((Kind.GET, Kind.GET_VERSIONED, Kind.ADD, Kind.ADD))
        return Operated(key, kind, 0, 0, by=_amount(rng) if kind is Kind.ADD else 0)

    def _register(self, rng: random.Random, key: bytes, value: bytes) -> Operated:
        kind, condition, _ = rng.choices(_MIX, weights=[weight for _, _, weight in _MIX])[0]
        if kind is not Kind.PUT:
            return Operated(key, kind, 0, 0, ttl=rng.choice(TTLS_S) if kind is Kind.EXPIRE else None)
        known, version = self._known.get(key, (b"", 0))
        lives = rng.random() < _LIVES
        deletes = not lives and condition is not If.ABSENT and rng.random() < _DELETES
        return Operated(
            key, kind, 0, 0, value=None if deletes else value, condition=condition,
            expected=known if condition is If.VALUE else b"",
            expected_version=version if condition is If.VERSION else 0, ttl=rng.choice(TTLS_S) if lives else None,
        )  # fmt: skip

    async def _ask(self, client: minka.AsyncClient, event: Operated, timeout: float) -> Operated:
        """Send the operation; returns it with the fields of the answer. Raises MinkaError."""
        key = event.key
        match event.kind:
            case Kind.GET:
                return replace(event, found=await client.get(key, timeout=timeout))
            case Kind.GET_VERSIONED:
                return self._read(event, await client.get_versioned(key, timeout=timeout))
            case Kind.ADD:
                return replace(event, number=await client.increment(key, event.by, timeout=timeout))
            case Kind.EXPIRE:
                assert event.ttl is not None
                return replace(event, done=await client.expire(key, event.ttl, timeout=timeout))
            case Kind.PERSIST:
                return replace(event, done=await client.persist(key, timeout=timeout))
            case Kind.PUT:
                written = await _write(client, event, timeout)
                return event if written is None else replace(event, done=written.done, version=written.version)

    def _read(self, event: Operated, found: minka.VersionedValue | None) -> Operated:
        if found is None:
            return event
        expires = None if found.expires_at is None else found.expires_at - self._wall
        return replace(event, found=found.value, version=found.version, expires=expires)


async def _write(client: minka.AsyncClient, event: Operated, timeout: float) -> minka.Written | None:
    options: dict[str, Any] = {"timeout": timeout}
    match event.condition:
        case If.ABSENT:
            options["if_absent"] = True
        case If.VALUE:
            options["if_value"] = event.expected
        case If.VERSION:
            options["if_version"] = event.expected_version
    if event.value is None:
        deleted: minka.Written | None = await client.delete(event.key, **options)
        return deleted
    written: minka.Written | None = await client.put(event.key, event.value, **options, ttl=event.ttl)
    return written


def _amount(rng: random.Random) -> int:
    """Draw the number by which to increment. The upper 32 bits of a counter are the number of increments in it; the
    lower bits are a sum of random numbers, which in nearly all cases shows which increments these are.
    """
    return 2**32 + rng.randrange(2**18)
