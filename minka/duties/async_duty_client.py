"""Creating, changing and finding duties, for asyncio.

async with minka.duties.AsyncClient(["athens:7400", "byzantium:7400"]) as duties:
    await duties.create_pallet("feeds")
    await duties.create("feeds", "bbc", b"https://www.bbc.co.uk/news/rss.xml", weight=5)
"""

import asyncio
import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import grpc

from minka.admin.plans import Plan, plan_of
from minka.contexts import given_or_resolved
from minka.duties import _calls, messages
from minka.duties import changes as changes_
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
from minka.engine.arguments import checked_timeout
from minka.engine.attempts import Attempts
from minka.engine.grpc_calls import (
    aio_channel,
    channel_credentials,
    channel_options,
    checked_endpoints,
    error_from_call,
    has_ended,
)
from minka.engine.scan_pages import rows_of
from minka.errors import Code, MinkaError
from minka.tls import Tls
from minka.v1.duty_api_pb2_grpc import DutiesStub

_PAGE: Final = 1000
_CONNECT_TIMEOUT_S: Final = 2.0


class AsyncClient:
    """A client of one cluster's duties; it can use any node. It connects with its first call and belongs to the event
    loop of that call: in another loop, calls raise INVALID_ARGUMENT; `close` raises it, too, unless the client's loop
    is closed.

    `endpoints` are addresses host:port of some of the nodes; the client first asks the node that answered last, or the
    node that a refusal named. Without `endpoints` the client uses the cluster of `context`, or the cluster that
    `minka.connect` would find. `timeout`, in seconds, holds for every call that doesn't state its own. `tls` is for a
    cluster with TLS; its files are read at once, and a mistake in them raises INVALID_CONFIG.

    Names of pallets, shards and duties have 1 to 256 printable characters, and a pallet's name has no slash. A call
    that fails raises `MinkaError`, whose `code` says why:

    - OUTCOME_UNKNOWN, DEADLINE_EXCEEDED: the answer to a change was lost, so either all of the change was done, or
      nothing. The client repeats a change only after a refusal that shows that nothing was done.
    - INVALID_ARGUMENT, and the codes that a method names: nothing was done.
    - UNREACHABLE, NO_CONTROLLER and other retriable codes: nothing was done. The client tried until the deadline, or
      gave up early because none of the endpoints could be reached.

    Methods that change something take `consistency`. It names the nodes that have the change durably when the call
    returns: only the "leader" of the coordinator, a "quorum" of its voters, all "voters", or "all" voters and learners.
    CONSISTENCY_NOT_REACHED means that the change is done, but some of those nodes didn't have it in time.

    With `if_version` the cluster makes a change only if the duty or pallet has this version; otherwise it raises
    VERSION_MISMATCH. None means any version. Versions begin at 1, so 0 raises INVALID_ARGUMENT.

    Duties can't be watched: a delegate hears about its own duties; other programs call `list` or `shards` again.
    """

    def __init__(
        self,
        endpoints: Sequence[str] | None = None,
        *,
        context: str | None = None,
        timeout: float = 5.0,
        tls: Tls | None = None,
    ) -> None:
        endpoints, tls = given_or_resolved(endpoints, tls, context)
        self._endpoints: Final = checked_endpoints(endpoints)
        self._timeout: Final = checked_timeout(timeout)
        self._credentials: Final = channel_credentials(tls)
        self._channels: Final[dict[str, grpc.aio.Channel]] = {}
        self._answered = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calls under way fail: changes that were sent raise OUTCOME_UNKNOWN, other calls raise
        UNREACHABLE. The client can't be used again.
        """
        if self._loop is not None and has_ended(self._loop):
            self._channels.clear()
        self._is_closed = True
        while self._channels:
            await self._channels.popitem()[1].close()

    async def _do(self, call: _calls.Call, timeout: float | None) -> Any:
        """Ask one node after the other until one takes the request; the node that answered last is the first."""
        loop = self._own_loop()
        seconds = self._timeout if timeout is None else checked_timeout(timeout)
        attempts = Attempts(self._endpoints, self._answered, loop.time(), seconds, is_repeatable=call.repeatable)
        while True:
            while (place := attempts.next(loop.time())) is not None:
                address, seconds = place
                answer = await self._ask(address, call, seconds)
                if not isinstance(answer, MinkaError):
                    self._answered = address
                    return answer
                if self._is_closed or not attempts.goes_on(address, answer):
                    raise answer
                self._answered = attempts.first
            await asyncio.sleep(attempts.pause(loop.time()))

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop, to which the client belongs. Raises INVALID_ARGUMENT if the client belongs to
        another loop, or is closed.
        """
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise MinkaError(Code.INVALID_ARGUMENT, "the client is closed")
        if self._loop not in (None, loop):
            raise MinkaError(Code.INVALID_ARGUMENT, "the client belongs to another event loop")
        self._loop = loop
        return loop

    async def _ask(self, address: str, call: _calls.Call, timeout: float) -> Any:
        """The node's answer, or the `MinkaError` of the failed call. No error that leaves this method refers to a
        channel, as `aio_channel` demands.
        """
        try:
            return await getattr(DutiesStub(self._channel(address, timeout)), call.rpc)(call.request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            return error_from_call(error, address, repeatable=call.repeatable)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if not self._is_closed or (task is not None and task.cancelling()):
                raise error.with_traceback(None) from None
            code = Code.UNREACHABLE if call.repeatable else Code.OUTCOME_UNKNOWN
            return MinkaError(code, f"{address}: the client was closed", address=address)

    def _channel(self, address: str, timeout: float) -> grpc.aio.Channel:
        if self._is_closed:
            raise MinkaError(Code.UNREACHABLE, "the client was closed")
        channel = self._channels.get(address)
        if channel is None:
            options = channel_options(min(timeout, _CONNECT_TIMEOUT_S))
            channel = self._channels[address] = aio_channel(address, self._credentials, options)
        return channel

    # Duties

    async def change(
        self, changes: Iterable[DutyChange], *, consistency: Consistency = "quorum", timeout: float | None = None
    ) -> list[DutyRow]:
        """Make all of the changes, or none. There may be at most 1,000 changes, each of a different duty, with at most
        8 MiB of payloads together. The functions of `minka.duties.changes` return such changes.

        Returns the duties as they are after the changes, in the order of the changes; for a deleted duty its last row.
        Payloads are left out. Raises UNKNOWN_PALLET, UNKNOWN_DUTY, DUTY_EXISTS, VERSION_MISMATCH, INVALID_DUTY,
        UNKNOWN_SHARD.
        """
        response = await self._do(_calls.change_duties(changes, consistency), timeout)
        return list(map(messages.duty_row, response.duties))

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
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> DutyRow:
        """Create a duty and return its row, without the payload.

        `payload` is handed to the shard: at most 1 MiB; a str stands for its UTF-8 form. `weight`, 0 to
        1,000,000,000,000, is in the unit of the shards' capacities. A synthetic duty is on every shard that takes its
        pallet. A stationary duty, once placed, is never moved to balance the shards. A lazy duty ends when the delegate
        no longer reports it. Raises UNKNOWN_PALLET; DUTY_EXISTS if the pallet has a duty with this id, even an equal
        one, or one that is still being deleted; INVALID_DUTY for a synthetic duty that is also lazy or stationary.
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
        if_version: int | None = None,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> DutyRow:
        """Give a duty another payload or weight; None leaves the old one, and INVALID_ARGUMENT is raised if both are
        None. Returns the duty's row, without the payload. The duty's version grows by 1, and the delegates that have
        the duty hear of the change, even if payload and weight are the same as before. Shards that couldn't attach the
        duty, and shards that failed while attaching it, try it again, as after `unquarantine`. Raises UNKNOWN_DUTY,
        VERSION_MISMATCH.
        """
        made = changes_.update(pallet, duty, payload, weight=weight, if_version=if_version)
        return (await self.change([made], consistency=consistency, timeout=timeout))[0]

    async def delete(
        self,
        pallet: str,
        duty: str,
        *,
        if_version: int | None = None,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> DutyRow:
        """Delete a duty and return its last row, without the payload. It disappears when all its shards have released
        it. Raises UNKNOWN_DUTY, VERSION_MISMATCH.
        """
        made = changes_.delete(pallet, duty, if_version=if_version)
        return (await self.change([made], consistency=consistency, timeout=timeout))[0]

    async def pin(
        self,
        pallet: str,
        duty: str,
        shard: str,
        *,
        if_version: int | None = None,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> DutyRow:
        """Place a duty on this shard by hand, and return its row. No balancer moves it until `release` is called.

        While `shard` is GONE, LEAVING, QUARANTINED or on a drained node, another shard has the duty. The duty goes to
        `shard` as soon as `shard` can take it. If `shard` is LIVE but has too little capacity, no shard has the duty,
        and `DutyStatus.unplaced` says why. If `shard` couldn't attach the duty, the duty stays on the shard that has
        it. If no shard has it, no shard gets it before `unquarantine`, `update` or `release`.

        Raises UNKNOWN_DUTY, VERSION_MISMATCH, INVALID_DUTY for a synthetic duty, and UNKNOWN_SHARD if the cluster has
        never known the shard, or has forgotten it, as it does ten minutes after the shard's end.
        """
        made = changes_.pin(pallet, duty, shard, if_version=if_version)
        return (await self.change([made], consistency=consistency, timeout=timeout))[0]

    async def release(
        self,
        pallet: str,
        duty: str,
        *,
        if_version: int | None = None,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> DutyRow:
        """Let the balancer move a pinned duty again, and return its row. Raises UNKNOWN_DUTY, VERSION_MISMATCH."""
        made = changes_.release(pallet, duty, if_version=if_version)
        return (await self.change([made], consistency=consistency, timeout=timeout))[0]

    async def unquarantine(
        self,
        pallet: str,
        duty: str,
        *,
        if_version: int | None = None,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> DutyRow:
        """Let the shards on which a duty could not be attached try again, and return the duty's row. `update` does the
        same. Raises UNKNOWN_DUTY, VERSION_MISMATCH.
        """
        made = changes_.unquarantine(pallet, duty, if_version=if_version)
        return (await self.change([made], consistency=consistency, timeout=timeout))[0]

    async def get(self, pallet: str, duty: str, *, timeout: float | None = None) -> DutyStatus:
        """A duty with its payload and its shards. Raises UNKNOWN_DUTY."""
        return (await self.get_many([(pallet, duty)], timeout=timeout))[0]

    async def get_many(
        self, names: Sequence[tuple[str, str]], *, with_payloads: bool = True, timeout: float | None = None
    ) -> list[DutyStatus]:
        """The duties with these names (pallet, id), in the order of `names`; at most 1,000. Raises UNKNOWN_DUTY if
        one of them doesn't exist.
        """
        found: list[DutyStatus] = []
        wanted = _calls.duty_names(names)
        while len(found) < len(wanted):
            call = _calls.get_duties(wanted[len(found) :], with_payloads)
            found.extend(map(messages.duty_status, (await self._do(call, timeout)).duties))
        return found

    def list(
        self,
        pallet: str | None = None,
        *,
        shard: str | None = None,
        unplaced: bool = False,
        quarantined: bool = False,
        with_payloads: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[DutyStatus]:
        """The duties of `pallet` (None: of all pallets), in the order in which they were created. With `shard`, these
        are only duties that this shard has; with `unplaced`, only duties that no shard has; with `quarantined`, only
        duties that some shards don't get, because attaching them failed or ended a shard's process. The client reads
        the list page by page, each page within `timeout` seconds, so the list as a whole isn't a snapshot. Raises
        UNKNOWN_PALLET, UNKNOWN_SHARD.
        """
        return rows_of(self._pages(pallet, shard, unplaced, quarantined, with_payloads, timeout))

    def _pages(
        self,
        pallet: str | None,
        shard: str | None,
        unplaced: bool,
        quarantined: bool,
        with_payloads: bool,
        timeout: float | None,
    ) -> AsyncGenerator[builtins.list[DutyStatus], None]:
        seconds = self._timeout if timeout is None else checked_timeout(timeout)
        page_after = partial(_calls.list_duties, pallet, shard, unplaced, quarantined, with_payloads, limit=_PAGE)
        return self._read_pages(page_after(0), page_after, seconds)  # an argument that isn't valid is refused now

    async def _read_pages(
        self, call: _calls.Call, page_after: Callable[[int], _calls.Call], seconds: float
    ) -> AsyncGenerator[builtins.list[DutyStatus], None]:
        more = True
        while more:
            page = await self._do(call, seconds)
            if not page.duties:
                return
            more, call = page.more, page_after(page.duties[-1].duty.number)
            yield [messages.duty_status(status) for status in page.duties]

    async def explain(self, pallet: str, duty: str, *, timeout: float | None = None) -> DutyExplanation:
        """The shards that have the duty, and why each other shard doesn't. Raises UNKNOWN_DUTY."""
        return messages.explanation(await self._do(_calls.explain_duty(pallet, duty), timeout))

    # Pallets and shards

    async def change_pallets(
        self, changes: Iterable[PalletChange], *, consistency: Consistency = "quorum", timeout: float | None = None
    ) -> builtins.list[Pallet]:
        """Make all of the changes of pallets, or none. There may be at most 1,000 changes. The functions of
        `minka.duties.changes` return such changes.

        Returns the pallets as they are after the changes, in the order of the changes; for a deleted pallet its last
        row. Raises PALLET_EXISTS, PALLET_IN_USE, UNKNOWN_PALLET, VERSION_MISMATCH.
        """
        response = await self._do(_calls.change_pallets(changes, consistency), timeout)
        return [messages.pallet(row) for row in response.pallets]

    async def create_pallet(
        self, pallet: Pallet | str, *, consistency: Consistency = "quorum", timeout: float | None = None
    ) -> Pallet:
        """Create a pallet, by its name alone or with its settings, and return its row. If a pallet with this name and
        the same settings exists, its row is returned. Raises PALLET_EXISTS if the existing pallet has other settings.
        """
        made = [changes_.create_pallet(pallet)]
        return (await self.change_pallets(made, consistency=consistency, timeout=timeout))[0]

    async def update_pallet(
        self,
        pallet: Pallet,
        *,
        if_version: int | None = None,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> Pallet:
        """Replace all settings of a pallet by those in `pallet`, and return the new row. `version`, `created` and
        `changed` of the argument are ignored. To change some settings without overwriting somebody else's change:

            pallet = (await duties.pallets(["feeds"]))[0].pallet
            await duties.update_pallet(dataclasses.replace(pallet, manual=True), if_version=pallet.version)

        Raises UNKNOWN_PALLET, VERSION_MISMATCH.
        """
        made = [changes_.update_pallet(pallet, if_version=if_version)]
        return (await self.change_pallets(made, consistency=consistency, timeout=timeout))[0]

    async def delete_pallet(
        self,
        pallet: str,
        *,
        if_version: int | None = None,
        consistency: Consistency = "quorum",
        timeout: float | None = None,
    ) -> Pallet:
        """Delete a pallet and return its last row. Raises PALLET_IN_USE if the pallet still has duties, UNKNOWN_PALLET,
        VERSION_MISMATCH.
        """
        made = [changes_.delete_pallet(pallet, if_version=if_version)]
        return (await self.change_pallets(made, consistency=consistency, timeout=timeout))[0]

    async def pallets(self, ids: Sequence[str] = (), *, timeout: float | None = None) -> builtins.list[PalletSummary]:
        """These pallets, or all if none is named, with the sums of their duties. Raises UNKNOWN_PALLET."""
        response = await self._do(_calls.get_pallets(ids), timeout)
        return [messages.pallet_summary(summary) for summary in response.pallets]

    async def shards(self, names: Sequence[str] = (), *, timeout: float | None = None) -> Shards:
        """These shards, or all if none is named, with their duties; and the latest moves in the cluster, at most 100.
        Raises UNKNOWN_SHARD.
        """
        return messages.shards(await self._do(_calls.get_shards(names), timeout))

    async def compare_pallet(self, pallet: str, *, timeout: float | None = None) -> builtins.list[BalancerComparison]:
        """Compare how each kind of balancer would spread the pallet's duties now. Raises UNKNOWN_PALLET."""
        return messages.comparisons(await self._do(_calls.compare_pallet(pallet), timeout))

    async def plan_rebalance(self, pallet: str, reason: str = "", *, timeout: float | None = None) -> Plan:
        """Plan the moves that the pallet's balancer would make now. Nothing is changed: `minka.admin.Admin.apply`
        carries the plan out. Raises UNKNOWN_PALLET.
        """
        return plan_of(await self._do(_calls.plan_rebalance(pallet, reason), timeout))
