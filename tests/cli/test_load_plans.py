"""The load of a real cluster leads to proposals, and the test writes these as a plan. `minkactl apply` applies the
plan: first the splits, then the moves.
"""

import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from minka import Client
from minka.admin.control import Control
from minka.admin.plans import plan_of
from minka.bulk.load_history import HistoryClient
from minka.cluster.plan_digest import plan_digest
from minka.engine.documents import from_document, to_document
from minka.errors import Code, MinkaError
from minka.load_report import html
from minka.load_report.analysis import analyse, coarser
from minka.load_report.forecast import forecasts
from minka.load_report.plan import make_plan
from minka.load_report.proposals import Proposals, ProposedMove, propose
from minka.testing.local_cluster import LocalCluster
from minka.v1.admin_pb2 import Plan
from minka.v1.cluster_pb2 import HashFunction, Partition
from minkactl.commands.reassign import plan_page, write_plan
from minkactl.exits import Exit
from tests.cli.conftest import Run
from tests.cluster.cluster import eventually, wait_settled

pytestmark = pytest.mark.timeout(120)
KEYS = [b"k-%04d" % number for number in range(2000)]
STEP_MS = 60_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, config={"history": {"interval_s": 1}}) as running, Control(running.endpoints) as control:
        control.create_keyspace("authors", 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, 3, split_points=[])
        control.create_keyspace("flights", 3, HashFunction.HASH_FUNCTION_MURMUR3, 3)
        wait_settled(control, live=3)
        yield running


@pytest.fixture(autouse=True)
def use_it(cluster: LocalCluster, own_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set MINKA_ENDPOINTS, so that minkactl finds the cluster."""
    monkeypatch.setenv("MINKA_ENDPOINTS", ",".join(cluster.endpoints))


def rows_of(control: Control, name: str) -> list[Partition]:
    table = control.table()
    (keyspace,) = [one.id for one in table.keyspaces if one.name == name]
    return sorted((row for row in table.partitions if row.keyspace_id == keyspace), key=lambda row: row.start_key)


def proposals_of(cluster: LocalCluster, control: Control) -> tuple[Proposals, str]:
    """Read the load history of all nodes. Returns the proposals that follow from the history, and the HTML page that
    shows them.
    """
    with HistoryClient(cluster.endpoints) as history:
        intervals = coarser(history.read_all(on_missing=lambda node, error: pytest.fail(f"{node}: {error}")), STEP_MS)
    table = control.table()
    analysis = analyse(intervals, STEP_MS)
    forecast = forecasts(analysis.nodes)
    found = propose(intervals, analysis, forecast, table)
    return found, html.render("minka", analysis, forecast, found, html.names_in(table), plan_file="plan.json")


def test_a_hot_partition_is_split_by_the_plan_and_the_moves_come_after(
    cluster: LocalCluster, run: Run, tmp_path: Path
) -> None:
    with Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="authors") as client:
        client.put_many(dict.fromkeys(KEYS, b"v" * 100))

        def hot() -> tuple[Proposals, str] | None:
            for _ in range(10):
                client.get_many(KEYS)
            proposed = proposals_of(cluster, control)
            return proposed if proposed[0].splits else None

        found, page = eventually("there is a proposal to split the hot partition", hot)
        (split,) = found.splits
        assert "hot: " in split.reason
        assert "minkactl apply plan.json" in page
        assert split.partition in page
        row = rows_of(control, "flights")[0]
        order = [row.replicas[1], row.replicas[0], row.replicas[2]]
        move = ProposedMove(row.id, f"flights/{row.slot}", list(row.replicas), order, 0, "another one is to lead")
        plan = make_plan(control, replace(found, moves=[move]), time.time_ns() // 1_000_000)
        write_plan(plan_of(plan), tmp_path / "plan.json")
        assert from_document(to_document(plan), Plan()) == plan
        draw = plan_page(plan_of(plan)).draw
        assert draw is not None
        Console(file=(shown := io.StringIO()), width=120).print(draw(False))
        assert f"Split {split.partition}   {split.parts} parts" in shown.getvalue()
        with pytest.raises(MinkaError) as refused:
            control.apply_plan(plan, "anybody")
        assert refused.value.code is Code.INVALID_ARGUMENT
        applied = run("apply", tmp_path / "plan.json", "--yes")
        assert applied.exit_code == Exit.OK, applied.stderr
        assert "Plan: 1 split, then 1 change of preferred leader; no data moves." in applied.stderr + applied.stdout
        parts = rows_of(control, "authors")
        assert [part.start_key for part in parts] == [b"", *plan.splits[0].keys]
        assert len(parts) == split.parts
        assert rows_of(control, "flights")[0].replicas == order
        assert client.get_many(KEYS) == dict.fromkeys(KEYS, b"v" * 100)


def test_an_outdated_plan_changes_nothing(cluster: LocalCluster, run: Run, tmp_path: Path) -> None:
    """Minka refuses the whole plan: even a move that is still possible isn't made."""
    with Control(cluster.endpoints) as control:
        author, flight = rows_of(control, "authors")[0], rows_of(control, "flights")[1]
        found = Proposals(
            moves=[
                ProposedMove(
                    flight.id, "flights/1", list(flight.replicas), [*flight.replicas[1:], flight.replicas[0]], 0, "so"
                )
            ]
        )
        plan = make_plan(control, found, 1)
        plan.splits.add(
            partition_id=author.id,
            partition="authors/1",
            keyspace="authors",
            generation=author.generation,
            keys=[b"\x00\xff", b"a"],
        )
        before = control.table()
        for change in ("generation", "epoch", "cluster"):
            wrong = Plan()
            wrong.CopyFrom(plan)
            if change == "generation":
                wrong.splits[0].generation += 1
            elif change == "epoch":
                wrong.moves[0].partition_epoch += 1
            else:
                wrong.cluster_id = "another"
            wrong.digest = plan_digest(wrong)
            write_plan(plan_of(wrong), tmp_path / "wrong.json")
            result = run("apply", tmp_path / "wrong.json", "--yes")
            expected = "CLUSTER_MISMATCH" if change == "cluster" else "STALE_PLAN"
            assert result.exit_code != Exit.OK
            assert expected in result.stderr
        document = json.loads((tmp_path / "wrong.json").read_text())
        document["splits"][0]["keys"] = ["0x00fe", "a"]
        (tmp_path / "wrong.json").write_text(json.dumps(document))
        assert "DAMAGED_PLAN" in run("apply", tmp_path / "wrong.json", "--yes").stderr
        assert control.table() == before
