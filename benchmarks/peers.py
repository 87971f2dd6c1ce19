"""Runs clusters of the peers etcd and Redis on this machine, from Debian's packages."""

import binascii
import csv
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from benchmarks.measure import Sample
from benchmarks.processes import Group, free_ports
from minka.testing.loopback_ports import LOOPBACK

REDIS: Final = "redis"
ETCD: Final = "etcd"

_PACKAGES: Final = {"redis-server": "redis-server", "redis-cli": "redis-tools", "redis-benchmark": "redis-tools",
                    "etcd": "etcd-server", "etcdctl": "etcd-client", "setpriv": "util-linux"}  # fmt: skip
_NEEDS: Final = {REDIS: ("redis-server", "redis-cli", "redis-benchmark"), ETCD: ("etcd", "etcdctl")}
SLOTS: Final = 16_384
_SYNCS: Final = "etcd_disk_wal_fsync_duration_seconds_count"
_BUS: Final = 10_000  # the port of Redis's cluster bus is higher than the node's port by this number


def missing(peer: str) -> str:
    """The reason why the peer can't run, with the command that installs it; "" if it is installed."""
    packages = sorted({_PACKAGES[program] for program in (*_NEEDS[peer], "setpriv") if shutil.which(program) is None})
    return f"not installed; on Debian: apt-get install {' '.join(packages)}" if packages else ""


class RedisCluster:
    """A Redis cluster: masters, each with `replicas` replicas. A master answers a write when it has synced it in its
    append-only file; as always in Redis, it doesn't wait for replicas.

    All other settings are Redis's defaults, with two exceptions: Redis makes no snapshots in addition to the
    append-only file, and doesn't rewrite that file. Both would only cost time.
    """

    def __init__(self, masters: int = 3, replicas: int = 0, node_timeout_ms: int = 15_000) -> None:
        self.addresses: list[tuple[str, int]] = []
        self._masters = masters
        self._replicas = replicas
        self._node_timeout_ms = node_timeout_ms
        self._group = Group(REDIS)
        self._processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for _ in range(self._masters * (1 + self._replicas)):
                self._start_one()
            nodes = [f"{host}:{port}" for host, port in self.addresses]
            self._cli("--cluster", "create", *nodes, "--cluster-yes", "--cluster-replicas", str(self._replicas))
            self._wait_agreed()
        except BaseException:
            self._group.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._group.__exit__(kind, error, tb)

    def add(self) -> tuple[str, int]:
        """Start a master without slots, and wait until all nodes know it."""
        new = self._start_one()
        first = self.addresses[0]
        self._cli("--cluster", "add-node", f"{new[0]}:{new[1]}", f"{first[0]}:{first[1]}")
        self._wait_agreed()
        return new

    def kill(self, address: tuple[str, int]) -> None:
        """Kill a node with SIGKILL."""
        self._group.kill(self._processes.pop(address))

    def signal(self, address: tuple[str, int], number: signal.Signals) -> None:
        """Send a signal to a node's process."""
        self._processes[address].send_signal(number)

    def restart(self, address: tuple[str, int]) -> None:
        """Start a killed node again, and wait until it follows a master and has all of the master's data."""
        self._launch(address)
        self._group.wait_until(f"redis on port {address[1]} follows", lambda: self._follows(address))
        self._wait_agreed()

    def replicas(self) -> dict[tuple[str, int], tuple[str, int]]:
        """The replicas that are connected to their masters, each with its master."""
        return {
            address: (LOOPBACK, int(self._replication(address)["master_port"]))
            for address in self._processes
            if self._follows(address)
        }

    def wait_replicated(self) -> None:
        """Wait until every replica is connected to its master."""
        count = self._masters * self._replicas
        self._group.wait_until("every replica follows", lambda: len(self.replicas()) == count)

    def key_of(self, master: tuple[str, int]) -> bytes:
        """Find a key that this master owns."""
        owner = self._owners()
        names = (b"key-%d" % number for number in itertools.count())
        return next(name for name in names if owner[binascii.crc_hqx(name, 0) % SLOTS] == master)

    def rebalance(self) -> None:
        """Give masters without slots their share of the slots, with `redis-cli`."""
        host, port = self.addresses[0]
        self._cli("--cluster", "rebalance", f"{host}:{port}", "--cluster-use-empty-masters")

    def key_count(self, address: tuple[str, int]) -> int:
        """The number of keys that one master has."""
        return int(self._ask(address, "DBSIZE"))

    def load(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Write pairs to the masters of their slots, through `redis-cli --pipe`. Raises RuntimeError if a write
        fails.
        """
        owner = self._owners()
        with ExitStack() as stack:
            files = {address: stack.enter_context(tempfile.TemporaryFile()) for address in self.addresses}
            for key, value in pairs:
                command = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(key), key, len(value), value)
                files[owner[binascii.crc_hqx(key, 0) % SLOTS]].write(command)
            for (_, port), file in files.items():
                file.seek(0)
                load = ["redis-cli", "-p", str(port), "--pipe"]
                done = subprocess.run(load, stdin=file, capture_output=True, check=True)
                if b"errors: 0" not in done.stdout:
                    raise RuntimeError(f"redis-cli --pipe: {done.stdout!r}")

    def benchmark(self, test: str, clients: int, pipeline: int, requests: int, keys: int, value_bytes: int) -> Sample:
        """Run redis-benchmark once, with a thread for each master; `test` is set or get."""
        command = ["redis-benchmark", "--cluster", "-h", LOOPBACK, "-p", str(self.addresses[0][1]), "-t", test]
        command += ["-c", str(clients), "-P", str(pipeline), "-n", str(requests), "-r", str(keys)]
        command += ["-d", str(value_bytes), "--csv"]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        return redis_sample(done.stdout)

    def _start_one(self) -> tuple[str, int]:
        port = free_ports(1, above=_BUS)[0]
        (self._group.directory / str(port)).mkdir()
        address = (LOOPBACK, port)
        self._launch(address)
        self.addresses.append(address)
        return address

    def _launch(self, address: tuple[str, int]) -> None:
        port = address[1]
        directory = self._group.directory / str(port)
        command = ["redis-server", "--bind", LOOPBACK, "--port", str(port), "--dir", str(directory)]
        command += ["--cluster-enabled", "yes", "--appendonly", "yes", "--appendfsync", "always"]
        command += ["--save", "", "--auto-aof-rewrite-percentage", "0"]
        command += ["--cluster-node-timeout", str(self._node_timeout_ms)]
        self._processes[address] = self._group.start(f"redis-{port}", command)
        self._group.wait_until(f"redis answers on port {port}", lambda: self._ask(address, "PING") == "PONG")

    def _follows(self, address: tuple[str, int]) -> bool:
        fields = self._replication(address)
        return fields.get("role") == "slave" and fields.get("master_link_status") == "up"

    def _replication(self, address: tuple[str, int]) -> dict[str, str]:
        lines = self._ask(address, "INFO", "replication").splitlines()
        return dict(line.strip().split(":", 1) for line in lines if ":" in line)

    def _wait_agreed(self) -> None:
        count = len(self.addresses)
        self._group.wait_until("the Redis nodes agree", lambda: all(self._agrees(one, count) for one in self.addresses))
        host, port = self.addresses[0]
        check = ["redis-cli", "--cluster", "check", f"{host}:{port}"]
        self._group.wait_until(
            "redis-cli --cluster check",
            lambda: b"[ERR]" not in subprocess.run(check, capture_output=True, check=False).stdout,
        )

    def _agrees(self, address: tuple[str, int], count: int) -> bool:
        info = self._ask(address, "CLUSTER", "INFO").split()
        return "cluster_state:ok" in info and f"cluster_known_nodes:{count}" in info

    def _owners(self) -> list[tuple[str, int]]:
        """The master of each slot."""
        lines = self._ask(next(iter(self._processes)), "CLUSTER", "NODES").splitlines()
        owners: list[tuple[str, int] | None] = [None] * SLOTS
        for line in lines:
            fields = line.split()
            host, _, port = fields[1].partition("@")[0].rpartition(":")
            for slots in fields[8:]:
                first, _, last = slots.partition("-")
                for slot in range(int(first), int(last or first) + 1):
                    owners[slot] = (host, int(port))
        known = [owner for owner in owners if owner is not None]
        assert len(known) == SLOTS, "every slot has a master"
        return known

    @staticmethod
    def _ask(address: tuple[str, int], *command: str) -> str:
        done = subprocess.run(
            ["redis-cli", "-p", str(address[1]), *command], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    @staticmethod
    def _cli(*arguments: str) -> None:
        done = subprocess.run(["redis-cli", *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"redis-cli {' '.join(arguments)}: {done.stdout[-500:]}{done.stderr[-500:]}")


def redis_sample(output: str) -> Sample:
    """Parse the output of `redis-benchmark --csv` for one test; skip the lines before it. Raises RuntimeError."""
    lines = output.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"test"')), None)
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[head:])))) if head is not None else []
    if len(rows) != 1:
        raise RuntimeError(f"redis-benchmark printed {output[-500:]!r}")
    row = rows[0]
    p50, p99, highest = (float(row[name]) / 1000 for name in ("p50_latency_ms", "p99_latency_ms", "max_latency_ms"))
    return Sample(float(row["rps"]), p50, p99, highest)


class EtcdCluster:
    """An etcd cluster with etcd's default settings, on loopback."""

    def __init__(self, members: int = 3) -> None:
        self._members = members
        self._group = Group(ETCD)
        self.endpoints: list[str] = []
        self.pids: list[int] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._group.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._group.__exit__(kind, error, tb)

    def _start(self) -> None:
        ports = free_ports(2 * self._members)
        clients, peers = ports[: self._members], ports[self._members :]
        cluster = ",".join(f"m{i}=http://{LOOPBACK}:{port}" for i, port in enumerate(peers))
        for i, (client, peer) in enumerate(zip(clients, peers, strict=True)):
            client_url, peer_url = f"http://{LOOPBACK}:{client}", f"http://{LOOPBACK}:{peer}"
            command = ["etcd", "--name", f"m{i}", "--data-dir", str(self._group.directory / f"m{i}")]
            command += ["--listen-client-urls", client_url, "--advertise-client-urls", client_url]
            command += ["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url]
            command += ["--initial-cluster", cluster, "--initial-cluster-token", "minka-bench", "--log-level", "error"]
            self.pids.append(self._group.start(f"m{i}", command).pid)
        self.endpoints = [f"{LOOPBACK}:{port}" for port in clients]
        self.wait_for_leader()

    def wait_for_leader(self) -> None:
        """Wait until all members answer and one of them leads."""
        self._group.wait_until("etcd has a leader", lambda: self._leader() is not None)

    def leader(self) -> str:
        """The address at which the leader takes requests."""
        leader = self._leader()
        assert leader is not None, "etcd has a leader"
        return leader

    def revision(self) -> int:
        """The number of changes that the leader has made. Each put and each transaction is one change."""
        return next(revision for _, leads, revision in self._status() if leads)

    def syncs(self) -> float:
        """The number of syncs of the leader's log, according to its metrics."""
        with urllib.request.urlopen(f"http://{self.leader()}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(_SYNCS))

    def _leader(self) -> str | None:
        status = self._status()
        return (
            next((endpoint for endpoint, leads, _ in status if leads), None) if len(status) == self._members else None
        )

    def _status(self) -> list[tuple[str, bool, int]]:
        command = ["etcdctl", "--endpoints", ",".join(self.endpoints), "endpoint", "status", "-w", "json"]
        done = subprocess.run(
            command, capture_output=True, check=False, text=True, env=os.environ | {"ETCDCTL_API": "3"}
        )
        return etcd_status(done.stdout) if done.returncode == 0 else []


def etcd_status(output: str) -> list[tuple[str, bool, int]]:
    """Parse the output of `etcdctl endpoint status -w json`: for each member, its endpoint, True if it leads, its
    revision.
    """
    return [
        (
            member["Endpoint"].removeprefix("http://"),
            member["Status"]["header"]["member_id"] == member["Status"]["leader"],
            int(member["Status"]["header"].get("revision", 0)),
        )
        for member in json.loads(output)
    ]
