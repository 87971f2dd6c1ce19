"""What the data plane needs of the rest of the node."""

from collections.abc import Collection
from typing import Protocol

from minka.v1.cluster_pb2 import Operation, Partition
from minka.v1.coordinator_pb2 import (
    AlterIsrRequest,
    AlterIsrResponse,
    FinishMergeRequest,
    FinishSplitRequest,
    HandOverRequest,
    ProposeSplitRequest,
)
from minkad.core.replication.node import ClusterView


class Controller(Protocol):
    """What is asked of the active controller. A call may raise a MinkaError; unless that says by its code that the
    controller has refused, the outcome counts as unknown, so it must not hide an unknown one behind a refusal.
    """

    async def hand_over(self, request: HandOverRequest) -> Partition:
        """The partition's new row."""

    async def alter_isr(self, request: AlterIsrRequest) -> AlterIsrResponse:
        """A result for each change."""

    async def propose_split(self, request: ProposeSplitRequest) -> list[Partition]:
        """The rows of both halves."""

    async def finish_split(self, request: FinishSplitRequest) -> list[Partition]:
        """The rows of both halves."""

    async def finish_merge(self, request: FinishMergeRequest) -> list[Partition]:
        """The row of what both are now, and the last one of what is part of it."""


class ClusterTable(ClusterView, Protocol):
    """This node's own copy of the table, and its clearance."""

    def has_clearance(self) -> bool:
        """Whether this node may serve now."""

    def row(self, partition_id: int) -> Partition | None:
        """The partition's row."""

    def is_gone(self, partition_id: int) -> bool:
        """Whether it was merged into another one."""

    def operation_moving(self, partition_id: int) -> Operation | None:
        """The operation that moves the partition."""


class Observer(Protocol):
    """What is counted."""

    def writes_waited(self, seconds: float) -> None:
        """Writes to a partition waited so long for a hand-over."""

    def isr_changed(self, old: Collection[str], new: Collection[str]) -> None:
        """The in-sync set of a partition that this node leads."""

    def damage_found(self) -> None:
        """A copy is damaged."""
