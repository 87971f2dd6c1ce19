"""Merges automatically those neighbours in keyspaces by ranges that stay small and cold.

Two neighbours are merged only if together they have to double before they would be split again, and have been so small
for a while, so that no partition is split and merged again and again. A bound that a person chose stays: a person may
divide a keyspace before it is filled (CockroachDB keeps a manual split until it is taken back).
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from minka.ranges import is_by_ranges
from minka.v1.cluster_pb2 import Keyspace, Partition
from minka.v1.coordinator_pb2 import ReplicaStats
from minkad.core.controller.balancer import View
from minkad.core.controller.merges import Merge
from minkad.core.controller.operation_kind import Touch
from minkad.core.controller.operation_kinds import kind_of
from minkad.core.controller.splits import Ranges, obstacle
from minkad.core.state import State

INTERVAL_S: Final = 1.0
SHARE: Final = 0.5  # of one partition's limits, which two together may have at most
MAX_BYTES: Final = 64 * 1024 * 1024  # of two together, if the keyspace has no limit of bytes
AT_ONCE: Final = 16  # bounds in one operation

_Pair = tuple[int, int, int, int]  # ids and generations


class MergeChecker:
    """Times are seconds of the active controller's monotonic clock. A new controller counts from the beginning."""

    def __init__(self) -> None:
        self._looked_at = float("-inf")
        self._since: dict[_Pair, float] = {}

    def due(self, view: View) -> Merge | None:
        """The merges in one keyspace of neighbours that have been small and cold for long enough; None if there are
        none.
        """
        state, now, after = view.state, view.now, view.merge_after
        if not after or now - self._looked_at < INTERVAL_S:
            return None
        self._looked_at = now
        keyspaces = [keyspace for keyspace in state.keyspaces.values() if _splits_itself(keyspace)]
        if not keyspaces:
            return None
        known = {one.partition_id: one for one in view.stats()}
        since: dict[_Pair, float] = {}
        due: Merge | None = None
        for keyspace in keyspaces:
            merge = self._look_at(state, keyspace, known, now, after, since)
            due = due or merge
        self._since = since
        return due

    def _look_at(
        self,
        state: State,
        keyspace: Keyspace,
        known: Mapping[int, ReplicaStats],
        now: float,
        after: float,
        since: dict[_Pair, float],
    ) -> Merge | None:
        keys: list[bytes] = []
        taken: set[int] = set()
        for left, right in _pairs(state, keyspace, known):
            pair = (left.id, right.id, left.generation, right.generation)
            since[pair] = self._since.get(pair, now)
            if now - since[pair] >= after and left.id not in taken and len(keys) < AT_ONCE:
                taken.add(right.id)
                keys.append(right.start_key)
        if not keys or not _is_free(state, keyspace):
            return None
        sizes = {id_: one.bytes for id_, one in known.items()}
        return Merge(keyspace.name, keys, "", f"small and cold for {after:.0f} s", sizes, automatic=True)


def _splits_itself(keyspace: Keyspace) -> bool:
    return is_by_ranges(keyspace) and bool(keyspace.max_bytes or keyspace.max_ops)


def _is_free(state: State, keyspace: Keyspace) -> bool:
    """Whether nothing is being moved, and no operation changes the keyspace's ranges."""
    return not state.moving and not any(
        (Touch.CUTS, keyspace.id) in kind_of(operation).touches(state, operation)
        for operation in state.running_operations()
    )


def _pairs(
    state: State, keyspace: Keyspace, known: Mapping[int, ReplicaStats]
) -> Iterator[tuple[Partition, Partition]]:
    """The pairs of neighbours that are small and cold now, in the order of their keys."""
    for left, right in pairwise(Ranges(state, keyspace.id).rows):
        one, other = known.get(left.id), known.get(right.id)
        if one is None or other is None or right.keeps_start:
            continue
        if obstacle(state, left) is not None or obstacle(state, right) is not None:
            continue
        is_small = one.bytes + other.bytes <= SHARE * keyspace.max_bytes if keyspace.max_bytes else _fits(one, other)
        is_cold = not keyspace.max_ops or one.ops + other.ops <= SHARE * keyspace.max_ops
        if is_small and is_cold:
            yield left, right


def _fits(one: ReplicaStats, other: ReplicaStats) -> bool:
    return one.bytes + other.bytes <= MAX_BYTES
