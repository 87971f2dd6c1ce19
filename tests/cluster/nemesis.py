"""Faults of real daemons, networks and disks. The seed determines how long a fault lasts; then the fault is undone."""

import contextlib
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import minka
from minka.admin.control import Control
from minka.cluster.hashing import digest_of, murmur3
from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, Partition, PartitionTable
from tests.cluster.cluster import DEADLINE, QUICK, eventually, settled
from tests.cluster.disks import MIB, Disk
from tests.cluster.history import Loop
from tests.cluster.network import CLIENTS, Network, NetworkedCluster
from tests.cluster.undo import NotPermitted, Undo

NODES: Final = ("athens", "byzantium", "cyrene", "ephesus")  # the first three nodes are voters
REPLICAS: Final = 3
KEYSPACE: Final = "registers"
RANGES: Final = "ranges"  # a keyspace like KEYSPACE, but by ranges
PARTITIONS: Final = 6
REDIS: Final = "redis"  # a keyspace like KEYSPACE, with the slots of Redis Cluster
BALLAST: Final = "ballast"  # a keyspace with one partition; writes to it fill a disk
CLEARANCE_S: Final = QUICK["membership"]["clearance_ms"] / 1000
FAILURE_S: Final = QUICK["membership"]["failure_timeout_ms"] / 1000
DISK_BYTES: Final = 512 * MIB
_SLOTS: Final = {
    KEYSPACE: lambda key: murmur3(key) % PARTITIONS,
    REDIS: digest_of(HashFunction.HASH_FUNCTION_CRC16, PARTITIONS),
}
_ROOM_MIB: Final = 4  # at most this much stays free on a disk that is nearly full
_LOG_CHARS: Final = 2000  # characters from the end of a node's log, for an error's text


@dataclass(slots=True)
class Lab:
    """A cluster under test. If the machine permits it, each node has a network namespace and a disk of its own;
    `missing` names what the machine doesn't permit.
    """

    cluster: LocalCluster
    network: Network | None
    disks: Mapping[str, Disk]
    control: Control
    loop: Loop
    missing: str

    def table(self) -> PartitionTable:
        """Ask any node for the partition table."""
        return self.control.table()

    def leader_of(self, key: bytes, keyspace: str = KEYSPACE) -> str:
        """Wait until a node leads the key's partition in KEYSPACE, RANGES or REDIS; returns its name."""
        return eventually(f"a leader for {key!r}", lambda: self._leader(keyspace, key))

    def leader_of_ballast(self) -> str:
        """Wait until a node leads BALLAST's only partition; returns its name."""
        return eventually("a leader for the ballast", lambda: self._leader(BALLAST, b""))

    def controller(self) -> str:
        """Wait until there is an active controller; returns its name."""
        return eventually("an active controller", lambda: self.control.status().coordinator.controller)

    def repair(self) -> None:
        """Undo all faults, even those that an earlier test failed to undo; then wait until all is well."""
        if self.network is not None:
            self.network.heal()
        for disk in self.disks.values():
            disk.free()
        for name, node in self.cluster.nodes.items():
            if node.running:
                self.cluster.signal(name, signal.SIGCONT)
        self.cluster.start()
        self.wait_well()

    def wait_well(self) -> None:
        """Wait until all nodes are LIVE, every partition is ONLINE with all its replicas in sync, and nothing moves."""
        ended = [
            f"{name} {node.ended()}; its log: {node.log.read_text('utf-8', 'replace')[-_LOG_CHARS:]}"
            for name, node in self.cluster.nodes.items()
            if not node.running
        ]
        assert not ended, f"ended without a signal of the test: {'; '.join(ended)}"
        try:
            eventually("a cluster that is well again", self._is_well)
        except AssertionError as error:
            table = self.table()
            rows = [row for row in table.partitions if sorted(row.isr) != sorted(row.replicas) or row.splitting]
            running = self.control.operations().operations[:3]
            behind = sorted({name for row in rows for name in {*row.replicas} - {*row.isr}})
            logs = {name: self.cluster.nodes[name].log.read_text("utf-8", "replace")[-_LOG_CHARS:] for name in behind}
            raise AssertionError(
                f"{error}; not well: {rows}; operations: {running}; nodes: {table.nodes}; logs: {logs}"
            ) from error

    def _is_well(self) -> bool:
        status = self.control.status()
        partitions = status.table.partitions
        return (
            status.from_controller
            and not status.running
            and settled(status.table, len(NODES))
            and all(sorted(p.isr) == sorted(p.replicas) for p in partitions)
        )

    def _leader(self, keyspace: str, key: bytes) -> str | None:
        rows = self.rows(keyspace)
        slot = _SLOTS[keyspace](key) if keyspace in _SLOTS else 0
        return next((p.leader for p in rows if is_in(p, slot, key, by_ranges=keyspace == RANGES)), None) or None

    def rows(self, keyspace: str) -> list[Partition]:
        """Return the partitions of a keyspace; perhaps [] if the answering node has just started."""
        table = self.table()
        number = next((k.id for k in table.keyspaces if k.name == keyspace), 0)
        return [p for p in table.partitions if p.keyspace_id == number]


def is_in(row: Partition, slot: int, key: bytes, *, by_ranges: bool) -> bool:
    """True if the partition has the key. In a keyspace `by_ranges`, that depends on `key`, otherwise on `slot`."""
    return KeyRange(row.start_key, row.end_key).contains(key) if by_ranges else row.slot == slot


@contextlib.contextmanager
def laboratory(undo: Undo, config: Mapping[str, Any] = QUICK) -> Iterator[Lab]:
    """Start a cluster of NODES, create its keyspaces, and wait until all is well."""
    missing = ""
    try:
        network = Network(undo)
        cluster: LocalCluster = NetworkedCluster(NODES, network, **config)
    except NotPermitted as error:
        missing, network = f"no network namespaces: {error}", None
        cluster = LocalCluster(NODES, config=config)
    try:
        disks = _disks(undo)
    except NotPermitted as error:
        missing, disks = f"{missing} no disks of their own: {error}".strip(), {}
    for name, disk in disks.items():
        cluster.nodes[name].config = {"data_dir": str(disk.mount / "data")}
    with cluster, Control(cluster.endpoints) as control, Loop() as loop:
        lab = Lab(cluster, network, disks, control, loop, missing)
        eventually("all nodes are LIVE", lambda: settled(control.status().table, len(NODES)))
        control.create_keyspace(KEYSPACE, PARTITIONS, HashFunction.HASH_FUNCTION_MURMUR3, REPLICAS)
        control.create_keyspace(RANGES, 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, REPLICAS, split_points=[])
        control.create_keyspace(REDIS, PARTITIONS, HashFunction.HASH_FUNCTION_CRC16, REPLICAS)
        control.create_keyspace(BALLAST, 1, HashFunction.HASH_FUNCTION_MURMUR3, REPLICAS)
        lab.wait_well()
        yield lab


def _disks(undo: Undo) -> dict[str, Disk]:
    directory = Path(tempfile.mkdtemp(prefix="minka-disks-"))
    undo.add(["rm", "-rf", "--one-file-system", str(directory)])
    return {name: Disk(undo, directory, name, DISK_BYTES) for name in NODES}


def keys_of_all_partitions(prefix: str, keyspace: str = KEYSPACE) -> list[bytes]:
    """One key in each partition of KEYSPACE, or of REDIS."""
    found: dict[int, bytes] = {}
    number = 0
    while len(found) < PARTITIONS:
        key = f"{prefix}-{number}".encode()
        found.setdefault(_SLOTS[keyspace](key), key)
        number += 1
    return list(found.values())


class Nemesis:
    """Causes faults, one for each public method. A method returns when it has undone its fault, perhaps before the
    cluster is well again.
    """

    def __init__(self, lab: Lab, rng: random.Random, keys: Sequence[bytes], keyspace: str = KEYSPACE) -> None:
        self._keyspace = keyspace
        self._lab = lab
        self._cluster = lab.cluster
        self._rng = rng
        self._keys = keys

    def kill_a_node(self) -> None:
        """Kill any node with SIGKILL, and start it again before or after it counts as FAILED."""
        self._kill(self._rng.choice(NODES))

    def kill_a_leader(self) -> None:
        """Kill a leader of one of the keys with SIGKILL, and start it again."""
        self._kill(self._a_leader())

    def kill_the_controller(self) -> None:
        """Kill the active controller with SIGKILL, and start it again."""
        self._kill(self._lab.controller())

    def restart_a_leader_gracefully(self) -> None:
        """Stop a leader gracefully with SIGTERM, and start it again."""
        self._cluster.restart(self._a_leader())

    def stop_a_leader(self) -> None:
        """Pause a leader with SIGSTOP for longer than its clearance. Once the leader continues, it must notice this."""
        self._stop(self._a_leader())

    def stop_the_controller(self) -> None:
        """Pause the active controller with SIGSTOP for longer than the clearances that it granted."""
        self._stop(self._lab.controller())

    def restart_all_at_once(self) -> None:
        """Kill all nodes with SIGKILL, and start all of them again."""
        for name in self._rng.sample(NODES, len(NODES)):
            self._cluster.kill(name)
        self._hold(0.0, 0.5)
        self._cluster.start()

    def cut_off_a_minority(self) -> None:
        """Cut off a voter, or a voter and the learner, from the clients and the other nodes."""
        alone = {self._rng.choice(NODES[:3]), *self._rng.choice([(), NODES[3:]])}
        self._part(alone, [*(set(NODES) - alone), CLIENTS])

    def cut_off_a_leader_from_its_peers(self) -> None:
        """Cut off a leader from the other nodes, but not from the clients."""
        leader = self._a_leader()
        self._part({leader}, sorted(set(NODES) - {leader}))

    def lose_one_way(self) -> None:
        """Drop all packets in one direction between a node and the other nodes, or between a node and only one other
        node. Packets in the opposite direction arrive.
        """
        network = self._network()
        one = self._rng.choice([self._a_leader(), self._lab.controller(), self._rng.choice(NODES)])
        others = sorted(set(NODES) - {one})
        others = self._rng.choice([others, [self._rng.choice(others)]])
        outwards = self._rng.random() < 0.5
        for other in others:
            network.lose(*((one, other) if outwards else (other, one)))
        self._hold(CLEARANCE_S, 2.5 * FAILURE_S)
        network.heal()

    def lose_packets(self) -> None:
        """Drop packets between random nodes for some tens of milliseconds at a time. TCP sends these packets again, so
        they arrive late.
        """
        network, rng = self._network(), self._rng
        end = time.monotonic() + rng.uniform(2 * FAILURE_S, 4 * FAILURE_S)
        while time.monotonic() < end:
            for _ in range(rng.randint(1, 4)):
                network.lose(*rng.sample(NODES, 2))
            self._hold(0.01, 0.06)
            network.heal()
            self._hold(0.01, 0.1)

    def fill_a_disk(self) -> None:
        """Fill a node's disk until the node ends, or refuses writes because its disk is low. Then free the disk, and
        restart the node.
        """
        name = self._lab.leader_of_ballast()
        disk = self._lab.disks[name]
        disk.fill(room=self._rng.randrange(_ROOM_MIB * MIB))
        self._lab.loop.start(self._write_until_it_is_full(name)).result()
        self._hold(0.0, 2 * FAILURE_S)
        disk.free()
        self._cluster.restart(name)

    async def _write_until_it_is_full(self, name: str) -> None:
        """Write until the node ends, refuses writes because of its disk, or no longer leads."""
        end, written = time.monotonic() + DEADLINE, 0
        async with minka.AsyncClient(self._cluster.endpoints, keyspace=BALLAST, timeout=1.0) as client:
            while self._cluster.nodes[name].running:
                assert time.monotonic() < end, f"{name} still takes writes on a full disk"
                try:
                    await client.put(b"ballast-%d" % self._rng.randrange(8), self._rng.randbytes(MIB))
                    written += 1
                except MinkaError as error:
                    if error.code is Code.DISK_LOW:
                        return
                if written > 2 * _ROOM_MIB:
                    return  # other nodes, which have room, lead now

    def _a_leader(self) -> str:
        return self._lab.leader_of(self._rng.choice(self._keys), self._keyspace)

    def _kill(self, name: str) -> None:
        self._cluster.kill(name)
        self._hold(0.0, 2 * FAILURE_S)
        self._cluster.restart(name)

    def _stop(self, name: str) -> None:
        self._cluster.signal(name, signal.SIGSTOP)
        self._hold(CLEARANCE_S, 3 * FAILURE_S)
        self._cluster.signal(name, signal.SIGCONT)

    def _part(self, one: set[str], other: Sequence[str]) -> None:
        network = self._network()
        network.part(one, other)
        self._hold(CLEARANCE_S, 2.5 * FAILURE_S)
        network.heal()

    def _network(self) -> Network:
        assert self._lab.network is not None, f"the test should have been skipped: {self._lab.missing}"
        return self._lab.network

    def _hold(self, least: float, most: float) -> None:
        """Let the fault last between `least` and `most` seconds."""
        time.sleep(self._rng.uniform(least, most))


PROCESS_FAULTS: Final[tuple[Callable[[Nemesis], None], ...]] = (
    Nemesis.kill_a_node,
    Nemesis.kill_a_leader,
    Nemesis.kill_the_controller,
    Nemesis.restart_a_leader_gracefully,
    Nemesis.stop_a_leader,
    Nemesis.stop_the_controller,
    Nemesis.restart_all_at_once,
)
NETWORK_FAULTS: Final[tuple[Callable[[Nemesis], None], ...]] = (
    Nemesis.cut_off_a_minority,
    Nemesis.cut_off_a_leader_from_its_peers,
    Nemesis.lose_one_way,
    Nemesis.lose_packets,
)
DISK_FAULTS: Final[tuple[Callable[[Nemesis], None], ...]] = (Nemesis.fill_a_disk,)
