"""The launcher is a process that starts a local cluster's nodes. For each start after the first, it forks itself."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Thread

import pytest

from minka.admin.control import Control
from minka.errors import MinkaError
from minka.testing import launcher, local_cluster, loopback_ports
from minka.testing.local_cluster import LocalCluster, LocalNode
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.cluster import DEADLINE, QUICK, eventually


def command_of(cluster: LocalCluster) -> str:
    return Path(f"/proc/{cluster.node('athens').pid}/cmdline").read_text()


@pytest.fixture(autouse=True)
def _new_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test begin with a new launcher, which hasn't started a node yet."""
    monkeypatch.setattr(launcher, "_launchers", {})


def test_a_forked_node_is_like_any_other() -> None:
    with LocalCluster(["athens"], config=QUICK) as cluster:
        node = cluster.node("athens")
        assert "\0minkad\0" in command_of(cluster)
        cluster.kill("athens")
        assert node.ended() == "was ended by SIGKILL"
        cluster.restart("athens")
        assert "serve(" in command_of(cluster), "it was forked"
        cluster.signal("athens", signal.SIGSTOP)
        cluster.resume("athens")
        cluster.terminate("athens")
        assert node.ended() == "ended with status 0"
        node.config = {"membership": {"clearance_ms": "soon"}}
        with pytest.raises(MinkaError, match="athens ended with status 2"):
            cluster.restart("athens")


def test_variables_that_count_when_minkad_is_imported_make_a_new_process() -> None:
    with LocalCluster(["athens"], config=QUICK) as cluster:
        cluster.restart("athens", env={"MALLOC_ARENA_MAX": "2"})
        assert "\0minkad\0" in command_of(cluster)


def test_a_node_that_has_just_ended_is_not_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(["athens", "byzantium"], config=QUICK) as cluster:
        process = cluster.node("athens").process
        assert process is not None
        ended = os.pidfd_open(process.pid)
        kill = os.kill

        def end_before(pid: int, number: int) -> None:
            kill(pid, signal.SIGKILL)
            wait([ended])
            kill(pid, number)

        monkeypatch.setattr(os, "kill", end_before)
        with pytest.raises(MinkaError, match="athens is not running: it was ended by SIGKILL"):
            cluster.pause("athens")
        monkeypatch.setattr(os, "kill", kill)
        os.close(ended)
        assert cluster.node("byzantium").running
        cluster.restart("athens")


def test_a_paused_node_may_be_paused_again() -> None:
    with LocalCluster(["athens"], config=QUICK) as cluster:
        for _ in range(2):
            cluster.pause("athens")
            cluster.pause("athens")
            assert _state_of(cluster.node("athens").pid) == "T"
            cluster.resume("athens")
            assert _state_of(cluster.node("athens").pid) != "T"
        cluster.wait_ready()


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("request_", ["stopped", "status"])
def test_the_launcher_waits_for_no_process_without_a_limit(monkeypatch: pytest.MonkeyPatch, request_: str) -> None:
    monkeypatch.setattr(launcher, "_STATE_TIMEOUT_S", 0.05)
    ours, theirs = socket.socketpair()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as running, Connection(ours.detach()) as asker:
        serving = Thread(target=launcher.serve, args=[theirs.detach()], daemon=True)
        serving.start()
        asker.send((request_, running.pid))
        assert asker.poll(DEADLINE), "the launcher answers, although the process still runs"
        assert isinstance(asker.recv(), TimeoutError)
        asker.close()
        serving.join()


def test_a_request_that_fails_leaves_the_other_nodes_alone() -> None:
    with LocalCluster(["athens"], config=QUICK) as cluster:
        (used,) = launcher._launchers.values()
        with pytest.raises(MinkaError, match="ChildProcessError"):
            used.ask("status", os.getpid())
        assert cluster.node("athens").running


def test_nodes_with_failpoints_are_forked_as_well(tmp_path: Path) -> None:
    with LocalCluster(["athens"], config=QUICK) as cluster:
        file = tmp_path / "failpoints"
        for _ in range(2):
            cluster.restart("athens", env={"MINKA_FAILPOINTS_FILE": str(file)})
        assert "serve(" in command_of(cluster)
        file.write_text("replica.lead.before=kill")
        with Control(cluster.endpoints) as control, suppress(MinkaError):  # the node may end before it answers
            control.create_keyspace("k", 1, HashFunction.HASH_FUNCTION_MURMUR3, 1)
        eventually("the node is killed at its failpoint", lambda: not cluster.node("athens").running)
        assert cluster.node("athens").ended() == "was ended by SIGKILL"


def test_nodes_end_with_the_launcher() -> None:
    with LocalCluster(["athens"], config=QUICK) as cluster:
        node = cluster.node("athens")
        assert node.process is not None
        os.kill(int(Path(f"/proc/{node.pid}/stat").read_text().split()[3]), signal.SIGKILL)  # its parent
        assert node.process.wait(10) == -signal.SIGKILL
        cluster.restart("athens")
        assert node.running


def test_an_interrupted_request_is_the_launchers_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a request is interrupted, the launcher ends. Otherwise the next request would read the answer to the
    interrupted one, and take, for example, the exit status of one node for the pid of another.
    """
    with LocalCluster(["athens"], config=QUICK) as cluster:
        process = cluster.node("athens").process
        assert process is not None

        def interrupted(_: Connection) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Connection, "recv", interrupted)
            with pytest.raises(KeyboardInterrupt):
                process.send_signal(signal.SIGSTOP)
        assert process.wait(10) == -signal.SIGKILL, "nodes end with their launcher"
        cluster.restart("athens")


def test_a_started_cluster_keeps_its_directory(tmp_path: Path) -> None:
    endpoint = LocalCluster(["athens"], tmp_path, config=QUICK).start().endpoints  # no variable refers to the cluster
    (cluster,) = [one for one in local_cluster._started if one.endpoints == endpoint]
    try:
        with pytest.raises(MinkaError, match=f"another local cluster uses {tmp_path}"):
            LocalCluster(["athens"], tmp_path, config=QUICK).start()
    finally:
        cluster.stop()
    assert cluster not in local_cluster._started


# A fork leaves the `with` block after it has tried to use the cluster.
FORKED = """
import os, sys
from minka.errors import MinkaError
from minka.testing import LocalCluster
from minka.testing.local_cluster import make_whole
with LocalCluster(1) as cluster:
    if (pid := os.fork()) == 0:
        for use in (lambda: cluster.kill("athens"), cluster.start, cluster.add, lambda: make_whole(cluster)):
            try:
                use()
            except MinkaError as error:
                print(error.message.replace(str(os.getppid()), "PARENT"), flush=True)
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert cluster.node("athens").running
    assert cluster.node("athens").data_dir.exists()
    cluster.restart("athens")
"""
# A fork drops a cluster that isn't started; then another cluster wants its directory.
DROPPED = """
import os, pathlib, sys
from minka.testing import LocalCluster
cluster = LocalCluster(1, pathlib.Path(sys.argv[1]))
if (pid := os.fork()) == 0:
    del cluster
    os._exit(0)
os.waitpid(pid, 0)
LocalCluster(1, pathlib.Path(sys.argv[1]))
"""
# A process is killed while a fork of it goes on, until the end of stdin.
SURVIVED = """
import os, pathlib, signal, sys
from minka.testing import LocalCluster
cluster = LocalCluster(1, *map(pathlib.Path, sys.argv[1:])).start()
print(cluster.node("athens").pid, cluster.directory, flush=True)
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_fork_leaves_the_cluster_alone() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert ended.stdout == "the cluster belongs to process PARENT, and this process is a fork of it\n" * 4


def test_a_fork_does_not_unlock_the_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DROPPED, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"another local cluster uses {tmp_path}" in ended.stderr


def test_a_directory_is_free_when_its_process_has_ended_although_a_fork_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SURVIVED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        eventually("the directory is free", lambda: LocalCluster(["athens"], tmp_path)).stop()
        process.communicate()


def test_nodes_end_with_their_process_although_a_fork_of_it_goes_on() -> None:
    command = [sys.executable, "-c", SURVIVED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, directory = process.stdout.readline().split()
        eventually("the node has ended", lambda: not Path(f"/proc/{pid}").exists())
        eventually("its files are removed", lambda: not Path(directory).exists())
        process.communicate()


def test_clusters_that_are_not_stopped_have_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process uses its ports again after a while, but not those of a node that is killed."""
    monkeypatch.setattr(loopback_ports, "_MAX_BLOCKS", 1)
    with closing(loopback_ports._Blocks()) as blocks, ExitStack() as others:
        monkeypatch.setattr(loopback_ports, "_blocks", blocks)
        cluster = others.enter_context(LocalCluster(["athens"], config=QUICK))
        cluster.kill("athens")
        used = [*addresses_of(cluster.node("athens"))]
        for _ in range(5):
            other = LocalCluster(3)
            others.callback(other.stop)
            used += [address for node in other.nodes.values() for address in addresses_of(node)]
        assert len(set(used)) == len(used)
        cluster.restart("athens")


def addresses_of(node: LocalNode) -> tuple[str, str, str]:
    return node.address, node.http_address, node.data_address
