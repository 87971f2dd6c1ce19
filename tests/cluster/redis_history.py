"""The cluster client of redis-py, as it is, on a few keys at the same time; what it saw is remembered."""

import random
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ClusterDownError, RedisClusterException, RedisError, ResponseError, TryAgainError

from minka.errors import Code, MinkaError
from minka.operations import If
from minkad.config.addresses import split_address
from tests.cluster.history import Loop, Workers, outcome_of
from tests.cluster.linearizability import Outcome
from tests.cluster.operation_checker import Kind, Operated

COUNTERS: Final = 3
TTLS_S: Final = (0.05, 0.2, 0.5, 1.5)
_TIMEOUT_S: Final = 1.0
_CODE: Final = re.compile(r"(?:ERR )?([A-Z_]+): ")
# The kind, the condition of a put, whether it deletes, its share in percent.
_MIX: Final = (
    (Kind.GET, If.ALWAYS, False, 40), (Kind.PUT, If.ALWAYS, False, 20), (Kind.PUT, If.ABSENT, False, 14),
    (Kind.PUT, If.PRESENT, False, 10), (Kind.PUT, If.PRESENT, True, 6), (Kind.EXPIRE, If.ALWAYS, False, 5),
    (Kind.PERSIST, If.ALWAYS, False, 5),
)  # fmt: skip
# RuntimeError: redis-py writes to a transport that uvloop has closed.
_ERRORS: Final = (RedisError, RedisClusterException, OSError, TimeoutError, RuntimeError)
_LIVES: Final = 0.35  # the share of puts whose value expires


class RedisRecorder(Workers[Operated]):
    """Clients that work on `keys` as registers, and on a few more as counters. Values are unique.

    They repeat no command: redis-py would also repeat those of which it can't know whether they were done.
    """

    def __init__(self, loop: Loop, endpoints: Sequence[str], keyspace: str, keys: Sequence[bytes], seed: int) -> None:
        """`endpoints` are data ports."""
        self._nodes = [split_address(one) for one in endpoints]
        self._counters = [key + b"+" for key in keys[:COUNTERS]]
        self._registers = list(keys)
        super().__init__(loop, endpoints, keyspace, [*self._registers, *self._counters], seed)

    def writes(self, event: Operated) -> bool | None:
        """A put whose condition doesn't hold shows nothing."""
        if event.is_read:
            return False
        return True if event.done and event.kind in (Kind.PUT, Kind.ADD) else None

    def connected(self, rng: random.Random) -> RedisCluster:
        """A client that knows all nodes, and connects with its first command."""
        nodes = [ClusterNode(host, port) for host, port in rng.sample(self._nodes, len(self._nodes))]
        return RedisCluster(
            startup_nodes=nodes, username=self.keyspace, password="", retry=Retry(NoBackoff(), 0),
            socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, protocol=rng.choice((2, 3)),
        )  # fmt: skip

    async def act(self, client: Any, name: str, rng: random.Random, value: bytes) -> None:
        """One of the kinds, by their shares."""
        key = rng.choice(self.keys)
        event = self._count(rng, key) if key in self._counters else self._register(rng, key, value)
        called = time.monotonic()
        try:
            answered = replace(await _ask(client, event), note=name)
        except _ERRORS as error:
            answered = replace(event, outcome=_outcome_of(error), note=f"{name}: {error!r}")
        self.events.append(replace(answered, called=called, returned=time.monotonic()))

    @staticmethod
    def _count(rng: random.Random, key: bytes) -> Operated:
        kind = rng.choice((Kind.GET, Kind.ADD))
        return Operated(key, kind, 0, 0, by=2**32 + rng.randrange(2**18) if kind is Kind.ADD else 0)

    @staticmethod
    def _register(rng: random.Random, key: bytes, value: bytes) -> Operated:
        kind, condition, deletes, _ = rng.choices(_MIX, weights=[share for *_, share in _MIX])[0]
        if kind is not Kind.PUT:
            return Operated(key, kind, 0, 0, ttl=rng.choice(TTLS_S) if kind is Kind.EXPIRE else None)
        ttl = rng.choice(TTLS_S) if not deletes and rng.random() < _LIVES else None
        return Operated(key, kind, 0, 0, value=None if deletes else value, condition=condition, ttl=ttl)


async def _ask(client: Any, event: Operated) -> Operated:
    """The operation with its answer. Raises what redis-py raises."""
    key = event.key
    match event.kind:
        case Kind.GET:
            return replace(event, found=await client.get(key))
        case Kind.ADD:
            return replace(event, number=await client.incrby(key, event.by))
        case Kind.EXPIRE:
            return replace(event, done=bool(await client.pexpire(key, round((event.ttl or 0) * 1000))))
        case Kind.PERSIST:
            return replace(event, done=bool(await client.persist(key)))
    if event.value is None:
        return replace(event, done=await client.delete(key) == 1)
    is_absent, is_present = event.condition is If.ABSENT, event.condition is If.PRESENT
    ms = None if event.ttl is None else round(event.ttl * 1000)
    return replace(event, done=bool(await client.set(key, event.value, nx=is_absent, xx=is_present, px=ms)))


def _outcome_of(error: Exception) -> Outcome:
    """What the error says of a write."""
    if isinstance(error, (TryAgainError, ClusterDownError)) or str(error).startswith("NOREPLICAS"):
        return Outcome.REFUSED
    if isinstance(error, ResponseError) and (named := _CODE.match(str(error))) and named[1] in Code.__members__:
        return outcome_of(MinkaError(Code[named[1]], str(error)))
    return Outcome.UNKNOWN
