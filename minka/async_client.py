"""Minka's client for asyncio.

async with minka.AsyncClient(["athens:7400", "byzantium:7400"], keyspace="flights") as client:
    await client.put("UA1545", b"EWR-IAH")
    value = await client.get("UA1545")
"""

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from random import Random
from types import EllipsisType, TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar, cast, overload

from minka.cluster.key_ranges import MAX_KEY_BYTES, KeyRange
from minka.cluster.name_rules import keyspace_problem
from minka.contexts import given_or_resolved
from minka.engine import operate
from minka.engine.arguments import checked_text, checked_timeout, invalid, items, utf8
from minka.engine.batch_error import Failure, error_of_one, shown_key
from minka.engine.call import Call
from minka.engine.core import Core
from minka.engine.grpc_calls import clipped
from minka.engine.lane import FRAME_BYTES
from minka.engine.operate import OPERATION_BYTES, VersionedValue, Written
from minka.engine.own_node import OwnNode
from minka.engine.scan_pages import rows_of, scan_pages
from minka.errors import Code, MinkaError
from minka.tls import Tls
from minka.wire.key_operations import Add, Expire, Lifetime, Outcome, Set
from minka.wire.kv_frames import MAX_BODY_BYTES, MAX_KEYS, MAX_VALUE_BYTES, Op

Key = bytes | str
AnyKey = TypeVar("AnyKey", bytes, str, Key)

OneKey = Set | Add | Expire

_OWN: Final = "_"  # the names of the cluster's own keyspaces begin with this
_OWN_REFRESH_S: Final = 10.0
_OWN_TIMEOUT_S: Final = 5.0


class StaleValue(NamedTuple):
    """The result of `get_stale`."""

    value: bytes | None  # None: the replica has no value for the key
    age: float  # in seconds: the value may lack only writes that are younger than this at the time of the read


class _Operations:
    """The reads and writes that `AsyncClient` and `AsyncKeyspace` share. `AsyncClient` describes their arguments,
    promises and errors.
    """

    def __init__(self, core: Core, name: str | None, timeout: float) -> None:
        self._core: Final = core
        self._name: Final = name
        self._timeout: Final = timeout

    @overload
    async def put(self, key: Key, value: bytes, *, ttl: None = ..., timeout: float | None = ...) -> None: ...

    @overload
    async def put(self, key: Key, value: bytes, *, ttl: float | timedelta, timeout: float | None = ...) -> Written: ...

    @overload
    async def put(
        self,
        key: Key,
        value: bytes,
        *,
        if_absent: Literal[True],
        ttl: float | timedelta | None = ...,
        timeout: float | None = ...,
    ) -> Written: ...

    @overload
    async def put(
        self,
        key: Key,
        value: bytes,
        *,
        if_value: bytes,
        ttl: float | timedelta | None = ...,
        timeout: float | None = ...,
    ) -> Written: ...

    @overload
    async def put(
        self,
        key: Key,
        value: bytes,
        *,
        if_version: int,
        ttl: float | timedelta | None = ...,
        timeout: float | None = ...,
    ) -> Written: ...

    async def put(
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
        if type(value) is not bytes:
            raise MinkaError(Code.INVALID_ARGUMENT, f"the value is {type(value).__name__}, not bytes")
        if type(if_absent) is not bool:
            raise MinkaError(Code.INVALID_ARGUMENT, f"if_absent is {type(if_absent).__name__}, not bool")
        if not if_absent and if_value is ... and if_version is None and ttl is None:
            await self._one(Op.WRITE, _bytes(key), value, timeout)
            return None
        operation = operate.conditional_set(_bytes(key), value, if_absent, if_value, if_version, ttl)
        outcome = await self._operate(operation, (value, operation.expected), timeout)
        return Written(outcome.done, outcome.version)

    async def get(self, key: Key, *, timeout: float | None = None) -> bytes | None:
        """The value of a key, read at its partition's leader; None if the key has no value."""
        key = _bytes(key)
        return cast(bytes | None, (await self._one(Op.READ, key, None, timeout)).found[key])

    async def get_versioned(self, key: Key, *, timeout: float | None = None) -> VersionedValue | None:
        """The value of a key with its version and expiry time; None if the key has no value."""
        key = _bytes(key)
        found = (await self._one(Op.READ_VERSIONED, key, None, timeout)).found[key]
        return None if found is None else operate.versioned_value(found)

    async def get_stale(self, key: Key, *, timeout: float | None = None) -> StaleValue:
        """The value of a key from any in-sync replica, and the greatest age that the value may have. This also works
        while the partition has no leader, and while most nodes are down.

        For a moment after `put` has returned, a follower may still return the former value. The age is then greater
        than the time since `put` returned. While the partition has no leader, the age grows. Raises AGE_UNKNOWN if no
        replica that answers knows the age of its data, for example after restarts of the nodes.
        """
        key = _bytes(key)
        call = await self._one(Op.READ_STALE, key, None, timeout)
        return StaleValue(call.found[key], call.age_ms / 1000)

    @overload
    async def delete(self, key: Key, *, timeout: float | None = ...) -> None: ...

    @overload
    async def delete(self, key: Key, *, if_value: bytes, timeout: float | None = ...) -> Written: ...

    @overload
    async def delete(self, key: Key, *, if_version: int, timeout: float | None = ...) -> Written: ...

    async def delete(
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
        if if_value is ... and if_version is None:
            await self._one(Op.WRITE, _bytes(key), None, timeout)
            return None
        operation = operate.conditional_set(_bytes(key), None, False, if_value, if_version, None)
        outcome = await self._operate(operation, (operation.expected,), timeout)
        return Written(outcome.done, outcome.version)

    async def increment(self, key: Key, by: int = 1, *, timeout: float | None = None) -> int:
        """Add to the decimal number that is the key's value, and return the sum; a key without a value counts as 0. The
        key's expiry stays as it is. Raises NOT_A_NUMBER if the value or the sum isn't a signed number of 64 bits.

        A call that returns has added exactly once; a call whose outcome is unknown has added once or not at all.
        """
        operation = operate.add(_bytes(key), by)
        return (await self._operate(operation, (), timeout)).number

    async def expire(self, key: Key, ttl: float | timedelta, *, timeout: float | None = None) -> bool:
        """Let a key expire after `ttl` (seconds, or a timedelta), by the leader's clock. Returns True if the key has a
        value.
        """
        return (await self._operate(operate.expire(_bytes(key), ttl), (), timeout)).done

    async def persist(self, key: Key, *, timeout: float | None = None) -> bool:
        """Remove a key's expiry, so that the key stays. Returns True if the key had a value that would expire."""
        return (await self._operate(operate.persist(_bytes(key)), (), timeout)).done

    async def ttl(self, key: Key, *, timeout: float | None = None) -> float | None:
        """The seconds until a key expires, by this machine's clock: infinite if it never expires; None if the key has
        no value.
        """
        found = await self.get_versioned(key, timeout=timeout)
        return None if found is None else found.seconds_left()

    async def put_many(
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
        batch = _batch(pairs)
        if not set(map(type, batch.values())) <= {bytes}:
            bad = next(key for key, value in batch.items() if type(value) is not bytes)
            name = type(batch[bad]).__name__
            raise MinkaError(Code.INVALID_ARGUMENT, f"the value of {shown_key(bad)} is {name}, not bytes")
        if ttl is None:
            await self._write_many(Op.WRITE, batch, batch.values(), timeout)
            return
        ms = operate.milliseconds(ttl)
        sets = {key: Set(key, value, lifetime=Lifetime.FOR, ms=ms) for key, value in batch.items()}
        await self._write_many(Op.OPERATE, sets, batch.values(), timeout)

    async def delete_many(self, keys: Iterable[Key], *, timeout: float | None = None) -> None:
        """Remove many keys. `put_many` describes the limits, and the result if a part of the batch fails."""
        await self._write_many(Op.WRITE, dict.fromkeys(_keys(_listed(keys))), (), timeout)

    async def get_many(self, keys: Iterable[AnyKey], *, timeout: float | None = None) -> dict[AnyKey, bytes]:
        """A dict of the values of many keys (up to a million, and up to 32 MiB of keys). A key is in the dict as it was
        given, bytes or str; a key without a value is left out.
        """
        return cast(dict[AnyKey, bytes], await self._read_many(Op.READ, _listed(keys), timeout))

    async def get_many_versioned(
        self, keys: Iterable[AnyKey], *, timeout: float | None = None
    ) -> dict[AnyKey, VersionedValue]:
        """The same as `get_many`, but with the values' versions and expiry times."""
        found = await self._read_many(Op.READ_VERSIONED, _listed(keys), timeout)
        return {key: operate.versioned_value(value) for key, value in found.items()}

    def scan(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        limit: int | None = None,
        reverse: bool = False,
        timeout: float | None = None,
    ) -> AsyncGenerator[tuple[bytes, bytes], None]:
        """The pairs with start <= key < end in the order of their keys, at most `limit` of them. With `reverse` the
        pairs come in descending order, but `start` is still the lower bound. An empty bound means no bound. Bounds
        with no key between them, such as "z" and "a", give no pairs. This call checks only its arguments; asking for
        the first pair raises UNKNOWN_KEYSPACE, and NOT_BY_RANGES for a keyspace by hash.

        A scan asks only the partitions with keys between the bounds, page by page, and reads some pages ahead. Each
        page has its leader's data of one moment after the call began. Each key comes at most once, even if partitions
        are split or moved during the scan. The scan as a whole isn't a snapshot. `timeout`, in seconds, holds for each
        page. A caller that stops early should close the scan (`contextlib.aclosing`), so that nothing more is read
        ahead.
        """
        return rows_of(self.scan_pages(start, end, limit=limit, reverse=reverse, timeout=timeout))

    def scan_pages(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        limit: int | None = None,
        reverse: bool = False,
        timeout: float | None = None,
    ) -> AsyncGenerator[list[tuple[bytes, bytes]], None]:
        """The pairs of `scan`, in lists, as they arrive from the nodes. No list is empty."""
        if limit is not None and (type(limit) is not int or limit < 1):
            raise MinkaError(Code.INVALID_ARGUMENT, f"limit={clipped(repr(limit))} isn't a positive int")
        if type(reverse) is not bool:
            raise MinkaError(Code.INVALID_ARGUMENT, f"reverse={clipped(repr(reverse))} isn't a bool")
        timeout = self._chosen_timeout(timeout)
        wanted = KeyRange(_bytes(start), _bytes(end))
        return scan_pages(self._core, self._checked_name(), wanted, limit, reverse, timeout)

    async def _one(self, op: Op, key: bytes, value: bytes | None, timeout: float | None) -> Call:
        size = _checked_size((key,), (value or b"",))
        call = await self._begin(op, timeout)
        call.add(call.routes.place(key), [key], [value] if op is Op.WRITE else None, size)
        await call.outcome(1)
        return call

    async def _operate(self, operation: OneKey, values: Collection[bytes], timeout: float | None) -> Outcome:
        """The outcome of an operation on one key. Raises NOT_A_NUMBER, TOO_LARGE, and the errors of a write."""
        key = operation.key
        size = _checked_size((key,), values) + OPERATION_BYTES
        call = await self._begin(Op.OPERATE, timeout)
        call.add(call.routes.place(key), [key], [operation], size, alone=size > FRAME_BYTES)
        await call.outcome(1)
        outcome: Outcome = call.found[key]
        if (refusal := operate.refusal(outcome)) is not None:
            raise error_of_one(Failure((key,), call.node, call.address, refusal))
        return outcome

    async def _read_many(self, op: Op, given: list[AnyKey], timeout: float | None) -> dict[AnyKey, Any]:
        """The answers, by the keys as the caller gave them; keys without an answer are left out."""
        timeout = self._chosen_timeout(timeout)
        unique = list(dict.fromkeys(_keys(given)))
        if not unique:
            return {}
        size = _checked_size(unique, ())
        call = await self._begin(op, timeout)
        for place, keys_there in call.routes.key_buckets(unique):
            if size <= FRAME_BYTES:
                call.add(place, keys_there, None, size * len(keys_there) // len(unique))
            else:
                _add_in_pieces(call, place, keys_there, None, 0)
        await call.outcome(len(unique))
        found = call.found
        if set(map(type, given)) <= {bytes}:
            return cast(dict[AnyKey, Any], {key: value for key, value in found.items() if value is not None})
        values = ((key, found[_bytes(key)]) for key in given)
        return {key: value for key, value in values if value is not None}

    async def _write_many(
        self, op: Op, batch: Mapping[bytes, Any], values: Collection[bytes], timeout: float | None
    ) -> None:
        """Write the batch. It maps each key to a value, to None (a delete), or to an operation."""
        timeout = self._chosen_timeout(timeout)
        if not batch:
            return
        extra = OPERATION_BYTES if op is Op.OPERATE else 0
        size = _checked_size(batch, values) + extra * len(batch)
        call = await self._begin(op, timeout)
        for bucket in call.routes.pair_buckets(batch):
            if size <= FRAME_BYTES:
                call.add(bucket.place, bucket.keys, bucket.values, size * len(bucket.keys) // len(batch))
            else:
                _add_in_pieces(call, bucket.place, bucket.keys, bucket.values, extra)
        await call.outcome(len(batch))

    async def _begin(self, op: Op, timeout: float | None) -> Call:
        return await self._core.begin(self._checked_name(), op, self._chosen_timeout(timeout))

    def _chosen_timeout(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else checked_timeout(timeout)

    def _checked_name(self) -> str:
        if self._name is None:
            raise MinkaError(
                Code.INVALID_ARGUMENT, "no keyspace: make the client with keyspace=…, or use client.keyspace(name)"
            )
        return self._name


class AsyncKeyspace(_Operations):
    """A handle on one keyspace, from `AsyncClient.keyspace`. It uses its client's connections."""

    @property
    def name(self) -> str:
        """The keyspace's name."""
        return self._checked_name()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class AsyncClient(_Operations):
    """A client of one cluster. It connects with its first call, and belongs to the event loop of that call. In another
    loop, calls raise INVALID_ARGUMENT; `close` raises it, too, unless the client's loop is closed.

    `endpoints` are addresses host:port of some of the nodes; these nodes name the others. Without `endpoints` the
    client uses the cluster of `context`, or the cluster that `minkactl` would use (see `minka.connect`). `keyspace`
    names the keyspace that the client's own put, get, … work on; `keyspace(name)` gives handles on other keyspaces. A
    keyspace's name has 1 to 63 characters (a-z, 0-9, _ and -), and begins with a letter. `timeout`, in seconds, holds
    for every call without a `timeout` of its own. The partition table is fetched again about every `refresh_interval`
    seconds, and whenever a node's refusal hints at a newer table. `rng` makes the client's random choices (the node to
    ask first, the jitter of pauses); tests seed it. `tls` is for a cluster with TLS; its files are read at once, and a
    mistake in them raises INVALID_CONFIG. If `endpoints` are given, MINKA_TLS_CA, _CERT and _KEY are ignored: only
    `tls` counts.

    Keys are bytes objects of 1 to 65,536 bytes; a str stands for its UTF-8 form. Values are bytes objects of up to 16
    MiB. Every call finishes within its `timeout`, in seconds up to 10**12 (None: the client's `timeout`). Calls raise
    `MinkaError`; a batch raises `BatchError`, which names the keys that failed, their nodes and the reasons. The codes
    are:

    - OUTCOME_UNKNOWN, DEADLINE_EXCEEDED: a write may or may not have been done. The library never repeats such a write,
      since somebody else's write may have come in between. Reads are repeated until the deadline.
    - TOO_LARGE, INVALID_ARGUMENT, UNKNOWN_KEYSPACE: nothing was done.
    - UNREACHABLE, if the client has never had a partition table: the client could connect to none of the endpoints. The
      call raises this at once, without waiting for its deadline.
    - Any other code is the last answer of a node, or says that the node gave no answer. If a repetition was safe, the
      library has repeated the call until the deadline.

    A node serves reads and writes only while it hears an active controller, which needs a majority of the voters. While
    this majority is down, all calls fail except `get_stale`, which any replica that is up can answer.

    If a coroutine that writes is cancelled, the write may or may not have been done.

    A key can't be watched: read it again, or follow all changes of a keyspace with `minka.spark`.
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
        endpoints, tls = given_or_resolved(endpoints, tls, context)
        core = Core(endpoints, checked_timeout(refresh_interval, "refresh_interval"), rng or Random(), tls)
        super().__init__(core, None if keyspace is None else _checked_keyspace(keyspace), checked_timeout(timeout))

    def keyspace(self, name: str) -> AsyncKeyspace:
        """A handle on the keyspace of this name. Raises INVALID_ARGUMENT for a name that no keyspace can have. If the
        keyspace doesn't exist, the handle's first call raises UNKNOWN_KEYSPACE.
        """
        return AsyncKeyspace(self._core, _checked_keyspace(name), self._timeout)

    async def close(self) -> None:
        """Close the connections. Calls under way end: a write that was sent raises OUTCOME_UNKNOWN, any other call
        UNREACHABLE. The client can't be used again.
        """
        await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


class OwnKeyspace(AsyncKeyspace):
    """A handle on one of the cluster's own keyspaces, which `AsyncClient.keyspace` refuses. Only nodes use this. The
    handle has its own connections; requests to `own_node` need none.
    """

    def __init__(self, name: str, endpoints: Sequence[str], tls: Tls | None, own_node: OwnNode | None = None) -> None:
        super().__init__(Core(endpoints, _OWN_REFRESH_S, Random(), tls, own_node), name, _OWN_TIMEOUT_S)

    async def close(self) -> None:
        """Close the connections, as `AsyncClient.close` does."""
        await self._core.close()


def _bytes(key: Key) -> bytes:
    if isinstance(key, str):
        return utf8(key, "key")
    if type(key) is not bytes:
        raise MinkaError(Code.INVALID_ARGUMENT, f"a key is {type(key).__name__}, not bytes or str")
    return key


def _listed(keys: Iterable[AnyKey]) -> list[AnyKey]:
    return list(items(keys, "several keys"))


def _keys(keys: Sequence[Key]) -> list[bytes]:
    return cast(list[bytes], keys) if set(map(type, keys)) <= {bytes} else [_bytes(key) for key in keys]


def _batch(pairs: Mapping[Any, bytes] | Iterable[tuple[Any, bytes]]) -> dict[bytes, bytes]:
    # The caller's iterator runs outside of `try`, so that its own errors stay as they are.
    given: Any = pairs if hasattr(pairs, "keys") else list(items(pairs, "pairs of keys and values"))
    try:
        batch = dict(given)
    except (TypeError, ValueError) as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"pairs of keys and values are wanted: {error}") from None
    if set(map(type, batch)) <= {bytes}:
        return batch
    return {_bytes(key): value for key, value in batch.items()}


def _checked_size(keys: Collection[bytes], values: Collection[bytes]) -> int:
    """The total size of the keys and values, in bytes. Raises TOO_LARGE and INVALID_ARGUMENT."""
    if len(keys) > MAX_KEYS:
        raise MinkaError(Code.TOO_LARGE, f"the batch has {len(keys)} keys; {MAX_KEYS} is the limit")
    if b"" in keys:
        raise MinkaError(Code.INVALID_ARGUMENT, "a key is empty")
    if (longest := max(map(len, keys))) > MAX_KEY_BYTES:
        bad = shown_key(next(key for key in keys if len(key) > MAX_KEY_BYTES))
        raise MinkaError(Code.TOO_LARGE, f"key {bad} has {longest} bytes; {MAX_KEY_BYTES} is the limit")
    if (largest := max(map(len, values), default=0)) > MAX_VALUE_BYTES:
        raise MinkaError(Code.TOO_LARGE, f"a value has {largest} bytes; {MAX_VALUE_BYTES} is the limit")
    total = sum(map(len, keys)) + sum(map(len, values))
    # One key and its value are never that large, so a call with a single key also has an if_value. This call travels as
    # one body, with the rest of the operation; a batch travels in pieces.
    what, limit = "the batch has", MAX_BODY_BYTES
    if len(keys) == 1:
        what, limit = "the key, the value and if_value together have", MAX_BODY_BYTES - OPERATION_BYTES
    if total > limit:
        raise MinkaError(Code.TOO_LARGE, f"{what} {total} bytes; {limit} is the limit")
    return total


def _checked_keyspace(name: Any) -> str:
    """The name of a keyspace. Raises INVALID_ARGUMENT for a name that no keyspace can have, or that is one of the
    cluster's own.
    """
    if isinstance(name, str) and name.startswith(_OWN):
        raise invalid(
            f"keyspace {clipped(repr(name))} is the cluster's own, as are all keyspaces whose names begin with {_OWN}"
        )
    return checked_text(name, "the name of a keyspace", keyspace_problem)


def _add_in_pieces(call: Call, place: int, keys: list[bytes], values: list[Any] | None, extra: int) -> None:
    """Add a large batch, or the keys of a large read, in pieces: each fills a frame, several are under way at once, and
    none is over the limit of a body. The size of a piece counts `extra` bytes for each key, in addition to the key and
    its value.
    """
    start, size = 0, 0
    for end, (key, value) in enumerate(zip(keys, values or [b""] * len(keys), strict=True), 1):
        size += len(key) + len((value.value if extra else value) or b"") + extra
        if size >= FRAME_BYTES or end == len(keys):
            call.add(place, keys[start:end], values and values[start:end], size)
            start, size = end, 0
