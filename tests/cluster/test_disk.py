"""Real daemons whose disks are full or damaged."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minka import Client
from minka.admin.control import Control
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import NodeState
from minkactl.exits import Exit
from tests.cluster.cluster import create_keyspace, eventually, minkactl, state_of, wait_ended, wait_settled

MIB = 1024 * 1024
DISK_BYTES = 128 * MIB
# Short clearances: after a restart, the cluster has to wait until the clearances from before the restart have ended.
CONFIG = {
    "membership": {"heartbeat_interval_ms": 50, "clearance_ms": 400, "failure_timeout_ms": 600},
    "coordinator": {"tick_ms": 20},
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system for one node, so that a test can fill it."""
    image, mount = tmp_path / "disk.img", tmp_path / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    for command in (["mkfs.ext4", "-q", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(mount)]):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no disk to fill: {' '.join(command)}: {getattr(error, 'stderr', '') or error}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True, timeout=20)


def fill(path: Path, room: int) -> None:
    """Fill the disk completely; then free `room` bytes."""
    with path.open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
        file.truncate(os.fstat(file.fileno()).st_size - room)


def wait_end(cluster: LocalCluster, name: str) -> int:
    process = cluster.node(name).process
    assert process is not None
    return process.wait(30)


def test_a_full_disk_stops_the_node_until_there_is_room(small_disk: Path) -> None:
    full = {"data_dir": str(small_disk / "data"), "storage": {"disk_low_mib": 1}}
    with LocalCluster(["athens"], config=CONFIG | full) as cluster:
        with Control(cluster.endpoints) as control:
            create_keyspace(control, "flights", 3, live=1)
        with Client(cluster.endpoints, keyspace="flights", timeout=10.0) as client:
            client.put(b"before", b"it was full")
            fill(small_disk / "ballast", room=8 * MIB)
            acknowledged = write_until_refused(client)
        assert acknowledged >= 4
        assert wait_end(cluster, "athens") == 1
        said = cluster.log("athens").read_text("utf-8")
        assert "minkad: STORAGE_FAILED: " in said
        assert "No space left on device" in said
        assert (
            "remedy: Free space at the path that the message names, or replace the disk, and start the node again."
            in said
        )
        assert "Traceback" not in said

        # systemd restarts the node, too. If the disk has room for a start, the node becomes ready; otherwise it ends.
        cluster.restart("athens", ready=False)
        eventually("a start without room", lambda: ended_or_ready(cluster))
        (small_disk / "ballast").unlink()
        if not cluster.node("athens").running:
            cluster.restart("athens")
        with Control(cluster.endpoints) as control:
            wait_settled(control, live=1)
        with Client(cluster.endpoints, keyspace="flights", timeout=10.0) as client:
            assert client.get(b"before") == b"it was full"
            for i in range(acknowledged):
                assert client.get(b"key-%d" % i) == bytes([i]) * MIB
            eventually("there is room", lambda: written(client, b"after"))


def written(client: Client, key: bytes) -> bool:
    client.put(key, b"value")
    return True


def write_until_refused(client: Client) -> int:
    """Write rows of 1 MiB until the node refuses one; returns the number of acknowledged rows. If the node refuses a
    row because its disk is low, fills the rest of the disk with deletes.
    """
    for i in range(DISK_BYTES // MIB):
        try:
            client.put(b"key-%d" % i, bytes([i]) * MIB, timeout=2.0)
        except MinkaError as error:
            if error.code is Code.DISK_LOW:
                delete_until_refused(client)
            return i
    raise AssertionError("everything fits on a full disk")


def delete_until_refused(client: Client) -> None:
    """Delete keys until the log with the deletes has filled the disk: a node with a low disk still accepts deletes."""
    for i in range(DISK_BYTES // 60_000):
        try:
            client.delete(b"%60000d" % i, timeout=2.0)
        except MinkaError:
            return
    raise AssertionError("everything fits on a full disk")


def ended_or_ready(cluster: LocalCluster) -> bool:
    if cluster.node("athens").running:
        return cluster.log("athens").read_text("utf-8").count("registered") > 1
    assert wait_end(cluster, "athens") == 1
    return True


def wal(data_dir: Path) -> Path:
    """Return the newest write-ahead log of the log database."""
    return max((file for file in (data_dir / "log").glob("*.log") if file.stat().st_size), key=lambda f: f.name)


def test_a_torn_end_of_the_log_is_dropped() -> None:
    """After a power cut, the log ends with a part of a record that was never synced. The node drops this part."""
    with LocalCluster(["athens"], config=CONFIG) as cluster, Control(cluster.endpoints) as control:
        create_keyspace(control, "flights", 3, live=1)
        rows = {b"key-%d" % i: b"value-%d" % i for i in range(50)}
        with Client(cluster.endpoints, keyspace="flights") as client:
            client.put_many(rows)
            cluster.kill("athens")
            path = newest(cluster.node("athens").data_dir, "*.log")
            # Append RocksDB's header of a record (checksum, length, type), and only a small part of the record.
            path.write_bytes(path.read_bytes() + b"\x01\x02\x03\x04" + b"\x00\x10" + b"\x01" + b"torn")
            cluster.restart("athens")
            wait_settled(control, live=1)
            assert client.get_many(list(rows)) == rows
            client.put(b"after", b"the cut")


def test_damaged_data_is_refused_and_the_node_rebuilt_from_its_peers() -> None:
    with LocalCluster(3, config=CONFIG) as cluster, Control(cluster.endpoints) as control:
        create_keyspace(control, "flights", 9, live=3)
        check_rebuild_is_refused(cluster, "cyrene holds 3 partitions")
        operation = control.apply_plan(control.plan_reassign(["athens", "byzantium"]), "away from cyrene")
        wait_ended(control, operation.id)
        table = wait_settled(control, live=3)
        check_rebuild_is_refused(cluster, "node cyrene is LIVE")

        node = cluster.node("cyrene")
        cluster.kill("cyrene")
        flip(newest(node.data_dir, "*.log"))
        cluster.restart("cyrene", ready=False)
        assert wait_end(cluster, "cyrene") == 1
        said = node.log.read_text("utf-8")
        assert "minkad: CORRUPT_DATA: " in said
        assert str(node.data_dir / "log") in said
        assert "minkactl node rebuild" in said.rpartition("remedy:")[2]
        assert "Traceback" not in said

        eventually("cyrene is given up", lambda: state_of(control, "cyrene") != NodeState.NODE_STATE_LIVE)
        rebuilt = minkactl(cluster, "node", "rebuild", "cyrene", "--yes")
        assert rebuilt.exit_code == Exit.OK, rebuilt.output
        assert "Now, on cyrene: move its data_dir away, and start minkad." in rebuilt.output
        node.data_dir.rename(node.directory / "damaged")
        cluster.restart("cyrene")
        after = wait_settled(control, live=3)
        old, new = ({n.id: n.raft_id for n in t.nodes}["cyrene"] for t in (table, after))
        assert new > old, "the node's former votes no longer count"
        assert [p.leader for p in after.partitions] == [p.leader for p in table.partitions]
        eventually("cyrene votes again", lambda: "cyrene" in control.status().coordinator.voters)


def check_rebuild_is_refused(cluster: LocalCluster, reason: str) -> None:
    refused = minkactl(cluster, "node", "rebuild", "cyrene", "--yes")
    assert refused.exit_code == Exit.FAILED
    assert f"error: NODE_IN_USE: {reason}" in refused.output


def newest(data_dir: Path, pattern: str) -> Path:
    """Return the newest file of the log database that matches the pattern."""
    return max((file for file in (data_dir / "log").glob(pattern) if file.stat().st_size), key=lambda file: file.name)


def flip(path: Path) -> None:
    """Flip a bit near the file's beginning."""
    content = bytearray(path.read_bytes())
    content[40] ^= 0x10
    path.write_bytes(content)
