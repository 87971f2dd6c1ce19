"""How many in-sync replicas a partition lacks, and whether it has fewer than min_insync."""

import pytest

from minka.cluster.in_sync import is_under_min_insync, missing_in_sync
from minka.v1.cluster_pb2 import Keyspace, Partition


@pytest.mark.parametrize(
    ("replicas", "isr", "target", "adding", "missing"),
    [
        ("abc", "abc", "", "", 0),
        ("abc", "ab", "", "", 1),
        ("abc", "", "", "", 3),
        ("a", "a", "", "", 0),
        # A reassignment from {a,b,c} to {d,e,f}. At first only former replicas are in sync: all of them, or all but b.
        # Then the new ones have joined, and the former ones have left the set. In the last row, f has left it, too.
        ("abcdef", "abc", "def", "def", 0),
        ("abcdef", "ac", "def", "def", 1),
        ("abcdef", "abcdef", "def", "", 0),
        ("abcdef", "def", "def", "", 0),
        ("abcdef", "de", "def", "", 1),
        # Reassignments to more replicas, and to fewer.
        ("abc", "a", "abc", "bc", 0),
        ("abc", "ab", "abc", "c", 0),
        ("abc", "abc", "a", "", 0),
    ],
)
def test_missing_in_sync(replicas: str, isr: str, target: str, adding: str, missing: int) -> None:
    row = Partition(replicas=replicas, isr=isr, target_replicas=target, adding_replicas=adding)
    assert missing_in_sync(row) == missing


def test_under_min_insync() -> None:
    two = Keyspace(min_insync=2)
    assert is_under_min_insync(Partition(isr="a"), two)
    assert not is_under_min_insync(Partition(isr="ab"), two)
    assert is_under_min_insync(Partition(), Keyspace(min_insync=1))
    assert is_under_min_insync(Partition(), Keyspace())
