"""Splits while clients read, write and scan: no row is lost or comes twice, and no client gets an error."""

import random
from collections.abc import Iterator

import pytest

from minka.admin.control import Control
from minka.cluster.key_ranges import KeyRange
from minka.errors import MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, OperationState
from minkad.process import failpoints
from minkad.replication import executor  # noqa: F401  # it declares failpoints
from minkad.replication.changing import splitting  # noqa: F401  # it declares failpoints
from tests.cluster.cluster import QUICK, eventually, spec_file, wait_ended, wait_settled, with_failpoints
from tests.cluster.ranges import NODES, SORTED, Readers, check, load_ballast, rows_of
from tests.cluster.workload import Workload


def test_splits_under_load() -> None:
    with LocalCluster(3, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        control.create_keyspace("authors", 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, replicas=3, split_points=[])
        wait_settled(control, live=3)
        load_ballast(cluster)
        with (
            Workload(cluster.endpoints, "authors", seed=1, timeout=20.0) as load,
            Readers(cluster.endpoints, "authors") as readers,
        ):
            for keys in ([b"ballast-03000"], [b"key-2", b"key-3"], [SORTED[i] for i in range(500, 6000, 500)]):
                before = [*readers.rounds, load.acknowledged]
                operation = control.split("authors", keys, "test")
                assert operation is not None
                ended = wait_ended(control, operation.id)
                assert ended.state == OperationState.OPERATION_STATE_SUCCEEDED, ended
                eventually(
                    "all went on",
                    lambda before=before: (
                        all(  # type: ignore[misc]
                            now > then for now, then in zip([*readers.rounds, load.acknowledged], before, strict=True)
                        )
                        or bool(readers.errors)
                    ),
                )
            readers.stop()
            load.stop()
            assert load.failures == [], "a split must not fail a client's write"
            assert len(rows_of(control)) == 14
            table = wait_settled(control, live=3)
            assert all(len(row.isr) == 3 and not row.splitting for row in table.partitions)
            check(cluster, load)
            assert control.split("authors", [b"key-2"], "test") is None


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with with_failpoints(NODES) as cluster, Control(cluster.endpoints) as control:
        control.create_keyspace("authors", 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, replicas=3, split_points=[])
        wait_settled(control, live=3)
        load_ballast(cluster)
        yield cluster


PLACES = ("mark", "attach", "take", "put_in_place", "record", "finish")
SPLIT_POINTS = [f"split.{place}.{when}" for when in ("before", "after") for place in PLACES]


def test_these_are_the_places() -> None:
    assert {f"split.{place}" for place in PLACES} == {name for name in failpoints.names() if name.startswith("split.")}


@pytest.mark.seeds(2)
@pytest.mark.timeout(180)
def test_a_node_is_killed_in_the_middle(cluster: LocalCluster, seed: int) -> None:
    """The leader or a follower is killed at some step of a split. The split still ends, and no acknowledged write is
    lost.
    """
    rng = random.Random(seed)
    with Control(cluster.endpoints) as control:
        wait_settled(control, live=3)
        rows = rows_of(control)
        key = rng.choice(sorted(set(SORTED) - {row.start_key for row in rows}))
        row = next(row for row in rows if KeyRange(row.start_key, row.end_key).contains(key))
        victim = row.leader if rng.randrange(3) else rng.choice([node for node in NODES if node != row.leader])
        place = SPLIT_POINTS[seed % len(SPLIT_POINTS)]
        with Workload(cluster.endpoints, "authors", seed) as load, Readers(cluster.endpoints, "authors") as readers:
            spec_file(cluster, victim).write_text(f"{place}=kill\n")
            try:
                operation = control.split("authors", [key], "test", f"seed {seed}")
                operation_id = operation.id if operation else 0
            except MinkaError:  # the controller died, perhaps after it recorded the operation
                operation_id = 0
            # A leader reaches each failpoint, but perhaps reaches the last one only after the end of the split. A
            # follower may reach none.
            eventually(
                f"{victim} dies at {place}, or the split ends without it",
                lambda: not cluster.node(victim).running or (victim != row.leader and not control.status().running),
            )
            spec_file(cluster, victim).unlink()
            died = not cluster.node(victim).running
            if died:
                cluster.restart(victim)
            if operation_id:
                assert wait_ended(control, operation_id).state == OperationState.OPERATION_STATE_SUCCEEDED
            table = wait_settled(control, live=3)
            eventually("all are in sync", lambda: all(len(row.isr) == 3 for row in control.status().table.partitions))
            assert not any(row.splitting for row in table.partitions)
            before = load.acknowledged
            eventually("writes are acknowledged again", lambda: load.acknowledged > before)
            readers.stop()
            load.stop()
            rows_of(control)
            check(cluster, load)
