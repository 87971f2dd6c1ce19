"""A node's measurement of the load of its replicas."""

from dataclasses import dataclass
from typing import cast

from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.changing.load_check import Meter
from minkad.replication.reading.replica_load import Load, Sample


@dataclass
class Stub:
    """A replica that has only its load."""

    id: int
    load: Load


class Node:
    """A node's replicas, its clock, and the processor time that its process has used."""

    def __init__(self, count: int) -> None:
        self.now = self.cpu = 0.0
        self.used: set[int] = set()
        self.stubs = {id_: Stub(id_, Load(id_, self.used)) for id_ in range(1, count + 1)}
        self.meter = Meter(cast(dict[int, HostedReplica], self.stubs), self.used, lambda: self.now, lambda: self.cpu)

    def second(self, cpu: float = 0.0, **ops: int) -> list[int]:
        """Let a second pass with these operations. Returns the ids of the partitions that have load."""
        for name, count in ops.items():
            self.stubs[int(name[1:])].load.count([b"k"] * count)
        self.now += 1
        self.cpu += cpu
        return [replica.id for replica in self.meter.tick()]


def test_rates_follow_the_load_and_fall_to_zero() -> None:
    node = Node(3)
    for _ in range(8):
        assert node.second(cpu=0.9, p1=3000, p2=1000) == [1, 2]
    ops, cpu_percent, _ = node.stubs[1].load.reported()
    assert 2980 <= ops <= 3000
    assert 66 <= cpu_percent <= 68
    assert node.stubs[2].load.reported()[1] == 22
    seconds = 0
    while node.second(cpu=0.01):
        seconds += 1
    assert 8 < seconds < 20, "the rate falls by half again and again until it is 0"
    assert node.stubs[1].load.reported() == (0, 0, "")


def test_a_request_without_keys_does_not_count_as_load() -> None:
    """The load stays 0, even if a request without keys is the only request since the node's start."""
    node = Node(1)
    node.stubs[1].load.count([])
    assert node.second(cpu=0.5) == [1]
    assert node.stubs[1].load.reported() == (0, 0, "")


def test_a_peak_counts_for_two_seconds() -> None:
    """After a peak, the measured rate fades slowly, but the steady rate is low after two seconds."""
    node = Node(1)
    load = node.stubs[1].load
    for _ in range(2):
        node.second(p1=100_000)
    assert load.steady_ops > 50_000
    node.second(p1=10)
    assert load.ops > 30_000
    assert load.steady_ops == 20
    for _ in range(20):
        node.second(p1=600)
        node.second(p1=1000)
    assert load.steady_ops > 600, "a rate that goes up and down counts as steady"


def test_rates_are_right_after_a_late_tick() -> None:
    node = Node(1)
    for _ in range(10):
        node.second(p1=100)
    node.now += 4
    node.second(p1=500)
    assert round(node.stubs[1].load.ops) == 100


def test_a_page_of_a_scan_counts_less_than_its_rows() -> None:
    load = Load(1, set())
    load.count_page(b"a", b"b", 0)
    load.count_page(b"a", b"b", 2000)
    load.count([b"a"] * 100)
    assert load.served == 1 + 201 + 100
    assert load.sample is None, "a partition that isn't busy has no sample"


def test_a_sample_of_requests_is_even_and_limited() -> None:
    """Each key has the same chance, alone or in a batch. The chance of a scan is in proportion to its cost."""
    sample = Sample(10)
    for i in range(1000):
        sample.add([b"batch-%d" % (i % 2)] * 9)
        sample.add([b"alone"])
        sample.add_scan((b"from", b"to"), 10)
    assert len(sample.spans) == 1000
    kinds = [span[0].split(b"-")[0] for span in sample.spans]
    assert 380 <= kinds.count(b"batch") <= 520
    assert 20 <= kinds.count(b"alone") <= 85
    assert 430 <= kinds.count(b"from") <= 570
    assert set(sample.spans) == {(b"batch-0",) * 2, (b"batch-1",) * 2, (b"alone",) * 2, (b"from", b"to")}


def test_a_sample_of_few_requests_has_all_of_them() -> None:
    sample = Sample(1)
    sample.add([b"a", b"b", b"c"])
    sample.add([b"d"])
    assert [span[0] for span in sample.spans] == [b"a", b"b", b"c", b"d"]


def test_a_split_begins_a_new_sample() -> None:
    load = Load(1, set())
    load.ops = 100_000.0
    load.begin(1.0, generation=1)
    assert load.sample is not None
    assert load.sample.stride == 1000
    load.count([b"k"] * 5000)
    assert load.sample.spans
    load.not_split = "too busy"
    load.begin(2.0, generation=1)
    assert (load.looked_at, load.not_split) == (1.0, "too busy")
    load.begin(3.0, generation=2)
    assert not load.sample.spans
    assert (load.looked_at, load.not_split) == (3.0, "")
    load.cool()
    assert load.sample is None
