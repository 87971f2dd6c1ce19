"""Automatically merges neighbours in keyspaces by ranges that stay small and cold.

Two neighbours are merged only if together they have had at most half of the limits for a while: of `max_bytes` 64 MiB,
at most 32 MiB. The merged partition has to double before it is split again, so partitions aren't split and merged again
and again. A bound that a person chose stays: a person may divide a keyspace before filling it (CockroachDB keeps a
manual split until somebody takes it back).
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from minka.cluster.key_ranges import is_by_ranges
from minka.v1.cluster_pb2 import Keyspace
from minka.v1.coordinator_pb2 import ReplicaStats
from minkad.core.controller.balancer import View
from minkad.core.controller.merges import Merge, Pair
from minkad.core.controller.operation_kind import Touch
from minkad.core.controller.operation_kinds import kind_of
from minkad.core.controller.splits import obstacle
from minkad.core.state import State

INTERVAL_S: Final = 1.0
SHARE: Final = 0.5  # of one partition's limits; two together may have at most this
MAX_BYTES: Final = 64 * 1024 * 1024  # of two together, if the keyspace has no limit of bytes
AT_ONCE: Final = 16  # bounds in one operation
PAIRS_A_LOOK: Final = 1000  # they take about two milliseconds

_Pair = tuple[int, int, int, int]  # ids and generations


class MergeChecker:
    """Looks at all pairs in rounds, PAIRS_A_LOOK at each call. A round begins at most once a second, and with many
    pairs it takes longer. Times are seconds of the active controller's monotonic clock.
    """

    def __init__(self) -> None:
        self._began_at = float("-inf")
        self._round: Iterator[Merge | None] = iter(())
        self._since: dict[_Pair, float] = {}  # by pair: since when this controller has seen it small and cold

    def due(self, view: View) -> Merge | None:
        """The merges, in one keyspace, of neighbours that have been small and cold for long enough; None if there are
        none.
        """
        for merge in self._round:
            return merge
        if view.merge_after and view.now - self._began_at >= INTERVAL_S:
            self._began_at = view.now
            self._round = self._look(view)
            return next(self._round, None)
        return None

    def _look(self, view: View) -> Iterator[Merge | None]:
        """One round. Yields None after each piece, and at the end the merge that is due."""
        state, since, looked = view.state, dict[_Pair, float](), 0
        due: Merge | None = None
        keyspaces = [keyspace for keyspace in state.keyspaces.values() if _splits_itself(keyspace)]
        known = {one.partition_id: one for one in view.stats()} if keyspaces else {}
        for keyspace in keyspaces:
            keys: dict[bytes, Pair] = {}
            for left, right in pairwise(state.partitions.in_order(keyspace.id)):
                looked += 1
                if looked % PAIRS_A_LOOK == 0:
                    yield None
                if (pair := _small_and_cold(state, keyspace, left, right, known)) is None:
                    continue
                name = (left, right, pair.left.generation, pair.right.generation)
                since[name] = self._since.get(name, view.now)
                is_due = view.now - since[name] >= view.merge_after
                if is_due and pair.left.start_key not in keys and len(keys) < AT_ONCE:
                    keys[pair.right.start_key] = pair
            if keys and not due and _is_free(state, keyspace):
                sizes = {row.id: known[row.id].bytes for pair in keys.values() for row in pair}
                reason = f"small and cold for {view.merge_after:.0f} s"
                due = Merge(keyspace.name, list(keys), "", reason, sizes, automatic=True)
        self._since = since
        yield due


def _splits_itself(keyspace: Keyspace) -> bool:
    return is_by_ranges(keyspace) and bool(keyspace.max_bytes or keyspace.max_ops)


def _is_free(state: State, keyspace: Keyspace) -> bool:
    """True if nothing is being moved, and no operation changes the keyspace's ranges."""
    return not state.moving and not any(
        (Touch.CUTS, keyspace.id) in kind_of(operation).touches(state, operation)
        for operation in state.running_operations()
    )


def _small_and_cold(
    state: State, keyspace: Keyspace, left_id: int, right_id: int, known: Mapping[int, ReplicaStats]
) -> Pair | None:
    """The pair, if both are small and cold now and may be merged."""
    one, other = known.get(left_id), known.get(right_id)
    if one is None or other is None:
        return None
    is_small = one.bytes + other.bytes <= SHARE * keyspace.max_bytes if keyspace.max_bytes else _fits(one, other)
    is_cold = not keyspace.max_ops or one.ops + other.ops <= SHARE * keyspace.max_ops
    left, right = state.partitions.get(left_id), state.partitions.get(right_id)
    if not is_small or not is_cold or left is None or right is None:
        return None
    if right.keeps_start or left.end_key != right.start_key:
        return None
    is_free = obstacle(state, left) is None and obstacle(state, right) is None
    return Pair(left, right) if is_free else None


def _fits(one: ReplicaStats, other: ReplicaStats) -> bool:
    return one.bytes + other.bytes <= MAX_BYTES
