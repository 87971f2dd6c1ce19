"""Answers questions about a partition's replicas from its row, for the metrics and for minkactl."""

from collections.abc import Collection, Sequence
from typing import Protocol

from minka.v1.cluster_pb2 import Keyspace, Partition


class Replicated(Protocol):
    """The fields of a partition's row that `missing_in_sync` and `is_under_min_insync` need: the row may be a
    `minka.v1.Partition`, or the part of a row that a node keeps to count partitions (`minkad.core.table_counts`).
    """

    @property
    def replicas(self) -> Sequence[str]:
        """The assigned replicas."""

    @property
    def isr(self) -> Sequence[str]:
        """The replicas in sync."""

    @property
    def adding_replicas(self) -> Sequence[str]:
        """New replicas that have not joined the in-sync set yet."""

    @property
    def target_replicas(self) -> Sequence[str]:
        """The replicas after the reassignment that runs; empty if none runs."""


def eligible_replicas(row: Partition) -> Sequence[str]:
    """The replicas outside of the isr that have all committed entries, and may lead if no replica in the isr can. The
    row's field `eligible` counts only at the partition epoch at which it was written: a controller of an older version
    copies the field into later rows without reading it, so a copy may be out of date.
    """
    return row.eligible if row.eligible and row.eligible_at == row.partition_epoch else ()


def has_everything(row: Partition) -> list[str]:
    """The replicas that have all committed entries: those in sync, and the eligible ones."""
    return [*row.isr, *eligible_replicas(row)]


def is_sole(node: str, whole: Collection[str]) -> bool:
    """True if no other node than this one is in `whole`, the nodes that have all committed entries."""
    return {node}.issuperset(whole)


def kept_replicas(row: Partition) -> list[str]:
    """The replicas that a person may let lead although their copies may lack acknowledged writes."""
    return [node for node in row.replicas if node not in (*row.adding_replicas, *row.removing_replicas)]


def missing_in_sync(row: Replicated) -> int:
    """The number of replicas that the partition lacks in its isr. If it is above 0, the partition is under-replicated.
    While replicas are being added, the partition needs only as many as it had before (as Kafka counts under-replicated
    partitions).
    """
    needed = min(len(row.target_replicas or row.replicas), len(row.replicas) - len(row.adding_replicas))
    return max(needed - len(row.isr), 0)


def is_under_min_insync(row: Replicated, keyspace: Keyspace) -> bool:
    """True if the partition has fewer replicas in sync than its keyspace needs for a write. Writes are then refused."""
    return len(row.isr) < max(1, keyspace.min_insync)
