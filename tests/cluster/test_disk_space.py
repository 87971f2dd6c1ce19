"""Real daemons whose disks are short of space, or fail."""

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from minka import BatchError, Client
from minka.admin.control import Control
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, PartitionTable
from tests.cluster.cluster import QUICK, create_keyspace, eventually, minkactl, wait_ended, wait_settled
from tests.cluster.disks import MIB, Disk
from tests.cluster.undo import NotPermitted, Undo

# Short clearances: after a restart, the cluster has to wait until the clearances from before the restart have ended.
CONFIG: Final = {
    "membership": {"heartbeat_interval_ms": 50, "clearance_ms": 400, "failure_timeout_ms": 600},
    "coordinator": {"tick_ms": 20},
}
DISK_BYTES: Final = 256 * MIB
KEYS: Final = [b"key-%d" % i for i in range(200)]
_SHUTDOWN: Final = 0x8004587D  # FS_IOC_SHUTDOWN of ext4 and XFS: from then on every read and write fails
_WITHOUT_FLUSH: Final = 2


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Undo() as undo:
        try:
            yield Disk(undo, tmp_path, "disk", DISK_BYTES)
        except NotPermitted as error:
            pytest.skip(f"the test can't make a disk for its node: {error}")


def break_disk(disk: Disk) -> None:
    """Let every read and write on the disk fail from now on."""
    folder = os.open(disk.mount, os.O_RDONLY)
    try:
        fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH))
    finally:
        os.close(folder)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("partitions", [100, pytest.param(1000, marks=pytest.mark.soak)])
def test_a_disk_that_fails_ends_the_node_however_many_partitions_it_has(disk: Disk, partitions: int) -> None:
    """The node ends without closing its databases: on a failed disk, closing each of them would take a second."""
    cluster = LocalCluster(["athens"], config=QUICK)
    cluster.nodes["athens"].config = {"data_dir": str(disk.mount / "data")}
    with cluster, Control(cluster.endpoints) as control:
        create_keyspace(control, "flights", partitions, live=1)
        with Client(cluster.endpoints, keyspace="flights", timeout=30.0) as client:
            for first in range(0, 10 * partitions, 500):
                keys = [b"key-%d" % i for i in range(first, first + 500)]
                eventually("the keys are written", partial(written, client, keys))
            break_disk(disk)
            with pytest.raises(MinkaError, match="STORAGE_FAILED"):
                client.put(b"more", b"value", timeout=20.0)
        process = cluster.node("athens").process
        assert process is not None
        assert process.wait(30) == 1
        said = cluster.log("athens").read_text("utf-8")
        assert "minkad: STORAGE_FAILED: " in said
        assert "Input/output error" in said
        assert "Traceback" not in said


def written(client: Client, keys: Iterable[bytes]) -> bool:
    client.put_many(dict.fromkeys(keys, b"value"))
    return True


def test_a_disk_that_does_not_answer_ends_the_node(tmp_path: Path) -> None:
    """A node ends when a sync takes longer than `max_sync_s`; then replicas on other nodes lead its partitions."""
    spec, held = tmp_path / "failpoints", tmp_path / "held"
    with LocalCluster(3, config=CONFIG) as cluster, Control(cluster.endpoints) as control:
        victim = next(name for name in cluster.nodes if name != control.status().coordinator.controller)
        cluster.kill(victim)
        cluster.nodes[victim].config = {"storage": {"max_sync_s": 2}}
        cluster.restart(victim, env={"MINKA_FAILPOINTS_FILE": str(spec)})
        wait_settled(control, live=3)
        control.create_keyspace("flights", 6, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, live=3)
        held.touch()
        spec.write_text(f"log.sync.before=pause:{held}\n")
        process = cluster.node(victim).process
        assert process is not None
        with Client(cluster.endpoints, keyspace="flights", timeout=30.0) as client:
            with contextlib.suppress(MinkaError):  # writes to its partitions wait until the node has ended
                client.put_many(dict.fromkeys(KEYS, b"value"))
            assert process.wait(30) == 1
            client.put_many(dict.fromkeys(KEYS, b"value"))
        said = cluster.log(victim).read_text("utf-8")
        assert "the disk has not answered for 2 s" in said


def known(control: Control) -> PartitionTable:
    """Wait until an active controller answers, and return its table."""
    return eventually("a controller", lambda: s.table if (s := control.status()).from_controller else None)


def test_others_lead_while_the_controllers_disk_does_not_answer(tmp_path: Path) -> None:
    """The node is the controller. Other nodes lead its partitions long before `max_sync_s`, after which the node would
    end. When its disk answers again, the node continues without a restart.
    """
    held = tmp_path / "held"
    cluster = LocalCluster(3, config=CONFIG)
    for name, node in cluster.nodes.items():
        node.env = {"MINKA_FAILPOINTS_FILE": str(tmp_path / name)}
    with cluster, Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="flights") as client:
        wait_settled(control, live=3)
        control.create_keyspace("flights", 6, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, live=3)
        victim = control.status().coordinator.controller
        held.touch()
        (tmp_path / victim).write_text(f"log.sync.before=pause:{held}\n")
        with contextlib.suppress(MinkaError):  # writes to the victim's partitions wait until it is FAILED
            client.put_many(dict.fromkeys(KEYS, b"value"), timeout=2.0)
        client.put_many(dict.fromkeys(KEYS, b"value"), timeout=30.0)
        assert not any(p.leader == victim for p in known(control).partitions)
        assert cluster.nodes[victim].running
        held.unlink()
        wait_settled(control, live=3)
        assert cluster.nodes[victim].running
        assert client.get_many(KEYS) == dict.fromkeys(KEYS, b"value")
        assert "the disk does not answer, so this node sends no heartbeats" in cluster.log(victim).read_text("utf-8")


def test_a_low_disk_takes_only_deletes_and_a_full_one_is_started_and_emptied(disk: Disk) -> None:
    cluster = LocalCluster(["athens", "byzantium"], config=CONFIG)
    cluster.nodes["athens"].config = {"data_dir": str(disk.mount / "data")}
    with (
        cluster,
        Control(cluster.endpoints) as control,
        Client(cluster.endpoints, keyspace="flights", timeout=10.0) as client,
    ):
        create_keyspace(control, "flights", 8, live=2)
        reserve = disk.mount / "data" / "reserve"
        eventually("the reserve is there", reserve.exists)
        client.put_many(dict.fromkeys(KEYS, b"x" * 1000))
        check_what_a_low_disk_takes(cluster, control, client, disk)

        cluster.kill("athens")
        disk.fill(room=0)
        cluster.restart("athens")
        wait_settled(control, live=2)
        assert not reserve.exists(), "the node has deleted the reserve, so that it could start"
        client.delete(KEYS[1])
        assert len(client.get_many(KEYS)) == len(KEYS) - 2
        operation = control.drain("athens", decommission=True, requested_by="test")
        assert wait_ended(control, operation.id).outcome.startswith("athens holds nothing and is safe to stop")
        assert not list((disk.mount / "data" / "partitions").glob("*"))
        client.put(KEYS[0], b"elsewhere")
        assert len(client.get_many(KEYS)) == len(KEYS) - 1

        disk.free()
        eventually("the disk has room again", lambda: "low" not in minkactl(cluster, "nodes").output)
        eventually("the reserve is there again", reserve.exists)


def check_what_a_low_disk_takes(cluster: LocalCluster, control: Control, client: Client, disk: Disk) -> None:
    eventually("athens is low", partial(is_low, cluster, disk))
    refused = eventually("athens refuses writes and byzantium takes them", partial(refusals, client))
    assert set(refused.values()) <= {Code.DISK_LOW, Code.DEADLINE_EXCEEDED}, "a refusal may be on its way at the end"
    assert len({p.leader for p in control.table().partitions}) == 2
    assert len(client.get_many(KEYS)) == len(KEYS)
    client.delete(KEYS[0])
    client.put(next(key for key in KEYS[2:] if key not in refused), b"y" * 1000)
    with pytest.raises(MinkaError, match="the disks of athens are low") as refusal:
        control.create_keyspace("more", 4, HashFunction.HASH_FUNCTION_MURMUR3, replicas=2)
    assert refusal.value.code is Code.NOT_ENOUGH_NODES


def is_low(cluster: LocalCluster, disk: Disk) -> bool:
    """Fill the room that a database may have freed. Returns True if the controller knows that the disk is low."""
    disk.fill(room=DISK_BYTES // 10 - 4 * MIB)
    return "low" in minkactl(cluster, "nodes").output


def refusals(client: Client) -> dict[bytes, Code] | None:
    """Write keys of all partitions. If some writes succeed and others are refused with DISK_LOW, returns the codes of
    all refusals by key; otherwise None.
    """
    try:
        client.put_many(dict.fromkeys(KEYS[2:], b"x" * 1000), timeout=1.0)
    except BatchError as error:
        refused = {key: failure.error.code for failure in error.failures for key in failure.keys}
        return refused if Code.DISK_LOW in refused.values() and len(refused) < len(KEYS[2:]) else None
    return None


def test_writes_go_on_without_a_replica_whose_disk_is_low(disk: Disk) -> None:
    """The node with the low disk leads nothing, and isn't in the in-sync sets until it has room again."""
    cluster = LocalCluster(["athens", "byzantium", "cyrene"], config=CONFIG)
    cluster.nodes["athens"].config = {"data_dir": str(disk.mount / "data")}
    with (
        cluster,
        Control(cluster.endpoints) as control,
        Client(cluster.endpoints, keyspace="flights", timeout=20.0) as client,
    ):
        wait_settled(control, live=3)
        control.create_keyspace("flights", 8, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, live=3)
        client.put_many(dict.fromkeys(KEYS, b"before"))
        eventually("athens is low", partial(is_low, cluster, disk))
        client.put_many(dict.fromkeys(KEYS, b"meanwhile"))
        eventually("athens is out", lambda: not any("athens" in p.isr for p in control.table().partitions))
        assert not any(p.leader == "athens" for p in control.table().partitions)
        client.put_many(dict.fromkeys(KEYS, b"without"))
        disk.free()
        eventually("athens is in sync", lambda: all(len(p.isr) == 3 for p in control.table().partitions))
        assert client.get_many(KEYS) == dict.fromkeys(KEYS, b"without")
