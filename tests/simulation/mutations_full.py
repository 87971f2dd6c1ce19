"""Bugs in what is around the Raft core: the driver, the controller, the clearance, the state."""

from collections.abc import Iterator, Sequence
from typing import Any

from minka.errors import Code
from minka.v1.cluster_pb2 import Partition, StateSnapshot
from minka.v1.coordinator_pb2 import HeartbeatRequest, HeartbeatResponse, IsrChange
from minka.v1.raft_pb2 import ConfState
from minkad.coordinator import active_controller
from minkad.coordinator.active_controller import ActiveController
from minkad.coordinator.raft_driver import RaftDriver
from minkad.core.clearance import Clearance
from minkad.core.controller import (
    isr,
    keyspaces,
    node_events,
    operations,
    reassignment,
    rows,
    selectors,
)
from minkad.core.controller.failure_detector import FailureDetector
from minkad.core.controller.selectors import Live, Selection
from minkad.core.raft import Ready
from minkad.core.state import State

Patch = tuple[Any, str, Any]  # where, the attribute's name, its new value


# The driver


def send_before_fsync() -> Sequence[Patch]:
    original = RaftDriver._handle

    async def handle(self: RaftDriver, ready: Ready) -> None:
        self._transport.send(ready.messages)
        ready.messages = []
        await original(self, ready)

    return [(RaftDriver, "_handle", handle)]


def snapshot_with_old_configuration() -> Sequence[Patch]:
    original = RaftDriver._snapshot_if_due

    async def snapshot_if_due(self: RaftDriver) -> None:
        newest = self.conf_state
        self.conf_state = ConfState(voters=newest.voters)
        await original(self)
        self.conf_state = newest

    return [(RaftDriver, "_snapshot_if_due", snapshot_if_due)]


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
        self._confirmed_at = self._now()
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


# Decisions and state


def refuse_before_recorded() -> Sequence[Patch]:
    async def all_recorded(self: ActiveController) -> None:
        pass

    return [(ActiveController, "_all_recorded", all_recorded)]


def election_without_epoch() -> Sequence[Patch]:
    original = rows.elect

    def elect(row: Partition, selection: Selection) -> None:
        original(row, selection)
        row.leader_epoch -= 1

    return [(where, "elect", elect) for where in (rows, keyspaces, node_events)]


def isr_without_epoch() -> Sequence[Patch]:
    original = isr.isr_refusal

    def isr_refusal(state: State, node_id: str, change: IsrChange) -> Code | None:
        refusal = original(state, node_id, change)
        return None if refusal is Code.STALE_EPOCH else refusal

    return [(where, "isr_refusal", isr_refusal) for where in (isr, active_controller)]


def elect_anybody() -> Sequence[Patch]:
    original = selectors.offline_partition_leader_selector

    def selector(row: Partition, live: Live, *, allow_unclean: bool) -> Selection | None:
        return original(row, live, allow_unclean=True)

    return [(node_events, "offline_partition_leader_selector", selector)]


def restart_unnoticed() -> Sequence[Patch]:
    return [(node_events, "_restarted", lambda *_: [])]


def remove_too_early() -> Sequence[Patch]:
    def missing_in_sync(partition: Partition, _: Live) -> list[str]:
        missing = [node for node in partition.target_replicas if node not in partition.isr]
        return missing if len(missing) == len(partition.target_replicas) else []

    return [(reassignment, "missing_in_sync", missing_in_sync)]


def snapshot_forgets() -> Sequence[Patch]:
    original = State.snapshot_pieces

    def snapshot_pieces(self: State) -> Iterator[bytes]:
        snapshot = StateSnapshot.FromString(b"".join(original(self)))
        del snapshot.migrations[:]
        yield snapshot.SerializeToString(deterministic=True)

    return [(State, "snapshot_pieces", snapshot_pieces)]


def never_finish() -> Sequence[Patch]:
    return [(operations, "ENDED", frozenset())]
