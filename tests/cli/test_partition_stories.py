"""`minkactl partitions story`: what happened to a partition's replicas, from all nodes that have one."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from minka.testing.local_cluster import LocalCluster
from tests.cli.conftest import Run, until
from tests.cluster.cluster import QUICK

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cluster(own_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    with LocalCluster(3, config=QUICK) as running:
        monkeypatch.setenv("MINKA_ENDPOINTS", ",".join(running.endpoints))
        yield running


def story(run: Run, *options: str) -> list[dict[str, Any]]:
    result = run("partitions", "story", "books/0", *options, "-o", "json")
    assert result.exit_code == 0, result.stderr
    told: list[dict[str, Any]] = json.loads(result.stdout)
    return told


def leader(run: Run) -> str:
    (row,) = json.loads(run("partitions", "--keyspace", "books", "-o", "json").stdout)
    return str(row["leader"])


def test_a_failover_is_told_by_all_nodes_in_the_order_of_time(run: Run, cluster: LocalCluster) -> None:
    created = run("keyspace", "create", "books", "--partitions", "1", "--replicas", "3", "--min-insync", "2")
    assert created.exit_code == 0, created.stderr
    assert run("kv", "put", "books", "k", "v").exit_code == 0
    first = leader(run)
    before = story(run)
    assert {one["node"] for one in before} == {"athens", "byzantium", "cyrene"}
    assert [one["at_ms"] for one in before] == sorted(one["at_ms"] for one in before)
    assert any(one["node"] == first and one["what"].startswith("lead at epoch") for one in before)

    cluster.kill(first)
    until(lambda: leader(run) not in ("", first), "another replica leads")
    second = leader(run)
    assert run("kv", "put", "books", "k", "w").exit_code == 0
    after = run("partitions", "story", "books/0", "-o", "json")
    assert f"Not shown: {first} doesn't answer" in after.stderr
    events = [one for one in json.loads(after.stdout) if one["node"] == second]
    leads = [one for one in events if one["what"].startswith("lead at epoch")]
    assert leads[-1]["leader_epoch"] > before[-1]["leader_epoch"]
    assert any(one["what"].startswith("propose that") and first not in one["what"] for one in events)

    table = run("partitions", "story", "books/0", "-o", "table")
    assert table.exit_code == 0
    assert "lead at epoch" in table.stdout
    assert run("partitions", "story", "--id", "1", "-o", "json").exit_code == 0
    assert run("partitions", "story").exit_code == 2
    refused = run("partitions", "story", "books/7")
    assert "UNKNOWN_PARTITION" in refused.stderr
