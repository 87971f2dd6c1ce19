"""minkactl with keyspaces by ranges, against real daemons: bounds, scans and splits."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minka.testing.local_cluster import LocalCluster
from minkactl.exits import Exit
from tests.cli.conftest import Run

pytestmark = pytest.mark.timeout(120)
AUTHORS = ("alice", "az", "b", "bob", "cyril", "d", "mary", "philip")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster of athens, byzantium and cyrene."""
    with LocalCluster(3) as running:
        yield running


@pytest.fixture(autouse=True)
def use_it(cluster: LocalCluster, own_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set MINKA_ENDPOINTS, so that minkactl finds the cluster."""
    monkeypatch.setenv("MINKA_ENDPOINTS", ",".join(cluster.endpoints))


def as_json(run: Run, *arguments: str) -> Any:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def scanned(run: Run, *arguments: str) -> list[str]:
    result = run("kv", "scan", *arguments, "--keys-only")
    assert result.exit_code == 0, result.stderr
    return result.stdout.split()


def ranges(run: Run, keyspace: str) -> list[str]:
    return [row["range"] for row in as_json(run, "partitions", "--keyspace", keyspace)]


def test_authors_are_scanned_split_and_merged(run: Run, tmp_path: Path) -> None:
    authors_of_three_nodes(run, tmp_path)
    split_at_keys(run)
    merge(run)


def authors_of_three_nodes(run: Run, tmp_path: Path) -> None:
    """Three nodes lead the ranges ["", b), [b, d) and [d, ""). A scan of all names, or of the names from a to c,
    returns the names in order.
    """
    assert run("keyspace", "create", "authors", "--ranges", "--split-at", "b,d").exit_code == 0
    assert ranges(run, "authors") == ['["", b)', "[b, d)", '[d, "")']
    rows = as_json(run, "partitions", "--keyspace", "authors")
    assert {row["leader"] for row in rows} == {"athens", "byzantium", "cyrene"}
    (tmp_path / "authors.csv").write_text("name\n" + "".join(f"{name}\n" for name in AUTHORS))
    assert run("kv", "load", "authors", str(tmp_path / "authors.csv"), "--key", "name").exit_code == 0
    assert scanned(run, "authors") == sorted(AUTHORS)
    assert scanned(run, "authors", "a", "c") == ["alice", "az", "b", "bob"]
    assert scanned(run, "authors", "--reverse", "--limit", "2") == ["philip", "mary"]
    told = {limit: run("kv", "scan", "authors", "--limit", limit) for limit in (2, len(AUTHORS), len(AUTHORS) + 1)}
    assert [len(result.stdout.splitlines()) for result in told.values()] == [2, len(AUTHORS), len(AUTHORS)]
    assert [result.stderr for result in told.values()] == [
        "Only the first 2 pairs are shown, and there are more.\n",
        "",
        "",
    ]
    assert scanned(run, "authors", "0x62", "0x6300") == ["b", "bob"]
    line = run("kv", "scan", "authors", "mary", "mary0").stdout
    assert line == 'mary\t{"name":"mary"}\n'
    assert json.loads(run("kv", "scan", "authors", "mary", "mary0", "-o", "json").stdout)["key"] == "mary"
    assert [as_json(run, "partitions", "locate", "authors", key)["id"] for key in ("az", "b", "d")] == [
        row["id"] for row in rows
    ]
    assert as_json(run, "kv", "count", "authors")["keys"] == len(AUTHORS)


def test_keys_in_hex(run: Run) -> None:
    """A person can type a key exactly as a scan prints it."""
    assert run("keyspace", "create", "hashes", "--ranges").exit_code == 0
    assert run("kv", "put", "hashes", "0x00ff", "binary").exit_code == 0
    assert run("kv", "put", "hashes", "0x626f62", "text").exit_code == 0
    assert scanned(run, "hashes") == ["0x00ff", "bob"]
    assert run("kv", "get", "hashes", "0x00ff").stdout == "binary"
    assert run("kv", "get", "hashes", "bob").stdout == "text"
    assert run("kv", "delete", "hashes", "0x00ff").exit_code == 0
    assert scanned(run, "hashes") == ["bob"]
    refused = run("kv", "get", "hashes", "0xyz")
    assert (refused.exit_code, "'0xyz' begins with 0x and isn't hex" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("points", "code"),
    [("d,b", "UNSORTED_SPLIT_POINTS"), ("b,b", "DUPLICATE_SPLIT_POINT"), ("b,,d", "EMPTY_SPLIT_POINT")],
)
def test_split_points_are_refused_by_name(run: Run, points: str, code: str) -> None:
    result = run("keyspace", "create", "other", "--ranges", "--split-at", points)
    assert result.exit_code != 0
    assert f"error: {code}: " in result.stderr


@pytest.mark.parametrize("command", ["split", "merge"])
@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_a_key_that_is_given_twice_is_refused(run: Run, command: str, dry_run: tuple[str, ...]) -> None:
    name = f"twice-{command}-{len(dry_run)}"
    assert run("keyspace", "create", name, "--ranges", "--split-at", "b,d").exit_code == 0
    result = run(command, name, "--at", "d,b,d", *dry_run)
    assert result.exit_code != 0
    assert "error: DUPLICATE_SPLIT_POINT: the split point d comes twice" in result.stderr


def test_the_keys_of_a_split_may_come_in_any_order(run: Run) -> None:
    assert run("keyspace", "create", "disordered", "--ranges").exit_code == 0
    result = run("split", "disordered", "--at", "d,b")
    assert result.exit_code == 0, result.stderr
    assert ranges(run, "disordered") == ['["", b)', "[b, d)", '[d, "")']


def split_at_keys(run: Run) -> None:
    look = run("split", "authors", "--at", "m,n,x", "--dry-run", "-o", "json")
    assert [row["upper"] for row in json.loads(look.stdout)] == ["[m, n)", "[n, x)", '[x, "")']
    assert "--dry-run" in look.stderr
    assert len(ranges(run, "authors")) == 3
    result = run("split", "authors", "--at", "m", "--reason", "test")
    assert result.exit_code == 0, result.stderr
    assert ranges(run, "authors") == ['["", b)', "[b, d)", "[d, m)", '[m, "")']
    again = run("split", "authors", "--at", "m,d")
    assert again.exit_code == 0
    assert "begins at each of these keys already" in again.stderr
    newest = as_json(run, "operations")[0]
    assert (newest["kind"], newest["state"], newest["outcome"], newest["reason"]) == (
        "split",
        "succeeded",
        "1 of 1 new partitions made",
        "test",
    )
    assert scanned(run, "authors") == sorted(AUTHORS)
    assert as_json(run, "kv", "count", "authors")["keys"] == len(AUTHORS)


def merge(run: Run) -> None:
    (row,) = [row for row in as_json(run, "partitions", "--keyspace", "authors") if row["range"] == "[d, m)"]
    look = run("merge", "authors", "--partition", str(row["id"]), "--dry-run", "-o", "json")
    (found,) = json.loads(look.stdout)
    assert (found["into"], found["key"], found["range"]) == (row["name"], "m", '[m, "")')
    for arguments, code in [
        (["authors", "--at", "n"], "NO_BOUND"),
        (["authors", "--at", "n", "--dry-run"], "NO_BOUND"),
        (["authors", "--partition", str(found["id"])], "NO_BOUND"),
        (["authors", "--partition", "99"], "UNKNOWN_PARTITION"),
        (["nothing", "--at", "b"], "UNKNOWN_KEYSPACE"),
        (["authors"], "INVALID_ARGUMENT"),
        (["authors", "--at", "b", "--partition", "1"], "INVALID_ARGUMENT"),
    ]:
        result = run("merge", *arguments)
        assert result.exit_code != 0
        assert f"error: {code}: " in result.stderr, result.stderr
    result = run("merge", "authors", "--at", "m,d", "--reason", "test")
    assert result.exit_code == 0, result.stderr
    assert ranges(run, "authors") == ['["", b)', '[b, "")']
    newest = as_json(run, "operations")[0]
    assert (newest["kind"], newest["state"], newest["outcome"]) == ("merge", "succeeded", "2 of 2 merged")
    assert scanned(run, "authors") == sorted(AUTHORS)
    assert as_json(run, "kv", "count", "authors")["keys"] == len(AUTHORS)


def test_split_evenly(run: Run, tmp_path: Path) -> None:
    assert run("keyspace", "create", "numbers", "--ranges", "--replicas", "1").exit_code == 0
    (tmp_path / "numbers.csv").write_text("n\n" + "".join(f"{n:05d}\n" for n in range(2000)))
    assert run("kv", "load", "numbers", str(tmp_path / "numbers.csv"), "--key", "n").exit_code == 0
    assert run("split", "numbers", "--into", "4").exit_code == 0
    rows = as_json(run, "partitions", "--keyspace", "numbers")
    counts = {row["id"]: row["keys"] for row in as_json(run, "kv", "count", "numbers")["partitions"]}
    assert len(counts) == 4
    assert all(400 <= keys <= 600 for keys in counts.values()), counts
    assert run("split", "numbers", "--into", "2").exit_code == Exit.USAGE
    assert run("split", "numbers", "--partition", str(rows[-1]["id"])).exit_code == 0
    assert scanned(run, "numbers") == [f"{n:05d}" for n in range(2000)]
    counts = {row["id"]: row["keys"] for row in as_json(run, "kv", "count", "numbers")["partitions"]}
    assert sum(counts.values()) == 2000
    # The counts in the table may be wrong for a moment: nodes trim keys in the background, and report with heartbeats.
    deadline = time.monotonic() + 20
    while {row["id"]: row["keys"] for row in as_json(run, "partitions", "--keyspace", "numbers")} != counts:
        assert time.monotonic() < deadline, "the reports still show another number of keys"


def test_refused_splits(run: Run) -> None:
    assert run("keyspace", "create", "empty", "--ranges").exit_code == 0
    assert run("keyspace", "create", "hashed", "--partitions", "2").exit_code == 0
    for arguments, code in [
        (["empty", "--into", "2"], "NO_SPLIT_KEY"),
        (["hashed", "--at", "b"], "NOT_BY_RANGES"),
        (["nothing", "--at", "b"], "UNKNOWN_KEYSPACE"),
        (["empty", "--partition", "999"], "UNKNOWN_PARTITION"),
        (["empty", "--at", ""], "EMPTY_SPLIT_POINT"),
        (["empty"], "INVALID_ARGUMENT"),
        (["empty", "--at", "b", "--into", "2"], "INVALID_ARGUMENT"),
    ]:
        result = run("split", *arguments)
        assert result.exit_code != 0
        assert f"error: {code}: " in result.stderr, result.stderr
    result = run("kv", "scan", "hashed")
    assert "error: NOT_BY_RANGES: " in result.stderr
    assert run("kv", "put", "empty", "only", "one").exit_code == 0
    assert "error: NO_SPLIT_KEY: " in run("split", "empty", "--into", "2").stderr
