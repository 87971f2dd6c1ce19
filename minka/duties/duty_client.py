"""Creating, changing and finding duties, for code that isn't asynchronous.

with minka.duties.Client(["athens:7400", "byzantium:7400"]) as duties:
    duties.create_pallet("feeds")
    duties.create("feeds", "bbc", b"https://www.bbc.co.uk/news/rss.xml", weight=5)
"""

import builtins
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Final, Self

from minka.admin.plans import Plan
from minka.duties.async_duty_client import AsyncClient
from minka.duties.changes import DutyChange, PalletChange
from minka.duties.duty_rows import (
    BalancerComparison,
    Consistency,
    DutyExplanation,
    DutyRow,
    DutyStatus,
    Pallet,
    PalletSummary,
    Shards,
)
from minka.engine.loops import ClientLoop
from minka.tls import Tls


class Client:
    """A client of one cluster's duties, for any number of threads. `AsyncClient` describes the arguments, the methods
    and the errors.

    All clients of a process work on one thread, which the first client starts. In a process that was forked from a
    process with a client, no client can be made or used, since gRPC does not survive a fork.
    """

    def __init__(
        self,
        endpoints: Sequence[str] | None = None,
        *,
        context: str | None = None,
        timeout: float = 5.0,
        tls: Tls | None = None,
    ) -> None:
        self._client: Final = AsyncClient(endpoints, context=context, timeout=timeout, tls=tls)
        self._loop: Final = ClientLoop()
        self._stop: Final = weakref.finalize(self, self._loop.stop, self._client, os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """As `AsyncClient.close`: calls under way in other threads fail."""
        self._stop()

    # Duties

    def change(
        self, changes: Iterable[DutyChange], *, consistency: Consistency = "quorum", timeout: float | None = None
    ) -> list[DutyRow]:
        """As `AsyncClient.change`."""
        return self._loop.run(self._client.change(changes, consistency=consistency, timeout=timeout))

    def create(
        self,
        pallet: str,
        duty: str,
        payload: bytes | str = b"",
        *,
        weight: int = 1,
        synthetic: bool = False,
        stationary: bool = False,
        lazy: bool = False,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> DutyRow:
        """As `AsyncClient.create`."""
        created = self._client.create(
            pallet,
            duty,
            payload,
            weight=weight,
            synthetic=synthetic,
            stationary=stationary,
            lazy=lazy,
            consistency=consistency,
            timeout=timeout,
        )
        return self._loop.run(created)

    def update(
        self,
        pallet: str,
        duty: str,
        payload: bytes | str | None = None,
        *,
        weight: int | None = None,
        if_version: int | None = None,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> DutyRow:
        """As `AsyncClient.update`."""
        updated = self._client.update(
            pallet, duty, payload, weight=weight, if_version=if_version, consistency=consistency, timeout=timeout
        )
        return self._loop.run(updated)

    def delete(
        self,
        pallet: str,
        duty: str,
        *,
        if_version: int | None = None,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> DutyRow:
        """As `AsyncClient.delete`."""
        deleted = self._client.delete(pallet, duty, if_version=if_version, consistency=consistency, timeout=timeout)
        return self._loop.run(deleted)

    def pin(
        self,
        pallet: str,
        duty: str,
        shard: str,
        *,
        if_version: int | None = None,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> DutyRow:
        """As `AsyncClient.pin`."""
        pinned = self._client.pin(pallet, duty, shard, if_version=if_version, consistency=consistency, timeout=timeout)
        return self._loop.run(pinned)

    def release(
        self,
        pallet: str,
        duty: str,
        *,
        if_version: int | None = None,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> DutyRow:
        """As `AsyncClient.release`."""
        released = self._client.release(pallet, duty, if_version=if_version, consistency=consistency, timeout=timeout)
        return self._loop.run(released)

    def unquarantine(
        self,
        pallet: str,
        duty: str,
        *,
        if_version: int | None = None,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> DutyRow:
        """As `AsyncClient.unquarantine`."""
        allowed = self._client.unquarantine(
            pallet, duty, if_version=if_version, consistency=consistency, timeout=timeout
        )
        return self._loop.run(allowed)

    def get(self, pallet: str, duty: str, *, timeout: float | None = None) -> DutyStatus:
        """As `AsyncClient.get`."""
        return self._loop.run(self._client.get(pallet, duty, timeout=timeout))

    def get_many(
        self, names: Sequence[tuple[str, str]], *, with_payloads: bool = True, timeout: float | None = None
    ) -> list[DutyStatus]:
        """As `AsyncClient.get_many`."""
        return self._loop.run(self._client.get_many(names, with_payloads=with_payloads, timeout=timeout))

    def list(
        self,
        pallet: str | None = None,
        *,
        shard: str | None = None,
        unplaced: bool = False,
        quarantined: bool = False,
        with_payloads: bool = False,
        timeout: float | None = None,
    ) -> Iterator[DutyStatus]:
        """As `AsyncClient.list`."""
        return self._loop.rows(self, self._client._pages(pallet, shard, unplaced, quarantined, with_payloads, timeout))

    def explain(self, pallet: str, duty: str, *, timeout: float | None = None) -> DutyExplanation:
        """As `AsyncClient.explain`."""
        return self._loop.run(self._client.explain(pallet, duty, timeout=timeout))

    # Pallets and shards

    def change_pallets(
        self, changes: Iterable[PalletChange], *, consistency: Consistency = "quorum", timeout: float | None = None
    ) -> builtins.list[Pallet]:
        """As `AsyncClient.change_pallets`."""
        return self._loop.run(self._client.change_pallets(changes, consistency=consistency, timeout=timeout))

    def create_pallet(
        self, pallet: Pallet | str, *, consistency: Consistency = "quorum", timeout: float | None = None
    ) -> Pallet:
        """As `AsyncClient.create_pallet`."""
        return self._loop.run(self._client.create_pallet(pallet, consistency=consistency, timeout=timeout))

    def update_pallet(
        self,
        pallet: Pallet,
        *,
        if_version: int | None = None,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> Pallet:
        """As `AsyncClient.update_pallet`."""
        updated = self._client.update_pallet(pallet, if_version=if_version, consistency=consistency, timeout=timeout)
        return self._loop.run(updated)

    def delete_pallet(
        self,
        pallet: str,
        *,
        if_version: int | None = None,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> Pallet:
        """As `AsyncClient.delete_pallet`."""
        deleted = self._client.delete_pallet(pallet, if_version=if_version, consistency=consistency, timeout=timeout)
        return self._loop.run(deleted)

    def pallets(self, ids: Sequence[str] = (), *, timeout: float | None = None) -> builtins.list[PalletSummary]:
        """As `AsyncClient.pallets`."""
        return self._loop.run(self._client.pallets(ids, timeout=timeout))

    def shards(self, names: Sequence[str] = (), *, timeout: float | None = None) -> Shards:
        """As `AsyncClient.shards`."""
        return self._loop.run(self._client.shards(names, timeout=timeout))

    def compare_pallet(self, pallet: str, *, timeout: float | None = None) -> builtins.list[BalancerComparison]:
        """As `AsyncClient.compare_pallet`."""
        return self._loop.run(self._client.compare_pallet(pallet, timeout=timeout))

    def plan_rebalance(self, pallet: str, reason: str = "", *, timeout: float | None = None) -> Plan:
        """As `AsyncClient.plan_rebalance`."""
        return self._loop.run(self._client.plan_rebalance(pallet, reason, timeout=timeout))
