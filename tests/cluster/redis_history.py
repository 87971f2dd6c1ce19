"""Clients that use a few keys at the same time with redis-py's cluster client, and record what they see."""

import asyncio
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, Self

from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import ClusterDownError, RedisClusterException, RedisError, ResponseError, TryAgainError
from redis.retry import Retry

from minka.errors import Code, MinkaError
from minka.wire.key_operations import If
from minkad.config.addresses import split_address
from tests.cluster.history import TASKS, Loop, Workers, outcome_of
from tests.cluster.linearizability import Outcome
from tests.cluster.operation_checker import Kind, Operated

COUNTERS: Final = 3
TTLS_S: Final = (0.05, 0.2, 0.5, 1.5)
_TIMEOUT_S: Final = 1.0
_CODE: Final = re.compile(r"(?:ERR )?([A-Z_]+): ")
# For each kind of request for a register: its kind, the condition if it is a put, if it deletes, its share in percent.
_MIX: Final = (
    (Kind.GET, If.ALWAYS, False, 40), (Kind.PUT, If.ALWAYS, False, 20), (Kind.PUT, If.ABSENT, False, 14),
    (Kind.PUT, If.PRESENT, False, 10), (Kind.PUT, If.PRESENT, True, 6), (Kind.EXPIRE, If.ALWAYS, False, 5),
    (Kind.PERSIST, If.ALWAYS, False, 5),
)  # fmt: skip
_ERRORS: Final = (RedisError, RedisClusterException, OSError)
_LIVES: Final = 0.35  # the share of puts whose value expires


class RedisRecorder(Workers[Operated]):
    """Clients that use `keys` as registers, and a few more keys as counters. No two writes have the same value.

    Repeats are switched off in redis-py, because it would also repeat commands that may have been done already.
    """

    def __init__(self, loop: Loop, endpoints: Sequence[str], keyspace: str, keys: Sequence[bytes], seed: int) -> None:
        """`endpoints` are the addresses of data ports."""
        self._nodes = [split_address(one) for one in endpoints]
        self._counters = [key + b"+" for key in keys[:COUNTERS]]
        self._registers = list(keys)
        super().__init__(loop, endpoints, keyspace, [*self._registers, *self._counters], seed)

    def writes(self, event: Operated) -> bool | None:
        """True for a put or an increment that was done, False for a read, None for any other operation."""
        if event.is_read:
            return False
        return True if event.done and event.kind in (Kind.PUT, Kind.ADD) else None

    def connected(self, rng: random.Random) -> "Threaded":
        """Make an object that gives each thread its own client; the clients know all nodes."""
        nodes = rng.sample(self._nodes, len(self._nodes))
        protocol = rng.choice((2, 3))

        def made() -> RedisCluster:
            return RedisCluster(
                startup_nodes=[ClusterNode(host, port) for host, port in nodes],  # type: ignore[no-untyped-call]
                username=self.keyspace, password="", retry=Retry(NoBackoff(), 0),
                socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, protocol=protocol,
            )  # fmt: skip

        return Threaded(made)

    async def act(self, client: "Threaded", name: str, rng: random.Random, value: bytes) -> None:
        """Send a request of a random kind; some kinds come more often."""
        key = rng.choice(self.keys)
        event = self._count(rng, key) if key in self._counters else self._register(rng, key, value)
        called = time.monotonic()
        try:
            answered = replace(await client.ask(event), note=name)
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


class Threaded:
    """Runs commands on threads, each with its own client: if threads shared a client, one could close the socket from
    which another reads. (redis-py's client for asyncio isn't used, as it leaves connections to lost nodes open.)
    """

    def __init__(self, made: Callable[[], RedisCluster]) -> None:
        self._made = made
        self._own = threading.local()
        self._clients: list[RedisCluster] = []
        self._threads = ThreadPoolExecutor(TASKS, "redis")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.shutdown()
        for client in self._clients:
            client.close()

    async def ask(self, event: Operated) -> Operated:
        """Send the operation; returns it with the fields of the answer. Raises the errors of redis-py."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, event)

    def _ask(self, event: Operated) -> Operated:
        if not hasattr(self._own, "client"):
            self._own.client = self._made()
            self._clients.append(self._own.client)
        return _ask(self._own.client, event)


def _ask(client: Any, event: Operated) -> Operated:
    key = event.key
    match event.kind:
        case Kind.GET:
            return replace(event, found=client.get(key))
        case Kind.ADD:
            return replace(event, number=client.incrby(key, event.by))
        case Kind.EXPIRE:
            return replace(event, done=bool(client.pexpire(key, round((event.ttl or 0) * 1000))))
        case Kind.PERSIST:
            return replace(event, done=bool(client.persist(key)))
    if event.value is None:
        # Not `client.delete`: redis-py makes a pipeline of it, and repeats the pipeline after an error. The answer
        # would be wrong if the first attempt had deleted the key.
        return replace(event, done=client.execute_command("DEL", key) == 1)
    is_absent, is_present = event.condition is If.ABSENT, event.condition is If.PRESENT
    ms = None if event.ttl is None else round(event.ttl * 1000)
    return replace(event, done=bool(client.set(key, event.value, nx=is_absent, xx=is_present, px=ms)))


def _outcome_of(error: Exception) -> Outcome:
    """Return the outcome of a write that failed with this error."""
    if isinstance(error, (TryAgainError, ClusterDownError)) or str(error).startswith("NOREPLICAS"):
        return Outcome.REFUSED
    if isinstance(error, ResponseError) and (named := _CODE.match(str(error))) and named[1] in Code.__members__:
        return outcome_of(MinkaError(Code[named[1]], str(error)))
    return Outcome.UNKNOWN if _was_sent(error) else Outcome.REFUSED


def _was_sent(error: BaseException | None) -> bool:
    """False if the client sent nothing, since it could not connect."""
    if error is None:
        return False
    if isinstance(error, RedisClusterException):  # the error from which it follows, if known, tells more
        return error.__context__ is None or _was_sent(error.__context__) or _was_sent(error.__cause__)
    return " connecting to " not in str(error)
