"""A keyspace by ranges on real daemons behaves like a sorted dict: puts, deletes, gets and scans have the same results.
Meanwhile partitions are split (by hand and by size), merged and moved, and nodes restart.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from minka import Client
from minka.admin.control import Control
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, Partition
from minkactl.counting import counted
from tests.cluster.cluster import QUICK, eventually, wait_settled

NODES = ("athens", "byzantium", "cyrene")
MAX_BYTES = 128 * 1024
STEPS = 96
RESTARTS = 2
# After these codes, the write wasn't done, or its outcome is unknown. There is only one writer, so the writer can
# safely repeat the write.
AGAIN = frozenset({Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED, Code.UNREACHABLE, Code.NO_CLEARANCE})
# An admin may get these codes while other operations are under way, or nodes restart.
LATER = frozenset(
    {Code.OPERATION_RUNNING, Code.STALE_PLAN, Code.PARTITION_OFFLINE, Code.NO_SOURCE, Code.NOT_ENOUGH_NODES,
     Code.NO_CONTROLLER, Code.NOT_CONTROLLER, Code.UNREACHABLE, Code.OUTCOME_UNKNOWN, Code.INVALID_ARGUMENT,
     Code.DEADLINE_EXCEEDED, Code.NO_BOUND, Code.MERGE_REFUSED}
)  # fmt: skip

numbers = itertools.count(1)
keys = st.integers(0, 2999).map(lambda number: b"%04d" % number)


class Ranges(RuleBasedStateMachine):
    """The rules by which Hypothesis makes examples. The steps of each example work on its own new keyspace."""

    cluster: ClassVar[LocalCluster]
    done: ClassVar[set[str]]  # the kinds of operations that have begun at least once

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[bytes, bytes] = {}
        self.owners: dict[tuple[int, int], str] = {}  # the leader, by partition and leader_epoch
        self.versions: dict[int, int] = {}
        self.restarts = 0
        self.steps = 0
        self.control = Control(self.cluster.endpoints, timeout=10)
        nothing = HashFunction.HASH_FUNCTION_UNSPECIFIED
        name = f"authors{next(numbers)}"
        self.keyspace = self.control.create_keyspace(name, 0, nothing, 3, split_points=[], max_bytes=MAX_BYTES)
        wait_settled(self.control, live=3)
        self.client = Client(self.cluster.endpoints, keyspace=name, timeout=20)

    @initialize(number=st.integers(0, 1 << 32))
    def is_mixed(self, number: int) -> None:
        """Reject Hypothesis's first example. It makes only the simplest choices, so it would repeat a single rule."""
        assume(number)

    # Data

    @rule(chosen=st.lists(keys, min_size=1, max_size=60), size=st.integers(0, 800), seed=st.integers(0, 1 << 32))
    def put(self, chosen: list[bytes], size: int, seed: int) -> None:
        rng = random.Random(seed)
        pairs = {key: rng.randbytes(rng.randrange(size + 1)) for key in chosen}
        self.again(lambda: self.client.put_many(pairs))
        self.rows.update(pairs)

    @rule(first=st.integers(0, 2900), count=st.integers(1, 100), size=st.integers(100, 2000))
    def put_neighbours(self, first: int, count: int, size: int) -> None:
        pairs = {b"%04d" % number: bytes(size) for number in range(first, first + count)}
        self.again(lambda: self.client.put_many(pairs))
        self.rows.update(pairs)

    @rule(chosen=st.sets(keys, min_size=1, max_size=20))
    def delete(self, chosen: set[bytes]) -> None:
        self.again(lambda: self.client.delete_many(chosen))
        for key in chosen:
            self.rows.pop(key, None)

    @rule(chosen=st.lists(keys, min_size=1, max_size=50))
    def get(self, chosen: list[bytes]) -> None:
        assert self.client.get_many(chosen) == {key: self.rows[key] for key in chosen if key in self.rows}

    @rule(
        bounds=st.tuples(st.one_of(st.just(b""), keys), st.one_of(st.just(b""), keys)),
        reverse=st.booleans(),
        limit=st.sampled_from([None, 1, 10, 500]),
    )
    def scan(self, bounds: tuple[bytes, bytes], reverse: bool, limit: int | None) -> None:
        start, end = bounds
        wanted = sorted((key, value) for key, value in self.rows.items() if start <= key and (not end or key < end))
        found = list(self.client.scan(start, end, reverse=reverse, limit=limit))
        assert found == (wanted[::-1] if reverse else wanted)[:limit]

    @rule()
    def count(self) -> None:
        try:
            self.check_sizes()
        except MinkaError as error:
            if error.code not in LATER | {Code.NOT_LEADER}:
                raise

    def again(self, write: Callable[[], None]) -> None:
        while True:
            try:
                write()
            except MinkaError as error:
                if error.code not in AGAIN:
                    raise
            else:
                return

    # Operations that run during the steps

    @invariant()
    def an_operation_begins_at_times(self) -> None:
        """Begin an operation after every eighth step. This isn't a rule, since Hypothesis uses only some of the rules
        in some examples.
        """
        self.steps += 1
        if self.steps % 8 == 0:
            self.change(("split", "move", "merge")[self.steps // 8 % 3], random.Random(self.steps))

    def change(self, what: str, rng: random.Random) -> None:
        name, rows = self.keyspace.name, self.table()
        bounds = [row.start_key for row in rows[1:]]
        if what == "move":
            partitions = {rng.choice(rows).id: rng.sample(NODES, len(NODES))}
            self.ask(what, lambda: self.control.apply_plan(self.control.plan_reassign(partitions=partitions), "test"))
        elif what == "merge" and bounds:
            some = rng.sample(bounds, min(len(bounds), rng.randint(1, 3)))
            self.ask(what, lambda: self.control.merge(name, some, "test"))
        else:
            self.ask("split", lambda: self.control.split(name, [b"%04d" % rng.randrange(3000)], "test"))

    @precondition(lambda self: self.restarts < RESTARTS)
    @rule(node=st.sampled_from(NODES))
    def restart(self, node: str) -> None:
        self.restarts += 1
        self.cluster.restart(node)

    def ask(self, what: str, command: Callable[[], object]) -> None:
        """Wait until no operation runs, then begin the command's operation. It runs during the next steps."""
        eventually("every operation has ended", lambda: not self.control.status().running)
        try:
            command()
            self.done.add(what)
        except MinkaError as error:
            if error.code not in LATER:
                raise

    # Invariants

    @invariant()
    def the_ranges_cover_all_keys(self) -> None:
        self.table()

    def table(self) -> list[Partition]:
        """Return the rows in the order of their ranges. Checks that the ranges cover all keys, and that no partition
        has two leaders with the same leader_epoch.
        """
        rows = [row for row in self.control.table().partitions if row.keyspace_id == self.keyspace.id]
        rows.sort(key=lambda row: row.start_key)
        assert rows[0].start_key == b"" == rows[-1].end_key
        assert all(before.end_key == after.start_key != b"" for before, after in pairwise(rows))
        for row in rows:
            assert not row.leader or self.owners.setdefault((row.id, row.leader_epoch), row.leader) == row.leader
        return rows

    def check_sizes(self) -> None:
        """Check that the partitions' counts of keys add up to the number of keys, even while a partition splits."""
        counts = counted(self.control, self.keyspace.name, timeout_s=20)
        found = sum(row["keys"] for row in counts), sum(row["bytes"] for row in counts)
        assert found == (len(self.rows), sum(len(key) + len(value) for key, value in self.rows.items()))

    def teardown(self) -> None:
        try:
            eventually("every operation has ended", lambda: not self.control.status().running)
            wait_settled(self.control, live=3)
            assert list(self.client.scan()) == sorted(self.rows.items())
            self.check_sizes()
        finally:
            self.client.close()
            self.control.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(NODES, config=QUICK) as running:
        yield running


@pytest.mark.timeout(300)
def test_like_a_sorted_dict(cluster: LocalCluster, request: pytest.FixtureRequest) -> None:
    """Hypothesis doesn't shrink a failing example, since real nodes behave differently each time. The option `--seeds`
    sets the number of examples.
    """
    Ranges.cluster, Ranges.done = cluster, set()
    examples = request.config.getoption("--seeds") or 1
    run_state_machine_as_test(
        Ranges,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Ranges.done == {"split", "merge", "move"}, "each kind of operation has begun at least once"
