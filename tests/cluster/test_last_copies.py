"""The last replica in sync is lost with its disk. If another replica has all acknowledged writes, it becomes the
leader. Otherwise a person has to accept the loss of writes.
"""

import json
import shutil
from collections.abc import Iterator

import pytest

from minka import Client
from minka.admin.control import Control
from minka.cluster.in_sync import eligible_replicas
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, NodeState, Partition, PartitionState
from tests.cluster.cluster import QUICK, eventually, minkactl, wait_ended, wait_settled

HOLDERS = ("cyrene", "ephesus", "delphi")  # the voters athens and byzantium stay: they are a quorum
pytestmark = pytest.mark.timeout(240)


class Loss:
    """A partition has replicas on the nodes `first`, `second` and `last` of five nodes. These three stop in this order,
    and the disk of `last` is lost. Only `first` lacks an acknowledged write.
    """

    def __init__(self, cluster: LocalCluster, control: Control, client: Client) -> None:
        self.cluster, self.control, self.client = cluster, control, client
        self.last = self.row().leader
        self.first, self.second = (node for node in HOLDERS if node != self.last)

    def row(self) -> Partition:
        return next(iter(self.control.status().table.partitions))

    def happen(self) -> None:
        self.client.put(b"a", b"with three")
        self.cluster.kill(self.first)
        eventually("an isr of two", lambda: self.first not in self.row().isr)
        self.client.put(b"b", b"with two")
        self.cluster.kill(self.second)
        eventually("an isr of one", lambda: list(self.row().isr) == [self.last])
        # The leader learns of the smaller isr later than the controller. Until then, the leader accepts writes, and
        # waits until a second replica has them.
        eventually("writes are refused", lambda: self.put_fails() is Code.NOT_ENOUGH_REPLICAS)
        self.lose(self.last)

    def put_fails(self) -> Code:
        with pytest.raises(MinkaError) as failure:
            self.client.put(b"c", b"with one", timeout=1)
        return failure.value.code

    def lose(self, node: str) -> None:
        if self.cluster.node(node).running:
            self.cluster.kill(node)
        shutil.rmtree(self.cluster.node(node).data_dir)
        eventually("nobody leads", lambda: not self.row().leader)

    def start(self, node: str) -> None:
        self.cluster.restart(node, ready=False)
        eventually(f"{node} is LIVE", lambda: node in self.live() and self.is_recorded_as_live(node))

    def is_recorded_as_live(self, node: str) -> bool:
        rows = {row.id: row for row in self.control.status().table.nodes}
        return rows[node].state == NodeState.NODE_STATE_LIVE

    def live(self) -> list[str]:
        """Return the nodes from which the active controller got a heartbeat within the last second. A node without any
        heartbeat has no `heartbeat_age_ms`.
        """
        heard = (node for node in self.control.status().nodes if node.HasField("heartbeat_age_ms"))
        return [node.node_id for node in heard if node.heartbeat_age_ms < 1000]

    def replace(self, node: str) -> None:
        """Let other nodes get copies of this node's replicas; then start this node again with an empty disk."""
        wait_ended(self.control, self.control.drain(node, decommission=True, requested_by="test").id)
        rebuilt = minkactl(self.cluster, "node", "rebuild", node, "--yes")
        assert rebuilt.exit_code == 0, rebuilt.output
        self.start(node)


@pytest.fixture
def loss() -> Iterator[Loss]:
    with LocalCluster(5, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        control.create_keyspace("k", 1, HashFunction.HASH_FUNCTION_MURMUR3, 3, min_insync=2)
        wait_settled(control, 5)
        plan = control.plan_reassign(partitions={1: HOLDERS})
        if plan.moves:
            wait_ended(control, control.apply_plan(plan, "test").id)
        with Client(cluster.endpoints, keyspace="k", timeout=10) as client:
            yield Loss(cluster, control, client)


def test_who_left_while_writes_were_refused_already_leads(loss: Loss) -> None:
    loss.happen()
    assert list(eligible_replicas(loss.row())) == [loss.second]
    loss.start(loss.first)
    assert loss.row().state == PartitionState.PARTITION_STATE_OFFLINE, "it lacks b"
    loss.start(loss.second)
    assert loss.client.get(b"b") == b"with two"
    assert loss.client.get(b"a") == b"with three"
    assert (loss.row().leader, loss.row().unclean_elections) == (loss.second, 0)
    loss.client.put(b"c", b"with those that are left")
    loss.replace(loss.last)
    eventually("three in sync", lambda: len(loss.row().isr) == 3)
    assert loss.client.get(b"c") == b"with those that are left"


def test_the_remaining_replica_leads_if_a_person_accepts_the_loss(loss: Loss) -> None:
    loss.happen()
    loss.lose(loss.second)
    loss.start(loss.first)
    refused = minkactl(loss.cluster, "drain", loss.last, "--decommission", "--yes", "--timeout", "60")
    assert (refused.exit_code, "NO_SOURCE" in refused.stderr) == (1, True), refused.output
    assert f"start {loss.last} or {loss.second}" in refused.stderr
    assert "minkactl elect-leaders --unclean --partition k/0" in refused.stderr
    stale = minkactl(loss.cluster, "status", "-o", "json")
    assert '"stale_reads": 0' in stale.stdout
    accepted = minkactl(loss.cluster, "elect-leaders", "--unclean", "--partition", "k/0", "--yes")
    assert accepted.exit_code == 0, accepted.output
    assert f"{loss.last} had everything, and is not used" in accepted.stderr
    assert f"{loss.first} leads k/0" in accepted.stderr
    assert loss.client.get(b"a") == b"with three"
    assert loss.client.get(b"b") is None
    assert loss.row().unclean_elections == 1
    for node in (loss.last, loss.second):
        loss.replace(node)
    eventually("three in sync", lambda: len(loss.row().isr) == 3)
    loss.client.put(b"b", b"again")
    assert loss.client.get(b"b") == b"again"


def test_a_partition_whose_only_copy_is_gone_is_a_problem_until_it_is_back() -> None:
    config = {**QUICK, "storage": {"log_retention_mib": 1, "change_retention_mib": 0}}
    with LocalCluster(1, config=config) as cluster, Control(cluster.endpoints) as control:
        control.create_keyspace("one", 1, HashFunction.HASH_FUNCTION_MURMUR3, 1)
        wait_settled(control, 1)
        with Client(cluster.endpoints, keyspace="one", timeout=30) as client:
            for start in range(0, 4000, 100):
                client.put_many({b"%d" % i: b"x" * 4000 for i in range(start, start + 100)})
        (name,), away = cluster.nodes, cluster.directory / "away"
        folder = cluster.node(name).data_dir / "partitions" / "1"
        cluster.terminate(name)
        folder.rename(away)
        cluster.restart(name, ready=False)
        eventually("the damage is reported", lambda: bool(control.status().damaged))

        told = minkactl(cluster, "status", "-o", "json")
        document = json.loads(told.stdout)
        (problem,) = document["problems"]
        assert (told.exit_code, document["healthy"], document["served"]["served"]) == (5, False, 0)
        assert problem["problem"].startswith(f"one/0 is not served: the copy of its leader, {name}, is damaged: ")
        assert "put data_dir/partitions/1" in problem["note"]
        advised = minkactl(cluster, "partitions", "explain", "one/0").stdout.partition("\nnext")[2]
        assert "put data_dir/partitions/1 back" in advised
        assert "elect-leaders" not in advised
        assert "reassign" not in advised
        refused = minkactl(cluster, "elect-leaders", "--unclean", "--partition", "one/0", "--yes")
        assert f"remedy: Bring back what is damaged or gone of it on {name}" in refused.stderr

        cluster.terminate(name)
        shutil.rmtree(folder, ignore_errors=True)
        away.rename(folder)
        cluster.restart(name, ready=False)
        eventually("it is served again", lambda: minkactl(cluster, "status").exit_code == 0)
        with Client(cluster.endpoints, keyspace="one", timeout=30) as client:
            assert client.get(b"3999") == b"x" * 4000
