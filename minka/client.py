"""Minka's client for code that isn't asynchronous.

with minka.Client(["athens:7400", "byzantium:7400"], keyspace="flights") as client:
    client.put("UA1545", b"EWR-IAH")
    value = client.get("UA1545")
"""

import os
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from datetime import timedelta
from random import Random
from types import EllipsisType, TracebackType
from typing import Any, Final, Literal, Self, overload

from minka.async_client import AnyKey, AsyncClient, AsyncKeyspace, Key, StaleValue
from minka.engine.loops import ClientLoop
from minka.engine.operate import VersionedValue, Written
from minka.tls import Tls

_Write = Callable[..., Coroutine[Any, Any, Written | None]]


class _Operations:
    """The reads and writes that `Client` and `Keyspace` share. `minka.AsyncClient` describes their arguments, promises
    and errors.
    """

    def __init__(self, handle: AsyncClient | AsyncKeyspace, loop: ClientLoop) -> None:
        self._handle: Final = handle
        self._loop: Final = loop

    @overload
    def put(self, key: Key, value: bytes, *, ttl: None = ..., timeout: float | None = ...) -> None: ...

    @overload
    def put(self, key: Key, value: bytes, *, ttl: float | timedelta, timeout: float | None = ...) -> Written: ...

    @overload
    def put(
        self,
        key: Key,
        value: bytes,
        *,
        if_absent: Literal[True],
        ttl: float | timedelta | None = ...,
        timeout: float | None = ...,
    ) -> Written: ...

    @overload
    def put(
        self,
        key: Key,
        value: bytes,
        *,
        if_value: bytes,
        ttl: float | timedelta | None = ...,
        timeout: float | None = ...,
    ) -> Written: ...

    @overload
    def put(
        self,
        key: Key,
        value: bytes,
        *,
        if_version: int,
        ttl: float | timedelta | None = ...,
        timeout: float | None = ...,
    ) -> Written: ...

    def put(
        self,
        key: Key,
        value: bytes,
        *,
        if_absent: bool = False,
        if_value: bytes | EllipsisType = ...,
        if_version: int | None = None,
        ttl: float | timedelta | None = None,
        timeout: float | None = None,
    ) -> Written | None:
        """Set the value of a key. When this returns, every in-sync replica has the value, as durably as the keyspace's
        `durability` says.

        At most one condition may be given: the key has no value (`if_absent`), it has this value (`if_value`), or it
        has this version (`if_version`; 0: no value; None: no condition). `if_value=None` raises INVALID_ARGUMENT: the
        condition for a key without a value is `if_version=0`. The partition's leader checks the condition together with
        the write. With `ttl` (seconds, or a timedelta) the key expires that long after the write, by the leader's
        clock. Without `ttl` the new value never expires, even if the old value had an expiry.

        With a condition or a `ttl`, this returns `Written`, which is true if the write was done. A condition that
        doesn't hold raises no error (only `minkactl` reports CONDITION_FAILED). A plain put returns None although it
        was done: don't write `if client.put(key, value)`. Raises TOO_LARGE if the key, the value and `if_value` have
        more than 33,554,176 bytes together (32 MiB less 256 bytes).
        """
        put: _Write = self._handle.put
        conditions = {"if_absent": if_absent, "if_value": if_value, "if_version": if_version}
        return self._loop.run(put(key, value, **conditions, ttl=ttl, timeout=timeout))

    def get(self, key: Key, *, timeout: float | None = None) -> bytes | None:
        """The value of a key, read at its partition's leader; None if the key has no value."""
        return self._loop.run(self._handle.get(key, timeout=timeout))

    def get_versioned(self, key: Key, *, timeout: float | None = None) -> VersionedValue | None:
        """The value of a key with its version and expiry time; None if the key has no value."""
        return self._loop.run(self._handle.get_versioned(key, timeout=timeout))

    def get_stale(self, key: Key, *, timeout: float | None = None) -> StaleValue:
        """The value of a key from any in-sync replica, and the greatest age that the value may have. This also works
        while the partition has no leader, and while most nodes are down.

        For a moment after `put` has returned, a follower may still return the former value. The age is then greater
        than the time since `put` returned. While the partition has no leader, the age grows. Raises AGE_UNKNOWN if no
        replica that answers knows the age of its data, for example after restarts of the nodes.
        """
        return self._loop.run(self._handle.get_stale(key, timeout=timeout))

    @overload
    def delete(self, key: Key, *, timeout: float | None = ...) -> None: ...

    @overload
    def delete(self, key: Key, *, if_value: bytes, timeout: float | None = ...) -> Written: ...

    @overload
    def delete(self, key: Key, *, if_version: int, timeout: float | None = ...) -> Written: ...

    def delete(
        self,
        key: Key,
        *,
        if_value: bytes | EllipsisType = ...,
        if_version: int | None = None,
        timeout: float | None = None,
    ) -> Written | None:
        """Remove a key. It isn't an error if the key isn't there.

        With a condition, the key is removed only if it has the value `if_value` (not None), or the version `if_version`
        (0: no value; None: no condition). At most one condition may be given. The result is then `Written`. It is true
        if the condition held: the delete has then left the key without a value. A condition that doesn't hold raises no
        error. A plain delete returns None.
        """
        delete: _Write = self._handle.delete
        return self._loop.run(delete(key, if_value=if_value, if_version=if_version, timeout=timeout))

    def increment(self, key: Key, by: int = 1, *, timeout: float | None = None) -> int:
        """Add to the decimal number that is the key's value, and return the sum; a key without a value counts as 0. The
        key's expiry stays as it is. Raises NOT_A_NUMBER if the value or the sum isn't a signed number of 64 bits.

        A call that returns has added exactly once; a call whose outcome is unknown has added once or not at all.
        """
        return self._loop.run(self._handle.increment(key, by, timeout=timeout))

    def expire(self, key: Key, ttl: float | timedelta, *, timeout: float | None = None) -> bool:
        """Let a key expire after `ttl` (seconds, or a timedelta), by the leader's clock. Returns True if the key has a
        value.
        """
        return self._loop.run(self._handle.expire(key, ttl, timeout=timeout))

    def persist(self, key: Key, *, timeout: float | None = None) -> bool:
        """Remove a key's expiry, so that the key stays. Returns True if the key had a value that would expire."""
        return self._loop.run(self._handle.persist(key, timeout=timeout))

    def ttl(self, key: Key, *, timeout: float | None = None) -> float | None:
        """The seconds until a key expires, by this machine's clock: infinite if it never expires; None if the key has
        no value.
        """
        return self._loop.run(self._handle.ttl(key, timeout=timeout))

    def put_many(
        self,
        pairs: Mapping[AnyKey, bytes] | Iterable[tuple[AnyKey, bytes]],
        *,
        ttl: float | timedelta | None = None,
        timeout: float | None = None,
    ) -> None:
        """Set many keys: up to a million, and up to 32 MiB of keys and values together. If a key is given twice, the
        last value counts.

        In a batch of up to 1 MiB, each partition takes all of its keys or none. A larger batch is sent in pieces,
        and some of the pieces may fail. The batch as a whole isn't atomic. With `ttl` the keys expire, as with `put`.
        """
        self._loop.run(self._handle.put_many(pairs, ttl=ttl, timeout=timeout))

    def get_many(self, keys: Iterable[AnyKey], *, timeout: float | None = None) -> dict[AnyKey, bytes]:
        """A dict of the values of many keys (up to a million, and up to 32 MiB of keys). A key is in the dict as it was
        given, bytes or str; a key without a value is left out.
        """
        return self._loop.run(self._handle.get_many(keys, timeout=timeout))

    def get_many_versioned(
        self, keys: Iterable[AnyKey], *, timeout: float | None = None
    ) -> dict[AnyKey, VersionedValue]:
        """The same as `get_many`, but with the values' versions and expiry times."""
        return self._loop.run(self._handle.get_many_versioned(keys, timeout=timeout))

    def delete_many(self, keys: Iterable[Key], *, timeout: float | None = None) -> None:
        """Remove many keys. `put_many` describes the limits, and the result if a part of the batch fails."""
        self._loop.run(self._handle.delete_many(keys, timeout=timeout))

    def scan(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        limit: int | None = None,
        reverse: bool = False,
        timeout: float | None = None,
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """The pairs with start <= key < end in the order of their keys, at most `limit` of them. With `reverse` the
        pairs come in descending order, but `start` is still the lower bound. An empty bound means no bound. Bounds
        with no key between them, such as "z" and "a", give no pairs. This call checks only its arguments; asking for
        the first pair raises UNKNOWN_KEYSPACE, and NOT_BY_RANGES for a keyspace by hash.

        A scan asks only the partitions with keys between the bounds, page by page, and reads some pages ahead. Each
        page has its leader's data of one moment after the call began. Each key comes at most once, even if partitions
        are split or moved during the scan. The scan as a whole isn't a snapshot. `timeout`, in seconds, holds for each
        page. A caller that stops early should close the scan (`contextlib.closing`), so that nothing more is read
        ahead.
        """
        return self._loop.rows(self, self._handle.scan_pages(start, end, limit=limit, reverse=reverse, timeout=timeout))

    def scan_pages(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        limit: int | None = None,
        reverse: bool = False,
        timeout: float | None = None,
    ) -> Generator[list[tuple[bytes, bytes]], None, None]:
        """The pairs of `scan`, in lists, as they arrive from the nodes. No list is empty."""
        return self._loop.pages(
            self, self._handle.scan_pages(start, end, limit=limit, reverse=reverse, timeout=timeout)
        )


class Keyspace(_Operations):
    """A handle on one keyspace, from `Client.keyspace`. It uses its client's connections."""

    def __init__(self, handle: AsyncKeyspace, loop: ClientLoop) -> None:
        super().__init__(handle, loop)
        self._name: Final = handle.name

    @property
    def name(self) -> str:
        """The keyspace's name."""
        return self._name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Client(_Operations):
    """A client of one cluster, for any number of threads. `minka.AsyncClient` describes the arguments and the errors.

    All clients of a process work on one thread, which the first client starts. In a process that was forked from a
    process with a client, no client can be made or used, since gRPC does not survive a fork.
    """

    def __init__(
        self,
        endpoints: Sequence[str] | None = None,
        *,
        context: str | None = None,
        keyspace: str | None = None,
        timeout: float = 5.0,
        refresh_interval: float = 10.0,
        rng: Random | None = None,
        tls: Tls | None = None,
    ) -> None:
        client = AsyncClient(
            endpoints,
            context=context,
            keyspace=keyspace,
            timeout=timeout,
            refresh_interval=refresh_interval,
            rng=rng,
            tls=tls,
        )
        super().__init__(client, ClientLoop())
        self._client: Final = client
        self._stop: Final = weakref.finalize(self, self._loop.stop, client, os.getpid())

    def keyspace(self, name: str) -> Keyspace:
        """A handle on the keyspace of this name. Raises INVALID_ARGUMENT for a name that no keyspace can have. If the
        keyspace doesn't exist, the handle's first call raises UNKNOWN_KEYSPACE.
        """
        return Keyspace(self._client.keyspace(name), self._loop)

    def close(self) -> None:
        """Close the connections. Calls under way in other threads end: a write that was sent raises OUTCOME_UNKNOWN,
        any other call UNREACHABLE. The client can't be used again.
        """
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
