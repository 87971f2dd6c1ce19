"""Clients' requests about duties, served by any node: it stores payloads, and asks the active controller for the rest.

The node repeats a request only if nothing can be done twice: a refusal, or a connection that was never made, proves
that nothing was done. If the outcome is unknown, the node repeats the request only if each of its changes creates a
duty, or gives a known version of a duty another payload. These changes have their own payload ids, by which the
controller recognises changes that are done already. Any other change raises OUTCOME_UNKNOWN, since somebody else may
have changed the duty meanwhile.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from minka.duties.limits import MAX_REQUEST_BYTES
from minka.errors import Code, MinkaError
from minka.v1.duties_pb2 import Duty
from minka.v1.duty_api_pb2 import (
    ChangeDutiesRequest,
    ChangeDutiesResponse,
    Consistency,
    DutyChange,
    DutyStatus,
    GetDutiesRequest,
    GetDutiesResponse,
    GetPalletsRequest,
)
from minkad.coordinator.controller_calls import ControllerCalls
from minkad.core.controller_methods import CHANGE_DUTIES, GET_DUTIES, GET_PALLETS, Method, Request, Response
from minkad.core.state import OwnTable
from minkad.duties.node.payloads import PayloadStore
from minkad.process.clock import boottime

_FIRST_PAUSE_S: Final = 0.02
_MAX_PAUSE_S: Final = 0.25
_PAYLOAD_TRIES: Final = 5
_UNKNOWN: Final = (Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED)


class DutyGateway:
    """Every method answers within `timeout` seconds, and raises MinkaError."""

    def __init__(self, controller: ControllerCalls, table: OwnTable, payloads: PayloadStore) -> None:
        self._controller = controller
        self._table = table
        self._payloads = payloads

    async def ask(self, method: Method[Request, Response], request: Request, timeout: float) -> Response:
        """The active controller's answer to a request without payloads."""
        return await self._forward(method, request, _until(timeout))

    # Duties

    async def change_duties(self, request: ChangeDutiesRequest, timeout: float) -> ChangeDutiesResponse:
        """Make all of the changes, or none. Raises TOO_LARGE for payloads of more than 8 MiB together."""
        until = _until(timeout)
        before = self._replaced_by(request)
        prepared = await self._with_payload_ids(request, until)
        try:
            response = await self._forward(CHANGE_DUTIES, prepared, until)
        except MinkaError as error:
            if error.code not in _UNKNOWN or not all(map(_is_recognised, prepared.changes)):
                raise
            response = await self._again(prepared, until, error)
        if request.consistency != Consistency.CONSISTENCY_LEADER:  # a change that only the leader has may be lost
            self._payloads.delete_later(_unnamed(prepared, before, response.duties))
        return response

    def _replaced_by(self, request: ChangeDutiesRequest) -> list[Duty | None]:
        """For each change: the row whose payload the change replaces, by this node's table."""
        duties = self._table.state.duties
        return [
            duties.named(one.update.pallet, one.update.id) if one.update.HasField("payload") else None
            for one in request.changes
        ]

    async def _with_payload_ids(self, request: ChangeDutiesRequest, until: float) -> ChangeDutiesRequest:
        """The request with ids of stored payloads. Each created duty gets a payload id, even without a payload."""
        prepared = ChangeDutiesRequest()
        prepared.CopyFrom(request)
        specs = [(kind, getattr(one, kind)) for one in prepared.changes if (kind := _kind(one)) in ("create", "update")]
        total = sum(len(spec.payload) for _, spec in specs)
        if total > MAX_REQUEST_BYTES:
            raise MinkaError(Code.TOO_LARGE, f"the payloads have {total} bytes; {MAX_REQUEST_BYTES} is the limit")
        if total:
            await self._check_pallets({spec.pallet for _, spec in specs}, until)
        for _, spec in specs:
            spec.payload_id, spec.payload_bytes = b"", 0
        named = [spec for kind, spec in specs if kind == "create" or spec.HasField("payload")]
        ids = await self._payloads.put_many([spec.payload for spec in named], _left(until))
        for spec, payload_id in zip(named, ids, strict=True):
            spec.payload_id, spec.payload_bytes = payload_id, len(spec.payload)
            spec.ClearField("payload")
        return prepared

    async def _check_pallets(self, pallets: Iterable[str], until: float) -> None:
        """Raises UNKNOWN_PALLET before a payload is stored for a pallet that doesn't exist."""
        known = self._table.state.duties.pallets
        if unknown := [pallet for pallet in pallets if pallet not in known]:
            await self._forward(GET_PALLETS, GetPalletsRequest(ids=unknown), until)

    async def _again(self, request: ChangeDutiesRequest, until: float, unknown: MinkaError) -> ChangeDutiesResponse:
        """Repeat a request whose changes the controller recognises if they are done. Raises `unknown` if the outcome
        stays unknown: somebody else has changed the duty, after this request or instead of it.
        """
        try:
            return await self._forward(CHANGE_DUTIES, request, until)
        except MinkaError as refusal:
            unsettled = (*_UNKNOWN, Code.DUTY_EXISTS, Code.VERSION_MISMATCH)
            raise (unknown if refusal.code in unsettled or refusal.code.info.retriable else refusal) from None

    async def get_duties(self, request: GetDutiesRequest, timeout: float) -> GetDutiesResponse:
        """The duties, with payloads where requested: then the payloads have at most 8 MiB together, and `more` tells
        if there are other duties.
        """
        until = _until(timeout)
        for _ in range(_PAYLOAD_TRIES):
            response = await self._forward(GET_DUTIES, request, until)
            if not request.with_payloads or await self._fill(response, until):
                return response
        raise MinkaError(Code.CORRUPT_DATA, "the payload of a duty can't be found")

    async def _fill(self, response: GetDutiesResponse, until: float) -> bool:
        """Add the payloads. False if the payload of a duty was replaced after its row was read."""
        kept = _fitting(response.duties)
        if kept < len(response.duties):
            del response.duties[kept:]
            response.more = True
        wanted = [status.duty.payload_id for status in response.duties if status.duty.payload_bytes]
        found = await self._payloads.get_many(wanted, _left(until))
        for status in response.duties:
            if status.duty.payload_bytes:
                if (payload := found.get(status.duty.payload_id)) is None:
                    return False
                status.payload = payload
        return True

    async def _forward(self, method: Method[Request, Response], request: Request, until: float) -> Response:
        """Ask until the controller takes the request. A change with an unknown outcome isn't repeated."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return await self._controller.call(method, request, _left(until))
            except MinkaError as error:
                again = error.code.info.retriable or (method.is_repeatable and error.code is Code.OUTCOME_UNKNOWN)
                if not again or boottime() + pause >= until:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_S)


def _until(timeout: float) -> float:
    return boottime() + timeout


def _left(until: float) -> float:
    return max(until - boottime(), 0.01)


def _kind(change: DutyChange) -> str | None:
    return change.WhichOneof("change")


def _is_recognised(change: DutyChange) -> bool:
    """True if the controller recognises the change by its payload id when it is repeated, and refuses a stale one."""
    kind = _kind(change)
    return kind == "create" or (kind == "update" and bool(change.update.payload_id and change.if_version))


def _unnamed(
    request: ChangeDutiesRequest, before: Sequence[Duty | None], after: Sequence[Duty]
) -> Iterable[tuple[int, bytes]]:
    """The payloads that no row names after these changes, each with its duty's number. (The row of a deleted duty may
    stay for a while, and name its payload.)
    """
    rows = {(row.pallet, row.id): row for row in after}
    for change, old in zip(request.changes, before, strict=True):
        if change.HasField("delete"):
            old = rows.get((change.delete.pallet, change.delete.id))  # the last row
        elif old is None or (new := rows.get((old.pallet, old.id))) is None or old.version + 1 != new.version:
            continue
        if old is not None and old.payload_bytes:
            yield old.number, old.payload_id


def _fitting(duties: Sequence[DutyStatus]) -> int:
    """The number of duties, from the first on, whose payloads fit into one answer; at least one."""
    total = 0
    for place, status in enumerate(duties):
        total += status.duty.payload_bytes
        if total > MAX_REQUEST_BYTES and place:
            return place
    return len(duties)
