"""Merges while clients read, write and scan: no row is lost or comes twice, and no client gets an error."""

import random
from collections.abc import Iterator

import pytest

from minka import Client
from minka.admin.control import Control
from minka.errors import MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, OperationState
from minkad.process import failpoints
from minkad.replication import executor  # noqa: F401  # it declares failpoints
from minkad.replication.applying import compacting  # noqa: F401  # it declares failpoints
from tests.cluster.cluster import QUICK, eventually, spec_file, wait_ended, wait_settled, with_failpoints
from tests.cluster.ranges import BALLAST, NODES, SORTED, Readers, check, load_ballast, rows_of
from tests.cluster.workload import Workload

BOUNDS = [SORTED[i] for i in range(500, 6000, 500)] + [b"key-2", b"key-3"]


@pytest.mark.parametrize("replicas", [1, 3])
def test_merges_under_load(replicas: int) -> None:
    """Partitions are merged while clients work. If they have one replica each, they first move to one node."""
    with LocalCluster(3, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        nothing = HashFunction.HASH_FUNCTION_UNSPECIFIED
        control.create_keyspace("authors", 0, nothing, replicas=replicas, split_points=BOUNDS)
        wait_settled(control, live=3)
        load_ballast(cluster)
        with (
            Workload(cluster.endpoints, "authors", seed=1, timeout=20.0) as load,
            Readers(cluster.endpoints, "authors") as readers,
        ):
            for bounds in (BOUNDS[:1], BOUNDS[1::2], BOUNDS[2::2]):
                before = [*readers.rounds, load.acknowledged]
                ended = wait_ended(control, control.merge("authors", bounds, "test").id)
                assert ended.state == OperationState.OPERATION_STATE_SUCCEEDED, ended
                assert ended.outcome.startswith(f"{len(bounds)} of {len(bounds)} merged"), ended
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
            assert load.failures == [], "a merge must not fail a client's write"
            assert len(rows_of(control)) == 1
            check(cluster, load)
            eventually("nothing is left of the merged partitions", lambda: not leftovers(cluster, 1))


def test_partitions_that_have_become_small_are_merged() -> None:
    """A keyspace grows and is split, then shrinks and is merged. Only the bound that a person chose stays."""
    config = {**QUICK, "ranges": {"merge_after_s": 1}}
    with LocalCluster(3, config=config) as cluster, Control(cluster.endpoints) as control:
        nothing = HashFunction.HASH_FUNCTION_UNSPECIFIED
        control.create_keyspace("authors", 0, nothing, replicas=3, split_points=[b"chosen"], max_bytes=256 * 1024)
        wait_settled(control, live=3)
        load_ballast(cluster)
        with Workload(cluster.endpoints, "authors", seed=1, timeout=20.0) as load:
            eventually("it splits itself", lambda: len(rows_of(control)) >= 6)
            with Client(cluster.endpoints, keyspace="authors", timeout=30.0) as client:
                client.delete_many(BALLAST)
                eventually("it merges itself", lambda: len(rows_of(control)) == 2, deadline=60)
                assert [row.start_key for row in rows_of(control)] == [b"", b"chosen"]
                load.stop()
                assert load.failures == []
                assert len(list(client.scan())) == load.check()
            merges = [operation for operation in control.operations().operations if operation.merge.merged]
            assert all(operation.automatic for operation in merges)


def leftovers(cluster: LocalCluster, partition_id: int) -> list[str]:
    folders = [path for name in NODES for path in (cluster.node(name).directory / "data" / "partitions").glob("*")]
    return [path.name for path in folders if path.name != str(partition_id)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with with_failpoints(NODES) as cluster, Control(cluster.endpoints) as control:
        nothing = HashFunction.HASH_FUNCTION_UNSPECIFIED
        control.create_keyspace("authors", 0, nothing, replicas=3, split_points=BOUNDS)
        wait_settled(control, live=3)
        load_ballast(cluster)
        yield cluster


def test_keys_deleted_during_a_trim_stay_deleted(cluster: LocalCluster) -> None:
    """Keys that are deleted while a replica trims its range stay deleted, even after a restart of the node."""
    with Control(cluster.endpoints) as control:
        split_everywhere(control)
        rows = wait_settled(control, live=3).partitions
        parent = next(row for row in rows if row.start_key == BOUNDS[0])
        victim = next(node for node in NODES if node != parent.leader)
        gate = cluster.node(victim).directory / "gate"
        gate.touch()
        spec_file(cluster, victim).write_text(f"trim.compact.after=pause:{gate}\n")
        split = control.split("authors", [SORTED[750]], "test")
        assert split is not None
        wait_ended(control, split.id)
        eventually("the parent or the child is trimmed", gate.with_name("gate.reached").exists)
        wait_ended(control, control.merge("authors", [BOUNDS[0], SORTED[750]], "test").id)
        spec_file(cluster, victim).unlink()
        gate.unlink()
        eventually(
            "it goes on", lambda: partitions_at(control, cluster, victim) == {row.id for row in rows_of(control)}
        )
        cluster.restart(victim)
        wait_settled(control, live=3)
        assert partitions_at(control, cluster, victim) == {row.id for row in rows_of(control)}


def split_everywhere(control: Control) -> None:
    """Split the partitions that other tests have merged, so that all BOUNDS are bounds again."""
    if (operation := control.split("authors", BOUNDS, "test")) is not None:
        wait_ended(control, operation.id)


def partitions_at(control: Control, cluster: LocalCluster, node: str) -> set[int]:
    return {count.partition_id for count in control.count_keys(cluster.node(node).address)}


PLACES = ("copy", "freeze", "finish", "learn")
MERGE_POINTS = [f"merge.{place}.{when}" for when in ("before", "after") for place in PLACES]


def test_these_are_the_places() -> None:
    assert {f"merge.{place}" for place in PLACES} == {name for name in failpoints.names() if name.startswith("merge.")}


@pytest.mark.seeds(2)
@pytest.mark.timeout(180)
def test_a_node_is_killed_in_the_middle(cluster: LocalCluster, seed: int) -> None:
    """A leader is killed at some step of a merge. The merge still ends, and no acknowledged write is lost."""
    rng = random.Random(seed)
    with Control(cluster.endpoints) as control:
        wait_settled(control, live=3)
        split_everywhere(control)
        rows = rows_of(control)
        place = rng.randrange(1, len(rows))
        victim = rows[place - 1].leader
        point = MERGE_POINTS[seed % len(MERGE_POINTS)]
        with Workload(cluster.endpoints, "authors", seed) as load, Readers(cluster.endpoints, "authors") as readers:
            spec_file(cluster, victim).write_text(f"{point}=kill\n")
            try:
                operation_id = control.merge("authors", [rows[place].start_key], "test", f"seed {seed}").id
            except MinkaError:  # the controller died, perhaps after it recorded the operation
                operation_id = 0
            eventually(f"{victim} dies at {point}", lambda: not cluster.node(victim).running)
            spec_file(cluster, victim).unlink()
            cluster.restart(victim)
            if operation_id:
                assert wait_ended(control, operation_id).state == OperationState.OPERATION_STATE_SUCCEEDED
            wait_settled(control, live=3)
            eventually("all are in sync", lambda: all(len(row.isr) == 3 for row in control.status().table.partitions))
            before = load.acknowledged
            eventually("writes are acknowledged again", lambda: load.acknowledged > before)
            readers.stop()
            load.stop()
            if operation_id:
                assert len(rows_of(control)) == len(rows) - 1
            check(cluster, load)
