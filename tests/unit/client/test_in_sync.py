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
        # A reassignment from {a,b,c} to {d,e,f}
        ("abcdef", "abc", "def", "def", 0),  # only the former replicas are in sync
        ("abcdef", "ac", "def", "def", 1),  # of the former replicas, b isn't in sync
        ("abcdef", "abcdef", "def", "", 0),  # the new replicas are in sync, too
        ("abcdef", "def", "def", "", 0),  # the former replicas have left the in-sync set
        ("abcdef", "de", "def", "", 1),  # of the new replicas, f isn't in sync
        # Reassignments to more replicas, and to fewer
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
