"""Without a quorum, the cluster decides nothing, and each node serves only until its clearance ends. When the quorum is
back, the cluster recovers automatically.
"""

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import yaml
from click.testing import CliRunner

from minka import Client
from minka.admin.control import Control
from minka.cluster.hashing import murmur3
from minka.errors import Code
from minka.testing.local_cluster import LocalCluster, configuration_of
from minka.testing.loopback_ports import free_addresses
from minka.v1.cluster_pb2 import HashFunction, NodeState, PartitionTable
from minka.v1.errors_pb2 import Error
from minka.wire import kv_frames
from minka.wire.data_port import Kind, Splitter
from minkactl.cli import cli
from minkactl.exits import Exit
from minkad.process.exits import REFUSED
from tests.cluster.cluster import QUICK, create_keyspace, eventually, own_status, wait_settled
from tests.cluster.data_frames import framed, greeting

CLEARANCE_S = 1.5
CONFIG = {
    "membership": {"heartbeat_interval_ms": 100, "clearance_ms": int(1000 * CLEARANCE_S), "failure_timeout_ms": 2000},
    "log": {"level": "debug"},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, config=CONFIG) as cluster, Control(cluster.endpoints) as control:
        create_keyspace(control, "flights", 9, live=3)
        yield cluster


@contextmanager
def stopped(cluster: LocalCluster, names: Sequence[str]) -> Iterator[None]:
    """Pause the processes of these nodes during the `with` block, as if their machines stood still."""
    for name in names:
        cluster.signal(name, signal.SIGSTOP)
    try:
        yield
    finally:
        for name in names:
            cluster.signal(name, signal.SIGCONT)


def readyz(cluster: LocalCluster, name: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{cluster.node(name).http_address}/readyz?verbose", timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Direct:
    """Sends requests directly to one node. The requests are for a key of a partition that this node led when the object
    was made; later, another node may lead the partition.
    """

    def __init__(self, cluster: LocalCluster, table: PartitionTable, name: str) -> None:
        self.partition = next(p for p in table.partitions if p.leader == name)
        keys = (b"key-%d" % i for i in range(1000))
        self.key = next(k for k in keys if murmur3(k) % len(table.partitions) == self.partition.slot)
        host, port = cluster.node(name).data_address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20.0)
        self._socket.sendall(greeting())
        self._splitter = Splitter()

    def __enter__(self) -> "Direct":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self) -> None:
        """Send a read and a write without waiting for the answers; `codes` waits for them."""
        keys, partition = [self.key], self.partition
        groups = [
            kv_frames.Group(kv_frames.Op.READ, partition.id, partition.generation, kv_frames.encode(keys)),
            kv_frames.Group(
                kv_frames.Op.WRITE,
                partition.id,
                partition.generation,
                kv_frames.encode(kv_frames.WriteBody(keys, [b"v"])),
            ),
        ]
        frames = [kv_frames.encode(kv_frames.Request(i, 20_000, [group])) for i, group in enumerate(groups)]
        self._socket.sendall(b"".join(map(framed, frames)))

    def codes(self) -> list[Code | None]:
        """Wait for the answers. Returns the codes with which the node refused the read and the write; None for a
        request that it carried out.
        """
        answers: list[kv_frames.Response] = []
        while len(answers) < 2:
            data = self._socket.recv(65536)
            assert data, "the node has ended the connection"
            for frame in self._splitter.feed(data):
                assert frame.kind == Kind.DATA, frame.content
                answers.append(kv_frames.decode_response(frame.content))
        answers.sort(key=lambda answer: answer.id)
        errors = [answer.results[0].error for answer in answers]
        return [None if error is None else Code[Error.FromString(error).code] for error in errors]

    def read(self) -> list[Code | None]:
        """Send a read and a write, and wait for the answers."""
        self.send()
        return self.codes()


def test_a_leader_that_was_stopped_finds_itself_replaced(cluster: LocalCluster) -> None:
    """A leader is paused until another node leads. Then it goes on, and refuses the requests that came meanwhile."""
    with Control(cluster.endpoints) as control:
        table = wait_settled(control, live=3)
        ghost = control.status().coordinator.controller
        term = control.status().coordinator.term
        others = [node.address for name, node in cluster.nodes.items() if name != ghost]
        with Direct(cluster, table, ghost) as direct, Control(others) as rest:
            with stopped(cluster, [ghost]):
                direct.send()
                new = eventually("another leader", lambda: replaced_by(rest, ghost))
                eventually("it was given up", lambda: "FAILED" in nodes_of(rest, ghost))
            assert direct.codes() == [Code.NO_CLEARANCE, Code.NO_CLEARANCE]
            wait_settled(rest, live=3)
            assert rest.status().coordinator.term > term
            eventually("it follows", lambda: own_status(cluster, ghost).coordinator.controller == new)
            assert not own_status(cluster, ghost).from_controller
            eventually("it serves its own partitions again", lambda: direct.read() == [None, None])


def replaced_by(control: Control, ghost: str) -> str | None:
    status = control.status()
    leader = status.coordinator.controller
    return leader if status.from_controller and leader != ghost else None


def nodes_of(control: Control, name: str) -> str:
    return next(NodeState.Name(n.state) for n in control.status().table.nodes if n.id == name)


def test_a_leader_without_quorum_steps_down_and_its_clearance_ends(cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control:
        table = wait_settled(control, live=3)
        leader = control.status().coordinator.controller
    others = [name for name in cluster.nodes if name != leader]
    with Direct(cluster, table, leader) as direct, Control(cluster.endpoints) as control:
        with stopped(cluster, others):
            since = time.monotonic()
            assert direct.read() == [None, None], "a node with clearance serves"
            last = serve_until_refused(direct)
            assert last - since < CLEARANCE_S, "no later request was done"
            eventually("it leads no more", lambda: not own_status(cluster, leader).coordinator.controller)
            check_everyone_says_so(cluster, leader)
        wait_settled(control, live=3)
        eventually("it serves again", lambda: direct.read() == [None, None])
    eventually("ready", lambda: all(readyz(cluster, name)[0] == 200 for name in cluster.nodes))


def test_the_last_node_answers_stale_reads_of_all_partitions(cluster: LocalCluster) -> None:
    """If the node has led the partition itself, the age of a stale read counts from the end of the node's clearance."""
    keys = [b"stale-%d" % number for number in range(60)]
    with Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="everywhere") as client:
        control.create_keyspace("everywhere", 9, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, live=3)
        client.put_many([(key, b"v") for key in keys])
        eventually("followers have heard of it", lambda: all(client.get_stale(key).value == b"v" for key in keys * 9))
        last, *others = cluster.nodes
        for name in others:
            cluster.kill(name)
        try:
            eventually("its clearance ends", lambda: not own_status(cluster, last).has_clearance)
            ended = time.monotonic()
            for key in keys:
                asked = time.monotonic()
                found = client.get_stale(key)
                assert found.value == b"v"
                assert found.age >= asked - ended
        finally:
            for name in others:
                cluster.restart(name, ready=False)
        wait_settled(control, live=3)


def serve_until_refused(direct: Direct) -> float:
    """Send requests until the node refuses one. Returns the time at which the last served request was sent."""
    end = time.monotonic() + 10 * CLEARANCE_S
    last = 0.0
    while time.monotonic() < end:
        sent = time.monotonic()
        codes = direct.read()
        if Code.NO_CLEARANCE in codes:
            return last
        # The outcome of the write is unknown if the clearance ended during the write.
        assert codes in ([None, None], [None, Code.OUTCOME_UNKNOWN])
        last = sent
    raise AssertionError("it serves on")


def check_everyone_says_so(cluster: LocalCluster, name: str) -> None:
    status, text = readyz(cluster, name)
    assert status == 503
    assert "[-]controller failed: no quorum of voters" in text
    assert "[-]clearance failed: no clearance: nothing is served" in text
    assert "[+]replayed ok" in text
    endpoint = cluster.node(name).address
    result = CliRunner().invoke(cli, ["status", "--endpoints", endpoint], prog_name="minkactl")
    assert result.exit_code == Exit.UNHEALTHY
    assert "no quorum since " in result.stdout
    assert ": 2 of 3 voters do not answer: " in result.stdout
    result = CliRunner().invoke(cli, ["raft", "status", "--endpoints", endpoint], prog_name="minkactl")
    assert result.exit_code == Exit.UNHEALTHY
    transfer = ["raft", "transfer", name, "--yes", "--timeout", "3", "--endpoints", endpoint]
    result = CliRunner().invoke(cli, transfer, prog_name="minkactl")
    assert result.exit_code == Exit.UNREACHABLE
    assert "error: NO_CONTROLLER: " in result.stderr


def test_nodes_that_move_to_other_addresses_find_each_other(cluster: LocalCluster) -> None:
    """Two of three nodes move at the same time. Only a leader can correct the recorded addresses. So the nodes have to
    find each other without these addresses before they can elect a leader.
    """
    with Client(cluster.endpoints, keyspace="flights") as client:
        client.put_many({b"key-%d" % i: b"%d" % i for i in range(100)})
    for name in ("athens", "byzantium"):
        cluster.kill(name)
    for name in ("athens", "byzantium"):
        node = cluster.node(name)
        grpc_address, http_address = free_addresses(2)
        listen = {"grpc": grpc_address, "http": http_address}
        node.config = {"listen": listen, "advertise": listen, "cluster": configuration_of(cluster, node)["cluster"]}
    for name in ("athens", "byzantium"):
        node = cluster.node(name)
        node.address, node.http_address = node.config["listen"].values()
        cluster.restart(name, ready=False)
    cluster.wait_ready()
    with Control(cluster.endpoints) as control:
        table = wait_settled(control, live=3)
        assert {n.address for n in table.nodes} == set(cluster.endpoints)
    with Client(cluster.endpoints, keyspace="flights") as client:
        assert client.get_many([b"key-7", b"key-99"]) == {b"key-7": b"7", b"key-99": b"99"}


def test_nodes_started_apart_from_one_configuration_are_one_cluster() -> None:
    apart = LocalCluster(3, config=QUICK | {"log": {"level": "debug"}, "coordinator": {"tick_ms": 20}})
    try:
        start_apart(apart)
    finally:
        apart.stop()


def start_apart(cluster: LocalCluster) -> None:
    launch(cluster, "athens")
    eventually("athens has tried more than once to be elected", lambda: elections(cluster, "athens") > 2)
    assert "is the leader" not in cluster.log("athens").read_text()
    assert readyz(cluster, "athens")[0] == 503
    with Control([cluster.node("athens").address]) as control:
        assert not control.table().cluster.id
    # The configurations of byzantium and athens list different founders, so these nodes belong to different clusters:
    # neither votes for the other.
    node = cluster.node("byzantium")
    node.config = {"cluster": {"bootstrap": [{"id": n, "address": cluster.node(n).address} for n in
                                             ("athens", "byzantium")]}}  # fmt: skip
    launch(cluster, "byzantium")
    eventually("byzantium has tried more than once to be elected", lambda: elections(cluster, "byzantium") > 2)
    assert "is the leader" not in cluster.log("byzantium").read_text() + cluster.log("athens").read_text()
    eventually(
        "each says why", lambda: all("CLUSTER_MISMATCH" in cluster.log(n).read_text() for n in ("athens", node.name))
    )
    cluster.kill("byzantium")
    node.data_dir.rename(cluster.directory / "mistaken")
    # Now byzantium has the same list as athens. Two of the three nodes in the list are enough to found the cluster, and
    # the third node finds them later.
    node.config = {}
    launch(cluster, "byzantium")
    cluster.wait_ready(["athens", "byzantium"])
    launch(cluster, "cyrene")
    cluster.wait_ready()
    ids = set()
    for node in cluster.nodes.values():
        with Control([node.address]) as control:
            table = wait_settled(control, live=3)
            ids.add(table.cluster.id)
            assert [(n.id, n.raft_id) for n in table.nodes] == [("athens", 1), ("byzantium", 2), ("cyrene", 3)]
    assert len(ids) == 1
    check_that_a_stranger_is_refused(cluster)


def launch(cluster: LocalCluster, name: str) -> None:
    cluster.restart(name, ready=False)
    eventually(f"{name} listens", lambda: "serving: ready" in cluster.log(name).read_text("utf-8"))


def elections(cluster: LocalCluster, name: str) -> int:
    return cluster.log(name).read_text("utf-8").count("(pre-election)")


def check_that_a_stranger_is_refused(cluster: LocalCluster) -> None:
    """Check that the cluster refuses a new node that tries to found another cluster together with athens."""
    grpc_address, http_address = free_addresses(2)
    config = {
        "node": {"id": "troy"},
        "cluster": {
            "bootstrap": [
                {"id": "troy", "address": grpc_address},
                {"id": "athens", "address": cluster.node("athens").address},
            ]
        },
        "data_dir": str(cluster.directory / "troy"),
        "listen": {"grpc": grpc_address, "http": http_address},
    }
    path = cluster.directory / "troy.yaml"
    path.write_text(yaml.safe_dump(config))
    run = subprocess.run(
        [sys.executable, "-m", "minkad", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == REFUSED
    assert "minkad: CLUSTER_MISMATCH: " in run.stderr
