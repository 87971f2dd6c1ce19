"""The payloads of duties, in a keyspace of the cluster's own, under ids that are never used again.

A node stores a payload before it proposes the record that names the payload. Payloads never change. When no row names
a payload any longer, the node that has replaced the payload or deleted its duty deletes it a little later. If that
fails, a sweep at the active controller's node deletes it.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from minka.async_client import OwnKeyspace
from minka.errors import Code, MinkaError
from minka.v1.duties_pb2 import Duty
from minkad.core.state import slices
from minkad.process import tasks
from minkad.process.clock import boottime, unix_ms
from minkad.process.turns import turn

log: Final = logging.getLogger(__name__)

ID_BYTES: Final = 16
_TIME_BYTES: Final = 8  # of an id: Unix milliseconds; the rest is random
_PAUSE_S: Final = 0.05  # before a write is repeated
_LOOK_S: Final = 1.0
_DELETE_TIMEOUT_S: Final = 10.0
_DELETE_AFTER_S: Final = 10.0  # for this long a node that lags may still read the replaced payload
_MAX_DOOMED: Final = 100_000  # the sweep finds the rest
_SWEEP_EVERY_S: Final = 3600.0
_SWEEP_OLDER_MS: Final = 3_600_000  # far longer than any request takes from storing a payload to naming it
_ROWS_A_PIECE: Final = 5_000


class PayloadStore:
    """Reads and writes like any client, but directly where this node leads. It connects at its first use."""

    def __init__(self, connect: Callable[[], OwnKeyspace]) -> None:
        """`connect` makes a handle on the keyspace of the payloads, with the present certificates."""
        self._connect = connect
        self._keyspace: OwnKeyspace | None = None
        self._closing: set[asyncio.Task[None]] = set()
        # Payloads to delete: from which time on (in seconds of `boottime`), the duty's number, the payload's id.
        self._doomed: deque[tuple[float, int, bytes]] = deque()

    async def put_many(self, payloads: Sequence[bytes], timeout: float) -> list[bytes]:
        """Store payloads durably. Returns their ids; an empty payload also has an id, but isn't stored. `timeout` in
        seconds.

        Raises MinkaError; then some payloads may be stored that no row will name.
        """
        ids = [new_id(unix_ms()) for _ in payloads]
        pairs = {_key(id_): payload for id_, payload in zip(ids, payloads, strict=True) if payload}
        until = boottime() + timeout
        while pairs:
            try:
                await self._connected().put_many(pairs, timeout=max(until - boottime(), _PAUSE_S))
                break
            except MinkaError as error:
                # Nobody else knows these keys, so it is safe to write again. An unknown keyspace was just created.
                again = error.code.info.retriable or error.code in (Code.OUTCOME_UNKNOWN, Code.UNKNOWN_KEYSPACE)
                if not again or boottime() + _PAUSE_S >= until:
                    raise
            await asyncio.sleep(_PAUSE_S)
        return ids

    async def get_many(self, ids: Iterable[bytes], timeout: float) -> dict[bytes, bytes]:
        """The existing payloads, by id; the others were replaced or deleted meanwhile. `timeout` in seconds."""
        keys = [_key(id_) for id_ in ids]
        if not keys:
            return {}
        found = await self._connected().get_many(keys, timeout=timeout)
        return {_id(key): payload for key, payload in found.items()}

    def delete_later(self, payloads: Iterable[tuple[int, bytes]]) -> None:
        """Delete these payloads (duty's number, payload's id) when no row names them. If this fails, the sweep finds
        them.
        """
        due = boottime() + _DELETE_AFTER_S
        for number, id_ in payloads:
            if len(self._doomed) < _MAX_DOOMED:
                self._doomed.append((due, number, id_))

    async def run(self, duties: Callable[[], Mapping[int, Duty]], is_active: Callable[[], bool]) -> None:
        """Delete payloads that no row names, repeatedly. `duties` returns the committed rows; only the active
        controller's node sweeps.
        """
        next_sweep = boottime() + _SWEEP_EVERY_S
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self.delete_doomed(duties(), boottime())
                if boottime() >= next_sweep and duties() and is_active():
                    next_sweep = boottime() + _SWEEP_EVERY_S
                    await self.sweep(duties, is_active, unix_ms())
            except MinkaError as error:
                log.info("payloads that nothing names were not deleted", extra={"reason": str(error)})

    async def delete_doomed(self, duties: Mapping[int, Duty], now: float) -> None:
        """Delete the payloads that are due. A payload that a row still names waits again: a deleted duty keeps its row
        until its shard has released it. `now` is in seconds of `boottime`. Raises MinkaError.
        """
        due: list[bytes] = []
        while self._doomed and self._doomed[0][0] <= now:
            _, number, id_ = self._doomed.popleft()
            if (row := duties.get(number)) is not None and row.payload_id == id_:
                self._doomed.append((now + _DELETE_AFTER_S, number, id_))
            else:
                due.append(id_)
        for some in slices(due, _ROWS_A_PIECE):
            await self._delete(some)

    async def sweep(self, duties: Callable[[], Mapping[int, Duty]], is_active: Callable[[], bool], now_ms: int) -> int:
        """Delete payloads older than an hour that no row names. Returns their number. Raises MinkaError."""
        old: set[bytes] = set()
        async for page in self._connected().scan_pages(timeout=_DELETE_TIMEOUT_S):
            old.update(id_ for key, _ in page if is_old(id_ := _id(key), now_ms))
        for rows in slices(list(duties().values()), _ROWS_A_PIECE):
            old.difference_update(row.payload_id for row in rows)
            await turn()
        deleted = 0
        for some in slices(sorted(old), _ROWS_A_PIECE):
            if not is_active():  # so the rows here may be out of date
                break
            await self._delete(some)
            deleted += len(some)
        if deleted:
            log.info("deleted payloads that nothing names", extra={"payloads": deleted})
        return deleted

    async def _delete(self, ids: Collection[bytes]) -> None:
        await self._connected().delete_many([_key(id_) for id_ in ids], timeout=_DELETE_TIMEOUT_S)

    def renew(self) -> None:
        """The files of TLS have changed: use them for all new connections."""
        if self._keyspace is not None:
            closing = tasks.start(self._keyspace.close(), "old payload client", tasks.told)
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            self._keyspace = None

    async def close(self) -> None:
        """Close the connections."""
        self.renew()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _connected(self) -> OwnKeyspace:
        if self._keyspace is None:
            self._keyspace = self._connect()
        return self._keyspace


def new_id(now_ms: int) -> bytes:
    """A new id, used by no other payload: the time, then random bytes."""
    return now_ms.to_bytes(_TIME_BYTES, "big") + secrets.token_bytes(ID_BYTES - _TIME_BYTES)


def is_old(id_: bytes, now_ms: int) -> bool:
    """True if the payload's id was made more than an hour ago."""
    return int.from_bytes(id_[:_TIME_BYTES], "big") < now_ms - _SWEEP_OLDER_MS


def _key(id_: bytes) -> bytes:
    """The random bytes come first, so that the writes of a moment go to different partitions."""
    return id_[_TIME_BYTES:] + id_[:_TIME_BYTES]


def _id(key: bytes) -> bytes:
    return key[-_TIME_BYTES:] + key[:-_TIME_BYTES]
