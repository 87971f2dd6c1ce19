"""The power is cut while clients write: the disks have all writes that were acknowledged before the cut.

Each disk is a file with a file system, mounted through a loop device. A copy of this file is like the disk after a
power cut: it lacks everything that the daemon, RocksDB or the file system had only in memory when the copy was made.
"""

import asyncio
import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import pytest

import minka
from minka import Client
from minka.admin.control import Control
from minka.errors import MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.cluster import QUICK, eventually, wait_settled
from tests.cluster.disks import MIB, Disk, copy_image, mounted
from tests.cluster.history import Loop
from tests.cluster.undo import NotPermitted, Undo

pytestmark = pytest.mark.timeout(120)
NODES: Final = ("athens", "byzantium", "cyrene")
DISK_BYTES: Final = 256 * MIB
PARTITIONS: Final = 6
WRITERS: Final = 12
KEYS: Final = 20  # of each writer
FIRST_ACKNOWLEDGED: Final = 300  # acknowledged writes before the power may be cut


class Writers:
    """Writers that overwrite their own keys with rising versions. Each sends write after write until one fails."""

    def __init__(self, loop: Loop, endpoints: Sequence[str], keyspace: str) -> None:
        self.asked: dict[bytes, int] = {}
        self.acknowledged: dict[bytes, int] = {}
        self.count = 0
        self._endpoints = endpoints
        self._keyspace = keyspace
        self._work: Future[None] = loop.start(self._run())

    def wait_busy(self) -> None:
        """Wait until nodes have acknowledged enough writes for the test to notice a loss."""
        eventually("writes are acknowledged", lambda: self.count >= FIRST_ACKNOWLEDGED)

    def stop(self) -> None:
        """Stop all writers. If a writer met an unexpected error, raises this error."""
        if not self._work.cancel():
            self._work.result()

    async def _run(self) -> None:
        async with (
            minka.AsyncClient(self._endpoints, keyspace=self._keyspace, timeout=10.0) as client,
            asyncio.TaskGroup() as group,
        ):
            for number in range(WRITERS):
                group.create_task(self._write(client, [b"key-%d-%d" % (number, i) for i in range(KEYS)]))

    async def _write(self, client: minka.AsyncClient, keys: Sequence[bytes]) -> None:
        with contextlib.suppress(MinkaError):
            for version in range(1, 1_000_000):
                for key in keys:
                    self.asked[key] = version
                    await client.put(key, b"%d " % version + b"." * (version % 700))
                    self.acknowledged[key] = version
                    self.count += 1

    def check(self, before: dict[bytes, int]) -> None:
        """Check that each key has the version in `before`, which was acknowledged, or a later version."""
        assert sum(before.values()) >= FIRST_ACKNOWLEDGED
        with Client(self._endpoints, keyspace=self._keyspace, timeout=20.0) as client:
            found = client.get_many(list(before))
        versions = {key: int(value.split(b" ")[0]) for key, value in found.items()}
        lost = {
            key: (version, versions.get(key, 0)) for key, version in before.items() if versions.get(key, 0) < version
        }
        assert not lost, (
            f"{len(lost)} of {len(before)} keys have lost acknowledged versions: {dict(list(lost.items())[:5])}"
        )
        assert all(version <= self.asked[key] for key, version in versions.items())


@pytest.fixture
def undo() -> Iterator[Undo]:
    with Undo() as undo:
        yield undo


@pytest.fixture
def directory(undo: Undo) -> Path:
    path = Path(tempfile.mkdtemp(prefix="minka-disks-"))
    undo.add(["rm", "-rf", "--one-file-system", str(path)])
    return path


def make_disks(undo: Undo, directory: Path, names: Sequence[str]) -> dict[str, Disk]:
    try:
        return {name: Disk(undo, directory, name, DISK_BYTES) for name in names}
    except NotPermitted as error:
        pytest.skip(f"no disks of their own: {error}")


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop() as loop:
        yield loop


@contextlib.contextmanager
def cluster_on(disks: dict[str, Disk], replicas: int) -> Iterator[tuple[LocalCluster, Control]]:
    cluster = LocalCluster(list(disks), config=QUICK)
    for name, disk in disks.items():
        cluster.nodes[name].config = {"data_dir": str(disk.mount / "data")}
    with cluster, Control(cluster.endpoints) as control:
        wait_settled(control, live=len(disks))
        control.create_keyspace("flights", PARTITIONS, HashFunction.HASH_FUNCTION_MURMUR3, replicas)
        wait_settled(control, live=len(disks))
        yield cluster, control


def start_from_copy(undo: Undo, cluster: LocalCluster, name: str, copy: Path) -> None:
    """Start the node with a copy of its disk: the file system replays its journal, as after a power cut."""
    mount = mounted(undo, copy, copy.with_suffix(".mount"))
    cluster.nodes[name].config = {"data_dir": str(mount / "data")}
    cluster.restart(name, ready=False)


def test_a_copy_of_a_disk_has_only_synced_data(undo: Undo, directory: Path) -> None:
    """A copy of a disk has only the synced data. If it had other data, too, the other tests would prove nothing."""
    disk = make_disks(undo, directory, ["disk"])["disk"]
    for name in ("synced", "not-synced"):
        with (disk.mount / name).open("wb") as file:
            file.write(b"x" * MIB)
            file.flush()
            if name == "synced":
                os.fsync(file.fileno())
    copy_image(disk.image, directory / "copy.img")
    mount = mounted(undo, directory / "copy.img", directory / "copy")
    assert (mount / "synced").read_bytes() == b"x" * MIB
    assert not (mount / "not-synced").exists() or not (mount / "not-synced").stat().st_size


@pytest.mark.seeds(1)
def test_one_node_copied_while_it_writes(undo: Undo, directory: Path, loop: Loop, seed: int) -> None:
    disks = make_disks(undo, directory, NODES[:1])
    with cluster_on(disks, replicas=1) as (cluster, control):
        writers = Writers(loop, cluster.endpoints, "flights")
        writers.wait_busy()
        time.sleep(random.Random(seed).uniform(0.0, 1.0))
        before = dict(writers.acknowledged)
        copy_image(disks[NODES[0]].image, directory / "copy.img")
        goes_on = writers.count
        eventually("it went on writing", lambda: writers.count > goes_on)
        cluster.kill(NODES[0])
        writers.stop()
        start_from_copy(undo, cluster, NODES[0], directory / "copy.img")
        wait_settled(control, live=1)
        writers.check(before)


@pytest.mark.seeds(1)
def test_all_nodes_lose_power_at_once(undo: Undo, directory: Path, loop: Loop, seed: int) -> None:
    """All nodes lose power at the same moment: SIGSTOP pauses them, so they write nothing while the test copies the
    disks.
    """
    disks = make_disks(undo, directory, NODES)
    rng = random.Random(seed)
    with cluster_on(disks, replicas=3) as (cluster, control):
        writers = Writers(loop, cluster.endpoints, "flights")
        writers.wait_busy()
        time.sleep(rng.uniform(0.0, 1.0))
        before = dict(writers.acknowledged)
        for name in rng.sample(NODES, len(NODES)):
            cluster.signal(name, signal.SIGSTOP)
        for name, disk in disks.items():
            copy_image(disk.image, directory / f"{name}-copy.img")
            cluster.kill(name)
        writers.stop()
        for name in NODES:
            start_from_copy(undo, cluster, name, directory / f"{name}-copy.img")
        wait_settled(control, live=len(NODES))
        writers.check(before)


@pytest.mark.seeds(1)
def test_one_of_three_nodes_loses_power_while_the_others_go_on(
    undo: Undo, directory: Path, loop: Loop, seed: int
) -> None:
    """The node comes back with the data from before its power cut. No write that was acknowledged before or after the
    cut is lost.
    """
    disks = make_disks(undo, directory, NODES)
    rng = random.Random(seed)
    victim = rng.choice(NODES)
    with cluster_on(disks, replicas=3) as (cluster, control):
        writers = Writers(loop, cluster.endpoints, "flights")
        writers.wait_busy()
        time.sleep(rng.uniform(0.0, 1.0))
        cluster.signal(victim, signal.SIGSTOP)
        copy_image(disks[victim].image, directory / "copy.img")
        cluster.kill(victim)
        time.sleep(rng.uniform(0.0, 2.0))
        start_from_copy(undo, cluster, victim, directory / "copy.img")
        wait_settled(control, live=len(NODES))
        eventually("all replicas are in sync", lambda: all(len(p.isr) == 3 for p in control.table().partitions))
        before = dict(writers.acknowledged)
        for name in NODES:
            cluster.kill(name)
        writers.stop()
        cluster.start()
        wait_settled(control, live=len(NODES))
        writers.check(before)
