"""Creating, changing and finding duties, for asyncio.

async with minka.duties.aio.Client(["athens:7400", "byzantium:7400"]) as duties:
    await duties.create_pallet("feeds")
    await duties.create("feeds", "bbc", b"https://www.bbc.co.uk/news/rss.xml", weight=5)
"""

import asyncio
import builtins
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import grpc

from minka.duties import _calls
from minka.duties import changes as changes_
from minka.duties._calls import Level
from minka.engine.arguments import checked_timeout
from minka.engine.grpc_calls import (
    aio_channel,
    channel_credentials,
    channel_options,
    checked_endpoints,
    error_from_call,
    unreachable,
)
from minka.errors import Code, MinkaError
from minka.tls import Tls
from minka.v1.admin_pb2 import Plan
from minka.v1.duties_pb2 import Duty, Pallet
from minka.v1.duty_api_pb2 import (
    ComparePalletResponse,
    DutyChange,
    DutyStatus,
    ExplainDutyResponse,
    GetShardsResponse,
    PalletChange,
    PalletSummary,
)
from minka.v1.duty_api_pb2_grpc import DutiesStub

_PAGE: Final = 1000
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 0.5
_CONNECT_TIMEOUT_S: Final = 2.0
_MIN_SHARE_S: Final = 0.02


class Client:
    """A client of one cluster's duties, which belongs to the event loop of its first call. `minka.duties.Client`
    describes the arguments and the errors.
    """

    def __init__(self, endpoints: Sequence[str], *, timeout: float = 5.0, tls: Tls | None = None) -> None:
        self._endpoints: Final = checked_endpoints(endpoints)
        self._timeout: Final = checked_timeout(timeout)
        self._credentials: Final = channel_credentials(tls)
        self._channels: Final[dict[str, grpc.aio.Channel]] = {}
        self._answered = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calls under way fail."""
        while self._channels:
            await self._channels.popitem()[1].close()

    async def _do(self, call: _calls.Call, timeout: float | None) -> Any:
        """Ask one node after the other, beginning with the one that answered last, until one takes the request."""
        loop = asyncio.get_running_loop()
        seconds = self._timeout if timeout is None else checked_timeout(timeout)
        deadline, pause = loop.time() + seconds, _FIRST_PAUSE_S
        while True:
            tried: dict[str, MinkaError] = {}
            addresses = list(dict.fromkeys([*filter(None, [self._answered]), *self._endpoints]))
            for place, address in enumerate(addresses):
                shares = len(addresses) - place if call.repeatable else 1
                share = max((deadline - loop.time()) / shares, _MIN_SHARE_S)
                try:
                    return await self._ask(address, call, share)
                except MinkaError as error:
                    elsewhere = call.repeatable and error.code is Code.DEADLINE_EXCEEDED
                    if not (error.code.info.retriable or elsewhere):
                        raise
                    tried[address] = error
            somebody_is_there = any(error.code is not Code.UNREACHABLE for error in tried.values())
            if not somebody_is_there or loop.time() + pause >= deadline:
                raise unreachable(tried)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_S)

    async def _ask(self, address: str, call: _calls.Call, timeout: float) -> Any:
        channel = self._channels.get(address)
        if channel is None:
            options = channel_options(min(timeout, _CONNECT_TIMEOUT_S))
            channel = self._channels[address] = aio_channel(address, self._credentials, options)
        try:
            stub: Any = DutiesStub(channel)
            response = await getattr(stub, call.rpc)(call.request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, address, repeatable=call.repeatable) from error
        self._answered = address
        return response

    # Duties

    async def change(
        self, changes: Iterable[DutyChange], *, consistency: Level = "quorum", timeout: float | None = None
    ) -> list[Duty]:
        """Make all of the changes, or none: up to 1,000, of different duties, with payloads of up to 8 MiB together.
        `minka.duties.changes` makes them.

        Returns the rows as it made them, one for each change, in their order; for a deleted duty its last row.
        `consistency` says which nodes have the changes durably when this returns: only the "leader" of the coordinator,
        a "quorum" of its voters, all "voters", or "all" voters and learners. Raises UNKNOWN_PALLET, UNKNOWN_DUTY,
        DUTY_EXISTS, VERSION_MISMATCH, INVALID_DUTY; CONSISTENCY_NOT_REACHED if the changes are made, but some nodes of
        that level don't have them in time.
        """
        response = await self._do(_calls.change_duties(changes, consistency), timeout)
        return list(response.duties)

    async def create(
        self,
        pallet: str,
        duty: str,
        payload: bytes | str = b"",
        *,
        weight: int = 1,
        synthetic: bool = False,
        stationary: bool = False,
        lazy: bool = False,
        consistency: Level = "quorum",
        timeout: float | None = None,
    ) -> Duty:
        """Create a duty and return its row. `minka.duties.changes.create` describes the arguments; `change` says what
        `consistency` is, and what is raised.
        """
        made = changes_.create(
            pallet, duty, payload, weight=weight, synthetic=synthetic, stationary=stationary, lazy=lazy
        )
        return (await self.change([made], consistency=consistency, timeout=timeout))[0]

    async def update(
        self,
        pallet: str,
        duty: str,
        payload: bytes | str | None = None,
        *,
        weight: int | None = None,
        if_version: int = 0,
        consistency: Level = "quorum",
        timeout: float | None = None,
    ) -> Duty:
        """Give a duty another payload or weight, and return its row; its shards are told. Raises UNKNOWN_DUTY, and
        VERSION_MISMATCH if it doesn't have `if_version` (0: any).
        """
        made = changes_.update(pallet, duty, payload, weight=weight, if_version=if_version)
        return (await self.change([made], consistency=consistency, timeout=timeout))[0]

    async def delete(
        self,
        pallet: str,
        duty: str,
        *,
        if_version: int = 0,
        consistency: Level = "quorum",
        timeout: float | None = None,
    ) -> Duty:
        """Delete a duty and return its last row; it is gone once the shards that have it have released it. Raises
        UNKNOWN_DUTY, and VERSION_MISMATCH if it doesn't have `if_version` (0: any).
        """
        made = changes_.delete(pallet, duty, if_version=if_version)
        return (await self.change([made], consistency=consistency, timeout=timeout))[0]

    async def pin(self, pallet: str, duty: str, shard: str, *, timeout: float | None = None) -> Duty:
        """Place a duty on this shard by hand; it stays there until `release`. Returns its row. Raises UNKNOWN_DUTY."""
        return (await self.change([changes_.pin(pallet, duty, shard)], timeout=timeout))[0]

    async def release(self, pallet: str, duty: str, *, timeout: float | None = None) -> Duty:
        """Let the balancer move a duty again that was pinned. Returns its row. Raises UNKNOWN_DUTY."""
        return (await self.change([changes_.release(pallet, duty)], timeout=timeout))[0]

    async def get(self, pallet: str, duty: str, *, timeout: float | None = None) -> DutyStatus:
        """A duty with its payload, and where it is. Raises UNKNOWN_DUTY."""
        return (await self.get_many([(pallet, duty)], timeout=timeout))[0]

    async def get_many(
        self, names: Sequence[tuple[str, str]], *, with_payloads: bool = True, timeout: float | None = None
    ) -> list[DutyStatus]:
        """These duties, by pallet and id, in their order; up to 1,000. Raises UNKNOWN_DUTY if one isn't there."""
        found: list[DutyStatus] = []
        wanted = _calls.duty_names(names)
        while len(found) < len(wanted):
            call = _calls.get_duties(wanted[len(found) :], with_payloads)
            found.extend((await self._do(call, timeout)).duties)
        return found

    async def list(
        self,
        pallet: str = "",
        *,
        shard: str = "",
        unplaced: bool = False,
        quarantined: bool = False,
        with_payloads: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[DutyStatus]:
        """The duties of a pallet ("" means all pallets) on a shard ("" means any, or none), in the order in which they
        were created; with `unplaced` only those that are nowhere, with `quarantined` only those that are kept from
        shards, since attaching them failed or ended processes. It asks page by page, each within `timeout` seconds; the
        whole is no snapshot.
        """
        after, more = 0, True
        while more:
            call = _calls.list_duties(pallet, shard, unplaced, quarantined, with_payloads, after, _PAGE)
            page = await self._do(call, timeout)
            more = page.more and bool(page.duties)
            for status in page.duties:
                after = status.duty.number
                yield status

    async def explain(self, pallet: str, duty: str, *, timeout: float | None = None) -> ExplainDutyResponse:
        """The shards that have the duty, and why each other shard doesn't. Raises UNKNOWN_DUTY."""
        response: ExplainDutyResponse = await self._do(_calls.explain_duty(pallet, duty), timeout)
        return response

    # Pallets and shards

    async def change_pallets(
        self, changes: Iterable[PalletChange], *, consistency: Level = "quorum", timeout: float | None = None
    ) -> builtins.list[Pallet]:
        """Make all of the changes of pallets, or none. Returns the rows as it made them, one for each change; for a
        deleted pallet its last row. `change` says what `consistency` is.
        """
        response = await self._do(_calls.change_pallets(changes, consistency), timeout)
        return [*response.pallets]

    async def create_pallet(
        self, pallet: Pallet | str, *, consistency: Level = "quorum", timeout: float | None = None
    ) -> Pallet:
        """Create a pallet by its name, or by a row with its settings. Raises PALLET_EXISTS."""
        made = [_calls.create_pallet(pallet)]
        return (await self.change_pallets(made, consistency=consistency, timeout=timeout))[0]

    async def update_pallet(
        self, pallet: Pallet, *, if_version: int = 0, consistency: Level = "quorum", timeout: float | None = None
    ) -> Pallet:
        """Replace a pallet's settings by those of this row. Raises UNKNOWN_PALLET, and VERSION_MISMATCH if it doesn't
        have `if_version` (0: any).
        """
        made = [_calls.update_pallet(pallet, if_version)]
        return (await self.change_pallets(made, consistency=consistency, timeout=timeout))[0]

    async def delete_pallet(
        self, pallet: str, *, if_version: int = 0, consistency: Level = "quorum", timeout: float | None = None
    ) -> Pallet:
        """Delete a pallet and return its last row. Raises PALLET_IN_USE while it has duties, UNKNOWN_PALLET, and
        VERSION_MISMATCH if it doesn't have `if_version` (0: any).
        """
        made = [_calls.delete_pallet(pallet, if_version)]
        return (await self.change_pallets(made, consistency=consistency, timeout=timeout))[0]

    async def pallets(self, ids: Sequence[str] = (), *, timeout: float | None = None) -> builtins.list[PalletSummary]:
        """These pallets (none named: all), with what their duties add up to. Raises UNKNOWN_PALLET."""
        response = await self._do(_calls.get_pallets(ids), timeout)
        return [*response.pallets]

    async def shards(self, names: Sequence[str] = (), *, timeout: float | None = None) -> GetShardsResponse:
        """These shards (none named: all), with what they hold, and what moved lately. Raises UNKNOWN_SHARD."""
        response: GetShardsResponse = await self._do(_calls.get_shards(names), timeout)
        return response

    async def compare_pallet(self, pallet: str, *, timeout: float | None = None) -> ComparePalletResponse:
        """What each balancer would make of the pallet as it is now. Raises UNKNOWN_PALLET."""
        response: ComparePalletResponse = await self._do(_calls.compare_pallet(pallet), timeout)
        return response

    async def plan_rebalance(self, pallet: str, reason: str = "", *, timeout: float | None = None) -> Plan:
        """The plan by which the pallet's balancer would move its duties. Nothing is changed;
        `minka.admin.control.Control.apply_plan` carries it out. Raises UNKNOWN_PALLET.
        """
        response: Plan = await self._do(_calls.plan_rebalance(pallet, reason), timeout)
        return response
