"""The cluster client of redis-py, unchanged, on a few keys at the same time; its results are recorded."""

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
# The kind, the condition of a put, whether it deletes, its share in percent.
_MIX: Final = (
    (Kind.GET, If.ALWAYS, False, 40), (Kind.PUT, If.ALWAYS, False, 20), (Kind.PUT, If.ABSENT, False, 14),
    (Kind.PUT, If.PRESENT, False, 10), (Kind.PUT, If.PRESENT, True, 6), (Kind.EXPIRE, If.ALWAYS, False, 5),
    (Kind.PERSIST, If.ALWAYS, False, 5),
)  # fmt: skip
_ERRORS: Final = (RedisError, RedisClusterException, OSError)
_LIVES: Final = 0.35  # the share of puts whose value expires


class RedisRecorder(Workers[Operated]):
    """Clients that work on `keys` as registers, and on a few more as counters. Values are unique.

    They never repeat a command: redis-py would also repeat commands that may have been done already.
    """

    def __init__(self, loop: Loop, endpoints: Sequence[str], keyspace: str, keys: Sequence[bytes], seed: int) -> None:
        """`endpoints` are data ports."""
        self._nodes = [split_address(one) for one in endpoints]
        self._counters = [key + b"+" for key in keys[:COUNTERS]]
        self._registers = list(keys)
        super().__init__(loop, endpoints, keyspace, [*self._registers, *self._counters], seed)

    def writes(self, event: Operated) -> bool | None:
        """True for a write, False for a read; None for a put whose condition doesn't hold."""
        if event.is_read:
            return False
        return True if event.done and event.kind in (Kind.PUT, Kind.ADD) else None

    def connected(self, rng: random.Random) -> "Threaded":
        """A client that knows all nodes."""
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
    """Clients on threads, one client for each thread: a thread may close a shared client's socket while another thread
    reads from it. (redis-py's client for asyncio leaves connections open when nodes go.)
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
        """The operation with its answer. Raises what redis-py raises."""
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
        # Not `delete`: redis-py sends it as a pipeline, and would repeat it after an error, with another count.
        return replace(event, done=client.execute_command("DEL", key) == 1)
    is_absent, is_present = event.condition is If.ABSENT, event.condition is If.PRESENT
    ms = None if event.ttl is None else round(event.ttl * 1000)
    return replace(event, done=bool(client.set(key, event.value, nx=is_absent, xx=is_present, px=ms)))


def _outcome_of(error: Exception) -> Outcome:
    """The outcome of a write with this error."""
    if isinstance(error, (TryAgainError, ClusterDownError)) or str(error).startswith("NOREPLICAS"):
        return Outcome.REFUSED
    if isinstance(error, ResponseError) and (named := _CODE.match(str(error))) and named[1] in Code.__members__:
        return outcome_of(MinkaError(Code[named[1]], str(error)))
    return Outcome.UNKNOWN if _was_sent(error) else Outcome.REFUSED


def _was_sent(error: BaseException | None) -> bool:
    """False if nothing was sent, because no connection could be made."""
    if error is None:
        return False
    if isinstance(error, RedisClusterException):  # it names no cause, or that no node was found after another error
        return error.__context__ is None or _was_sent(error.__context__) or _was_sent(error.__cause__)
    return " connecting to " not in str(error)
