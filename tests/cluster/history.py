"""Clients that read, write and delete a few keys at the same time, and remember what they saw."""

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import uvloop

import minka.aio
from minka.errors import Code, MinkaError
from tests.cluster.cluster import eventually
from tests.cluster.linearizability import Event, Kind, Outcome

# Each with connections of its own, as separate processes have; its tasks share them and travel in common frames.
CLIENTS: Final = 3
TASKS: Final = 3
TIMEOUTS_S: Final = (0.4, 1.0, 2.5)
PAUSE_S: Final = 0.015  # at most, between two operations of a task; longer histories say little more
MAX_EVENTS: Final = 100_000
_READS, _PUTS = 0.5, 0.42  # shares; the rest are deletes
_NOTHING_WAS_SENT: Final = frozenset({Code.TOO_LARGE, Code.INVALID_ARGUMENT, Code.UNKNOWN_KEYSPACE})


def outcome_of(error: MinkaError) -> Outcome:
    """What an error says of a write: a retriable code promises that nothing was done, others don't."""
    surely_not = error.code.info.retriable or error.code in _NOTHING_WAS_SENT
    return Outcome.REFUSED if surely_not else Outcome.UNKNOWN


class Recorder:
    """Works on `keys` from entering until `stop`; `events` is what was seen until then.

    Values are unique. Times are those of CLOCK_MONOTONIC: before the call, and after its answer was read, so that an
    operation takes effect between the two, if at all.
    """

    def __init__(self, endpoints: Sequence[str], keyspace: str, keys: Sequence[bytes], seed: int) -> None:
        self.events: list[Event] = []
        self._endpoints = endpoints
        self._keyspace = keyspace
        self._keys = list(keys)
        self._seed = seed
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="recorder")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def stop(self) -> list[Event]:
        """End the work; the history. Raises what a client stumbled over."""
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "a client hangs"
        if self._error is not None:
            raise self._error
        return self.events

    def wait_written(self) -> None:
        """Until every key was written and read with success once more, from now on."""
        since = time.monotonic()
        eventually("every key is written and read", lambda: not self.missing(since))

    def missing(self, since: float) -> set[tuple[bytes, Kind]]:
        """The keys that were not written, or not read, with success by a call from `since` on."""
        if self._error is not None:
            raise self._error
        done = {(e.key, e.kind) for e in list(self.events) if e.outcome is Outcome.OK and e.called >= since}
        return {(key, kind) for key in self._keys for kind in Kind} - done

    def _run(self) -> None:
        try:
            uvloop.run(self._clients())
        except BaseException as error:  # noqa: BLE001  # raised again in the test's own thread
            self._error = error

    async def _clients(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/{number}")
        client = minka.aio.Client(self._endpoints, keyspace=self._keyspace, rng=rng)
        async with client, asyncio.TaskGroup() as group:
            for task in range(TASKS):
                group.create_task(self._work(client, f"{number}.{task}"))

    async def _work(self, client: minka.aio.Client, name: str) -> None:
        rng = random.Random(f"{self._seed}/{name}")
        count = 0
        while not self._stop.is_set():
            count += 1
            choice = rng.random()
            value = f"{self._seed}/{name}/{count}".encode() if choice < _READS + _PUTS else None
            kind = Kind.READ if choice < _READS else Kind.WRITE
            await self._one(client, name, kind, rng.choice(self._keys), value, rng.choice(TIMEOUTS_S))
            await asyncio.sleep(rng.random() * PAUSE_S)

    async def _one(
        self, client: minka.aio.Client, name: str, kind: Kind, key: bytes, value: bytes | None, timeout: float
    ) -> None:
        outcome, note = Outcome.OK, name
        called = time.monotonic()
        try:
            if kind is Kind.READ:
                value = await client.get(key, timeout=timeout)
            elif value is None:
                await client.delete(key, timeout=timeout)
            else:
                await client.put(key, value, timeout=timeout)
        except MinkaError as error:
            outcome, note = outcome_of(error), f"{name}: {error}"
        self.events.append(Event(key, kind, value, called, time.monotonic(), outcome, note))
        assert len(self.events) <= MAX_EVENTS, "the history grows without end"
