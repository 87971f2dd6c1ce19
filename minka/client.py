"""Minka's client for code that isn't asynchronous.

with minka.Client(["athens:7400", "byzantium:7400"], keyspace="flights") as client:
    client.put("UA1545", b"EWR-IAH")
    value = client.get("UA1545")
"""

import contextlib
import os
import weakref
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Final, Self

from minka import aio
from minka._loop import ClientLoop
from minka.aio import AnyKey, BatchError, Failure, Key, StaleValue
from minka.errors import MinkaError
from minka.tls import Tls

__all__ = ["BatchError", "Client", "Failure", "Keyspace", "StaleValue"]


class _Operations:
    """Reads and writes by key in one keyspace; see `minka.aio.Client` for what is accepted, promised and raised."""

    def __init__(self, handle: aio.Client | aio.Keyspace, loop: ClientLoop) -> None:
        self._handle: Final = handle
        self._loop: Final = loop

    def put(self, key: Key, value: bytes, *, timeout: float | None = None) -> None:
        """Set the value of a key. It is durable when this returns."""
        self._loop.run(self._handle.put(key, value, timeout=timeout))

    def get(self, key: Key, *, timeout: float | None = None) -> bytes | None:
        """The value of a key, None when it has none."""
        return self._loop.run(self._handle.get(key, timeout=timeout))

    def get_stale(self, key: Key, *, timeout: float | None = None) -> StaleValue:
        """The value of a key as any replica has it, which may be an older one, and how old it may be."""
        return self._loop.run(self._handle.get_stale(key, timeout=timeout))

    def delete(self, key: Key, *, timeout: float | None = None) -> None:
        """Remove a key; one that isn't there counts as removed."""
        self._loop.run(self._handle.delete(key, timeout=timeout))

    def put_many(
        self, pairs: Mapping[AnyKey, bytes] | Iterable[tuple[AnyKey, bytes]], *, timeout: float | None = None
    ) -> None:
        """Set many keys, up to 32 MiB; if a key is given twice, the last value counts.

        Each partition takes its keys as a whole or not at all; the batch as a whole is not atomic.
        """
        self._loop.run(self._handle.put_many(pairs, timeout=timeout))

    def get_many(self, keys: Iterable[AnyKey], *, timeout: float | None = None) -> dict[AnyKey, bytes]:
        """The values of those of the keys that have one, by the keys as they were given."""
        return self._loop.run(self._handle.get_many(keys, timeout=timeout))

    def delete_many(self, keys: Iterable[Key], *, timeout: float | None = None) -> None:
        """Remove many keys; see `put_many`."""
        self._loop.run(self._handle.delete_many(keys, timeout=timeout))

    def scan(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        limit: int | None = None,
        reverse: bool = False,
        timeout: float | None = None,
    ) -> Iterator[tuple[bytes, bytes]]:
        """The pairs with start <= key < end in the order of their keys; see `minka.aio.Client.scan`."""
        pages = self._handle.scan_pages(start, end, limit=limit, reverse=reverse, timeout=timeout)
        try:
            while page := self._loop.run(_next_page(pages)):
                yield from page
        finally:
            with contextlib.suppress(
                MinkaError
            ):  # closed with the client, or by the garbage collection on the loop's thread
                self._loop.run(pages.aclose())


class Keyspace(_Operations):
    """A handle on one keyspace of a client's cluster."""


class Client(_Operations):
    """A client of one cluster, for any number of threads. See `minka.aio.Client` for the arguments.

    The clients of a process work on one thread, which is there from the first one on. In a process that was forked
    from one with a client, none can be made or used: gRPC does not survive a fork.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        keyspace: str | None = None,
        timeout: float = 5.0,
        refresh_interval: float = 10.0,
        rng: Random | None = None,
        tls: Tls | None = None,
    ) -> None:
        client = aio.Client(
            endpoints, keyspace=keyspace, timeout=timeout, refresh_interval=refresh_interval, rng=rng, tls=tls
        )
        super().__init__(client, ClientLoop())
        self._client: Final = client
        self._stop: Final = weakref.finalize(self, self._loop.stop, client, os.getpid())

    def keyspace(self, name: str) -> Keyspace:
        """A handle on the keyspace of this name; whether it exists is seen at the first call."""
        return Keyspace(self._client.keyspace(name), self._loop)

    def close(self) -> None:
        """Close the connections. Calls under way in other threads fail."""
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


async def _next_page(pages: AsyncGenerator[list[tuple[bytes, bytes]], None]) -> list[tuple[bytes, bytes]]:
    return await anext(pages, [])
