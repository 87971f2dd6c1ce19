"""Creating, changing and finding duties, for code that isn't asynchronous.

with minka.duties.Client(["athens:7400", "byzantium:7400"]) as duties:
    duties.create_pallet("feeds")
    duties.create("feeds", "bbc", b"https://www.bbc.co.uk/news/rss.xml", weight=5)
"""

import builtins
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

from minka.admin.control import Control
from minka.duties import _calls
from minka.duties import changes as changes_
from minka.duties._calls import Level
from minka.engine.arguments import checked_timeout
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


class Client:
    """A client of one cluster's duties, for any number of threads; any of the nodes serves it.

    `endpoints` are addresses host:port of some of the nodes, of which the one that answered last is asked first.
    `timeout`, in seconds, holds for every call that doesn't state its own. Only `MinkaError` is raised. A change is
    repeated only if that can't do it twice. If its answer is lost, the call raises OUTCOME_UNKNOWN or
    DEADLINE_EXCEEDED: all of it may have been done, or nothing. `tls` is for a cluster with TLS; its files are read at
    once, and a mistake in them raises INVALID_CONFIG.
    """

    def __init__(self, endpoints: Sequence[str], *, timeout: float = 5.0, tls: Tls | None = None) -> None:
        self._control: Final = _Calls(endpoints, timeout, tls=tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Calls under way fail."""
        self._control.close()

    def _do(self, call: _calls.Call, timeout: float | None) -> Any:
        return self._control.do(call, timeout)

    # Duties

    def change(
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
        response = self._do(_calls.change_duties(changes, consistency), timeout)
        return list(response.duties)

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
        consistency: Level = "quorum",
        timeout: float | None = None,
    ) -> Duty:
        """Create a duty and return its row. `minka.duties.changes.create` describes the arguments; `change` says what
        `consistency` is, and what is raised.
        """
        made = changes_.create(
            pallet, duty, payload, weight=weight, synthetic=synthetic, stationary=stationary, lazy=lazy
        )
        return (self.change([made], consistency=consistency, timeout=timeout))[0]

    def update(
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
        return (self.change([made], consistency=consistency, timeout=timeout))[0]

    def delete(
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
        return (self.change([made], consistency=consistency, timeout=timeout))[0]

    def pin(self, pallet: str, duty: str, shard: str, *, timeout: float | None = None) -> Duty:
        """Place a duty on this shard by hand; it stays there until `release`. Returns its row. Raises UNKNOWN_DUTY."""
        return (self.change([changes_.pin(pallet, duty, shard)], timeout=timeout))[0]

    def release(self, pallet: str, duty: str, *, timeout: float | None = None) -> Duty:
        """Let the balancer move a duty again that was pinned. Returns its row. Raises UNKNOWN_DUTY."""
        return (self.change([changes_.release(pallet, duty)], timeout=timeout))[0]

    def get(self, pallet: str, duty: str, *, timeout: float | None = None) -> DutyStatus:
        """A duty with its payload, and where it is. Raises UNKNOWN_DUTY."""
        return (self.get_many([(pallet, duty)], timeout=timeout))[0]

    def get_many(
        self, names: Sequence[tuple[str, str]], *, with_payloads: bool = True, timeout: float | None = None
    ) -> list[DutyStatus]:
        """These duties, by pallet and id, in their order; up to 1,000. Raises UNKNOWN_DUTY if one isn't there."""
        found: list[DutyStatus] = []
        wanted = _calls.duty_names(names)
        while len(found) < len(wanted):
            call = _calls.get_duties(wanted[len(found) :], with_payloads)
            found.extend((self._do(call, timeout)).duties)
        return found

    def list(
        self,
        pallet: str = "",
        *,
        shard: str = "",
        unplaced: bool = False,
        quarantined: bool = False,
        with_payloads: bool = False,
        timeout: float | None = None,
    ) -> Iterator[DutyStatus]:
        """The duties of a pallet ("" means all pallets) on a shard ("" means any, or none), in the order in which they
        were created; with `unplaced` only those that are nowhere, with `quarantined` only those that are kept from
        shards, since attaching them failed or ended processes. It asks page by page, each within `timeout` seconds; the
        whole is no snapshot.
        """
        after, more = 0, True
        while more:
            call = _calls.list_duties(pallet, shard, unplaced, quarantined, with_payloads, after, _PAGE)
            page = self._do(call, timeout)
            more = page.more and bool(page.duties)
            for status in page.duties:
                after = status.duty.number
                yield status

    def explain(self, pallet: str, duty: str, *, timeout: float | None = None) -> ExplainDutyResponse:
        """The shards that have the duty, and why each other shard doesn't. Raises UNKNOWN_DUTY."""
        response: ExplainDutyResponse = self._do(_calls.explain_duty(pallet, duty), timeout)
        return response

    # Pallets and shards

    def change_pallets(
        self, changes: Iterable[PalletChange], *, consistency: Level = "quorum", timeout: float | None = None
    ) -> builtins.list[Pallet]:
        """Make all of the changes of pallets, or none. Returns the rows as it made them, one for each change; for a
        deleted pallet its last row. `change` says what `consistency` is.
        """
        response = self._do(_calls.change_pallets(changes, consistency), timeout)
        return [*response.pallets]

    def create_pallet(
        self, pallet: Pallet | str, *, consistency: Level = "quorum", timeout: float | None = None
    ) -> Pallet:
        """Create a pallet by its name, or by a row with its settings. Raises PALLET_EXISTS."""
        made = [_calls.create_pallet(pallet)]
        return (self.change_pallets(made, consistency=consistency, timeout=timeout))[0]

    def update_pallet(
        self, pallet: Pallet, *, if_version: int = 0, consistency: Level = "quorum", timeout: float | None = None
    ) -> Pallet:
        """Replace a pallet's settings by those of this row. Raises UNKNOWN_PALLET, and VERSION_MISMATCH if it doesn't
        have `if_version` (0: any).
        """
        made = [_calls.update_pallet(pallet, if_version)]
        return (self.change_pallets(made, consistency=consistency, timeout=timeout))[0]

    def delete_pallet(
        self, pallet: str, *, if_version: int = 0, consistency: Level = "quorum", timeout: float | None = None
    ) -> Pallet:
        """Delete a pallet and return its last row. Raises PALLET_IN_USE while it has duties, UNKNOWN_PALLET, and
        VERSION_MISMATCH if it doesn't have `if_version` (0: any).
        """
        made = [_calls.delete_pallet(pallet, if_version)]
        return (self.change_pallets(made, consistency=consistency, timeout=timeout))[0]

    def pallets(self, ids: Sequence[str] = (), *, timeout: float | None = None) -> builtins.list[PalletSummary]:
        """These pallets (none named: all), with what their duties add up to. Raises UNKNOWN_PALLET."""
        response = self._do(_calls.get_pallets(ids), timeout)
        return [*response.pallets]

    def shards(self, names: Sequence[str] = (), *, timeout: float | None = None) -> GetShardsResponse:
        """These shards (none named: all), with what they hold, and what moved lately. Raises UNKNOWN_SHARD."""
        response: GetShardsResponse = self._do(_calls.get_shards(names), timeout)
        return response

    def compare_pallet(self, pallet: str, *, timeout: float | None = None) -> ComparePalletResponse:
        """What each balancer would make of the pallet as it is now. Raises UNKNOWN_PALLET."""
        response: ComparePalletResponse = self._do(_calls.compare_pallet(pallet), timeout)
        return response

    def plan_rebalance(self, pallet: str, reason: str = "", *, timeout: float | None = None) -> Plan:
        """The plan by which the pallet's balancer would move its duties. Nothing is changed;
        `minka.admin.control.Control.apply_plan` carries it out. Raises UNKNOWN_PALLET.
        """
        response: Plan = self._do(_calls.plan_rebalance(pallet, reason), timeout)
        return response


class _Calls(Control):
    """Asks one node after the other, beginning with the one that answered last."""

    _answered = ""

    def do(self, call: _calls.Call, timeout: float | None) -> Any:
        """The response. Raises MinkaError."""
        return self._call(
            lambda channel: getattr(DutiesStub(channel), call.rpc),
            call.request,
            repeatable=call.repeatable,
            timeout=None if timeout is None else checked_timeout(timeout),
        )

    def _ask(self, address: str, *arguments: Any, **named: Any) -> Any:
        response = super()._ask(address, *arguments, **named)
        self._answered = address
        return response

    def _queue(self) -> deque[str]:
        first = self._answered
        return deque([first, *self.endpoints] if first else self.endpoints)
