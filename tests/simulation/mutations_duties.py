"""Bugs in the assignment of duties: in the controller, in the sessions of nodes, and in the SDK."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from minka.duties import _machine
from minka.duties._events import Connected, Received
from minka.duties._machine import ShardMachine
from minka.duties._reports import Reports
from minka.v1.duties_pb2 import AssignmentsChanged, AssignmentState, Shard
from minka.v1.records_pb2 import Record
from minka.v1.shards_pb2 import Holding, ShardGrant, ShardHeartbeatsRequest, ShardHeartbeatsResponse
from minkad.coordinator.deciding import Deciding
from minkad.core.duties.control import distribution, duty_changes, duty_mover, duty_rows, reports
from minkad.core.state import Assignment, DutyState
from minkad.duties.control.duty_requests import DutyRequests
from minkad.duties.control.shard_control import ShardControl
from minkad.duties.node.shard_sessions import ShardSessions
from tests.simulation.mutations_full import Patch

_A = AssignmentState


# The controller


def acknowledge_before_all_voters() -> Sequence[Patch]:
    """The controller acknowledges a change when a majority of the voters has it, even if the client asked that all
    voters have it.
    """

    async def confirmed_by(_: DutyRequests, _consistency: Any, _until: float) -> None:
        pass

    return [(DutyRequests, "_confirmed_by", confirmed_by)]


def answer_without_quorum() -> Sequence[Patch]:
    """Refusals and reads wait for earlier proposals, but not until a quorum has confirmed that this node leads."""

    async def up_to_date(self: Deciding) -> None:
        if self._last_proposal is not None:
            await asyncio.shield(self._last_proposal)

    return [(Deciding, "up_to_date", up_to_date)]


def fail_late_shards() -> Sequence[Patch]:
    """The controller fails a shard whose heartbeat is late, although the shard may still hold its clearance."""
    original = ShardControl.__init__

    def init(self: ShardControl, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.detector.timeout = 0.6 * self.settings.clearance

    return [(ShardControl, "__init__", init)]


def no_wait_after_failover() -> Sequence[Patch]:
    """A new controller ignores the clearances that its predecessor has granted."""
    original = ShardControl.__init__

    def init(self: ShardControl, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        detector = self.detector
        detector.clearances_end = detector.started_at
        detector._since = detector.started_at - detector.timeout

    return [(ShardControl, "__init__", init)]


def grant_unconfirmed() -> Sequence[Patch]:
    """The controller grants the whole clearance, although no quorum has confirmed lately that it leads."""
    original = ShardControl.heartbeats

    def heartbeats(self: ShardControl, request: ShardHeartbeatsRequest) -> ShardHeartbeatsResponse:
        response = original(self, request)
        response.clearance_ms = int(self.settings.clearance * 1000)
        return response

    return [(ShardControl, "heartbeats", heartbeats), *_no_time_to_find_it()]


def _no_time_to_find_it() -> Sequence[Patch]:
    """A new controller fails shards as soon as the clearances that its predecessor granted have ended: it gives them
    no time to find their new controller.
    """
    original = ShardControl.__init__

    def init(self: ShardControl, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.detector._since = self.detector.started_at - self.detector.timeout

    return [(ShardControl, "__init__", init)]


def give_name_twice() -> Sequence[Patch]:
    """A process that registers gets its name at once, although another living process may have this name."""
    return [(ShardControl, "is_alive", lambda *_: False)]


def same_epoch_again() -> Sequence[Patch]:
    """When a shard comes back, the controller attaches the duties that were kept for it, but at their old epochs."""
    original = DutyState._assignment

    def assignment(
        self: DutyState, old: Assignment | None, changed: AssignmentsChanged, number: int, epoch: int
    ) -> Assignment:
        new = original(self, old, changed, number, epoch)
        is_back = old is not None and old.state == _A.ASSIGNMENT_STATE_KEPT
        return new._replace(epoch=old.epoch) if is_back and old is not None and epoch else new

    return [(DutyState, "_assignment", assignment)]


def give_away_at_once() -> Sequence[Patch]:
    """The controller counts a duty as released when it asks for the release."""
    original = duty_rows.in_state

    def in_state(
        shard: str, state: AssignmentState.ValueType, duties: Iterable[int], now_ms: int, reason: str = ""
    ) -> Iterator[Record]:
        is_released = state == _A.ASSIGNMENT_STATE_RELEASING
        return original(shard, _A.ASSIGNMENT_STATE_UNSPECIFIED if is_released else state, duties, now_ms, reason)

    return [(distribution, "in_state", in_state), (duty_mover, "in_state", in_state)]


def any_epoch() -> Sequence[Patch]:
    """A shard's report on a duty counts even if the report and the assignment have different epochs."""

    def meant(duties: DutyState, shard: Shard, said: Iterable[Holding], is_in: Any) -> Iterator[Assignment]:
        for holding in {one.duty: one for one in said}.values():
            one = duties.assignment(holding.duty, shard.name)
            if one is not None and is_in(one.state):
                yield one

    return [(reports, "_meant", meant)]


def no_grace() -> Sequence[Patch]:
    """The controller gives a duty that is kept for an absent shard to another shard before the grace ends."""
    original = distribution._tidy_shard

    def tidy_shard(state: Any, shard: Shard, now_ms: int) -> Iterator[Record]:
        return original(state, shard, now_ms + shard.grace_ms // 2)

    return [(distribution, "_tidy_shard", tidy_shard)]


def delete_before_release() -> Sequence[Patch]:
    """The controller deletes a duty before its shard has released it."""
    original = duty_changes._Batch._delete

    def delete(self: duty_changes._Batch, row: Any) -> None:
        original(self, row)
        for one in self._state.assignments(row.number):
            self._released.pop(one.shard, None)
            self._dropped.setdefault(one.shard, []).append(row.number)

    return [(duty_changes._Batch, "_delete", delete)]


def forget_next_epoch() -> Sequence[Patch]:
    """A snapshot of the state lacks the next epoch, so the controller gives some epochs twice."""
    original = DutyState.pieces

    def pieces(self: DutyState) -> Iterator[Any]:
        for piece in original(self):
            piece.ClearField("next_epoch")
            yield piece

    return [(DutyState, "pieces", pieces)]


# Nodes


def lagging_nodes() -> Sequence[Patch]:
    """A node whose table lags sends its state to a shard that has a newer state, and the shard accepts the
    older state.
    """

    async def settled(self: ShardSessions, index: int) -> None:
        pass

    connected, received = ShardMachine._on_connected, ShardMachine._on_received

    def on_connected(self: ShardMachine, event: Connected, now: float) -> None:
        self._known_index = 0
        connected(self, event, now)

    def on_received(self: ShardMachine, event: Received, now: float) -> None:
        self._known_index = 0
        received(self, event, now)

    return [
        (ShardSessions, "settled", settled),
        (ShardMachine, "_on_connected", on_connected),
        (ShardMachine, "_on_received", on_received),
    ]


# The SDK


def count_from_receipt() -> Sequence[Patch]:
    """The shard counts its clearance from the receipt of the grant instead of from its request."""
    original = ShardMachine._on_grant

    def on_grant(self: ShardMachine, grant: ShardGrant, now: float) -> None:
        if grant.sequence in self._sent:
            self._sent[grant.sequence] = now
        original(self, grant, now)

    return [(ShardMachine, "_on_grant", on_grant)]


def release_too_late() -> Sequence[Patch]:
    return [(_machine, "MARGIN", 0.0)]


def report_once() -> Sequence[Patch]:
    """The shard doesn't repeat reports that it sent on a broken session."""
    return [(Reports, "again", lambda _: None)]
