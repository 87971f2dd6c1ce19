"""The process of minkad as systemd, an operator and a monitoring system use it."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import minka
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster, LocalNode, configuration_of
from minka.testing.loopback_ports import free_addresses
from minka.v1.cluster_pb2 import HashFunction
from minkad.storage import identity
from minkad.storage.identity import Identity
from tests.cluster.cluster import QUICK, eventually, wait_settled


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(["athens"], config=QUICK) as cluster:
        yield cluster


def http(cluster: LocalCluster, path: str) -> tuple[int, str]:
    url = f"http://{cluster.node('athens').http_address}{path}"
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_health_and_reflection_over_grpc(cluster: LocalCluster) -> None:
    with grpc.insecure_channel(cluster.node("athens").address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service="minka.v1.Admin"), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert "minka.v1.Coordinator" in ProtoReflectionDescriptorDatabase(channel).get_services()


def test_livez_readyz_and_metrics(cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control:
        wait_settled(control, live=1)
    assert http(cluster, "/livez") == (200, "ok\n")
    status, text = http(cluster, "/readyz?verbose")
    assert status == 200
    assert "[+]clearance ok" in text
    _, metrics = http(cluster, "/metrics")
    assert "minka_controller_active 1.0" in metrics
    assert 'minka_cluster_nodes{state="live"} 1.0' in metrics


def test_sighup_reloads_what_can_be_reloaded_and_says_what(cluster: LocalCluster) -> None:
    node = cluster.node("athens")
    config = yaml.safe_load(node.config_path.read_text())
    config["migrations"] = {"per_node": 7}
    config["membership"]["failure_timeout_ms"] = 9000
    node.config_path.write_text(yaml.safe_dump(config))
    cluster.signal("athens", signal.SIGHUP)
    line = eventually(
        "the reload in the log",
        lambda: next((x for x in node.log.read_text().splitlines() if "configuration reloaded" in x), None),
    )
    assert "migrations.per_node: 1 → 7" in line
    assert "membership.failure_timeout_ms: 1200 → 9000" in line.partition("needs_restart")[2]
    node.config_path.write_text("node: [")
    cluster.signal("athens", signal.SIGHUP)
    eventually("the refusal in the log", lambda: "configuration not reloaded" in node.log.read_text())
    assert node.running


@contextmanager
def starting(path: Path, config: dict[str, Any]) -> Iterator[tuple["subprocess.Popen[str]", TextIO]]:
    """A daemon that waits for the content of its configuration file, and the writer of the content. After that, the
    file at this path is a usual file with another value of `migrations.per_node`.
    """
    os.mkfifo(path)
    with subprocess.Popen([sys.executable, "-m", "minkad", "--config", path], stderr=-1, text=True) as process:
        try:
            with path.open("w") as writer:  # opens once the daemon opens it
                path.unlink()
                path.write_text(yaml.safe_dump(config | {"migrations": {"per_node": 7}}))
                yield process, writer
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_stop_during_the_start_ends_it_quietly(tmp_path: Path, number: signal.Signals) -> None:
    with starting(tmp_path / "minkad.yaml", {}) as (process, _):
        process.send_signal(number)
        assert process.communicate(timeout=20)[1] == ""
    assert process.returncode == -number


def test_sighup_during_the_start_reloads_the_configuration_later(tmp_path: Path) -> None:
    grpc_address, http_address = free_addresses(2)
    config = {
        "node": {"id": "athens"}, "data_dir": str(tmp_path / "data"),
        "listen": {"grpc": grpc_address, "http": http_address},
        "cluster": {"bootstrap": [{"id": "athens", "address": grpc_address}]},
    }  # fmt: skip
    with starting(tmp_path / "minkad.yaml", config) as (process, writer):
        process.send_signal(signal.SIGHUP)
        writer.write(yaml.safe_dump(config))
        writer.close()
        assert process.stderr is not None
        line = next((line for line in process.stderr if "configuration reloaded" in line), "")
        assert "migrations.per_node: 1 → 7" in line
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0


def test_the_entry_point_imports_nothing_before_it_handles_signals() -> None:
    """Otherwise the first part of a start would have Python's handlers."""
    found = "import minkad.__main__, sys; print(*(name for name in sys.modules if name.startswith('minka')))"
    result = subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, timeout=30, check=True)
    assert set(result.stdout.split()) == {"minkad", "minkad.__main__", "minkad.process", "minkad.process.signals"}


def run(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run minkad. `folder`: the folder of a sitecustomize.py, which each Python process runs at its start."""
    command = [sys.executable, "-m", "minkad", *arguments]
    env = dict(os.environ)
    if folder is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(folder), str(Path(minka.__file__).parents[1])])
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=env)


def test_validate_config_names_every_mistake_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "minkad.yaml"
    path.write_text(
        "node:\n  id: athens\ndata_dir: /var/lib/minka\nmembership:\n  clearance_ms: soon\n  heartbeat: 5\n"
    )
    result = run("--config", str(path), "--validate-config")
    assert result.returncode == 2
    assert f"{path}:5: membership.clearance_ms" in result.stderr
    assert f"{path}:6: membership.heartbeat" in result.stderr
    assert "remedy:" in result.stderr


def test_a_node_with_another_nodes_directory_is_not_started_again(tmp_path: Path) -> None:
    """The exit status 2 means a person's mistake: systemd doesn't start the node again. The exit status 1 means a
    failure: then systemd would start the node again.
    """
    identity.save(tmp_path, Identity("a cluster", "byzantium", "its data", 2, "test"))
    result = run("--config", str(with_data_dir(tmp_path, tmp_path)))
    assert f"minkad: INVALID_CONFIG: {tmp_path} belongs to node byzantium" in result.stderr
    assert result.returncode == 2


def test_a_node_whose_data_dir_is_a_file_is_not_started_again(tmp_path: Path) -> None:
    """Waiting doesn't make a directory of it."""
    file = tmp_path / "data"
    file.write_text("not data")
    result = run("--config", str(with_data_dir(tmp_path, file)))
    assert f"minkad: INVALID_CONFIG: data_dir: {file} isn't a directory" in result.stderr
    assert result.returncode == 2


# A sitecustomize.py: Python deletes the object at its own end, after it has removed all handlers of signals.
LATE_SIGNALS = """
import os, signal
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), numbers=(signal.SIGHUP, signal.SIGINT)):
        print("deleted", flush=True)
        for number in numbers:
            kill(pid, number)
late = Late()
"""


def test_a_late_signal_does_not_change_the_exit_status(tmp_path: Path) -> None:
    """The process ends already, and nothing is left that would handle the signals."""
    (tmp_path / "sitecustomize.py").write_text(LATE_SIGNALS)
    identity.save(tmp_path, Identity("a cluster", "byzantium", "its data", 2, "test"))
    result = run("--config", str(with_data_dir(tmp_path, tmp_path)), folder=tmp_path)
    assert (result.stdout, result.returncode) == ("deleted\n", 2)
    assert len(result.stderr.splitlines()) == 2, "the error and its remedy"


def with_data_dir(tmp_path: Path, data_dir: Path) -> Path:
    """The path of a configuration with this `data_dir`."""
    path = tmp_path / "minkad.yaml"
    bootstrap = [{"id": "athens", "address": "127.0.0.1:1"}]
    content = {"node": {"id": "athens"}, "data_dir": str(data_dir)}
    path.write_text(yaml.safe_dump(content | {"cluster": {"name": "test", "bootstrap": bootstrap}}))
    return path


def test_a_second_daemon_on_the_same_directory_is_refused(cluster: LocalCluster) -> None:
    node = cluster.node("athens")
    config = configuration_of(cluster, node)
    path = cluster.directory / "second.yaml"
    path.write_text(yaml.safe_dump(config))
    result = run("--config", str(path))
    assert result.returncode == 1
    assert "minkad: DATA_DIRECTORY_IN_USE: " in result.stderr
    assert "another minkad uses this directory" in result.stderr
    assert "remedy: Stop the other process" in result.stderr


def test_ready_and_stopping_are_notified_and_the_watchdog_is_fed(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(20)
        env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
        with LocalCluster(["athens"], config=QUICK, env=env) as cluster:
            said: list[str] = []

            def heard(word: str) -> bool:
                deadline = time.monotonic() + 20
                while time.monotonic() < deadline and not any(word in s for s in said):
                    said.append(manager.recv(4096).decode())
                return any(word in s for s in said)

            assert heard("READY=1")
            assert heard("WATCHDOG=1")
            cluster.terminate("athens")
            assert heard("STOPPING=1")
            process = cluster.node("athens").process
            assert process is not None
            assert process.returncode == 0


@pytest.mark.parametrize("key", ["grpc", "http"])
def test_an_address_that_is_taken_is_named_with_who_to_ask(tmp_path: Path, key: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        (other,) = free_addresses(1)
        listen = {"grpc": other, "http": other} | {key: f"127.0.0.1:{port}"}
        config = {
            "node": {"id": "athens"}, "data_dir": str(tmp_path / "data"), "listen": listen,
            "cluster": {"bootstrap": [{"id": "athens", "address": listen["grpc"]}]},
        }  # fmt: skip
        path = tmp_path / "minkad.yaml"
        path.write_text(yaml.safe_dump(config))
        (tmp_path / "data").mkdir()
        command = [sys.executable, "-m", "minkad", "--config", str(path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    complaint, remedy = ended.stderr.splitlines()  # no line is from gRPC
    assert complaint == (
        f"minkad: ADDRESS_IN_USE: listen.{key}: another process listens on 127.0.0.1:{port}; "
        f"ss -ltnp 'sport = :{port}' names it"
    )
    assert remedy.startswith("  remedy: Stop the process")


# A sitecustomize.py: if its folder is in PYTHONPATH, each Python process runs it at its start.
PATIENT = """
import minkad.node.serving as serving
serving.DRAIN_SECONDS = serving.SHUTDOWN_SECONDS = 20.0
"""


@pytest.mark.timeout(120)
def test_a_cluster_that_is_stopped_node_by_node_waits_for_nobody_who_has_stopped(tmp_path: Path) -> None:
    """A node that stops waits for other nodes at most until a time limit, and logs a warning if it reaches this limit.
    Here the limit is 20 s, so that a short delay on a busy machine causes no warning.
    """
    (tmp_path / "sitecustomize.py").write_text(PATIENT)
    with LocalCluster(3, directory=tmp_path / "c", config=QUICK, env={"PYTHONPATH": str(tmp_path)}) as cluster:
        make_replicas(cluster)
        for name, node in cluster.nodes.items():
            cluster.terminate(name, 60.0)
            assert_has_ended_gracefully(node)
            assert "in time" not in node.log.read_text()


def test_a_cluster_that_is_stopped_at_once_ends_gracefully(tmp_path: Path) -> None:
    with LocalCluster(3, directory=tmp_path, config=QUICK) as cluster:
        make_replicas(cluster)
        cluster.stop(graceful=True)
        for node in cluster.nodes.values():
            assert_has_ended_gracefully(node)


def make_replicas(cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control:
        control.create_keyspace("k", 6, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, live=3)


def assert_has_ended_gracefully(node: LocalNode) -> None:
    assert node.process is not None
    assert node.process.returncode == 0
    assert "ERROR" not in node.log.read_text()
