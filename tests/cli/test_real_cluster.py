"""minkactl against real daemons, from an empty cluster to a reassign."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.admin_pb2 import PartitionFilter
from minkactl.exits import Exit
from tests.cli.conftest import Run, on_terminal, until
from tests.cluster.cluster import QUICK, eventually
from tests.summaries import summary_of

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cluster(own_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """A cluster of athens, byzantium and cyrene. minkactl finds it by MINKA_ENDPOINTS."""
    with LocalCluster(3, config=QUICK) as running:
        monkeypatch.setenv("MINKA_ENDPOINTS", ",".join(running.endpoints))
        yield running


def as_json(run: Run, *arguments: str) -> Any:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.timeout(240)
def test_from_an_empty_cluster_to_one_without_a_quorum(run: Run, cluster: LocalCluster, tmp_path: Path) -> None:
    an_empty_cluster(run, cluster)
    create_a_keyspace(run)
    keys(run, tmp_path)
    conditions_versions_and_lifetimes(run)
    increments(run)
    load_and_count(run, tmp_path)
    locate_finds_who_answers(run)
    a_reassign_from_plan_to_end(run, cluster, tmp_path)
    versions_and_one_node(run)
    the_summary_is_what_the_partitions_add_up_to(run, cluster)
    a_node_that_dies_is_seen_and_its_return_too(run, cluster)
    no_quorum_is_told(run, cluster)


def an_empty_cluster(run: Run, cluster: LocalCluster) -> None:
    status = as_json(run, "status")
    assert status["cluster"]["name"] == "playground"
    assert status["from_controller"]
    assert [node["id"] for node in status["nodes"]] == ["athens", "byzantium", "cyrene"]
    assert {node["state"] for node in status["nodes"]} == {"live"}
    assert sorted(node["role"] for node in status["nodes"]) == ["controller", "voter", "voter"]
    assert [node["address"] for node in status["nodes"]] == list(cluster.endpoints)
    assert status["keyspaces"] == []


def create_a_keyspace(run: Run) -> None:
    assert run("keyspace", "create", "flights", "--partitions", "9", "--replicas", "1").exit_code == 0
    again = run("keyspace", "create", "flights", "--partitions", "9", "--replicas", "1")
    assert again.exit_code == Exit.FAILED
    assert "error: KEYSPACE_EXISTS: " in again.stderr
    too_many = run("keyspace", "create", "wide", "--partitions", "9", "--replicas", "7")
    assert too_many.exit_code in (Exit.FAILED, Exit.USAGE)
    assert len(run("partitions", "--node", "cyrene", "-o", "name").stdout.split()) == 3


def keys(run: Run, tmp_path: Path) -> None:
    assert run("kv", "put", "flights", "UA1545", "EWR to IAH").exit_code == 0
    assert run("kv", "get", "flights", "UA1545").stdout == "EWR to IAH"
    assert as_json(run, "kv", "get", "flights", "UA1545")["value"] == "EWR to IAH"
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)))
    assert run("kv", "put", "flights", "binary", "--file", binary).exit_code == 0
    assert run("kv", "get", "flights", "binary").stdout_bytes == bytes(range(256))
    assert "value_base64" in as_json(run, "kv", "get", "flights", "binary")
    assert run("kv", "delete", "flights", "binary", "UA1545", "nothing").exit_code == 0
    missing = run("kv", "get", "flights", "UA1545")
    assert (missing.exit_code, missing.stdout) == (Exit.FAILED, "")
    assert "error: UNKNOWN_KEY: " in missing.stderr
    unknown = run("kv", "get", "trains", "UA1545")
    assert "error: UNKNOWN_KEYSPACE: " in unknown.stderr


def conditions_versions_and_lifetimes(run: Run) -> None:
    assert run("kv", "put", "flights", "lock", "me", "--if-absent", "--ttl", "30m").exit_code == 0
    refused = run("kv", "put", "flights", "lock", "you", "--if-absent")
    assert refused.exit_code == Exit.FAILED
    found = as_json(run, "kv", "get", "flights", "lock")
    assert f"error: CONDITION_FAILED: key 'lock' has version {found['version']}; nothing was done" in refused.stderr
    assert found["value"] == "me"
    assert 29 * 60 < found["expires_ms"] / 1000 - time.time() <= 30 * 60
    wide = run("kv", "get", "flights", "lock", "-o", "wide").stdout.splitlines()
    assert wide[0] == "KEY\tVERSION\tEXPIRES\tVALUE"
    assert wide[1].startswith(f"lock\t{found['version']}\t20")
    assert run("kv", "put", "flights", "lock", "you", "--if-version", found["version"] + 1).exit_code == Exit.FAILED
    assert run("kv", "put", "flights", "lock", "you", "--if-version", found["version"]).exit_code == 0
    assert as_json(run, "kv", "get", "flights", "lock")["expires_ms"] is None
    assert run("kv", "put", "flights", "lock", "she", "--if-value", "you").exit_code == 0
    assert run("kv", "delete", "flights", "lock", "--if-value", "you").exit_code == Exit.FAILED
    assert run("kv", "get", "flights", "lock").stdout == "she"
    assert run("kv", "delete", "flights", "lock", "--if-value", "she").exit_code == 0
    gone = run("kv", "delete", "flights", "lock", "--if-version", "1")
    assert "error: CONDITION_FAILED: key 'lock' has no value" in gone.stderr
    for mistake in (
        ["put", "flights", "lock", "me", "--if-absent", "--if-version", "1"],
        ["put", "flights", "lock", "me", "--ttl", "0s"],
        ["put", "flights", "lock", "me", "--ttl", "soon"],
        ["delete", "flights", "lock", "other", "--if-version", "1"],
    ):
        assert run("kv", *mistake).exit_code == Exit.USAGE, mistake
    assert run("kv", "get", "flights", "lock").exit_code == Exit.FAILED


def increments(run: Run) -> None:
    assert run("kv", "increment", "flights", "visits").stdout == "1\n"
    assert run("kv", "increment", "flights", "visits", "--by", "-3").stdout == "-2\n"
    assert as_json(run, "kv", "increment", "flights", "visits", "--by", "44")["number"] == 42
    assert run("kv", "put", "flights", "text", "EWR").exit_code == 0
    refused = run("kv", "increment", "flights", "text")
    assert refused.exit_code == Exit.FAILED
    assert "error: NOT_A_NUMBER: " in refused.stderr
    assert run("kv", "delete", "flights", "visits", "text").exit_code == 0


def load_and_count(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n" + "".join(f"{n},{n * n}\n" for n in range(5000)))
    loaded = as_json(run, "kv", "load", "flights", str(path), "--key", "a,b")
    assert loaded["rows"] == 5000
    assert as_json(run, "kv", "get", "flights", "70/4900")["value"] == '{"a":"70","b":"4900"}'
    count = as_json(run, "kv", "count", "flights")
    assert count["keys"] == 5000
    assert [node["partitions"] for node in count["nodes"]] == [3, 3, 3]
    assert sum(partition["keys"] for partition in count["partitions"]) == 5000
    lines = run("kv", "count", "flights", "-o", "wide").stdout.splitlines()
    assert [line.split("\t")[2] for line in lines if line.startswith("total\t")] == ["5000"]


def locate_finds_who_answers(run: Run) -> None:
    found = as_json(run, "partitions", "locate", "flights", "70/4900")
    row = next(row for row in as_json(run, "partitions") if row["id"] == found["id"])
    assert (row["leader"], row["slot"], row["state"]) == (found["node"], found["slot"], "online")


def a_reassign_from_plan_to_end(run: Run, cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.add("ephesus")
    plan = tmp_path / "plan.json"
    dry = as_json(run, "reassign", "--dry-run")
    assert len(dry["moves"]) == dry["minimum_moves"] == 2
    assert {move["target"] for move in dry["moves"]} == {"ephesus"}
    assert as_json(run, "migrations") == []
    assert run("reassign", "--limit", "50MiB", "--reason", "ephesus is new", "--out", plan).exit_code == 0

    damaged = tmp_path / "damaged.json"
    damaged.write_text(plan.read_text().replace('"ephesus"', '"athens"'))
    refused = run("apply", damaged, "--yes")
    assert refused.exit_code == Exit.FAILED
    assert "error: DAMAGED_PLAN: " in refused.stderr
    assert "ephesus" not in refused.stdout
    empty = run("apply", "-", "--yes", input="{}")
    assert (empty.exit_code, empty.stdout) == (Exit.USAGE, "")

    ended = on_terminal("apply", str(plan), keys="y\n", when="Apply this plan", timeout_s=60)
    assert ended.status == 0, ended.text
    assert "succeeded" in ended.text
    assert sorted(node["partitions"] for node in as_json(run, "nodes")) == [2, 2, 2, 3]
    assert as_json(run, "kv", "count", "flights")["keys"] == 5000

    stale = run("apply", plan, "--yes")
    assert stale.exit_code == Exit.STALE_PLAN
    assert "error: STALE_PLAN: " in stale.stderr
    (operation,) = as_json(run, "migrations")
    assert (operation["state"], operation["reason"]) == ("succeeded", "ephesus is new")
    assert (operation["rate_limit"], operation["plan_digest"]) == (50 << 20, json.loads(plan.read_text())["digest"])
    assert [migration["state"] for migration in operation["migrations"]] == ["completed"] * 2
    assert run("migrations", "watch").exit_code == 0
    nothing = run("reassign")
    assert nothing.exit_code == 0
    assert "as even as they can be" in nothing.stderr


def versions_and_one_node(run: Run) -> None:
    found = as_json(run, "version")
    assert {node["version"] for node in found["nodes"]} == {found["client"]}
    node = as_json(run, "nodes", "ephesus")
    assert (node["state"], node["partitions"], len(node["led"])) == ("live", 2, 2)
    assert [keyspace["replicas"] for keyspace in node["keyspaces"]] == [2]


def the_summary_is_what_the_partitions_add_up_to(run: Run, cluster: LocalCluster) -> None:
    assert run("keyspace", "create", "crews", "--partitions", "24", "--replicas", "2").exit_code == 0
    eventually("all are online", lambda: as_json(run, "status")["partitions"]["online"] == 33)
    names = run("partitions", "--keyspace", "crews", "-o", "name").stdout.split()
    assert names == [f"crews/{slot}" for slot in range(24)]
    with Control(cluster.endpoints) as control:
        whole, known = control.status(), control.summary().summary
        held = [row.id for row in whole.table.partitions if "ephesus" in row.replicas]
        listed = control.partitions(PartitionFilter(node="ephesus")).whole()
    assert [row.id for row in listed.table.partitions] == held
    assert sum(node.bytes for node in known.nodes) > 0, "the leaders have reported it"
    for node in known.nodes:
        node.bytes = 0
    for keyspace in known.keyspaces:
        keyspace.keys = keyspace.bytes = 0
    del whole.replicas[:]
    assert known == summary_of(whole)
    located = as_json(run, "partitions", "locate", "crews", "UA1545")
    assert as_json(run, "partitions", "explain", located["name"])["partition"]["leader"] == located["node"]


def a_node_that_dies_is_seen_and_its_return_too(run: Run, cluster: LocalCluster) -> None:
    cluster.kill("byzantium")
    ended = on_terminal("status", "--watch", "0.2", keys="\x03", when="byzantium failed at ", timeout_s=20)
    assert "byzantium failed at " in ended.text
    result = run("status", "-o", "json")
    assert result.exit_code == Exit.UNHEALTHY
    assert json.loads(result.stdout)["problems"][0]["problem"].startswith("byzantium failed at ")
    offline = run("partitions", "--state", "offline", "-o", "name").stdout.split()
    assert len(offline) >= 2
    cluster.restart("byzantium")
    ended = on_terminal("status", "--watch", "0.2", keys="\x03", when="is healthy", timeout_s=20)
    assert "is healthy" in ended.text
    assert as_json(run, "kv", "count", "flights")["keys"] == 5000


def no_quorum_is_told(run: Run, cluster: LocalCluster) -> None:
    for name in ("athens", "byzantium"):
        cluster.kill(name)
    ended = on_terminal("status", "--watch", "0.2", keys="\x03", when="no active controller", timeout_s=20)
    assert "no active controller" in ended.text
    created = run("keyspace", "create", "late", "--partitions", "3", "--timeout", "2")
    assert created.exit_code in (Exit.UNREACHABLE, Exit.TIMEOUT)
    for name in ("athens", "byzantium"):
        cluster.restart(name, ready=False)
    cluster.wait_ready()
    eventually("a healthy cluster", lambda: run("status").exit_code == 0)


# Writes one fare after another until its stdin ends, and prints the number of each acknowledged write.
WRITER = """
import itertools, select, sys, minka
with minka.Client(sys.argv[1].split(","), keyspace="fares") as client:
    for number in itertools.count():
        client.put(f"fare-{number}", b"12.50")
        print(number, flush=True)
        if select.select([sys.stdin], [], [], 0)[0]:
            break
"""


@contextmanager
def writing(endpoints: tuple[str, ...], acknowledged: Path) -> Iterator[None]:
    """Let another process write during the `with` block. The block begins after the first acknowledged write."""
    with acknowledged.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, ",".join(endpoints)], stdin=subprocess.PIPE, stdout=out
        )
        try:
            deadline = time.monotonic() + 30
            while not acknowledged.stat().st_size:
                assert process.poll() is None
                assert time.monotonic() < deadline, "nothing was acknowledged"
                time.sleep(0.01)
            yield
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()


def test_drains_under_writes(run: Run, cluster: LocalCluster, tmp_path: Path) -> None:
    def leads() -> dict[str, int]:
        return {node["id"]: node["leads"] for node in as_json(run, "nodes")}

    acknowledged = tmp_path / "acknowledged"

    def written() -> int:
        return len(acknowledged.read_text().splitlines())

    created = as_json(run, "keyspace", "create", "fares", "--partitions", "9")
    assert (created["replicas"], created["min_insync"], created["durability"]) == (3, 2, "sync")
    with writing(cluster.endpoints, acknowledged):
        drained = run("drain", "cyrene", "--timeout", "60")
        assert drained.exit_code == 0, drained.stderr
        assert drained.stderr.splitlines()[-1] == "safe to stop: yes"
        assert leads()["cyrene"] == 0
        before = written()
        cluster.terminate("cyrene")
        until(lambda: len(run("partitions", "--under-replicated", "-o", "name").stdout.split()) == 9, "it has left")
        stuck = run("drain", "byzantium", "--timeout", "3")
        assert stuck.exit_code == Exit.TIMEOUT, stuck.output
        assert "1 of 2 would be in sync: its writes would be refused; helps: start cyrene" in stuck.stderr
        assert "safe to stop: no" in stuck.stderr
        assert "start cyrene" in run("operations").stdout
        cluster.restart("cyrene")
        assert run("drain", "byzantium", "--timeout", "60").stderr.splitlines()[-1] == "safe to stop: yes"
        undrained = as_json(run, "undrain", "byzantium")
        assert undrained["state"] == "live"
        elected = run("elect-leaders", "--preferred", "--timeout", "60")
        assert elected.exit_code == 0, elected.stderr
        assert leads() == {"athens": 3, "byzantium": 3, "cyrene": 3}
        assert written() > before
    assert as_json(run, "kv", "count", "fares")["keys"] == written()
    assert {operation["state"] for operation in as_json(run, "operations")} == {"succeeded"}
