"""What the leaderships of one node share."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minka.v1.cluster_pb2 import Keyspace, Partition
from minka.v1.coordinator_pb2 import (
    AlterIsrRequest,
    AlterIsrResponse,
    FinishMergeRequest,
    FinishSplitRequest,
    HandOverRequest,
    ProposeSplitRequest,
)
from minkad.replication.links import ReplicationLinks
from minkad.replication.replica import Replica
from minkad.replication.shipping import RateLimit
from minkad.storage.replica_store import ReplicaStore

if TYPE_CHECKING:
    from minkad.replication.feed import Feed
    from minkad.replication.leadership import Leadership


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Seconds and bytes."""

    lag_timeout: float = 2.0  # a replica that has not caught up for so long is not in sync any more
    concurrent_shipping: int = 4  # checkpoints taken and sent at a time by this node
    chunk_bytes: int = 1024 * 1024  # of a checkpoint; what a message costs is hardly more for more bytes
    log_only_bytes: int = 256 * 1024  # a partition with no more than this in its log is sent without a checkpoint
    fence_timeout: float = 0.5  # the longest that writes wait for the successor to catch up
    first_backoff: float = 0.05
    longest_backoff: float = 1.0


@dataclass(frozen=True, slots=True)
class ControllerCalls:
    """What is asked of the active controller. A call may raise a MinkaError; unless that says by its code that the
    controller has refused, the outcome counts as unknown, so it must not hide an unknown one behind a refusal.
    """

    hand_over: Callable[[HandOverRequest], Awaitable[Partition]]
    alter_isr: Callable[[AlterIsrRequest], Awaitable[AlterIsrResponse]]
    propose_split: Callable[[ProposeSplitRequest], Awaitable[list[Partition]]]
    finish_split: Callable[[FinishSplitRequest], Awaitable[list[Partition]]]
    finish_merge: Callable[[FinishMergeRequest], Awaitable[list[Partition]]]


@dataclass(slots=True)
class LeaderContext:
    """See ReplicaManager for those of the same name there."""

    node_id: str
    store: ReplicaStore
    links: ReplicationLinks
    settings: ReplicationSettings
    shipping: asyncio.Semaphore
    rate_limit: RateLimit
    hand_over: Callable[[HandOverRequest], Awaitable[Partition]]
    clock: Callable[[], float]
    feed_to: Callable[[str], "Feed"]
    learn: Callable[[Partition], None]  # a newer row
    changed: Callable[[Replica], None]  # fenced or not: whoever waits looks again
    advance: Callable[[Replica], None]  # its high watermark may move
    propose: Callable[["Leadership"], None]  # its `proposed` is to be recorded
    on_fence: Callable[[float], None]
    is_made: Callable[[int], bool]  # whether what a split makes is here
    is_absent: Callable[[str], bool]  # whether a node has failed or left, as far as this one knows
    low_disks: Callable[[], Collection[str]]  # the nodes that are short of disk space


KnownKeyspace = Callable[[int], Keyspace | None]
