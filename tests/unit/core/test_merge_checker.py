"""Automatic merges of partitions that stay small and cold, and won't soon be split again."""

import pytest

from minka.v1.cluster_pb2 import HashFunction
from minka.v1.coordinator_pb2 import ProposeSplitRequest, ReplicaStats
from minkad.core.controller import merge_checker
from minkad.core.controller.balancer import View
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.merge_checker import MergeChecker
from minkad.core.controller.merges import Merge
from tests.unit.core.model import Controller
from tests.unit.core.ranges import NODES, finish, rows_of, split

MIB = 1 << 20
AFTER = 60.0


class Cold:
    """A keyspace that has split automatically at b, d and f, a merge checker, and a clock that the test sets."""

    def __init__(self, max_bytes: int = 4 * MIB, max_ops: int = 1000) -> None:
        self.c = c = Controller()
        c.register(*NODES)
        nothing = HashFunction.HASH_FUNCTION_UNSPECIFIED
        c.run(CreateKeyspace("authors", 0, nothing, 3, split_points=[], max_bytes=max_bytes, max_ops=max_ops))
        c.deliver()
        for key in (b"f", b"d", b"b"):
            self.split_itself(key)
        self.now = 1000.0
        self.stats = {row.id: ReplicaStats(partition_id=row.id, bytes=1000, ops=1) for row in rows_of(c)}
        self.cold = MergeChecker()

    def split_itself(self, key: bytes) -> None:
        row = rows_of(self.c)[0]
        self.c.run(ProposeSplitRequest(node_id=row.leader, partition_id=row.id, generation=row.generation, key=key))
        finish(self.c)
        self.c.deliver()

    def due(self, seconds: float = 1.0) -> Merge | None:
        self.now += seconds
        return self.cold.due(View(self.c.state, lambda: list(self.stats.values()), self.now, merge_after=AFTER))

    def keys(self, seconds: float = 1.0) -> list[bytes]:
        merge = self.due(seconds)
        return [] if merge is None else list(merge.keys)


def test_small_and_cold_pairs_are_merged_after_a_while() -> None:
    cold = Cold()
    assert cold.keys() == []
    assert cold.keys(AFTER - 2) == []
    merge = cold.due(2)
    assert merge is not None
    assert (list(merge.keys), merge.automatic, merge.reason) == ([b"b", b"f"], True, "small and cold for 60 s")
    cold.c.run(merge)
    cold.c.settle()
    assert cold.keys(AFTER) == [], "one operation at a time"
    finish(cold.c)
    assert [row.end_key for row in rows_of(cold.c)] == [b"d", b""]
    assert cold.keys() == [], "the time of a merged partition begins again"
    assert cold.keys(AFTER) == [b"d"]


@pytest.mark.parametrize(("field", "value"), [("bytes", 2 * MIB), ("ops", 500)])
def test_a_pair_that_would_soon_be_split_again_is_not_merged(field: str, value: int) -> None:
    cold = Cold()
    _, second, *_ = rows_of(cold.c)
    setattr(cold.stats[second.id], field, value)
    cold.due()
    assert cold.keys(AFTER) == [b"f"]


def test_the_time_of_a_pair_starts_again_when_it_is_busy_or_the_controller_changes() -> None:
    cold = Cold()
    first, *_ = rows_of(cold.c)
    cold.due()
    cold.stats[first.id].ops = 900
    cold.due(AFTER - 5)
    cold.stats[first.id].ops = 0
    assert cold.keys(10) == [b"d"], "the first pair was too busy"
    assert cold.keys(AFTER) == [b"b", b"f"]
    cold.cold = MergeChecker()
    assert cold.keys(AFTER) == [], "another controller starts counting again"


def test_a_split_by_a_person_is_not_undone() -> None:
    cold = Cold()
    split(cold.c, b"e")
    finish(cold.c)
    cold.c.deliver()
    for row in rows_of(cold.c):
        cold.stats.setdefault(row.id, ReplicaStats(partition_id=row.id))
    cold.due()
    assert cold.keys(AFTER) == [b"b", b"f"]
    assert b"e" not in cold.keys(5 * AFTER)


def test_nothing_is_merged_without_limits_or_if_merges_are_turned_off() -> None:
    cold = Cold(max_bytes=0, max_ops=0)
    cold.due()
    assert cold.due(AFTER) is None, "it doesn't split itself"
    cold = Cold(max_bytes=0)
    first, *_ = rows_of(cold.c)
    cold.stats[first.id].bytes = 64 * MIB
    cold.due()
    assert cold.keys(AFTER) == [b"d"]
    cold = Cold()
    cold.due()
    assert cold.cold.due(View(cold.c.state, lambda: list(cold.stats.values()), cold.now + AFTER)) is None


def test_a_pair_is_not_merged_while_one_partition_is_not_reported() -> None:
    cold = Cold()
    first, *_ = rows_of(cold.c)
    del cold.stats[first.id]
    cold.due()
    assert cold.keys(AFTER) == [b"d"]


def test_a_round_over_many_pairs_takes_several_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_checker, "PAIRS_A_LOOK", 2)
    cold = Cold()
    assert [cold.keys(0) for _ in range(3)] == [[], [], []], (
        "two looks for three pairs; the second round is not due yet"
    )
    cold.now += AFTER
    assert cold.keys(0) == [], "the first look of the round"
    assert cold.keys(0) == [b"b", b"f"]
