"""Clients that read, write and delete a few keys at the same time, and record what they see."""

import asyncio
import random
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import uvloop

import minka
from minka.errors import Code, MinkaError
from tests.cluster.cluster import eventually
from tests.cluster.linearizability import Event, Kind, Outcome

# Each client has connections of its own, as if it were another process. The tasks of a client share its connections, so
# their requests share frames.
CLIENTS: Final = 3
TASKS: Final = 4
TIMEOUTS_S: Final = (0.3, 0.7, 2.0)
PAUSE_S: Final = 0.015  # the longest pause between a task's operations; shorter pauses hardly find more errors
STOP_S: Final = 30.0
MAX_EVENTS: Final = 100_000
# For each kind of request: its kind, whether it deletes, and its share of all requests in percent.
_MIX: Final = ((Kind.READ, False, 40), (Kind.STALE_READ, False, 15), (Kind.WRITE, False, 38), (Kind.WRITE, True, 7))
_NOTHING_WAS_SENT: Final = frozenset({Code.TOO_LARGE, Code.INVALID_ARGUMENT, Code.UNKNOWN_KEYSPACE})


_Result = TypeVar("_Result")


class Loop:
    """One event loop, on its own thread, for all clients of a test module. A loop for each test would be closed again,
    and gRPC complains about each closed loop.
    """

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="clients")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Start some work on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)


def outcome_of(error: MinkaError) -> Outcome:
    """Return the outcome of a write that failed with this error. A retriable code promises that the node did nothing;
    most other codes don't.
    """
    surely_not = error.code.info.retriable or error.code in _NOTHING_WAS_SENT
    return Outcome.REFUSED if surely_not else Outcome.UNKNOWN


class Seen(Protocol):
    """Fields that every recorded operation has."""

    @property
    def key(self) -> bytes: ...
    @property
    def called(self) -> float: ...
    @property
    def outcome(self) -> Outcome: ...


_Event = TypeVar("_Event", bound=Seen)


class Workers(Generic[_Event]):
    """Clients that send requests from the beginning of the `with` block until `stop`, and record them in `events`.

    An event has two times of CLOCK_MONOTONIC: before the call, and after the client has read the answer. If the answer
    says that the operation was done, the operation took effect between these times.
    """

    def __init__(self, loop: Loop, endpoints: Sequence[str], keyspace: str, keys: Sequence[bytes], seed: int) -> None:
        self.events: list[_Event] = []
        self._loop = loop
        self._endpoints = endpoints
        self.keyspace = keyspace
        self.keys = list(keys)
        self._seed = seed
        self._stopped = False
        self._work: Future[None] | None = None

    def __enter__(self) -> Self:
        self._work = self._loop.start(self._clients())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stopped = True
        assert self._work is not None, "it was entered"
        if error is None:
            self._work.result(STOP_S)
        else:
            wait([self._work], STOP_S)

    def stop(self) -> list[_Event]:
        """Stop the clients, and return the history. If a client met an unexpected error, raises this error."""
        self.__exit__(None, None, None)
        return self.events

    def wait_written(self) -> None:
        """Wait until clients have written and read every key successfully since the beginning of this call."""
        since = time.monotonic()
        eventually("every key is written and read", lambda: not self.missing(since))

    def missing(self, since: float) -> set[tuple[bytes, bool]]:
        """Return (key, True) for each key without a successful write that began after `since`, and (key, False) for
        each key without a successful read that began after `since`.
        """
        assert self._work is not None, "it was entered"
        if self._work.done():
            self._work.result()
        done = [event for event in list(self.events) if event.outcome is Outcome.OK and event.called >= since]
        shown = {(event.key, bool(writes)) for event in done if (writes := self.writes(event)) is not None}
        return {(key, writes) for key in self.keys for writes in (False, True)} - shown

    def writes(self, event: _Event) -> bool | None:
        """True if the call was a write, False if it was a read; None if the event counts as neither."""
        raise NotImplementedError

    def connected(self, rng: random.Random) -> Any:
        """Make a client, which connects to the cluster."""
        return minka.AsyncClient(self._endpoints, keyspace=self.keyspace, rng=rng)

    async def act(self, client: Any, name: str, rng: random.Random, value: bytes) -> None:
        """Send one request, and record the result. `value` is unique."""
        raise NotImplementedError

    async def _clients(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/{number}")
        client = self.connected(rng)
        async with client, asyncio.TaskGroup() as group:
            for task in range(TASKS):
                group.create_task(self._task(client, f"{number}.{task}"))

    async def _task(self, client: Any, name: str) -> None:
        rng = random.Random(f"{self._seed}/{name}")
        count = 0
        while not self._stopped:
            count += 1
            await self.act(client, name, rng, f"{self._seed}/{name}/{count}".encode())
            assert len(self.events) <= MAX_EVENTS, "the history grows without end"
            await asyncio.sleep(rng.random() * PAUSE_S)


class Recorder(Workers[Event]):
    """Clients that read, write and delete. No two writes have the same value."""

    def writes(self, event: Event) -> bool | None:
        """True for a write, False for a read; None for a stale read, which counts as neither."""
        return None if event.kind is Kind.STALE_READ else event.kind is Kind.WRITE

    async def act(self, client: minka.AsyncClient, name: str, rng: random.Random, value: bytes) -> None:
        """Send a request of a random kind; some kinds come more often."""
        kind, deletes, _ = rng.choices(_MIX, weights=[weight for _, _, weight in _MIX])[0]
        written = value if kind is Kind.WRITE and not deletes else None
        await self._one(client, name, kind, rng.choice(self.keys), written, rng.choice(TIMEOUTS_S))

    async def _one(
        self, client: minka.AsyncClient, name: str, kind: Kind, key: bytes, value: bytes | None, timeout: float
    ) -> None:
        outcome, note, age = Outcome.OK, name, 0.0
        called = time.monotonic()
        try:
            if kind is Kind.READ:
                value = await client.get(key, timeout=timeout)
            elif kind is Kind.STALE_READ:
                found = await client.get_stale(key, timeout=timeout)
                value, age = found.value, found.age
            elif value is None:
                await client.delete(key, timeout=timeout)
            else:
                await client.put(key, value, timeout=timeout)
        except MinkaError as error:
            outcome, note = outcome_of(error), f"{name}: {error}"
        self.events.append(Event(key, kind, value, called, time.monotonic(), outcome, note, age))
