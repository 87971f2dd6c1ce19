"""Loads into real daemons: a client uploads and commits files. Nodes take the files in, even if processes die."""

import random
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import minka
from minka import Client
from minka.admin.control import Control
from minka.bulk.bulk_loads import LoadClient
from minka.bulk.row_digest import Digest
from minka.bulk.sst_files import Written, write_sst
from minka.errors import MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, NodeState
from minka.v1.loads_pb2 import Load, LoadState
from minkad.process import failpoints
from minkad.replication.changing import ingesting  # noqa: F401 # declares its failpoints
from tests.cluster.cluster import QUICK, eventually, spec_file, state_of, wait_ended, wait_settled, with_failpoints
from tests.cluster.loads import read_all, rows_of, upload

ROWS = 20_000
NODES = ("athens", "byzantium", "cyrene")
SMALL_LOGS = {"storage": {"log_retention_mib": 1, "change_retention_mib": 1}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with with_failpoints(NODES, QUICK | SMALL_LOGS) as cluster, Control(cluster.endpoints) as control:
        points = [b"key-0004000", b"key-0012000"]
        for hashed, ranged in (("hashed", "ranged"), ("first-hashed", "first-ranged")):
            control.create_keyspace(hashed, 8, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
            control.create_keyspace(ranged, 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, replicas=3, split_points=points)
        wait_settled(control, live=3)
        yield cluster


@pytest.mark.parametrize("keyspace", ["first-hashed", "first-ranged"])
def test_a_load_is_taken_in(cluster: LocalCluster, tmp_path: Path, keyspace: str) -> None:
    rows = rows_of(ROWS)
    with LoadClient(cluster.endpoints) as client:
        load = client.begin(keyspace, keyspace)
        files = upload(client, load, keyspace, rows, tmp_path)
        keys = list(rows)[::1000]
        assert not any(read_all(cluster, keyspace, keys).values()), "no row is visible before the commit"
        client.commit(load, files)
        done = client.wait(load.id)
        assert (done.state, done.rows, done.parts_done) == (LoadState.LOAD_STATE_DONE, ROWS, len(files))
    assert read_all(cluster, keyspace, list(rows)) == rows


def spool_of(cluster: LocalCluster, name: str, load: Load) -> list[str]:
    folder = cluster.node(name).data_dir / "spool" / str(load.number)
    return sorted(path.name for path in folder.glob("*.sst")) if folder.exists() else []


def test_a_load_runs_once(cluster: LocalCluster, tmp_path: Path) -> None:
    """A client that runs a load again gets the result of the first run. A write after the first run isn't undone."""
    rows = rows_of(2000, "once")
    with LoadClient(cluster.endpoints) as client, Client(cluster.endpoints) as kv:
        load = client.begin("once", "hashed", job="what it was asked")
        files = upload(client, load, "hashed", rows, tmp_path)
        assert client.begin("once", "hashed", job="another").job == "what it was asked"
        with pytest.raises(MinkaError, match="each attempt needs a name of its own"):
            upload(client, load, "hashed", rows, tmp_path)
        client.commit(load, files)
        client.wait("once")
        kv.keyspace("hashed").put(b"key-0000001", b"later")
        again = client.begin("once", "hashed")
        assert again.state == LoadState.LOAD_STATE_DONE
        assert client.commit(again, files).state == LoadState.LOAD_STATE_DONE
        with pytest.raises(MinkaError, match="LOAD_ENDED"):
            upload(client, again, "hashed", rows_of(2000, "other"), tmp_path, "2")
        with pytest.raises(MinkaError, match="LOAD_EXISTS"):
            client.begin("once", "ranged")
    for name in NODES:
        cluster.restart(name)
        with Control(cluster.endpoints) as control:
            wait_settled(control, live=3)
    found = read_all(cluster, "hashed", list(rows))
    assert found == rows | {b"key-0000001": b"later"}


def test_an_aborted_load_leaves_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    rows = rows_of(2000, "aborted")
    with LoadClient(cluster.endpoints) as client:
        load = client.begin("aborted", "hashed")
        files = upload(client, load, "hashed", rows, tmp_path)
        assert all(len(spool_of(cluster, name, load)) == len(files) for name in NODES)
        assert client.abort("aborted", "test", "no more").outcome == "aborted by test: no more"
        with pytest.raises(MinkaError, match="LOAD_ENDED"):
            client.commit(load, files)
        eventually("nothing is left of it", lambda: not any(spool_of(cluster, name, load) for name in NODES))
    assert rows[b"key-0000001"] not in read_all(cluster, "hashed", [b"key-0000001"]).values()


def test_files_that_no_log_needs_are_removed(cluster: LocalCluster, tmp_path: Path) -> None:
    with (
        LoadClient(cluster.endpoints) as client,
        Client(cluster.endpoints) as kv,
        Control(cluster.endpoints) as control,
    ):
        control.create_keyspace("small", 1, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, live=3)
        load = client.begin("small", "small")
        client.commit(load, upload(client, load, "small", rows_of(100), tmp_path))
        client.wait("small")
        assert all(spool_of(cluster, name, load) for name in NODES), "other replicas may need the file for their logs"
        value = b"v" * 100_000

        def is_empty() -> bool:
            kv.keyspace("small").put_many({f"more-{i}".encode(): value for i in range(20)})  # causes a flush
            return not any(spool_of(cluster, name, load) for name in NODES)

        eventually("nothing is left of it", is_empty)


def test_the_files_of_a_load_are_removed_after_later_loads(cluster: LocalCluster, tmp_path: Path) -> None:
    """A node keeps a load's file as long as it keeps the load's rows as changes for readers. Later loads bring newer
    changes, which take the place of the older ones. So the node removes the file even if only loads write to the
    keyspace.
    """
    rows = {f"key-{i:02}".encode(): random.Random(i).randbytes(100_000) for i in range(20)}
    with LoadClient(cluster.endpoints) as client, Control(cluster.endpoints) as control:
        control.create_keyspace("nightly", 1, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, live=3)
        loads = []
        for night in range(3):
            loads.append(client.begin(f"night-{night}", "nightly"))
            client.commit(loads[-1], upload(client, loads[-1], "nightly", rows, tmp_path))
            client.wait(loads[-1].id)
        eventually("the first is gone", lambda: not any(spool_of(cluster, name, loads[0]) for name in NODES))
        assert all(spool_of(cluster, name, loads[-1]) for name in NODES), "its changes are kept"


@pytest.mark.timeout(120)
def test_a_split_between_upload_and_commit(cluster: LocalCluster, tmp_path: Path) -> None:
    rows = rows_of(ROWS, "split")
    with LoadClient(cluster.endpoints) as client, Control(cluster.endpoints) as control:
        load = client.begin("split", "ranged")
        files = upload(client, load, "ranged", rows, tmp_path)
        operation = control.split("ranged", [b"key-0006000", b"key-0016000"], "test")
        assert operation is not None
        wait_ended(control, operation.id)
        operation = control.merge("ranged", [b"key-0004000"], "test")
        wait_ended(control, operation.id)
        with pytest.raises(MinkaError, match="STALE_LOAD"):
            control.commit_load(load.id, files)
        client.commit(load, files)
        assert client.wait(load.id).rows == ROWS
    assert read_all(cluster, "ranged", list(rows)) == rows


def test_splits_wait_while_a_load_is_taken_in(cluster: LocalCluster, tmp_path: Path) -> None:
    with LoadClient(cluster.endpoints) as client, Control(cluster.endpoints) as control:
        load = client.begin("waits", "ranged")
        files = upload(client, load, "ranged", rows_of(1000, "waits"), tmp_path)
        leader = next(p for p in control.status().table.partitions if p.id == files[0].partition_id).leader
        gate = cluster.node(leader).directory / "gate"
        gate.touch()
        spec_file(cluster, leader).write_text(f"ingest.prepare.before=pause:{gate}\n")
        client.commit(load, files)
        eventually("the leader comes to it", gate.with_name("gate.reached").exists)
        operation = control.split("ranged", [b"key-0090000"], "test")
        assert operation is not None
        blockers = eventually(
            "the split names its blocker", lambda: control.operations([operation.id], with_migrations=True).blockers
        )
        assert "load waits is being taken in" in blockers[0].reason
        spec_file(cluster, leader).unlink()
        gate.unlink()
        client.wait(load.id)
        wait_ended(control, operation.id)


def test_a_file_with_other_rows_than_it_says_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    with LoadClient(cluster.endpoints) as client:
        load = client.begin("wrong", "ranged")
        first, second, *_ = client.targets("ranged")
        written = write_sst(tmp_path / "wrong.sst", [(b"key-0000001", b"")])
        assert written is not None
        with pytest.raises(MinkaError, match=r"INVALID_ARGUMENT: .* has keys that are not in"):
            client.upload(load, max(first, second, key=lambda one: one.range.start), written, "wrong")
        (tmp_path / "wrong.sst").write_bytes(b"x" * written.bytes)
        garbage = replace(written, checksum=zlib.crc32(b"x" * written.bytes))
        with pytest.raises(MinkaError, match=r"INVALID_ARGUMENT: .* isn't a file of rows"):
            client.upload(load, first, garbage, "wrong")
        client.abort("wrong")


@pytest.mark.timeout(180)
def test_a_node_that_is_down_during_the_upload(cluster: LocalCluster, tmp_path: Path) -> None:
    """The load succeeds while a node is down; the node gets the rows when it is back. Users of other databases
    complain of loads that fail because a node restarted: tidb 36674, 43400.
    """
    rows = rows_of(5000, "down")
    with LoadClient(cluster.endpoints) as client, Control(cluster.endpoints) as control:
        load = client.begin("down", "hashed")
        cluster.kill("cyrene")
        files = upload(client, load, "hashed", rows, tmp_path)
        assert not spool_of(cluster, "cyrene", load)
        client.commit(load, files)
        client.wait(load.id)
        assert read_all(cluster, "hashed", list(rows)) == rows
        cluster.restart("cyrene")
        wait_settled(control, live=3)
        same_everywhere(control, cluster)


def test_a_node_joins_in_sync_sets_after_it_has_the_files(cluster: LocalCluster, tmp_path: Path) -> None:
    """A leader without the file of a load whose mark is in its log would wait for the file for ever."""
    rows = rows_of(5000, "joins")
    pause, spec = tmp_path / "pause", spec_file(cluster, "cyrene")
    with LoadClient(cluster.endpoints) as client, Control(cluster.endpoints) as control:
        load = client.begin("joins", "hashed")
        cluster.kill("cyrene")
        files = upload(client, load, "hashed", rows, tmp_path)
        client.commit(load, files)
        client.wait(load.id)
        loaded = {file.partition_id for file in files}
        rest = {row.id for row in control.status().table.partitions} - loaded

        def joined() -> set[int]:
            return {row.id for row in control.status().table.partitions if "cyrene" in row.isr}

        pause.touch()
        spec.write_text(f"spool.keep.before=pause:{pause}\n")
        try:
            cluster.restart("cyrene")
            eventually("cyrene fetches a file", (tmp_path / "pause.reached").exists)
            eventually("cyrene has joined all others", lambda: rest <= joined())
            assert not loaded & joined()
        finally:
            pause.unlink()
            spec.unlink()
        wait_settled(control, live=3)
        same_everywhere(control, cluster)


def counts(control: Control, cluster: LocalCluster, name: str) -> dict[int, tuple[int, int]]:
    """Return the number of keys and bytes of each partition on this node."""
    return {one.partition_id: (one.keys, one.bytes) for one in control.count_keys(cluster.node(name).address)}


def test_a_damaged_file_is_fetched_again(cluster: LocalCluster, tmp_path: Path) -> None:
    rows = rows_of(5000, "damaged")
    with LoadClient(cluster.endpoints) as client:
        load = client.begin("damaged", "hashed")
        files = upload(client, load, "hashed", rows, tmp_path)
        for place, file in enumerate(files):
            for name in (NODES[place % 3], NODES[(place + 1) % 3]):
                path = cluster.node(name).data_dir / "spool" / str(load.number) / f"{file.name}.sst"
                content = bytearray(path.read_bytes())
                content[len(content) // 2] ^= 1
                path.write_bytes(content)
        client.commit(load, files)
        client.wait(load.id)
        with Control(cluster.endpoints) as control:
            same_everywhere(control, cluster)
    assert read_all(cluster, "hashed", list(rows)) == rows


def test_a_file_that_is_nowhere_is_waited_for_and_named(cluster: LocalCluster, tmp_path: Path) -> None:
    rows = rows_of(1000, "nowhere")
    with LoadClient(cluster.endpoints) as client:
        load = client.begin("nowhere", "hashed")
        targets = client.targets("hashed")
        files = upload(client, load, "hashed", rows, tmp_path)
        lost = files[0]
        for name in NODES:
            (cluster.node(name).data_dir / "spool" / str(load.number) / f"{lost.name}.sst").unlink()
        client.control.commit_load(load.id, files)

        def says_so() -> bool:
            found = client.describe(load.id)
            waiting = [one for one in found.blockers if one.partition_id == lost.partition_id]
            is_rest_done = found.loads[0].parts_done == len(files) - 1
            return is_rest_done and bool(waiting) and "no node that is up has" in waiting[0].reason

        eventually("the load says why a part waits", says_so)
        target = next(one for one in targets if one.partition_id == lost.partition_id)
        path = tmp_path / f"{load.id}-{lost.partition_id}-1.sst"
        digest = Digest.from_proto(lost.rows, lost.digest)
        assert client.upload(load, target, Written(path, lost.bytes, lost.checksum, digest), lost.name) == lost
        client.wait(load.id)
    assert read_all(cluster, "hashed", list(rows)) == rows


def test_a_check_finds_a_full_disk_before_the_upload(cluster: LocalCluster) -> None:
    """Before a client sends files, `check` refuses the load if nodes lack room, if partitions lack replicas in sync, or
    if the client and a node have different versions. Users of other databases complain of 16 hours of retries against a
    full disk: tidb 33446.
    """
    with LoadClient(cluster.endpoints, timeout=4.0) as client, Control(cluster.endpoints) as control:
        client.check("hashed", 1_000_000, minka.__version__)
        with pytest.raises(MinkaError, match=r"DISK_FULL: athens has room for .*byzantium has room for .*cyrene") as no:
            client.check("hashed", 1 << 60)
        assert not no.value.code.info.retriable
        with pytest.raises(MinkaError, match=r"INVALID_ARGUMENT: athens is of version"):
            client.check("hashed", 1_000_000, "0.0.0")
        control.create_keyspace("strict", 2, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3, min_insync=3)
        wait_settled(control, live=3)
        cluster.kill("byzantium")
        eventually("byzantium FAILED", lambda: state_of(control, "byzantium") == NodeState.NODE_STATE_FAILED)
        with pytest.raises(MinkaError, match=r"NOT_ENOUGH_REPLICAS: 2 partitions have .* too few replicas in sync"):
            client.check("strict", 1_000_000)
        client.check("hashed", 1_000_000)
        with pytest.raises(MinkaError, match=r"DISK_FULL: athens has room for [^z]*cyrene"):
            client.check("hashed", 1 << 60)
        cluster.restart("byzantium")
        wait_settled(control, live=3)


def test_the_controller_dies_after_the_commit(cluster: LocalCluster, tmp_path: Path) -> None:
    """The load succeeds under another controller. Users of other databases complain of loads that fail because the
    controller restarted: tidb 36674, 43400.
    """
    rows = rows_of(5000, "failover")
    with LoadClient(cluster.endpoints) as client, Control(cluster.endpoints) as control:
        load = client.begin("failover", "hashed")
        files = upload(client, load, "hashed", rows, tmp_path)
        controller = control.status().coordinator.controller
        client.commit(load, files)
        cluster.kill(controller)
        client.wait(load.id)
        cluster.restart(controller)
        wait_settled(control, live=3)
        same_everywhere(control, cluster)
    assert read_all(cluster, "hashed", list(rows)) == rows


def test_replicas_move_between_upload_and_commit(tmp_path: Path) -> None:
    rows = rows_of(5000, "moved")
    with LocalCluster(4, config=QUICK) as cluster, LoadClient(cluster.endpoints) as client:
        control = client.control
        control.create_keyspace("moves", 4, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
        table = wait_settled(control, live=4)
        load = client.begin("moves", "moves")
        files = upload(client, load, "moves", rows, tmp_path)
        nodes = sorted(cluster.nodes)
        others = {row.id: [nodes[(nodes.index(row.leader) + 1) % 4]] for row in table.partitions}
        operation = control.apply_plan(control.plan_reassign(partitions=others), "test")
        wait_ended(control, operation.id)
        wait_settled(control, live=4)
        client.commit(load, files)
        client.wait(load.id)
        with Client(cluster.endpoints) as kv:
            assert dict(kv.keyspace("moves").get_many(list(rows))) == rows
        operation = control.apply_plan(control.plan_reassign(drain=[nodes[0]]), "test")
        wait_ended(control, operation.id)
        with Client(cluster.endpoints) as kv:
            assert dict(kv.keyspace("moves").get_many(list(rows))) == rows


def same_everywhere(control: Control, cluster: LocalCluster) -> None:
    """Check that all replicas are in sync, and have the same data."""
    eventually("all are in sync", lambda: all(len(p.isr) == 3 for p in control.status().table.partitions))

    found: dict[str, dict[int, tuple[int, int]]] = {}

    def is_same() -> bool:
        found.update({name: counts(control, cluster, name) for name in NODES})
        first, *others = found.values()
        return bool(first) and all(other == first for other in others)

    try:
        eventually("all have the same", is_same)
    except AssertionError:
        ids = sorted({id_ for counted in found.values() for id_ in counted})
        by_id = {id_: {name: counted.get(id_) for name, counted in found.items()} for id_ in ids}
        pytest.fail(f"keys and bytes differ: { {id_: one for id_, one in by_id.items() if len({*one.values()}) > 1} }")


PLACES = ("prepare", "mark", "take", "finish")
INGEST_POINTS = [f"ingest.{place}.{when}" for place in PLACES for when in ("before", "after")]


def test_these_are_the_places() -> None:
    assert {f"ingest.{one}" for one in PLACES} == {name for name in failpoints.names() if name.startswith("ingest.")}


@pytest.mark.seeds(2)
@pytest.mark.timeout(180)
def test_a_node_is_killed_while_a_load_is_taken_in(cluster: LocalCluster, tmp_path: Path, seed: int) -> None:
    """In the end, all replicas have each row once. The load doesn't undo a write that came after it."""
    rng = random.Random(seed)
    place = INGEST_POINTS[seed % len(INGEST_POINTS)]
    keyspace = ("hashed", "ranged")[seed // len(INGEST_POINTS) % 2]
    rows = rows_of(5000, f"seed{seed}")
    with LoadClient(cluster.endpoints) as client, Control(cluster.endpoints) as control:
        wait_settled(control, live=3)
        load = client.begin(f"killed-{seed}", keyspace)
        files = upload(client, load, keyspace, rows, tmp_path)
        loaded = {file.partition_id for file in files}
        victim = rng.choice(sorted({row.leader for row in control.status().table.partitions if row.id in loaded}))
        spec_file(cluster, victim).write_text(f"{place}=kill\n")
        client.commit(load, files)
        eventually(f"{victim} dies at {place}", lambda: not cluster.node(victim).running)
        with Client(cluster.endpoints) as kv:
            spec_file(cluster, victim).unlink()
            cluster.restart(victim)
            client.wait(load.id)
            kv.keyspace(keyspace).put(b"key-0000001", b"later")
        wait_settled(control, live=3)
        same_everywhere(control, cluster)
    assert read_all(cluster, keyspace, list(rows)) == rows | {b"key-0000001": b"later"}
