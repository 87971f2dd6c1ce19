"""A process is killed at a random step of a reassign. The operation ends, and no key is lost or exists twice."""

import random
from collections.abc import Iterator
from functools import partial

import pytest

import minkad.node.daemon  # noqa: F401  # it imports everything that declares a failpoint
from minka import Client
from minka.admin.control import Control
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.admin_pb2 import Plan
from minkad.process import failpoints
from tests.cluster.cluster import (
    assert_nobody_holds_what_it_does_not_own,
    create_keyspace,
    eventually,
    spec_file,
    wait_ended,
    wait_settled,
    with_failpoints,
)
from tests.cluster.workload import Workload

NODES = ("athens", "byzantium", "cyrene", "ephesus")
# Other files test the failpoints in splits, merges, snapshots and loads.
ELSEWHERE = ("ingest.", "merge.", "snapshot.", "split.", "spool.", "trim.")
PLACES = [name for name in sorted(failpoints.names()) if not name.startswith(ELSEWHERE)]
# A partition of `flights` has so much data that it moves by a checkpoint; a partition of `small` moves by its log.
BALLAST = {b"ballast-%d" % i: i.to_bytes(4, "big") * 500 for i in range(3000)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with with_failpoints(NODES) as cluster, Control(cluster.endpoints) as control:
        create_keyspace(control, "flights", 16, live=4)
        create_keyspace(control, "small", 8, live=4)
        with Client(cluster.endpoints, keyspace="flights", timeout=30.0) as client:
            eventually("the ballast is written", lambda: written(client))
        yield cluster


@pytest.mark.seeds(4)
@pytest.mark.timeout(180)
def test_killed_at_a_random_failpoint(cluster: LocalCluster, seed: int) -> None:
    rng = random.Random(seed)
    victim = rng.choice(NODES)
    point = f"{rng.choice(PLACES)}.{rng.choice(['before', 'after'])}"
    with Control(cluster.endpoints) as control:
        table = wait_settled(control, live=4)
        to = NODES[:3] if any(p.leader == "ephesus" for p in table.partitions) else NODES
        with (
            Workload(cluster.endpoints, "flights", seed) as load,
            Workload(cluster.endpoints, "small", seed + 1) as small,
        ):
            plans = [control.plan_reassign(to, [keyspace]) for keyspace in ("flights", "small")]
            spec_file(cluster, victim).write_text(f"{point}=kill\n")
            operations = [begun(control, plan, f"seed {seed}") for plan in plans]
            eventually(
                f"{victim} dies at {point}, or the operations end",
                lambda: not cluster.node(victim).running or ended(control, operations),
            )
            spec_file(cluster, victim).unlink()
            if not cluster.node(victim).running:
                cluster.restart(victim)
            for operation in filter(None, operations):
                wait_ended(control, operation)
            eventually("nothing is under way", partial(nothing_runs, control))
            table = wait_settled(control, live=4)
            for writer in (load, small):
                before = writer.acknowledged
                eventually("writes are acknowledged again", partial(acknowledged_more, writer, before))
                writer.stop()
            keys = load.check() + small.check() + check_ballast(cluster)
            assert assert_nobody_holds_what_it_does_not_own(cluster, control, table) == keys


def begun(control: Control, plan: Plan, who: str) -> int:
    """Apply the plan. Returns the operation's id; 0 if the controller died, perhaps after it had recorded the
    operation.
    """
    try:
        return control.apply_plan(plan, who).id
    except MinkaError as error:
        if error.code is Code.OPERATION_RUNNING:
            raise
        return 0


def ended(control: Control, operations: list[int]) -> bool:
    return not any(o.id in operations or 0 in operations for o in control.status().running)


def nothing_runs(control: Control) -> bool:
    """True if no operation runs, not even one that a controller recorded just before it died."""
    status = control.status()
    return status.from_controller and not status.running


def acknowledged_more(writer: Workload, before: int) -> bool:
    return writer.acknowledged > before


def written(client: Client) -> bool:
    client.put_many(BALLAST)
    return True


def check_ballast(cluster: LocalCluster) -> int:
    with Client(cluster.endpoints, keyspace="flights", timeout=30.0) as client:
        assert client.get_many(list(BALLAST)) == BALLAST
    return len(BALLAST)
