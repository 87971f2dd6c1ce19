"""Bugs around the Raft core: in the driver, in the controller, in clearance and in the state."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from minka.errors import Code
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import HeartbeatRequest, HeartbeatResponse, IsrChange
from minka.v1.raft_pb2 import ConfState
from minkad.coordinator import active_controller
from minkad.coordinator.active_controller import ActiveController
from minkad.coordinator.controller_calls import ControllerCalls
from minkad.coordinator.deciding import Deciding
from minkad.coordinator.member import Member, MemberSettings
from minkad.coordinator.raft_driver import RaftDriver
from minkad.core.clearance import Clearance
from minkad.core.controller import (
    begin,
    decide,
    isr,
    keyspaces,
    membership,
    node_events,
    partition_change,
    reassignment,
    selectors,
)
from minkad.core.controller.decision import Steps
from minkad.core.controller.failure_detector import FailureDetector
from minkad.core.controller.membership import FailNodes
from minkad.core.controller.operation_kind import OperationKind
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.seats import Seats
from minkad.core.controller.selectors import Live, Selection
from minkad.core.raft import RawNode, Ready
from minkad.core.state import State, is_up
from minkad.core.state.captured import CapturedState

C = TypeVar("C")

Patch = tuple[Any, str, Any]  # the object, the attribute's name, its new value


def decided_by(command: type[C], function: Callable[[State, C, int], Steps[Any]]) -> Patch:
    """Commands of this type are decided by another function."""
    table = decide.COMMANDS
    return (decide, "COMMANDS", {**table, command: table[command]._replace(decide=function)})


# The driver


def send_before_fsync() -> Sequence[Patch]:
    original = RaftDriver._handle

    async def handle(self: RaftDriver, ready: Ready) -> None:
        self._transport.send(ready.messages)
        ready.messages = []
        await original(self, ready)

    return [(RaftDriver, "_handle", handle)]


def snapshot_with_old_configuration() -> Sequence[Patch]:
    original = RaftDriver._snapshot

    async def snapshot(self: RaftDriver, index: int, newest: ConfState, encode: Callable[[], bytes]) -> None:
        await original(self, index, ConfState(voters=newest.voters), encode)

    return [(RaftDriver, "_snapshot", snapshot)]


def compact_needed_entries() -> Sequence[Patch]:
    """The driver trims the log without asking the core which part it still needs."""
    return [(RawNode, "compactable", RawNode.last_index)]


def active_before_applied() -> Sequence[Patch]:
    return [(RaftDriver, "leads_with_applied_term", property(lambda self: self.is_leader))]


def answer_when_proposed() -> Sequence[Patch]:
    original = RaftDriver._propose_queued

    def propose_queued(self: RaftDriver) -> None:
        proposals = list(self._proposals)
        original(self)
        for _, future in proposals:
            if not future.done():
                future.set_result(None)

    return [(RaftDriver, "_propose_queued", propose_queued)]


# Clearance


def serve_after_clearance() -> Sequence[Patch]:
    def holds(self: Clearance, now: float) -> bool:
        return now < self._until + 0.3

    return [(Clearance, "holds", holds)]


def grant_unconfirmed() -> Sequence[Patch]:
    original = ActiveController.heartbeat

    def heartbeat(self: ActiveController, request: HeartbeatRequest) -> HeartbeatResponse:
        self.confirmed_at = self._now()
        return original(self, request)

    return [(ActiveController, "heartbeat", heartbeat)]


def no_grace() -> Sequence[Patch]:
    def deadline(self: FailureDetector, node: str) -> float:
        return self._heard.get(node, self.started_at) + self.timeout * (node in self._heard)

    return [(FailureDetector, "deadline", deadline)]


def fail_too_early() -> Sequence[Patch]:
    original = FailureDetector.deadline

    def deadline(self: FailureDetector, node: str) -> float:
        return original(self, node) - self.timeout / 2

    return [(FailureDetector, "deadline", deadline)]


# Failed nodes


def fail_without_confirmation() -> Sequence[Patch]:
    """The controller marks silent nodes FAILED without waiting until a quorum confirms that it still leads. So it marks
    them even if they only seem silent because the controller was paused.
    """

    async def keep_leading(self: ActiveController) -> None:
        while True:
            self._log.confirm_leadership(self._now(), self._confirmed)
            await self._fail_silent_nodes()
            await asyncio.sleep(active_controller.TICK)

    def silent_nodes(self: ActiveController) -> list[str]:
        others = [node.id for node in self.decided.nodes.values() if is_up(node) and node.raft_id != self._raft_id]
        return self.detector.silent(others, self._now())

    return [
        (ActiveController, "_keep_leading", keep_leading),
        (ActiveController, "_silent_nodes", silent_nodes),
        (FailureDetector, "suspects_itself", lambda *_: False),
    ]


def judge_itself() -> Sequence[Patch]:
    def silent_nodes(self: ActiveController) -> list[str]:
        up = [node.id for node in self.decided.nodes.values() if is_up(node)]
        return self.detector.silent(up, self.confirmed_at)

    return [(ActiveController, "_silent_nodes", silent_nodes), *no_time_to_find_it()]


def no_time_to_find_it() -> Sequence[Patch]:
    original = FailureDetector.__post_init__

    def post_init(self: FailureDetector) -> None:
        original(self)
        self._since = self.started_at - self.timeout

    return [(FailureDetector, "__post_init__", post_init)]


def wait_for_silent_controller() -> Sequence[Patch]:
    """Calls and heartbeats go on waiting for a silent controller, although Raft already has another leader."""
    patience = 2.0

    @asynccontextmanager
    async def waiting(_: ControllerCalls, _address: str, seconds: float) -> AsyncGenerator[None, None]:
        async with asyncio.timeout(max(seconds, patience)):
            yield

    return [
        (Member, "leader_changed", lambda _: None),
        (ControllerCalls, "waiting", waiting),
        (MemberSettings, "call_timeout", patience),
    ]


def fail_nodes_one_by_one() -> Sequence[Patch]:
    """If several nodes fail together, the controller takes them out of in-sync sets one by one."""
    original = membership.fail

    def without(state: State, partition: Partition, node_ids: Collection[str], live: Live) -> list[Partition]:
        rows = original_without(state, partition, node_ids, live)
        if rows or not set(node_ids) & set(partition.isr):
            return rows
        return [PartitionChange(partition).set_isr([node for node in partition.isr if node not in node_ids]).row()]

    def fail(state: State, command: FailNodes, now_ms: int) -> Steps[None]:
        for node, reason in command.reasons.items():
            yield from original(state, FailNodes({node: reason}), now_ms)

    def select(row: Partition, live: Live, *, allow_unclean: bool) -> Selection | None:
        selection = original_select(row, live, allow_unclean=allow_unclean)
        return selection and replace(selection, isr=tuple(node for node in selection.isr if node in live.up))

    original_without, original_select = node_events._without_nodes, selectors.offline_partition_leader_selector
    return [
        decided_by(FailNodes, fail),
        (node_events, "_without_nodes", without),
        (node_events, "offline_partition_leader_selector", select),
        *wait_for_silent_controller(),
        *no_time_to_find_it(),
        (FailureDetector, "suspects_itself", lambda *_: False),
    ]


# Decisions and state


def refuse_before_recorded() -> Sequence[Patch]:
    async def up_to_date(self: Deciding) -> None:
        pass

    return [(Deciding, "up_to_date", up_to_date)]


def election_without_epoch() -> Sequence[Patch]:
    original = partition_change.elect

    def elect(row: Partition, selection: Selection) -> None:
        original(row, selection)
        row.leader_epoch -= 1

    return [(where, "elect", elect) for where in (partition_change, keyspaces)]


def isr_without_epoch() -> Sequence[Patch]:
    original = isr.isr_refusal

    def isr_refusal(state: State, node_id: str, change: IsrChange) -> Code | None:
        refusal = original(state, node_id, change)
        return None if refusal is Code.STALE_EPOCH else refusal

    return [(isr, "isr_refusal", isr_refusal)]


def elect_anybody() -> Sequence[Patch]:
    original = selectors.offline_partition_leader_selector

    def selector(row: Partition, live: Live, *, allow_unclean: bool) -> Selection | None:
        return original(row, live, allow_unclean=True)

    return [(node_events, "offline_partition_leader_selector", selector)]


def restart_unnoticed() -> Sequence[Patch]:
    return [(node_events, "_restarted", lambda *_: [])]


def remove_too_early() -> Sequence[Patch]:
    def missing_in_sync(partition: Partition, *_: object) -> list[str]:
        missing = [node for node in partition.target_replicas if node not in partition.isr]
        return missing if len(missing) == len(partition.target_replicas) else []

    return [(reassignment, "missing_in_sync", missing_in_sync)]


def seat_without_zones() -> Sequence[Patch]:
    return [(Seats, "move", lambda *_: None)]


def snapshot_forgets() -> Sequence[Patch]:
    original = CapturedState.pieces

    def pieces(self: CapturedState) -> Iterator[bytes]:
        return original(replace(self, migrations=[]))

    return [(CapturedState, "pieces", pieces)]


def never_finish() -> Sequence[Patch]:
    return [(OperationKind, "end", lambda *_: None)]


def no_conflicts() -> Sequence[Patch]:
    return [(begin, "conflicts", lambda *_: iter(()))]
