"""Splits and merges in any order while nodes come and go. After every record, the ranges cover all keys."""

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minka.cluster.key_ranges import is_by_ranges
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import CancelOperationRequest
from minkad.core.controller.merges import Merge
from minkad.core.controller.splits import Split
from minkad.core.state import check_ranges, is_up, range_of
from tests.unit.core.model import Controller, check_indexes
from tests.unit.core.ranges import NODES, by_ranges, finish, rows_of

PROBES = [b"", *(bytes([byte]) for byte in range(0, 256, 15))]


@contextmanager
def refusals() -> Iterator[None]:
    """Ignore refusals, which aren't bugs. Other errors fail the test."""
    try:
        yield
    except MinkaError as refusal:
        expected = (Code.OPERATION_RUNNING, Code.STALE_PLAN, Code.PARTITION_OFFLINE, Code.NO_SOURCE)
        if refusal.code not in (*expected, Code.NOT_ENOUGH_NODES):
            raise


class Splitting(RuleBasedStateMachine):
    """Splits and merges while nodes come and go. The ranges always cover all keys, and all operations end."""

    def __init__(self) -> None:
        super().__init__()
        self.c = Controller()
        self.incarnations = 1
        self.c.after_record = self.check
        self.generations: dict[int, int] = {}
        self.of_keys: dict[bytes, int] = {}

    @initialize(replicas=st.integers(1, 3), points=st.sets(st.binary(min_size=1, max_size=2), max_size=3))
    def create(self, replicas: int, points: set[bytes]) -> None:
        self.c.register(*NODES, "delphi")
        by_ranges(self.c, sorted(points), replicas)

    def check(self) -> None:
        state = self.c.state
        for keyspace in filter(is_by_ranges, state.keyspaces.values()):
            rows = [row for row in state.partitions.values() if row.keyspace_id == keyspace.id]
            check_ranges(rows)
        for row in state.partitions.values():
            assert row.generation >= self.generations.get(row.id, 0)
            self.generations[row.id] = row.generation
            for key in filter(range_of(row).contains, PROBES):
                assert row.generation >= self.of_keys.get(key, 0)
                self.of_keys[key] = row.generation
            if row.splitting:
                other = state.partitions[row.split_to or row.split_from]
                assert (row.leader, row.leader_epoch, set(row.isr)) == (
                    other.leader,
                    other.leader_epoch,
                    set(other.isr),
                )

    @invariant()
    def rows_are_found(self) -> None:
        keyspace = self.c.state.keyspace_named("authors")
        if keyspace is not None:
            at = self.c.state.partitions.at
            assert all(range_of(at(keyspace.id, key)).contains(key) for key in (b"", b"a", b"\xff\xff\xff"))
        check_indexes(self.c.state)

    @rule(node=st.sampled_from((*NODES, "delphi")))
    def fail(self, node: str) -> None:
        self.c.fail(node)

    @rule(node=st.sampled_from((*NODES, "delphi")))
    def start(self, node: str) -> None:
        self.incarnations += 1
        self.c.register(node, incarnation=str(self.incarnations))

    @rule(keys=st.lists(st.binary(min_size=1, max_size=2), min_size=1, max_size=4, unique=True))
    def split(self, keys: list[bytes]) -> None:
        with refusals():
            self.c.run(Split("authors", keys, "tester", "test"))

    @precondition(lambda self: len(rows_of(self.c)) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        bounds = [row.start_key for row in rows_of(self.c)[1:]]
        with refusals():
            keys = data.draw(st.sets(st.sampled_from(bounds), min_size=1, max_size=3))
            self.c.run(Merge("authors", sorted(keys), "tester", "test", {}))

    @rule()
    def cancel(self) -> None:
        for operation in self.c.state.running_operations():
            if operation.merge.keys and not operation.cancelled:
                self.c.run(CancelOperationRequest(id=operation.id, requested_by="tester", reason="test"))

    @rule()
    def schedule(self) -> None:
        self.c.schedule()

    @rule()
    def deliver(self) -> None:
        self.c.deliver()

    @rule()
    def finish(self) -> None:
        finish(self.c)

    @rule()
    def lag(self) -> None:
        for row in list(self.c.state.partitions.values()):
            if row.leader and len(row.isr) > 1:
                self.c.alter_isr(self.c.state.partitions[row.id], [row.leader])

    @rule()
    def reassign(self) -> None:
        with refusals():
            plan = self.c.plan()
            if plan.moves:
                self.c.begin(plan)

    @rule()
    def replace_controller(self) -> None:
        self.c.replace_controller()

    def teardown(self) -> None:
        for node in (*NODES, "delphi"):
            if node in self.c.state.nodes and not is_up(self.c.state.nodes[node]):
                self.incarnations += 1
                self.c.register(node, incarnation=str(self.incarnations))
        for _ in range(50):
            self.c.settle()
            finish(self.c)
        assert not self.c.state.running_operations(), self.c.state.running_operations()
        assert not any(row.splitting or row.merge_from for row in self.c.state.partitions.values())
        assert not self.c.state.tombstones


Splitting.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestSplitting = Splitting.TestCase
