"""minkactl with pallets and duties, against real daemons."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minka.testing.local_cluster import LocalCluster
from minkactl.exits import Exit
from tests.cli.conftest import Run, on_terminal, plain_lines

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1) as running:
        yield running


@pytest.fixture(autouse=True)
def use_it(cluster: LocalCluster, own_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set MINKA_ENDPOINTS, so that minkactl finds the cluster."""
    monkeypatch.setenv("MINKA_ENDPOINTS", ",".join(cluster.endpoints))


def as_json(run: Run, *arguments: str) -> Any:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def nothing_is_there(run: Run) -> None:
    assert as_json(run, "pallets") == []
    assert as_json(run, "shards") == {"shards": [], "moves": []}
    result = run("duty", "create", "feeds/bbc", "--payload", "x")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        Exit.FAILED,
        "error: UNKNOWN_PALLET: there is no pallet feeds",
    )


def pallets(run: Run) -> None:
    made = as_json(run, "pallet", "create", "feeds", "--balancer", "round-robin", "--max-difference", "2")
    assert (made["version"], made["balancer"]["kind"], made["balancer"]["max_difference"]) == (1, "round_robin", 2)
    changed = as_json(run, "pallet", "set", "feeds", "--manual", "--moves-per-shard", "7")
    assert (changed["version"], changed["manual"], changed["balancer"]["max_difference"]) == (2, True, 2)
    assert as_json(run, "pallet", "update", "feeds", "--automatic")["manual"] is False
    assert run("pallet", "update", "feeds").exit_code == Exit.USAGE
    assert "VERSION_MISMATCH" in run("pallet", "set", "feeds", "--warm", "--if-version", "1").stderr
    canary = as_json(run, "pallet", "canary", "feeds", "--version", "2", "--share", "5%")
    assert canary["canary"] == {"version": "2", "percent": 5}
    assert as_json(run, "pallet", "canary", "feeds", "--off")["canary"] is None
    for wrong in (["--version", "2"], ["--version", "2", "--share", "0%"], ["--off", "--version", "2"], []):
        assert run("pallet", "canary", "feeds", *wrong).exit_code == Exit.USAGE
    assert "fill_limit" in run("pallet", "set", "feeds", "--balancer", "spill-over", "--fill-by", "count").stderr
    assert run("pallets", "-o", "name").stdout == "feeds\n"
    assert as_json(run, "pallet", "list") == as_json(run, "pallets")


def duties(run: Run, tmp_path: Path) -> None:
    (tmp_path / "payload").write_bytes(b"\xff\x00")
    created = as_json(run, "duty", "create", "feeds/bbc", "--payload", "https://", "--weight", "5")
    assert (created["version"], created["payload_bytes"]) == (1, 8)
    as_json(run, "duty", "create", "feeds/a/b", "--payload-file", str(tmp_path / "payload"), "--lazy")
    assert as_json(run, "duty", "get", "feeds/bbc")["payload"] == "https://"
    found = as_json(run, "duty", "get", "feeds/a/b")
    assert (found["id"], found["payload_base64"], found["lazy"]) == ("a/b", "/wA=", True)
    assert as_json(run, "duty", "update", "feeds/bbc", "--weight", "8", "--if-version", "1")["version"] == 2
    assert as_json(run, "duty", "get", "feeds/bbc")["payload"] == "https://"
    refused = run("duty", "update", "feeds/bbc", "--weight", "9", "--if-version", "1")
    assert (refused.exit_code, "error: VERSION_MISMATCH: " in refused.stderr) == (Exit.FAILED, True)
    assert run("duties", "--pallet", "feeds", "--nowhere", "-o", "name").stdout == "feeds/bbc\nfeeds/a/b\n"
    assert run("duty", "list", "--limit", "1", "-o", "name").stdout == "feeds/bbc\n"
    lines = run("duties").stdout.splitlines()
    assert lines[0].split("\t")[:4] == ["DUTY", "SHARD", "STATE", "WEIGHT"]
    assert lines[1].split("\t")[:4] == ["feeds/bbc", "-", "nowhere", "8"]
    assert "feeds/bbc is nowhere" in as_json(run, "duties", "explain", "feeds/bbc")["summary"]
    assert "UNKNOWN_SHARD" in run("duty", "pin", "feeds/bbc", "nobody").stderr
    assert as_json(run, "duty", "release", "feeds/bbc")["pinned_to"] is None
    assert as_json(run, "duty", "retry", "feeds/bbc")["quarantines"] == []
    for wrong in (
        ["get", "feeds"],
        ["get", "/x"],
        ["update", "feeds/bbc"],
        ["delete", "feeds/bbc", "feeds/x", "--if-version", "3"],
    ):
        assert run("duty", *wrong).exit_code == Exit.USAGE
    for level in ("leader", "voters", "all"):
        as_json(run, "duty", "create", f"feeds/{level}", "--consistency", level)
    assert "UNKNOWN_DUTY" in run("duty", "delete", "feeds/leader", "feeds/none").stderr
    assert len(as_json(run, "duty", "delete", "feeds/leader", "feeds/voters", "feeds/all")) == 3
    assert len(as_json(run, "duties")) == 2


def balance(run: Run, tmp_path: Path) -> None:
    kinds = [row["kind"] for row in as_json(run, "pallet", "compare", "feeds")]
    assert sorted(kinds) == ["capacity_workload", "fair_workload", "round_robin", "spill_over"]
    result = run("pallet", "rebalance", "feeds", "--out", str(tmp_path / "plan.json"))
    assert (result.exit_code, "Nothing to move" in result.stderr) == (0, True)
    assert json.loads((tmp_path / "plan.json").read_text())["pallet"] == "feeds"
    applied = run("apply", str(tmp_path / "plan.json"))
    assert (applied.exit_code, "no moves" in applied.stderr) == (0, True)


FILE = """\
pallets:
  - {id: feeds, balancer: {kind: fair_workload}}
  - {id: maps}
duties:
  - {pallet: feeds, id: bbc, payload: "ftp://xy", weight: 8}
  - {pallet: feeds, id: ft, payload: "https://ft"}
  - {pallet: maps, id: tiles, payload_base64: AAEC, stationary: true}
"""


def apply(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "duties.yaml"
    file.write_text(FILE)
    changed = "balancer.kind: round_robin → fair_workload, balancer.max_difference: 2 → 0, moves_per_shard: 7 → 0"
    shown = run("apply", "-f", str(file), "--dry-run")
    assert shown.stdout.splitlines()[1:] == [
        f"update\tpallet feeds\t{changed}",
        "create\tpallet maps\tcapacity_workload",
        "update\tfeeds/bbc\tanother payload, of 8 bytes",
        "create\tfeeds/ft\tweight 1, payload 'https://ft'",
        "create\tmaps/tiles\tweight 1, stationary, payload of 3 bytes",
    ]
    assert shown.stderr == "3 to create, 2 to update, 0 unchanged\nNothing was changed (--dry-run).\n"
    assert run("apply", "-f", str(file)).exit_code == Exit.USAGE  # minkactl has no terminal here, so it can't ask
    assert as_json(run, "pallets")[0]["balancer"]["kind"] == "round_robin"
    assert "5 changes are made." in run("apply", "-f", str(file), "--yes").stderr
    assert as_json(run, "duty", "get", "feeds/bbc")["payload"] == "ftp://xy"
    assert as_json(run, "duty", "get", "maps/tiles")["payload_base64"] == "AAEC"
    assert "Nothing to change: all 5 are as the file says." in run("apply", "-f", str(file)).stderr
    assert as_json(run, "apply", "-f", str(file)) == {"changes": [], "unchanged": 5}
    file.write_text(FILE.replace("stationary: true", "lazy: true"))
    refused = run("apply", "-f", str(file), "--yes")
    assert (refused.exit_code, "maps/tiles is stationary, which stays so" in refused.stderr) == (Exit.FAILED, True)
    file.write_text(FILE.replace("id: ft", "di: ft"))
    assert run("apply", "-f", str(file), "--yes").exit_code == Exit.USAGE
    assert run("apply").exit_code == Exit.USAGE


def apply_many_lines(run: Run) -> None:
    lines = [json.dumps({"pallet": "maps", "id": str(number), "payload": "x" * 500}) for number in range(2500)]
    result = run("apply", "-f", "-", "--format", "jsonl", "--yes", input="\n".join(lines))
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) == 41  # the header, and the first 40 duties
    assert "2,500 changes are made." in result.stderr
    assert as_json(run, "pallet", "get", "maps")["duties"] == 2501
    again = run("apply", "-f", "-", "--format", "jsonl", input="\n".join(lines))
    assert "Nothing to change: all 2,500" in again.stderr


def a_terminal_asks_first(cluster: LocalCluster, tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("duties: [{pallet: maps, id: asked}]")
    env = {"MINKA_ENDPOINTS": cluster.endpoints[0]}
    ended = on_terminal("apply", "-f", str(file), env=env, keys="n\n", when="[y/N]")
    assert (ended.status, "Nothing was changed." in ended.text) == (Exit.FAILED, True)
    ended = on_terminal("apply", "-f", str(file), env=env, keys="y\n", when="[y/N]")
    assert (ended.status, "1 change is made." in ended.text) == (Exit.OK, True)


def output_on_a_terminal(cluster: LocalCluster) -> None:
    env = {"MINKA_ENDPOINTS": cluster.endpoints[0]}
    status = plain_lines(on_terminal("status", env=env).text)
    said = "2,505 in 2 pallets, 0 attached, 2,505 nowhere · shards: none"
    assert any(line.split() == ["Duties", *said.split()] for line in status)
    pallets = plain_lines(on_terminal("pallets", env=env).text)
    assert pallets[1].split()[:5] == ["feeds", "fair", "workload", "3", "0"]
    assert "No shard yet" in on_terminal("shards", env=env).text


def keyspace_of_payloads(run: Run) -> None:
    [row] = as_json(run, "keyspaces")
    assert (row["name"], row["internal"], row["by"]) == ("_duties", True, "ranges")
    assert run("keyspace", "create", "_mine", "--partitions", "3").exit_code == Exit.USAGE


def completion(run: Run) -> None:
    def completed(*words: str) -> list[str]:
        env = {
            "_MINKACTL_COMPLETE": "bash_complete",
            "COMP_WORDS": "minkactl " + " ".join(words),
            "COMP_CWORD": str(len(words)),
        }
        return [line.partition(",")[2] for line in run(env=env).stdout.splitlines()]

    assert completed("pallet", "get", "") == ["feeds", "maps"]
    assert completed("duty", "get", "fe") == ["feeds/"]
    assert completed("duty", "get", "feeds/b") == ["feeds/bbc"]


def deletions(run: Run) -> None:
    refused = run("pallet", "delete", "maps")
    assert (refused.exit_code, "PALLET_IN_USE" in refused.stderr) == (Exit.FAILED, True)
    names = run("duties", "--pallet", "feeds", "-o", "name").stdout.split()
    assert run("duty", "delete", *names).exit_code == 0
    assert run("pallet", "delete", "feeds").exit_code == 0
    assert [one["id"] for one in as_json(run, "pallets")] == ["maps"]


def test_pallets_and_duties_from_the_first_to_the_last(run: Run, cluster: LocalCluster, tmp_path: Path) -> None:
    """Each step uses the pallets and duties of the steps before it."""
    nothing_is_there(run)
    pallets(run)
    duties(run, tmp_path)
    balance(run, tmp_path)
    apply(run, tmp_path)
    apply_many_lines(run)
    a_terminal_asks_first(cluster, tmp_path)
    output_on_a_terminal(cluster)
    keyspace_of_payloads(run)
    completion(run)
    deletions(run)
