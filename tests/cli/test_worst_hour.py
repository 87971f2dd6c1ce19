"""`minkactl status` and `minkactl nodes` while some daemons are killed, stopped, or not started yet. The output
recommends commands, and these mend the cluster.
"""

import json
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from minkactl.exits import Exit
from tests.cli.conftest import Run, on_terminal
from tests.cluster.cluster import QUICK, eventually, wait_settled

pytestmark = pytest.mark.timeout(150)
PARTITIONS = 12
NODES = ("athens", "byzantium", "cyrene")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """A cluster of athens, byzantium and cyrene, with a keyspace of three replicas."""
    with LocalCluster(3, config=QUICK) as running:
        monkeypatch.setenv("MINKA_ENDPOINTS", ",".join(running.endpoints))
        with Control(running.endpoints) as control:
            control.create_keyspace("flights", PARTITIONS, HashFunction.HASH_FUNCTION_MURMUR3)
            wait_settled(control, 3)
        yield running


def status_of(run: Run) -> tuple[int, Any]:
    result = run("status", "-o", "json")
    return result.exit_code, json.loads(result.stdout)


def once(run: Run, what: str, condition: Any) -> Any:
    """Wait until the status meets the condition, and return the status."""

    def probe() -> Any:
        document = status_of(run)[1]
        return document if condition(document) else None

    return eventually(what, probe)


def node_rows(document: Any) -> dict[str, Any]:
    return {row["id"]: row for row in document["nodes"]}


def is_healthy(document: Any) -> bool:
    return not document["problems"]


def only(document: Any, beginning: str) -> bool:
    """True if there is exactly one problem, and its text begins with `beginning`."""
    return [problem["problem"].startswith(beginning) for problem in document["problems"]] == [True]


def started(node: str, again: bool = False) -> str:
    return f"systemctl {'restart' if again else 'start'} minkad  # {node}, on this machine"


def test_two_of_three_voters_dead(run: Run, cluster: LocalCluster) -> None:
    for name in ("byzantium", "cyrene"):
        cluster.kill(name)
    before = time.time()
    document = once(run, "athens has no clearance", lambda d: d["remembered"] and d["remembered"]["until_ms"])
    once(run, "athens no longer leads anybody", lambda d: d["coordinator"]["controller"] == "")
    document = once(run, "nothing is served", lambda d: d["served"]["not_served"] == PARTITIONS)
    assert (document["healthy"], document["known"]) == (False, False)
    rows = node_rows(document)
    assert {row["state"] for row in rows.values()} == {"unknown"}
    assert {row["remembered_state"] for row in rows.values()} == {"live"}
    assert [rows[name]["no_answer"] for name in NODES] == [None, "connection refused", "connection refused"]
    assert (rows["athens"]["answers"], rows["athens"]["serves"], rows["athens"]["clearance"]) == (True, 0, False)
    assert all(abs(rows[name]["last_heard_ms"] / 1000 - before) < 30 for name in ("byzantium", "cyrene"))
    (problem,) = document["problems"]
    assert re.match(r"no quorum since \d\d:\d\d:\d\d \(.+\): 2 of 3 voters do not answer: ", problem["problem"])
    assert len(re.findall(r"connection refused, last heard at \d\d:\d\d:\d\d", problem["problem"])) == 2
    assert problem["nodes"] == ["byzantium", "cyrene"]
    assert problem["next"] == [started("byzantium"), started("cyrene")]
    assert problem["note"] == "1 of them is enough."
    assert "Restore copies of those of all nodes together, or of none." in problem["otherwise"]
    assert document["served"]["stale_reads"] == PARTITIONS
    assert document["served"]["sentence"].startswith(f"nothing but stale reads, of {PARTITIONS} of {PARTITIONS}")
    assert (document["partitions"]["online"], document["remembered"]["partitions"]["online"]) == (None, PARTITIONS)

    for sync in ("--under-replicated", "--under-min-insync"):
        listed = run("partitions", sync, "-o", "name")
        assert (listed.exit_code, listed.stdout, "Not known to be so" in listed.stderr) == (Exit.UNHEALTHY, "", True)
    shown = on_terminal("nodes", env={"COLUMNS": "80"})
    assert shown.status == Exit.UNHEALTHY
    assert shown.text.count("was live") == 3
    assert "\x1b[32m" not in shown.text  # no text is green

    # As the second of the recommended commands does. One of the two is enough for a quorum.
    cluster.restart("cyrene", ready=False)
    once(run, "a quorum decides, and all is served", lambda d: d["known"] and d["served"]["served"] == PARTITIONS)
    once(run, "cyrene is live", lambda d: d["known"] and node_rows(d)["cyrene"]["state"] == "live")


def test_nodes_that_hang(run: Run, cluster: LocalCluster) -> None:
    one_that_hangs_delays_nothing(run, cluster)
    an_active_controller_that_hangs(run, cluster)
    what_two_that_hang_do_is_not_known(run, cluster)


def what_two_that_hang_do_is_not_known(run: Run, cluster: LocalCluster) -> None:
    for name in ("byzantium", "cyrene"):
        cluster.signal(name, signal.SIGSTOP)
    try:
        document = once(run, "athens leads nobody", lambda d: not d["known"] and node_rows(d)["athens"]["serves"] == 0)
        served = document["served"]
        assert (served["served"], served["not_served"], served["unknown"]) == (0, 0, PARTITIONS)
        assert served["sentence"].endswith("it can't be known, since byzantium and cyrene can't be asked")
        document = once(run, "no quorum", lambda d: d["problems"][0]["problem"].startswith("no quorum"))
        (problem,) = document["problems"]
        assert problem["next"] == [started("byzantium", again=True), started("cyrene", again=True)]
    finally:
        for name in ("byzantium", "cyrene"):
            cluster.signal(name, signal.SIGCONT)
    once(run, "all is well again", lambda d: d["known"] and d["served"]["served"] == PARTITIONS)


def test_one_of_three_dead_and_gone_for_good(run: Run, cluster: LocalCluster) -> None:
    cluster.kill("cyrene")
    document = once(run, "cyrene failed", lambda d: d["known"] and node_rows(d)["cyrene"]["state"] == "failed")
    document = once(run, "others lead", lambda d: d["served"]["served"] == PARTITIONS and only(d, "cyrene failed"))
    code, _ = status_of(run)
    assert code == run("nodes").exit_code == Exit.UNHEALTHY
    (problem,) = document["problems"]
    assert re.match(r"cyrene failed at \d\d:\d\d:\d\d \(.+ ago\): connection refused$", problem["problem"])
    assert document["served"]["sentence"] == f"all {PARTITIONS} partitions"
    assert problem["note"] == f"{PARTITIONS} partitions under-replicated without it."
    assert problem["next"] == [started("cyrene")]
    commands = ["minkactl drain cyrene --decommission", "minkactl raft remove cyrene"]
    gone = f"If cyrene is gone for good: let a new node join, then {', then '.join(commands)}"
    assert problem["otherwise"] == gone

    cluster.add("ephesus")
    document = once(run, "ephesus is live", lambda d: "ephesus" in node_rows(d))
    assert document["problems"][0]["otherwise"] == gone.replace("let a new node join, then ", "")
    for command in commands:
        result = run(*command.split()[1:], "--yes")
        assert result.exit_code == 0, result.output
    document = once(run, "the cluster is healthy without cyrene", is_healthy)
    assert sorted(node_rows(document)) == ["athens", "byzantium", "ephesus"]
    assert document["served"]["served"] == PARTITIONS


def test_two_dead_of_five_and_one_spare(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spare node takes the place of one dead node. For the other dead node, no spare node is left, and the status
    says so.
    """
    with LocalCluster(5, config=QUICK) as cluster:
        monkeypatch.setenv("MINKA_ENDPOINTS", ",".join(cluster.endpoints))
        with Control(cluster.endpoints) as control:
            control.create_keyspace("flights", PARTITIONS, HashFunction.HASH_FUNCTION_MURMUR3, replicas=5)
            wait_settled(control, 5)
            cluster.add("spare")
            wait_settled(control, 6)
        dead = ("delphi", "ephesus")
        for name in dead:
            cluster.kill(name)

        def told(d: Any) -> dict[str, str]:
            return {p["nodes"][0]: p["otherwise"] for p in d["problems"] if p["problem"].startswith(dead)}

        replace = "minkactl drain {0} --decommission, then minkactl raft remove {0}"
        helps = {name: f"If {name} is gone for good: {replace.format(name)}" for name in dead}
        once(run, "both failed and others lead", lambda d: told(d) == helps and d["served"]["served"] == PARTITIONS)
        drained = run("drain", "delphi", "--decommission", "--yes")
        assert drained.exit_code == 0, drained.output
        with Control(cluster.endpoints) as control:
            assert all({*p.isr} == {"athens", "byzantium", "cyrene", "spare"} for p in control.table().partitions)
        join = "If ephesus is gone for good: let a new node join, then "
        once(run, "one more is lacking", lambda d: told(d)["ephesus"] == join + replace.format("ephesus"))
        refused = run("drain", "ephesus", "--decommission", "--yes")
        assert refused.exit_code == Exit.FAILED
        assert "ephesus keeps 12 replicas of flights (flights/0, " in refused.output


def one_that_hangs_delays_nothing(run: Run, cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control:
        hangs = next(name for name in NODES if name != control.status().coordinator.controller)
    cluster.signal(hangs, signal.SIGSTOP)
    try:
        document = once(run, f"{hangs} failed", lambda d: d["known"] and node_rows(d)[hangs]["state"] == "failed")
        row = node_rows(document)[hangs]
        assert (row["answers"], row["no_answer"]) == (False, "no answer within 1 s")
        assert document["problems"][0]["next"] == [started(hangs, again=True)]
        document = once(run, "the others serve all", lambda d: d["served"]["served"] == PARTITIONS)
    finally:
        cluster.signal(hangs, signal.SIGCONT)
    once(run, "it is back", lambda d: d["known"] and is_healthy(d))


def an_active_controller_that_hangs(run: Run, cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control:
        hangs = control.status().coordinator.controller
    cluster.signal(hangs, signal.SIGSTOP)
    try:
        code, document = status_of(run)
        assert code == Exit.UNHEALTHY
        assert node_rows(document)[hangs]["no_answer"] == "no answer within 1 s"
        document = once(run, "another one is it", lambda d: d["known"] and d["coordinator"]["controller"] != hangs)
    finally:
        cluster.signal(hangs, signal.SIGCONT)
    once(run, "it is back", lambda d: d["known"] and is_healthy(d))


def ready_check(cluster: LocalCluster, name: str) -> str:
    """The text of the node's /readyz."""
    try:
        with urllib.request.urlopen(f"http://{cluster.node(name).http_address}/readyz", timeout=20) as answer:
            return str(answer.read(), "utf-8")
    except urllib.error.HTTPError as error:
        return str(error.read(), "utf-8")
    except OSError:
        return ""


def test_founding(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = LocalCluster(3, config=QUICK)
    monkeypatch.setenv("MINKA_ENDPOINTS", ",".join(cluster.endpoints))
    try:
        cluster.restart("athens", ready=False)
        said = "[-]controller failed: waiting for byzantium, cyrene\n"
        eventually("/readyz names the missing nodes", lambda: said in ready_check(cluster, "athens"))
        line = "waiting for byzantium, cyrene to found the cluster"
        eventually("so does the log", lambda: cluster.log("athens").read_text().count(line) == 1)
        code, document = status_of(run)
        assert (code, document["healthy"], document["known"]) == (Exit.UNHEALTHY, False, False)
        (problem,) = document["problems"]
        refused = "connection refused"
        assert problem["problem"] == f"athens is waiting for byzantium ({refused}), cyrene ({refused})"
        assert problem["next"] == [started("byzantium"), started("cyrene")]
        assert "the cluster is not founded yet" in on_terminal("status").text
        assert run("nodes").exit_code == Exit.UNHEALTHY

        cluster.restart("byzantium", ready=False)
        document = once(run, "the cluster is founded", lambda d: d["known"] and node_rows(d)["byzantium"]["answers"])
        once(run, "cyrene is missing", lambda d: d["problems"] and d["problems"][0]["next"] == [started("cyrene")])
        cluster.restart("cyrene", ready=False)
        once(run, "all are there", lambda d: d["known"] and is_healthy(d))
    finally:
        cluster.stop()


def test_skew_is_told_with_the_command_that_evens_it(run: Run, cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control:
        control.create_keyspace("single", 24, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
        wait_settled(control, 3)
        assert once(run, "evenly spread", is_healthy)["healthy"]
        cluster.add("ephesus")
        document = once(run, "ephesus has nothing", lambda d: only(d, "replicas") and len(d["nodes"]) == 4)
        (problem,) = document["problems"]
        assert document["healthy"], "uneven load is still served"
        assert re.match(r"replicas are spread unevenly: 0 \(ephesus\) to \d+ \(\w+\) a node$", problem["problem"])
        assert problem["next"] == ["minkactl reassign"]
        assert run("reassign", "--yes").exit_code == 0
        once(run, "even again", is_healthy)

        control.create_keyspace("wide", 40, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, 4)
        cluster.restart("athens")
        document = once(run, "athens leads too little", lambda d: only(d, "leaders"))
        (problem,) = document["problems"]
        assert re.match(r"leaders are spread unevenly: \d+ \(athens\) to \d+ \(\w+\) a node$", problem["problem"])
        assert problem["next"] == ["minkactl elect-leaders --preferred"]
        assert run(*problem["next"][0].split()[1:]).exit_code == 0
        once(run, "even again", is_healthy)
