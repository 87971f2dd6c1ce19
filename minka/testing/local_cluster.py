"""A real cluster of minkad processes on this machine, for the playground, the demo, the tests and the benchmarks."""

import contextlib
import copy
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Final, Self
from weakref import finalize

from minka.admin import Admin
from minka.admin.membership import wait_until
from minka.cluster.name_rules import node_id_problem
from minka.engine.arguments import checked_text, checked_timeout, invalid, items
from minka.engine.grpc_calls import clipped
from minka.errors import Code, MinkaError
from minka.testing.directory_lock import LOCK_FILE, DirectoryLock
from minka.testing.launcher import NodeProcess, Start, inherited, launcher
from minka.testing.leftovers import Leftovers
from minka.testing.loopback_ports import HeldPorts
from minka.v1.cluster_pb2 import NodeState

NAMES: Final = (
    "athens", "byzantium", "cyrene", "ephesus", "delphi", "corinth", "gortyn", "halicarnassus", "ithaca", "knossos",
    "larissa", "miletus", "naxos", "olympia", "pergamon", "rhodes", "sparta", "thebes", "troy", "zakynthos",
)  # fmt: skip
READY_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 10.0
MAX_NODES: Final = 100
PARTS_FILE: Final = "cluster.json"
_NEW_PARTS_FILE: Final = "cluster.json.new"
_FILES: Final = (PARTS_FILE, _NEW_PARTS_FILE, LOCK_FILE)
_FULL_BELOW_BYTES: Final = 1 << 20


@dataclass(slots=True)
class LocalNode:
    """One node: its addresses, its files, and its process when it runs."""

    name: str
    directory: Path
    address: str  # host:port of its gRPC port: an endpoint for clients
    http_address: str  # host:port, for /readyz and /metrics
    data_address: str
    bootstrap: bool  # it is one of the first voters
    config: dict[str, Any] = field(default_factory=dict)  # merged over the cluster's `config` at each start
    env: dict[str, str] = field(default_factory=dict)  # merged over the environment at each start
    network: Path | None = None  # the file of its network namespace
    process: NodeProcess | None = None

    @property
    def log(self) -> Path:
        """The file with the stdout and stderr of all runs of the node."""
        return self.directory / "minkad.log"

    @property
    def config_path(self) -> Path:
        """The node's configuration file, which is written at each start."""
        return self.directory / "minkad.yaml"

    @property
    def data_dir(self) -> Path:
        """The node's data directory."""
        return self.directory / "data"

    @property
    def running(self) -> bool:
        """True if the node's process runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """The node's process id. Raises MinkaError(PLAYGROUND_FAILED) if the node doesn't run."""
        if self.process is None or not self.running:
            raise _not_running(self)
        return self.process.pid

    def ended(self) -> str:
        """The state of the node's last process, as text for people."""
        if self.process is None:
            return "was not started"
        status = self.process.poll()
        if status is None:
            return "is running"
        return f"ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"


# A cluster in this set keeps its directory until `stop`, even if the caller drops the cluster.
_started: "Final[set[LocalCluster]]" = set()


class LocalCluster:
    """minkad processes on loopback ports, in a directory of their own.

        with LocalCluster(3) as cluster:      # athens, byzantium, cyrene; made, started and ready
            cluster.add("ephesus")
            cluster.kill("athens")
            cluster.restart("athens", env={"SETTING": "value"}, config={"storage": {"max_sync_s": 2}})

    Without `directory` everything is in a temporary directory, which is removed at the end, even if this process is
    killed. The nodes never outlive this process. With `directory`, a cluster that an earlier run left there runs again,
    with its nodes and its data. Only one cluster at a time can use a directory: the first, until its `stop`, or until
    its process ends.

    `nodes` is a number from 1 to 20, or up to 100 names. A node's name is its id: 1 to 63 characters of a-z, 0-9, dot
    and dash, with a letter or digit first. `config` is merged into every node's configuration ({"membership":
    {"clearance_ms": 500}}), `env` into every node's environment. Linux first divides processors among sessions, and
    each node has a session of its own; with `shares_session` all nodes are in this process's session, so that
    priorities hold among the threads of all processes. Methods that wait until nodes are ready wait at most
    `ready_timeout_s` seconds: give more on a slow machine.

    After `stop` no node can be started. Several threads may use different nodes of a cluster. A fork of this
    process can't use the cluster. Methods raise MinkaError(PLAYGROUND_FAILED), which names the log or the
    directory, and MinkaError(INVALID_ARGUMENT).
    """

    directory: Path  # a folder for each node, by its name
    nodes: dict[str, LocalNode]  # by name, in the order in which they were added

    def __init__(
        self,
        nodes: int | Sequence[str] = 3,
        directory: Path | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        shares_session: bool = False,
        ready_timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        if isinstance(nodes, bool):
            raise invalid(f"nodes={nodes} isn't a number of nodes, or their names")
        names = NAMES[:nodes] if isinstance(nodes, int) else tuple(items(nodes, "a number of nodes, or their names,"))
        if isinstance(nodes, int) and nodes != len(names):
            raise invalid(f"nodes={nodes} isn't from 1 to {len(NAMES)}; for up to {MAX_NODES} nodes, give their names")
        if not 1 <= len(names) <= MAX_NODES:
            raise invalid(f"a local cluster has 1 to {MAX_NODES} nodes, not {len(names)}")
        for name in names:
            checked_text(name, "a node's name", _name_problem)
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise invalid(f"two nodes have the same name: {', '.join(twice)}")
        if not isinstance(directory, Path | None):
            raise invalid(f"directory={clipped(repr(directory))} isn't a pathlib.Path")
        self._ready_timeout_s: Final = checked_timeout(ready_timeout_s, "ready_timeout_s")
        self._config = _checked_config(config)
        self._env = _checked_env(env)
        self._shares_session = shares_session
        self.nodes = {}
        self._adding = Lock()
        self._take(directory)
        try:
            if not self._load():
                voters = 3 if len(names) >= 3 else 1
                for index, name in enumerate(names):
                    self._make(name, bootstrap=index < voters)
                self._save()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """host:port of every node, running or not."""
        return tuple(node.address for node in self.nodes.values())

    def node(self, name: str) -> LocalNode:
        """The node of this name. Raises MinkaError(UNKNOWN_NODE)."""
        if name not in self.nodes:
            raise MinkaError(Code.UNKNOWN_NODE, f"no node {name!r}; there are: {', '.join(self.nodes)}")
        return self.nodes[name]

    def log(self, name: str) -> Path:
        """The log file of a node."""
        return self.node(name).log

    def start(self) -> Self:
        """Start every node that doesn't run, and wait until all are ready."""
        self._check_ours()
        for node in self.nodes.values():
            if not node.running:
                self._launch(node)
        self.wait_ready()
        return self

    def add(
        self,
        name: str = "",
        *,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> LocalNode:
        """Start one more node, which joins through the others; without `name` it gets a name. With `ready` this waits
        until the node is ready.
        """
        self._check_ours()
        name = checked_text(name, "a node's name", lambda text: _name_problem(text) if text else "")
        config, env = _checked_config(config), _checked_env(env)
        with self._adding:
            name = name or next((free for free in NAMES if free not in self.nodes), "")
            if not name or name in self.nodes or len(self.nodes) >= MAX_NODES:
                problem = (
                    f"{name} exists already"
                    if name in self.nodes
                    else f"there are {len(self.nodes)} nodes: give a name for one more, up to {MAX_NODES}"
                )
                raise MinkaError(Code.PLAYGROUND_FAILED, problem)
            self._check_going(name)
            node = self._make(name, bootstrap=False)
            node.config, node.env = config, env
            self._save()
        self._launch(node)
        if ready:
            self.wait_ready([name])
        return node

    def kill(self, name: str) -> None:
        """Send SIGKILL, and wait until the process is gone."""
        process = self._running(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def terminate(self, name: str, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Send SIGTERM, and wait until the process has ended gracefully."""
        process = self._running(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise self._failure(self.nodes[name], f"did not stop within {timeout_s:g} s of SIGTERM") from error

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a running node; after SIGSTOP, wait until all its threads have stopped."""
        if not isinstance(number, signal.Signals):
            raise invalid(f"number={clipped(repr(number))} isn't one of signal.Signals")
        if not self._running(name).send_signal(number):
            raise _not_running(self.node(name))

    def pause(self, name: str) -> None:
        """Let a node stand still (SIGSTOP), like a machine that hangs."""
        self.signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a node that was paused go on."""
        self.signal(name, signal.SIGCONT)

    def restart(
        self,
        name: str,
        *,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> None:
        """Start a node again, with its data; a node that runs is terminated first. `config` and `env`, if they are
        given, replace the node's own.
        """
        node = self.node(name)
        config = node.config if config is None else _checked_config(config)
        env = node.env if env is None else _checked_env(env)
        if node.running:
            self.terminate(name)
        node.config, node.env = config, env
        self._launch(node)
        if ready:
            self.wait_ready([name])

    def wait_ready(self, names: Iterable[str] | None = None, timeout_s: float | None = None) -> None:
        """Wait until these nodes (default: all) answer /readyz with 200, at most `timeout_s` seconds (None: the
        cluster's `ready_timeout_s`).
        """
        timeout_s = self._ready_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        waited = list(self.nodes) if names is None else list(items(names, "the names of nodes"))
        for node in [self.node(name) for name in waited]:
            while not is_ready(node.http_address):
                if not node.running:
                    raise self._failure(node, node.ended())
                if time.monotonic() > deadline:
                    raise self._failure(node, f"was not ready within {timeout_s:g} s")
                time.sleep(0.02)

    def stop(self, graceful: bool = False) -> None:
        """End every node, with SIGTERM if `graceful`, else with SIGKILL, and remove the temporary files. In a fork of
        the process that made the cluster, this does nothing.
        """
        if os.getpid() != self._process_id:
            return
        with self._adding:
            self._is_stopped = True
        _end(self.nodes.values(), signal.SIGTERM if graceful else signal.SIGKILL)
        _started.discard(self)
        self._ports.release()
        self._unlock()
        if self._leftovers is not None:
            self._leftovers.remove()

    def _begin_again(self, names: Collection[str]) -> None:
        """End every node, and forget all data, and all nodes that aren't in `names`; `start` then makes a new cluster
        of the others. A cluster that was stopped may begin again, too.
        """
        self._check_ours()
        self.stop()
        former = self.nodes
        self.nodes = {name: node for name, node in former.items() if name in names}
        self._take(None if self._leftovers is not None else self.directory)
        for node in former.values():
            shutil.rmtree(node.directory, ignore_errors=True)
        for node in self.nodes.values():
            node.directory = self.directory / node.name
            node.directory.mkdir()
            self._ports.hold([node.address, node.http_address, node.data_address])
        self._save()

    def _take(self, directory: Path | None) -> None:
        """Take the directory, or a new temporary one, for this cluster alone, until `stop`."""
        self._leftovers: Leftovers | None = None
        if directory is None:
            directory = _temporary()
            self._leftovers = Leftovers([directory])
        self.directory = directory
        self._ports, self._process_id = HeldPorts(), os.getpid()
        with _usable(directory):
            directory.mkdir(parents=True, exist_ok=True)
            self._unlock = finalize(self, DirectoryLock(directory).release)
        self._unlock.atexit = False  # the lock ends with the process
        self._is_stopped = False

    def _make(self, name: str, *, bootstrap: bool) -> LocalNode:
        grpc, http, data = self._ports.take(3)
        node = LocalNode(name, self.directory / name, grpc, http, data, bootstrap)
        with _usable(node.directory):
            node.directory.mkdir(exist_ok=True)
        self.nodes = {**self.nodes, name: node}  # other threads may be iterating over the former nodes
        return node

    def _save(self) -> None:
        parts = {n.name: [n.address, n.http_address, n.data_address, n.bootstrap] for n in self.nodes.values()}
        with _usable(self.directory):
            new = self.directory / _NEW_PARTS_FILE
            new.write_text(json.dumps(parts, indent=2), "utf-8")
            new.replace(self.directory / PARTS_FILE)

    def _load(self) -> bool:
        """Take over the nodes of an earlier run in this directory; return True if there was such a run."""
        path = self.directory / PARTS_FILE
        if not path.exists():
            return False
        with _usable(path):
            for name, (grpc, http, data, bootstrap) in dict(json.loads(path.read_text("utf-8"))).items():
                self.nodes[name] = LocalNode(name, self.directory / name, grpc, http, data, bootstrap)
                self._ports.hold([grpc, http, data])
        return True

    def _configuration(self, node: LocalNode) -> dict[str, Any]:
        """The content of the node's configuration file."""
        voters = [other for other in self.nodes.values() if other.bootstrap]
        cluster: dict[str, Any] = {"name": "playground", "min_nodes": len(voters)}
        cluster["bootstrap"] = [{"id": voter.name, "address": voter.address} for voter in voters]
        if not node.bootstrap:
            cluster["join"] = [voter.address for voter in voters]
        own = {
            "node": {"id": node.name},
            "cluster": cluster,
            "coordinator": {"voters": len(voters)},
            "data_dir": str(node.data_dir.absolute()),
            "listen": {"grpc": node.address, "http": node.http_address, "data": node.data_address},
        }
        return merged(merged(own, self._config), node.config)

    def _check_ours(self) -> None:
        if os.getpid() != self._process_id:
            text = f"the cluster belongs to process {self._process_id}, and this process is a fork of it"
            remedy = "Use the cluster in the process that made it, or make another LocalCluster here."
            raise MinkaError(Code.PLAYGROUND_FAILED, text, remedy=remedy)

    def _check_going(self, name: str) -> None:
        self._check_ours()
        if self._is_stopped:
            text = f"{name} can't be started: the cluster was stopped; make another LocalCluster"
            raise MinkaError(Code.PLAYGROUND_FAILED, text, node=name)

    def _launch(self, node: LocalNode) -> None:
        self._check_going(node.name)
        if find_spec("minkad") is None:
            raise MinkaError(Code.PACKAGE_MISSING, "a local cluster needs the daemon: pip install minka")
        import yaml

        assert not node.running, f"{node.name} runs already"
        try:
            configuration = yaml.safe_dump(self._configuration(node), sort_keys=False)
        except yaml.YAMLError as error:
            raise invalid(f"the configuration of {node.name} can't be written as YAML: {error}") from error
        with _usable(node.directory):
            node.config_path.write_text(configuration, "utf-8")
        _started.add(self)
        env = inherited() | self._env | node.env
        start = Start(node.config_path.absolute(), node.log.absolute(), env, not self._shares_session, node.network)
        node.process = launcher(list(self.nodes).index(node.name), env).start(start)

    def _running(self, name: str) -> NodeProcess:
        self._check_ours()
        node = self.node(name)
        if node.process is None or not node.running:
            raise _not_running(node)
        return node.process

    def _failure(self, node: LocalNode, problem: str) -> MinkaError:
        tail = node.log.read_text("utf-8", "replace").splitlines()[-8:] if node.log.exists() else []
        said = "".join(f"\n    {line}" for line in tail)
        text = f"{node.name} {problem}{_full_disk(self.directory)}; {node.log} ends with:{said}"
        return MinkaError(Code.PLAYGROUND_FAILED, text, node=node.name)


@contextlib.contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Turn errors of the `with` block into MinkaError(PLAYGROUND_FAILED), which names the path."""
    try:
        yield
    except (OSError, TypeError, ValueError) as error:  # the last two come from a file's content, or a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise MinkaError(Code.PLAYGROUND_FAILED, f"a local cluster can't use {path}: {reason}") from error


def _temporary() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="minka-"))
    except OSError as error:
        raise MinkaError(Code.PLAYGROUND_FAILED, f"there is no temporary directory for a cluster: {error}") from error


def _name_problem(name: str) -> str:
    return node_id_problem(name) or ("can't be the name of a file of the cluster" if name in _FILES else "")


def _full_disk(directory: Path) -> str:
    try:
        free = shutil.disk_usage(directory).free
    except OSError:  # the cluster was stopped, and the directory is removed
        return ""
    return f"; the disk of {directory} has only {free} bytes free" if free < _FULL_BELOW_BYTES else ""


def _checked_config(config: Mapping[str, Any] | None) -> dict[str, Any]:
    if not isinstance(config, Mapping | None):
        raise invalid(f"config is {type(config).__name__}, not a mapping such as {{'storage': {{'max_sync_s': 2}}}}")
    return dict(config or {})


def _checked_env(env: Mapping[str, str] | None) -> dict[str, str]:
    if not isinstance(env, Mapping | None):
        raise invalid(f"env is {type(env).__name__}, not a mapping such as {{'MINKAD_LOG_LEVEL': 'debug'}}")
    for name, value in (env or {}).items():
        checked_text(name, "the name of a variable in env", _name_of_variable_problem)
        checked_text(value, f"env[{clipped(repr(name))}]", lambda text: "has a NUL" if "\0" in text else "")
    return dict(env or {})


def _name_of_variable_problem(name: str) -> str:
    return "" if name and "=" not in name and "\0" not in name else "must be a text without = and NUL"


def _end(nodes: Iterable[LocalNode], number: signal.Signals) -> None:
    running = [node.process for node in nodes if node.process is not None and node.running]
    for process in running:
        process.send_signal(number)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _not_running(node: LocalNode) -> MinkaError:
    text = f"{node.name} is not running: it {node.ended()}; its log is {node.log}"
    return MinkaError(Code.PLAYGROUND_FAILED, text, node=node.name)


def make_whole(cluster: LocalCluster) -> None:
    """Make every node ready and LIVE, whatever a test has done to the cluster; this also takes back drains. If that
    fails, the cluster begins again without any data.
    """
    cluster._check_ours()
    try:
        for node in cluster.nodes.values():
            if node.running:
                cluster.resume(node.name)
        cluster.start()
        if "tls" not in cluster._config:  # with TLS, only the test has a certificate for clients
            _take_back_drains(cluster)
    except MinkaError:
        cluster._begin_again(cluster.nodes)
        cluster.start()


def _take_back_drains(cluster: LocalCluster) -> None:
    with Admin(cluster.endpoints, timeout=cluster._ready_timeout_s) as admin:
        for name in cluster.nodes:
            admin.undrain(name)
        wait_until(
            lambda status: all(row.state == NodeState.NODE_STATE_LIVE for row in status.table.nodes),
            admin.control,
            "all nodes are LIVE",
            cluster._ready_timeout_s,
        )


@contextlib.contextmanager
def put_back(cluster: LocalCluster) -> Iterator[None]:
    """At the end of the `with` block, put back the nodes and their settings, whatever the block did; `start` then
    starts the nodes that don't run. If the block added a node, the cluster begins again without any data, since the
    added node may have some of the data.
    """
    before = {node.name: copy.deepcopy((node.config, node.env)) for node in cluster.nodes.values()}
    try:
        yield
    finally:
        for name, settings in before.items():
            node = cluster.node(name)
            if (node.config, node.env) != settings:
                node.config, node.env = settings
                if node.running:
                    cluster.kill(name)
        if cluster.nodes.keys() != before.keys():
            cluster._begin_again(before)


def configuration_of(cluster: LocalCluster, node: LocalNode) -> dict[str, Any]:
    """The content of the node's configuration file."""
    return cluster._configuration(node)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`. If both have a mapping under a key, these are merged in the same way."""
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return result


def is_ready(http_address: str, timeout_s: float = 1.0) -> bool:
    """True if GET /readyz answers 200."""
    import http.client

    host, _, port = http_address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=timeout_s)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
