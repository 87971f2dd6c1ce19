"""The search for leaderships to hand over. Each step reads few rows, even if no other node can lead most partitions."""

from collections import Counter

import pytest

from minka.v1.cluster_pb2 import HashFunction, Partition
from minka.v1.coordinator_pb2 import ControlledShutdownRequest, HandOverRequest
from minkad.core.controller import leaderships
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.leaderships import Leaderships
from minkad.core.controller.selectors import Live
from minkad.core.state.partitions import Partitions
from tests.unit.core.model import Controller

LOOK = 4
ALONE, TWICE = 30, 6  # the numbers of partitions with one replica, and with two


@pytest.fixture
def c(monkeypatch: pytest.MonkeyPatch) -> Controller:
    """A cluster of the nodes `a`, which is stopping, and `b`. `a` leads many partitions that have no other replica, and
    a few that have a replica on `b`.
    """
    monkeypatch.setattr(leaderships, "LOOK", LOOK)
    made = Controller()
    made.register("a")
    made.run(CreateKeyspace("alone", ALONE, HashFunction.HASH_FUNCTION_MURMUR3, 1))
    made.deliver()
    made.register("b")
    made.run(CreateKeyspace("twice", TWICE, HashFunction.HASH_FUNCTION_MURMUR3, 2))
    made.deliver()
    made.run(ControlledShutdownRequest(node_id="a", incarnation=made.state.nodes["a"].incarnation))
    return made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """A counter of the partitions' rows that the code under test reads."""
    counted = Counter[str]()
    read = Partitions.__getitem__

    def counting(rows: Partitions, id_: int) -> Partition:
        counted["rows"] += 1
        return read(rows, id_)

    monkeypatch.setattr(Partitions, "__getitem__", counting)
    return counted


def test_all_leaderships_that_another_node_can_have_are_handed_over(c: Controller, reads: Counter[str]) -> None:
    found = Leaderships()
    live, moved = Live.of(c.state), 0
    found.is_through = False
    for _ in range(4 * (ALONE + TWICE) // LOOK):
        if found.is_through:
            break
        reads.clear()
        records = found.next_steps(c.state, live)
        assert reads["rows"] <= LOOK
        for record in records:
            c.state.apply(record)
        for row in [row for row in c.state.partitions.values() if row.successor]:
            c.run(
                HandOverRequest(
                    node_id="a", partition_id=row.id, partition_epoch=row.partition_epoch, target=row.successor
                )
            )
            moved += 1
    assert moved == TWICE // 2
    assert not any(row.leader == "a" for row in c.state.partitions.of(2))
    assert found.is_through, "a whole round has found nothing"


def test_the_looks_go_on_after_a_round_with_changes(c: Controller) -> None:
    found = Leaderships()
    live = Live.of(c.state)
    for _ in range(3 * (ALONE + TWICE) // LOOK):
        found.next_steps(c.state, live)
        c.state.revision += 1
        assert not found.is_through
